"""`python -m benchmarks.page docs/performance.md RESULT.json ...`: insert the tables and figures of runs into the page.

The page marks the place of each table: <!-- begin NAME --> ... <!-- end -->. Figures are written to the folder
performance/ beside it. If several results contain the same benchmark, the last one is used.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import FLOOR
from benchmarks.table import of_peers, one_line

Rows = list[dict[str, Any]]
_SLIM = ("import_mb", "seconds")  # columns of the result that the page omits


def main(page: Path, *results: Path) -> None:
    rows: Rows = []
    heads = []
    for found in (json.loads(result.read_text()) for result in results):
        works = {row["work"] for row in found["rows"]}
        rows = [row for row in rows if row["work"] not in works] + found["rows"]
        heads.append(one_line(found))
    parts = {"machine": "\n\n".join(heads), "linear": _linear(rows)}
    for name, work in {
        "ill-conditioned": "linear, ill-conditioned",
        "sigmoid": "sigmoid",
        "sweep": "sweep of 40 step sizes",
        "rows": "one row, then one prediction",
        "l1": "L1 to optimality",
        "commands": "commands",
    }.items():
        parts[name] = _tables([r for r in rows if r["work"] == work])
    parts["files"] = _files([r for r in rows if r["work"].startswith("from files")])
    insert(page, parts)
    _figures(rows, page.parent / "performance")


def insert(page: Path, parts: dict[str, str]) -> None:
    """Replace what the page has between the marks of each part."""
    text = page.read_text()
    for name, part in parts.items():
        marked = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end -->)", flags=re.S)
        text = marked.sub(lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text)
    page.write_text(text)


def _linear(rows: Rows) -> str:
    """Return the table of peers by d: time relative to the floor, and rows, time, memory and error at d = 100."""
    rows = [r for r in rows if r["work"] == "linear"]
    ds, at = sorted({r["d"] for r in rows}), {(r["peer"], r["d"]): r for r in rows}
    head = ["× floor at d =", *(f"{d:,}" for d in ds), "rows", "µs a row", "peak MB", "error", "prediction"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for peer in dict.fromkeys(r["peer"] for r in rows):
        cells = [_short(at[peer, d]["ratio"]) if (peer, d) in at else "" for d in ds]
        main = at.get((peer, 100), {})
        cells += [f"{main['rows']:,}" if main else "", _short(main.get("us_per_row"))]
        cells += [f"{main['peak_mb']:,.0f}" if main else ""]
        cells += [f"{main['error']:.0e}" if main.get("error") is not None else "", _short(main.get("prediction"))]
        lines.append([f"{peer} {at[peer, ds[0]]['version']}" if (peer, ds[0]) in at else peer, *cells])
    floors = [_short(at[FLOOR, d]["us_per_row"]) for d in ds if (FLOOR, d) in at]
    lines.append(["the floor, µs a row", *floors, *[""] * 5])
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _tables(rows: Rows) -> str:
    sizes = dict.fromkeys((r["d"], r["n"]) for r in rows)
    parts = []
    for d, n in sizes:
        chosen = [r for r in rows if (r["d"], r["n"]) == (d, n)]
        parts.append(f"\nd = {d:,}, n = {n:,}:\n\n{of_peers(chosen, leave=_SLIM)}\n")
    return "".join(parts)


def _files(rows: Rows) -> str:
    """Return the table of peers by file format: thousands of rows per second."""
    formats = list(dict.fromkeys(r["work"].removeprefix("from files, ") for r in rows))
    at = {(r["peer"], r["work"].removeprefix("from files, ")): r for r in rows}
    lines = [["thousand rows a second", *formats, "error"], ["---", *["---:"] * (len(formats) + 1)]]
    for peer in dict.fromkeys(r["peer"] for r in rows):
        cells = [f"{1000 / at[peer, f]['us_per_row']:,.0f}" if (peer, f) in at else "" for f in formats]
        error = at[peer, formats[0]].get("error")
        lines.append([peer, *cells, "" if error is None else f"{error:.0e}"])
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


_DRAWN = (  # the style of each peer, the same in both figures
    FLOOR,
    "kalprox Information.fold, 4,096",
    "kalprox partial_fit, 4,096",
    "scikit-learn SGDRegressor, 4,096",
    "scikit-learn Ridge",
    "River BayesianLinearRegression.learn_one",
    "padasip FilterRLS",
)


def _figures(rows: Rows, folder: Path) -> None:
    from kalprox.pages.figures import Figure, render
    from kalprox.pages.plots import curves

    folder.mkdir(exist_ok=True)
    for work, along, label, floor_power in (
        ("linear", "d", "coefficients d", True),
        ("linear, against n", "n", "rows n, at d = 100", False),
    ):
        chosen = [r for r in rows if r["work"] == work]
        xs = sorted({r[along] for r in chosen})
        at = {(r["peer"], r[along]): r["us_per_row"] for r in chosen}
        lines = {p: [at.get((p, x), float("nan")) for x in xs] for p in _DRAWN if any((p, x) in at for x in xs)}

        def draw(fig: Any, xs: Any = xs, lines: Any = lines, label: Any = label, square: bool = floor_power) -> None:
            ax = fig.add_subplot()
            curves(ax, xs, lines, log_x=True, slots={p: _DRAWN.index(p) for p in lines}, legend=None)
            if square:
                low = lines[FLOOR][-1]
                ax.plot(xs, [low * (x / xs[-1]) ** 2 for x in xs], color="#8a8a8a", linewidth=0.8, label="d² (slope)")
            ax.set_xlabel(label)
            ax.set_ylabel("µs a row, one core")
            fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)

        figure = Figure(f"cost-against-{along}", "", "", {}, draw, size=(6.4, 5.0))
        (folder / f"{figure.name}.svg").write_bytes(render(figure, "svg"))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
