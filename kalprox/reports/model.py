"""The page of a model that was fitted to files."""

from typing import Any

import numpy as np

from kalprox.base.text import code, count, names, shorten
from kalprox.jobs.model import TableModel
from kalprox.learning.settings import Settings, same
from kalprox.likelihoods import Likelihood
from kalprox.pages import Page, Statement
from kalprox.reports import calibration, coefficients, data, forgetting, path
from kalprox.sources.formula import FormulaColumns

__all__ = ["page"]

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
            *forgetting.sections(fitted),
            coefficients.correlations(fitted),
            *path.sections(fitted),
            data.section(fitted),
            data.rejected(fitted.record.quality),
        ],
        settings=_settings(fitted),
        headline=[Statement(line.label, line.text, line.doubt) for line in fitted.headline().lines],
    )


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
