"""Axes that a plot is drawn on, and the common style of all figures: colours, fonts, labels and ticks."""

import textwrap
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.base.extras import load
from kalprox.base.text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, FAINT = "#222222", "#8a8a8a"
NARROW = 3.9  # inches: the width of figures on the screen of a phone, where 96 pixels are an inch

# The palette of Okabe and Ito without its yellow, which is hard to see on white. Every colour has its own line style
# and marker, so that lines can be told apart in black and white too.
LINES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", (0, (5, 1.6)), "s"),
    ("#009E73", (0, (5, 1.4, 1.2, 1.4)), "^"),
    ("#CC79A7", (0, (1.3, 1.3)), "D"),
    ("#E69F00", (0, (8, 2)), "v"),
    ("#56B4E9", (0, (3, 1.2, 1, 1.2, 1, 1.2)), "P"),
    ("#000000", (0, (2.5, 1.5)), "X"),
)

# Matplotlib's rcParams, on top of its own defaults.
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.formatter.limits": (-3, 6),
    "axes.formatter.use_mathtext": True,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10.5,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "font.family": "DejaVu Sans",  # part of matplotlib, so that figures are the same on every machine
    "font.size": 10,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "image.composite_image": False,
    "legend.borderaxespad": 0.3,
    "legend.edgecolor": "none",
    "legend.fancybox": False,
    "legend.fontsize": 9.5,
    "legend.framealpha": 0.85,
    "legend.handlelength": 2.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "pdf.fonttype": 42,  # text stays text, as journals require
    "svg.fonttype": "path",  # looks the same where the font is not installed
    "svg.hashsalt": "kalprox",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 10.5,  # exponents, at 70%, are not below 9 pixels on a phone
    "ytick.color": INK,
    "ytick.labelsize": 10.5,
}


def line_style(slot: int) -> dict[str, Any]:
    """Colour, line style and marker number `slot`, as arguments of `ax.plot`.

    The same thing should have the same slot in every figure of a page.

    >>> line_style(0)
    {'color': '#0072B2', 'linestyle': '-', 'marker': 'o'}
    """
    return dict(zip(("color", "linestyle", "marker"), LINES[slot % len(LINES)], strict=True))


_LABEL = 9.5  # points: the size of labels beside lines


def axes_for(ax: "Axes | None", size: tuple[float, float] = (6.4, 4.0)) -> "Axes":
    """Return `ax`, or the axes of a new figure of pyplot if it is None, so that notebooks and windows show it.

    Parameters
    ----------
    ax : Axes or None
    size : tuple of float
        Width and height of the new figure in inches.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError
        If `ax` is something else, such as a figure or an array of axes.
    """
    load("matplotlib", "report", "plot needs")
    from matplotlib.axes import Axes

    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(figsize=size, layout="constrained")[1]
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color=FAINT, alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)
    if not isinstance(ax, Axes):
        raise TypeError(f"ax must be axes of matplotlib, such as plt.gca(), or None; got {type(ax).__name__}.")
    return ax


def unused_slot(ax: "Axes") -> int:
    """Return the first line style that no labelled line of the axes has, so that a second plot differs."""
    from matplotlib.colors import same_color

    used = [line.get_color() for line in ax.lines if not str(line.get_label()).startswith("_")]
    free = (i for i, (colour, *_) in enumerate(LINES) if not any(same_color(colour, other) for other in used))
    return next(free, 0)


def ink() -> str:
    """Return the colour of text, which suits the background."""
    import matplotlib

    return str(matplotlib.rcParams["text.color"])


def is_narrow(fig: "Figure | None") -> bool:
    """Whether the figure is drawn for the screen of a phone."""
    return fig is not None and fig.get_figwidth() <= NARROW


def panels(fig: "Figure", n: int, **options: Any) -> "list[Axes]":
    """n axes side by side, or one below the other on narrow screens; `options` are those of `fig.subplots`."""
    shape = (n, 1) if is_narrow(fig) else (1, n)
    return list(fig.subplots(*shape, squeeze=False, **options).ravel())


def label_panels(axes: "Sequence[Axes]", x: str, y: str) -> None:
    """Label the axes of `panels` that share their scales, and the lines: once, or in each if they are stacked."""
    narrow = is_narrow(axes[0].get_figure(root=True))
    for ax in axes if narrow else axes[-1:]:
        label_ends(ax)
    for ax in axes if narrow else axes[:1]:
        ax.set_ylabel(y)
    for ax in axes[-1:] if narrow else axes:
        ax.set_xlabel(x)


def label_ends(ax: "Axes") -> None:
    """Write the label of each line beside its right end, where a legend would have to be searched.

    Labels that would overlap are moved apart. Call it last, when the limits of the axes are known.
    """
    lines = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    low, high = ax.yaxis.get_transform().transform(np.array(ax.get_ylim(), float))
    ends = []
    for line in lines:
        y = np.asarray(line.get_ydata(), float)
        y = y[np.isfinite(y)]
        if y.size:
            height = float((ax.yaxis.get_transform().transform(y[-1:])[0] - low) / (high - low))
            ends.append((min(max(height, 0.0), 1.0), line))
    ends.sort(key=lambda end: end[0])
    fig, spec = ax.get_figure(root=True), ax.get_subplotspec()
    assert fig is not None
    rows = 1 if spec is None else spec.get_gridspec().nrows / (spec.rowspan.stop - spec.rowspan.start)
    texts = [textwrap.fill(str(line.get_label()), 13 if is_narrow(fig) else 18) for _, line in ends]
    one = 1.2 * _LABEL / (0.72 * 72 * fig.get_figheight() / rows)  # the height of a line of text, in that of the axes
    heights = _apart([height for height, _ in ends], [one * (1 + text.count("\n")) for text in texts])
    for height, text, (_, line) in zip(heights, texts, ends, strict=True):
        ax.annotate(
            text, (1, height), (5, 0), xycoords="axes fraction", textcoords="offset points", va="center",
            fontsize=_LABEL, color=_readable(line.get_color(), ax), annotation_clip=False, parse_math="$" in text,
        )  # fmt: skip


def _apart(centres: list[float], sizes: list[float]) -> list[float]:
    """Ascending centres moved apart, as little as possible from below and then from above, so that none overlap.

    >>> [round(c, 2) for c in _apart([0.5, 0.5, 0.95], [0.2, 0.2, 0.2])]
    [0.5, 0.7, 0.9]
    """
    placed: list[float] = []
    for centre, size in zip(centres, sizes, strict=True):
        least = placed[-1] + (sizes[len(placed) - 1] + size) / 2 if placed else size / 2
        placed.append(max(centre, least))
    for i in reversed(range(len(placed))):
        most = 1 - sizes[i] / 2 if i == len(placed) - 1 else placed[i + 1] - (sizes[i] + sizes[i + 1]) / 2
        placed[i] = min(placed[i], most)
    return placed


def _readable(colour: Any, ax: "Axes") -> tuple[float, ...]:
    """A colour of lines, dark enough for text, or bright enough if the background is dark."""
    from matplotlib.colors import to_rgb, to_rgba

    behind = to_rgba(ax.get_facecolor())
    if behind[3] < 0.5:  # the colour of the figure shows through
        behind = to_rgba(ax.figure.get_facecolor())
    bright = 0.0 if behind[3] < 0.5 or np.mean(behind[:3]) > 0.5 else 1.0
    return tuple(0.62 * channel + 0.38 * bright for channel in to_rgb(colour))


def label_height(ax: "Axes", n: int) -> float:
    """Return the height in points of each of n labels along the vertical axis, if they are not to overlap."""
    fig = ax.get_figure(root=True)
    assert fig is not None
    return 72 / fig.dpi * ax.get_window_extent().height / max(n, 1)


def thousands(axis: "Axis") -> None:
    """Write the numbers of an axis with thousands separators and minus signs."""
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}".replace("-", "\N{MINUS SIGN}"))


def percent(ax: "Axes", digits: int = 0) -> None:
    """Write the numbers of both axes, which are shares, in percent."""
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda share, _: f"{100 * share:.{digits}f}%")


def figure_label(name: str, otherwise: str, width: int = 32) -> str:
    """`name` for a figure, or `otherwise` if the font of the figures has no glyphs for it."""
    short = shorten(name, width)
    drawable = all(ord(c) in _glyphs() and unicodedata.bidirectional(c) not in ("R", "AL") for c in short)
    return short if short.strip() and drawable else otherwise


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont(STYLE["font.family"])).get_charmap())
