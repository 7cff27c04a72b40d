"""Models that one pass does not solve: a fit in several passes, their path along alpha, and the chosen alpha."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import exp, log
from typing import Any, NamedTuple

import numpy as np

from kalprox.algorithms.base import Problem
from kalprox.algorithms.refine import Refined, refine
from kalprox.algorithms.state import ProximalState, learned_by, skew_of
from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.information import Information
from kalprox.learning.belief import Belief
from kalprox.learning.design import Design
from kalprox.learning.linear import AlphaFamily, best_on_grid
from kalprox.learning.path import Path
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import Core, check_any_row
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import first_theta, problem_of, sums_to_zero
from kalprox.likelihoods import Likelihood
from kalprox.linalg.triangle import qr
from kalprox.noise import Noise, gaussian_log_likelihood, ridge_log_evidence
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Box
from kalprox.sources import ArraySource, Block, Counts, Source
from kalprox.sources.base import MappedSource
from kalprox.sources.weighting import in_order

_SMALL = 0.01  # the share of events by which the skewness of the posterior may change their expected number unheeded


class Refinement(NamedTuple):
    """The refinement of all rows of a source, and what it was given."""

    out: Refined
    problem: Problem
    rows: Source  # with the inputs of the model
    prior: Information | None
    design: Design
    seen: Seen
    counts: Counts
    column_std: Array | None  # of X; None for a function


def refined(settings: Settings, source: Source, start: Callable[[Design], Array] | None = None) -> Refinement:
    """Refine to a stationary point of the objective, after one pass for the means of X.

    The search begins at the parameters that `start` returns for a design, if given. Sparse rows, which only a structure
    keeps as they are, are not centred.
    """
    folded = source.fold(partial(Seen.of, settings))
    check_any_row(folded.counts)
    assert folded.total is not None
    seen, design, std = folded.total, Design(), None
    check_targets(settings, seen.y, seen.y, source)
    sparse = isinstance(source, ArraySource) and source.keep_sparse
    if settings.function is None:
        about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": settings.standardize}
        about |= {"outputs": seen.y.outputs, "row_offsets": seen.offsets > 0, "centred": not sparse}
        design, std = Design.of_moments(seen.X, **about), np.sqrt(seen.X.squares / seen.X.rows)
    rows: Source = MappedSource(source, design.block)
    if isinstance(source, ArraySource) and sparse:  # whose inputs are made once, and not in every pass
        of_rows = {name: getattr(source.rows, name) for name in ("counts", "squares", "groups", "times", "noise")}
        X = design.rows(source.X, source.offset)
        rows = ArraySource(X, source.y, source.weights, keep_sparse=True, **of_rows)
    first = first_theta(settings, design) if start is None else start(design)
    problem = problem_of(settings, design)
    prior = sums_to_zero(settings, design, seen.X) if settings.structure is None else None  # a matrix, if there is one
    names = ("gamma", "likelihood", "structure", "weight_kind", "max_passes", "tol")
    options: dict[str, Any] = {name: getattr(settings, name) for name in names}
    out = refine(problem.model, problem.regularizer, rows, first, prior=prior, **options)
    return Refinement(out, problem, rows, prior, design, seen, folded.counts, std)


def fitted_in_passes(
    kind: Any, settings: Settings, source: Source, start: Callable[[Design], Array] | None = None
) -> tuple[Any, Counts]:
    """Return what `refined` finds as a state of the `kind` that is given, `Linearised`, and the counts of the rows."""
    time = None
    if settings.by_time and hasattr(source, "faded"):
        time = float(in_order(source.times, None, source.weights)[-1])  # type: ignore[attr-defined]
    source = faded_source(settings, source)
    found = refined(settings, source, start)
    design, out, prior = found.design, found.out, found.prior
    state = ProximalState._start(found.problem, out.mean)
    state = replace(state, data=out.information, held=None, prior=prior or state.prior)
    state = replace(state, learned=learned_by(out), time=time)
    if out.converged and _has_few_events(state.posterior, design):
        state = replace(state, skew=skew_of(found.problem.model, state.posterior, found.rows))
    message = out.message
    if not out.converged and settings.likelihood.outcomes == "counts" and not found.seen.y.high > 0:
        message = (
            "All counts are zero: the intercept runs to minus infinity, and the standard errors say nothing. Fit "
            "rows with events in them."
        )
    about = {"n_passes": out.passes, "fit_converged": out.converged, "fit_message": message}
    about |= {"fit_column_std": found.column_std, "fit_outside": found.seen.y.outside}
    return kind(settings, state, design, **about), found.counts


def _has_few_events(posterior: InformationPosterior, design: Design) -> bool:
    """Whether there are so few events for each coefficient that the skewness of the posterior matters.

    It changes the sum of the probabilities of a class, or of counts, by at most half the number of coefficients. The
    information about an intercept is the number of events, less what is certain.
    """
    events = (np.asarray(posterior.data.R)[:, : design.outputs or 1] ** 2).sum(axis=0).min()
    return not design.intercept or bool(design.size / 2 > _SMALL * events)


def faded_source(settings: Settings, source: Source) -> Source:
    """Return the rows of a source with the weights that forgetting leaves them."""
    if settings.forgets:
        rows: Any = source
        if not hasattr(rows, "faded"):
            check(settings, way="no order")
        faded: Source = rows.faded(settings.forgetting, settings.weight_kind)
        return faded
    if getattr(source, "times", None) is not None:
        check(settings, way="times")
    return source


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
