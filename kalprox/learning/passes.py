"""A fit of a model whose rows are linearised, in several passes over them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kalprox.algorithms.proximal_filter import proximal_filter
from kalprox.algorithms.refine import refine
from kalprox.algorithms.state import ProximalState, learned_by, skew_of
from kalprox.base.arrays import Array
from kalprox.learning.design import Design
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import check_any_row
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import coef_regularizer, first_theta, sums_to_zero
from kalprox.posterior import InformationPosterior
from kalprox.sources import Counts, Source
from kalprox.sources.base import MappedSource
from kalprox.sources.weighting import in_order

_SMALL = 0.01  # the share of events by which the skewness of the posterior may change their expected number unheeded


def fitted_in_passes(
    settings: Settings, source: Source, start: Callable[[Design], Array] | None = None
) -> tuple[ProximalState, Design, dict[str, Any], Counts]:
    """Refine to a stationary point of the objective, after one pass for the means of X.

    The search begins at the parameters that `start` returns for a design, if given. Returned are also fields of
    `Linearised`, by their names, and the counts of the rows.
    """
    time = None
    if settings.by_time and hasattr(source, "faded"):
        time = float(in_order(source.times, None, source.weights)[-1])  # type: ignore[attr-defined]
    source = faded_source(settings, source)
    folded = source.fold(partial(Seen.of, settings))
    check_any_row(folded.counts)
    assert folded.total is not None
    check_targets(settings, folded.total.y, folded.total.y, source)
    design = Design()
    if settings.function is None:
        about: dict[str, Any] = {"intercept": settings.fit_intercept, "standardize": settings.standardize}
        about |= {"outputs": folded.total.y.outputs, "row_offsets": folded.total.offsets > 0}
        design = Design.of_moments(folded.total.X, **about)
    g = coef_regularizer(settings, design)
    first = first_theta(settings, design) if start is None else start(design)
    options: dict[str, Any] = {"gamma": settings.gamma, "max_passes": settings.max_passes, "tol": settings.tol}
    options |= {"weight_kind": settings.weight_kind, "likelihood": settings.likelihood}
    prior = sums_to_zero(settings, design, folded.total.X)
    model, rows = design.model(settings.model(design.outputs)), MappedSource(source, design.block)
    out = refine(model, g, rows, first, prior=prior, **options)
    state = filter_of(settings, design).init(out.mean, None)
    state = replace(state, data=out.information, estimate=out.mean, held=None, prior=prior or state.prior)
    state = replace(state, learned=learned_by(out), time=time)
    if out.converged and _has_few_events(state.posterior, design):
        state = replace(state, skew=skew_of(model, state.posterior, rows))
    message = out.message
    if not out.converged and settings.likelihood.outcomes == "counts" and not folded.total.y.high > 0:
        message = (
            "All counts are zero: the intercept runs to minus infinity, and the standard errors say nothing. Fit "
            "rows with events in them."
        )
    X = folded.total.X
    std = np.sqrt(X.squares / X.rows) if settings.function is None else None
    fields = {"n_passes": out.passes, "fit_converged": out.converged, "fit_message": message}
    fields |= {"fit_column_std": std, "fit_outside": folded.total.y.outside}
    return state, design, fields, folded.counts


def _has_few_events(posterior: InformationPosterior, design: Design) -> bool:
    """Whether there are so few events for each coefficient that the skewness of the posterior matters.

    It changes the sum of the probabilities of a class, or of counts, by at most half the number of coefficients. The
    information about an intercept is the number of events, less what is certain.
    """
    events = (np.asarray(posterior.data.R)[:, : design.outputs or 1] ** 2).sum(axis=0).min()
    return not design.intercept or bool(design.size / 2 > _SMALL * events)


def filter_of(settings: Settings, design: Design, **options: Any) -> Any:
    """Return the proximal filter in the coordinates of a design."""
    g = coef_regularizer(settings, design)
    options |= {"gamma": settings.gamma, "forget": forget_of(settings), "weight_kind": settings.weight_kind}
    model = design.model(settings.model(design.outputs))
    return proximal_filter(model, g, likelihood=settings.likelihood, **options)


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


def forget_of(settings: Settings) -> Any:
    """Return what the proximal filter takes as its forgetting."""
    return settings.forgetting if settings.by_time else settings.forgetting.per_row
