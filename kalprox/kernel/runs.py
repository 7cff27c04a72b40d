"""The face of runs.c: a row is learned by all runs of a `RunLengths`, in place."""

import ctypes
from collections.abc import Sequence

import numpy as np

from kalprox.base.arrays import Array
from kalprox.kernel.library import kernel

__all__ = ["CompiledRuns"]

_Address, _Count = ctypes.c_void_p, ctypes.c_int64
_OUTLIERS = 5  # the place of the share of outliers among the numbers that are given with a row


class _Pointers(ctypes.Structure):
    """The struct `Runs` of runs.h."""

    _fields_ = [
        *((name, _Count) for name in ("kinds", "places", "inputs")),
        *((name, _Address) for name in ("theta", "root", "rss", "dof", "size", "start", "time", "weight", "moments")),
        *((name, _Address) for name in ("constants", "row", "u", "work")),
    ]


class CompiledRuns:
    """The arrays of a `RunLengths`, as the compiled kernel sees them.

    Parameters
    ----------
    kinds : int
        How many kinds of runs there are.
    arrays : sequence of arrays
        theta, root, rss, dof, size, start, time, weight and moments.
    constants : array
        The struct `RunConstants` of runs.h.
    """

    def __init__(self, kinds: int, arrays: Sequence[Array], constants: Array) -> None:
        places, m = arrays[0].shape
        row, u, work = np.empty(9), np.empty(m), np.empty((places, 2 * m + 5))
        self._row, self._u = row, u
        self._kept = *arrays, constants, row, u, work  # as long as they are pointed at
        self._pointers = _Pointers(kinds, places // kinds, m, *(a.ctypes.data for a in self._kept))
        self._itself = ctypes.addressof(self._pointers)
        self._learn = kernel().kalprox_runs_learn  # type: ignore[union-attr]

    @classmethod
    def of(cls, kinds: int, arrays: Sequence[Array], constants: Array) -> "CompiledRuns | None":
        """Return them; None if there is no compiled kernel."""
        return None if kernel() is None else cls(kinds, arrays, constants)

    def learn(self, u: Array, row: Sequence[float]) -> float:
        """Learn a row with the inputs u and these numbers, the struct `RunRow`, and return the share of outliers."""
        self._u[:], self._row[:] = u, row
        self._learn(self._itself)
        return float(self._row[_OUTLIERS])
