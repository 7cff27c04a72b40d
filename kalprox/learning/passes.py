"""A fit of a model whose rows are linearised, in several passes over them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kalprox.algorithms.proximal_filter import proximal_filter
from kalprox.algorithms.refine import Refined, refine
from kalprox.algorithms.state import ProximalState, learned_by, skew_of
from kalprox.base.arrays import Array
from kalprox.information import Information
from kalprox.learning.design import Design
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import check_any_row
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import coef_regularizer, first_theta, sums_to_zero
from kalprox.models import Model
from kalprox.posterior import InformationPosterior
from kalprox.sources import ArraySource, Counts, Source
from kalprox.sources.base import MappedSource
from kalprox.sources.weighting import in_order

_SMALL = 0.01  # the share of events by which the skewness of the posterior may change their expected number unheeded


class Refinement(NamedTuple):
    """The refinement of all rows of a source, and what it was given."""

    out: Refined
    model: Model
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
    model = design.model(settings.model(design.outputs))
    prior = sums_to_zero(settings, design, seen.X) if settings.structure is None else None  # a matrix, if there is one
    names = ("gamma", "likelihood", "structure", "weight_kind", "max_passes", "tol")
    options: dict[str, Any] = {name: getattr(settings, name) for name in names}
    out = refine(model, coef_regularizer(settings, design), rows, first, prior=prior, **options)
    return Refinement(out, model, rows, prior, design, seen, folded.counts, std)


def fitted_in_passes(
    settings: Settings, source: Source, start: Callable[[Design], Array] | None = None
) -> tuple[ProximalState, Design, dict[str, Any], Counts]:
    """Return what `refined` finds as the state of the proximal filter, with the design.

    Returned are also fields of `Linearised`, by their names, and the counts of the rows.
    """
    time = None
    if settings.by_time and hasattr(source, "faded"):
        time = float(in_order(source.times, None, source.weights)[-1])  # type: ignore[attr-defined]
    source = faded_source(settings, source)
    found = refined(settings, source, start)
    design, out, prior = found.design, found.out, found.prior
    state = filter_of(settings, design).init(out.mean, None)
    state = replace(state, data=out.information, estimate=out.mean, held=None, prior=prior or state.prior)
    state = replace(state, learned=learned_by(out), time=time)
    if out.converged and _has_few_events(state.posterior, design):
        state = replace(state, skew=skew_of(found.model, state.posterior, found.rows))
    message = out.message
    if not out.converged and settings.likelihood.outcomes == "counts" and not found.seen.y.high > 0:
        message = (
            "All counts are zero: the intercept runs to minus infinity, and the standard errors say nothing. Fit "
            "rows with events in them."
        )
    fields = {"n_passes": out.passes, "fit_converged": out.converged, "fit_message": message}
    fields |= {"fit_column_std": found.column_std, "fit_outside": found.seen.y.outside}
    return state, design, fields, found.counts


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
