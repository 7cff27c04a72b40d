"""Insert the tables and the figure of runs into a page: `python -m benchmarks.page PAGE.md RESULT.json ...`.

The page, docs/explanation/performance.md, marks the place of each table: <!-- begin NAME --> ... <!-- end -->. The
figure is written to the folder performance/ beside it; the full tables are beside the results. If several results
contain the same benchmark, the last one is used.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import FLOOR
from benchmarks.table import one_line

Rows = list[dict[str, Any]]
# What the summary compares: what is done, the benchmark, and the two peers. Every d of the benchmark is a line.
_COMPARED = (
    ("fold of a long block", "linear", "kalprox Information.from_rows", FLOOR),
    ("`fit`, every row scored", "linear", "kalprox KalproxRegressor.fit", "scikit-learn Ridge"),
    (
        "one row, then one prediction",
        "one row, then one prediction",
        "kalprox KalproxRegressor",
        "River BayesianLinearRegression",
    ),
    ("one row, then one prediction", "one row, then one prediction", "kalprox KalproxRegressor", "padasip FilterRLS"),
    *(
        (
            f"`partial_fit` of {size} rows",
            f"batches of {size}, long stream",
            "kalprox partial_fit",
            "scikit-learn SGDRegressor",
        )
        for size in (16, 64, 256, 512, 1024, 4096)
    ),
    *(
        (
            f"`partial_fit` of {size} rows, the first 8,192",
            f"batches of {size}, new stream",
            "kalprox partial_fit",
            "scikit-learn SGDRegressor",
        )
        for size in (16, 256, 1024)
    ),
    ("`kalprox fit` of a CSV file", "commands", "kalprox fit, the command", "Vowpal Wabbit, the command"),
    ("L1 path of 100 points", "L1 to optimality", "kalprox fit and path", "scikit-learn lasso_path"),
    ("the sigmoid, from zero to the MAP", "sigmoid", "kalprox refine, from zero to the MAP", "SciPy least_squares, lm"),
    ("the paper's recursion", "sigmoid", "kalprox pipg, one pass", "numba, the same formula"),
)


def main(page: Path, *results: Path) -> None:
    rows: Rows = []
    heads = []
    for found in (json.loads(result.read_text()) for result in results):
        works = {row["work"] for row in found["rows"]}
        rows = [row for row in rows if row["work"] not in works] + found["rows"]
        heads.append(one_line(found))
    settings = [r for r in rows if r["work"] == "one row, then one prediction, by setting"]
    parts = {"machine": "\n\n".join(heads), "summary": _summary(rows), "settings": _settings(settings)}
    parts["files"] = _files([r for r in rows if r["work"].startswith("from files")])
    insert(page, parts)
    _figure(rows, page.parent / "performance")


def _summary(rows: Rows) -> str:
    """Return the table of ratios, one line for each comparison and one column for each d."""
    at = {(r["work"], r["peer"], r["d"]): r for r in rows}
    ds = (10, 20, 30, 50, 100, 300, 1000)
    lines = [["", "beside", *(f"d = {d:,}" for d in ds)], ["---", "---", *["---:"] * len(ds)]]
    for name, work, ours, theirs in _COMPARED:
        pairs = [(at.get((work, ours, d)), at.get((work, theirs, d))) for d in ds]
        if any(one and other for one, other in pairs):
            cells = [f"{one['us_per_row'] / other['us_per_row']:.2g}" if one and other else "" for one, other in pairs]
            lines.append([name, "X'X by BLAS" if theirs == FLOOR else theirs, *cells])
    return _table(lines)


def _settings(rows: Rows) -> str:
    """Return the table of single rows by setting: times relative to plain arrays and ridge."""
    ds = sorted({r["d"] for r in rows})
    at = {(r["peer"].removeprefix("kalprox, "), r["d"]): r["us_per_row"] for r in rows if r["peer"] != FLOOR}
    lines = [["", *(f"d = {d}" for d in ds)], ["---", *["---:"] * len(ds)]]
    for name in dict.fromkeys(name for name, _ in at):
        lines.append([name, *(f"{at[name, d] / at['ridge', d]:.2g}" for d in ds)])
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def insert(page: Path, parts: dict[str, str]) -> None:
    """Replace what the page has between the marks of each part."""
    text = page.read_text()
    for name, part in parts.items():
        marked = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end -->)", flags=re.S)
        text = marked.sub(lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text)
    page.write_text(text)


def _files(rows: Rows) -> str:
    """Return the table of peers by file format: thousands of rows per second."""
    formats = list(dict.fromkeys(r["work"].removeprefix("from files, ") for r in rows))
    at = {(r["peer"], r["work"].removeprefix("from files, ")): r for r in rows}
    lines = [["thousand rows a second", *formats, "error"], ["---", *["---:"] * (len(formats) + 1)]]
    for peer in dict.fromkeys(r["peer"] for r in rows):
        cells = [f"{1000 / at[peer, f]['us_per_row']:,.0f}" if (peer, f) in at else "" for f in formats]
        error = at[peer, formats[0]].get("error")
        lines.append([peer, *cells, "" if error is None else f"{error:.0e}"])
    return _table(lines)


_DRAWN = (
    FLOOR,
    "kalprox Information.fold, 4,096",
    "kalprox partial_fit, 4,096",
    "scikit-learn SGDRegressor, 4,096",
    "scikit-learn Ridge",
    "River BayesianLinearRegression.learn_one",
    "padasip FilterRLS",
)


def _figure(rows: Rows, folder: Path) -> None:
    """Draw the cost of a row against d."""
    from kalprox.display.plots import curves
    from kalprox.pages.page import Figure, render

    folder.mkdir(exist_ok=True)
    chosen = [r for r in rows if r["work"] == "linear"]
    xs = sorted({r["d"] for r in chosen})
    at = {(r["peer"], r["d"]): r["us_per_row"] for r in chosen}
    lines = {p: [at.get((p, x), float("nan")) for x in xs] for p in _DRAWN if any((p, x) in at for x in xs)}

    def draw(fig: Any) -> None:
        ax = fig.add_subplot()
        curves(ax, xs, lines, slots={p: _DRAWN.index(p) for p in lines})
        low = lines[FLOOR][-1]
        ax.plot(xs, [low * (x / xs[-1]) ** 2 for x in xs], color="#8a8a8a", linewidth=0.8, label="d² (slope)")
        ax.set_xlabel("coefficients d")
        ax.set_ylabel("µs a row, one core")
        fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)

    figure = Figure("cost-against-d", "", "", {}, draw, size=(6.4, 5.0))
    (folder / f"{figure.name}.svg").write_bytes(render(figure, "svg"))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
