"""Values as named arrays and a JSON header, and back.

A value that can be saved is an array or a real number (which become arrays), None, text, a whole number or a truth
value (which go to the header), a dictionary of values, or a dataclass of values. The type of a dataclass is not saved:
who reads a value says of which type it is.
"""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np

__all__ = ["Saved", "expect", "flatten"]

T = TypeVar("T")


def flatten(name: str, value: Any, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Put `value` into the header and the arrays under `name`; the parts of a dataclass under name.field."""
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
    """The header and the arrays of a file, read by name."""

    def __init__(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.header, self.arrays = header, arrays

    def __contains__(self, name: str) -> bool:
        return name in self.arrays or any(key.startswith(f"{name}.") for key in self.arrays)

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name] if name in self.arrays else self.header[name]

    def value(self, kind: type[T], name: str, **static: Any) -> T:
        """The dataclass of type `kind` that was saved under `name`; static fields are given, or have their default."""
        hints = get_type_hints(kind)
        parts = {}
        for field in fields(kind):  # type: ignore[arg-type]
            if field.name in static or (field.metadata.get("static") and field.default is not MISSING):
                continue
            parts[field.name] = self._field(hints[field.name], f"{name}.{field.name}")
        return kind(**parts, **static)

    def _field(self, hint: Any, name: str) -> Any:
        nested = next((kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)), None)
        if nested is not None and self.header.get(name, 0) is not None:
            return self.value(nested, name)  # type: ignore[arg-type]
        return float(self[name]) if hint is float else self[name]


def expect(condition: Any) -> None:
    """Refuse a file whose parts do not agree."""
    if not condition:
        raise ValueError("the header and the arrays of the file do not agree")
