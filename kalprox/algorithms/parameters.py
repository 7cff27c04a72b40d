"""The parameter of a likelihood in a stream, such as the scale of good rows: learned from the errors of predictions."""

import warnings
from collections.abc import Callable

import numpy as np

from kalprox.algorithms.refine import Refined
from kalprox.base.arrays import Array, is_traced, namespace
from kalprox.information.linearized import Expansion, Spread, errors_of, expand, sums_of
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.base import Learned
from kalprox.models import Model
from kalprox.sources import Block

__all__ = [
    "first_numbers",
    "guessed_numbers",
    "learned_by",
    "next_numbers",
    "outliers_of",
    "parameter_matters",
    "warn_of_outliers",
]

_GUESSED = 10.0  # the weight of a guess, in rows
_MANY = 100  # rows, before which a share of outliers says little
_REJECTED = 0.4  # the share of rows flagged as outliers from which on the estimate is rather wrong than the rows


def first_numbers(model: Model, given: Likelihood, theta: Array, block: Block) -> Learned:
    """Return a guess of the parameter from the errors of a first block at theta, where there is no warm-up."""
    return guessed_numbers(given, lambda likelihood: errors_of(model, likelihood, theta, block))


def guessed_numbers(given: Likelihood, sums_at: Callable[[Likelihood], Array]) -> Learned:
    """Return a guess of the parameter, given the sums over some rows that a likelihood learns from."""
    likelihood = given
    if getattr(given, str(given.parameter)) is None:
        likelihood = given.learned(given, sums_at(given))
    sums = 0 * sums_at(likelihood)
    known = namespace(sums).asarray([0.0, _GUESSED] + [0.0] * (len(sums) - 2), sums.dtype)
    return Learned(likelihood.with_model_numbers().numbers, known)


def next_numbers(
    learned: Learned,
    given: Likelihood,
    at: Expansion,
    block: Block,
    covariance: Array | Spread | None,
    left: Array | None,
    *,
    held: bool = False,
) -> Learned:
    """Return what is known after a block that was expanded at the belief before it, with this covariance of theta.

    `left` is the share of earlier rows that forgetting has left. Warn when more than 40% of the rows have become
    outliers, unless the rows are `held` and will be refined again.
    """
    found = learned.plus(given, sums_of(learned.likelihood(given), at, block, covariance), left)
    if not held and not is_traced(found):
        warn_of_outliers(given, learned, found)
    return found


def outliers_of(given: Likelihood, learned: Learned | None) -> float | None:
    """Return the number of rows that were outliers for a robust likelihood; None if the likelihood is not robust."""
    if not given.majorizes:
        return None
    return 0.0 if learned is None else float(learned.sums[-2])


def warn_of_outliers(given: Likelihood, before: Learned, now: Learned) -> None:
    """Warn if more than 40% of the rows have become outliers."""
    if not given.majorizes:
        return
    earlier, share = (float(sums[-2] / max(sums[-1], _MANY)) for sums in (before.sums, now.sums))
    if earlier <= _REJECTED < share:
        warnings.warn(
            f"{share:.0%} of the rows so far are outliers for the estimate. Either most of the first rows were "
            "outliers, or the coefficients have changed since: use refine, or fit, on all rows, or forget < 1.",
            RuntimeWarning,
            stacklevel=6,
        )


def parameter_matters(model: Model, given: Likelihood, fit: Refined, rows: Block) -> float:
    """Return by how much the information of the rows of a refinement depends on what is not known of the parameter.

    It is the share by which the curvature of their losses changes within a standard deviation of the parameter. Rows
    that hardly depend on it leave it unknown without harm; the first rows of counts may all be zeros, which go with any
    dispersion, and have hardly any curvature with a large one. It is 0 if no parameter is learned, and for the scale of
    a robust loss, which says how sure the estimate is and hardly what it is.
    """
    if not given.learns or given.majorizes or fit.sums is None:
        return 0.0
    numbers = fit.likelihood.numbers
    with np.errstate(divide="ignore"):
        error = 1 / np.sqrt(fit.sums[1])  # of the log of the parameter
    low, high = (given.with_numbers(np.clip(numbers * (1 + side * error), *given.bounds)) for side in (-1, 1))
    expanded = (expand(model, likelihood, fit.mean, rows) for likelihood in (low, fit.likelihood, high))
    less, here, more = (float(np.sum(np.asarray(at.weights))) for at in expanded)
    return max(abs(less - here), abs(more - here)) / here


def learned_by(fit: Refined) -> Learned | None:
    """Return what a refinement has learned; None if the likelihood has no parameter."""
    return None if fit.sums is None else Learned(fit.likelihood.numbers, fit.sums)
