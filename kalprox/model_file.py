"""Model files: a JSON header and named arrays in one file, with a SHA-256 checksum. No pickle.

The layout is that of safetensors, so any safetensors library can read the arrays: the length of a JSON text (8 bytes,
little endian), the text, which describes each array, and the bytes of the arrays, one array after the other. The
layout is read and written here, in `_pack` and `_unpack`, because the safetensors library does not keep three promises
that these files make (`tests/units/test_model_file.py` shows each):

* The same model gives the same bytes. `safetensors.numpy.save` writes its metadata in random order.
* Any damage raises `ModelFileError`. `safetensors.safe_open` maps the file into memory, and a file that is truncated
  while it is read ends the process with a bus error.
* The header and the checksum are read with the arrays, from one reading of the file. `safetensors.numpy.load` does not
  return the metadata.

A file is written to a temporary name, flushed, read back, and only then renamed: a crash leaves the old file or the
new one. What is read back is compared with what was to be written, and so is what the model that it describes would
write: a file that exists can be loaded. On reading, the sizes that the file states are compared with its real size
before anything is allocated, and whatever is not as `write` writes it raises `ModelFileError`.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kalprox.base.files import atomic_open

Parts = tuple[dict[str, Any], dict[str, np.ndarray]]  # the header and the arrays of a file

FORMAT, VERSION = "kalprox-model", 2  # 1: kalprox 0.1 and 0.2
_DTYPES = {
    "F64": "<f8",
    "I64": "<i8",
    "BOOL": "|b1",
}  # in the order in which arrays are stored, so that all are aligned
_MAX_LAYOUT = 1 << 24  # bytes of JSON; real ones have some kilobytes
_MAX_DIMENSIONS = 8
_MAX_DEPTH = 32  # of nested lists and objects in JSON
_MAX_INTEGER = 1 << 63


class ModelFileError(ValueError):
    """The file is not a complete kalprox model file: it is damaged, truncated, of another format or a later version."""


_OF_CONTENT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def refusing(message: str, errors: tuple[type[Exception], ...] = _OF_CONTENT) -> Iterator[None]:
    """Turn errors, by default all that the content of a file can cause, into a `ModelFileError` with this message."""
    try:
        yield
    except ModelFileError:
        raise
    except errors as error:
        raise ModelFileError(message) from error


def write(
    file: str | PathLike[str],
    header: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    rebuilt: Callable[[dict[str, Any], dict[str, np.ndarray]], Parts] | None = None,
) -> None:
    """Write a header and arrays to a model file, atomically.

    An existing file is replaced only after the new one has been read back and compared.

    Parameters
    ----------
    file : str or path-like
        The file to create or replace.
    header : mapping
        Values that JSON can represent.
    arrays : mapping of str to ndarray
        Arrays of float64, int64 or bool, of any memory layout and byte order.
    rebuilt : callable, optional
        Called with the header and the arrays that were read back. It builds the model from them, and returns the header
        and the arrays of that model, which must be the same.
    """
    path = Path(file)
    text, arrays = _canonical(header, arrays)
    digest = _digest(text, arrays)

    def read_back(name: str) -> None:
        found = read(name)
        same = _digest(*_canonical(*found)) == digest
        if same and rebuilt is not None:
            with refusing(f"{path} was not written: the model cannot be restored from its file. Please report this."):
                same = _digest(*_canonical(*rebuilt(*found))) == digest
        if not same:
            raise ModelFileError(f"{path} could not be read back as it was written. The file was not replaced.")

    with atomic_open(path, read_back) as out:
        out.write(_pack({"kalprox": text, "sha256": digest}, arrays))


def _canonical(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
    """Return the text of a header and the arrays as they are stored."""
    text = json.dumps({"format": FORMAT, "version": VERSION, "header": dict(header)}, sort_keys=True)
    return text, {name: np.asarray(a, dtype=_dtype(name, a), order="C") for name, a in arrays.items()}


def read(file: str | PathLike[str]) -> Parts:
    """Read the header and the arrays of a model file.

    Parameters
    ----------
    file : str or path-like
        A file that `write` has written, of this version of kalprox or an earlier one.

    Returns
    -------
    header : dict
    arrays : dict of str to ndarray
        Writeable arrays in C order.

    Raises
    ------
    ModelFileError
        If the file is anything else, or damaged.
    OSError
        If the file does not exist or cannot be opened.
    """
    path = Path(file)
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for whoever writes to it
        raise ModelFileError(f"{path} is not a kalprox model file: it is a folder, a pipe or a device.")
    with path.open("rb") as source:
        metadata, places, size = _unpack(path, source)
        text, digest = metadata["kalprox"], metadata["sha256"]
        header = _header(path, text)
        data = source.read(size)
    if len(data) != size:
        raise ModelFileError(f"{path} changed while it was read.")
    arrays = {
        name: np.frombuffer(data, place.dtype, place.length, place.start).reshape(place.shape).copy()
        for name, place in places.items()
    }
    if _digest(text, arrays) != digest:
        raise ModelFileError(f"{path} is damaged: its content does not match its SHA-256 checksum.")
    return header, arrays


def _header(path: Path, text: str) -> dict[str, Any]:
    body = _json(path, text)
    if not isinstance(body, dict) or body.get("format") != FORMAT or not isinstance(body.get("header"), dict):
        raise ModelFileError(f"{path} is not a kalprox model file.")
    if body.get("version") == 1:
        raise ModelFileError(
            f"{path} was written by kalprox 0.1 or 0.2, whose files this version does not read: fit the model again, "
            "or use it with the version that wrote it."
        )
    if body.get("version") != VERSION:
        raise ModelFileError(
            f"{path} has version {body.get('version')!r} of the file format; this kalprox reads version {VERSION}."
        )
    header: dict[str, Any] = body["header"]
    return header


# -- the layout -------------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where an array lies in the data, and how to read it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    length: int  # the number of entries


def _pack(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The whole content of a file. Equal metadata and arrays give equal bytes."""
    layout: dict[str, Any] = {"__metadata__": metadata}
    codes = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
    order = sorted(arrays, key=lambda name: (list(codes).index(arrays[name].dtype), name))
    end = 0
    for name in order:
        start, end = end, end + arrays[name].nbytes
        layout[name] = {"dtype": codes[arrays[name].dtype], "shape": arrays[name].shape, "data_offsets": [start, end]}
    text = json.dumps(layout, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(arrays[name].tobytes() for name in order)])


def _unpack(path: Path, source: BinaryIO) -> tuple[dict[str, str], dict[str, _Place], int]:
    """Read and check the layout: the metadata, the place of each array, and the size of the data that follow."""
    size = os.fstat(source.fileno()).st_size
    length = int.from_bytes(source.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, _MAX_LAYOUT):
        raise ModelFileError(f"{path} is not a kalprox model file, or it is truncated; it has {size} bytes.")
    layout = _json(path, source.read(length))
    size -= 8 + length
    places: dict[str, _Place] = {}
    with refusing(
        f"{path} is not a complete kalprox model file: its description of the arrays does not match its size."
    ):
        metadata = {name: layout["__metadata__"][name] for name in ("kalprox", "sha256")}
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("__metadata__")
        entries = {name: entry for name, entry in layout.items() if name != "__metadata__"}
        end = 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            place = _place(entry, end, size)
            places[name], end = place, end + place.length * place.dtype.itemsize
            if entry["data_offsets"] != [place.start, end]:
                raise ValueError("data_offsets")
        if end != size:
            raise ValueError("size")
    return metadata, places, size


def _place(entry: Mapping[str, Any], start: int, size: int) -> _Place:
    shape, count = entry["shape"], 1
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError("shape")
    for n in shape:
        if type(n) is not int or not 0 <= n <= size:
            raise ValueError("shape")
        count *= n
    return _Place(np.dtype(_DTYPES[entry["dtype"]]), tuple(shape), start, count)


def _json(path: Path, text: str | bytes) -> Any:
    """Return the value of a JSON text that `write` may have written."""
    with refusing(f"{path} is not a kalprox model file: its header is not JSON, or not as kalprox writes it."):
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_infinity)
        _check_json(value)
        return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _infinity(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN")
    return float(name)


def _check_json(value: Any, depth: int = 0) -> None:
    """Raise a ValueError for values that are nested too deeply, huge integers, and text that is not Unicode."""
    if isinstance(value, str):
        value.encode()  # surrogates without their other half cannot be printed
    elif isinstance(value, int):
        if abs(value) >= _MAX_INTEGER:
            raise ValueError("an integer is too large")
    elif isinstance(value, (dict, list)):
        if depth == _MAX_DEPTH:
            raise ValueError("nested too deeply")
        for item in value if isinstance(value, list) else (*value, *value.values()):
            _check_json(item, depth + 1)


def _dtype(name: str, a: np.ndarray) -> str:
    for dtype in _DTYPES.values():
        if np.dtype(dtype).newbyteorder("=") == a.dtype.newbyteorder("="):
            return dtype
    raise TypeError(f"array {name!r} must be float64, int64 or bool; got {a.dtype}.")


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the header's text and of the name, type, shape and bytes of every array, in the order of the names."""
    parts = [text.encode()]
    for name in sorted(arrays):
        a = arrays[name]
        parts += [json.dumps([name, a.dtype.str, a.shape]).encode(), a.tobytes()]
    sha = hashlib.sha256()
    for part in parts:  # each with its length, so that the boundaries between the parts are protected too
        sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()
