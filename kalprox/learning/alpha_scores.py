"""Scores of the weights of a penalty: of predictions made with each of them, before the rows were learned.

The best alpha grows as the square root of the number of rows, as the noise in the slopes R'z does. So what is scored is
c in alpha = c sqrt(rows), and what early rows say about c holds for later rows too.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.learning.design import Design
from kalprox.learning.penalties import Penalty
from kalprox.sources import Block
from kalprox.sources.forgetting import faded

__all__ = ["FEWEST_ROWS", "AlphaScores", "null_ratio", "piece_reaching"]

FEWEST_ROWS, _ENOUGH = 32, 8  # rows learned before the first prediction, and rows scored before the scores decide
_STEP = 10**-0.25  # from one c to the next
_MOST = 41  # values of c
_DRAWS = 99  # of noise
_CHUNK = 1024  # rows predicted at a time


def _none() -> Array:
    return np.zeros(0)


@dataclass(frozen=True)
class AlphaScores:
    """For each c of a grid, the squared errors of rows predicted with alpha = c sqrt(rows) before they were learned.

    A row counts in proportion to the number of rows scored up to it. The choice then is about estimates from as many
    rows as there are now, and large errors of the first estimates, from fewer rows than columns, lose their influence.

    The estimates that predict are kept until as many rows have come as there were when they were made, whatever the
    batches, so that the scores do not depend on how the rows are cut into batches.

    Attributes
    ----------
    c : array of shape (m,)
        The grid, descending.
    squares : array of shape (m, k)
        The weighted sum of squared errors for each c and target.
    rows : float
        The sum of the weights of the rows scored.
    center, maps, constant, offset : arrays of shape (d,), (d, m k), (m k,) and (k,)
        The estimates for each c and target: x is predicted as (x - center) @ maps + constant + offset.
    left : float
        The number of rows that these estimates will still predict. If there are none, the next row needs new ones.
    """

    c: Array
    squares: Array
    rows: float
    center: Array = field(default_factory=_none)
    maps: Array = field(default_factory=_none)
    constant: Array = field(default_factory=_none)
    offset: Array = field(default_factory=_none)
    left: float = field(default_factory=float)

    @classmethod
    def none(cls, targets: int) -> "AlphaScores":
        """Return the scores of no c, as long as all of them predict the same."""
        return cls(np.zeros(0), np.zeros((0, targets)), 0.0)

    @classmethod
    def start(cls, largest: float, targets: int) -> "AlphaScores":
        """Return the scores of no rows; the grid begins at `largest`."""
        return cls(np.array([largest]), np.zeros((1, targets)), 0.0)

    @classmethod
    def of_log_scores(cls, alphas: Array, scores: Array, rows: float, targets: int) -> "AlphaScores":
        """Return the scores for log predictive densities of `rows` rows, which version 0.1 saved for fixed alphas.

        The sums of squares are those of a normal distribution with these log densities. The best alpha stays the same.
        """
        squares = rows * np.exp(-2 * scores / (rows * targets) - 1) / (2 * np.pi)
        return cls(alphas / rows**0.5, np.repeat(squares[:, None], targets, axis=1), float(max(rows, FEWEST_ROWS)))

    def reaching(self, largest: float, smallest: float) -> "AlphaScores":
        """Return the scores on a grid that reaches from `largest` to `smallest` at least.

        A new c gets the score of the end that it is added to. For a c above all largest ones so far this is exact,
        because both have set all coefficients to zero; below, where the penalty has next to no effect, it is nearly so.
        If the grid gets too long, its smallest values are dropped.
        """
        smallest = max(smallest, largest * _STEP ** (_MOST - 1))
        above = max(int(np.ceil(np.log(self.c[0] / largest) / np.log(_STEP) - 1e-9)), 0)
        below = max(int(np.ceil(np.log(smallest / self.c[-1]) / np.log(_STEP) - 1e-9)), 0)
        if above == below == 0:
            return self
        c = self.c[0] * _STEP ** np.arange(-above, len(self.c) + below)
        squares = np.pad(self.squares, ((above, below), (0, 0)), mode="edge")
        return AlphaScores(c[:_MOST], squares[:_MOST], self.rows)

    def predicting(self, design: Design, theta: Array, rows: float) -> "AlphaScores":
        """Return the scores with estimates, made from `rows` rows, that predict as many (but at least 32).

        Parameters
        ----------
        design : Design
            The coordinates of theta.
        theta : array of shape (p, m k)
            For each c, for each target.
        rows : float
        """
        assert design.center is not None and design.scale is not None
        offset = np.broadcast_to(design.offset + design.offset_rest, self.squares.shape[1:])
        about = replace(design, offset=0.0, offset_rest=0.0)
        constant = about.predictor(design.center[None], theta)[0]
        maps = theta[design.first :] / design.scale[:, None]
        new = AlphaScores(self.c, self.squares, self.rows, design.center, maps, constant, np.array(offset))
        return new.waiting(rows)

    def waiting(self, rows: float) -> "AlphaScores":
        """Return the scores whose estimates, if any, were made from `rows` rows and serve for as many."""
        return replace(self, left=float(max(FEWEST_ROWS, int(rows))))

    def with_features(self, more: int) -> "AlphaScores":
        """Return the scores whose estimates know more features, which had no effect so far."""
        if not self.maps.size:
            return self
        return replace(self, center=np.pad(self.center, (0, more)), maps=np.pad(self.maps, ((0, more), (0, 0))))

    def scored(
        self,
        block: Block,
        counts: Array | None,
        forget: Any,
        times: Array | None = None,
        since: float | None = None,
    ) -> "AlphaScores":
        """Return the scores after a block of rows, at most as many as are left to predict. O(b d m).

        Parameters
        ----------
        block : Block
        counts : array of shape (b,), optional
            How often each row counts; 1 by default.
        forget, times, since
            See `kalprox.sources.forgetting.faded`.
        """
        scores, k = self, self.squares.shape[1]
        for start in range(0, len(block), _CHUNK) if self.maps.size else ():
            some = block.part(start, start + _CHUNK)
            predicted = ((some.X - self.center) @ self.maps + self.constant).reshape(len(some), -1, k)
            errors = (some.y.reshape(len(some), 1, k) - self.offset) - predicted
            weights = np.ones(len(some)) if some.weights is None else some.weights
            at = None if times is None else times[start : start + _CHUNK]
            scores, since = scores.after(errors, weights, forget, at, since), None if at is None else float(at[-1])
        return replace(scores, left=self.left - float(len(block) if counts is None else counts.sum()))

    def after(
        self, errors: Array, weights: Array, forget: Any, times: Array | None = None, since: float | None = None
    ) -> "AlphaScores":
        """Return the scores after a block of b rows, whose predictions with each c had these errors.

        Parameters
        ----------
        errors : array of shape (b, m, k)
        weights : array of shape (b,)
        forget, times, since
            See `kalprox.sources.forgetting.faded`.
        """
        seen = self.rows + np.cumsum(weights)
        if not seen[-1] > 0:
            return self
        weights, _, _, left = faded(weights, forget, None, times, since)
        squares = np.einsum("b,bmk->mk", weights * seen / seen[-1], errors**2)
        squares += self.squares * (self.rows / seen[-1] * (1.0 if left is None else float(left)))
        return replace(self, squares=squares, rows=float(seen[-1]))

    @property
    def _loss(self) -> Array:
        """The log of the squared errors of each c, shape (m,)."""
        return np.log(np.maximum(self.squares, np.finfo(float).tiny)).sum(axis=1)

    @property
    def best(self) -> float | None:
        """The c of the smallest errors, interpolated by a parabola; None before 8 rows are scored."""
        if self.rows < _ENOUGH:
            return None
        loss, i = self._loss, int(np.argmin(self._loss))
        if not 0 < i < len(loss) - 1:
            return float(self.c[i])
        above, least, below = loss[i - 1 : i + 2]
        bend = above - 2 * least + below
        shift = 0.5 * (above - below) / bend if bend > 0 else 0.0
        return float(self.c[i] * _STEP**shift)

    @property
    def limit(self) -> float | None:
        """0 or infinity, if the smallest errors are those of the smallest or of the largest c; otherwise None.

        The smallest c has next to no effect, and the largest sets all coefficients to zero.
        """
        loss = self._loss
        return {0: np.inf, len(loss) - 1: 0.0}.get(int(np.argmin(loss))) if len(loss) > 1 else None


def null_ratio(penalty: Penalty, R: Array, dof: float | None) -> float:
    """Return the alpha, in units of the size of the noise, that noise alone exceeds with probability 0.01.

    It is the largest of 99 values of `Penalty.largest_alpha`, each for a target of pure noise. The value of one more
    such target is as likely as each of these to be the largest of all 100, however the columns are correlated [1]_.

    Parameters
    ----------
    penalty : Penalty
    R : array of shape (d, d)
        The equations of the coefficients.
    dof : float or None
        The degrees of freedom of the target. The size of the noise is the norm of the target, or its standard deviation
        if `dof` is None.

    References
    ----------
    .. [1] A. Belloni, V. Chernozhukov, L. Wang, "Square-root lasso: pivotal recovery of sparse signals via conic
       programming", Biometrika 98, 2011.
    """
    rng = np.random.default_rng(0)
    _, s, Vt = np.linalg.svd(R)
    Vt *= np.sign(Vt[np.arange(len(Vt)), np.abs(Vt).argmax(axis=1)])[:, None]  # the signs are otherwise arbitrary
    rank = int((s > len(s) * np.finfo(float).eps * s[0]).sum())
    noise = rng.standard_normal((rank, _DRAWS))
    if dof is not None:
        rest = max(dof - rank, 0.0)
        norm = (noise**2).sum(axis=0) + (rng.chisquare(rest, _DRAWS) if rest > 0 else 0.0)
        noise = noise / norm**0.5
    return penalty.largest_alpha(s[:rank, None] * Vt[:rank], noise)


def piece_reaching(total: float, counts: Array | None, length: int) -> int:
    """Return how many of the next `length` rows come until their counts (1 by default) add up to `total`."""
    found = np.ceil(total) if counts is None else np.searchsorted(np.cumsum(counts), total) + 1
    return int(min(max(found, 1), length))
