"""The compiled kernel, if there is one: it is found beside its sources, and loaded when it is first needed."""

import ctypes
import os
import warnings
from functools import cache

from kalprox.kernel.build import FOLDER, OFF, library_name

__all__ = ["VERSION", "NotCompiledWarning", "kernel"]

VERSION = 3  # of the functions and of the layout of their arrays; kernel.h has the same number

_Numbers, _Address, _Count = ctypes.POINTER(ctypes.c_double), ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS = {  # the types of what they return and take
    "kalprox_scores_size": (_Count, []),
    "kalprox_quantiles_size": (_Count, []),
    "kalprox_add_scores": (_Count, [_Numbers, _Numbers, _Count, _Numbers]),
    "kalprox_move_quantiles": (None, [_Numbers, _Numbers, _Count, _Numbers]),
    "kalprox_add_curvature": (_Count, [*[_Address] * 3, _Count, _Address, _Count, _Address, _Address, _Count]),
    "kalprox_filter_learn": (None, [_Address, _Count, *[_Address] * 8]),
    "kalprox_filter_learn_row": (None, [_Address]),
    "kalprox_runs_learn": (None, [_Address]),
    "kalprox_follow": (None, [_Address] * 5),
    "kalprox_bank_follow": (_Count, [_Address] * 4),
}


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
