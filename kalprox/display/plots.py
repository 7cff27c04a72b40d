"""Plots for the axes of a figure: curves over runs, sweeps, estimates, matrices, calibration."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kalprox.base.arrays import Array
from kalprox.display.axes import percent
from kalprox.display.style import FAINT, INK, LINES, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "calibration",
    "curves",
    "estimates",
    "matrix",
    "quantile_bands",
    "sweep",
    "traces",
]


def quantile_bands(runs: Array) -> np.ndarray:
    """The 10%, 50% and 90% quantiles over runs.

    Parameters
    ----------
    runs : array of shape (n_runs, ...)
        A value that is not finite belongs to a run that has diverged, and counts as infinite: if such runs were left
        out, the others would make the method look better than it is.

    Returns
    -------
    ndarray of shape (3, ...)

    Examples
    --------
    >>> quantile_bands(np.array([[1.0], [2.0], [np.nan]]))[1:]
    array([[ 2.],
           [inf]])
    """
    values = np.asarray(runs, float)
    ordered = np.sort(np.where(np.isfinite(values), values, np.inf), axis=0)
    place = np.array([0.1, 0.5, 0.9]) * (len(ordered) - 1)
    below = np.floor(place + 1e-9).astype(int)
    share = np.clip(place - below, 0, 1).reshape(3, *[1] * (ordered.ndim - 1))
    low, high = ordered[below], ordered[np.minimum(below + 1, len(ordered) - 1)]
    with np.errstate(invalid="ignore"):  # inf - inf, where both neighbours have diverged
        between: np.ndarray = np.where((share > 1e-9) & (high > low), low + share * (high - low), low)
        return between


def curves(ax: "Axes", x: Array, runs: Mapping[str, Array], slots: Mapping[str, int] | None = None) -> None:
    """Plot the median over runs as a line, and the 10% to 90% quantiles as a band around it, on logarithmic axes.

    A line ends where half of the runs have diverged; where a tenth has, the band reaches up to the largest number in
    the plot.

    Parameters
    ----------
    ax : Axes
    x : array of shape (n,)
    runs : mapping of str to array
        For each label, an array of shape (n_runs, n), or (n,) for a single line without a band.
    slots : mapping of str to int, optional
        The line style of each label; see `kalprox.display.style.line_style`.
    """
    drawn = {label: quantile_bands(np.atleast_2d(values)) for label, values in runs.items()}
    finite = [q[np.isfinite(q)] for q in drawn.values()]
    top = max((q.max() for q in finite if q.size), default=1.0)
    for i, (label, (low, middle, high)) in enumerate(drawn.items()):
        slot = i if slots is None else slots[label]
        style = line_style(slot)
        if np.ndim(runs[label]) == 2 and len(runs[label]) > 1:
            shown = np.isfinite(low)
            high = np.where(np.isfinite(high), high, top)
            ax.fill_between(x, low, high, where=shown, color=style["color"], alpha=0.16, linewidth=0)
        line = np.where(np.isfinite(middle), middle, np.nan)
        start = 0.02 + 0.14 * (slot % len(LINES)) / len(LINES)  # so that markers of different lines do not coincide
        ax.plot(x, line, label=label, markevery=(start, 0.14), markeredgecolor="white", markeredgewidth=0.6, **style)
    ax.set(xscale="log", yscale="log")


def sweep(ax: "Axes", x: Array, runs: Array, label: str, *, slot: int = 0) -> None:
    """Plot each run, of an array of shape (n_runs, n), as a thin translucent line; one label stands for all of them.

    A run is drawn as far as it is finite. Where runs diverge, limit the axis with `ax.set_ylim`. Both axes are
    logarithmic.
    """
    values = np.asarray(runs, float)
    style = line_style(slot) | {"marker": ""}
    middle = int(np.argsort(values[:, -1], kind="stable")[len(values) // 2])
    for i, run in enumerate(np.where(np.isfinite(values), values, np.nan)):
        ax.plot(x, run, linewidth=0.7, alpha=0.45, label=label if i == middle else None, **style)
    ax.set(xscale="log", yscale="log")


def traces(ax: "Axes", x: Array, values: Array, label: str) -> None:
    """Plot each column of `values`, of shape (n, d), as a thin line, and their median on top, on logarithmic axes."""
    values = np.asarray(values, float)
    sweep(ax, x, values.T, label)
    ax.plot(x, np.median(values, axis=1), color=INK, label="median")


def estimates(ax: "Axes", truth: Array, mean: Array, std: Array, *, slot: int = 0) -> None:
    """Plot estimates with ±2 sigma bars, and the true values as stems, over their index.

    Estimates whose bars do not contain the truth are crosses, and their label counts them. The truth is drawn only
    once on the same axes.
    """
    from matplotlib.ticker import MaxNLocator

    truth, mean, bar = np.asarray(truth, float), np.asarray(mean, float), 2 * np.asarray(std, float)
    index = np.arange(1, len(mean) + 1)
    style = line_style(slot)
    if "truth" not in ax.get_legend_handles_labels()[1]:
        ax.axhline(0, color=FAINT, linewidth=0.6)
        ax.vlines(index, 0, truth, color="#c4c4c4", linewidth=1.1)
        ax.plot(index, truth, "o", color=INK, markerfacecolor="white", markersize=4.6, label="truth", zorder=2.5)
    missed = ~(np.abs(truth - mean) <= bar)
    ax.errorbar(index, mean, bar, fmt="none", ecolor=style["color"], elinewidth=1.1, capsize=1.6)
    what = "estimate, ±2\N{GREEK SMALL LETTER SIGMA}"
    groups = [(~missed, what, {"marker": style["marker"], "markersize": 3.8})]
    if missed.any():
        words = f"estimate, truth outside: {missed.sum()} of {len(mean)}"
        groups += [(missed, words, {"marker": "x", "markersize": 4.8, "markeredgewidth": 1.3})]
    for group, words, marker in groups:
        ax.plot(index[group], mean[group], color=style["color"], linestyle="none", zorder=3, label=words, **marker)
    ax.set_xlim(0.2, len(mean) + 0.8)
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    ax.grid(visible=False, axis="x")


def matrix(ax: "Axes", M: Array, label: str, *, limit: float | None = None) -> None:
    """Plot a square matrix as an image: positive entries red, negative entries blue, zeros white.

    The colours end at ±`limit`, by default the largest absolute value. Entries that are not finite are grey. `label` is
    the label of the colour bar.
    """
    import matplotlib

    M = np.asarray(M, float)
    if limit is None:
        limit = float(np.max(np.abs(M), where=np.isfinite(M), initial=0.0)) or 1.0
    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#999999")
    end = len(M) + 0.5
    image = ax.imshow(
        M, cmap=colours, vmin=-limit, vmax=limit, interpolation="none", extent=(0.5, end, end, 0.5), resample=False
    )
    ax.grid(visible=False)
    ax.spines[["top", "right"]].set_visible(True)
    bar = ax.figure.colorbar(image, ax=ax, label=label, shrink=0.9, pad=0.03)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)  # one image instead of a path for each of its 256 colours


def calibration(
    ax: "Axes",
    levels: Array,
    coverage: Array,
    *,
    rows: int,
    label: str = "observed",
    slot: int = 0,
) -> None:
    """Plot the observed coverage of intervals against their nominal levels.

    Parameters
    ----------
    ax : Axes
    levels, coverage : array of shape (n,)
        The nominal levels, and the share of the observations that the intervals of each level contain.
    rows : int
        The number of independent observations. A band shows where the observed coverage of calibrated intervals lies
        with probability 95%, by the binomial distribution.
    label : str
    slot : int
        The line style; see `kalprox.display.style.line_style`.
    """
    grid = np.linspace(0, 1, 201)
    if "calibrated" not in ax.get_legend_handles_labels()[1]:
        from scipy import stats

        low, high = stats.binom.interval(0.95, rows, grid)
        ax.plot(grid, grid, color=FAINT, linewidth=1, label="calibrated")
        ax.fill_between(grid, low / rows, high / rows, color=FAINT, alpha=0.22, linewidth=0)
    ax.plot(levels, coverage, label=label, **line_style(slot))
    ax.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal", xlabel="nominal coverage", ylabel="observed coverage")
    percent(ax)
