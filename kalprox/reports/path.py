"""The regularisation path of a model that was fitted to files: a table, a figure, and a CSV file."""

from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from kalprox.base.files import atomic_write
from kalprox.base.text import csv_line, plain_number
from kalprox.display import plots
from kalprox.display.axes import line_style
from kalprox.jobs.model import TableModel
from kalprox.learning.linear import LinearBelief
from kalprox.learning.path import Path
from kalprox.pages import Figure, Section, Table
from kalprox.reports.summary import about_levels

if TYPE_CHECKING:
    import matplotlib.figure


_MAX_COLUMNS = 300  # of a model whose report contains the path: it takes O(d^3) per alpha


def table(fitted: TableModel, path: Path, *, grid: bool = True) -> Table:
    """For each alpha, the nonzero coefficients, the effective degrees of freedom and the score relative to the best.

    `grid` is False if the alphas were given, and not chosen so that the best is among them.
    """
    best = int(path.score.argmax())
    caption = (
        f"Regularisation path of {len(fitted.columns.names):,} coefficients. {about_levels(fitted)}"
        f"{path.criterion.capitalize()} is {path.score[best]:,.2f} at its best, with alpha = "
        f"{plain_number(path.alphas[best])}; the table shows how far the others are below. {_where(path, grid)}"
    )
    return Table(list(path.heads), [list(path.row(i)) for i in range(len(path.alphas))], caption.rstrip())


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
    chosen = float(fitted.belief.facts.alpha)

    def draw(fig: "matplotlib.figure.Figure") -> None:
        above, under = fig.subplots(2, sharex=True, height_ratios=(3, 2))
        order = plots.scores(above, path.alphas, path.score, path.criterion)
        alphas, edf = path.alphas[order], path.edf[order]
        under.plot(alphas, edf, **line_style(2) | {"markersize": 3.5})
        under.set(xlabel="alpha")
        under.set_ylabel("degrees of\nfreedom")
        under.set_ylim(0, 1.4 * float(edf.max()) or 1.0)
        plots.mark_alpha(above, alphas, chosen)
        plots.mark_alpha(under, alphas, chosen, f"alpha of the model: {plain_number(chosen)}")

    return Figure(
        "path",
        "Score and degrees of freedom along the regularisation path",
        f"{path.criterion.capitalize()} relative to the best alpha, down to -50; differences below 1 mean little. "
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
    return [Section("Weight of the penalty", text, [figure(fitted, fitted.learner.state.core.path(None))])]


def write(fitted: TableModel, path: Path, out: FilePath) -> None:
    """Write the path to a CSV file, atomically: alpha, degrees of freedom, score, intercept, and all coefficients.

    A name that a spreadsheet would take for a formula has an apostrophe in front; see `kalprox.base.text.csv_cell`.
    """
    lines = [csv_line(["alpha", "edf", "score", "intercept", *fitted.columns.names])]
    for alpha, edf, score, intercept, coef in zip(
        path.alphas, path.edf, path.score, path.intercept, path.coef, strict=True
    ):
        lines.append(csv_line([repr(float(v)) for v in (alpha, edf, score, intercept, *coef)]))
    atomic_write(out, "".join(lines).encode())
