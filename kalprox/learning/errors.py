"""Standard errors of coefficients, of the model, robust, and clustered; their intervals, for one look or for any."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.base.tree import leaf, state
from kalprox.learning.design import Design
from kalprox.learning.rules import check
from kalprox.learning.sandwich import Sandwich, scores_at
from kalprox.learning.settings import Settings
from kalprox.models import Model
from kalprox.posterior import InformationPosterior, Posterior
from kalprox.predictive import Student
from kalprox.regularizers import Zero
from kalprox.sources import Source

TUNED_ROWS = 125  # the tuning constants are the precision of so many rows: narrowest at eight times as many, 1,000
TUNED_CLUSTERS = 25  # the same for clusters: narrowest at 200


class Estimate(NamedTuple):
    """Estimates with what their intervals are computed from; with k targets the arrays have a leading axis.

    Attributes
    ----------
    value : array of shape (d,) or (k, d)
    std : array of the same shape
        The standard errors.
    dof : float, or array of shape (k,), or of that of `value`
        The degrees of freedom of the standard errors.
    precision : array of shape (d,) or (k, d)
        The inverse variance in units of the noise variance, 1 / [(X'X)^-1]_jj for least squares: how much the rows say.
    """

    value: Array
    std: Array
    dof: Any
    precision: Array

    def interval(self, level: float) -> tuple[Array, Array]:
        """Return the ends of the intervals that each contain the truth with probability `level`, at one look."""
        return Student(self.value, self.std, self._dof).interval(level)

    @property
    def _dof(self) -> Array:
        """The degrees of freedom in a shape that broadcasts with `std`."""
        dof = np.asarray(self.dof, float)
        return dof if dof.ndim in (0, self.value.ndim) else dof[..., None]

    def anytime_interval(self, level: float, tuning: Array | float) -> tuple[Array, Array]:
        """Return the ends of intervals that, with probability `level`, contain the truth at every look.

        With g the tuning constant, z2 the precision, nu the degrees of freedom and a = 1 - level, let r = g / (g + z2)
        and k = (r a^2)^(1 / (nu + 1)). The interval reaches as far as std sqrt(nu (1 - k) / (k - r)), and
        std sqrt(-log(r a^2) / (1 - r)) for infinite nu; it is unbounded where k <= r. It holds all values whose Bayes
        factor, with a prior N(., sigma^2 / g) as the alternative, is below 1 / a. That factor is a martingale for any
        g that does not depend on the targets and does not change [1]_.

        Parameters
        ----------
        level : float
        tuning : array of shape (d,), or float
            The constants g, in units of the precision. For level 0.95 the interval is narrowest, in standard errors,
            where the precision is 8 g, and then 1.6 times as wide as `interval`.

        References
        ----------
        .. [1] M. Lindon, D. W. Ham, M. Tingley, I. Bojinov, "Anytime-valid linear models and regression adjusted causal
           inference in randomized experiments", arXiv:2210.08589, 2022.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be strictly between 0 and 1, such as 0.95; got {level!r}.")
        nu = self._dof
        with np.errstate(divide="ignore", invalid="ignore"):
            r = tuning / (tuning + self.precision)
            log = np.log(r) + 2 * np.log(1 - level)
            short = -np.expm1(log / (nu + 1))  # 1 - k
            square = np.where(np.isinf(nu), -log / (1 - r), nu * short / (1 - r - short))
            bounded = (square > 0) & np.isfinite(square) & np.isfinite(self.std)
            reach = np.where(bounded, self.std * np.sqrt(np.where(bounded, square, 0)), np.inf)
        return self.value - reach, self.value + reach


@state
class StandardErrors(ABC):
    """How sure the coefficients are, given a posterior of the parameters and, if asked for, the scores of the rows.

    Attributes
    ----------
    settings : Settings
    sandwich : Sandwich or None
        The sums for robust or clustered standard errors, if the settings ask for them.
    of_held : function or None
        Returns the scores of the rows that are held in a warm-up; None if there are none.
    """

    settings: Settings = leaf(given=True)
    sandwich: Sandwich | None = leaf(default=None, kw_only=True)
    of_held: Callable[[], Sandwich] | None = leaf(default=None, kw_only=True)

    @property
    @abstractmethod
    def design(self) -> Design:
        """The coordinates of theta."""

    @property
    @abstractmethod
    def posterior(self) -> Posterior:
        """The posterior of theta."""

    @property
    def model(self) -> Model:
        """The model h."""
        return self.design.model(self.settings.model(self.design.outputs))

    @cached_property
    def coef(self) -> Array:
        """The coefficients, shape (d,) or (k, d)."""
        return self.design.coef(self.design.per_target(self.posterior.mean))

    @cached_property
    def intercept(self) -> Array:
        """The intercept, shape () or (k,)."""
        return np.asarray(self.design.intercept_of(self.design.per_target(self.posterior.mean)))

    # ---- covariances -----------------------------------------------------------------------------------

    def errors(self, *, penalised: bool = True) -> "Errors":
        """Return the standard errors under the posterior, or under that without the penalty."""
        return Errors(self, self.posterior if penalised else self.unpenalised)

    @cached_property
    def covariance(self) -> Array:
        """The covariance of the coefficients, shape (d, d) or (k, d, d)."""
        return self.errors().covariance()

    def covariance_of(self, some: Array) -> Array:
        """Return the covariance of some coefficients, given their positions, of a model with one output."""
        return self.covariance[np.ix_(some, some)]

    @cached_property
    def coef_std(self) -> Array:
        """The standard errors of the coefficients, shape (d,) or (k, d); see `debiased` if the penalty has kinks."""
        return self.errors().coef_std()

    @cached_property
    def intercept_std(self) -> Array:
        """The standard error of the intercept, shape () or (k,), as `coef_std`; zero without intercept."""
        return self.errors().intercept_std()

    @property
    def std_doubt(self) -> str:
        """Why standard errors of coefficients may be too small, in a sentence; empty if nothing is known of it."""
        return ""

    @cached_property
    def scores(self) -> Sandwich | None:
        """The scores of the rows; those of a warm-up are summed, from residuals at the estimate, when they are read."""
        return self.sandwich if self.of_held is None else self.of_held()

    def with_fields(self, **fields: Any) -> Self:
        """Return this with other fields, on which the estimate and its posterior do not depend."""
        new = replace(self, **fields)
        if "posterior" in vars(self):
            vars(new)["posterior"] = vars(self)["posterior"]
        return new

    @property
    def why_no_std(self) -> str:
        """Why clustered standard errors are NaN; empty if they are not. (Others are NaN without degrees of freedom.)"""
        count = 0.0 if self.scores is None else self.scores.count
        if self.settings.coef_cov != "clustered" or count >= 2:
            return ""
        return worded(
            f"{{coef_cov='clustered'}} needs at least two clusters, got {count:g}, and more rows than coefficients: "
            "standard errors are NaN. Learn another batch, which is a cluster of its own, or give groups with two or "
            "more labels."
        )

    @property
    def why_no_interval(self) -> str:
        """Why there are no intervals of coefficients, in a sentence; empty if there are."""
        return ""

    def contrasts(self, posterior: Posterior) -> Any:
        """Return a matrix by which parameters are multiplied where they are shown; None if it has no effect."""
        return None

    @property
    def scores_center(self) -> Array | None:
        """The center of the inputs of the scores; None if they are the Jacobian of a nonlinear model."""
        return None

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
        return self.errors(penalised=penalised).determined()

    def coef_estimate(self, penalised: bool) -> Estimate:
        """Return the coefficients, with or without the penalty, and what their intervals are computed from."""
        estimate = self.errors(penalised=penalised).coef()
        return estimate if penalised else estimate._replace(**_unbounded(estimate.std, estimate.dof))

    def intercept_estimate(self, penalised: bool) -> Student:
        """Return the intercept, with or without the penalty, its standard error and their degrees of freedom."""
        value, std, dof = self.errors(penalised=penalised).intercept()
        return Student(value, **({"std": std, "dof": dof} if penalised else _unbounded(std, dof)))

    def coef_interval(self, level: float = 0.95, anytime: bool = False) -> tuple[Array, Array]:
        """Return the ends of the interval of each coefficient, shaped like `coef`.

        They are those of the posterior, or of the debiased estimate if the penalty has kinks or bounds. With `anytime`
        they are those of a confidence sequence, always about the estimate without the penalty.
        """
        if anytime:
            check(self.settings, way="anytime")
            estimate, tuning = self.coef_estimate(penalised=False), self._tuning()
            if self.settings.coef_cov == "clustered":  # what the rows say grows by clusters
                count = 0.0 if self.scores is None else self.scores.count
                estimate, tuning = estimate._replace(precision=np.full(estimate.std.shape, count)), TUNED_CLUSTERS
            return estimate.anytime_interval(level, tuning)
        return self.coef_estimate(penalised=not self.debiased).interval(level)

    def _tuning(self) -> Array:
        """Return the constants of confidence sequences, shape (d,); see `Estimate.anytime_interval`."""
        raise NotImplementedError


class Errors:
    """The standard errors of coefficients and intercept under one posterior of theta.

    Parameters
    ----------
    belief : StandardErrors
    posterior : Posterior
        With the penalty, or without.
    """

    def __init__(self, belief: StandardErrors, posterior: Posterior) -> None:
        self.belief, self.posterior, self.design = belief, posterior, belief.design
        self.contrasts = belief.contrasts(posterior)

    # ---- of coefficients and intercept -----------------------------------------------------------------

    def covariance(self) -> Array:
        """Return the covariance of the coefficients, shape (d, d) or (k, d, d)."""
        first, scale, K, sandwiched = self.design.first, self.design.scale, self.contrasts, self._sandwiched
        C = np.asarray(self.posterior.cov()) if sandwiched is None else sandwiched
        if K is not None and (m := self.design.outputs) is not None:
            C = K @ C @ K.T
            C = np.stack([C[c::m, c::m] for c in range(m)])  # of the coefficients of each output
        C = C[..., first:, first:]
        return C if scale is None else C / scale[:, None] / scale

    def coef_std(self) -> Array:
        """Return the standard errors of the coefficients, shape (d,) or (k, d)."""
        return np.sqrt(self._of_coef(self._variances(self.contrasts)))

    def coef(self) -> Estimate:
        """Return the coefficients, and what their intervals are computed from."""
        with np.errstate(divide="ignore"):
            precision = 1 / self._of_coef(self._unit_variances(self.contrasts))
        dof = self._dof()
        if self.belief.settings.coef_cov == "clustered":
            dof = self.design.by_output(dof)[..., self.design.first :]
        return Estimate(self.design.coef(self.design.per_target(self.posterior.mean)), self.coef_std(), dof, precision)

    def determined(self) -> Array:
        """Return whether the rows, and the penalty if there is one, determine each coefficient, shape (d,)."""
        found = np.isfinite(self._of_coef(self.posterior.factors[0].variances()))
        return found if found.ndim == 1 else found.all(axis=0)

    def intercept_std(self) -> Array:
        """Return the standard error of the intercept, shape () or (k,); zero without intercept."""
        if not self.design.intercept:
            return np.zeros_like(self.belief.intercept)
        return np.sqrt(self._of_intercept(self._variances(self._at_zero())))

    def intercept(self) -> tuple[Array, Array, Array]:
        """Return the intercept, its standard error and their degrees of freedom."""
        value = np.asarray(self.design.intercept_of(self.design.per_target(self.posterior.mean)))
        dof = self._dof(self._at_zero())
        return value, self.intercept_std(), dof if dof.ndim == value.ndim else self._of_intercept(dof)

    # ---- of parameters ---------------------------------------------------------------------------------

    @property
    def _noise_var(self) -> Array:
        return np.asarray(self.posterior.noise.variance)

    def _variances(self, K: Array | None) -> Array:
        """Return the variances of theta, or of its products with the rows of K, shape (q,) or (k, q)."""
        if (C := self._sandwiched) is not None:
            var = np.diagonal(C if K is None else K @ C @ K.T, axis1=-2, axis2=-1)
            return np.where(var >= 0, var, np.nan)  # where rounding left nothing
        return np.asarray(self.posterior.var()) if K is None else self._unit_variances(K) * self._noise_var[..., None]

    def _unit_variances(self, K: Array | None) -> Array:
        """Return the same of the model, in units of the noise variance."""
        factors = self.posterior.factors
        return self.posterior.per_target([one.variances() if K is None else one.leverage(K) for one in factors])

    def _of_coef(self, variances: Any) -> Array:
        """Return the variances of the coefficients for those of theta, shape (..., d)."""
        variances = self.design.by_output(np.asarray(variances))[..., self.design.first :]
        return variances if self.design.scale is None else variances / self.design.scale**2

    def _of_intercept(self, values: Array) -> Array:
        """Return the values of the intercept, which are those of one output, or of several."""
        return values if self.design.outputs is not None else values[..., 0]

    def _at_zero(self) -> Array:
        """Return the inputs whose output is the intercept, shape (1, p) or (m, p)."""
        without = replace(self.design, row_offsets=False)
        at_zero = without.rows(np.zeros((1, len(self.design.center))))  # type: ignore[arg-type]
        if (K := self.contrasts) is not None:
            at_zero = self.belief.model.linearize_rows(np.asarray(self.posterior.mean), at_zero)[1][0] @ K
        return at_zero

    @cached_property
    def _scores(self) -> Sandwich | None:
        """The scores of the rows in the coordinates of theta."""
        scores = self.belief.scores
        return None if scores is None else scores.in_design(self.design)

    @cached_property
    def _sandwiched(self) -> Array | None:
        """The robust or clustered covariance of theta, (p, p) or (k, p, p); None with coef_cov="model".

        The information of the prior and the penalty stands beside the scores of the rows: where these have the noise of
        the model the covariance is that of the posterior, and what the rows say nothing about is as unknown as before.
        NaN with fewer than two rows or clusters, see `StandardErrors.why_no_std`.
        """
        kind, sandwich, posterior = self.belief.settings.coef_cov, self._scores, self.posterior
        if kind == "model":
            return None
        unit = unit_covariance(posterior)
        if sandwich is None or sandwich.count < 2:
            return np.full(unit.shape, np.nan)
        M = sandwich.total
        infinite = np.isinf(unit)
        V = np.where(infinite, 0.0, unit)
        if sandwich.excess is not None:  # V^-1 is the information and the penalty
            V = np.linalg.solve(np.eye(len(V)) - V @ sandwich.excess, V)
        few = sandwich.count / (sandwich.count - 1) if kind == "clustered" else 1.0
        M = few * (M[0] if posterior.targets is None else M)
        before = posterior.per_target(known_before(posterior))  # which remains where rows say nothing
        M = M + np.where(before != 0, before * self._noise_var[..., None, None], 0.0)
        return np.where(infinite, unit, V @ M @ V)

    def _dof(self, K: Array | None = None) -> Array:
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
        posterior, scores = self.posterior, self._scores
        if self.belief.settings.coef_cov != "clustered":
            return np.asarray(posterior.noise.dof)
        unit = unit_covariance(posterior)
        V = np.where(np.isinf(unit), 0.0, unit)
        V = V if K is None else K @ V
        count = 0.0 if scores is None else scores.count
        found = np.full(V.shape[:-1], count - 1)
        if scores is None or not scores.groups or not _has_constant(self.belief) or count < 3:
            return found
        assert isinstance(posterior, InformationPosterior)
        assert self.belief.scores is not None
        ones = self.belief.scores.sums[:, :, 0]  # the sums of the input 1, which the design may be without
        m, n, s = (a[ones[:, -1] > 0] for a in (scores.sums[:, -1], ones[:, -1], ones[:, :-1]))
        variance, R = self._noise_var, np.asarray(posterior.data.compact()[0])
        M, rest, total = scores.M, scores.clusters, n.sum()
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


def known_before(posterior: Any) -> list[Array]:
    """Return the information of the prior and of the penalty at the estimate, in units of that of the noise."""
    R = None if posterior.prior is None else np.asarray(posterior.prior.R)
    before = 0.0 if R is None else R.T @ R
    mean = np.asarray(posterior.mean)
    found = []
    for k, g in enumerate(posterior.penalties):
        H = np.asarray(g.hessian(mean if mean.ndim == 1 else mean[:, k]))
        found.append(before + (np.diag(H) if H.ndim == 1 else H))
    return found


def unit_covariance(posterior: Posterior) -> Array:
    """Return the covariance of theta in units of the noise variance, (p, p) or (k, p, p)."""
    return np.asarray(posterior.per_target([factor.covariance() for factor in posterior.metric_factors]))


def hidden_clusters(belief: StandardErrors) -> float:
    """See `Sandwich.hidden`; 0 where it is not known."""
    return 0.0 if belief.scores is None or not _has_constant(belief) else belief.scores.hidden


def _has_constant(belief: StandardErrors) -> bool:
    """Whether the first input of the scores is 1, so that its sums are those of the rows."""
    return belief.scores_center is not None or (belief.design.intercept and belief.design.outputs is None)


def _unbounded(std: Array, dof: Any) -> dict[str, Any]:
    """Return std and dof with infinite std, so unbounded intervals, where the noise variance cannot be learned."""
    return {"std": np.where(np.isnan(std), np.inf, std), "dof": np.where(np.asarray(dof) > 0, dof, 1.0)}


def residual_scores(belief: StandardErrors, source: Source) -> Sandwich:
    """Return the scores of the rows of a source that a belief has learned. One pass.

    They come from the residuals at the estimate, which are smaller than innovations. Those of independent rows are
    divided by 1 - leverage, and the outer products of those of clusters multiplied by (rows - 1) / (rows - edf).
    Without a penalty the covariances are then those that statsmodels calls HC3 and cluster.
    """
    settings, posterior, center = belief.settings, belief.posterior, belief.scores_center
    assert isinstance(posterior, InformationPosterior)
    rows, theta = float(posterior.data.effective_rows), np.asarray(posterior.mean)
    dof = rows - np.asarray(posterior.edf)
    if (dof <= 0).any():  # every residual is zero, and the standard errors are unknown
        return Sandwich.zero(center, len(theta) if center is None else len(center) + 1, posterior.targets)
    robust, kind = settings.coef_cov == "robust", (settings.weight_kind, settings.class_weights)
    V, factor = (unit_covariance(posterior), np.ones(())) if robust else (None, np.sqrt((rows - 1) / dof))
    about = belief.model, posterior.likelihood, theta, belief.design, center, V, factor, *kind
    sandwich = source.fold(partial(scores_at, *about)).total
    assert sandwich is not None
    return sandwich
