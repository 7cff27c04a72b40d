"""One code for NumPy and JAX: the namespace of an array, and dataclasses that are JAX pytrees.

JAX is an extra. This module never imports it: arrays of JAX exist only where someone else has.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from kalprox.base.tree import leaf

Array = Any  # numpy.ndarray or jax.Array; shapes are in the docstrings

C = TypeVar("C")
_HOST = frozenset({np.ndarray, np.float64, np.float32, np.bool_, float, int, bool, type(None)})
_SHORT = 6  # numbers of an array that are shown
_pytrees: dict[type, tuple[list[str], list[str]]] = {}  # the names of the leaves, and of the static fields
_unregistered: list[type] = []  # those that JAX does not know yet


def loaded_jax() -> Any:
    """Return the `jax` module if it has been imported completely, else None."""
    jax = sys.modules.get("jax")
    return None if jax is None or getattr(jax.__spec__, "_initializing", False) else jax


def namespace(*arrays: Any) -> ModuleType:
    """Return `jax.numpy` if any of `arrays`, or any leaf in them, is a JAX array, else `numpy`.

    Examples
    --------
    >>> namespace(np.ones(3), 2.0).__name__
    'numpy'
    """
    jax = loaded_jax()
    if jax is None or _on_host(arrays):  # the common cases, in a tenth of the time
        return np
    register_pytrees()
    leaves = jax.tree_util.tree_leaves(arrays)
    return jax.numpy if any(isinstance(leaf, jax.Array) for leaf in leaves) else np


def _on_host(arrays: tuple[Any, ...]) -> bool:
    """Whether these are certainly no JAX arrays, and hold none."""
    for a in arrays:  # noqa: SIM110 - in half the time of `all`
        if type(a) not in _HOST:
            return False
    return True


def is_traced(*arrays: Any) -> bool:
    """Whether any leaf of `arrays` is a JAX tracer, which has no concrete value."""
    jax = loaded_jax()
    if jax is None or _on_host(arrays):
        return False
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(arrays))


def eager() -> AbstractContextManager[Any]:
    """Return a context in which operations on concrete JAX arrays are evaluated immediately, also inside `jax.jit`.

    It lets a function check the values of arrays that a compiled function closes over.
    """
    jax = loaded_jax()
    return nullcontext() if jax is None else jax.ensure_compile_time_eval()


def cast(tree: Any, like: Array) -> Any:
    """Convert every number of a pytree to an array of the library and dtype of `like`.

    Parameters thus follow the data: a float64 penalty weight does not promote a float32 filter.
    """
    xp = namespace(like, tree)
    dtype = available_dtype(xp, like.dtype)
    return tree_map(lambda leaf: xp.asarray(leaf, dtype), tree)


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return `jax.tree_util.tree_map(function, tree, *others)`, also where JAX has not been imported.

    The trees are then of tuples, lists, dictionaries, None and `pytree` classes; all else is a leaf.

    Examples
    --------
    >>> tree_map(lambda a, b: a + b, {"x": (1, None)}, {"x": (2, None)})
    {'x': (3, None)}
    """
    if (jax := loaded_jax()) is not None:
        register_pytrees()
        return jax.tree_util.tree_map(function, tree, *others)
    return _mapped(function, tree, *others)


def _mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    kind = type(tree)
    if tree is None:
        return None
    if kind is tuple or kind is list:
        return kind([_mapped(function, *items) for items in zip(tree, *others, strict=True)])
    if kind in _pytrees:
        data, meta = _pytrees[kind]
        leaves = [_mapped(function, *[getattr(t, name) for t in (tree, *others)]) for name in data]
        return _rebuilt(kind, leaves, [getattr(tree, name) for name in meta])
    if kind is dict:
        return {key: _mapped(function, *[t[key] for t in (tree, *others)]) for key in tree}
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return kind(*[_mapped(function, *items) for items in zip(tree, *others, strict=True)])
    return function(tree, *others)


def asarray_like(value: Any, like: Array) -> Array:
    """Return `value` as an array with the dtype of `like`: a JAX array if either is one, else a NumPy array."""
    xp = namespace(value, like)
    return xp.asarray(value, available_dtype(xp, like.dtype))


def available_dtype(xp: ModuleType, dtype: Any) -> Any:
    """Return `dtype`, or its 32-bit counterpart where JAX has 64-bit types disabled and would warn about them."""
    if xp is np:
        return dtype
    import jax

    return jax.dtypes.canonicalize_dtype(dtype)


def is_array(value: Any) -> bool:
    """Whether a value is an array or a number of NumPy, or an array of JAX."""
    jax = loaded_jax()
    return isinstance(value, (np.ndarray, np.generic)) or (jax is not None and isinstance(value, jax.Array))


def is_number(value: Any) -> bool:
    """Whether a value is one number that can be read: not an array of several, a tracer, or a placeholder of JAX."""
    return (isinstance(value, (int, float)) or is_array(value)) and np.ndim(value) == 0 and not is_traced(value)


def certainly(predicate: Any) -> bool:
    """Whether all entries of a NumPy boolean are true; False for JAX arrays, whose values are not looked at."""
    return namespace(predicate) is np and bool(np.asarray(predicate).all())


def masked(weights: Array | None, values: Array) -> Array:
    """`values` with zeros in the rows of weight 0, which may hold anything because they do not count."""
    xp = namespace(values)
    if weights is None or certainly(weights > 0):  # the common case: no copy
        return values
    keep = (weights > 0).reshape((-1,) + (1,) * (values.ndim - 1))
    return xp.where(keep, values, xp.zeros_like(values))


def special_functions(xp: ModuleType) -> ModuleType:
    """Return `scipy.special` for NumPy and `jax.scipy.special` for JAX."""
    if xp is np:
        import scipy.special

        special: ModuleType = scipy.special
        return special
    import jax.scipy.special

    return jax.scipy.special


def cast_on_jax(tree: Any, like: Array) -> Any:
    """Return `cast(tree, like)` where either has JAX arrays, else `tree` as it is."""
    return tree if namespace(like, tree) is np else cast(tree, like)


def alike(first: Array, *others: Array) -> tuple[Array, ...]:
    """Return `others` as JAX arrays with the dtype of `first` if any of the arrays is a JAX array, else as they are.

    NumPy arrays are left alone because NumPy promotes mixed dtypes by itself.
    """
    xp = namespace(first, *others)
    dtype = available_dtype(xp, first.dtype)
    return others if xp is np else tuple(xp.asarray(a, dtype) for a in others)


def brief(value: Any) -> str:
    """Return a value as short text: numbers with six digits, arrays of more than six numbers by their shape and dtype.

    Examples
    --------
    >>> brief(np.array([1 / 3, 2.0])), brief(np.eye(3)), brief(2.0)
    ('[0.333333, 2]', '<float64 of shape (3, 3)>', '2.0')
    """
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        if len(value) > _SHORT:
            return f"<{type(value).__name__} of {len(value):,}>"
        items = ", ".join(map(brief, value)) + "," * (isinstance(value, tuple) and len(value) == 1)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    if not is_array(value):
        return getattr(value, "__qualname__", repr(value)) if callable(value) else repr(value)
    if is_traced(value) or value.size > _SHORT or value.ndim > 1 or value.dtype.kind not in "biuf":
        return f"<{value.dtype} of shape {value.shape}>"
    found = np.asarray(value).tolist()
    return f"[{', '.join(f'{item:.6g}' for item in found)}]" if value.ndim else f"{found:.6g}"


def fields_repr(instance: Any) -> str:
    """Return the fields of a dataclass as short text: `Name(field=..., ...)`; see `brief`."""
    shown = (f"{f.name}={brief(getattr(instance, f.name, None))}" for f in dataclasses.fields(instance) if f.repr)
    return f"{type(instance).__qualname__}({', '.join(shown)})"


def static(**kwargs: Any) -> Any:
    """Return a dataclass field that JAX treats as part of the type: it is never traced, and is compared by equality."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, leaf, static))
def pytree(cls: type[C]) -> type[C]:
    """Decorator for a frozen dataclass that is also a JAX pytree; it is registered as soon as JAX is imported.

    Fields made with `static()` belong to the type. All others are leaves, so that `jax.vmap` can run over a penalty
    weight or a noise precision. Its text shows long arrays by their shapes; see `brief`.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    if cls.__repr__ is object.__repr__:
        cls.__repr__ = fields_repr  # type: ignore[method-assign]
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    meta = [f.name for f in fields if f.metadata.get("static")]
    data = [f.name for f in fields if not f.metadata.get("static")]
    _pytrees[cls] = data, meta
    _unregistered.append(cls)
    made: Callable[..., None] = cls.__init__

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        register_pytrees()  # JAX may have been imported after the class was defined
        made(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def register_pytrees() -> None:
    """Register all `pytree` classes defined so far with JAX, if it is imported.

    `jax.tree_util.register_dataclass` is not used: in JAX 0.10.2 the tree structures of two classes registered that way
    compare equal if their fields do, so that `jit` sometimes runs the code compiled for the other class.
    """
    if _unregistered and loaded_jax() is not None:
        while _unregistered:
            _register(_unregistered.pop())


def _register(cls: type) -> None:
    import jax

    data, meta = _pytrees[cls]
    keys = [jax.tree_util.GetAttrKey(name) for name in data]

    def flatten(instance: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(instance, name) for name in data), tuple(getattr(instance, name) for name in meta)

    def flatten_with_keys(instance: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        leaves, static_values = flatten(instance)
        return tuple(zip(keys, leaves, strict=True)), static_values

    def unflatten(static_values: Any, leaves: Iterable[Any]) -> Any:
        return _rebuilt(cls, leaves, static_values)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def _rebuilt(cls: type, leaves: Iterable[Any], static_values: Iterable[Any]) -> Any:
    """An instance of a `pytree` class, without __init__: the fields were checked before, or are JAX placeholders."""
    data, meta = _pytrees[cls]
    instance: Any = object.__new__(cls)
    for name, value in (*zip(data, leaves, strict=True), *zip(meta, static_values, strict=True)):
        object.__setattr__(instance, name, value)
    return instance


@pytree
class Partial:
    """A function with its first arguments, which are leaves: another value of them compiles nothing anew.

    Examples
    --------
    >>> Partial(max, (1, 2))(3)
    3
    """

    func: Callable[..., Any] = static()
    args: tuple[Any, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*self.args, *args, **kwargs)
