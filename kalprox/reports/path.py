"""The regularisation path of a fitted table, as a table and as a file."""

import csv
import io
from pathlib import Path as File

from kalprox._files import replace
from kalprox.estimators.linear import Path
from kalprox.jobs.model import TableModel
from kalprox.pages import Table

__all__ = ["table", "write"]


def table(found: TableModel, path: Path) -> Table:
    """For each alpha: nonzero coefficients, effective degrees of freedom, score; the highest score is marked."""
    best = int(path.score.argmax())
    what = "log evidence" if found.model.penalty == "ridge" else "-BIC/2"
    rows = [
        [f"{alpha:.4g}", int((coef != 0).sum()), float(edf), float(score), "best" if i == best else ""]
        for i, (alpha, coef, edf, score) in enumerate(zip(path.alphas, path.coef, path.edf, path.score, strict=True))
    ]
    return Table(
        ["alpha", "nonzero", "degrees of freedom", what, ""], rows, f"Of {len(found.columns.names):,} columns."
    )


def write(found: TableModel, path: Path, out: File) -> None:
    """CSV: alpha, degrees of freedom, score, intercept, and every coefficient by name; whole or not at all."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["alpha", "edf", "score", "intercept", *found.columns.names])
    for alpha, edf, score, intercept, coef in zip(
        path.alphas, path.edf, path.score, path.intercept, path.coef, strict=True
    ):
        lines.writerow([repr(float(v)) for v in (alpha, edf, score, intercept, *coef)])
    replace(out, text.getvalue().encode())
