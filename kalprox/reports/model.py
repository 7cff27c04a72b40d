"""The page of a model that was fitted to files."""

from typing import Any

import numpy as np

from kalprox.base.text import code, count, names, shorten
from kalprox.jobs.model import TableModel
from kalprox.learning.facts import about_forgetting
from kalprox.learning.mixed import MixedBelief
from kalprox.learning.settings import Settings, same
from kalprox.likelihoods import Likelihood
from kalprox.pages import Figure, Page, Section
from kalprox.reports import calibration, coefficients, data, path
from kalprox.sources.formula import FormulaColumns

_MAX_SOURCES = 20  # shown among the settings


def page(fitted: TableModel, name: str, level: float = 0.95) -> Page:
    """The report of a model.

    Parameters
    ----------
    fitted : TableModel
    name : str
        The title of the page, usually the name of the model's file.
    level : float
        The level of the intervals of the coefficients.

    Returns
    -------
    Page
        To be written with `kalprox.pages.write_page`.
    """
    sources = f", read from {names(fitted.sources)}" if fitted.sources else ""
    return Page(
        title=shorten(name, 120),
        summary=f"A model of {code(str(fitted.columns.target))} from {count(len(fitted.columns.names), 'column')}, "
        f"fitted to {count(fitted.learner.n_rows, 'row')}{sources}.",
        sections=[
            coefficients.section(fitted, level),
            calibration.section(fitted),
            calibration.running_error(fitted),
            *_forgetting(fitted),
            coefficients.correlations(fitted),
            *path.sections(fitted),
            data.section(fitted),
            data.rejected(fitted.record.quality),
        ],
        settings=_settings(fitted),
        headline=fitted.headline().lines,
    )


def _forgetting(fitted: TableModel) -> list[Section]:
    """The section of a report about the weights of the ways to forget; none for a model with one way."""
    belief = fitted.belief
    if not isinstance(belief, MixedBelief):
        return []
    record = belief.forget_weights
    figure = Figure(
        "forgetting",
        "Weights of the ways to forget",
        "The probability of each way to forget along the rows, by how well it has predicted. A number is a forgetting "
        "factor; with 'intercept' only the intercept moves, by steps of this variance in units of the noise variance.",
        {"rows": record.rows, "weights": record.weights},
        lambda fig: record.plot(fig.subplots()),
        (6.8, 3.6),
    )
    text = (
        "Several ways to forget old rows were run side by side, and mixed by how well each predicted the next row; "
        f"at the end: {about_forgetting(belief)['forget'].removeprefix('auto: ')}."
    )
    return [Section("Forgetting", text, [figure])]


def _settings(fitted: TableModel) -> dict[str, Any]:
    """The main settings, and those that differ from the default."""
    default = Settings.of().parameters
    settings = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in fitted.learner.settings.parameters.items()
        if name in ("link", "penalty", "alpha") or not same(value, default[name])
    }
    settings |= {name: str(value) for name, value in settings.items() if isinstance(value, Likelihood)}
    settings |= {name: getattr(value, "__name__", str(value)) for name, value in settings.items() if callable(value)}
    more = len(fitted.sources) - _MAX_SOURCES
    sources = [*fitted.sources[:_MAX_SOURCES], *([f"and {more:,} more"] if more > 0 else [])]
    columns = fitted.columns
    formula = {"formula": columns.formula} if isinstance(columns, FormulaColumns) else {}
    roles = {"classes": list(columns.classes), "offset": columns.offset, "exposure": columns.exposure}
    roles |= {"clusters": columns.cluster}
    given = {name: value for name, value in roles.items() if value}
    return settings | {"target": columns.target, **formula, **given, "sources": sources}
