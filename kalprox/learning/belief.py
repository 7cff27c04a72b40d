"""The base class of beliefs: a posterior in the coordinates of a design, and how rows update it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
from scipy import special

from kalprox._arrays import Array
from kalprox._pickling import PickledFields
from kalprox.base.tree import Saved, Sizes, leaf, state
from kalprox.learning.design import Design
from kalprox.learning.innovations import Innovations, may_overflow
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.intervals import TUNED_CLUSTERS, Estimate
from kalprox.learning.path import Path
from kalprox.learning.rules import check
from kalprox.learning.sandwich import Sandwich, excess_of, row_scores, scores_at
from kalprox.learning.settings import Settings
from kalprox.likelihoods import Bernoulli, Categorical
from kalprox.models import Model
from kalprox.noise import Noise
from kalprox.posterior import InformationPosterior, Posterior
from kalprox.predictive import Predictive, Student
from kalprox.regularizers import Zero
from kalprox.sources import Block, Counts, Source
from kalprox.sources.forgetting import shares
from kalprox.sources.times import in_order

__all__ = ["ApproximateMerge", "Belief", "PenaltyTooStrong", "about_merge", "check_any_row"]

FEWEST_ROWS = 32  # of the first piece of a batch that a belief without an exact row-by-row update predicts
_PULL = 0.65  # standard errors of bias with which a 95% interval covers 90%
_CONTRADICTION = 1e-3  # the probability, under the prior that a penalty is, of coefficients that contradict it


class PenaltyTooStrong(RuntimeWarning):
    """The penalty has moved the coefficients so far that their intervals cover less than they say."""


class ApproximateMerge(RuntimeWarning):
    """Two models were merged whose rows had been linearised at different estimates."""


def about_merge(belief: "Belief") -> str:
    """Say how far merges have left the estimate from the minimiser, and what makes it exact."""
    return (
        "The merge is approximate: the models linearised their rows at different estimates, and the merged estimate "
        f"is about {_rounded(belief.merge_distance)} standard errors from that of all rows. Errors that streams had "
        "before the merge come on top of it: below a tenth each for shuffled rows, and more for sorted ones. Call "
        "refine with all rows to make it exact (kalprox refine on the command line)."
    )


def check_any_row(counts: Counts) -> None:
    """Raise a ValueError if a pass over a source found no row that counts."""
    if counts.good == 0:
        raise ValueError(
            f"There is no good row to learn from: of {counts.read} row(s) read, {counts.bad} were bad and all others "
            "have weight 0. Correct the rows, or give at least one a positive weight."
        )


@state
class Belief(PickledFields, ABC):
    """The state of a learner after some rows. A belief is immutable; quantities computed from it are cached.

    Attributes
    ----------
    settings : Settings
    sandwich : Sandwich or None
        The sums for robust or clustered standard errors, if the settings ask for them.
    input_noise : InputNoise or None
        How the variance of the noise depends on the inputs, if the settings ask for it.
    time : float or None
        The time of the last row, if rows are forgotten by time.
    whole_batches : bool
        Whether a batch in memory is learned as one block, however long it is.
    in_one_pass : bool
        Whether rows in memory are fitted in one pass in their order, so that each is predicted before it is learned.
    n_passes : int
        The number of passes over the rows.
    message : str
        Why the minimiser was not reached; empty if it was.
    merge_distance : float
        About how many standard errors merges have left the estimate from the minimiser; 0 if they were exact.
    """

    settings: Settings = leaf(given=True)
    sandwich: Sandwich | None = leaf(default=None, kw_only=True)
    input_noise: InputNoise | None = leaf(default=None, kw_only=True)
    time: float | None = leaf(default=None, kw_only=True)

    whole_batches: ClassVar[bool] = False
    in_one_pass: ClassVar[bool] = True
    walks: ClassVar[bool] = False  # whether the intercept can walk though the likelihood is not Gaussian
    n_passes = 1
    message = ""
    merge_distance = 0.0

    # ---- learning --------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> Self:
        """Return the belief before the first row of a stream that begins with these blocks."""

    @classmethod
    @abstractmethod
    def fit(cls, settings: Settings, source: Source) -> tuple[Self, Counts]:
        """Return the belief after all rows of a source, and the number of rows."""

    @abstractmethod
    def learn(self, block: Block) -> Self:
        """Return the belief after one more block of rows."""

    @abstractmethod
    def with_settings(self, settings: Settings) -> Self:
        """Return the belief of the same rows under other settings; raise if it would need the rows again."""

    def with_features(self, more: int) -> Self:
        """Return the belief about more features, which were 0 in all rows so far and come after the others.

        Their coefficients are at their prior: the penalty, or nothing if there is none.
        """
        check(self.settings, way="new features")
        raise ValueError(
            "New features came, and this model, which mixes ways to forget, keeps the features of its first row: give "
            "all features in every row, or use a forget other than 'auto'."
        )

    @property
    def targets(self) -> int | None:
        """The number of columns of y, if these are several targets of one linear model; None for one target."""
        return None

    @property
    def effective_rows(self) -> float:
        """The number of rows of equal weight that are worth as much as those that forgetting has left."""
        raise NotImplementedError

    def closed(self) -> Self:
        """Return the belief after a batch, which is a cluster of its own for clustered standard errors."""
        return self if self.sandwich is None else replace(self, sandwich=self.sandwich.closed())

    @property
    def predicts(self) -> bool:
        """Whether its predictions can be scored: False before the first row and during a warm-up."""
        return True

    # ---- innovations -----------------------------------------------------------------------------------

    @property
    def matches_rows(self) -> bool:
        """Whether single rows are learned by moment matching, by a filter that is updated in place."""
        return False

    def next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        """Return the end of the piece of a block that begins at row `start` and that this belief may predict.

        A belief predicts a quarter of the rows that it has learned, `rows`: the error of its estimate, which they
        share, is then small beside what is random in their sum. With `exact`, every row is predicted from all rows
        before it.
        """
        if exact:
            length = 1
        elif self.predicts:
            length = max(FEWEST_ROWS, rows // 4)
        else:  # nothing is predicted in a warm-up; that of a loss that is not quadratic ends as soon as it can
            length = len(block) if self.settings.likelihood.quadratic else max(FEWEST_ROWS, rows)
        return min(len(block), start + length)

    def scored(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple[Self, Innovations]:
        """Return the belief after a piece, and the innovations of the piece; see `next_piece`.

        `known` is False if nothing was learned before, so that nothing is predicted.
        """
        after, known = self.learn(block), known and self.predicts
        return after, self.innovations(block, after, exact=exact) if known else Innovations.unknown(block.y)

    def innovations(self, block: Block, after: Self, *, exact: bool = False) -> Innovations:
        """Return the innovations of a piece, which this belief predicts and `after` has learned; see `next_piece`."""
        if may_overflow(block):
            return Innovations.unknown(block.y)
        own, times = self.own_variance(block), self._times(block, self.time)
        known = self if times is None else self.ahead(float(times[0]))
        predicted = known.predict(block.X, None if own is None else np.sqrt(own), block.offset)
        with np.errstate(invalid="ignore"):  # without any noise, nothing is known of the relative size of the std
            scale = predicted.std / np.sqrt(np.asarray(known.noise.variance))
        return Innovations.of(block.y, predicted, scale)

    def relative_variance(self, X: Array) -> Array | None:
        """Return the variance of the noise at the inputs X, in units of the noise variance; None if it is 1."""
        return None

    def own_variance(self, block: Block) -> Array | None:
        """Return the variance of the noise of each row of a block in units of the noise variance; None if it is 1."""
        return self.settings.own_variance(block)

    def observing(self, block: Block, found: Innovations, before: "Belief") -> Self:
        """Return this belief with the scores of the piece that it has learned since the belief `before`."""
        if self.settings.coef_cov == "model":
            return self
        with np.errstate(invalid="ignore"):
            D, u, curvature, sandwich = self._row_scores(block, found, before)
        if self.settings.forgets:
            counts = self.settings.counts(block.weights)
            counts = np.ones(len(block)) if counts is None else counts
            u = (u.T * shares(self.settings.forgetting, counts, self._times(block, before.time))).T
        weights, relative = block.weights, before.relative_variance(block.X)
        sandwich = sandwich.with_excess(D, self._excess(block, before, D))
        if block.noise is not None:
            relative = block.noise if relative is None else relative * block.noise
        if self.settings.coef_cov == "robust":
            weights = weights if relative is None else (1.0 if weights is None else weights) / relative
            return replace(self, sandwich=sandwich.after_rows(D, u, weights))
        information = curvature if weights is None else curvature * weights
        information = information if relative is None else information / relative
        if (own := self.settings.relative_precision(block)) is not None:  # its root is in u
            weights = weights / np.sqrt(own)
        if relative is not None:
            weights = (1.0 if weights is None else weights) / np.sqrt(relative)
        return replace(self, sandwich=sandwich.after_cluster(D, u, weights, information, block.groups))

    def _excess(self, block: Block, before: "Belief", D: Array) -> Array | None:
        """Return by how much the information of rows exceeds the second derivative of their loss; see `excess_of`."""
        if not self.settings.likelihood.majorizes or not before.predicts:
            return None
        f = before._value(before.design.rows(block.X, block.offset))[0]
        variance = before.posterior.output_variance(f, D)
        return excess_of(before.posterior.likelihood, block.y, f, block.weights, variance)

    def _times(self, block: Block, since: float | None) -> Array | None:
        """Return the times of a block that comes after the time `since`; None unless rows are forgotten by time."""
        return in_order(block.times, since, block.weights) if self.settings.by_time else None

    def ahead(self, time: float | None = None) -> Self:
        """Return what is known at a later time, or before the next row if that makes a difference."""
        if time is not None:
            check(self.settings, way="times")
        return self

    def _row_scores(self, block: Block, found: Innovations, before: "Belief") -> tuple[Array, Array, Array, Sandwich]:
        """Return what `row_scores` returns, and the sandwich to which the scores are added."""
        f, D = before._value(before.design.rows(block.X, block.offset))
        unknown = np.isnan(found.mean.reshape(len(block), -1)).any(axis=1)
        if self.settings.likelihood.quadratic:
            u, curvature = (block.y - found.mean) / found.scale, np.ones(len(block))
        elif unknown.all():  # also where a parameter of the likelihood is still to be learned
            D, u = D.reshape(len(block), -1, D.shape[-1])[:, 0], np.full(len(block), np.nan)
            curvature = np.zeros(len(block))
        else:
            leverage = before.posterior.leverage(D.reshape(-1, D.shape[-1])).reshape(f.shape)
            own = self.settings.relative_precision(block)
            D, u, curvature = row_scores(before.posterior.likelihood, block.y, f, D, leverage, own)
            u = np.where(unknown, np.nan, u)
        return D, u, curvature, self.sandwich or Sandwich.zero(None, D.shape[1], None)

    def with_scores_of(self, source: Source) -> Self:
        """Return this belief with the scores of the rows of a source, which it has learned. One pass.

        The scores come from the residuals at the estimate, which are smaller than innovations. Those of independent
        rows are divided by 1 - leverage, and those of clusters multiplied by (rows - 1) / (rows - edf). Without a
        penalty the covariances are then those that statsmodels calls HC3 and cluster.
        """
        settings = self.settings
        if settings.coef_cov == "model":
            return self
        posterior = self.posterior
        assert isinstance(posterior, InformationPosterior)
        theta = np.asarray(posterior.mean)
        robust, kind = settings.coef_cov == "robust", (settings.weights, settings.class_weights)
        V = self._unit_covariance(posterior) if robust else None
        about = self.model, posterior.likelihood, theta, self.design, self._center, V, *kind
        sandwich = source.fold(partial(scores_at, *about)).total
        assert sandwich is not None
        rows = float(posterior.data.effective_rows)
        dof = rows - np.asarray(posterior.edf)
        if (dof <= 0).any():  # every residual is zero, and the standard errors are unknown
            return replace(self, sandwich=Sandwich.zero(self._center, sandwich.M.shape[1], posterior.targets))
        return replace(self, sandwich=sandwich if robust else sandwich.times((rows - 1) / dof))

    @property
    def _center(self) -> Array | None:
        """The center of the inputs of the scores; None if they are the Jacobian of a nonlinear model."""
        return None

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def design(self) -> Design:
        """The coordinates of theta."""

    @property
    @abstractmethod
    def posterior(self) -> Posterior:
        """The posterior of theta."""

    @property
    @abstractmethod
    def converged(self) -> bool:
        """Whether the estimate is the minimiser."""

    @property
    def alpha(self) -> float:
        """The weight of the penalty, as given or chosen."""
        alpha: float = self.settings.penalty.alpha
        return alpha

    @property
    def penalty_pull(self) -> float:
        """The estimate times the gradient of the penalty there: how much the penalty holds it back."""
        g = self.design.regularizer(self.settings.penalty.regularizer(self.alpha))
        theta = np.asarray(self.posterior.mean)
        return float(theta @ np.asarray(g.grad(theta)))

    @property
    def alpha_limit(self) -> float | None:
        """0 or infinity, if alpha="auto" found that the smaller, or the larger, alpha is the better; otherwise None."""
        return None

    @property
    def column_std(self) -> Array | None:
        """The standard deviation of each column of X over the rows learned, shape (d,); None if it is not known."""
        return None

    @property
    def targets_outside(self) -> float:
        """The number of targets learned that lie outside the range of the link."""
        return 0.0

    @property
    def noise(self) -> Noise:
        return self.posterior.noise

    @property
    def model(self) -> Model:
        """The model h."""
        return self.design.model(self.settings.model(self.design.outputs))

    def _per_target(self, theta: Array) -> Array:
        """Return parameters, shape (p,), (p, k) or, for several outputs, (p m,), as (p,), (k, p) or (m, p)."""
        theta = np.asarray(theta)
        return theta.T if self.design.outputs is None else self.design.by_output(theta)

    @property
    def _theta(self) -> Array:
        return self._per_target(self.posterior.mean)  # (d,) or (k, d)

    @cached_property
    def coef(self) -> Array:
        """The coefficients, shape (d,) or (k, d)."""
        return self.design.coef(self._theta)

    @property
    def effects(self) -> Array:
        """The size of the effect of each column: |coefficient| times the standard deviation of the column, like `coef`.

        It is the change of the prediction (for a nonlinear link: of the linear predictor) when the column increases by
        one standard deviation. Where the standard deviations are not known, it is |coefficient|.
        """
        return np.abs(self.coef) * (1.0 if self.column_std is None else self.column_std)

    @cached_property
    def intercept(self) -> Array:
        """The intercept, shape () or (k,)."""
        return np.asarray(self.design.intercept_of(self._theta))

    @cached_property
    def covariance(self) -> Array:
        """The covariance of the coefficients, shape (d, d) or (k, d, d)."""
        first, scale = self.design.first, self.design.scale
        sandwiched = self._sandwiched(self.posterior)
        C = np.asarray(self.posterior.cov()) if sandwiched is None else sandwiched
        if (K := self._contrasts(self.posterior)) is not None and (m := self.design.outputs) is not None:
            C = K @ C @ K.T
            C = np.stack([C[c::m, c::m] for c in range(m)])  # of the coefficients of each output
        C = C[..., first:, first:]
        return C if scale is None else C / scale[:, None] / scale

    def covariance_of(self, some: Array) -> Array:
        """Return the covariance of some coefficients, given their positions, of a model with one output."""
        return self.covariance[np.ix_(some, some)]

    @cached_property
    def coef_std(self) -> Array:
        """The standard errors of the coefficients, shape (d,) or (k, d); see `debiased` if the penalty has kinks."""
        return np.sqrt(self._variances(self._var(self.posterior)))

    def _variances(self, variances: Array) -> Array:
        """Return the variances of the coefficients for those of theta, shape (..., d)."""
        variances = self.design.by_output(np.asarray(variances))[..., self.design.first :]
        return variances if self.design.scale is None else variances / self.design.scale**2

    @cached_property
    def intercept_std(self) -> Array:
        """The standard error of the intercept, shape () or (k,), as `coef_std`; zero without intercept."""
        return self._intercept_std(self.posterior)

    def _intercept_std(self, posterior: Posterior) -> Array:
        if not self.design.intercept:
            return np.zeros_like(self.intercept)
        at_zero = self._at_zero(posterior)
        if (C := self._sandwiched(posterior)) is not None:
            found = np.diagonal(at_zero @ C @ at_zero.T, axis1=-2, axis2=-1)
            return np.sqrt(found if self.design.outputs else found[..., 0])
        leverage = posterior.leverage(at_zero)
        return np.sqrt(np.asarray(posterior.noise.variance) * (leverage if self.design.outputs else leverage[0]))

    def _at_zero(self, posterior: Posterior) -> Array:
        """Return the inputs whose output is the intercept, shape (1, p) or (m, p)."""
        without = replace(self.design, row_offsets=False)
        at_zero = without.rows(np.zeros((1, len(self.design.center))))  # type: ignore[arg-type]
        if (K := self._contrasts(posterior)) is not None:
            at_zero = self.model.linearize_rows(np.asarray(posterior.mean), at_zero)[1][0] @ K
        return at_zero

    @property
    def std_doubt(self) -> str:
        """Why standard errors of coefficients may be too small, in a sentence; empty if nothing is known of it."""
        return ""

    @property
    def why_no_std(self) -> str:
        """Why clustered standard errors are NaN; empty if they are not. (Others are NaN without degrees of freedom.)"""
        return self._why_no_std

    @property
    def _why_no_std(self) -> str:
        count = 0.0 if self.sandwich is None else self.sandwich.count
        if self.settings.coef_cov != "clustered" or count >= 2:
            return ""
        return (
            f"coef_cov='clustered' needs at least two clusters, got {count:g}, and more rows than coefficients: "
            "standard errors are NaN. Learn another batch, which is a cluster of its own, or give groups with two or "
            "more labels."
        )

    @property
    def why_no_interval(self) -> str:
        """Why there are no intervals of coefficients, in a sentence; empty if there are."""
        return ""

    @cached_property
    def interval_doubt(self) -> str:
        """Says that the penalty has moved the intervals of the coefficients off the truth; empty if it has not.

        A smooth penalty is a prior, g / noise variance = -log density. It is doubted if the coefficients found
        contradict it, and it moved one of them so far that its 95% interval covers less than 90%.

        What contradicts it is 2 g / noise variance, which under the prior is about a sum of f chi2(1) over the shares f
        of the data in each direction, the eigenvalues of V R'R. So coefficients that the penalty shrank to nearly
        nothing contradict it as those do that it hardly moved. The sum is compared with a scaled chi-square variable of
        the same mean and variance.

        An alpha that was chosen makes the prior as wide as the coefficients are on average, which contradicts no sum of
        them. What it may get wrong is the largest one, of which it knows no more than of the others.
        """
        posterior = self.posterior
        if self.debiased or not isinstance(posterior, InformationPosterior):
            return ""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if self.settings.chooses_alpha:
                return self._shrinkage_doubt()
            if not np.any(self._contradictions(posterior) < _CONTRADICTION):
                return ""
            penalised = self.coef_estimate(penalised=True)
            pull = np.abs(self.coef_estimate(penalised=False).value - penalised.value) / penalised.std
            farthest = float(np.max(np.where(np.isfinite(pull), pull, 0.0), initial=0.0))
            if not farthest > _PULL:
                return ""
        return (
            f"The penalty moves a coefficient by {_rounded(farthest)} standard errors, and the coefficients are larger "
            "than it expects with this little noise: the intervals cover less than they say. Use penalty=None, a "
            "smaller alpha, or standardize=True if the columns differ in scale."
        )

    def _shrinkage_doubt(self) -> str:
        """Return `interval_doubt` for an alpha that was chosen."""
        penalised, free = self.coef_estimate(penalised=True), self.coef_estimate(penalised=False)
        pull = np.where(np.isinf(free.std), np.inf, np.abs(free.value - penalised.value) / penalised.std)
        scale = 1.0 if self.design.scale is None else self.design.scale
        pull, largest = np.atleast_2d(pull), np.abs(np.atleast_2d(penalised.value * scale)).argmax(axis=1)
        farthest = float(np.max(pull[np.arange(len(pull)), largest]))
        if not farthest > _PULL:
            return ""
        moved = f"The penalty moves the largest coefficient by {_rounded(farthest)} standard errors"
        if not np.isfinite(farthest):
            moved = "The rows alone do not determine the largest coefficient"
        return (
            f"{moved}. With alpha='auto' intervals cover on average over the coefficients, and that of a coefficient "
            "which is much larger than the others covers less than it says. For an interval of one coefficient use "
            "penalty=None."
        )

    def _contradictions(self, posterior: InformationPosterior) -> Array:
        """Return the probability, if the penalty is the prior, of a penalty as large as was found, for each target."""
        mean = np.asarray(posterior.mean)
        first = self.design.first * max((self.design.outputs or 2) - 1, 1)  # the directions that are not penalised
        thetas = mean.reshape(len(mean), -1).T
        variance = np.broadcast_to(np.asarray(posterior.noise.variance), len(thetas))
        found, R, shares = np.ones(len(thetas)), posterior.data.compact()[0], []
        for factor in posterior.metric_factors:  # one for all targets, or one for each
            root = np.asarray(factor.whitened(R))
            H = root.T @ root
            shares.append((np.trace(H) - first, (H**2).sum() - first))  # an intercept is not penalised
        for j, theta in enumerate(thetas):
            total, squares = shares[j % len(shares)]
            if variance[j] > 0 and squares > 0:
                cost = 2 * float(posterior.regularizer.value(theta)) / variance[j]
                found[j] = special.chdtrc(total**2 / squares, cost * total / squares)
        return found

    def _sandwiched(self, posterior: Posterior) -> Array | None:
        """Return the robust or clustered covariance of theta, (p, p) or (k, p, p); None with coef_cov="model".

        NaN with fewer than two rows or clusters, see `why_no_std`.
        """
        kind, sandwich = self.settings.coef_cov, self.sandwich
        if kind == "model":
            return None
        unit = self._unit_covariance(posterior)
        if sandwich is None or sandwich.count < 2:
            return np.full(unit.shape, np.nan)
        M = sandwich.total(self.design)
        infinite = np.isinf(unit)
        V = np.where(infinite, 0.0, unit)
        if sandwich.excess is not None:  # V^-1 is the information and the penalty
            V = np.linalg.solve(np.eye(len(V)) - V @ sandwich.excess, V)
        C = V @ (M[0] if posterior.targets is None else M) @ V
        if kind == "clustered":
            C *= sandwich.count / (sandwich.count - 1)
        return np.where(infinite, unit, C)

    @staticmethod
    def _unit_covariance(posterior: Posterior) -> Array:
        """Return the covariance of theta in units of the noise variance, (p, p) or (k, p, p)."""
        return np.asarray(posterior.per_target([factor.covariance() for factor in posterior.metric_factors]))

    def _contrasts(self, posterior: Posterior) -> Array | None:
        """Return a matrix by which parameters are multiplied where they are shown; None if it has no effect."""
        return None

    def _var(self, posterior: Posterior) -> Array:
        """Return the variances of theta under `coef_cov`, shape (p,) or (k, p); NaN where rounding left nothing."""
        C, K = self._sandwiched(posterior), self._contrasts(posterior)
        if C is None:
            var = posterior.var() if K is None else posterior.leverage(K) * posterior.noise.variance
            return np.asarray(var)
        C = C if K is None else K @ C @ K.T
        variances = np.diagonal(C, axis1=-2, axis2=-1)
        return np.where(variances >= 0, variances, np.nan)

    def _dof(self, posterior: Posterior, K: Array | None = None) -> Array:
        """Return the degrees of freedom of intervals, shape () or (k,).

        For clusters they are those of each parameter, or of products of the parameters with the rows of K, shape (q,)
        or (k, q): one less than the number of clusters of equal weight that say as much. Under a working model, rows of
        a cluster have a noise in common whose variance is learned from the sums of their scores. A cluster with the sum
        of inputs m and the weight n then adds s2 (v'm)^2 / n + s2 (n / all) v'W v + t2 (v'm)^2 to the variance of c't,
        with v = V c, W the information within clusters, s2 the variance of single rows and t2 that of the clusters; the
        degrees of freedom of a sum of such terms are Satterthwaite's [1]_. Small clusters that are not known one by one
        are taken for equal ones with the variance of their scores.

        References
        ----------
        .. [1] A. V. Carter, K. T. Schnepel, D. G. Steigerwald, "Asymptotic behavior of a t-test robust to cluster
           heterogeneity", Review of Economics and Statistics 99, 2017.
        """
        if self.settings.coef_cov != "clustered":
            return np.asarray(posterior.noise.dof)
        unit = self._unit_covariance(posterior)
        V = np.where(np.isinf(unit), 0.0, unit)
        V = V if K is None else K @ V
        count = 0.0 if self.sandwich is None else self.sandwich.count
        found = np.full(V.shape[:-1], count - 1)
        if self.sandwich is None or not self.sandwich.groups or not self._has_constant or count < 3:
            return found
        assert isinstance(posterior, InformationPosterior)
        m, sums = self.sandwich.inputs_of(self.design)
        m, n, s = (a[sums[:, -1] > 0] for a in (m, sums[:, -1], sums[:, :-1]))
        variance, R = np.asarray(posterior.noise.variance), np.asarray(posterior.data.compact()[0])
        M, rest, total = self.sandwich.complete(self.design), self.sandwich.clusters, n.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            shared = np.clip(((s**2).sum(axis=0) - total * variance) / ((n**2).sum() - total), 0.0, variance)
            shared = shared[0] if posterior.targets is None else shared[:, None, None]
            single = (variance if posterior.targets is None else variance[:, None, None]) - shared
            z = V @ m.T  # of each parameter and cluster
            own = z**2 / n
            known = total if not rest or not self.design.intercept else max(float((R[:, 0] ** 2).sum()), total)
            within = np.maximum(((V @ R.T) ** 2).sum(axis=-1) - own.sum(axis=-1), 0.0)[..., None] * n / known
            parts = single * (own + within) + shared * z**2
            others = ((V @ (M[0] if posterior.targets is None else M)) * V).sum(axis=-1)
            squares = (parts**2).sum(axis=-1) + others**2 / max(rest, 1.0)
            worth = (parts.sum(axis=-1) + others) ** 2 / squares
        return np.where(np.isfinite(worth), np.clip(worth - 1, 1.0, count - 1), found)

    @property
    def _has_constant(self) -> bool:
        """Whether the first input of the scores is 1, so that its sums are those of the rows."""
        return self._center is not None or (self.design.intercept and self.design.outputs is None)

    # ---- intervals -------------------------------------------------------------------------------------

    @property
    def debiased(self) -> bool:
        """Whether intervals are about the estimate without the penalty, because the penalty has kinks or bounds.

        The standard errors are then conditional on the coefficients that the penalty selected, and know nothing of its
        pull, so that estimate and standard error together make no interval that covers.
        """
        return isinstance(self.posterior, InformationPosterior) and not self.posterior.regularizer.smooth

    @property
    def exact_zeros(self) -> Array:
        """Which coefficients the penalty sets to exactly 0, shaped like `coef`.

        An undetermined coefficient, which is 0 in the minimum-norm solution, is not one of them.
        """
        return (self.coef == 0) & (self.coef_std == 0) & self.debiased

    @cached_property
    def unpenalised(self) -> Posterior:
        """The posterior without the penalty: least squares on all columns, with its own noise.

        With full rank its mean is the debiased estimate theta + (R'R)^-1 R'(z - R theta), whatever theta is. For a
        nonlinear link it is one step of Gauss-Newton from the penalised estimate.
        """
        penalised = self.posterior
        if not isinstance(penalised, InformationPosterior):
            return penalised
        return InformationPosterior(
            penalised.data, Zero(), gamma=penalised.gamma, prior=penalised.prior, likelihood=penalised.likelihood
        )

    def determined(self, penalised: bool) -> Array:
        """Return whether the rows, with or without the penalty, determine each coefficient, shape (d,)."""
        posterior = self.posterior if penalised else self.unpenalised
        found = np.isfinite(self._variances(np.asarray(posterior.factors[0].variances())))
        return found if found.ndim == 1 else found.all(axis=0)

    def coef_estimate(self, penalised: bool) -> Estimate:
        """Return the coefficients, with or without the penalty, and what their intervals are computed from."""
        posterior = self.posterior if penalised else self.unpenalised
        K = self._contrasts(posterior)
        rows = (factor.variances() if K is None else factor.leverage(K) for factor in posterior.factors)
        in_units = posterior.per_target(list(rows))
        with np.errstate(divide="ignore"):
            precision = 1 / self._variances(in_units)
        std, dof = np.sqrt(self._variances(self._var(posterior))), self._dof(posterior)
        if self.settings.coef_cov == "clustered":
            dof = self.design.by_output(dof)[..., self.design.first :]
        coef = self.design.coef(self._per_target(posterior.mean))
        std, dof = (std, dof) if penalised else _unbounded(std, dof)
        return Estimate(coef, std, dof, precision)

    def intercept_estimate(self, penalised: bool) -> Student:
        """Return the intercept, with or without the penalty, its standard error and their degrees of freedom."""
        posterior = self.posterior if penalised else self.unpenalised
        value = np.asarray(self.design.intercept_of(self._per_target(posterior.mean)))
        std, dof = self._intercept_std(posterior), self._dof(posterior, self._at_zero(posterior))
        if self.settings.coef_cov == "clustered" and self.design.outputs is None:
            dof = dof[..., 0]
        return Student(value, *((std, dof) if penalised else _unbounded(std, dof)))

    def coef_interval(self, level: float = 0.95, anytime: bool = False) -> tuple[Array, Array]:
        """Return the ends of the interval of each coefficient, shaped like `coef`.

        They are those of the posterior, or of the debiased estimate if the penalty has kinks or bounds. With `anytime`
        they are those of a confidence sequence, always about the estimate without the penalty.
        """
        if anytime:
            check(self.settings, way="anytime")
            estimate, tuning = self.coef_estimate(penalised=False), self._tuning()
            if self.settings.coef_cov == "clustered":  # what the rows say grows by clusters
                count = 0.0 if self.sandwich is None else self.sandwich.count
                estimate, tuning = estimate._replace(precision=np.full(estimate.std.shape, count)), TUNED_CLUSTERS
            return estimate.anytime_interval(level, tuning)
        return self.coef_estimate(penalised=not self.debiased).interval(level)

    def _tuning(self) -> Array:
        """Return the constants of confidence sequences, shape (d,); see `Estimate.anytime_interval`."""
        raise NotImplementedError

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of X, shape (n,) or (n, k)."""
        return self.output(X) if self.settings.likelihood.location else self.predict(X).mean

    def predict(
        self, X: Array, sigma: Any = None, offset: Array | None = None, left_open: Array | None = None
    ) -> Predictive:
        """Return the predictive distribution for rows of X with these offsets.

        It includes the noise of relative std `sigma` (default 1), and the variance of the output that missing features
        leave open, if there are any.
        """
        return self.posterior.predict(*self._expected(X, offset), sigma, left_open)

    def output(self, X: Array, offset: Array | None = None) -> Array:
        """Return the output of the model for rows of X at the estimate, shape (n,) or (n, m)."""
        return self._value(self.design.rows(X, offset))[0]

    def log_odds(self, X: Array, offset: Array | None = None, left_open: Array | None = None) -> Array:
        """Return the log odds of the probabilities of classes for rows of X, averaged over the posterior, shape (n,).

        For several classes, they are the logarithms of the probabilities less their mean, shape (n, m).
        """
        f, D = self._expected(X, offset)
        likelihood, leverage = self.settings.likelihood, self._output_variance(f, D, left_open)
        yes, no = (np.log(likelihood.predict(g, leverage, self.noise).mean) for g in (f, -f))
        return yes - no if f.ndim == 1 else yes - yes.mean(axis=-1, keepdims=True)

    def probability_std(self, X: Array, offset: Array | None = None, left_open: Array | None = None) -> Array:
        """Return the standard deviations of the probabilities of classes for rows of X, which the rows leave."""
        f, D = self._expected(X, offset)
        likelihood = self.settings.likelihood
        assert isinstance(likelihood, (Bernoulli, Categorical))
        return likelihood.probability_std(f, self._output_variance(f, D, left_open))

    def _output_variance(self, f: Array, D: Array, left_open: Array | None) -> Array:
        variance = self.posterior.output_variance(f, D)
        return variance if left_open is None else variance + left_open

    def _value(self, inputs: Array) -> tuple[Array, Array]:
        """Return the output of the model at the estimate, and its Jacobian."""
        f, D = self.model.linearize_rows(np.asarray(self.posterior.mean), inputs)
        return (f + self.design.offset_rest) + self.design.offset, D

    def _expected(self, X: Array, offset: Array | None) -> tuple[Array, Array]:
        """Return the output of the model at the mean of the posterior, over which predictions average; its Jacobian."""
        (f, D), posterior = self._value(self.design.rows(X, offset)), self.posterior
        return (f if posterior.expected is posterior.mean else f + D @ (posterior.expected - posterior.mean)), D

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draw n times from the posterior: coef (n, d) or (n, k, d), and intercept (n,) or (n, k)."""
        draws, K = self.posterior.sample(n, rng), self._contrasts(self.posterior)
        draws = draws if K is None else self.design.by_output(draws @ K.T)
        return self.design.coef(draws), np.asarray(self.design.intercept_of(draws))

    # ---- saving ----------------------------------------------------------------------------------------

    n_outliers: ClassVar[float | None] = None  # rows flagged as outliers, if the likelihood is robust
    n_held: ClassVar[int] = 0  # rows that are held as they came, and that a model file would hold too

    def without_rows(self) -> Self:
        """Return the belief with the rows that it holds folded, and without values of single rows in its state.

        Raise a ValueError where it cannot do without them.
        """
        return self

    @property
    def sizes(self) -> dict[str, int | None]:
        """The lengths of the axes of its arrays: d features, k targets and o columns of y if several, p parameters."""
        return {"d": self.coef.shape[-1], "k": self.targets, "o": self.design.outputs, "p": self.design.size}

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> Self:
        """Return the belief that was saved under `name`; raise a ValueError if it cannot be one of these sizes."""
        return saved.tree(cls, name, sizes, settings=settings)

    # ---- supported by some beliefs only ------------------------------------------------------------------

    def merge(self, other: "Belief") -> Self:
        """Return the belief after the rows of both."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> Array:
        """What tells the rows learned from others; see `kalprox.learning.fingerprint`."""
        raise NotImplementedError

    def minimax(self, X: Array) -> Array:
        """Return the predictions of the Vovk-Azoury-Warmuth forecaster for rows of X, shape (n,) or (n, k)."""
        raise NotImplementedError

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        """Return the solution for each alpha: of the rows learned, or of those of a source where that is not enough."""
        raise NotImplementedError

    @property
    def log_evidence(self) -> Array:
        """The log evidence log p(y) with the penalty as the prior, shape () or (k,)."""
        check(self.settings, way="evidence")
        raise NotImplementedError


def refuse_scores(before: Settings, now: Settings) -> None:
    """Raise a ValueError if robust standard errors are asked for after rows have been learned without their scores."""
    if now.coef_cov not in (before.coef_cov, "model"):
        raise ValueError(
            f"coef_cov cannot change from {before.coef_cov!r} to {now.coef_cov!r} between calls of partial_fit: the "
            "scores of the rows learned so far were not summed. Use fit."
        )


def _rounded(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _unbounded(std: Array, dof: Any) -> tuple[Array, Any]:
    """Return std and dof with infinite std, so unbounded intervals, where the noise variance cannot be learned."""
    return np.where(np.isnan(std), np.inf, std), np.where(np.asarray(dof) > 0, dof, 1.0)
