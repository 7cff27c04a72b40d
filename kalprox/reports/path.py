"""The regularisation path of a model that was fitted to files: a table, a figure, and a CSV file."""

from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import numpy as np

from kalprox._files import atomic_write
from kalprox._text import csv_line, plain_number
from kalprox.jobs.model import TableModel
from kalprox.learning.belief import Path
from kalprox.learning.linear import LinearBelief
from kalprox.pages import Figure, Section, Table
from kalprox.pages.plots import thousands
from kalprox.pages.style import FAINT, INK, line_style
from kalprox.reports.summary import about_levels

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["figure", "sections", "table", "write"]

_MAX_COLUMNS = 300  # of a model whose report contains the path: it takes O(d^3) per alpha
_SHOWN = 50.0  # how far below the best the axis of scores extends


def table(fitted: TableModel, path: Path, *, grid: bool = True) -> Table:
    """For each alpha, the nonzero coefficients, the effective degrees of freedom and the score relative to the best.

    `grid` is False if the alphas were given, and not chosen so that the best is among them.
    """
    best = int(path.score.argmax())
    rows = [
        [plain_number(alpha), int((coef != 0).sum()), float(edf), below if i != best else "0 (best)"]
        for i, (alpha, coef, edf, below) in enumerate(
            zip(path.alphas, path.coef, path.edf, map(_below, path.score - path.score[best]), strict=True)
        )
    ]
    caption = (
        f"Regularisation path of {len(fitted.columns.names):,} coefficients. {about_levels(fitted)}"
        f"{_criterion(fitted).capitalize()} is {path.score[best]:,.2f} at its best, with alpha = "
        f"{plain_number(path.alphas[best])}; the table shows how far the others are below. {_where(path, grid)}"
    )
    columns = ["alpha", "nonzero", "degrees of freedom", f"{_criterion(fitted)}, from the best"]
    return Table(columns, rows, caption.rstrip())


def _below(difference: float) -> str:
    """A score relative to the best, with digits that tell neighbours apart."""
    return f"{difference:,.2f}" if difference > -1000 else f"{difference:,.0f}"


def _criterion(fitted: TableModel) -> str:
    return "log evidence" if fitted.learner.settings.penalty.selection == "evidence" else "-BIC/2"


def _where(path: Path, grid: bool) -> str:
    """What it means if the best alpha is the largest or the smallest; empty if it is neither."""
    best = path.alphas[int(path.score.argmax())]
    if len(path.alphas) < 2 or path.alphas.min() < best < path.alphas.max():
        return ""
    larger = best == path.alphas.max()
    if not grid:
        which, other = ("largest", "larger") if larger else ("smallest", "smaller")
        return f"The best is the {which} alpha that was given: the best of all may be {other}."
    if larger:
        return "The larger alpha, the better: the columns explain no more than noise would."
    return "The smaller alpha, the better: no penalty (--penalty none) does as well."


def figure(fitted: TableModel, path: Path) -> Figure:
    """The score and the degrees of freedom for alphas about the best, and the alpha of the model."""
    chosen = float(fitted.belief.alpha)
    order = np.argsort(path.alphas)[np.sort(path.alphas) > 0]  # ascending, without 0, which has no logarithm
    alphas, below, edf = path.alphas[order], path.score[order] - path.score.max(), path.edf[order]
    near = np.flatnonzero(below >= -_SHOWN)
    shown = slice(max(near.min(initial=len(below)) - 2, 0), near.max(initial=0) + 3)
    alphas, below, edf = alphas[shown], below[shown], edf[shown]

    def draw(fig: "matplotlib.figure.Figure") -> None:
        above, under = fig.subplots(2, sharex=True, height_ratios=(3, 2))
        best = int(below.argmax())
        above.plot(alphas, below, **line_style(0) | {"markersize": 3.5})
        above.set(ylim=(max(1.15 * float(below.min()), -1.3 * _SHOWN), 0.2 * _SHOWN))
        above.set_ylabel(f"{_criterion(fitted)},\nfrom the best")
        aligned = "left" if best < 2 else "right" if best > len(alphas) - 3 else "center"
        about = f"best: {plain_number(alphas[best])}"
        above.annotate(about, (alphas[best], below[best]), (0, 7), textcoords="offset points", ha=aligned)
        under.plot(alphas, edf, **line_style(2) | {"markersize": 3.5})
        under.set(xscale="log", xlabel="alpha")
        under.set_ylabel("degrees of\nfreedom")
        under.set_ylim(0, 1.4 * float(edf.max()) or 1.0)
        if alphas.min() <= chosen <= alphas.max():
            for ax in (above, under):
                ax.axvline(chosen, color=FAINT, linewidth=1, linestyle=(0, (4, 2)))
            left = np.log(chosen) * 2 < np.log(alphas.min()) + np.log(alphas.max())
            under.annotate(
                f"alpha of the model: {plain_number(chosen)}",
                (chosen, 0),
                (4 if left else -4, 4),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="left" if left else "right",
                color=INK,
            )
        thousands(above.yaxis)

    return Figure(
        "path",
        "Score and degrees of freedom along the regularisation path",
        f"{_criterion(fitted).capitalize()} relative to the best alpha, down to -50; differences below 1 mean little. "
        f"{_where(path, True)}".rstrip(),
        {"alpha": path.alphas, "score": path.score, "edf": path.edf, "chosen": chosen},
        draw,
        (6.8, 4.4),
    )


def sections(fitted: TableModel) -> list[Section]:
    """The section of a report about the path; none for a model that has no path, or too many columns for one."""
    belief, penalty = fitted.belief, fitted.learner.settings.penalty
    if not isinstance(belief, LinearBelief) or not penalty.has_weight or len(fitted.columns.names) > _MAX_COLUMNS:
        return []
    text = (
        "The same rows with other weights alpha of the penalty. `kalprox path` shows all of them, and writes their "
        "coefficients to a file; `--alpha auto` chooses alpha from the rows."
    )
    return [Section("Weight of the penalty", text, [figure(fitted, belief.path(None))])]


def write(fitted: TableModel, path: Path, out: FilePath) -> None:
    """Write the path to a CSV file, atomically: alpha, degrees of freedom, score, intercept, and all coefficients.

    A name that a spreadsheet would take for a formula has an apostrophe in front; see `kalprox._text.csv_cell`.
    """
    lines = [csv_line(["alpha", "edf", "score", "intercept", *fitted.columns.names])]
    for alpha, edf, score, intercept, coef in zip(
        path.alphas, path.edf, path.score, path.intercept, path.coef, strict=True
    ):
        lines.append(csv_line([repr(float(v)) for v in (alpha, edf, score, intercept, *coef)]))
    atomic_write(out, "".join(lines).encode())
