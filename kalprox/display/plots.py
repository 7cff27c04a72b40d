"""Plots: curves over runs, estimates and matrices, coefficients, paths, calibration."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.text import plain_number
from kalprox.display.axes import (
    FAINT,
    INK,
    LINES,
    axes_for,
    figure_label,
    ink,
    is_narrow,
    label_height,
    line_style,
    percent,
    thousands,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        The line style of each label; see `kalprox.display.axes.line_style`.
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
        The line style; see `kalprox.display.axes.line_style`.
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


MOST_LINES = len(LINES)  # lines that can be told apart
_MAX = 30  # coefficients in a figure of its own
_LEAST = 11.0  # points of the height of a coefficient
_SHOWN = 50.0  # how far below the best the axis of scores extends
_SMALL = {"markersize": 3.5}
_EVERY = 40  # points of a line, up to which each has a marker


def coefficients(
    ax: "Axes", labels: Sequence[str], coef: Array, low: Array, high: Array, targets: Sequence[str] = ("",)
) -> None:
    """Plot coefficients with their intervals, one below the other.

    Parameters
    ----------
    ax : Axes
    labels : sequence of str
        The names of n coefficients, shown as they are.
    coef, low, high : array of shape (k, n)
        The coefficients of k targets, and the ends of their intervals. A coefficient without a finite interval is a
        ring, which a legend explains.
    targets : sequence of str
        The names of the targets, for the legend, if there are several.
    """
    k, n = np.shape(coef)
    shifts = np.zeros(1) if k == 1 else np.linspace(-0.32, 0.32, k)
    ax.axvline(0, color=FAINT, linewidth=0.8)
    finite = np.isfinite(low) & np.isfinite(high)
    for i, (target, shift) in enumerate(zip(targets, shifts, strict=True)):
        style, place, bounded = line_style(i), np.arange(n) + shift, finite[i]
        marker = {"marker": style["marker"], "color": style["color"], "markersize": 3.2, "linestyle": "none"}
        ends = low[i, bounded], high[i, bounded]
        ax.hlines(place[bounded], *ends, color=style["color"], linewidth=3 if k == 1 else 2, alpha=0.55)
        ax.plot(coef[i, bounded], place[bounded], label=target, **marker)
        if not bounded.all():
            ring = marker | {"markerfacecolor": "none", "markersize": 4.5}
            ax.plot(coef[i, ~bounded], place[~bounded], label="no finite interval" * (i == 0), **ring)
    ax.set_yticks(np.arange(n), labels, parse_math=False, fontsize=min(9.5, 0.85 * label_height(ax, n)))
    ax.set(ylim=(n - 0.4, -0.6))
    ax.grid(visible=False, axis="y")
    ax.locator_params(axis="x", nbins=4 if is_narrow(ax.get_figure(root=True)) else 8)
    thousands(ax.xaxis)
    if k > 1 or not finite.all():
        ax.legend(fontsize="small")


def plot_coefficients(
    ax: "Axes | None",
    names: Sequence[str],
    coef: Array,
    low: Array,
    high: Array,
    effect: Array,
    *,
    level: float,
    top: int | None = None,
    what: str = "coefficient",
    targets: Sequence[str] = ("",),
) -> "Axes":
    """Plot coefficients with their intervals on `ax`, or on new axes that are as high as needed.

    Parameters
    ----------
    ax : Axes or None
    names : sequence of str
        The names of n coefficients.
    coef, low, high, effect : array of shape (n,) or (k, n)
        The coefficients of k targets, the ends of their intervals, and what decides which of them are shown.
    level : float
        The level of the intervals.
    top : int, optional
        The number of coefficients shown; by default as many as fit on `ax`, and `_MAX` at most.
    what : str
        What one of them is called.
    targets : sequence of str
        The names of the targets.

    Returns
    -------
    Axes
    """
    if top is not None and top < 1:
        raise ValueError(f"top must be at least 1; got {top}.")
    coef, low, high, effect = (np.atleast_2d(a) for a in (coef, low, high, effect))
    k, n = coef.shape
    if n == 0:
        raise ValueError(f"There is no {what} to plot.")
    if k > MOST_LINES:
        raise ValueError(f"At most {MOST_LINES} of the {k} targets can be told apart in a plot: choose with targets.")
    rows = 0.5 * (1 + k)  # the height of a coefficient of k targets, in that of one
    few = max(int(_MAX / rows), 1)
    if ax is not None:
        axes_for(ax)
        few = min(few, max(int(label_height(ax, 1) / _LEAST / rows), 3))
    shown = np.arange(n)
    if n > (few if top is None else top):
        shown = np.sort(np.argsort(-np.nan_to_num(effect).max(axis=0), kind="stable")[: few if top is None else top])
    ax = axes_for(ax, (6.4, 1.3 + 0.23 * rows * len(shown)))
    labels = [figure_label(names[j], f"{what} {j + 1}") for j in shown]
    coefficients(ax, labels, coef[:, shown], low[:, shown], high[:, shown], targets)
    only = f"\n(the {len(shown)} largest effects of {n:,})" if len(shown) < n else ""
    ax.set_xlabel(f"{what}, with {100 * level:.4g}% intervals{only}", loc="right")  # there is room to the left
    return ax


def lines(
    ax: "Axes",
    x: Array,
    values: Array,
    labels: Sequence[str],
    shown: Array,
    bands: tuple[Array, Array] | None = None,
) -> None:
    """Plot one line per column of `values`: a few with labels, and the others thin and grey.

    Parameters
    ----------
    ax : Axes
    x : array of shape (n,)
    values : array of shape (n, m)
    labels : sequence of str
        The names of the lines in `shown`.
    shown : array of int
        The columns that are labelled, at most `MOST_LINES`.
    bands : tuple of array, optional
        The lower and the upper ends of a band about each line, of the shape of `values`. Only labelled lines have one.
    """
    others = np.setdiff1d(np.arange(values.shape[1]), shown)
    if len(others):
        ax.plot(x, values[:, others], color=FAINT, linewidth=0.6, alpha=max(0.15, 0.7 - len(others) / 300))
    for slot, (label, j) in enumerate(zip(labels, shown, strict=True)):
        style = line_style(slot) | (_SMALL if len(x) <= _EVERY else {"marker": ""})
        if bands is not None:
            low, high = (np.where(np.isfinite(end[:, j]), end[:, j], np.nan) for end in bands)
            ax.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)
        ax.plot(x, values[:, j], label=label, **style)


def legend(ax: "Axes", title: str = "", *, outside: bool = False) -> None:
    """Explain the lines, with names shown as they are: on the axes, or to the right of them, where there is room."""
    where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if outside else {}
    found = ax.legend(fontsize="small", title=title or None, title_fontsize="small", frameon=not outside, **where)
    for text in found.get_texts():
        text.set_parse_math(False)


def scores(ax: "Axes", alphas: Array, score: Array, criterion: str) -> Array:
    """Plot the scores of a path relative to the best, for alphas about it; return the places of the alphas shown."""
    order = np.argsort(alphas)[np.sort(alphas) > 0]  # ascending, without 0, which has no logarithm
    below = score[order] - score.max()
    near = np.flatnonzero(below >= -_SHOWN)
    shown = slice(max(near.min(initial=len(below)) - 2, 0), near.max(initial=0) + 3)
    order, below = order[shown], below[shown]
    best = int(below.argmax())
    ax.plot(alphas[order], below, **line_style(0) | _SMALL)
    ax.set(xscale="log", ylim=(max(1.15 * float(below.min()), -1.3 * _SHOWN), 0.2 * _SHOWN))
    ax.set_ylabel(f"{criterion},\nfrom the best")
    aligned = "left" if best < 2 else "right" if best > len(order) - 3 else "center"
    about, place = f"best: {plain_number(alphas[order[best]])}", (alphas[order[best]], below[best])
    ax.annotate(about, place, (0, 7), textcoords="offset points", ha=aligned)
    thousands(ax.yaxis)
    return order


def mark_alpha(ax: "Axes", alphas: Array, chosen: float, text: str = "", label: str | None = None) -> None:
    """Mark an alpha by a vertical line, if it lies among positive `alphas`, with a text beside its lower end."""
    if not alphas.min() <= chosen <= alphas.max():
        return
    ax.axvline(chosen, color=FAINT, linewidth=1, linestyle=(0, (4, 2)), label=label)
    if not text:
        return
    left = np.log(chosen) * 2 < np.log(alphas.min()) + np.log(alphas.max())
    ax.annotate(
        text,
        (chosen, 0),
        (4 if left else -4, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="left" if left else "right",
        color=ink(),
    )


def pit(ax: "Axes", shares: Array, rows: int, *, slot: int = 0, label: str = "observed") -> None:
    """Plot the histogram of the probability integral transform, and where its bars lie if calibrated.

    Parameters
    ----------
    ax : Axes
    shares : array of shape (bins,)
        The share of the rows in each bin.
    rows : int
        The number of independent observations. A band contains 95% of the bars of calibrated predictions.
    slot, label
        The colour, and the name of the bars.
    """
    from scipy import stats

    bins = len(shares)
    density, edges = np.asarray(shares) * bins, np.arange(bins + 1) / bins
    colour = line_style(slot)["color"]
    if "calibrated" not in ax.get_legend_handles_labels()[1]:
        low, high = (float(end) * bins / rows for end in stats.binom.interval(0.95, rows, 1 / bins))
        ax.bar(edges[:-1] + 0.5 / bins, density, 0.92 / bins, color=colour, alpha=0.75, label=label)
        ax.axhspan(low, high, color=FAINT, alpha=0.3, linewidth=0)
        ax.axhline(1, color=ink(), linewidth=0.9, label="calibrated")
        ax.set(xlim=(0, 1), ylim=(0, 1.05 * max(high, float(density.max()))), ylabel="density")
    else:
        ax.stairs(density, edges, color=colour, linewidth=1.6, label=label)
        ax.set_ylim(0, max(ax.get_ylim()[1], 1.05 * float(density.max())))
    ax.set_xlabel("PIT: predicted probability\nof a value below the observed one")


def reliability(
    ax: "Axes", stated: Array, observed: Array, low: Array, high: Array, *, slot: int = 0, label: str = "observed"
) -> None:
    """Plot the share of events among rows against their stated probability.

    Parameters
    ----------
    ax : Axes
    stated, observed, low, high : array of shape (n,)
        The stated probability of each group of rows, the share of events in it, and the ends of its interval.
    slot : int
    label : str
    """
    most = min(1.0, 1.08 * max(float(np.max(stated)), float(np.max(high))))
    if "calibrated" not in ax.get_legend_handles_labels()[1]:
        ax.plot([0, 1], [0, 1], color=FAINT, linewidth=1, label="calibrated")
    else:
        most = max(most, ax.get_xlim()[1])
    style = line_style(slot)
    ax.vlines(stated, low, high, color=style["color"], linewidth=2, alpha=0.55)
    ax.plot(stated, observed, label=label, **style | _SMALL)
    ax.set(xlim=(0, most), ylim=(0, most), aspect="equal", xlabel="stated probability", ylabel="share of events")
    percent(ax, 0 if most > 0.1 else 1)


def roc(ax: "Axes", false: Array, true: Array, *, slot: int = 0, label: str = "observed") -> None:
    """Plot the share of the events that are found against the share of false alarms.

    Parameters
    ----------
    ax : Axes
    false, true : array of shape (n,)
        The two shares, for each threshold.
    slot : int
    label : str
    """
    _against_random(ax, false, true, slot, label)
    ax.set(aspect="equal", xlabel="false alarms, of the rows without the event", ylabel="events found")


def lift(ax: "Axes", rows: Array, events: Array, *, slot: int = 0, label: str = "observed") -> None:
    """Plot the share of the events among the rows with the largest probabilities.

    Parameters
    ----------
    ax : Axes
    rows, events : array of shape (n,)
        The share of the rows, the most probable first, and of the events among them.
    slot : int
    label : str
    """
    _against_random(ax, np.append(0.0, rows), np.append(0.0, events), slot, label)
    ax.set(xlabel="rows, the most probable first", ylabel="share of all events")


def _against_random(ax: "Axes", x: Array, y: Array, slot: int, label: str) -> None:
    if "random order" not in ax.get_legend_handles_labels()[1]:
        ax.plot([0, 1], [0, 1], color=FAINT, linewidth=1, label="random order")
    ax.plot(x, y, label=label, **line_style(slot) | ({"marker": ""} if len(x) > _EVERY else _SMALL))
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    percent(ax)


def along_stream(
    ax: "Axes", rows: Array, values: Array, expected: float, margin: Array, label: str, slot: int = 0
) -> None:
    """Plot a mean over segments of a stream, what is expected of it, and the range of 95% of calibrated segments.

    Parameters
    ----------
    ax : Axes
    rows : array of shape (m + 1,)
        The rows at which the segments begin, and at which the last one ends.
    values, margin : array of shape (m,)
        The mean of each segment, and how far it may lie from what is expected.
    expected : float
    label : str
    slot : int
    """
    style = line_style(slot) | _SMALL
    edges, around = np.repeat(rows, 2)[1:-1], np.repeat(margin, 2)
    ax.fill_between(edges, expected - around, expected + around, color=style["color"], alpha=0.14, linewidth=0)
    ax.axhline(expected, color=FAINT, linewidth=0.9)
    ax.plot((rows[1:] + rows[:-1]) / 2, values, label=label, **style)
    thousands(ax.xaxis)


def stacked(ax: "Axes", x: Array, shares: Array, labels: Sequence[str], ylabel: str) -> None:
    """Plot shares that add up to 1 along x, one above the other.

    Parameters
    ----------
    ax : Axes
    x : array of shape (n,)
    shares : array of shape (n, m)
    labels : sequence of str
        The names of the m shares.
    ylabel : str
    """
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0.05, 0.95, len(labels)))
    ax.stackplot(x, shares.T, labels=labels, colors=colours, linewidth=0.3, edgecolor="white")
    ax.set(xlim=(float(x[0]), float(max(x[-1], x[0] + 1))), ylim=(0, 1), xlabel="rows", ylabel=ylabel)
    thousands(ax.xaxis)
    legend(ax, outside=True)


def directions(ax: "Axes", labels: Sequence[str], information: Array, determined: Array) -> None:
    """Plot how much is known along each of several directions, on a logarithmic scale.

    Parameters
    ----------
    ax : Axes
    labels : sequence of str
        What each of the n directions is.
    information : array of shape (n,)
        The information along each; 1 is that of uncorrelated columns.
    determined : array of bool, shape (n,)
        Directions that are not determined have no bar, and a cross instead.
    """
    from matplotlib.ticker import NullFormatter

    place, known = np.arange(len(labels)), np.asarray(determined, bool)
    least = min(float(information[known].min(initial=1.0)) / 3, 0.05)
    most = max(2 * float(information[known].max(initial=1.0)), 3.0)
    ax.set(xscale="log", xlim=(least, most), ylim=(len(labels) - 0.4, -0.6))
    ax.barh(place[known], information[known], 0.62, color=line_style(0)["color"], alpha=0.75)
    if not known.all():
        style = line_style(1)
        ax.plot(
            np.full((~known).sum(), least * (most / least) ** 0.03), place[~known], "x", color=style["color"],
            label="not determined by the rows", markersize=6, markeredgewidth=1.6,
        )  # fmt: skip
        ax.legend(fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, borderaxespad=0.0)
    ax.axvline(1, color=ink(), linewidth=0.9)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_yticks(place, labels, parse_math=False, fontsize=min(9.5, 0.85 * label_height(ax, len(labels))))
    ax.grid(visible=False, axis="y")
