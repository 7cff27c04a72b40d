"""How a calibration shows itself: in a line of text, in a notebook, and its plots."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, fields_repr, is_array, is_traced
from kalprox.calibration.sequence import USUAL_SIZE
from kalprox.calibration.verdict import BINS, LEVELS, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SIZES", "Shown", "coverage_curve", "independent_rows"]

SIZES = {  # width and height in inches of each kind of plot
    "coverage": (4.6, 4.6),
    "pit": (6.4, 3.6),
    "stream": (6.4, 4.0),
    "reliability": (4.8, 4.6),
    "roc": (4.6, 4.6),
    "lift": (6.4, 4.0),
}


class Shown:
    """The text, the HTML and the plots of a `Calibration`."""

    sums: Any

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        @property
        def coverage(self) -> Array: ...
        def verdict(self) -> Verdict: ...

    def __repr__(self) -> str:
        if not self._has_numbers:
            return fields_repr(self)
        found, name = self.verdict(), type(self).__name__
        if not found.rows > 0:
            return f"{name}({str(found).split(':')[0].rstrip('.')})"
        return f"{name}({found.rows:,.10g} rows: {found.word}, {self._in_short(found)})"

    @property
    def _has_numbers(self) -> bool:
        """Whether the sums can be read; inside JAX they may be tracers, placeholders, or several vectors."""
        return is_array(self.sums) and self.sums.ndim == 1 and not is_traced(self.sums)

    def _in_short(self, found: Verdict) -> str:
        """Return the most important numbers, for a line of text."""
        return f"NIS {found.nis:.3g}, 95% intervals cover {found.coverage:.1%}"

    def _repr_html_(self) -> str | None:
        from kalprox.display.html import card, facts, table

        if not self._has_numbers:
            return None
        found = self.verdict()
        about, doubts = {"Verdict": str(found)}, ["Verdict"] if found.word != "calibrated" else []
        if not found.rows > 0:
            return card("Calibration", facts(about, doubts))
        more, heads, rows = self._in_detail(found)
        return card("Calibration", facts(about | more, doubts), table(heads, rows))

    def _in_detail(self, found: Verdict) -> tuple[dict[str, str], Sequence[str], list[tuple[str, ...]]]:
        """Return more facts, and the heads and rows of a table, for a notebook."""
        rows: list[tuple[str, ...]] = [
            (f"{level:.0%}", f"{share:.1%}", f"{low:.1%} to {high:.1%}")
            for level, share, (low, high) in zip(LEVELS, found.coverages, found.coverages_bounds, strict=True)
        ]
        return {}, ("interval", "covers", "expected"), rows

    def plot(self, ax: "Axes | None" = None, *, kind: str = "coverage", label: str = "observed") -> "Axes":
        """Plot how the stated uncertainty compares with the errors.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made. A second calibration can be drawn on the
            axes of the first, to compare the two; grey bands are then those of the first.
        kind : {"coverage", "pit", "stream"}
            "coverage": the share of the rows within their central intervals, against the level of the intervals. Below
            the diagonal the intervals are too narrow, above it they are too wide. The grey band is where calibrated
            intervals lie with probability 95%.

            "pit": the histogram of the probability integral transform. It is flat if the predictions are calibrated,
            U-shaped if the intervals are too narrow, hump-shaped if they are too wide, and sloped if the predictions
            are biased.

            "stream": the mean error, and the mean size of the errors relative to what was stated, in up to 16 segments
            of the stream, in the order of the rows. If calibrated, the first is 0 and the second is 1, and 95% of the
            points lie in their bands. Errors are bounded to 4 standard deviations.
        label : str
            The name of the rows, for the legend.

        Returns
        -------
        Axes

        Examples
        --------
        >>> import kalprox as kp
        >>> y = np.random.default_rng(0).normal(size=1000)
        >>> honest = kp.Calibration().update(np.zeros(1000), np.ones(1000), y)
        >>> narrow = kp.Calibration().update(np.zeros(1000), np.full(1000, 0.5), y)
        >>> ax = narrow.plot(honest.plot(label="honest"), label="std too small by half")
        >>> ax.get_legend_handles_labels()[1]
        ['calibrated', 'honest', 'std too small by half']
        """
        from kalprox.display import plots, readings
        from kalprox.display.axes import axes_for, unused_slot

        if kind not in ("coverage", "pit", "stream"):
            raise ValueError(f"kind must be 'coverage', 'pit' or 'stream'; got {kind!r}.")
        if not float(self.rows) > 0:
            raise ValueError(f"There are no scored rows to plot: {self.verdict()}")
        verdict = self.verdict()
        ax = axes_for(ax, SIZES[kind])
        if kind == "coverage":
            levels, shares = coverage_curve(self)
            slot = unused_slot(ax)
            plots.calibration(ax, levels, shares, rows=independent_rows(verdict), label=label, slot=slot)
            ax.legend(loc="upper left", fontsize="small")
        elif kind == "pit":
            shares = np.asarray(self.pit, float) / float(self.rows)
            slot = max(len(ax.get_legend_handles_labels()[1]) - 1, 0)  # without the line of what is expected
            readings.pit(ax, shares, independent_rows(verdict), slot=slot, label=label)
            ax.legend(fontsize="small")
        else:
            self._plot_stream(ax, label)
        return ax

    def _plot_stream(self, ax: "Axes", label: str) -> None:
        from kalprox.display.axes import unused_slot
        from kalprox.display.readings import along_stream

        sums = np.asarray(self.segments, float)
        rows = sums[:, 0, 0]
        sums, shared, rows = sums[rows > 0], np.asarray(self.segment_shared, float)[rows > 0], rows[rows > 0]
        score, size = sums[:, 0, 3] / rows, sums[:, 0, 4] / rows / USUAL_SIZE + 1
        margin = special.ndtri(0.975) * np.sqrt((1 + shared / rows) / rows)
        ends = np.concatenate([[0.0], rows.cumsum()])
        spread = margin * np.sqrt(1 / USUAL_SIZE**2 - 1)  # the std of |u| / its mean, u standard normal
        whose = "" if label == "observed" else f", {label}"
        along_stream(ax, ends, size, 1.0, spread, f"size of the errors{whose}", unused_slot(ax))
        along_stream(ax, ends, score, 0.0, margin, f"mean error{whose}", unused_slot(ax))
        ax.set(xlabel="rows scored", ylabel="in units of what was stated")
        ax.legend(fontsize="small")


def coverage_curve(calibration: Shown) -> tuple[Array, Array]:
    """Return levels from 10% to 95%, and the shares of the rows within their central intervals of these levels.

    Those of `LEVELS` were counted; the others are read from the PIT histogram, whose bins end at these intervals.
    """
    bins = np.asarray(calibration.pit, float) / float(calibration.rows)
    middle = BINS // 2
    found = {round(2 * k / BINS, 9): float(bins[middle - k : middle + k].sum()) for k in range(1, middle)}
    found |= {level: float(share) for level, share in zip(LEVELS, calibration.coverage, strict=True)}
    levels = sorted(found)
    return np.array(levels), np.array([found[level] for level in levels])


def independent_rows(verdict: Verdict) -> int:
    """Return the number of independent predictions that the scored rows are equivalent to."""
    return max(round(verdict.worth), 1)
