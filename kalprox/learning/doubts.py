"""What is doubtful about an estimate and its intervals: a penalty that is too strong, and merges of streams."""

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.learning.errors import StandardErrors, hidden_clusters
from kalprox.learning.gaps import Gaps
from kalprox.learning.settings import Settings
from kalprox.posterior import InformationPosterior

__all__ = [
    "ApproximateMerge",
    "PenaltyTooStrong",
    "doubt_of_clusters",
    "doubt_of_errors",
    "doubt_of_merge",
    "doubt_of_penalty",
    "doubt_of_weights",
    "equal_clusters",
    "pull_of_penalty",
]

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
