"""A filter for single rows that keeps moments: for forgetting, standardised columns, penalties with kinks, and a ridge
penalty that is chosen."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.linalg.blas import dger
from scipy.linalg.lapack import dtrtri

from kalprox.base.arrays import Array
from kalprox.learning.innovations import innovation
from kalprox.learning.linear import LinearBelief
from kalprox.learning.ridge_evidence import EvidenceSearch
from kalprox.learning.settings import Settings
from kalprox.predictive import Student
from kalprox.regularizers import Regularizer
from kalprox.regularizers.base import Pieces
from kalprox.solvers.moments import ActiveSet, constrained, newton, quadratic

__all__ = ["MomentFilter", "filter_of_moments"]

_LEAST_NOISE = 1e-7  # the smallest share of the squares of y that a difference of moments leaves enough digits of
_ROUNDING = float(np.finfo(float).eps) ** 0.5


@dataclass(eq=False)
class Estimate:
    """The minimiser for given moments, and what its uncertainty is computed from.

    Attributes
    ----------
    coef : array of shape (d,)
        The coefficients of the columns divided by `scale`.
    free : array of shape (f,), or slice
        The numbers of the coordinates that are at no kink and no bound.
    U : array of shape (f, f)
        The Cholesky factor of the Hessian of the free coordinates.
    curvature : array of shape (f,)
        The Hessian of the penalty there, a diagonal.
    scale : array of shape (d,), or 1.0
        The standard deviations of the columns.
    """

    coef: Array
    free: Any
    U: Array
    curvature: Array
    scale: Any
    rss: float

    @cached_property
    def root(self) -> Array:
        """The inverse of U, a root of the covariance in units of the noise variance."""
        inverse: Array = dtrtri(self.U, lower=0)[0] if len(self.U) else self.U
        return inverse

    @cached_property
    def shrunk(self) -> float:
        """By how much the penalty reduces the degrees of freedom."""
        return float(self.curvature.dot((self.root * self.root).sum(axis=1)))


@dataclass(eq=False)
class MomentFilter:
    """Means and centred sums of products of the rows of one target, updated row by row, and the estimate they give.

    A row costs O(d^2) to learn, and O(d^3 / 3) to predict after that: one Cholesky factorisation, which starts from
    the active set, or the estimate, before. `SquareRootFilter` needs no factorisation, but a fixed quadratic penalty
    and rows that are never forgotten. Moments keep the digits only of columns that are far from collinear:
    `estimate` is None for others.

    Attributes
    ----------
    origin : array of shape (d + 1,)
        What is subtracted from x and y.
    means : array of shape (d + 1,)
        The means of what is left; zero without an intercept.
    products : array of shape (d + 1, d + 1)
        The weighted sums of products of deviations from the means. In column-major order.
    weight, rows, squares : float
        The sum of the weights, the number of rows and the sum of squares of what forgetting has left of each.
    time : float or None
        The time to which the moments have faded, if rows are forgotten by time.
    elapsed : float
        What the time since the last row has left of them.
    step : float
        The variance of the step of an intercept that walks before every row, in units of the noise variance. The means
        then know less of the next row: 1 / weight increases by the step.
    """

    settings: Settings
    g: Regularizer
    pieces: Pieces | None  # of g, one entry per coordinate; None if g is not made of pieces
    origin: Array
    means: Array
    products: Array
    weight: float
    rows: float
    squares: float
    start: Array  # the coefficients from which the first search starts
    time: float | None = None
    elapsed: float = 1.0
    step: float = 0.0
    active: ActiveSet | None = None  # from which the next search starts, if g has kinks or bounds
    search: EvidenceSearch | None = None  # of the alpha of g, if it is chosen: g then has any alpha
    found: Estimate | None = None  # None if rows have come since

    compiled: ClassVar[None] = None

    # ---- learning --------------------------------------------------------------------------------------

    def advance(self, time: float) -> None:
        """Let the moments fade in place until the time of the next row."""
        assert self.time is not None
        if time == self.time:
            return
        left = float(self.settings.forgetting.left(self.time, time))
        self._fade(left)
        self.time, self.elapsed, self.found = time, self.elapsed * left, None

    def _fade(self, left: float) -> None:
        self.weight, self.rows, self.squares = left * self.weight, left * self.rows, left**2 * self.squares
        self.products *= left

    def follow(
        self, x: Array, y: float, weight: float = 1.0, count: float = 1.0, *, own: float = 1.0, predict: bool = True
    ) -> Sequence[Any]:
        """Learn a row as `learn` does, and return the fields of its innovation; empty if `predict` is False.

        `own` is the variance of the noise of the row, in units of the noise variance.
        """
        if not predict:
            self.learn(x, y, weight, count)
            return ()
        (variance, dof), (mean, leverage) = self.noise(), self.at(x)
        self.learn(x, y, weight, count)
        return innovation(y, mean, variance, dof, leverage + own)

    def learn(self, x: Array, y: float, weight: float = 1.0, count: float = 1.0) -> None:
        """Update the moments in place by a row x of shape (d,) with target y that counts `count` times. O(d^2)."""
        forget, row = self.settings.forgetting.per_row, np.append(x, y)
        row -= self.origin
        rows = squares = count
        if forget != 1:  # see `kalprox.sources.forgetting`
            left = forget**count
            rows, squares = (1 - left) / (1 - forget), (1 - left**2) / (1 - forget**2)
            weight = rows if self.settings.weight_kind == "frequency" else weight
            self._fade(left)
        share, total = weight, self.weight + weight
        if self.settings.fit_intercept:
            row -= self.means
            share = weight * (self.weight / total)
            self.means += row * (weight / total)
        dger(share, row, row, a=self.products, overwrite_a=1)
        total = total / (1 + self.step * total) if self.step else total
        self.weight, self.rows, self.squares = total, self.rows + rows, self.squares + squares
        self.found, self.elapsed = None, 1.0

    # ---- the estimate ----------------------------------------------------------------------------------

    def estimate(self) -> Estimate | None:
        """Return the estimate of all rows so far; None if the moments do not keep its digits."""
        if self.found is None:
            self.found = self._estimate()
        return self.found

    @property
    def keeps_digits(self) -> bool:
        """Whether predictions are accurate: moments lose the digits of columns that are nearly collinear."""
        if self.found is None:
            self.found = self._estimate()
        return self.found is not None

    def _estimate(self) -> Estimate | None:
        A, b, yy = self.products[:-1, :-1], self.products[:-1, -1], float(self.products[-1, -1])
        scale: Any = 1.0
        if self.settings.standardize:
            scale = np.sqrt(A.diagonal() / self.weight)
            scale[scale == 0] = 1.0
            A, b = A / scale / scale[:, None], b / scale
        if self.search is not None:
            fading = self.squares / self.rows
            rows = self.rows / fading - self.settings.fit_intercept
            alpha = self.search.find(A, b, yy, rows, fading) if rows > len(b) else None
            found = None if alpha is None else quadratic(A, b, np.full(len(b), alpha))
        elif self.g.smooth and self.pieces is not None:
            found = quadratic(A, b, self.pieces.l2)
        elif self.pieces is not None:
            active = self.active or ActiveSet.at(self.pieces, self.start)
            found, self.active = constrained(A, b, self.pieces, active) or (None, None)
        else:
            found = newton(A, b, self.g, self.start)
        if found is None:
            return None
        coef, free, U, curvature = found
        rss = yy - float(coef @ (2 * b - A @ coef))
        if self.settings.noise_var is None and not rss > _LEAST_NOISE * yy:
            return None
        return Estimate(coef, free, U, curvature, scale, rss)

    # ---- reading ---------------------------------------------------------------------------------------

    def copy(self) -> "MomentFilter":
        """Return a filter that later rows of this one do not change. O(d^2)."""
        return replace(
            self,
            means=self.means.copy(),
            products=self.products.copy("F"),
            active=copy(self.active),
            search=copy(self.search),
        )

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X, shape (n,)."""
        return self._mean(self._inputs(X))

    def predict(self, X: Array) -> Student:
        """Return the predictive distribution for rows of X, including the noise."""
        (variance, dof), inputs = self.noise(), self._inputs(X)
        return Student(self._mean(inputs), np.sqrt(variance * (1 + self._leverage(inputs))), dof)

    def at(self, x: Array) -> tuple[float, float]:
        """Return the predictive mean for a row x, and the variance of that in units of the noise variance."""
        inputs = self._inputs(x)
        return float(self._mean(inputs)), float(self._leverage(inputs))

    def _inputs(self, X: Array) -> Array:
        """Return the deviations of rows of X, or of one row, from the means, in units of the scale."""
        inputs = X - self.origin[:-1]
        inputs -= self.means[:-1]
        return inputs / self._found.scale if self.settings.standardize else inputs

    def _mean(self, inputs: Array) -> Array:
        return (inputs.dot(self._found.coef) + self.means[-1]) + self.origin[-1]

    def _leverage(self, inputs: Array) -> Array:
        """Return the variance of each mean in units of the noise variance; see `InformationPosterior`."""
        found, fading = self._found, self.squares / self.rows / self.elapsed
        root = found.root
        projected = inputs[..., found.free].dot(root)
        leverage = (projected * projected).sum(axis=-1)
        if self.settings.fit_intercept:
            leverage = leverage + 1 / self.weight
        if fading == 1:
            return leverage
        moved = projected.dot(root.T)
        return fading * leverage + (1 - fading) * (moved * moved).dot(found.curvature)

    @property
    def _found(self) -> Estimate:
        found = self.estimate()
        assert found is not None, "the moments do not keep the digits"
        return found

    def noise(self) -> tuple[float, float]:
        """Return the noise variance and its degrees of freedom; see `kalprox.noise.Noise.learned`."""
        if self.settings.noise_var is not None:
            return self.settings.noise_var, math.inf
        found, fading = self._found, self.squares / self.rows
        root, rows = found.root, self.rows / fading
        dof = rows - (len(root) - found.shrunk) - self.settings.fit_intercept
        return (found.rss / fading / dof if dof > _ROUNDING * rows else math.nan), dof


def filter_of_moments(belief: LinearBelief, search: EvidenceSearch | None = None) -> MomentFilter | None:
    """Return the filter that continues from the belief about one target, under any separable penalty.

    None if the penalty is not separable, or if moments do not keep the digits. With a search, it follows the alpha.
    """
    settings, information, design, kind = belief.settings, belief.information, belief.design, belief.settings.forgetting
    if not belief.posterior.proper or not (kind.fades or (kind.of_intercept and settings.fit_intercept)):
        return None
    g = settings.penalty.regularizer(belief.settings.alpha)
    if not (g.separable and (g.smooth or g.pieces() is not None)) or information.targets is not None:
        return None
    d = information.d
    T = (information.centered() if settings.fit_intercept else information).triangle()
    origin, mean = np.zeros((2, d + 1))
    if settings.fit_intercept:
        origin[:d], origin[d], mean[d] = design.center, design.offset, design.offset_rest
        mean[:d] = 0.0 if design.center_rest is None else design.center_rest
    products, weight = np.asfortranarray(T.T @ T), float(information.T[0, 0]) ** 2
    rows, squares = float(information.rows), float(information.squares)
    pieces = g.pieces()
    pieces = pieces and Pieces(*(np.array(a, float) for a in pieces.each(d)))
    weight /= 1 + kind.of_intercept * weight
    about: dict[str, Any] = {"time": belief.time, "step": kind.of_intercept, "search": search}
    start = np.array(belief.posterior.mean[int(settings.fit_intercept) :])
    made = MomentFilter(settings, g, pieces, origin, mean, products, weight, rows, squares, start, **about)
    return None if made.estimate() is None else made
