"""Filters of rows: an estimate and a root of its covariance, which rows move. The faces of filter.c and follow.c."""

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.blas import dgemm, dtrsm
from scipy.linalg.lapack import dpotrf

from kalprox.base.arrays import Array
from kalprox.kernel.library import Struct, address_of, kernel

_MANY = 300  # coefficients from which blocks are faster than rows
_CHUNK = 128, 1 / 2  # rows in a block: as many, or as many per coefficient, whichever is more
_LARGE_LEVERAGE = 1e4  # above it the Cholesky factor of a block loses digits


class Learned(NamedTuple):
    """What a filter knew of some rows, each just before it was learned.

    Attributes
    ----------
    errors : array of shape (n, k)
        The targets less their predictions.
    leverages : array of shape (n,)
        x'V x, the variance of each prediction in units of the noise variance.
    bends : array of shape (n,)
        x'V H V x, for the curvature H of the penalty; 0 without one.
    rss : array of shape (n, k)
        The residual sum of squares.
    traces : array of shape (n,)
        tr(V H).
    """

    errors: Array
    leverages: Array
    bends: Array
    rss: Array
    traces: Array

    @classmethod
    def empty(cls, n: int, k: int) -> "Learned":
        """Return arrays for n rows of k targets."""
        return cls(np.empty((n, k)), np.empty(n), np.empty(n), np.empty((n, k)), np.empty(n))


class Filter:
    """The estimates of k targets and a root of their covariance V = L L', in units of the noise variance.

    Parameters
    ----------
    root : array of shape (p, r)
        L.
    theta : array of shape (p, k)
    curvature : array of shape (p,) or (p, p), optional
        The Hessian H of the penalty, which V includes.
    tilt : array of shape (p, k), optional
        The slope of the penalty at theta = 0.
    rss : array of shape (k,)
        The residual sums of squares, without the penalty.
    trace : float, optional
        tr(V H), if it is known.

    Attributes
    ----------
    root, theta, rss : arrays
        As given, changed in place by every row; in column-major order.
    trace : array of shape (1,)
    struct : Struct
        What the compiled kernel sees of all this, if there is one.
    """

    def __init__(
        self, root: Array, theta: Array, curvature: Array | None, tilt: Array | None, rss: Array, trace: Any = None
    ) -> None:
        p, r = root.shape
        self.joined = np.empty((p, r + theta.shape[1]), order="F")
        self.root, self.theta = self.joined[:, :r], self.joined[:, r:]
        self.root[:], self.theta[:] = root, theta
        self.curvature = None if curvature is None else np.array(curvature, float, order="C")
        self.tilt = None if tilt is None else np.array(tilt, float, order="F")
        self._bends = self.curvature is not None and bool(self.curvature.any())
        self.rss, self.trace = np.array(rss, float), np.zeros(1)
        if trace is not None:
            self.trace[0] = trace
        elif curvature is not None:
            self.trace[0] = _trace(root, curvature)
        self.row, self._target = np.empty(p), np.empty(theta.shape[1])
        self._compiled = kernel()
        if self._compiled is not None:
            self._point()

    def _point(self) -> None:
        """Tell the compiled kernel where the arrays are."""
        (p, r), k = self.root.shape, self.theta.shape[1]
        heights = np.maximum.accumulate(p - np.argmax(self.root[::-1] != 0, axis=0)) if p else np.zeros(r)
        self._heights, self._found = np.asarray(heights, np.int64), np.empty(4 + 2 * k)
        self._errors = self._found[4 : 4 + k]
        self._memory = np.empty(r), np.empty(p), np.empty(p)
        full = self.curvature is not None and self.curvature.ndim == 2
        given = self.root, self._heights, self.theta, self.curvature, self.tilt, self.rss, self.trace
        work = None if self.curvature is None else np.empty((r, r))
        self.struct = Struct(p, r, k, int(full), *given, *self._memory, self.row, self._target, self._found, work)

    def learn_row(self, target: Any, weight: float) -> tuple[Array, float]:
        """Learn the input that is in `row`, and return its errors, of shape (k,), and its leverage.

        With weight 0 it is only predicted. The next row overwrites the errors.
        """
        if self._compiled is not None:
            self._target[:] = target
            self._found[0] = weight
            self._compiled.kalprox_filter_learn_row(self.struct.address)
            return self._errors, float(self._found[1])
        y = np.broadcast_to(np.asarray(target, float), (1, self.theta.shape[1]))
        if weight > 0:
            found = self._learn_blocks(self.row[None], y, np.array([weight]))
            return found.errors[0], float(found.leverages[0])
        v = self.row @ self.root
        return (y - self.row @ self.theta)[0], float(v @ v)

    def learn(self, X: Array, y: Array, weights: Array | None = None) -> Learned:
        """Learn rows in place, one after the other, and return what was known of each before. O(p^2) each.

        Parameters
        ----------
        X : array of shape (n, p)
        y : array of shape (n, k)
        weights : array of shape (n,), optional
            1 by default. A row of weight 0 is not learned, and its numbers are NaN.
        """
        if self._compiled is None or len(self.root) >= _MANY:
            return self._learn_blocks(X, y, np.ones(len(X)) if weights is None else weights)
        found = Learned.empty(*y.shape)
        X, y = np.ascontiguousarray(X, float), np.ascontiguousarray(y, float)
        weights = None if weights is None else np.ascontiguousarray(weights, float)
        addresses = (address_of(a) for a in (X, y, weights, *found))
        self._compiled.kalprox_filter_learn(self.struct.address, len(X), *addresses)
        if weights is not None and not weights.all():
            found.errors[weights == 0] = found.leverages[weights == 0] = np.nan
        return found

    def _learn_blocks(self, X: Array, y: Array, weights: Array) -> Learned:
        """`learn` for blocks of rows, which are learned together.

        For the rows P = sqrt(w) X L of a block, C C' = I + P P' and u = C^-1 sqrt(w) (y - X theta), row i was predicted
        from all rows before it with the error C_ii u_i and the variance C_ii^2, in units of that of its own noise. With
        K = C^-1 P, theta becomes theta + L K'u, and L becomes L - L K' (C + I)^-1 P, a root of L (I + P'P)^-1 L' [1]_.

        References
        ----------
        .. [1] A. Andrews, "A square root formulation of the Kalman covariance equations", AIAA Journal 6, 1968.
        """
        found = Learned(*(np.full_like(a, np.nan) for a in Learned.empty(*y.shape)))
        places, start = np.flatnonzero(weights > 0), 0
        while start < len(places):
            some = places[start : start + max(_CHUNK[0], int(_CHUNK[1] * len(self.root)))]
            P = (X[some] @ self.root) * np.sqrt(weights[some])[:, None]
            if len(P) > 1 and np.einsum("ij,ij->i", P, P).max() > _LARGE_LEVERAGE:  # such a row comes alone
                some, P = some[:1], P[:1]
            self._learn_block(X[some], y[some], np.sqrt(weights[some])[:, None], P, found, some)
            start += len(some)
        if self._compiled is not None:
            self._heights[:] = len(self.root)  # the root is no triangle any more
        return found

    def _learn_block(self, X: Array, y: Array, roots: Array, P: Array, found: Learned, places: Array) -> None:
        """Learn some rows, whose weights have these roots, and enter what was known of them at their places."""
        k, H = y.shape[1], self.curvature
        C = _root_with_noise(P @ P.T)
        solved = dtrsm(1.0, C, np.hstack([(y - X @ self.theta) * roots, P]), lower=1)
        u, gains = solved[:, :k], solved[:, k:] @ self.root.T  # theta moves by u times the gain of a row
        diagonal, squares = np.diagonal(C)[:, None], u**2
        found.errors[places] = diagonal * u / roots
        found.leverages[places] = ((diagonal**2 - 1) / roots**2)[:, 0]
        more, fall = squares, np.zeros(len(u))
        if H is not None:
            bent = gains @ H if H.ndim == 2 else gains * H
            products = gains @ bent.T
            fall = np.diagonal(products)
            # What each row adds to twice the change of the penalty, after the moves of the rows before it.
            slope = bent @ self.theta + (0.0 if self.tilt is None else gains @ self.tilt)
            more = squares - (2 * u * (slope + (products * _below(len(u))) @ u) + squares * fall[:, None])
        found.bends[places] = (diagonal**2 / roots**2)[:, 0] * fall
        found.rss[places] = self.rss + np.cumsum(more, axis=0) - more
        found.traces[places] = self.trace - np.cumsum(fall) + fall
        self.rss += more.sum(axis=0)
        self.trace -= fall.sum()
        self.theta += gains.T @ u
        C.flat[:: len(C) + 1] += 1
        less = dtrsm(1.0, C, P, lower=1)
        self.root[:] = dgemm(-1.0, gains.T, less, 1.0, self.root, overwrite_c=1)

    def fade(self, left: float) -> None:
        """Multiply the weights of all rows so far by a number. The penalty stays as it is."""
        if self._compiled is not None:
            self._compiled.kalprox_filter_fade(self.struct.address, left)
        else:
            self.root *= 1 / math.sqrt(left)
            self.rss *= left
        if self.curvature is not None and left != 1:
            self._keep_penalty(left)

    def _keep_penalty(self, left: float) -> None:
        """Restore the penalty, which faded with the rows to this share of it. O(p^3).

        With its curvature H and its slope g at the estimate t, V becomes (V^-1 + (1 - left) H)^-1, and t moves by
        -(1 - left) V g.
        """
        if self._compiled is not None:
            self._compiled.kalprox_filter_keep_penalty(self.struct.address, left)
            return
        lost = 1 - left
        if self._bends:
            M = lost * (self.root.T @ self._bent(self.root))
            M.flat[:: len(M) + 1] += 1
            dtrsm(1.0, dpotrf(M)[0], self.root, side=1, overwrite_b=1)
        slope = self._bent(self.theta) + (0.0 if self.tilt is None else self.tilt)
        push = -lost * (self.root.T @ slope)
        move = self.root @ push
        self.rss += (push**2).sum(axis=0) - ((2 * left * slope + self._bent(move)) * move).sum(axis=0)
        self.theta += move
        if self._bends:
            self.trace[0] = _trace(self.root, self.curvature)

    def _bent(self, a: Array) -> Array:
        """H a, for the curvature H of the penalty."""
        H = self.curvature
        assert H is not None
        return H @ a if H.ndim == 2 else H[:, None] * a

    def walk(self, variance: float) -> None:
        """Let the first coordinate take a step of this variance. The penalty stays as it is.

        Of the first coordinate the penalty has the curvature h, and none between it and others. With the first unit
        vector e and g = e - h V e = L u, V becomes V + c g g', whose root is L + a g u', for the numbers c and a that
        are used here. With a penalty on it, `rss` and `trace` do not follow.
        """
        if self._compiled is not None and self._compiled.kalprox_filter_walk(self.struct.address, variance):
            return
        root, h = self.root, 0.0 if self.curvature is None else float(self.curvature.flat[0])
        e = np.eye(len(root), 1)[:, 0]
        u = np.linalg.solve(root, e) - h * root[0]
        g = e - h * (root @ root[0])
        c = variance / (1 + variance * h * float(g[0]))
        square = float(u @ u)
        slope = h * self.theta[0] + (0.0 if self.tilt is None else self.tilt[0])
        self.theta -= np.multiply.outer(c * g, slope)
        root += np.multiply.outer((math.sqrt(1 + c * square) - 1) / square * g, u)
        if self._compiled is not None:
            self._heights[:] = len(root)

    @property
    def first_is_alone(self) -> bool:
        """Whether the first column of the root has but one entry, as that of an upper triangle."""
        return not self.root[1:, 0].any()

    def copy(self) -> "Filter":
        """Return a filter that later rows of this one do not change."""
        return Filter(self.root, self.theta, self.curvature, self.tilt, self.rss, self.trace[0])

    def __getstate__(self) -> tuple[Any, ...]:
        return self.root, self.theta, self.curvature, self.tilt, self.rss, self.trace[0]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _trace(root: Array, H: Array) -> float:
    """Return tr(L L' H); for a diagonal H without arrays of the size of L."""
    if H.ndim == 1:
        return float(np.einsum("ij,ij->i", root, root) @ H)
    return float((root * (H @ root)).sum())


@lru_cache(maxsize=4)
def _below(n: int) -> Array:
    """Return the matrix with ones below the diagonal, of n rows."""
    return np.tri(n, k=-1)


def _root_with_noise(G: Array) -> Array:
    """Return the lower triangle C with C C' = G + I, given as all of G, which is overwritten."""
    G.flat[:: len(G) + 1] += 1
    C: Array
    C, failed = dpotrf(G.T, lower=1, clean=1, overwrite_a=1)  # NumPy's own takes four times as long for few rows
    if failed:
        raise np.linalg.LinAlgError("The covariance of the predictions of a block is not positive definite.")
    return C


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
