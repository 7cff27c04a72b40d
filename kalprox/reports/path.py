"""The regularisation path of a model that was fitted to files, as a table and as a CSV file."""

from pathlib import Path as FilePath

from kalprox._files import atomic_write
from kalprox._text import csv_line
from kalprox.jobs.model import TableModel
from kalprox.learning.belief import Path
from kalprox.pages import Table
from kalprox.reports.summary import about_levels

__all__ = ["table", "write"]


def table(fitted: TableModel, path: Path) -> Table:
    """For each alpha, the nonzero coefficients, the effective degrees of freedom and the score; the best is marked."""
    best = int(path.score.argmax())
    criterion = "log evidence" if fitted.learner.settings.penalty.selection == "evidence" else "-BIC/2"
    rows = [
        [f"{alpha:.4g}", int((coef != 0).sum()), float(edf), float(score), "best" if i == best else ""]
        for i, (alpha, coef, edf, score) in enumerate(zip(path.alphas, path.coef, path.edf, path.score, strict=True))
    ]
    return Table(
        ["alpha", "nonzero", "degrees of freedom", criterion, ""],
        rows,
        f"Regularisation path of {len(fitted.columns.names):,} coefficients. {about_levels(fitted)}".rstrip(),
    )


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
