"""The faces of follow.c and runs.c: `SquareRootFilter`, a bank of them, and `RunLengths` learn single rows in place."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.kernel.filter import Filter
from kalprox.kernel.library import kernel

__all__ = ["CompiledBank", "CompiledFollower", "CompiledRuns", "Counts"]

_Address, _Count, _Number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_OUTLIERS = 5  # the place of the share of outliers among the numbers that are given with a row of a `RunLengths`


class Counts(ctypes.Structure):
    """What forgetting changes of a `SquareRootFilter` with every row: the struct `Counts` of follow.h."""

    _fields_ = [(name, _Number) for name in ("rows", "squares", "elapsed", "width")]

    rows: float
    squares: float
    elapsed: float
    width: float

    def copy(self) -> "Counts":
        """Return an independent copy."""
        return Counts.from_buffer_copy(self)


class _Follower(ctypes.Structure):
    """The struct `Follower` of follow.h."""

    _fields_ = [
        *((name, _Address) for name in ("filter", "counts", "center", "rest", "offset", "offset_rest", "sizes")),
        *((name, _Number) for name in ("left", "walk", "noise")),
    ]


class _Learns(ctypes.Structure):
    """The struct `Learns` of follow.h."""

    _fields_ = [(name, _Number) for name in ("weight", "count", "own")]


class _Bank(ctypes.Structure):
    """The struct `FollowedBank` of follow.h."""

    _fields_ = [
        *((name, _Count) for name in ("members", "rates")),
        *((name, _Address) for name in ("followers", "rate")),
        ("rate_of_rates", _Number),
        *((name, _Address) for name in ("joint", "said", "log_prob")),
    ]


class CompiledFollower:
    """What a `SquareRootFilter` is made of, as the compiled kernel sees it.

    Parameters
    ----------
    filter : Filter
    counts : Counts
    center, rest : array of shape (p - 1,) or None
        What is subtracted from a row, in two parts; None without an intercept, and where all is 0.
    offset, offset_rest : float or array of shape (k,)
        What is subtracted from the targets.
    sizes : array of shape (p,) or None
        None without forgetting.
    left, walk : float
        What a row leaves of those before it, and the variance of the step of the intercept after it.
    noise_var : float or None
        None if it is learned.
    """

    def __init__(
        self,
        filter: Filter,
        counts: Counts,
        center: Array | None,
        rest: Array | None,
        offset: Any,
        offset_rest: Any,
        sizes: Array | None,
        *,
        left: float,
        walk: float,
        noise_var: float | None,
    ) -> None:
        p, k = filter.theta.shape
        about = (None if a is None else np.ascontiguousarray(a, float) for a in (center, rest))
        of_y = (np.ascontiguousarray(np.broadcast_to(a, k), float) for a in (offset, offset_rest))
        x, y, found = np.empty(p if center is None else p - 1), np.empty(k), np.empty(3 * k + 2)
        arrays = *about, *of_y, sizes
        addresses = (None if a is None else a.ctypes.data for a in arrays)
        noise = np.nan if noise_var is None else noise_var
        pointers = _Follower(filter.address, ctypes.addressof(counts), *addresses, left, walk, noise)
        self._kept = filter, counts, arrays, pointers  # as long as they are pointed at
        self._x, self._y, self._found, self._how = x, y, found, _Learns()
        self.address = ctypes.addressof(pointers)
        self._given = self.address, x.ctypes.data, y.ctypes.data, ctypes.addressof(self._how), found.ctypes.data
        self._follow = kernel().kalprox_follow  # type: ignore[union-attr]

    def follow(self, x: Array, y: Any, weight: float, count: float, own: float) -> Sequence[Any]:
        """Learn a row of shape (d,) in place, and return the fields of its innovation."""
        self._x[:], self._y[:] = x, y
        how = self._how
        how.weight, how.count, how.own = weight, count, own
        self._follow(*self._given)
        k = len(self._y)
        if np.ndim(y):
            mean, std, issued = self._found[: 3 * k].reshape(3, k).copy()
            return mean, std, float(self._found[-2]), float(self._found[-1]), issued, 1
        mean, std, issued, dof, scale = self._found.tolist()
        return mean, std, dof, scale, issued, 1


class CompiledBank:
    """Filters that learn the same rows, and the probability of each.

    Parameters
    ----------
    followers : sequence of CompiledFollower
    joint : array of shape (M, K)
        The probability of each filter, jointly with that of each rate; changed in place.
    rates : array of shape (M,)
    rate_of_rates : float
    """

    def __init__(
        self, followers: Sequence[CompiledFollower], joint: Array, rates: Sequence[float], rate_of_rates: float
    ) -> None:
        K = len(followers)
        addresses = np.array([one.address for one in followers], np.int64)
        self._x, self._y, self._how = np.empty_like(followers[0]._x), np.empty(1), _Learns()
        self.said, self.log_prob, rate = np.empty((K, 3)), np.empty(K), np.array(rates)
        arrays = joint, self.said, self.log_prob
        pointers = _Bank(
            K, len(rate), addresses.ctypes.data, rate.ctypes.data, rate_of_rates, *(a.ctypes.data for a in arrays)
        )
        self._kept = followers, addresses, rate, joint, pointers  # as long as they are pointed at
        given = ctypes.addressof(pointers), self._x.ctypes.data, self._y.ctypes.data
        self._given = *given, ctypes.addressof(self._how)
        self._follow = kernel().kalprox_bank_follow  # type: ignore[union-attr]

    def follow(self, x: Array, y: float, weight: float, count: float, own: float) -> bool:
        """Learn a row of shape (d,) in place, and return whether the probabilities were moved.

        They are not if the `log_prob` of a filter is not finite. What the filters `said` is overwritten.
        """
        self._x[:], self._y[0] = x, y
        how = self._how
        how.weight, how.count, how.own = weight, count, own
        return bool(self._follow(*self._given))


class _Runs(ctypes.Structure):
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
        self._pointers = _Runs(kinds, places // kinds, m, *(a.ctypes.data for a in self._kept))
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
