"""The picture of docs/explanation/idea.md: rows become triangles, triangles add up, and the answer is read from one.

What is drawn is computed: three blocks of rows, the triangle of each, the triangle of all rows, and the coefficients
with their intervals. `python docs/figures/idea.py` draws `idea.svg`, and needs `kalprox[estimator,report]`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kalprox import Information, KalproxRegressor, merge
from kalprox.display.axes import FAINT, INK, LINES
from kalprox.pages import Figure
from kalprox.pages.page import write

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

TRUTH = np.array([1.0, -0.6, 0.3])
LENGTHS = (24, 14, 34)


def blocks() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(4)
    inputs = [rng.normal(size=(length, 3)) for length in LENGTHS]
    return [(X, X @ TRUTH + 0.8 * rng.normal(size=len(X))) for X in inputs]


def triangle(information: Information) -> np.ndarray:
    """R and z side by side, and the root of the residual sum of squares in the corner; NaN below the diagonal."""
    d = len(information.z)
    full = np.full((d + 1, d + 1), np.nan)
    full[:d, :d], full[:d, d], full[d, d] = information.R, information.z, np.sqrt(information.rss)
    full[np.tril_indices(d + 1, -1)] = np.nan
    return full


def heat(ax: "Axes", values: np.ndarray, title: str) -> None:
    limit = np.nanmax(abs(values))
    rows, columns = values.shape
    ax.pcolormesh(
        np.arange(columns + 1), np.arange(rows + 1), values, cmap="RdBu_r", vmin=-limit, vmax=limit, ec="white"
    )
    ax.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    ax.set_title(title, fontsize=9.5, fontweight="normal", loc="center")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def arrow(canvas: "matplotlib.figure.Figure", start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": FAINT, "linewidth": 1.4}
    canvas.axes[0].annotate(
        "",
        end,
        start,
        xycoords="figure fraction",
        textcoords="figure fraction",
        arrowprops=style,
        annotation_clip=False,
    )


def draw(canvas: "matplotlib.figure.Figure") -> None:
    canvas.set_layout_engine("none")
    data = blocks()
    parts = [Information.from_rows(X, y) for X, y in data]
    whole = merge(*parts)
    left, top, height = 0.10, 0.84, 0.0088
    for (X, y), part in zip(data, parts, strict=True):
        tall = height * len(y)
        rows = canvas.add_axes((left, top - tall, 0.085, tall))
        heat(rows, np.column_stack([X, y]), "")
        small = canvas.add_axes((0.315, top - tall / 2 - 0.09, 0.095, 0.18))
        heat(small, triangle(part), "")
        middle = top - tall / 2
        arrow(canvas, (left + 0.095, middle), (0.305, middle))
        arrow(canvas, (0.42, middle), (0.535, 0.49 + (middle - 0.49) * 0.25))
        canvas.text(left - 0.012, middle, f"{len(y)} rows", ha="right", va="center", fontsize=9, color=INK)
        top -= tall + 0.05
    heat(canvas.add_axes((0.55, 0.35, 0.14, 0.28)), triangle(whole), "")
    arrow(canvas, (0.70, 0.49), (0.765, 0.49))
    model = KalproxRegressor(penalty=None, fit_intercept=False).fit(*map(np.concatenate, zip(*data, strict=True)))
    low, high = model.coef_interval(0.95)
    answer = canvas.add_axes((0.80, 0.30, 0.18, 0.40))
    bars = [model.coef_ - low, high - model.coef_]
    answer.errorbar(range(3), model.coef_, bars, fmt="o", color=LINES[0][0], capsize=3, label="estimate, 95%")
    answer.plot(range(3), TRUTH, "_", color=LINES[1][0], markersize=16, markeredgewidth=2, label="truth")
    answer.set(
        xlim=(-0.5, 2.5), ylim=(-1.1, 2.2), xticks=range(3), xticklabels=["$\\theta_1$", "$\\theta_2$", "$\\theta_3$"]
    )
    answer.axhline(0, color=INK, linewidth=0.6)
    answer.legend(loc="upper right", fontsize=8, handlelength=1.2)
    steps = {0.1425: "rows", 0.3625: "their triangles", 0.62: "one triangle", 0.89: "the answer"}
    for (x, name), number in zip(steps.items(), (1, 2, 3, 4), strict=True):
        canvas.text(x, 0.93, f"{number}. {name}", ha="center", fontsize=10.5, fontweight="bold", color=INK)
    for x, words in {
        0.1425: "x and y, in batches,\nfiles, machines",
        0.3625: "as large as the columns,\nwhatever the rows",
    }.items():
        canvas.text(x, 0.045, words, ha="center", va="center", fontsize=9, color=INK)
    canvas.text(
        0.62, 0.22, "information adds:\nany order, any cuts,\nthe same triangle", ha="center", va="center", fontsize=9
    )
    canvas.text(0.89, 0.13, "penalty and noise level\nenter only here", ha="center", va="center", fontsize=9)


def figure() -> Figure:
    caption = (
        "Three blocks of rows; the triangle of each, which holds all that least squares needs; the triangle of all "
        "rows, which is their sum; and the coefficients with 95% intervals that are read from it."
    )
    return Figure("idea", "Information adds", caption, {"truth": TRUTH, "rows": list(LENGTHS)}, draw, (8.6, 4.2))


if __name__ == "__main__":
    write(figure(), Path(__file__).parent)
