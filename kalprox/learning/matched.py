"""The state of a linear model with another likelihood than the Gaussian that learns every row by moment matching."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.linalg.blas import dger
from scipy.linalg.lapack import dpotrf, dpotrs

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable
from kalprox.base.tree import state
from kalprox.information import Information
from kalprox.learning.belief import Belief, Facts
from kalprox.learning.design import Design, Moments
from kalprox.learning.innovations import Innovations
from kalprox.learning.matching_filter import LikelihoodFilter
from kalprox.learning.settings import Settings
from kalprox.learning.state import Core
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import coef_regularizer
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive
from kalprox.solvers.curvature import diagonal_curvature
from kalprox.sources import Block, Counts, Source

__all__ = ["Matched"]

_NOISE = Noise.known(1.0)
_INTERCEPT_STD = 10.0  # of the prior of the intercept, in the units of the linear predictor


@dataclass(eq=False)
class MatchedFilter(LikelihoodFilter):
    """The precision of theta and its product with the estimate, updated in place by rows that are learned by matching.

    Each row is replaced by a least-squares problem with the mean and the variance that the loss gives the output of the
    model (`Likelihood.matched_row`). The rows fade, and the prior does not: a row costs O(p^3 / 3), one Cholesky
    factorisation.

    Attributes
    ----------
    design : Design
    likelihood : Likelihood
    prior : array of shape (p, p)
        The precision that the prior and the penalty give without any rows. In column-major order.
    A : array of shape (p, p)
        The precision that the rows have added. In column-major order.
    b : array of shape (p,)
        The same times the estimate: (prior + A) theta = b.
    rows : float
        The number of rows, as much as forgetting has left of each.
    forget, step : float
        What every row multiplies the weights of earlier ones by, and the variance of the steps of the intercept before
        each row.
    """

    design: Design
    likelihood: Likelihood
    prior: Array
    A: Array
    b: Array
    rows: float
    forget: float
    step: float
    U: Array | None = None  # the Cholesky factor of prior + A; None if rows have come since
    theta: Array | None = None

    compiled: ClassVar[None] = None
    keeps_digits: ClassVar[bool] = True

    def copy(self) -> "MatchedFilter":
        """Return a filter that later rows of this one do not change. O(p^2)."""
        return replace(self, A=self.A.copy("F"), b=self.b.copy())

    def estimate(self) -> tuple[Array, Array]:
        """Return the estimate and the Cholesky factor of the precision."""
        if self.U is None or self.theta is None:
            self.U, failed = dpotrf(self.A + self.prior, lower=0, clean=0, overwrite_a=1)
            if failed:
                raise ValueError("The precision of the coefficients is not positive: scale the columns of X.")
            self.theta = dpotrs(self.U, self.b, lower=0)[0]
        return self.theta, self.U

    def follow(
        self, x: Array, y: float, weight: float = 1.0, count: float = 1.0, *, own: float = 1.0
    ) -> tuple[float, float]:
        """Learn a row x of shape (d,), and return the output before that, and its variance.

        Raise a ValueError, and learn nothing, if the model has no finite value there.
        """
        (theta, U), x = self.estimate(), self.design.put_row(x, np.empty(len(self.b)))
        f, variance = float(x.dot(theta)), float(x.dot(dpotrs(U, x, lower=0)[0]))
        if weight == 0:
            return f, variance
        found = math.isfinite(f + variance)
        target, curvature = self.likelihood.matched_row(y, f, variance) if found else (math.nan, math.nan)
        if not math.isfinite(target + curvature):
            raise ValueError(
                "The model has no finite value or derivative at the current estimate in a row of the block, which is "
                "rejected. Remove such rows first."
            )
        left, worth = self.forget**weight, weight
        if self.forget != 1:  # see `kalprox.sources.forgetting`
            worth = (1 - left) / (1 - self.forget)
            self.A *= left
            self.b *= left
        dger(worth * curvature, x, x, a=self.A, overwrite_a=1)
        self.b += (worth * curvature * (f + target)) * x
        if self.step:  # a walk of the first coordinate takes from the precision what it knew of that
            a = self.A[:, 0].copy()
            share = self.step / (1 + self.step * a[0])
            self.b -= (share * self.b[0]) * a
            dger(-share, a, a, a=self.A, overwrite_a=1)
        self.rows, self.U = left * self.rows + worth, None
        return f, variance

    def output(self, X: Array) -> tuple[Array, Array]:
        """Return the output for rows of X, and its variance, shape (n,)."""
        theta, U = self.estimate()
        inputs = self.design.rows(X)
        return inputs @ theta, np.einsum("ij,ji->i", inputs, dpotrs(U, inputs.T, lower=0)[0])

    def predict(self, X: Array) -> Predictive:
        """Return the predictive distribution for rows of X."""
        return self.likelihood.predict(*self.output(X), _NOISE)


@state
class MatchedBelief(Belief):
    """What the rows say that a `Matched` has learned.

    Attributes
    ----------
    given : InformationPosterior
        The posterior of the sums of the rows.
    """

    fixed: Design
    given: InformationPosterior
    seen: Seen
    rows: float

    @property
    def design(self) -> Design:
        return self.fixed

    @property
    def posterior(self) -> InformationPosterior:
        return self.given

    @property
    def effective_rows(self) -> float:
        return self.rows

    @cached_property
    def facts(self) -> Facts:
        std = np.sqrt(self.seen.X.squares / max(self.seen.X.rows, 1.0))
        return Facts(self.settings.alpha, None, std, self.seen.y.outside)


@state
class Matched(Core):
    """Sums of linearised rows, each learned under the belief before it. No rows are held, and there is no warm-up.

    It is for members of a bank, which forget too much for a warm-up to end, and need a prediction of every row. The
    prior of the coefficients is the penalty, which must determine them, and that of the intercept N(0, 10^2). Any
    division of the rows into batches gives the same, up to rounding.
    """

    fixed: Design
    A: Array  # the precision that the rows add, and the same times their estimate
    b: Array
    rows: float
    seen: Seen

    walks: ClassVar[bool] = True

    @staticmethod
    def serves(settings: Settings, block: Block) -> bool:
        """Whether the loss is elementwise with known noise, the model linear, and the penalty determines it."""
        loss, named = settings.likelihood, settings.is_linear
        if not named or loss.quadratic or loss.interacts or loss.learns or loss.learns_noise or block.y.ndim > 1:
            return False
        if settings.coef_cov != "model" or block.offset is not None or settings.standardize:
            return False
        g, d = settings.penalty.regularizer(settings.alpha), block.X.shape[1]
        H = diagonal_curvature(g, d)
        return H is not None and bool((H > 0).all())

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "Matched":
        moments = Moments.of(next(iter(blocks)))
        design = Design.of_moments(moments, intercept=settings.fit_intercept, standardize=False)
        p = design.size
        return cls(settings, design, np.zeros((p, p)), np.zeros(p), 0.0, Seen.nothing(len(moments.mean)))

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple["Matched", Counts]:
        raise ValueError("rows are learned in an order by moment matching: use partial_fit on a stream.")

    # ---- learning --------------------------------------------------------------------------------------

    def row_filter(self) -> MatchedFilter:
        loss, kind = self.settings.likelihood, self.settings.forgetting
        step = kind.of_intercept
        A, b = np.array(self.A, order="F"), self.b.copy()
        return MatchedFilter(self.fixed, loss, self._prior, A, b, self.rows, self.settings.forgetting.per_row, step)

    @cached_property
    def _prior(self) -> Array:
        curvature = diagonal_curvature(coef_regularizer(self.settings, self.fixed), self.fixed.size)
        assert curvature is not None
        curvature = np.array(curvature, float)
        if self.fixed.intercept:
            curvature[0] += _INTERCEPT_STD**-2
        return np.asfortranarray(np.diag(curvature))

    def _next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        return len(block) if rows else start + 1  # the first row of all is predicted by nothing

    def learn(self, block: Block) -> "Matched":
        return self._predicted(block)[0]

    def _predicted(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple["Matched", Innovations]:
        check_usable(block.X, block.y, block.weights)
        live, weights = self.row_filter(), block.weighted().weights
        rows = zip(block.X, block.y.tolist(), weights.tolist(), strict=True)  # type: ignore[union-attr]
        found = np.reshape([live.follow(x, y, weight) for x, y, weight in rows], (-1, 2))
        return self.after_filter(live, block), self.of_outputs(block.y, found, known=known)

    def after_filter(self, live: MatchedFilter, block: Block) -> "Matched":
        new = Seen.of(self.settings, block.weighted())
        seen = self.seen + new
        check_targets(self.settings, seen.y, new.y, block)
        return replace(self, A=np.ascontiguousarray(live.A), b=live.b.copy(), rows=live.rows, seen=seen)

    def of_outputs(self, y: Array, outputs: Array, *, known: bool = True) -> Innovations:
        """Return the innovations of rows, given the output before each, and its variance, shape (b, 2)."""
        if not known:
            return Innovations.unknown(y)
        predicted = self.settings.likelihood.predict(outputs[:, 0], outputs[:, 1], _NOISE)
        return Innovations.of(y, predicted, predicted.std)._replace(together=1)

    def with_settings(self, settings: Settings) -> "Matched":
        rows = np.zeros((1, len(self.seen.X.mean)))
        if not self.serves(settings, Block(rows, np.zeros(1))):
            raise ValueError(
                "With forget='auto' and this likelihood, penalty must stay 'ridge', with alpha > 0: use fit."
            )
        return replace(self, settings=settings)

    # ---- reading ---------------------------------------------------------------------------------------

    @cached_property
    def belief(self) -> MatchedBelief:
        return MatchedBelief(self.settings, self.fixed, self._posterior, self.seen, self.rows)

    @cached_property
    def _posterior(self) -> InformationPosterior:
        s, Q = np.linalg.eigh(self.A)
        some = s > len(s) * np.finfo(float).eps * s[-1]
        s, Q = s[some], Q[:, some]
        data = Information.from_prior(Q @ (Q.T @ self.b / s), np.sqrt(s)[:, None] * Q.T)
        rows = np.asarray(self.rows)
        g, p = coef_regularizer(self.settings, self.fixed), self.fixed.size
        root = np.zeros((1, p))
        root[0, 0] = 1 / _INTERCEPT_STD if self.fixed.intercept else 0.0
        return InformationPosterior(
            replace(data, rows=rows, squares=rows),
            g,
            gamma=self.settings.gamma,
            mean=self.row_filter().estimate()[0],
            prior=Information.from_prior(np.zeros(p), root),
            likelihood=self.settings.likelihood,
        )

    # ---- saving ----------------------------------------------------------------------------------------

    def without_rows(self) -> "Matched":
        """Return the state in the coordinates of the means of the rows: the first row was the origin of its sums."""
        shift = self.seen.X.mean - np.asarray(self.fixed.center)
        J = np.eye(self.fixed.size)  # of theta in the new coordinates to that in the old ones
        if self.fixed.intercept:
            J[0, 1:] = -shift
        center = self.seen.X.mean if self.fixed.intercept else self.fixed.center
        mean = float(self.seen.y.moments.mean[0])
        seen = replace(self.seen, y=replace(self.seen.y, low=mean, high=mean))
        design = replace(self.fixed, center=center)
        return replace(self, fixed=design, A=J.T @ self.A @ J, b=J.T @ self.b, seen=seen)
