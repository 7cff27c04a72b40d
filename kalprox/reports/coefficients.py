"""The sections of a model's page about its coefficients: their effects and intervals, and their correlations."""

from typing import TYPE_CHECKING

import numpy as np

from kalprox.base.text import code, names
from kalprox.display import plots
from kalprox.display.axes import figure_label, is_narrow
from kalprox.display.plots import matrix
from kalprox.jobs.model import TableModel
from kalprox.learning.summary import DEBIASED
from kalprox.pages import Figure, Section
from kalprox.reports import summary
from kalprox.sources.formula import FormulaColumns

if TYPE_CHECKING:
    import matplotlib.figure


MINUS = "\N{MINUS SIGN}"
_MAX_INTERVALS, _MAX_CORRELATIONS = 40, 60  # coefficients in the two figures
_NARROW_CORRELATIONS = 16  # in the second one on narrow screens, where there is no room for more labels


def section(fitted: TableModel, level: float) -> Section:
    """The coefficients with their intervals, as a figure and a table."""
    effect, several = np.ravel(fitted.belief.effects), fitted.belief.coef.ndim == 2
    shown = _largest(effect, np.isfinite(np.ravel(fitted.intervals(level)[0])) & (effect > 0), _MAX_INTERVALS)
    text = _meaning(fitted)
    if effect.size > _MAX_INTERVALS:
        what = "coefficients" if several or _of_function(fitted) else "columns"
        text += f" The figure shows the {len(shown)} {what} with the largest effects, of {effect.size:,}."
    table = summary.coefficients(fitted, level=level, top=summary.MAX_ROWS)
    tables = [summary.overview(fitted), summary.code_columns(table, *range(1, 2 + several))]
    return Section("Coefficients", text, [_intervals(fitted, level, shown)] if len(shown) else [], tables)


def _of_function(fitted: TableModel) -> bool:
    """Whether the coefficients are the parameters of a function, which have no columns."""
    return fitted.learner.settings.function is not None


def _meaning(fitted: TableModel) -> str:
    """What a coefficient is, in words."""
    columns = fitted.columns
    if _of_function(fitted):
        name = getattr(fitted.learner.settings.function, "__name__", "of one's own")
        return f"The coefficients are the parameters of the function {code(name)}, in units of their own."
    text = f"Each coefficient is the change of {_changed(fitted)} when its column increases by 1 and the others do not"
    shared = columns.in_several_terms if isinstance(columns, FormulaColumns) else []
    if not shared:
        return f"{text} change."
    return (
        f"{text}. Columns that share a variable change together, though, and several terms contain {names(shared)}: "
        "the effect of such a variable is that of all its terms, and depends on the values of their variables. The "
        "coefficient of a variable alone is its effect where the variables that it is multiplied with are 0, or at "
        "their reference levels."
    )


def _changed(fitted: TableModel) -> str:
    """What the coefficients change, in words."""
    settings, classes = fitted.learner.settings, fitted.columns.classes
    if len(classes) == 2:
        return f"the log odds of {code(classes[1])}"
    if classes:
        return "the log of the probability of its class, relative to those of all classes on average,"
    if settings.likelihood.location:
        return "the prediction" if settings.is_linear else "the linear predictor"
    return "the log of the expected count"


def _intervals(fitted: TableModel, level: float, shown: np.ndarray) -> Figure:
    belief, classes, d = fitted.belief, fitted.columns.classes, len(fitted.coef_names)
    coef, low, high = (np.ravel(a)[shown] for a in (belief.coef, *fitted.intervals(level)))
    columns = [
        name if belief.coef.ndim == 1 else f"{one}: {name}"
        for one in (classes if belief.coef.ndim == 2 else [""])
        for name in fitted.coef_names
    ]
    scale = np.ones(len(coef)) if belief.facts.column_std is None else belief.facts.column_std[shown % d]
    quantity = "coefficient" if belief.facts.column_std is None else "coefficient × std of its column"
    target = figure_label(str(fitted.columns.target), "the target")
    in_units = fitted.learner.settings.is_linear and fitted.learner.settings.likelihood.location
    unit = f"in units of {target}" if in_units else "on the scale of the linear predictor"
    own = _of_function(fitted)
    effect = (
        f"The effect of a column is the change of {_changed(fitted)} when it increases by one standard deviation, so "
        f"that columns in different units can be compared. {summary.about_levels(fitted)}"
    )

    def draw(fig: "matplotlib.figure.Figure") -> None:
        ax = fig.subplots()
        width = 15 if is_narrow(fig) else 32
        labels = [_label(columns, j, width) for j in shown]
        plots.coefficients(ax, labels, *(end[None] * scale for end in (coef, low, high)))
        axis = "parameter" if own else f"{quantity},\n{unit}"
        ax.set_xlabel(axis, parse_math=False, loc="right")  # there is room to the left of the axes

    return Figure(
        "coefficients",
        "Parameters with their intervals" if own else "Effects with their intervals",
        f"{100 * level:.4g}% intervals. {'' if own else effect}"
        "Intervals narrower than the marker are hidden behind it." + f" {DEBIASED}" * fitted.belief.debiased,
        {"column": [columns[j] for j in shown], "coef": coef, "low": low, "high": high, "std": scale, "level": level},
        draw,
        (7.0, 1.3 + 0.23 * len(shown)),
        narrow_height=1.3 + 0.23 * len(shown),
    )


def correlations(fitted: TableModel) -> Section:
    """The correlations between the errors of the coefficients."""
    title = "Correlations of the coefficients"
    columns, std = fitted.coef_names, fitted.belief.coef_std
    if std.ndim == 2:
        return Section(title, "They are not shown for several classes, each of which has coefficients of its own.")
    free = np.isfinite(std) & (std > 0)
    shown = np.sort(_largest(fitted.belief.effects, free, _MAX_CORRELATIONS))
    left_out = [
        (np.isinf(std).sum(), "undetermined"),
        ((std == 0).sum(), "fixed by the penalty"),
        (np.isnan(std).sum(), "with unknown uncertainty"),
    ]
    out = ", ".join(f"{n:,} {why}" for n, why in left_out if n)
    text = f"Coefficients left out: {out}. " if out else ""
    if len(shown) < 2:
        return Section(title, f"{text}There are fewer than two coefficients to compare.")
    if len(shown) < free.sum():
        text += f"The figure shows the {len(shown)} with the largest effects, of {free.sum():,}. "
    if fitted.belief.debiased:
        text += "They are conditional on the coefficients that the penalty selected. "
    C = fitted.belief.covariance_of(shown)
    R = np.clip(C / np.outer(std[shown], std[shown]), -1, 1)
    i, j = np.unravel_index(np.nanargmax(np.abs(R - np.diag(np.diag(R)))), R.shape)
    strongest = f"{R[i, j]:.2f}".replace("-", MINUS)
    text += (
        f"The strongest correlation is {strongest}, between {code(columns[shown[i]])} and {code(columns[shown[j]])}. "
        f"If it is near 1 or {MINUS}1, the rows determine only a combination of the two coefficients."
    )
    width, height = (6.4, 4.8) if len(shown) <= 25 else (8.4, 7.8)

    def draw(fig: "matplotlib.figure.Figure") -> None:
        ax = fig.subplots()
        few, width = (_NARROW_CORRELATIONS, 14) if is_narrow(fig) else (_MAX_CORRELATIONS, 24)
        drawn = np.sort(np.argsort(-fitted.belief.effects[shown], kind="stable")[:few])
        matrix(ax, R[np.ix_(drawn, drawn)], "correlation", limit=1.0)
        size = min(9.0, 72 * 0.82 * height / len(drawn))
        labels = [_label(columns, k, width) for k in shown[drawn]]
        ax.set_yticks(np.arange(1, len(drawn) + 1), labels, fontsize=size, parse_math=False)
        if len(drawn) < len(shown):
            ax.set_title(f"the {len(drawn)} largest effects", fontweight="normal")
        ax.set_xticks([])
        ax.tick_params(axis="y", length=0)

    figure = Figure(
        "correlation",
        "Correlations between the errors of the coefficients",
        "The columns of the matrix are in the order of its rows. Red: if one coefficient is overestimated, the other "
        "probably is too. Blue: if one is overestimated, the other is probably underestimated.",
        {"column": [columns[k] for k in shown], "correlation": R},
        draw,
        (width, height),
        narrow_height=2.8,
    )
    return Section(title, text, [figure])


def _largest(effect: np.ndarray, among: np.ndarray, n: int) -> np.ndarray:
    """The indices of the n largest effects among some columns, in descending order of the effects."""
    return np.array([j for j in np.argsort(-effect, kind="stable") if among[j]][:n], int)


def _label(columns: list[str], j: int, width: int = 32) -> str:
    """The name of column j, or its number in the table of coefficients where the name cannot be drawn."""
    return figure_label(columns[j], f"column {j + 1}", width)
