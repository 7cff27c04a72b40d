"""The common style of all figures: colours, line styles, markers and fonts."""

from typing import Any

__all__ = ["FAINT", "INK", "LINES", "NARROW", "STYLE", "line_style"]

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
