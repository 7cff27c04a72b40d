"""Loops, branches and compilation under one name for NumPy and JAX.

On NumPy arrays these functions are plain Python control flow; on JAX arrays they are the matching `jax.lax`
primitives, so that one formula runs eagerly on the host and compiled on a device.
"""

from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from kalprox.base.arrays import Array, loaded_jax, namespace, register_pytrees, tree_map
from kalprox.base.extras import load, require
from kalprox.base.memory import check_room

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def import_jax(purpose: str) -> Any:
    """Import JAX, which is an extra, to compute on it what is in NumPy arrays; `purpose` is as in `extras.load`."""
    require("jax", purpose)
    if loaded_jax() is None:  # where its library finds no addresses, the loader of the system ends the process
        check_room(384 << 20, "JAX, which this model needs,")
    jax = load("jax", "jax", purpose)
    register_pytrees()  # what was made before
    return jax


def while_loop(xp: ModuleType, cond: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """Run `while cond(state): state = body(state)`, compiled where the arrays are JAX's."""
    if xp is np:
        while cond(state):
            state = body(state)
        return state
    import jax

    return jax.lax.while_loop(cond, body, state)


def fori_loop(xp: ModuleType, n: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """Run `for i in range(n): state = body(i, state)`, compiled where the arrays are JAX's."""
    if xp is np:
        for i in range(n):
            state = body(i, state)
        return state
    import jax

    return jax.lax.fori_loop(0, n, body, state)


def cond(predicate: Any, yes: Callable[[], T], no: Callable[[], T]) -> T:
    """Return `yes()` or `no()`, evaluating only the chosen branch; compiled where the arrays are JAX's."""
    if namespace(predicate) is np:
        return yes() if predicate else no()
    import jax

    chosen: T = jax.lax.cond(predicate, yes, no)
    return chosen


def cond_rare(predicate: Any, rare: Callable[[], T], usual: Callable[[], T]) -> T:
    """Return `rare()` where `predicate` is true, else `usual()`: `cond` for an expensive, seldom needed branch.

    Under `jax.vmap`, `jax.lax.cond` evaluates both branches for every member of the batch. This function first
    asks whether any member needs the rare branch. That question has one answer for the whole batch, so the rare
    branch is skipped where no member needs it.
    """
    if namespace(predicate) is np:
        return rare() if predicate else usual()
    return cond(_any_in_batch()(predicate), lambda: cond(predicate, rare, usual), usual)


def select(predicate: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Return `yes()` or `no()`: `cond` for cheap branches, both of which are evaluated on JAX arrays.

    Evaluating both compiles faster than a branch.
    """
    if namespace(predicate) is np:
        return yes() if predicate else no()
    import jax

    return jax.tree_util.tree_map(lambda a, b: jax.numpy.where(predicate, a, b), yes(), no())


@cache
def _any_in_batch() -> Callable[..., Any]:
    """A function that returns a boolean as it is and, under `jax.vmap`, whether any boolean of the batch is true."""
    import jax

    @jax.custom_batching.custom_vmap
    def any_in_batch(predicate: Array) -> Array:
        return predicate

    @any_in_batch.def_vmap
    def _(axis_size: int, in_batched: list[bool], predicate: Array) -> tuple[Array, bool]:
        return any_in_batch(predicate.any(axis=0) if in_batched[0] else predicate), False

    return any_in_batch


def batched_in_groups(function: F, most: int) -> F:
    """Return a JAX function that `jax.vmap` takes through its batch at most `most` members at a time, on a CPU.

    A loop over small matrices is fastest where those of the members that it runs over together fit the cache. On other
    devices all members run together. Arrays must be given as arguments: the function may not close over traced ones.
    """
    import jax

    grouped = jax.custom_batching.custom_vmap(function)

    @grouped.def_vmap
    def _(axis_size: int, in_batched: Any, *args: Any) -> tuple[Any, Any]:
        leaves, tree = jax.tree_util.tree_flatten(args)
        batched = jax.tree_util.tree_leaves(in_batched)

        def member(own: list[Array]) -> Any:
            given = iter(own)
            chosen = [next(given) if b else a for a, b in zip(leaves, batched, strict=True)]
            return function(*jax.tree_util.tree_unflatten(tree, chosen))

        own = [a for a, b in zip(leaves, batched, strict=True) if b]
        if not on_cpu() or most >= axis_size:
            out = jax.vmap(member)(own)
        else:
            out = jax.lax.map(member, own, batch_size=most if most > 1 else None)
        return out, jax.tree_util.tree_map(lambda _: True, out)

    return grouped  # type: ignore[return-value]


def full_precision(function: F) -> F:
    """Decorate a function so that its products of JAX arrays are in full precision, also if `jax.jit` traces it.

    By default a GPU rounds the inputs of float32 products to 10 bits, which ruins a covariance.
    """

    @wraps(function)
    def precise(*args: Any, **kwargs: Any) -> Any:
        jax = loaded_jax()
        if jax is None:
            return function(*args, **kwargs)
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return precise  # type: ignore[return-value]


def call_jax(function: Callable[..., Any], *arrays: Array) -> Any:
    """Evaluate a JAX function on NumPy or JAX arrays, and return arrays of the same library and dtype.

    NumPy arrays keep their dtype whatever JAX's global x64 flag is.
    """
    if namespace(*arrays) is not np:
        return function(*arrays)
    with import_jax("A function that JAX differentiates needs").enable_x64(np.result_type(*arrays) == np.float64):
        return tree_map(np.asarray, function(*arrays))


def call_numpy(function: Callable[..., Any], *arrays: Array) -> Array:
    """Evaluate an elementwise NumPy function on NumPy or JAX arrays; for JAX on the host, also under `jax.jit`.

    The arrays of JAX must have one shape and dtype, which the result has too.
    """
    if namespace(*arrays) is np:
        return function(*arrays)
    import jax

    shape = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    return call_on_host(lambda *values: (function(*values),), (shape,), *arrays, vmap_method="expand_dims")[0]


def call_on_host(
    function: Callable[..., Any], shapes: tuple[Any, ...], *args: Any, vmap_method: str = "sequential"
) -> tuple[Any, ...]:
    """Call a function of NumPy arrays from a JAX program; it returns arrays of these shapes and dtypes.

    XLA may call from a thread of its own, in which float64 is not enabled and `jax.pure_callback` would round values to
    float32. So they are passed as pairs of uint32, and keep all their bits.
    """
    import jax

    bits, leaves, tree = jax.lax.bitcast_convert_type, *jax.tree_util.tree_flatten(args)
    arrays = [jax.numpy.asarray(leaf) for leaf in leaves]
    wide = [a.dtype == np.float64 for a in arrays]

    def on_host(*given: Any) -> tuple[np.ndarray, ...]:
        plain = [
            np.ascontiguousarray(a).view(np.float64)[..., 0] if is_wide else np.asarray(a)
            for a, is_wide in zip(given, wide, strict=True)
        ]
        found = function(*jax.tree_util.tree_unflatten(tree, plain))
        return tuple(_packed(np.asarray(a, s.dtype)) for a, s in zip(found, shapes, strict=True))

    packed = [bits(a, np.uint32) if is_wide else a for a, is_wide in zip(arrays, wide, strict=True)]
    results = [jax.ShapeDtypeStruct((*s.shape, 2), np.uint32) if s.dtype == np.float64 else s for s in shapes]
    out = jax.pure_callback(on_host, tuple(results), *packed, vmap_method=vmap_method)
    return tuple(bits(a, np.float64) if s.dtype == np.float64 else a for a, s in zip(out, shapes, strict=True))


def _packed(a: np.ndarray) -> np.ndarray:
    """Return float64 as pairs of uint32, and other arrays as they are."""
    return np.ascontiguousarray(a).view(np.uint32).reshape(*a.shape, 2) if a.dtype == np.float64 else a


def with_jvp(rule: Callable[..., Any]) -> Callable[[F], F]:
    """Decorate a function with a rule for its derivative on JAX arrays: `rule(primals, tangents)` returns two values.

    They are the value of the function and its tangent, as for `jax.custom_jvp`.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def either(*args: Any) -> Any:
            return function(*args) if namespace(*args) is np else _custom_jvp(function, rule)(*args)

        return either  # type: ignore[return-value]

    return decorate


@cache
def _custom_jvp(function: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    ruled = jax.custom_jvp(function)
    ruled.defjvp(rule)
    return ruled


@cache
def compiled(function: Callable[..., Any], *static: str, alone: bool = False) -> Callable[..., Any]:
    """Return `jax.jit(function)` with products in full precision; cached, so that later calls find it compiled.

    `static` are the names of arguments that are part of the program, and not traced. A function that is called `alone`,
    and not inside another one that is compiled, takes products from a GPU's library: to search for faster kernels took
    most of the time to compile the step of a large model, and found none.
    """
    import jax

    options = {"xla_gpu_enable_triton_gemm": False} if alone and jax.default_backend() == "gpu" else None
    return jax.jit(full_precision(function), static_argnames=static, compiler_options=options)


@cache
def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `jax.jit(function)`, kept as one call inside a loop that is compiled around it.

    On a CPU, XLA runs the operations of a loop one after the other if there are at most eight of them, and hands more
    to a scheduler, which takes half a microsecond per iteration. A call counts as one operation. On other devices the
    function is returned as it is.
    """
    import jax
    from jax.experimental.xla_metadata import set_xla_metadata

    if not on_cpu():
        return function
    compiled = jax.jit(function)

    @wraps(function)
    def call(*args: Any) -> Any:
        with set_xla_metadata(inlineable="false"):
            return compiled(*args)

    return call


def on_cpu() -> bool:
    """Whether JAX computes on the CPU unless told otherwise."""
    import jax

    return bool(jax.default_backend() == "cpu")


def unrolling() -> int:
    """Return how many steps of a loop over small operations to compile in a row.

    On a GPU every operation is launched by itself, and fewer are needed where the last ones of a step are joined with
    the first ones of the next. On a CPU nothing is gained, and compiling takes longer.
    """
    return 1 if on_cpu() else 4


def compiled_on_jax(function: F) -> F:
    """Decorate a function so that it is compiled if any argument is a JAX array, and called as it is otherwise."""

    @wraps(function)
    def either(*args: Any, **kwargs: Any) -> Any:
        chosen = function if namespace(*args, *kwargs.values()) is np else compiled(function)
        return chosen(*args, **kwargs)

    return either  # type: ignore[return-value]


def window(a: Array, begin: int, length: int) -> Array:
    """Rows begin to begin + length of `a`, padded with zeros, which are never read, where `a` has fewer."""
    if len(a) < length:
        return namespace(a).pad(a, [(0, length - len(a)), *[(0, 0)] * (a.ndim - 1)])
    if namespace(a) is np:
        return a[begin : begin + length]
    from jax import lax

    return lax.dynamic_slice_in_dim(a, begin, length)  # a[begin:...] would be compiled for each begin
