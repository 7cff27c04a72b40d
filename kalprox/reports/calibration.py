"""The sections of a model's page about its calibration and its error along the rows."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.base.text import code, in_options
from kalprox.calibration import LEVELS, Calibration, CategoryCalibration, Changes, ClassCalibration, Verdict
from kalprox.calibration.showing import SIZES, coverage_curve, independent_rows
from kalprox.display.axes import FAINT, is_narrow, label_ends, line_style, thousands
from kalprox.jobs.model import TableModel
from kalprox.learning.facts import verdict_of
from kalprox.pages import Figure, Section, Table
from kalprox.reports import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


_MAX_CURVES = 6  # classes that have a curve in a figure
_NOT_SCORED = "No rows were scored: none was predicted before it was learned."


def section(fitted: TableModel) -> Section:
    """Nominal and observed coverage, the PIT histogram, and a table of scores."""
    score, title = fitted.learner.score, "Calibration"
    table = summary.calibration(fitted)
    verdict = verdict_of(fitted.learner)
    if not score.rows > 0:
        text = f"Not judged, because {verdict.reason}." if verdict.reason else _NOT_SCORED
        return Section(title, text, [], [table])
    tables = [table, _checks(verdict), *summary.conformal(fitted)]
    text = in_options(verdict.text).replace(verdict.word, f"**{verdict.word.capitalize()}**", 1)
    return Section(title, text, _figures(score, fitted.columns.classes), tables)


def _figures(score: Calibration, classes: tuple[str, ...]) -> list[Figure]:
    if isinstance(score, CategoryCalibration):
        return [_reliability(score, "were of the most probable class"), *_curves_of_each(score, classes)]
    if isinstance(score, ClassCalibration):
        yes = code(classes[1] if classes else "1")
        curves = [_roc(score, yes), _lift(score)] if math.isfinite(score.auc) else []
        return [_reliability(score, f"were of the class {yes}"), *curves]
    return [_coverage(score), _pit(score)]


def _figure(
    score: Any, kind: str, title: str, caption: str, numbers: dict[str, Any], names: dict[int, str] | None = None
) -> Figure:
    """Return the figure of a plot of a score; of several classes the curves of these numbers, with these names."""

    def draw(fig: "Canvas") -> None:
        ax = fig.subplots()
        if names is None:
            score.plot(ax, kind=kind)
            return
        for number in names:
            score.plot(ax, kind=kind, number=number)
        legend = ax.get_legend()
        assert legend is not None
        for text, name in zip(
            legend.get_texts()[1:], names.values(), strict=True
        ):  # as labels, some would be formulas, or no names
            text.set_parse_math(False)
            text.set_text(name)

    name = "calibration" if kind == "coverage" else kind
    return Figure(name, title, caption, numbers, draw, SIZES[kind])


def _checks(verdict: Verdict) -> Table:
    """What was looked for besides the spread."""
    rows = [
        [word, measured, _p_value(p_value), "yes" if found else "no"]
        for word, measured, p_value, found in verdict.checks
    ]
    return Table(
        ["looked for", "measured", "p-value", "found"],
        rows,
        "What the errors show besides their size. A deviation is found if it is significant and large enough.",
    )


def _p_value(p: float) -> float | str | None:
    return None if np.isnan(p) else "< 0.001" if p < 1e-3 else p


def _coverage(score: Calibration) -> Figure:
    verdict, (levels, shares) = score.verdict(), coverage_curve(score)
    return _figure(
        score,
        "coverage",
        "Nominal and observed coverage",
        "The share of the observations within their central intervals, against the level of the intervals. Below "
        "the diagonal the intervals are too narrow, above it they are too wide. Grey band: where calibrated intervals "
        f"lie with probability 95%, {independent_rows(verdict):,} independent predictions assumed.",
        {"levels": levels, "coverage": shares, "rows": verdict.rows, "worth": verdict.worth},
    )


def _pit(score: Calibration) -> Figure:
    verdict, shares = score.verdict(), np.asarray(score.pit, float) / float(score.rows)
    return _figure(
        score,
        "pit",
        "Histogram of the probability integral transform (PIT)",
        "The histogram is flat if the predictions are calibrated. It is U-shaped if the intervals are too narrow, "
        "hump-shaped if they are too wide, and sloped if the predictions are biased. Grey band: 95% of the bars, if "
        "calibrated.",
        {"bars": shares * len(shares), "rows": verdict.rows, "worth": verdict.worth},
    )


def _reliability(score: ClassCalibration, event: str) -> Figure:
    return _figure(
        score,
        "reliability",
        "Stated probabilities and what came",
        f"The share of the rows that {event}, against the stated probability, in groups with about as many rows each. "
        "Calibrated probabilities lie on the diagonal: below it they are too large, above it too small. Bars: 95% "
        "intervals of the shares.",
        score.reliability()._asdict(),
    )


def _roc(score: ClassCalibration, yes: str) -> Figure:
    (false, true, _), area = score.roc(), score.auc
    return _figure(
        score,
        "roc",
        "Events found and false alarms (ROC)",
        f"For every threshold of the probability, the share of the events (rows of the class {yes}) above it, "
        f"against the share of the other rows above it. The area under the curve is {area:.4f}: the probability that "
        "a row with the event has the larger probability of two.",
        {"false_positive_rate": false, "true_positive_rate": true, "area": area},
    )


def _lift(score: ClassCalibration) -> Figure:
    found = score.lift()
    tenth = float(np.interp(0.1, found.rows, found.events))
    return _figure(
        score,
        "lift",
        "Events among the most probable rows (lift)",
        "The share of all events among the rows with the largest probabilities, against the share of these rows. The "
        f"tenth of the rows with the largest probabilities has {tenth:.1%} of the events, {10 * tenth:.3g} times as "
        "many as a tenth in random order.",
        found._asdict(),
    )


def _curves_of_each(score: CategoryCalibration, classes: tuple[str, ...]) -> list[Figure]:
    """ROC and lift of the classes that came most often, each against the others."""
    names, areas = [summary.plain(name) for name in classes or map(str, range(len(score.of_class)))], score.auc
    known = [number for number in range(min(len(names), len(areas))) if math.isfinite(areas[number])]
    shown = sorted(sorted(known, key=lambda number: -score.of_class[number].outcomes[1].sum())[:_MAX_CURVES])
    if not shown:
        return []
    only = "" if len(shown) == len(areas) else f"; the {len(shown)} classes that came most often"
    named = {number: names[number] for number in shown}
    own: dict[str, Any] = {"classes": list(named.values())}
    return [
        _figure(
            score,
            "roc",
            "Each class found and false alarms (ROC)",
            "For every threshold of the probability of a class, the share of its rows above it, against the share of "
            f"the other rows above it{only}. In brackets: the area under the curve, the probability that a row of the "
            "class has the larger probability of it of two.",
            own | {"areas": [areas[number] for number in shown]} | _numbered(score.roc, shown),
            {number: f"{name} ({areas[number]:.3f})" for number, name in named.items()},
        ),
        _figure(
            score,
            "lift",
            "Each class among the most probable rows (lift)",
            "The share of the rows of a class among those with the largest probabilities of it, against the share of "
            f"these rows{only}.",
            own | _numbered(score.lift, shown),
            named,
        ),
    ]


def _numbered(curve: Callable[[int], Any], shown: list[int]) -> dict[str, Any]:
    """Return the two coordinates of the curve of each class, by their names and the number of the class."""
    curves = {number: curve(number) for number in shown}
    fields = curves[shown[0]]._fields[:2]
    return {f"{field}_{number}": getattr(curve, field) for field in fields for number, curve in curves.items()}


def running_error(fitted: TableModel) -> Section:
    """The prequential error and coverage along the rows."""
    title, history = "Running error", fitted.record.history
    rows, rmse, coverage = history.running()
    if not len(rows):
        return Section(title, "No rows were scored during the fit.")
    has_noise = fitted.learner.settings.likelihood.location
    noise = float(fitted.belief.noise.variance) ** 0.5 if has_noise else float("nan")
    scored, all_scored = history.judged[-1], float(fitted.learner.score.rows)
    text = "The error of the rows, each predicted before it was learned, in the order in which they were read."
    if scored < 0.9 * all_scored:
        text += (
            f" The figure contains {scored:,.10g} of the {all_scored:,.10g} scored rows; the others were "
            "learned later, or come from merged models."
        )

    has_intervals, changes = fitted.learner.score.has_intervals, fitted.learner.score.changes
    points = () if changes is None else changes.points

    def draw(fig: "Canvas") -> None:
        axes = fig.subplots(1 + has_intervals, sharex=True, squeeze=False)[:, 0]
        style = line_style(0) | ({"marker": ""} if len(rows) > 40 else {"markersize": 3.5})
        for ax in axes:
            for point in points:
                ax.axvline(point.start, color=FAINT, linewidth=1, linestyle=":", zorder=0)
        axes[0].plot(rows, rmse, **style)
        if np.isfinite(noise):
            axes[0].axhline(noise, color=FAINT, linewidth=1, label="noise std")
        axes[0].set_ylabel("RMSE" if has_intervals else "RMSE of the\nprobabilities")
        axes[0].set_ylim(0, 1.15 * max(float(rmse.max()), noise if np.isfinite(noise) else 0.0) or 1.0)
        if has_intervals:
            axes[1].plot(rows, coverage, **style)
            axes[1].axhline(LEVELS[-1], color=FAINT, linewidth=1, label="nominal")
            axes[1].set_ylim(min(0.8, 0.95 * float(coverage.min())), 1.01)
            axes[1].set_ylabel(f"coverage of\n{LEVELS[-1]:.0%} intervals")
            axes[1].yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes[-1].set_xlabel("rows learned")
        axes[-1].locator_params(axis="x", nbins=4 if is_narrow(fig) else 7)
        thousands(axes[-1].xaxis)
        for ax in axes:
            label_ends(ax)

    marked = " Dotted lines: change points." if points else ""
    falling = " or a falling coverage" if has_intervals else ""
    figure = Figure(
        "running",
        "Error and coverage along the rows" if has_intervals else "Error along the rows",
        f"Each point shows the rows scored since the previous point. A rising error{falling} indicates drift, or files "
        f"that differ from the others.{marked}",
        {"rows": rows, "rmse": rmse, "noise_std": noise} | ({"coverage": coverage} if has_intervals else {}),
        draw,
        (6.8, 4.6 if has_intervals else 2.8),
        narrow_height=4.2 if has_intervals else 2.6,
    )
    tables = [] if changes is None else _change_points(changes)
    return Section(title, text if changes is None else f"{text} {changes}", [figure], tables)


def _change_points(changes: Changes) -> list[Table]:
    """The table of the change points; none if there are none."""
    timed = any(point.time is not None for point in changes.points)
    names = ["from row", "found after row", "probability", *(["time", "time of the finding"] if timed else [])]
    rows: list[list[Any]] = [
        [point.start, point.row, f"{point.probability:.4f}", *((point.start_time, point.time) if timed else ())]
        for point in changes.points
    ]
    more = f", the last {len(rows):,} of {changes.found:,}" if changes.found > len(rows) else ""
    of_runs = changes.kind == "coefficients"
    watched = "all coefficients and the noise" if of_runs else "the level and the spread of residuals"
    return [Table(names, rows, f"Change points{more}, looked for in {watched}.")] if rows else []
