"""The compiled kernel, if there is one: it is found beside its sources, and loaded when it is first needed."""

import ctypes
import os
import warnings
from functools import cache
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.kernel.build import FOLDER, OFF, library_name

VERSION = 5  # of the functions and of the layout of their arrays; kernel.h has the same number

_Address, _Count = ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS = {  # the types of what they return and take
    "kalprox_scores_size": (_Count, []),
    "kalprox_quantiles_size": (_Count, []),
    "kalprox_add_scores": (_Count, [_Address, _Address, _Count, _Address]),
    "kalprox_move_quantiles": (None, [_Address, _Address, _Count, _Address]),
    "kalprox_add_curvature": (_Count, [*[_Address] * 3, _Count, _Address, _Count, _Address, _Address, _Count]),
    "kalprox_filter_learn": (None, [_Address, _Count, *[_Address] * 8]),
    "kalprox_filter_learn_row": (None, [_Address]),
    "kalprox_filter_fade": (None, [_Address, ctypes.c_double]),
    "kalprox_filter_walk": (_Count, [_Address, ctypes.c_double]),
    "kalprox_filter_keep_penalty": (None, [_Address, ctypes.c_double]),
    "kalprox_runs_learn": (None, [_Address]),
    "kalprox_follow": (None, [_Address] * 5),
    "kalprox_take_row": (_Count, [_Address, _Count, _Address]),
    "kalprox_bank_follow": (_Count, [_Address] * 4),
}


def address_of(a: Array | None) -> int | None:
    """Return where the numbers of an array begin, as functions of C take it; None for null."""
    return None if a is None else a.ctypes.data


class Struct:
    """A struct of C, all of whose fields have eight bytes. What it points at is kept as long as it is.

    Parameters
    ----------
    *values
        Whole numbers; floats; and for pointers arrays, other structs, or None for null.
    """

    def __init__(self, *values: Any) -> None:
        self._kept = values
        self._cells = np.zeros(len(values), np.int64)
        for i, value in enumerate(values):
            match value:
                case float():
                    self._cells[i : i + 1].view(float)[0] = value
                case np.ndarray():
                    self._cells[i] = value.ctypes.data
                case ctypes.Structure():
                    self._cells[i] = ctypes.addressof(value)
                case Struct():
                    self._cells[i] = value.address
                case int():
                    self._cells[i] = value
        self.address: int = self._cells.ctypes.data


class NotCompiledWarning(UserWarning):
    """kalprox computes in NumPy what its compiled kernel would compute: the same numbers, in more time."""


@cache
def kernel() -> ctypes.CDLL | None:
    """Return the compiled kernel; None, once with a warning, where the references in NumPy must do.

    With the environment variable KALPROX_KERNEL=off they do without a warning.
    """
    if os.environ.get(OFF) == "off":
        return None
    path = FOLDER / library_name()
    reason = "it has not been compiled"
    if path.exists():
        try:
            library = ctypes.CDLL(str(path))
            if library.kalprox_kernel_version() == VERSION:
                for name, (returned, taken) in _FUNCTIONS.items():
                    function = getattr(library, name)
                    function.restype, function.argtypes = returned, taken
                return library
            reason = "it was compiled for another version"
        except (OSError, AttributeError) as error:  # no library, or not with all these functions
            reason = f"it cannot be loaded ({error})"
    warnings.warn(
        f"kalprox works without its compiled kernel, since {reason}: the numbers are the same, but scoring rows takes "
        f"several times as long. Install kalprox anew, from a wheel or with a C compiler; {OFF}=off hides this.",
        NotCompiledWarning,
        stacklevel=2,
    )
    return None
