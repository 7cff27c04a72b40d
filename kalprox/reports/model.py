"""The page of a model that was fitted to files."""

from typing import Any

import numpy as np

from kalprox._text import code, count, names, shorten
from kalprox.jobs.model import TableModel
from kalprox.learning.settings import Settings, same
from kalprox.pages import Page
from kalprox.reports import calibration, coefficients, data
from kalprox.reports.summary import exact_zeros
from kalprox.reports.words import share

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
            coefficients.correlations(fitted),
            data.section(fitted),
            data.rejected(fitted.record.quality),
        ],
        settings=_settings(fitted),
        conclusions=_conclusions(fitted),
    )


def _conclusions(fitted: TableModel) -> list[str]:
    belief, columns = fitted.belief, np.array(fitted.columns.names, object)
    points = [calibration.conclusion(fitted), data.conclusion(fitted.record.quality)]
    if reason := belief.noise.reason:
        points.append(reason)
    if not belief.converged:
        points.append(
            "The fit has **not converged**: the coefficients may still change. Increase `--passes` (`max_passes` in "
            "Python)."
        )
    undetermined = np.isinf(belief.coef_std)
    if undetermined.any():
        points.append(
            f"{share(undetermined, 'coefficient')} **undetermined**: {names(columns[undetermined])}. The rows do not "
            "distinguish their effects from those of other columns. Use a ridge penalty, or remove columns."
        )
    if (zero := exact_zeros(fitted)).any():
        points.append(f"{share(zero, 'coefficient')} exactly 0, because of the penalty.")
    constant = data.constant_columns(fitted.record.quality)
    if constant.any():
        points.append(f"{share(constant, 'column')} constant: {names(columns[constant])}.")
    return points


def _settings(fitted: TableModel) -> dict[str, Any]:
    """The main settings, and those that differ from the default."""
    default = Settings.of().parameters
    settings = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in fitted.learner.settings.parameters.items()
        if name in ("link", "penalty", "alpha") or not same(value, default[name])
    }
    more = len(fitted.sources) - _MAX_SOURCES
    sources = [*fitted.sources[:_MAX_SOURCES], *([f"and {more:,} more"] if more > 0 else [])]
    clusters = {} if fitted.columns.cluster is None else {"clusters": fitted.columns.cluster}
    return settings | {"target": fitted.columns.target, **clusters, "sources": sources}
