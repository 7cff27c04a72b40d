"""The faces of follow.c and runs.c: `SquareRootFilter`, a bank of them, and `RunLengths` learn single rows in place."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.kernel.filter import Filter
from kalprox.kernel.library import Struct, address_of, kernel

__all__ = ["CompiledBank", "CompiledFollower", "CompiledRows", "CompiledRuns", "Counts"]

_OUTLIERS = 5  # the place of the share of outliers among the numbers that are given with a row of a `RunLengths`


class Counts(ctypes.Structure):
    """What forgetting changes of a `SquareRootFilter` with every row: the struct `Counts` of follow.h."""

    _fields_ = [(name, ctypes.c_double) for name in ("rows", "squares", "elapsed", "width")]

    rows: float
    squares: float
    elapsed: float
    width: float

    def copy(self) -> "Counts":
        """Return an independent copy."""
        return Counts.from_buffer_copy(self)


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
        of_x = (None if a is None else np.ascontiguousarray(a, float) for a in (center, rest))
        of_y = (np.ascontiguousarray(np.broadcast_to(a, k), float) for a in (offset, offset_rest))
        noise = np.nan if noise_var is None else float(noise_var)
        self.struct = Struct(filter.struct, counts, *of_x, *of_y, sizes, left, walk, noise)
        self.row = Row(p if center is None else p - 1, k)
        self._found = np.empty(3 * k + 2)
        self._given = self.struct.address, *self.row.addresses, address_of(self._found)
        self._follow = kernel().kalprox_follow  # type: ignore[union-attr]

    def follow(self, x: Array, y: Any, weight: float, count: float, own: float) -> Sequence[Any]:
        """Learn a row of shape (d,) in place, unless its weight is 0, and return the fields of its innovation."""
        self.row.put(x, y, weight, count, own)
        self._follow(*self._given)
        if np.ndim(y):
            mean, std, issued = self._found[:-2].reshape(3, -1).copy()
            return mean, std, float(self._found[-2]), float(self._found[-1]), issued, 1
        mean, std, issued, dof, scale = self._found.tolist()
        return mean, std, dof, scale, issued, 1


class Row:
    """Memory for a row of d columns and k targets, and for how it is learned: the struct `Learns` of follow.h."""

    def __init__(self, d: int, k: int) -> None:
        self.columns = d
        self._x, self._y, self._how = np.empty(d), np.empty(k), np.empty(3)
        self.addresses = address_of(self._x), address_of(self._y), address_of(self._how)

    def put(self, x: Array, y: Any, weight: float, count: float, own: float) -> None:
        """Put a row here that counts `count` times; `own` is the variance of its noise in units of that of others."""
        self._x[:], self._y[:], self._how[:] = x, y, (weight, count, own)


class CompiledRows:
    """The arrays of a `RowBuffer`, as the compiled kernel sees them.

    Parameters
    ----------
    X, y : arrays of shapes (n, d) and (n,) or (n, k)
    weights : array of shape (n,) or None
        None if all weights are 1.
    predicted : array of shape (n, 3 k + 2) or None
        Where predictions are written; None if there is no follower.
    precise : bool
        Whether a weight is a precision.
    """

    def __init__(self, X: Array, y: Array, weights: Array | None, predicted: Array | None, *, precise: bool) -> None:
        k = 1 if y.ndim == 1 else y.shape[1]
        self._struct = Struct(X.shape[1], k, int(precise), X, y, weights, predicted)
        self._address, self._take = self._struct.address, kernel().kalprox_take_row  # type: ignore[union-attr]

    def take(self, row: int, follower: int | None) -> bool:
        """Let the follower at this address, if there is one, predict and learn a row that has been written.

        False, and nothing has changed, if the row is not finite or too large.
        """
        return not self._take(self._address, row, follower)


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
        K, rate = len(followers), np.array(rates)
        addresses = np.array([one.struct.address for one in followers], np.int64)
        self.said, self.log_prob = np.empty((K, 3)), np.empty(K)
        arrays = joint, self.said, self.log_prob
        self._kept = followers, Struct(K, len(rate), addresses, rate, float(rate_of_rates), *arrays)
        self._row = Row(followers[0].row.columns, 1)
        self._given = self._kept[1].address, *self._row.addresses
        self._follow = kernel().kalprox_bank_follow  # type: ignore[union-attr]

    def follow(self, x: Array, y: float, weight: float, count: float, own: float) -> bool:
        """Learn a row of shape (d,) in place, and return whether the probabilities were moved.

        They are not if the `log_prob` of a filter is not finite. What the filters `said` is overwritten.
        """
        self._row.put(x, y, weight, count, own)
        return bool(self._follow(*self._given))


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
        self._row, self._u, work = np.empty(9), np.empty(m), np.empty((places, 2 * m + 5))
        self._struct = Struct(kinds, places // kinds, m, *arrays, constants, self._row, self._u, work)
        self._learn = kernel().kalprox_runs_learn  # type: ignore[union-attr]

    @classmethod
    def of(cls, kinds: int, arrays: Sequence[Array], constants: Array) -> "CompiledRuns | None":
        """Return them; None if there is no compiled kernel."""
        return None if kernel() is None else cls(kinds, arrays, constants)

    def learn(self, u: Array, row: Sequence[float]) -> float:
        """Learn a row with the inputs u and these numbers, the struct `RunRow`, and return the share of outliers."""
        self._u[:], self._row[:] = u, row
        self._learn(self._struct.address)
        return float(self._row[_OUTLIERS])
