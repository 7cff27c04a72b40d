"""Beliefs: what the rows learned so far say about a model, its parameters and its predictions."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.base.tree import PickledFields, leaf, state
from kalprox.learning.errors import StandardErrors, hidden_clusters
from kalprox.learning.gaps import Gaps
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.noise import Noise
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive

_PULL = 0.65  # standard errors of bias with which a 95% interval covers 90%
_HIDDEN = 0.4  # the share of clusters' common noise that a stream hides, above which intervals covered less than 90%
_FEW_CLUSTERS = 3.5  # as many equal clusters, below which the intervals of a stream covered less than 90%
_CONTRADICTION = 1e-3  # the probability, under the prior that a penalty is, of coefficients that contradict it


class PenaltyTooStrong(RuntimeWarning):
    """The penalty has moved the coefficients so far that their intervals cover less than they say."""


class ApproximateMerge(RuntimeWarning):
    """Two models were merged whose rows had been linearised at different estimates."""


def doubt_of_weights(settings: Settings) -> str:
    """Say that the weights of rows are taken for repetitions, where there are no robust errors; else empty."""
    if settings.coef_cov != "model" or settings.parameters["coef_cov"] != "auto" or not settings.weighs_scores:
        return ""
    without = "{structure=None}" if settings.structure is not None else "a {forget} other than 'auto'"
    return worded(
        "The standard errors take the weights of rows ({class_weight, or |}{weight_kind='precision'}) for repetitions, "
        f"and are too small where these are above 1: robust ones, which do not, need {without}. Set "
        "{coef_cov='model'} if repetitions are meant."
    )


def doubt_of_errors(belief: StandardErrors, gaps: Gaps, rows: int) -> str:
    """Say why standard errors of coefficients may be too small; empty if nothing is known of it."""
    return doubt_of_weights(belief.settings) or belief.std_doubt or gaps.std_doubt(rows)


def equal_clusters(belief: StandardErrors) -> float:
    """Return the number of equal clusters that say as much about a coefficient, the one of which they say least."""
    return float(np.min(belief.coef_estimate(penalised=not belief.debiased).dof, initial=np.inf)) + 1


def doubt_of_clusters(belief: StandardErrors) -> str:
    """Say why intervals from clustered standard errors may cover less than they say; empty if that is not known."""
    if belief.settings.coef_cov != "clustered":
        return ""
    worth, hidden = equal_clusters(belief), hidden_clusters(belief)
    if belief.sandwich is not None and worth < min(_FEW_CLUSTERS, belief.sandwich.count / 2):
        return (
            f"The clusters are worth {worth:.2g} equal ones for one coefficient, because a few of them decide most of "
            "it: its interval rests on little, and that of a stream covers less than it says. Divide the large "
            "clusters, if their parts are independent, or fit all rows at once."
        )
    if hidden > _HIDDEN and not belief.why_no_std:
        return (
            f"About {hidden:.0%} of what the rows of a cluster have in common is in batches that had more rows than "
            "all before them, whose errors hide it: standard errors are too small, and a 95% interval may cover less "
            "than 90%. Divide the large batches, if their parts are independent, or fit all rows at once, with "
            "clusters."
        )
    return ""


def doubt_of_merge(distance: float) -> str:
    """Say how many standard errors merges have left the estimate from the minimiser, and what makes it exact."""
    return worded(
        "The merge is approximate: the models linearised their rows at different estimates, and the merged estimate "
        f"is about {_rounded(distance)} standard errors from that of all rows. Errors that streams had before the "
        "merge come on top of it: below a tenth each for shuffled rows, and more for sorted ones. {Call refine|Run "
        "kalprox refine} with all rows to make it exact."
    )


def doubt_of_penalty(belief: StandardErrors) -> str:
    """Say that the penalty has moved the intervals of the coefficients off the truth; empty if it has not.

    A smooth penalty is a prior, g / noise variance = -log density. It is doubted if the coefficients found
    contradict it, and it moved one of them so far that its 95% interval covers less than 90%.

    What contradicts it is 2 g / noise variance, which under the prior is about a sum of f chi2(1) over the shares f
    of the data in each direction, the eigenvalues of V R'R. So coefficients that the penalty shrank to nearly
    nothing contradict it as those do that it hardly moved. The sum is compared with a scaled chi-square variable of
    the same mean and variance.

    An alpha that was chosen makes the prior as wide as the coefficients are on average, which contradicts no sum of
    them. What it may get wrong is the largest one, of which it knows no more than of the others.
    """
    posterior = belief.posterior
    if belief.debiased or not isinstance(posterior, InformationPosterior):
        return ""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if belief.settings.chooses_alpha:
            return _doubt_of_shrinkage(belief)
        if not np.any(_contradictions(belief, posterior) < _CONTRADICTION):
            return ""
        penalised = belief.coef_estimate(penalised=True)
        pull = np.abs(belief.coef_estimate(penalised=False).value - penalised.value) / penalised.std
        farthest = float(np.max(np.where(np.isfinite(pull), pull, 0.0), initial=0.0))
        if not farthest > _PULL:
            return ""
    return worded(
        f"The penalty moves a coefficient by {_rounded(farthest)} standard errors, and the coefficients are larger "
        "than it expects with this little noise: the intervals cover less than they say. Use {penalty=None}, a "
        "smaller alpha, or {standardize=True} if the columns differ in scale."
    )


def pull_of_penalty(belief: StandardErrors) -> float:
    """Return the estimate times the gradient of the penalty there: how much the penalty holds it back."""
    g = belief.design.regularizer(belief.settings.penalty.regularizer(belief.settings.alpha))
    theta = np.asarray(belief.posterior.mean)
    return float(theta @ np.asarray(g.grad(theta)))


def _doubt_of_shrinkage(belief: StandardErrors) -> str:
    """Return `doubt_of_penalty` for an alpha that was chosen."""
    penalised, free = belief.coef_estimate(penalised=True), belief.coef_estimate(penalised=False)
    pull = np.where(np.isinf(free.std), np.inf, np.abs(free.value - penalised.value) / penalised.std)
    scale = 1.0 if belief.design.scale is None else belief.design.scale
    pull, largest = np.atleast_2d(pull), np.abs(np.atleast_2d(penalised.value * scale)).argmax(axis=1)
    farthest = float(np.max(pull[np.arange(len(pull)), largest]))
    if not farthest > _PULL:
        return ""
    moved = f"The penalty moves the largest coefficient by {_rounded(farthest)} standard errors"
    if not np.isfinite(farthest):
        moved = "The rows alone do not determine the largest coefficient"
    return worded(
        f"{moved}. With {{alpha='auto'}} intervals cover on average over the coefficients, and that of a coefficient "
        "which is much larger than the others covers less than it says. For an interval of one coefficient use "
        "{penalty=None}."
    )


def _contradictions(belief: StandardErrors, posterior: InformationPosterior) -> Array:
    """Return the probability, if the penalty is the prior, of a penalty as large as was found, for each target."""
    mean = np.asarray(posterior.mean)
    first = belief.design.first * max((belief.design.outputs or 2) - 1, 1)  # the directions that are not penalised
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


def _rounded(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


class Facts(NamedTuple):
    """What a belief knows besides its estimate.

    Attributes
    ----------
    alpha : float, or array of shape (k,)
        The weight of the penalty, as given or chosen; one for each target if it was chosen for several.
    alpha_limit : float or None
        0 or infinity, if alpha="auto" found that the smaller, or the larger, alpha is the better.
    column_std : array of shape (d,) or None
        The standard deviation of each column of X over the rows learned; None if it is not known.
    targets_outside : float
        The number of targets learned that lie outside the range of the link.
    n_outliers : float or None
        The number of rows flagged as outliers, each before it was learned; None if the likelihood is not robust.
    """

    alpha: Any
    alpha_limit: float | None = None
    column_std: Array | None = None
    targets_outside: float = 0.0
    n_outliers: float | None = None


@state
class Belief(PickledFields, StandardErrors):
    """The estimate after some rows, how sure it is, and predictions. It does not change; what is computed is cached.

    Attributes
    ----------
    settings : Settings
    sandwich : Sandwich or None
        The sums for robust or clustered standard errors, if the settings ask for them.
    input_noise : InputNoise or None
        How the variance of the noise depends on the inputs, if the settings ask for it.
    time : float or None
        The time of the last row, if rows are forgotten by time.
    n_passes : int
        The number of passes over the rows.
    fit_message : str
        Why the fit did not reach the minimiser; empty if it did.
    merge_distance : float
        About how many standard errors merges have left the estimate from the minimiser; 0 if they were exact.
    """

    input_noise: InputNoise | None = leaf(default=None, kw_only=True)
    time: float | None = leaf(default=None, kw_only=True)
    n_passes: int = leaf(default=1, kw_only=True)
    fit_message: str = leaf(default="", kw_only=True)
    merge_distance: float = leaf(default=0.0, kw_only=True)

    @property
    def converged(self) -> bool:
        """Whether the estimate is the minimiser."""
        return True

    @property
    def message(self) -> str:
        """Why the estimate is not the minimiser; empty if it is."""
        return self.fit_message

    @property
    def predicts(self) -> bool:
        """Whether its predictions can be scored: False before the first row and during a warm-up."""
        return True

    @property
    def effective_rows(self) -> float:
        """The number of rows of equal weight that are worth as much as those that forgetting has left."""
        raise NotImplementedError

    @cached_property
    def facts(self) -> Facts:
        """What is known besides the estimate."""
        return Facts(self.settings.alpha)

    @property
    def noise(self) -> Noise:
        """The noise variance used in predictions, and its degrees of freedom."""
        return self.posterior.noise

    @property
    def effects(self) -> Array:
        """The size of the effect of each column: |coefficient| times the standard deviation of the column, like `coef`.

        It is the change of the prediction (for a nonlinear link: of the linear predictor) when the column increases by
        one standard deviation. Where the standard deviations are not known, it is |coefficient|.
        """
        std = self.facts.column_std
        return np.abs(self.coef) * (1.0 if std is None else std)

    @cached_property
    def interval_doubt(self) -> str:
        """Says that the penalty has moved the intervals of the coefficients off the truth; empty if it has not."""
        return doubt_of_penalty(self)

    # ---- predictions -----------------------------------------------------------------------------------

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
        return self.value(X, offset)[0]

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
        return self.settings.likelihood.probability_std(f, self._output_variance(f, D, left_open))

    def _output_variance(self, f: Array, D: Array, left_open: Array | None) -> Array:
        variance = self.posterior.output_variance(f, D)
        return variance if left_open is None else variance + left_open

    def value(self, X: Array, offset: Array | None = None) -> tuple[Array, Array]:
        """Return the output of the model for rows of X at the estimate, and its Jacobian."""
        return self._value(self.design.rows(X, offset))

    def _value(self, inputs: Array) -> tuple[Array, Array]:
        f, D = self.model.linearize_rows(np.asarray(self.posterior.mean), inputs)
        return (f + self.design.offset_rest) + self.design.offset, D

    def _expected(self, X: Array, offset: Array | None) -> tuple[Array, Array]:
        """Return the output of the model at the mean of the posterior, over which predictions average; its Jacobian."""
        (f, D), posterior = self.value(X, offset), self.posterior
        return (f if posterior.expected is posterior.mean else f + D @ (posterior.expected - posterior.mean)), D

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draw n times from the posterior: coef (n, d) or (n, k, d), and intercept (n,) or (n, k)."""
        draws, K = self.posterior.sample(n, rng), self.contrasts(self.posterior)
        draws = draws if K is None else self.design.by_output(draws @ K.T)
        return self.design.coef(draws), np.asarray(self.design.intercept_of(draws))

    # ---- of some models only ---------------------------------------------------------------------------

    def minimax(self, X: Array) -> Array:
        """Return the predictions of the Vovk-Azoury-Warmuth forecaster for rows of X, shape (n,) or (n, k)."""
        raise NotImplementedError

    @property
    def log_evidence(self) -> Array:
        """The log evidence log p(y) with the penalty as the prior, shape () or (k,)."""
        check(self.settings, way="evidence")
        raise NotImplementedError
