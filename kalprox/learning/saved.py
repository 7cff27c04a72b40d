"""Conversion of values to named arrays and a JSON header, and back.

Arrays and real numbers become arrays. None, strings, integers and booleans go to the header. Dictionaries and
dataclasses are saved field by field. The type of a dataclass is not saved: the reader has to give it.

Whoever restores an object checks what `Saved` does not know: shapes, signs and sizes. A check must hold for everything
that learning can produce, and is not that of a parameter.
"""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np

__all__ = ["Saved", "expect", "expect_information", "expect_moderate", "flatten", "is_count"]

T = TypeVar("T")

_LARGEST = 1e150


def flatten(name: str, value: Any, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Add `value` to the header and the arrays under `name`, and the fields of a dataclass under name.field."""
    if value is None or isinstance(value, (str, bool, int)):
        header[name] = value
    elif isinstance(value, dict):
        for key, item in value.items():
            flatten(f"{name}.{key}", item, header, arrays)
    elif is_dataclass(value):
        for field in fields(value):
            if not field.metadata.get("static"):
                flatten(f"{name}.{field.name}", getattr(value, field.name), header, arrays)
    else:
        arrays[name] = np.asarray(value, np.float64)


class Saved:
    """The header and the arrays of a file, read by name; a ValueError is raised for arrays that are not float64."""

    def __init__(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        expect(all(a.dtype == np.float64 for a in arrays.values()))
        self.header, self.arrays = header, arrays

    def __contains__(self, name: str) -> bool:
        return name in self.arrays or any(key.startswith(f"{name}.") for key in self.arrays)

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name] if name in self.arrays else self.header[name]

    def part(self, name: str) -> "Saved":
        """Return what was saved under `name`, with names of its own."""
        header, arrays = (
            {key[len(name) + 1 :]: value for key, value in values.items() if key.startswith(f"{name}.")}
            for values in (self.header, self.arrays)
        )
        return Saved(header, arrays)

    def count(self, name: str) -> int:
        """Return a whole number >= 0 of the header."""
        value: int = self.header[name]
        expect(is_count(value))
        return value

    def value(self, kind: type[T], name: str, **static: Any) -> T:
        """Return the dataclass of type `kind` saved under `name`; static fields are given, or take their default.

        A field that the file does not have, since it was written before there was such a field, takes its default.
        """
        hints = get_type_hints(kind)
        parts = {}
        for field in fields(kind):  # type: ignore[arg-type]
            if field.name in static or (field.metadata.get("static") and field.default is not MISSING):
                continue
            if field.default_factory is not MISSING and f"{name}.{field.name}" not in self:
                continue
            parts[field.name] = self._field(hints[field.name], f"{name}.{field.name}")
        return kind(**parts, **static)

    def _field(self, hint: Any, name: str) -> Any:
        nested = next((kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)), None)
        if nested is not None and self.header.get(name, 0) is not None:
            return self.value(nested, name)  # type: ignore[arg-type]
        if hint is int:
            return self.count(name)
        found = self[name]
        expect(isinstance(found, np.ndarray) or hint not in (Any, float))  # a field that is an array has the hint Any
        expect(hint is not float or found.shape == ())
        return float(found) if hint is float else found


def is_count(value: Any) -> bool:
    """Whether a value of a header is a whole number >= 0."""
    return type(value) is int and value >= 0


def expect(condition: Any) -> None:
    """Raise a ValueError if the condition, which every valid file satisfies, is false."""
    if not condition:
        raise ValueError("the header and the arrays of the file do not agree")


def expect_information(info: Any, d: int, targets: int | None) -> None:
    """Raise a ValueError unless an `Information` has the shapes and signs of one about d inputs and these targets."""
    expect(targets is None or (is_count(targets) and targets >= 1))
    p = d + (targets or 1)
    expect(info.T.ndim == 2 and 1 <= len(info.T) <= 1 + p == info.T.shape[1] and info.shift.shape == (p,))
    expect(info.lost is None or info.lost.shape == (1 + p, 1 + p))
    expect(all(np.shape(count) == () and count >= 0 for count in (info.rows, info.squares)))
    expect(not np.tril(info.T, -1).any() and (np.diagonal(info.T) >= 0).all())
    expect_moderate(*(a for a in (info.T, info.shift, info.lost, info.rows, info.squares) if a is not None))


def expect_moderate(*numbers: Any) -> None:
    """Raise a ValueError unless the squares of all these numbers are finite."""
    expect(all(np.abs(a).max(initial=0.0) <= _LARGEST for a in numbers))
