"""The ridge penalty of classes and counts by the evidence of their Laplace approximation."""

from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.information import Information
from kalprox.learning.alpha_family import AlphaFamily, best_on_grid
from kalprox.learning.refined_path import log_likelihood
from kalprox.learning.settings import Settings
from kalprox.linalg.triangle import qr
from kalprox.noise import ridge_log_evidence
from kalprox.sources import Counts, Source

__all__ = ["fit_with_chosen_alpha"]

_MOST_FITS = 20  # to find where the search begins; 3 to 6 are usual
_NEAR, _STEP = 0.3, 0.7  # of log(alpha): how well that need be known, and from one alpha of the search to the next
_FLAT = 0.01  # a step that improves the log evidence by less is one towards a limit


def fit_with_chosen_alpha(fit: Any, settings: Settings, source: Source, start: Any = None) -> tuple[Any, Counts]:
    """Return the state of the alpha of the largest evidence, under settings that have it, and the counts of rows.

    The search begins near the alpha of the largest evidence of the linear model that the rows are at the estimate. It
    goes on where the evidence of the Laplace approximation, whose curvature changes with alpha too, becomes larger: to
    a smaller alpha as a rule, because large probabilities leave little curvature. It ends where the evidence changes no
    more, if that is in the limit of a large alpha. Where columns separate the classes, the evidence grows without end
    as alpha becomes small: a weak prior multiplies it, 1 / sqrt(1 + the variance of the linear predictor then).

    Parameters
    ----------
    fit : function
        Returns the state and the counts of rows for settings, a source and a state to start from.
    settings : Settings
        With alpha="auto", and ridge as the penalty.
    source : Source
    start : State, optional
        Where the search for the coefficients begins.
    """
    passes, counts = 0, Counts()

    def fitted(alpha: float) -> Any:
        nonlocal start, passes, counts
        start, counts = fit(settings.with_alpha(alpha), source, start)
        passes += start.n_passes
        return start

    def evidence(alpha: float) -> float:
        state = fitted(alpha)
        return _log_evidence(state.belief, alpha, state.faded(source))

    alpha = 1.0
    for _ in range(_MOST_FITS):
        last, alpha = alpha, _linear_alpha(fitted(alpha).belief)
        if abs(log(alpha / last)) <= _NEAR:
            break
    ratio = exp(-_STEP)
    grid, found = [alpha, alpha * ratio], [evidence(alpha), evidence(alpha * ratio)]
    if found[1] < found[0]:  # the search goes towards larger alphas
        ratio = 1 / ratio
        grid, found = grid[::-1], found[::-1]
    while found[-1] > found[-2] + _FLAT:
        grid.append(grid[-1] * ratio)
        found.append(evidence(grid[-1]))
    best = fitted(best_on_grid(np.array(grid), -np.array(found)))
    return replace(best, n_passes=passes), counts


def _projected(belief: Any) -> tuple[Array, Array, Array]:
    """Return the triangle of the intercepts, and the equations of the coefficients after these are minimised out."""
    data, design = belief.posterior.data, belief.design
    first = design.first * (design.outputs or 1)
    R, z = qr(data.R, data.z)
    return R[:first, :first], R[first:, first:], z[first:]


def _log_evidence(belief: Any, alpha: float, source: Source) -> float:
    """Return the log evidence of the Laplace approximation and the prior, up to a constant. One pass over the rows."""
    posterior, (own, R, _) = belief.posterior, _projected(belief)
    size = np.abs(own.diagonal())
    free = np.log(size[size > 1e-8 * size.max(initial=0.0)]).sum()  # intercepts of classes have one direction too many
    s = np.linalg.svd(R, compute_uv=False)
    none = np.zeros((len(s), 1))
    volume = ridge_log_evidence(s, none, np.zeros(1), 0.0, alpha, 1.0)[0] - free
    cost = float(posterior.regularizer.value(posterior.mean)) / float(posterior.data.fading)
    signal = float(((belief.fit_column_std / belief.design.scale) ** 2).sum()) / alpha
    with np.errstate(divide="ignore"):  # a probability that is 1 to the last digit
        return float(log_likelihood(belief, source) - cost + volume - np.log1p(signal) / 2)


def _linear_alpha(belief: Any) -> float:
    """Return the alpha of the largest evidence of the linear model that the rows are at an estimate."""
    data, (_, R, z) = belief.posterior.data, _projected(belief)
    p = len(R)
    T = np.zeros((1 + p, 2 + p))
    T[0, 0], T[1:, 1:-1], T[1:, -1] = float(data.rows) ** 0.5, R, z
    linear = Settings.of(penalty="ridge", alpha="auto", noise=1.0, fit_intercept=False)
    information = Information(T, np.zeros(1 + p), data.rows, data.squares)
    return AlphaFamily.of(linear, information).choices[0].alpha
