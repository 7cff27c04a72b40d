"""A model fitted to files, as one page: what it found, whether to believe it, what the rows held, what was refused."""

import unicodedata
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.calibration import BINS, LEVELS
from kalprox.estimators import KalproxRegressor
from kalprox.estimators.checks import same
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import Quality
from kalprox.pages import Figure, Page, Section, Table, figures
from kalprox.reports import summary
from kalprox.reports.summary import WIDE, code, counted, cut, day, effects, exact_zeros, listed, some_of

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["page"]

_BARS, _MATRIX, _ROWS = 40, 60, 500  # drawn with intervals, drawn in the matrix, listed in a table
_FILES = ("empty file", "unreadable")  # reasons that are no row's


def page(found: TableModel, name: str, level: float = 0.95) -> Page:
    """The report of the model called `name`, with intervals of this level."""
    model, quality = found.model, found.account.quality
    given = "" if not found.sources else f", read from {listed(found.sources)}"
    return Page(
        title=cut(name, 120),
        summary=f"A model of {code(str(found.columns.target))} from {counted(len(found.columns.names), 'column')}, "
        f"learned from {counted(model.n_rows_seen_, 'row')}{given}.",
        sections=[
            _coefficients(found, level),
            _calibration(found),
            _running(found),
            _together(found),
            _data(found),
            _refused(quality),
        ],
        settings=_settings(found),
        conclusions=_conclusions(found),
    )


def _conclusions(found: TableModel) -> list[str]:
    model, names, quality = found.model, np.array(found.columns.names, object), found.account.quality
    verdict = model.diagnostics_.verdict()
    said = str(verdict).removeprefix(verdict.word)
    if verdict.rows == 0 and verdict.undetermined == 0:
        said = ": no row was predicted before it was learned, as only blocks after the first are."
    points = [f"**{verdict.word.capitalize()}**{said}", _refusals(quality)]
    if reason := model._fitted.noise.reason:
        points.append(reason)
    if not model.converged_:
        points.append("The minimiser was **not reached**: coefficients may still move. Raise max_passes.")
    unknown = np.isinf(model.coef_std_)
    if unknown.any():
        points.append(
            f"{some_of(unknown, 'coefficient')} **undetermined**: {listed(names[unknown])}. No row tells them apart "
            "from the others; a ridge penalty, or fewer columns, would."
        )
    if (zero := exact_zeros(found)).any():
        points.append(f"{some_of(zero, 'coefficient')} exactly 0: the penalty holds them there.")
    constant = _constant(quality)
    if constant.any():
        points.append(
            f"{some_of(constant, 'column')} without variation, the same value in every row: {listed(names[constant])}."
        )
    return points


# -- sections ---------------------------------------------------------------------------------------------------------


def _coefficients(found: TableModel, level: float) -> Section:
    model, names, effect = found.model, found.columns.names, effects(found)
    drawn = _largest(effect, np.isfinite(model.coef_std_) & (effect > 0), _BARS)
    known = bool(found.account.quality.low)
    unit = f"{'coefficient × range of its column' if known else 'coefficient'},\n{_unit(found)}"
    changed = "prediction" if model.link == "identity" else "link's argument"
    text = f"Each is the change of the {changed} for a change of 1 in its column, the others staying as they are."
    if len(names) > _BARS:
        text += f" Of {len(names):,} columns the figure shows the {len(drawn)} with the largest effect."
    coef = model.coef_[drawn]
    low, high = (end[drawn] for end in found.intervals(level))
    scale = effect[drawn] / np.abs(coef)

    def draw(fig: "matplotlib.figure.Figure") -> None:
        ax = fig.subplots()
        place = np.arange(len(drawn))
        style = figures.look(0)
        ax.axvline(0, color=figures.FAINT, linewidth=0.8)
        ax.hlines(place, low * scale, high * scale, color=style["color"], linewidth=3, alpha=0.55)
        ax.plot(coef * scale, place, "o", color=style["color"], markersize=3.2)
        ax.set_yticks(place, [_label(j, names[j]) for j in drawn], parse_math=False)
        ax.set(ylim=(len(drawn) - 0.4, -0.6))
        ax.set_xlabel(unit, parse_math=False)
        ax.grid(visible=False, axis="y")

    figure = Figure(
        "coefficients",
        "Effects with their intervals",
        f"{100 * level:.4g}% intervals. Times the range of its column, a coefficient is how far apart the column's "
        "smallest and largest value set the prediction, so that columns in different units can be compared. An "
        "interval that is not seen is narrower than its point.",
        {"column": [names[j] for j in drawn], "coef": coef, "low": low, "high": high, "range": scale, "level": level},
        draw,
        (7.0, 1.3 + 0.23 * len(drawn)),
    )
    table = summary.coefficients(found, level=level, top=_ROWS)
    return Section("Coefficients", text, [figure] if len(drawn) else [], [summary.fitted(found), _marked(table, 1)])


def _calibration(found: TableModel) -> Section:
    score = found.model.diagnostics_
    table = summary.calibration(found)
    if not score.rows > 0:
        return Section("Is it calibrated?", "No row has been judged: there was no block after the first.", [], [table])
    verdict = score.verdict()
    worth = max(round(verdict.worth), 1)
    rows = f"{verdict.rows:,.10g} rows, each predicted before it was learned"
    if verdict.worth < 0.9 * verdict.rows:
        rows += f" (worth {worth:,} predicted one at a time)"
    pit = np.asarray(score.pit, float) / float(score.rows) * BINS

    def draw(fig: "matplotlib.figure.Figure") -> None:
        figures.calibration(fig.subplots(), LEVELS, score.coverage, rows=worth)

    def histogram(fig: "matplotlib.figure.Figure") -> None:
        from scipy import stats

        ax = fig.subplots()
        low, high = (float(end) * BINS / worth for end in stats.binom.interval(0.95, worth, 1 / BINS))
        ax.bar((np.arange(BINS) + 0.5) / BINS, pit, 0.92 / BINS, color=figures.look(0)["color"], alpha=0.75)
        ax.axhspan(low, high, color=figures.FAINT, alpha=0.3, linewidth=0, label="honest, 95% of bars")
        ax.axhline(1, color=figures.INK, linewidth=0.9)
        top = max(high, float(pit.max()))
        ax.set(xlim=(0, 1), ylim=(0, 1.3 * top), xlabel="predicted probability of a value below the observed one")
        ax.set_ylabel("rows, relative to even")
        ax.legend(loc="upper right")

    return Section(
        "Is it calibrated?",
        f"Measured on {rows}.",
        [
            Figure(
                "calibration",
                "Promised and observed coverage",
                f"How many observations lay within their {', '.join(f'{level:.0%}' for level in LEVELS)} intervals. "
                "Below the diagonal the intervals are too narrow, above it too wide.",
                {"levels": LEVELS, "coverage": score.coverage, "rows": verdict.rows, "worth": verdict.worth},
                draw,
                (4.6, 4.6),
            ),
            Figure(
                "pit",
                "Where observations fell in their predicted distributions",
                "Even where the predictions are right. A hollow: intervals too narrow; a hill: too wide; "
                "a slope: biased.",
                {"bars": pit, "rows": verdict.rows, "worth": verdict.worth},
                histogram,
                (6.4, 3.2),
            ),
        ],
        [table],
    )


def _running(found: TableModel) -> Section:
    rows, rmse, coverage = found.account.history.running()
    if not len(rows):
        return Section("Running error", "No row was judged while the model was fitted, so there is no course to show.")
    noise = float(found.model.noise_var_) ** 0.5
    judged, all_judged = found.account.history.judged[-1], float(found.model.diagnostics_.rows)
    text = "How well rows were predicted before they were learned, in the order of reading."
    if judged < 0.9 * all_judged:
        text += f" {judged:,.10g} of the {all_judged:,.10g} judged rows are in it; the rest came later or were merged."

    def draw(fig: "matplotlib.figure.Figure") -> None:
        above, below = fig.subplots(2, sharex=True)
        style = figures.look(0) | ({"marker": ""} if len(rows) > 40 else {"markersize": 3.5})
        above.plot(rows, rmse, **style)
        if np.isfinite(noise):
            above.axhline(noise, color=figures.FAINT, linewidth=1, label="noise std")
            above.legend(loc="upper right")
        above.set_ylabel("rms error")
        above.set_ylim(0, 1.15 * max(float(rmse.max()), noise if np.isfinite(noise) else 0.0) or 1.0)
        below.plot(rows, coverage, **style)
        below.axhline(LEVELS[-1], color=figures.FAINT, linewidth=1, label="promised")
        below.set(ylim=(min(0.8, 0.95 * float(coverage.min())), 1.01), xlabel="rows learned")
        below.set_ylabel(f"within {LEVELS[-1]:.0%} interval")
        below.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        below.legend(loc="lower right")
        below.xaxis.set_major_formatter("{x:,.0f}")

    figure = Figure(
        "running",
        "Error and coverage along the rows",
        "Each point is of the rows judged since the point before. A rise of the error, or a fall of the coverage, is "
        "drift or a file unlike the others.",
        {"rows": rows, "rmse": rmse, "coverage": coverage, "noise_std": noise},
        draw,
        (6.8, 4.6),
    )
    return Section("Running error", text, [figure])


def _together(found: TableModel) -> Section:
    """The correlations of the coefficients."""
    title = "How the coefficients go together"
    names, std = found.columns.names, found.model.coef_std_
    free = np.isfinite(std) & (std > 0)
    shown = _largest(effects(found), free, _MATRIX, in_order=True)
    left = [
        (np.isinf(std).sum(), "undetermined"),
        ((std == 0).sum(), "held by the penalty"),
        (np.isnan(std).sum(), "of unknown uncertainty"),
    ]
    out = ", ".join(f"{n:,} {why}" for n, why in left if n)
    text = f"Left out: {out}. " if out else ""
    if len(shown) < 2:
        return Section(title, f"{text}There are not two coefficients to compare.")
    if len(shown) < free.sum():
        text += f"Of {free.sum():,} columns, the {len(shown)} with the largest effect. "
    C = found.model.covariance_[np.ix_(shown, shown)]
    R = np.clip(C / np.outer(std[shown], std[shown]), -1, 1)
    apart = np.abs(R - np.diag(np.diag(R)))
    i, j = np.unravel_index(np.nanargmax(apart), R.shape)
    text += (
        f"Closest are {code(names[shown[i]])} and {code(names[shown[j]])}, with correlation {R[i, j]:.2f}. Near 1 "
        "or -1 the rows tell only a combination of the two."
    )
    width, height = (6.4, 4.8) if len(shown) <= 25 else (8.4, 7.2)

    def draw(fig: "matplotlib.figure.Figure") -> None:
        ax = fig.subplots()
        figures.matrix(ax, R, "correlation", limit=1.0)
        size = min(9.0, 72 * 0.82 * height / len(shown))
        labels = [_label(k, names[k], 24) for k in shown]
        ax.set_yticks(np.arange(1, len(shown) + 1), labels, fontsize=size, parse_math=False)
        ax.set_xticks([])
        ax.tick_params(axis="y", length=0)

    figure = Figure(
        "correlation",
        "Correlations of the coefficients' errors",
        "Rows and columns in the same order. Red: where one is estimated too high, the other probably is too; blue: "
        "too low.",
        {"column": [names[k] for k in shown], "correlation": R},
        draw,
        (width, height),
    )
    return Section(title, text, [figure])


def _data(found: TableModel) -> Section:
    quality, columns = found.account.quality, found.columns
    if not quality.low:
        return Section("Data", "There is no account of the rows that were learned.")
    good = quality.read - quality.bad + _files(quality)
    rows: list[list[Any]] = []
    levels: list[list[Any]] = []
    at = 0
    for feature in columns.features:
        if feature not in columns.categorical:
            cells = quality.low[at], quality.high[at], quality.total[at] / good
            rows.append([feature, *(map(day, cells) if feature in columns.dates else cells), None])
            at += 1
            continue
        known = columns.categorical[feature]
        counts = [int(n) for n in quality.total[at : at + len(known) - columns.drop_first]]
        rows += [[columns.names[at + i], None, None, None, n] for i, n in enumerate(counts)]
        at += len(counts)
        levels.append([feature, len(known), None if columns.drop_first else good - sum(counts)])
    caption = f"The columns over the {good:,} good rows; of a level, the rows that have it."
    if len(rows) > _ROWS:
        caption += f" The first {_ROWS:,} of {len(rows):,}."
    tables = [_marked(Table(["column", "low", "high", "mean", "rows"], rows[:_ROWS], caption), 0)]
    if levels:
        note = " A first level that is left out cannot be told from an unknown one." if columns.drop_first else ""
        caption = (
            f"Columns of words. Rows with a level not known when the fit began count as 0 in all of its columns.{note}"
        )
        tables.append(_marked(Table(["column", "levels", "rows of unknown level"], levels, caption), 0))
    text = f"{counted(quality.read, 'row')} read, {good:,} of them good."
    return Section("Data", text, [], tables)


def _refused(quality: Quality) -> Section:
    if not quality.bad:
        return Section("What was refused", "Nothing: every row that was read could be learned.")
    counts = _reasons(quality)
    cap = f" The {_ROWS:,} most frequent of {len(counts):,}." if len(counts) > _ROWS else ""
    first = [
        [cut(str(row["file"]), WIDE), row["row"] or None, row["column"], row["reason"], row["value"]]
        for row in quality.first
    ]
    return Section(
        "What was refused",
        _refusals(quality),
        [],
        [
            _marked(Table(["column", "reason", "rows"], [list(c) for c in counts[:_ROWS]], f"Why.{cap}"), 0),
            _marked(Table(["file", "row", "column", "reason", "value"], first, "The first of them."), 0, 2, 4),
        ],
    )


# -- words ------------------------------------------------------------------------------------------------------------


def _refusals(quality: Quality) -> str:
    if not quality.bad:
        return f"No row was refused of {quality.read:,} read."
    files = _files(quality)
    rows = quality.bad - files
    words = [f"{counted(rows, 'row')} of {quality.read:,} ({100 * rows / max(quality.read, 1):.3g}%)"] if rows else []
    words += [counted(files, "file")] if files else []
    column, reason, n = _reasons(quality)[0]
    where = f"{code(column)} {reason}" if column else reason
    plural = "was" if quality.bad == 1 else "were"
    return f"**{' and '.join(words)}** {plural} refused; the main reason ({n:,}): {where}."


def _reasons(quality: Quality) -> list[tuple[str, str, int]]:
    """Column, reason and rows, the most frequent first."""
    found = [(column, reason, n) for column, counts in quality.reasons.items() for reason, n in counts.items()]
    return sorted(found, key=lambda row: (-row[2], row[:2]))


def _files(quality: Quality) -> int:
    """How many of the refused rows are whole files, which were not read as rows."""
    return sum(n for column, reason, n in _reasons(quality) if column == "" and reason in _FILES)


def _constant(quality: Quality) -> np.ndarray:
    return np.equal(quality.low, quality.high)


def _settings(found: TableModel) -> dict[str, Any]:
    default = KalproxRegressor().get_params(deep=False)
    settings = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in found.model.get_params(deep=False).items()
        if name in ("link", "penalty", "alpha") or not same(value, default[name])
    }
    more = [f"and {len(found.sources) - 20:,} more"] if len(found.sources) > 20 else []
    return settings | {"target": found.columns.target, "sources": [*found.sources[:20], *more]}


def _unit(found: TableModel) -> str:
    target = _label(-1, str(found.columns.target), other="the target")
    return f"in units of {target}" if found.model.link == "identity" else "before the link"


def _largest(effect: np.ndarray, among: np.ndarray, n: int, in_order: bool = False) -> np.ndarray:
    """The numbers of the n largest effects, largest first or in the columns' order."""
    order = [j for j in np.argsort(-effect, kind="stable") if among[j]][:n]
    return np.array(sorted(order) if in_order else order, int)


def _label(number: int, name: str, width: int = 32, other: str = "") -> str:
    """`name` as the figures' font can write it; else the column's number, which the table of coefficients has too."""
    short = cut(name, width)
    if short.strip() and all(ord(c) in _drawable() and unicodedata.bidirectional(c) not in ("R", "AL") for c in short):
        return short
    return other or f"column {number + 1}"


@cache
def _drawable() -> frozenset[int]:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont(figures.STYLE["font.family"])).get_charmap())


def _marked(table: Table, *names: int) -> Table:
    """`table` with these columns, which hold words from the data, marked as code: shown letter by letter."""

    def cell(i: int, value: Any) -> Any:
        return value if i not in names else code(value) if value else None

    return replace(table, rows=[[cell(i, value) for i, value in enumerate(row)] for row in table.rows])
