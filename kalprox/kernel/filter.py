"""A filter of rows: an estimate and a root of its covariance, which each row moves after it has been predicted."""

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.kernel.library import kernel

__all__ = ["Filter", "Learned"]

_Number, _Size = ctypes.c_void_p, ctypes.c_int64


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


class _Pointers(ctypes.Structure):
    """The struct `Filter` of filter.h."""

    _fields_ = [
        *((name, _Size) for name in ("inputs", "columns", "targets", "full")),
        *((name, _Number) for name in ("root", "heights", "theta", "curvature", "tilt", "rss", "trace")),
        *((name, _Number) for name in ("projected", "gain", "bent", "row", "target", "found")),
    ]


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
    """

    def __init__(
        self, root: Array, theta: Array, curvature: Array | None, tilt: Array | None, rss: Array, trace: Any = None
    ) -> None:
        p, r = root.shape
        self.joined = np.empty((p, r + theta.shape[1]), order="F")
        self.root, self.theta = self.joined[:, :r], self.joined[:, r:]
        self.root[:], self.theta[:] = root, theta
        self.curvature = None if curvature is None else np.ascontiguousarray(curvature, float)
        self.tilt = None if tilt is None else np.asfortranarray(tilt, float)
        self.rss, self.trace = np.array(rss, float), np.zeros(1)
        if trace is not None:
            self.trace[0] = trace
        elif curvature is not None:  # for a diagonal H without arrays of the size of L
            squares = np.einsum("ij,ij->i", root, root) @ curvature if curvature.ndim == 1 else None
            self.trace[0] = (root * (curvature @ root)).sum() if squares is None else squares
        self.row, self._target = np.empty(p), np.empty(theta.shape[1])
        self._compiled = kernel()
        if self._compiled is not None:
            self._point()

    def _point(self) -> None:
        """Tell the compiled kernel where the arrays are."""
        (p, r), k = self.root.shape, self.theta.shape[1]
        heights = np.maximum.accumulate(p - np.argmax(self.root[::-1] != 0, axis=0)) if p else np.zeros(r)
        self._memory = np.asarray(heights, np.int64), np.empty(r), np.empty(p), np.empty(p), np.empty(4 + 2 * k)
        self._found = self._memory[-1]
        self._errors = self._found[4 : 4 + k]
        full = self.curvature is not None and self.curvature.ndim == 2
        heights, *memory = self._memory
        given = self.root, heights, self.theta, self.curvature, self.tilt, self.rss, self.trace
        arrays = *given, *memory[:3], self.row, self._target, self._found
        self._pointers = _Pointers(p, r, k, full, *map(_address, arrays))
        self._itself = ctypes.addressof(self._pointers)

    def learn_row(self, target: Any, weight: float) -> tuple[Array, float]:
        """Learn the input that is in `row`, and return its errors, of shape (k,), and its leverage; see `learn`.

        The errors are overwritten by the next row.
        """
        if self._compiled is None:
            found = self.learn(self.row[None], np.broadcast_to(target, (1, len(self._target))), np.array([weight]))
            return found.errors[0], float(found.leverages[0])
        self._target[:] = target
        self._found[0] = weight
        self._compiled.kalprox_filter_learn_row(self._itself)
        return self._errors, float(self._found[1])

    def learn(self, X: Array, y: Array, weights: Array | None = None) -> Learned:
        """Learn rows in place, one after the other, and return what was known of each before. O(p^2) each.

        Parameters
        ----------
        X : array of shape (n, p)
        y : array of shape (n, k)
        weights : array of shape (n,), optional
            1 by default. A row of weight 0 is predicted, but not learned.
        """
        found = Learned.empty(*y.shape)
        if self._compiled is None:
            _learn_plainly(self, X, y, weights, found)
            return found
        X, y = np.ascontiguousarray(X, float), np.ascontiguousarray(y, float)
        weights = None if weights is None else np.ascontiguousarray(weights, float)
        addresses = (_address(a) for a in (X, y, weights, *found))
        self._compiled.kalprox_filter_learn(self._itself, len(X), *addresses)
        return found

    def fade(self, left: float) -> None:
        """Multiply the weights of all rows so far by a number, and the curvature of the penalty with them."""
        self.root *= 1 / math.sqrt(left)
        self.rss *= left

    def copy(self) -> "Filter":
        """Return a filter that later rows of this one do not change."""
        return Filter(self.root, self.theta, self.curvature, self.tilt, self.rss, self.trace[0])

    def __getstate__(self) -> tuple[Any, ...]:
        return self.root, self.theta, self.curvature, self.tilt, self.rss, self.trace[0]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _address(a: Array | None) -> int | None:
    return None if a is None else a.ctypes.data


def _learn_plainly(f: Filter, X: Array, y: Array, weights: Array | None, found: Learned) -> None:
    """`filter_learn` of filter.c, for where nothing is compiled: J. E. Potter's update of a square root."""
    H, k = f.curvature, y.shape[1]
    for i, x in enumerate(X):
        v = f.root.T @ x
        found.leverages[i], found.errors[i] = v @ v, y[i] - x @ f.theta
        found.rss[i], found.traces[i], found.bends[i] = f.rss, f.trace[0], 0.0
        weight = 1.0 if weights is None else weights[i]
        if not weight > 0:
            continue
        gain, total = f.root @ v, 1 / weight + found.leverages[i]
        steps = found.errors[i] / total
        more = steps * found.errors[i]
        if H is not None:
            bent = H * gain if H.ndim == 1 else H @ gain
            found.bends[i] = gain @ bent
            slope = bent @ f.theta + (0.0 if f.tilt is None else gain @ f.tilt)
            more -= steps * (2 * slope + steps * found.bends[i])
            f.trace -= found.bends[i] / total
        f.rss += more
        f.theta += np.multiply.outer(gain, steps)
        f.root -= np.multiply.outer(gain, v / (total + math.sqrt(total / weight)))
    assert y.shape == (len(X), k)
