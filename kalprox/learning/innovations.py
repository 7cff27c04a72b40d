"""Innovations: the errors of predictions of each row before it is learned; what predicts the rows of long streams."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import all_usable
from kalprox.base.tree import leaf, state
from kalprox.calibration.sums import Given
from kalprox.information import Information
from kalprox.learning.design import Design
from kalprox.linalg.triangle import FAR
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Student
from kalprox.sources import Block

_OF_ROWS = ("mean", "std", "dof", "scale", "issued")  # what an `Innovations` has of each row, and of each target


class Innovations(NamedTuple):
    """The predictions of the rows of a block, each made before its row was learned.

    Attributes
    ----------
    mean, std, dof : arrays of shape (b,) or (b, k)
        The predictive distribution of each row, Student's t with this location, scale and degrees of freedom.
    scale : array of shape (b,) or (b, k)
        The predictive scale in units of the noise std: the square root of the row's own variance plus its leverage.
    issued : array of shape (b,) or (b, k)
        The standardised errors of the predictions that were possible before the first row of the block.
    together : int or array of shape (b,)
        The number of rows that share one estimate of the noise variance, as far as they have come; 1 if none does.
    given : Given or None
        What the mean, the std and the degrees of freedom do not say of the predictions, as of those of a mixture; None
        if they say all.
    """

    mean: Array
    std: Array
    dof: Array
    scale: Array
    issued: Array
    together: Any
    given: Given | None = None

    @classmethod
    def of(cls, y: Array, predicted: Any, scale: Array) -> "Innovations":
        """Return the innovations of a block whose rows were all predicted before its first row."""
        shape = np.shape(y)
        dof = np.broadcast_to(getattr(predicted, "dof", np.inf), shape)
        issued = in_stds(y - predicted.mean, predicted.std)
        return cls(predicted.mean, predicted.std, dof, np.broadcast_to(scale, shape), issued, len(y))

    @classmethod
    def one_by_one(cls, y: Array, *columns: Array) -> "Innovations":
        """Return the innovations of rows that were predicted one by one, given their fields in any shape that fits."""
        shape = y.reshape(len(y), -1).shape
        full = (one if one.shape == shape else np.broadcast_to(one, shape) for one in columns)
        mean, std, dof, scale, issued = (one.reshape(y.shape) for one in full)
        return cls(mean, std, dof, scale, issued, 1)

    def part(self, start: int, stop: int) -> "Innovations":
        """Return those of some rows, none of which shares an estimate of the noise with others."""
        parts: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in _OF_ROWS}
        return Innovations(**parts, together=1)

    def standardised(self, y: Array) -> Array:
        """Return the errors of the predictions in units of their std; NaN for rows that could not be predicted."""
        return in_stds(y - self.mean, self.std)

    @classmethod
    def unknown(cls, y: Array) -> "Innovations":
        """Return the innovations of rows that could not be predicted: the mean is NaN, and the std infinite."""
        nothing, unknown = np.full(np.shape(y), np.nan), np.full(np.shape(y), np.inf)
        return cls(nothing, unknown, unknown, unknown, nothing, 1)

    @classmethod
    def joined(cls, targets: "list[Innovations]") -> "Innovations":
        """Return the innovations of several targets, as columns."""
        columns: dict[str, Any] = {name: np.column_stack([getattr(one, name) for one in targets]) for name in _OF_ROWS}
        return cls(**columns, together=targets[0].together)

    @classmethod
    def concatenated(cls, pieces: "list[Innovations]") -> "Innovations":
        """Return the innovations of the pieces of a block one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in pieces]) for name in _OF_ROWS}
        lengths = [np.broadcast_to(one.together, len(one.mean)) for one in pieces]
        return cls(**columns, together=np.concatenate(lengths))


def may_overflow(block: Block) -> bool:
    """Whether some rows cannot be predicted, because those of weight 0 are NaN or too large; others were checked."""
    entries = block.X.data if hasattr(block.X, "toarray") else block.X.ravel("K")
    return block.weights is not None and not all_usable(None, entries, block.y.ravel("K"))


def in_stds(error: Array, std: Array) -> Array:
    """Return errors in units of their std: NaN if the std is not finite, and 0 for no error where it is 0."""
    one = common(std)
    if np.ndim(one) == 0 and 0 < one < math.inf:
        return error / one
    with np.errstate(invalid="ignore", divide="ignore"):
        found = error / std
    if np.isfinite(std).all() and not np.isnan(found).any():
        return found
    return np.where(np.isfinite(std), np.where((error == 0) & (std == 0), 0.0, found), np.nan)


def innovation(y: Any, mean: Any, variance: Any, dof: float, s: float) -> tuple[Any, ...]:
    """Return the fields of `Innovations` for one row; s is its variance in units of the noise variance."""
    std = np.sqrt(variance * s)
    return mean, std, dof, s**0.5, in_stds(y - mean, std), 1


def common(values: Array) -> Array:
    """Return the one number that an array holds by broadcasting, which saves work on each entry, or the array."""
    return values[0] if values.strides == (0,) and len(values) else values


_PROBES = 8  # random directions from which the mean leverage of a block is estimated
# The mean leverage of a block up to which it serves for all rows, and that up to which the estimate before the block
# does. Above, a few rows may decide what is known of others: each is predicted from all rows before it.
SMALL_LEVERAGE, MODERATE_LEVERAGE = 0.05, 0.15
_LAG = 0.01  # the largest mean leverage times the number of rows not learned yet, relative to the rows that were
_SHORTEST = 256  # rows that a scorer predicts at least
# The most rows that it predicts: as many, as many for each coefficient, so that solving takes little of the time, or a
# share of the rows learned, whichever is more; and never more than the second share of them.
_LONG, _PER_COEFFICIENT, _SHARES = 8192, 320, (1 / 64, 1 / 4)
MANY_ROWS = 4 * _LONG  # rows from which a scorer may be replaced before it ends


@state
class Scorer:
    """The estimate and the noise after some rows, which predict later rows as well as the estimate before each would.

    With n rows and p coefficients the mean leverage is about p / n, and an estimate that lacks the last m of them
    predicts with a variance larger by p m / n^2. The scorer predicts as many rows m as keep that below 0.01, but at
    least 256; and at most 8,192, 320 p or n / 64, whichever is more, and n / 4. So it follows a stream that changes.
    Whether the mean leverage of a block, tr(V X'X) / b, is still small is estimated from the projections of its rows on
    a few random directions L w, with V = L L', scaled so that the estimate is exact for the rows learned so far. The
    sum of the squares of the projections follows from the triangles of the information before and after the block.

    Attributes
    ----------
    center : array of shape (d,)
        What is subtracted from rows: the means of columns that are far from zero on their own scale, and 0 for others.
    maps, constant : arrays of shape (d, k + 8) and (k + 8,)
        The coefficients of each target and the random directions, and what they give at `center`.
    variance, dof : arrays of shape (k,)
        The noise variance and its degrees of freedom.
    leverage : float
        The mean leverage of the rows learned so far, with which all rows are predicted.
    rows : float
        The number of rows learned when the scorer was made.
    """

    center: Array = leaf("d", values="moderate")
    maps: Array = leaf("d,m+8", values="moderate")
    constant: Array = leaf("m+8", values="moderate")
    variance: Array = leaf("m", sign="nonnegative")
    dof: Array = leaf("m", sign="positive", values="any")
    leverage: float = leaf(sign="nonnegative")
    rows: float = leaf(sign="positive", values="moderate")

    @classmethod
    def of(cls, posterior: InformationPosterior, design: Design, rows: float) -> "Scorer":
        """Return the scorer of a posterior with one proper factor."""
        factor, first, center, scale = posterior.factor, design.first, design.center, design.scale
        assert center is not None and scale is not None
        theta = np.asarray(posterior.mean).reshape(factor.d, -1)
        probes = np.zeros((factor.d, _PROBES))
        free = slice(None) if factor.free is None else factor.free
        probes[free] = factor.L @ _normals(factor.L.shape[1])
        probes = probes[first:]
        R = posterior.data.R[first:, first:]  # an intercept is independent of the coefficients
        total = float(((R @ probes) ** 2).sum())
        probes *= (max(float(np.mean(posterior.edf)) - first, 0.0) / total) ** 0.5 if total > 0 else 0.0
        maps = np.hstack([theta[first:], probes]) / scale[:, None]
        k, spread = theta.shape[1], (R**2).sum(axis=0) * scale**2 / rows
        near = center**2 <= FAR * spread  # these columns need no shift to keep the digits of the predictions
        constant = np.zeros(k + _PROBES)
        constant[:k] = (theta[0] if first else 0.0) + design.offset_rest + design.offset
        constant -= (np.where(near, center, 0) + (0.0 if design.center_rest is None else design.center_rest)) @ maps
        noise = posterior.noise
        variance, dof = (np.broadcast_to(np.asarray(a, float), k).copy() for a in (noise.variance, noise.dof))
        leverage = float(np.mean(posterior.edf)) / rows
        return cls(np.where(near, 0, center), maps, constant, variance, dof, leverage, rows)

    def serves(self, rows: float) -> bool:
        """Whether the scorer may predict rows that come after this many."""
        return rows - self.rows < self.reach

    def serves_on(self, rows: float, length: int) -> bool:
        """Whether to keep the scorer after as many rows, the last block of which had this length.

        Among the first rows of a stream it is kept until it ends, so that the score does not depend on the blocks.
        Later scorers differ little. One that would end within another block of the same length is then replaced before
        that block, which need not be cut.
        """
        return rows < MANY_ROWS or self.serves(rows + length - 1)

    @property
    def reach(self) -> float:
        """The number of rows for which the scorer serves."""
        p = len(self.center) + 1
        farthest = min(max(_LONG, _PER_COEFFICIENT * p, _SHARES[0] * self.rows), _SHARES[1] * self.rows)
        return float(int(max(_SHORTEST, min(_LAG * self.rows**2 / p, farthest))))

    def mean_leverage(self, before: Information, after: Information) -> float:
        """Return the mean leverage of the rows that were learned between two informations. O(d^2)."""
        rows = float(after.rows - before.rows)  # 0 if they are too few to be counted among those before
        return (self._leverages(after) - self._leverages(before)) / rows if rows > 0 else 0.0

    def _leverages(self, info: Information) -> float:
        """Return the sum of the leverages of the rows of an information."""
        k, d = len(self.variance), info.d
        probes, T = self.maps[:, k:], info.T
        constant = self.constant[k:] + (info.shift[:d] - self.center) @ probes
        return float(((T[:, 1 : 1 + d] @ probes + T[:, :1] * constant) ** 2).sum())

    def issued(self, block: Block, own: Array | None) -> Array:
        """Return the errors of the predictions of rows of small leverage in units of their std; see `innovations`."""
        return self.innovations(block, self.predictor(block.X), own, self.rows).issued

    def predictor(self, X: Array) -> Array:
        """Return the predictive means for rows of X."""
        k = len(self.variance)
        X = X - self.center if self.center.any() else X
        coef = self.maps[:, 0].copy() if k == 1 else self.maps[:, :k]  # a vector is multiplied faster if it is compact
        return X @ coef + (self.constant[0] if k == 1 else self.constant[:k])

    def innovations(self, block: Block, mean: Array, own: Array | None, rows: float) -> Innovations:
        """Return the innovations of rows of small leverage that come after `rows` rows.

        `mean` are the predictive means, and `own` are the variances of the noise of each row in units of the noise
        variance.
        """
        mean = mean.reshape(block.y.shape)
        scale = np.sqrt((1.0 if own is None else own) + self.leverage)
        std = np.sqrt(self.variance)
        if block.y.ndim == 1:
            predicted = Student(mean, np.broadcast_to(scale * std, len(mean)), self.dof[0])
        else:
            scale = np.broadcast_to(np.reshape(scale, (-1, 1)), mean.shape)
            predicted = Student(mean, scale * std, self.dof)
        together = int(rows - self.rows) + len(mean)  # all rows that the scorer predicts share its noise variance
        return Innovations.of(block.y, predicted, scale)._replace(together=together)


@lru_cache(maxsize=8)
def _normals(rank: int) -> Array:
    """Return the coordinates of the random directions, which are the same for all scorers."""
    return np.random.default_rng(0).standard_normal((rank, _PROBES))
