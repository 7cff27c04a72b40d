"""States as trees: fields that say what they are, and functions that work on any state by these roles.

A state is a dataclass whose fields are numbers, texts, arrays, other states, tuples of these, or mappings from labels
to arrays; each of them may be None. It is saved to a header of JSON values and to named arrays, and restored from them,
grown by new features, released from the rows that it holds, and copied, by what its type hints and the roles of its
fields say. A class that merges, grows or releases its rows in a way of its own says so by the methods `merge` (or
`__add__`), `with_features` and `without_rows`; one that must hold more than its fields can say each for itself checks
that in a method `_check_restored`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import numpy as np


class PickledFields:
    """Base of a dataclass of which only the fields are pickled and copied.

    Cached properties are computed again when they are needed. They could not be pickled safely: another thread may
    compute one, and so change the size of the dictionary, while it is being read.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


T = TypeVar("T")
Array = np.ndarray
Sizes = Mapping[str, int | None]  # of the axes that arrays have; None for an axis that they do not have

MODERATE = 1e150  # numbers up to here have finite squares


@dataclass(frozen=True)
class Role:
    """What a field is, beyond its type.

    Attributes
    ----------
    shape : str, optional
        The axes of an array, such as "d,d", "k,1+d" or "": names of sizes, whole numbers, and sums of them. A name
        without a size stands for any length, the same one in all fields of the state.
    of : str
        For a state inside this one: what its "d" is, here.
    sign : {"any", "nonnegative", "positive"}
    values : {"finite", "moderate", "any"}
        Moderate numbers have finite squares; "any" are also NaN and infinity.
    rows : bool
        Whether the field holds values of single rows.
    pad : float
        The value for new features.
    derived : bool
        Whether the field follows from the others, and is None after growth.
    given : bool
        Whether the field is no part of a file: whoever restores the state gives it, or it has its default.
    """

    shape: str | None = None
    of: str = "d"
    sign: str = "any"
    values: str = "finite"
    rows: bool = False
    pad: float = 0.0
    derived: bool = False
    given: bool = False


_PLAIN, _GIVEN = Role(), Role(given=True)


def leaf(
    shape: str | None = None,
    *,
    default: Any = MISSING,
    factory: Any = MISSING,
    kw_only: bool = False,
    static: bool = False,
    **role: Any,
) -> Any:
    """Return a field of a state with a role; see `Role`. For `static` see `kalprox.base.arrays.static`."""
    about: dict[str, Any] = {"metadata": {"role": Role(shape, **role), "static": static}, "kw_only": kw_only}
    if factory is not MISSING:
        return field(default_factory=factory, **about)
    return field(default=default, **about)


@dataclass_transform(frozen_default=True, field_specifiers=(field, leaf))
def state(cls: Any = None, *, frozen: bool = True) -> Any:
    """Decorator for a dataclass that is a state, whose fields may have roles; unless `frozen`, it may be changed."""
    made = dataclass(frozen=frozen, eq=False)
    return made if cls is None else made(cls)


# ---- files ---------------------------------------------------------------------------------------------


def flatten(name: str, value: Any, header: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Add `value` to the header and the arrays under `name`, and parts of a dictionary or of a state under name.part.

    None, texts, whole numbers and booleans go to the header; arrays and real numbers become arrays of float64.
    """
    if value is None or isinstance(value, (str, bool, int)):
        header[name] = value
    elif isinstance(value, dict):
        for key, item in value.items():
            flatten(_path(name, key), item, header, arrays)
    elif _is_state(value):
        for key, role in _roles(_kind(value)).items():
            item = getattr(value, key)
            if role.given or (item is None and _default(_kind(value), key) is None):
                continue
            item = _labelled(item) if isinstance(item, Mapping) else item
            flatten(_path(name, key), item, header, arrays)
    elif isinstance(value, tuple) and value and all(isinstance(item, str) for item in value):
        arrays[_path(name, "labels")] = as_numbers(value)
    elif isinstance(value, tuple):
        header[_path(name, "length")] = len(value)
        if value and _is_block(_kind(value[0])):
            _flatten_blocks(name, value, header, arrays)
            return
        for i, item in enumerate(value):
            flatten(_path(name, str(i)), item, header, arrays)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "UO":
        arrays[_path(name, "labels")] = as_numbers(value.tolist())
    else:
        arrays[name] = array = np.asarray(value, np.float64)
        if array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous:
            header[_path(name, "order")] = "F"  # the last bits of a product depend on the order in memory


def _flatten_blocks(name: str, blocks: tuple[Any, ...], header: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Add blocks of rows, which may be many: one array for each field, and how much of it is of each block.

    That is -1 for a block that does not have the field.
    """
    for key, role in _roles(_kind(blocks[0])).items():
        parts = [None if role.given else getattr(block, key) for block in blocks]
        there = [part for part in parts if part is not None]
        if there:
            flatten(_path(name, key), np.concatenate(there), header, arrays)
            arrays[_path(name, f"{key}.lengths")] = np.array([-1 if one is None else len(one) for one in parts], float)


def _labelled(value: Mapping[Any, Array]) -> dict[str, Array]:
    """Return a mapping from labels to arrays of one shape as two arrays."""
    return {"labels": as_numbers(value), "values": np.stack(list(value.values())) if value else np.zeros(0)}


class Saved:
    """The header and the arrays of a file, read by name; a ValueError is raised for arrays that are not float64."""

    def __init__(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        expect(all(a.dtype == np.float64 for a in arrays.values()))
        self.header, self.arrays = header, arrays
        self._names = set(arrays)  # of all arrays, and of all states that have parts
        for key in (*arrays, *header):
            while (key := key.rpartition(".")[0]) and key not in self._names:
                self._names.add(key)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Any:
        if name not in self.arrays:
            return self.header[name]
        array = self.arrays[name]
        return np.asfortranarray(array) if self.header.get(_path(name, "order")) == "F" else array

    def count(self, name: str) -> int:
        """Return a whole number >= 0 of the header."""
        value: int = self.header[name]
        expect(is_count(value))
        return value

    def tree(self, kind: Callable[..., T], name: str, sizes: Sizes, **given: Any) -> T:
        """Return the state that was saved under `name`; raise a ValueError if it cannot be one of this kind.

        Parameters
        ----------
        kind : type
            A dataclass or a NamedTuple.
        name : str
            "" if its fields were saved by their own names.
        sizes : mapping
            The lengths of the axes that the roles of its fields name.
        **given
            The values of fields that are not in the file, or that have been restored before.
        """
        own, values = dict(sizes), {}  # its own sizes are no sizes of the states inside it
        for key, role in _roles(kind).items():
            path, hint = _path(name, key), _hints(kind)[key]
            if key in given:
                values[key] = given[key]
            elif not role.given and (path in self.header or path in self):
                values[key] = self._field(hint, path, role, own, sizes)
            else:
                expect(_default(kind, key) is not MISSING)
        state = kind(**values)
        if hasattr(state, "_check_restored"):
            state._check_restored(sizes)
        return state

    def _field(self, hint: Any, name: str, role: Role, own: dict[str, int | None], sizes: Sizes) -> Any:
        """Return what was saved of a field with this type hint and role."""
        if self.header.get(name, 0) is None:
            expect(type(None) in get_args(hint) or hint is Any)
            return None
        kinds = (hint, *get_args(hint))
        several = next((kind for kind in kinds if get_origin(kind) is tuple), None)
        if several is not None and _path(name, "length") in self.header:
            return self._items(get_args(several)[0], name, role, own, sizes)
        nested = next((kind for kind in kinds if _is_state_type(kind)), None)
        if nested is not None:
            return self.tree(nested, name, _inside(role, sizes))
        is_mapping = any(get_origin(kind) in (dict, Mapping) for kind in kinds)
        if _path(name, "labels") in self.arrays:
            labelled = self._labels(name, role, own, several is not None)
            expect(is_mapping is (type(labelled) is dict))
            return labelled
        expect(not is_mapping)
        value = self[name]
        for plain in (bool, str, int):
            if plain in kinds and not isinstance(value, np.ndarray):
                expect(is_count(value) if plain is int else type(value) is plain)
                return value
        expect(isinstance(value, np.ndarray))
        value = _checked(value, role, own)
        if float in kinds:
            expect(value.shape == ())
            return float(value)
        return value if value.ndim else value[()]

    def _items(self, kind: Any, name: str, role: Role, own: dict[str, int | None], sizes: Sizes) -> tuple[Any, ...]:
        """Return a tuple of states or arrays."""
        length = self.count(_path(name, "length"))
        if length and _is_block(kind):
            return self._blocks(kind, name, length, _inside(role, sizes))
        expect(length <= len(self.arrays) + len(self.header))  # each item is in the file
        return tuple(self._field(kind, _path(name, str(i)), role, dict(own), sizes) for i in range(length))

    def _blocks(self, kind: Any, name: str, length: int, sizes: Sizes) -> tuple[Any, ...]:
        """Return what `_flatten_blocks` was given."""
        values: list[dict[str, Any]] = []
        for key, role in _roles(kind).items():
            path = _path(name, key)
            if role.given or path not in self:
                continue
            lengths = self.arrays[_path(path, "lengths")]
            expect(lengths.shape == (length,) and (lengths == np.floor(lengths)).all() and (lengths >= -1).all())
            values = values or [{} for _ in range(length)]
            whole, start = self._field(Any, path, role, dict(sizes), sizes), 0
            for i, rows in enumerate(lengths.astype(int).tolist()):
                if rows >= 0:
                    values[i][key] = whole[start : start + rows]
                    start += rows
            expect(start == len(whole))
        blocks = tuple(kind(**one) for one in values)
        for block in blocks:
            block._check_restored(sizes)
        return blocks

    def _labels(self, name: str, role: Role, own: dict[str, int | None], as_tuple: bool) -> Any:
        """Return labels, or a mapping from labels to arrays."""
        labels = from_numbers(self.arrays[_path(name, "labels")])
        expect(all(one is None or type(one) in (str, int) for one in labels))
        if _path(name, "values") not in self.arrays:
            return tuple(labels) if as_tuple else np.array(labels)
        values = self[_path(name, "values")]
        expect(len(labels) == len(values) and len(set(labels)) == len(labels))
        return {label: _checked(one, role, own) for label, one in zip(labels, values, strict=True)}


def _inside(role: Role, sizes: Sizes) -> Sizes:
    """Return the sizes of the axes of a state inside another one, in a field of this role."""
    return sizes if role.of == "d" else {**sizes, "d": _length(role.of, sizes)}


def expect(condition: Any) -> None:
    """Raise a ValueError if the condition, which every valid file satisfies, is false."""
    if not condition:
        raise ValueError("the header and the arrays of the file do not agree")


def is_count(value: Any) -> bool:
    """Whether a value of a header is a whole number >= 0."""
    return type(value) is int and value >= 0


# ---- what else can be done with a state ------------------------------------------------------------------


def grown(state: T, more: int, outputs: int = 1) -> T:
    """Return the state with more features, which were 0 in all rows so far and come after the others.

    Axes named d grow by `more`; those named p, of the parameters of several outputs, by so many for each output.
    """
    wider: T = _grown(state, {"d": more, "p": more * outputs})
    return wider


def _grown(state: Any, more: dict[str, int]) -> Any:
    def padded(value: Any, role: Role) -> Any:
        return None if role.derived else _padded(value, role, more)

    def inside(one: Any, role: Role) -> Any:
        if role.derived:
            return None
        inner = {"d": sum(more.get(part, 0) for part in role.of.split("+")), "p": more["p"]}
        return one.with_features(inner["d"]) if hasattr(one, "with_features") else _grown(one, inner)

    return _mapped(state, padded, inside)


def released(state: T) -> T:
    """Return the state without values of single rows: fields that hold rows are emptied."""

    def empty(value: Any, role: Role) -> Any:
        return value[:0] if role.rows and value is not None else value

    def inside(one: Any, _: Role) -> Any:
        return one.without_rows() if hasattr(one, "without_rows") else released(one)

    without: T = _mapped(state, empty, inside)
    return without


def copied(state: T) -> T:
    """Return a state that shares no array with this one."""

    def copy(value: Any, _: Role) -> Any:
        return value.copy("K") if isinstance(value, np.ndarray) else value

    new: T = _mapped(state, copy, lambda one, _: copied(one))
    return new


def _mapped(state: Any, of_leaf: Callable[[Any, Role], Any], of_state: Callable[[Any, Role], Any]) -> Any:
    """Return the state with the values of two functions in its fields: of the states in them, and of all else."""
    changes: dict[str, Any] = {}
    for key, role in _roles(_kind(state)).items():
        if not role.given:
            value = getattr(state, key)
            parts = value if type(value) is tuple else (value,)
            new = tuple(of_state(one, role) if _is_state(one) else of_leaf(one, role) for one in parts)
            changes[key] = new if type(value) is tuple else new[0]
    return state._replace(**changes) if hasattr(state, "_replace") else replace(state, **changes)


# ---- inside ----------------------------------------------------------------------------------------------


def _path(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _kind(value: Any) -> Any:
    return type(value)


def _is_state(value: Any) -> bool:
    return not isinstance(value, type) and _is_state_type(type(value))


def _is_state_type(kind: Any) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")))


@cache
def _is_block(kind: Any) -> bool:
    """Whether a state is a block of rows: the first axis of all its arrays, of which some are large, is the rows."""
    return _is_state_type(kind) and any(role.rows for role in _roles(kind).values())


@cache
def _roles(kind: Any) -> dict[str, Role]:
    """Return the roles of the fields; one that is static for JAX, and has no role, is no part of a file."""
    if not is_dataclass(kind):
        return dict.fromkeys(kind._fields, _PLAIN)
    known = {f.name: f.metadata for f in fields(kind) if f.init}
    return {name: about.get("role", _GIVEN if about.get("static") else _PLAIN) for name, about in known.items()}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _default(kind: Any, key: str) -> Any:
    """Return the default of a field, or what makes it; `MISSING` if there is none."""
    if not is_dataclass(kind):
        return kind._field_defaults.get(key, MISSING)
    found = next(f for f in fields(kind) if f.name == key)
    return found.default if found.default_factory is MISSING else found.default_factory


def _padded(value: Any, role: Role, more: dict[str, int]) -> Any:
    if isinstance(value, Mapping):
        return {label: _padded(one, role, more) for label, one in value.items()}
    axes = _axes(role.shape or "")
    if not isinstance(value, np.ndarray) or not any(part in more for axis in axes for part in axis):
        return value
    widths = [(0, sum(more.get(part, 0) for part in axis)) for axis in axes[len(axes) - value.ndim :]]
    return np.pad(value, widths, constant_values=role.pad)


@cache
def _axes(shape: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(part.strip() for part in axis.split("+")) for axis in shape.split(",") if axis.strip())


def _length(axis: str, sizes: Sizes) -> int:
    (parts,) = _axes(axis)
    return sum(int(part) if part.isdigit() else sizes[part] or 0 for part in parts)


def _checked(value: Array, role: Role, sizes: dict[str, int | None]) -> Array:
    """Return an array of a file; raise a ValueError if its shape, its signs or its values cannot be.

    The length of an axis whose name has no size yet becomes its size.
    """
    if role.shape is not None:
        axes = [axis for axis in _axes(role.shape) if not (len(axis) == 1 and sizes.get(axis[0], 0) is None)]
        expect(len(axes) == value.ndim)
        for length, axis in zip(value.shape, axes, strict=True):
            known = sum(int(part) if part.isdigit() else sizes.get(part) or 0 for part in axis)
            new = [part for part in axis if not part.isdigit() and part not in sizes]
            if new:
                sizes[new[0]] = length - known
            expect(length >= known if new else length == known)
    expect(role.values == "any" or np.isfinite(value).all())
    expect(role.values != "moderate" or np.abs(value).max(initial=0.0) <= MODERATE)
    expect(role.sign != "nonnegative" or not (value < 0).any())
    expect(role.sign != "positive" or not (value <= 0).any())
    return value


_BYTES = 6  # of a text in each number


def as_numbers(labels: Iterable[Any]) -> Array:
    """Return labels, or other values of JSON, as numbers of float64, which have room for six bytes each."""
    data = json.dumps(list(labels)).encode("ascii")
    data += b" " * (-len(data) % _BYTES)
    parts = np.frombuffer(data, np.uint8).reshape(-1, _BYTES).astype(np.float64)
    return parts @ 256.0 ** np.arange(_BYTES)


def from_numbers(values: Array) -> list[Any]:
    """Return the values that `as_numbers` was given."""
    expect(values.ndim == 1 and (values == np.floor(values)).all())
    expect(((values >= 0) & (values < 256.0**_BYTES)).all())
    parts = values.astype(np.int64)[:, None] >> (8 * np.arange(_BYTES)) & 255
    labels: Any = json.loads(parts.astype(np.uint8).tobytes().decode("ascii"))
    expect(isinstance(labels, list))
    return list(labels)
