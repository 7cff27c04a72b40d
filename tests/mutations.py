"""Seeded mutations of model files: of their bytes, and of their header and arrays with a checksum that fits again."""

import json
import struct
from copy import deepcopy
from typing import Any

import numpy as np

from kalprox import model_file

__all__ = ["mutated", "resigned"]

_NUMBERS = (0, -1, 1, 2, 7, 2**31, 2**62, 2**63, -(2**63), 10**30, 0.0, -0.5, 1e-300, 1e300, 1e400, -1e400)
_TEXTS = ("", "auto", "NaN", "inputs", "sigmoid", "paper", "\ud800", "\x00", "a" * 5000, "../x", "learn", "1", "l1")
_VALUES = (
    *_NUMBERS,
    *_TEXTS,
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"array": []},
    {"array": [1, [2]]},
    float("nan"),
)
_NESTED: Any = {"tuple": [{"tuple": [{"tuple": [1]}]}]}
_REGULARIZERS = ("Custom", "Ridge", "L1", "Weighted", "GroupL1", "Box", "Quadratic", "Zero", "Regularizer", "__doc__")
_REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-320, 1e-100, 1e100, -1e160, 1e308, np.inf, -np.inf, np.nan, 2.0**53, 3.0, 1e9)


def mutated(content: bytes, seed: int) -> bytes:
    """Return the content of a file with one to four mutations, the checksum recomputed in two of three cases."""
    rng = np.random.default_rng([seed, 7])
    if rng.random() < 1 / 3:
        return _bytes_changed(rng, content)
    body, arrays = _unpacked(content)
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.5:
            body = _json_changed(rng, body)
        else:
            _array_changed(rng, arrays)
    return resigned(body, arrays)


def resigned(body: Any, arrays: dict[str, np.ndarray]) -> bytes:
    """Return a file with this header and these arrays, and a valid checksum."""
    text = json.dumps(body)
    return model_file._pack({"kalprox": text, "sha256": model_file._digest(text, arrays)}, arrays)


def _unpacked(content: bytes) -> tuple[Any, dict[str, np.ndarray]]:
    (length,) = struct.unpack("<Q", content[:8])
    layout, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    body = json.loads(layout.pop("__metadata__")["kalprox"])
    arrays = {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], model_file._DTYPES[entry["dtype"]])
        .reshape(entry["shape"])
        .copy()
        for name, entry in layout.items()
    }
    return body, arrays


def _bytes_changed(rng: Any, content: bytes) -> bytes:
    found, kind = bytearray(content), rng.integers(5)
    if kind == 0:
        return bytes(found[: rng.integers(len(found))])
    if kind == 1:
        return bytes(found) + bytes(rng.integers(0, 256, int(rng.integers(1, 100)), dtype=np.uint8))
    if kind == 2:  # in the description of the arrays, where most of the checks are
        (length,) = struct.unpack("<Q", content[:8])
        place = int(rng.integers(8, 8 + length))
        found[place : place + int(rng.integers(0, 4))] = rng.choice([b"9", b"[", b"-", b'"', b"{}", b"1e9", b"\\ud800"])
        return len(found[8:]).to_bytes(8, "little") + found[8:] if rng.random() < 0.1 else bytes(found)
    for _ in range(int(rng.integers(1, 5))):
        found[rng.integers(len(found))] = rng.integers(256)
    return bytes(found)


def _json_changed(rng: Any, body: Any) -> Any:
    """Return the header with one value replaced, removed, added or nested, at any depth."""
    places = list(_places(body))
    path = places[rng.integers(len(places))]
    parent: Any = body
    for key in path[:-1]:
        parent = parent[key]
    if not path:
        return _value(rng, body)
    kind = rng.integers(8)
    if kind == 0 and isinstance(parent, dict):
        del parent[path[-1]]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(0, _value(rng, parent[path[-1]]))
    elif kind == 2 and isinstance(parent, dict):
        parent[str(_TEXTS[rng.integers(len(_TEXTS))])] = _value(rng, 0)
    elif kind == 3:
        deep: Any = 0
        for _ in range(int(rng.choice([5, 40, 200]))):
            deep = [deep] if rng.random() < 0.5 else {"tuple": [deep]}
        parent[path[-1]] = deep
    else:
        parent[path[-1]] = _value(rng, parent[path[-1]])
    return body


def _value(rng: Any, old: Any) -> Any:
    kind = rng.integers(6)
    if kind == 0 and isinstance(old, (int, float)) and not isinstance(old, bool):
        return old + int(rng.integers(-2, 3))
    if kind == 1 and isinstance(old, list):
        return old[: len(old) // 2]
    if kind == 2:
        name = _REGULARIZERS[rng.integers(len(_REGULARIZERS))]
        fields = {
            str(rng.choice(["lam", "weights", "g", "groups", "low", "A"])): deepcopy(
                _VALUES[rng.integers(len(_VALUES))]
            )
        }
        return {"regularizer": name, "fields": fields}
    if kind == 3:
        return deepcopy(_NESTED)
    return deepcopy(_VALUES[rng.integers(len(_VALUES))])


def _places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _array_changed(rng: Any, arrays: dict[str, np.ndarray]) -> None:
    """Replace entries, the shape, the type or the name of one array, or remove it."""
    name = sorted(arrays)[rng.integers(len(arrays))]
    a, kind = arrays[name], rng.integers(9)
    if kind <= 3 and a.size:
        a = a.astype(float)  # a copy, in which whole numbers too can become NaN
        a.flat[rng.integers(a.size, size=int(rng.integers(1, 3)))] = _REALS[rng.integers(len(_REALS))]
    elif kind == 4:
        a = np.full(a.shape, _REALS[rng.integers(len(_REALS))])
    elif kind == 5:
        shapes: list[Any] = [(), (0,), (1,), (3, 2), (2, 0), a.shape[::-1], (*a.shape, 1), (a.size,), (1,) * 9]
        a = np.resize(a, shapes[rng.integers(len(shapes))])
    elif kind == 6:
        with np.errstate(invalid="ignore"):
            a = a.astype(np.int64 if rng.random() < 0.5 else bool) if np.isfinite(a).all() else a
    elif kind == 7 and len(arrays) > 1:
        del arrays[name]
        return
    else:
        arrays[name + str(rng.choice(["x", ".y", "\ud800"]))] = a
        return
    arrays[name] = a
