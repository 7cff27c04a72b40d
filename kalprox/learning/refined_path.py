"""The path of a model that one pass does not solve: passes over the rows for each alpha, from its neighbour's estimate.

The information of such a model is that of its loss linearised at the estimate of one alpha. It says little about the
minimiser for another alpha, so that the rows are needed again.
"""

from functools import partial

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.learning.belief import Belief
from kalprox.learning.path import Path
from kalprox.learning.settings import Settings
from kalprox.learning.state import Core
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise, gaussian_log_likelihood
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Box
from kalprox.sources import Block, Source

__all__ = ["log_likelihood", "refined_path"]

_NOT_OF_THE_PATH = {"coef_cov": "model", "diagnose": False, "change_points": False, "missing": "raise"}


def refined_path(state: Core, source: Source, weighted: Source, alphas: Array | None) -> Path:
    """Return the minimiser for each alpha, each refined to convergence over the rows of a source.

    The problems are solved from the largest alpha down, each from the estimate of the one before.

    Parameters
    ----------
    state : Core
        That of a fitted model, from whose estimate the first search begins.
    source : Source
        The rows that it was fitted to.
    weighted : Source
        The same rows, with the weights that forgetting leaves them.
    alphas : array of shape (m,), optional
        The default is a grid in the scale of the data.

    Returns
    -------
    Path
        Its score is -BIC/2.
    """
    settings = state.settings
    alphas = _grid(state, source) if alphas is None else np.asarray(alphas, float)
    check_positive("alphas", alphas, strict=False)
    found: dict[int, tuple[Array, Array, float, float]] = {}
    converged, last = np.zeros(len(alphas), bool), state
    for i in np.argsort(-alphas, kind="stable").tolist():
        last = type(state).fit(_with(settings, alpha=float(alphas[i])), source, start=last)[0]  # type: ignore[call-arg]
        belief = last.belief
        converged[i] = belief.converged
        free = belief.design.first * max((belief.design.outputs or 2) - 1, 1)  # intercepts of classes add up to zero
        assert isinstance(belief.posterior, InformationPosterior)
        edf = float(belief.posterior.edf) - free
        score = log_likelihood(belief, weighted) - edf / 2 * np.log(belief.effective_rows)
        found[i] = belief.coef, belief.intercept, edf, score
    columns = zip(*(found[i] for i in range(len(alphas))), strict=True)
    path = Path(alphas, *(np.stack(column) for column in columns))
    facts = state.belief.facts
    return path.about(alpha=float(facts.alpha), criterion="-BIC/2", column_std=facts.column_std, converged=converged)


def _with(settings: Settings, **changes: object) -> Settings:
    return Settings.of(**{**settings.parameters, **_NOT_OF_THE_PATH, **changes})


def _grid(state: Core, source: Source) -> Array:
    """Return a descending grid of alphas, from the slopes and curvatures of the loss where coefficients are zero."""
    settings = state.settings
    if settings.function is not None:
        raise ValueError("path needs alphas if link is a function: where its parameters are zero says little about it.")
    fitted, _ = type(state).fit(_with(settings, penalty=Box(0.0, 0.0), alpha=1.0), source)
    null = fitted.belief
    posterior = null.posterior
    assert isinstance(posterior, InformationPosterior)
    first = null.design.first * (null.design.outputs or 1)
    R, z = np.asarray(posterior.data.R), np.asarray(posterior.data.z)
    slopes, sizes = (R.T @ (z - R @ posterior.mean))[first:], np.linalg.norm(R, axis=0)[first:]
    slopes = np.where(sizes > 0, slopes / np.where(sizes > 0, sizes, 1.0), 0.0)
    return settings.penalty.alphas(np.diag(sizes), slopes[:, None])


def log_likelihood(belief: Belief, source: Source) -> float:
    """Return the log likelihood of the rows at the estimate, up to what does not depend on alpha. One pass."""
    posterior, settings = belief.posterior, belief.settings
    assert isinstance(posterior, InformationPosterior)
    likelihood, rows = posterior.likelihood, belief.effective_rows
    if likelihood.quadratic:
        rss = posterior.rss / float(posterior.data.fading)
        return float(gaussian_log_likelihood(rss, rows, settings.noise_var))
    total = source.fold(partial(_block_log_likelihood, belief, likelihood, posterior.noise)).total
    return float(total or 0.0) / float(posterior.data.fading)


def _block_log_likelihood(belief: Belief, likelihood: Likelihood, noise: Noise, block: Block) -> float:
    f = belief.output(block.X, block.offset)
    if likelihood.majorizes:  # whose predictive distribution is that of good rows
        scale = likelihood.scale  # type: ignore[attr-defined]
        logs = -likelihood.loss(block.y, f) / scale**2 - np.log(scale)
    else:
        none = np.zeros(f.shape if f.ndim == 1 else (*f.shape, f.shape[1]))
        logs = likelihood.predict(f, none, noise).log_prob(block.y)
    return float(logs.sum() if block.weights is None else block.weights @ logs)
