"""Model files: a JSON header and named arrays in one safetensors file, with a SHA-256 of our own. No pickle.

A file is written beside its place, flushed, read back, and only then moved there: it is whole or it is not there.
It is read back only if all of it is what was written. Nothing is allocated before the sizes that the file states
agree with the size that it has.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from kalprox._files import whole

__all__ = ["FORMAT", "VERSION", "ModelFileError", "read", "write"]

FORMAT, VERSION = "kalprox-model", 1
_DTYPES = {"F64": "<f8", "I64": "<i8", "BOOL": "|b1"}
_LONGEST_HEADER = 1 << 24  # bytes of JSON; ours are some kilobytes


class ModelFileError(ValueError):
    """The file is not a whole model file: damaged, truncated, of another kind, or of a later version."""


def write(file: str | PathLike, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write header (JSON's types) and arrays (float64, int64, bool) to `file`, whole or not at all.

    What was there before is replaced only once the new file has been read back.
    """
    from safetensors.numpy import save

    # safetensors takes the bytes as they lie: another order in memory, or another byte order, would be garbled
    tensors = {name: np.array(a, dtype=_dtype(name, a), order="C") for name, a in arrays.items()}
    body = {"format": FORMAT, "version": VERSION, "header": dict(header)}
    text = json.dumps(body, sort_keys=True)
    path = Path(file)

    def read_back(name: str) -> None:
        again, back = read(name)
        if again != json.loads(text)["header"] or any(tensors[n].tobytes() != back[n].tobytes() for n in tensors):
            raise ModelFileError(f"{path} could not be read back as it was written; nothing was replaced.")

    with whole(path, read_back) as out:
        out.write(_in_order(save(tensors, metadata={"kalprox": text, "sha256": _digest(text, tensors)})))


def _in_order(content: bytes) -> bytes:
    """A safetensors file with the keys of its header sorted: the same model is the same bytes."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def read(file: str | PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and arrays of a file that `write` wrote; anything else raises `ModelFileError`.

    A file that is not there, or may not be read, raises OSError.
    """
    path = Path(file)
    with path.open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        length = int.from_bytes(source.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _LONGEST_HEADER):
            raise ModelFileError(f"{path} is not a kalprox model file, or it is cut short: {size} bytes.")
        layout = _json(path, source.read(length))
        text, digest, places = _checked_layout(path, layout, size - 8 - length)
        body = _json(path, text.encode())
        if not isinstance(body, dict) or body.get("format") != FORMAT or not isinstance(body.get("header"), dict):
            raise ModelFileError(f"{path} is not a kalprox model file.")
        if body.get("version") != VERSION:
            raise ModelFileError(
                f"{path} has version {body.get('version')!r} of the format, and this kalprox reads version {VERSION}."
            )
        data = source.read(size - 8 - length)
    if len(data) != size - 8 - length:
        raise ModelFileError(f"{path} changed while it was read.")
    arrays = {
        name: np.frombuffer(data[start:stop], dtype).reshape(shape).copy()
        for name, (dtype, shape, start, stop) in places.items()
    }
    if _digest(text, arrays) != digest:
        raise ModelFileError(f"{path} is damaged: its SHA-256 is not the one it was written with.")
    return body["header"], arrays


def _checked_layout(path: Path, layout: Any, size: int) -> tuple[str, str, dict[str, tuple]]:
    """The texts in safetensors' header, and where each array lies: one after the other, filling the file."""
    try:
        metadata = layout.pop("__metadata__")
        text, digest = metadata["kalprox"], metadata["sha256"]
        places, end = {}, 0
        for name, entry in sorted(layout.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, (start, stop) = np.dtype(_DTYPES[entry["dtype"]]), entry["data_offsets"]
            shape, count = entry["shape"], 1
            if len(shape) > 8:
                raise ValueError("shape")
            for n in shape:
                if type(n) is not int or not 0 <= n <= size:
                    raise ValueError("shape")
                count *= n
            if (start, stop) != (end, end + count * dtype.itemsize):
                raise ValueError("offsets")
            places[name], end = (dtype, tuple(shape), start, stop), stop
        if end != size or not (isinstance(text, str) and isinstance(digest, str)):
            raise ValueError("size")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} is not a whole kalprox model file: its layout and size do not agree.") from error
    return text, digest, places


def _json(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ModelFileError(f"{path} is not a kalprox model file: no JSON where its header should be.") from error


def _dtype(name: str, a: np.ndarray) -> str:
    for dtype in _DTYPES.values():
        if np.dtype(dtype).newbyteorder("=") == a.dtype.newbyteorder("="):
            return dtype
    raise TypeError(f"array {name!r} must be float64, int64 or bool; got {a.dtype}.")


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the header's text and of every array's name, type, shape and bytes, in the order of names."""
    parts = [text.encode()]
    for name in sorted(arrays):
        a = arrays[name]
        parts += [json.dumps([name, a.dtype.str, a.shape]).encode(), a.tobytes()]
    sha = hashlib.sha256()
    for part in parts:  # with its length, so that no two files have the same parts run together
        sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()
