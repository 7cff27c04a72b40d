"""Figures: what is drawn, the numbers behind it, and the helpers that give all of them one look.

Nothing here touches matplotlib's global state: figures are made without pyplot, inside a style that is
put on for the drawing and taken off after it, and that starts from matplotlib's own defaults, so that the same
numbers give the same bytes whatever the user's settings are.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox._arrays import Array
from kalprox._files import replace

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

__all__ = [
    "Figure",
    "bands",
    "calibration",
    "curves",
    "estimates",
    "look",
    "many",
    "matrix",
    "plain",
    "render",
    "traces",
    "write",
]

INK, FAINT = "#222222", "#8a8a8a"

# Okabe and Ito's palette without its yellow, which is lost on white; every colour has a line style and
# a marker of its own, so that a grey copy reads as well.
LOOKS = (
    ("#0072B2", "-", "o"),
    ("#D55E00", (0, (5, 1.6)), "s"),
    ("#009E73", (0, (5, 1.4, 1.2, 1.4)), "^"),
    ("#CC79A7", (0, (1.3, 1.3)), "D"),
    ("#E69F00", (0, (8, 2)), "v"),
    ("#56B4E9", (0, (3, 1.2, 1, 1.2, 1, 1.2)), "P"),
    ("#000000", (0, (2.5, 1.5)), "X"),
)

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
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
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
    "pdf.fonttype": 42,  # text stays text, as journals ask
    "svg.fonttype": "path",  # looks the same where a font is missing
    "svg.hashsalt": "kalprox",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.color": INK,
    "ytick.labelsize": 9.5,
}

# What each format writes about itself by default holds dates and addresses: leave it out.
METADATA: dict[str, dict[str, None]] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Figure:
    """One figure: `draw(fig)` draws onto an empty matplotlib figure of `size` inches, in the house style.

    The caption states the settings and what to see. `numbers` holds everything that is drawn (see `plain` for what
    it may contain) and is written beside the figure. `name` is the stem of the files.
    """

    name: str
    title: str
    caption: str
    numbers: dict[str, Any]
    draw: Callable[["matplotlib.figure.Figure"], None]
    size: tuple[float, float] = (6.4, 4.0)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise ValueError(
                f"name must be a file's stem of letters, digits, '_', '.', '-'; got {self.name!r}. Change name."
            )


def write(figure: Figure, folder: str | Path, formats: Sequence[str] = ("svg",)) -> dict[str, Path]:
    """Write NAME.json and NAME.svg, .pdf, .png as asked; return format -> path, "json" among them.

    All are drawn before the first is written, and each is replaced whole. The same figure gives the same bytes.
    """
    contents = {form: render(figure, form) for form in formats}
    numbers = json.dumps(plain(figure.numbers), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    contents["json"] = numbers.encode()
    return {form: replace(Path(folder) / f"{figure.name}.{form}", content) for form, content in contents.items()}


def render(figure: Figure, form: str) -> bytes:
    """The figure as an SVG, PDF or PNG file's content."""
    import matplotlib.style
    from matplotlib.figure import Figure as Canvas

    if form not in METADATA:
        raise ValueError(f"a figure's format must be one of {', '.join(METADATA)}; got {form!r}. Change formats.")
    with matplotlib.style.context(STYLE, after_reset=True):
        # "compressed" is the constrained layout that keeps square axes and their colour bars together
        canvas = Canvas(figsize=figure.size, layout="compressed")
        figure.draw(canvas)
        content = BytesIO()
        canvas.savefig(content, format=form, dpi=200, metadata=METADATA[form])
    return content.getvalue()


def plain(value: Any, where: str = "numbers") -> Any:
    """`value` as JSON can hold it: arrays become lists, and what is not finite becomes None.

    >>> plain({"error": np.array([0.5, np.inf]), "rows": np.int64(3)})
    {'error': [0.5, None], 'rows': 3}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "__array__") and np.asarray(value).dtype.kind in "biufU":
        return plain(np.asarray(value).tolist(), where)
    raise TypeError(f"{where} must be numbers, words, lists, dicts or arrays of them; got {type(value).__name__}.")


def look(slot: int) -> dict[str, Any]:
    """Colour, line style and marker number `slot`, for `ax.plot`. One thing keeps one slot in every figure of a page.

    >>> look(0)
    {'color': '#0072B2', 'linestyle': '-', 'marker': 'o'}
    """
    return dict(zip(("color", "linestyle", "marker"), LOOKS[slot % len(LOOKS)], strict=True))


def bands(runs: Array) -> np.ndarray:
    """The 10%, 50% and 90% quantiles over runs, shape (3, ...), of runs of shape (n_runs, ...).

    A value that is not finite is a run that diverged, and counts as infinite: leaving it out would flatter.

    >>> bands(np.array([[1.0], [2.0], [np.nan]]))[1:]
    array([[ 2.],
           [inf]])
    """
    values = np.asarray(runs, float)
    ordered = np.sort(np.where(np.isfinite(values), values, np.inf), axis=0)
    place = np.array([0.1, 0.5, 0.9]) * (len(ordered) - 1)
    below = np.floor(place + 1e-9).astype(int)
    share = np.clip(place - below, 0, 1).reshape(3, *[1] * (ordered.ndim - 1))
    low, high = ordered[below], ordered[np.minimum(below + 1, len(ordered) - 1)]
    with np.errstate(invalid="ignore"):  # inf - inf, where both neighbours diverged
        return np.where((share > 1e-9) & (high > low), low + share * (high - low), low)


def curves(
    ax: "Axes",
    x: Array,
    runs: Mapping[str, Array],
    *,
    log: bool = True,
    log_x: bool = False,
    band: bool = True,
    slots: Mapping[str, int] | None = None,
    legend: str | None = "best",
) -> None:
    """For each label the median over runs, shape (n_runs, n), as a line in its 10-90% band; or one line, shape (n,).

    `log` is the vertical axis. A line stops where half of the runs have diverged (see `bands`); a band
    goes to the highest number drawn where a tenth has. `slots` gives labels the looks they have in other figures.
    """
    x = np.asarray(x)
    drawn = {label: bands(np.atleast_2d(values)) for label, values in runs.items()}
    finite = [q[np.isfinite(q)] for q in drawn.values()]
    top = max((q.max() for q in finite if q.size), default=1.0)
    for i, (label, (low, middle, high)) in enumerate(drawn.items()):
        slot = i if slots is None else slots[label]
        style = look(slot)
        if band and np.ndim(runs[label]) == 2 and len(runs[label]) > 1:
            shown = np.isfinite(low)
            high = np.where(np.isfinite(high), high, top)
            ax.fill_between(x, low, high, where=shown, color=style["color"], alpha=0.16, linewidth=0)
        line = np.where(np.isfinite(middle), middle, np.nan)
        start = 0.02 + 0.14 * (slot % len(LOOKS)) / len(LOOKS)  # markers of different lines do not meet
        ax.plot(x, line, label=label, markevery=(start, 0.14), markeredgecolor="white", markeredgewidth=0.6, **style)
    _axes(ax, x, log, log_x, legend)


def many(
    ax: "Axes",
    x: Array,
    runs: Array,
    label: str,
    *,
    slot: int = 0,
    log: bool = True,
    log_x: bool = False,
    legend: str | None = "best",
) -> None:
    """A sweep: every run of shape (n_runs, n) as a thin translucent line, all of them under one label.

    A run is drawn as far as it is finite. Where some diverge, bound the axis with `ax.set_ylim`.
    """
    values = np.asarray(runs, float)
    style = look(slot) | {"marker": ""}
    for run in np.where(np.isfinite(values), values, np.nan):
        ax.plot(x, run, linewidth=0.7, alpha=0.45, **style)
    ax.plot([], [], linewidth=1.2, label=label, **style)
    _axes(ax, np.asarray(x), log, log_x, legend)


def traces(ax: "Axes", x: Array, values: Array, label: str, *, slot: int = 0, log: bool = True) -> None:
    """Each column of `values`, shape (n, d), as a thin line over x, their median on top; `log` is for both axes."""
    values = np.asarray(values, float)
    many(ax, x, values.T, label, slot=slot, log=log, log_x=log, legend=None)
    ax.plot(x, np.median(values, axis=1), color=INK, label="their median")
    _legend(ax, "best")


def estimates(
    ax: "Axes",
    truth: Array | None,
    mean: Array,
    std: Array | None = None,
    *,
    label: str = "estimate",
    slot: int = 0,
    shift: float = 0.0,
    legend: str | None = "best",
) -> None:
    """Estimates with their +-2 sigma bars over the true values' stems, one index after the other.

    Bars that miss the truth are crosses, counted in the legend. For a second estimate on the same axes, `shift` it
    sideways, by 0.3 say: the truth is drawn once.
    """
    from matplotlib.ticker import MaxNLocator

    mean = np.asarray(mean, float)
    index = np.arange(1, len(mean) + 1)
    style = look(slot)
    if truth is not None:
        truth = np.asarray(truth, float)
        if "truth" not in ax.get_legend_handles_labels()[1]:
            ax.axhline(0, color=FAINT, linewidth=0.6)
            ax.vlines(index, 0, truth, color="#c4c4c4", linewidth=1.1)
            ax.plot(index, truth, "o", color=INK, markerfacecolor="white", markersize=4.6, label="truth", zorder=2.5)
    missed = np.zeros(len(mean), bool)
    if std is not None:
        bar = 2 * np.asarray(std, float)
        if truth is not None:
            missed = ~(np.abs(truth - mean) <= bar)
        ax.errorbar(index + shift, mean, bar, fmt="none", ecolor=style["color"], elinewidth=1.1, capsize=1.6)
    what = f"{label}, ±2\N{GREEK SMALL LETTER SIGMA}" if std is not None else label
    groups = [(~missed, what, {"marker": style["marker"], "markersize": 3.8})]
    if missed.any():
        words = f"{label}, truth outside: {missed.sum()} of {len(mean)}"
        groups += [(missed, words, {"marker": "x", "markersize": 4.8, "markeredgewidth": 1.3})]
    for group, words, marker in groups:
        ax.plot(
            index[group] + shift, mean[group], color=style["color"], linestyle="none", zorder=3, label=words, **marker
        )
    ax.set_xlim(0.2, len(mean) + 0.8)
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    ax.grid(visible=False, axis="x")
    _legend(ax, legend)


def matrix(ax: "Axes", M: Array, label: str, *, limit: float | None = None) -> None:
    """A square matrix as a picture: red above 0, blue below, white at 0, `limit` (or max |M|) at both ends.

    Entries that are not finite are grey. `label` stands at the colour bar.
    """
    import matplotlib

    M = np.asarray(M, float)
    if limit is None:
        limit = float(np.max(np.abs(M), where=np.isfinite(M), initial=0.0)) or 1.0
    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="#999999")
    end = len(M) + 0.5
    picture = ax.imshow(
        M, cmap=colours, vmin=-limit, vmax=limit, interpolation="none", extent=(0.5, end, end, 0.5), resample=False
    )
    ax.grid(visible=False)
    ax.spines[["top", "right"]].set_visible(True)
    bar = ax.figure.colorbar(picture, ax=ax, label=label, shrink=0.9, pad=0.03)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)  # one picture, not a path for each of its 256 colours


def calibration(
    ax: "Axes",
    levels: Array,
    covered: Array,
    *,
    rows: int | None = None,
    label: str = "observed",
    slot: int = 0,
    legend: str | None = "upper left",
) -> None:
    """The share of truths that intervals cover against the share that they promise; on the diagonal they are honest.

    With `rows`, the number of independent intervals behind each share, the band is where 95% of honest shares fall
    (binomial law).
    """
    grid = np.linspace(0, 1, 201)
    if "honest" not in ax.get_legend_handles_labels()[1]:
        ax.plot(grid, grid, color=FAINT, linewidth=1, label="honest")
        if rows is not None:
            from scipy import stats

            low, high = stats.binom.interval(0.95, rows, grid)
            words = f"honest, 95% of samples of {rows:,}"
            ax.fill_between(grid, low / rows, high / rows, color=FAINT, alpha=0.22, linewidth=0, label=words)
    ax.plot(levels, covered, label=label, **look(slot))
    ax.set(xlim=(0, 1), ylim=(0, 1.02), aspect="equal", xlabel="promised coverage", ylabel="observed coverage")
    _legend(ax, legend)


def _axes(ax: "Axes", x: np.ndarray, log: bool, log_x: bool, legend: str | None) -> None:
    """Scales, thousands with separators, legend."""
    if log:
        ax.set_yscale("log")
    if log_x:
        ax.set_xscale("log")
    elif x.size and np.nanmax(np.abs(x)) >= 1e4:
        ax.xaxis.set_major_formatter("{x:,.0f}")
    _legend(ax, legend)


def _legend(ax: "Axes", where: str | None) -> None:
    if where is not None:
        ax.legend(loc=where)  # type: ignore[call-overload]  # matplotlib lists the places it knows
