"""How a calibration shows itself: in a line of text, in a notebook, and its plots."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, fields_repr, is_array, is_traced
from kalprox.calibration.checks import USUAL_SIZE
from kalprox.calibration.verdict import BINS, LEVELS, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SIZES = {  # width and height in inches of each kind of plot
    "coverage": (4.6, 4.6),
    "pit": (6.4, 3.6),
    "stream": (6.4, 4.0),
    "reliability": (4.8, 4.6),
    "roc": (4.6, 4.6),
    "lift": (6.4, 4.0),
}
_LEGENDS: dict[str, Any] = {
    "coverage": "upper left",
    "reliability": "upper left",
    "roc": "lower right",
    "lift": "lower right",
}


class Shown:
    """The text, the HTML and the plots of a `Calibration`."""

    sums: Any
    of_whole_rows: ClassVar[bool]
    _plots: ClassVar[tuple[str, ...]] = ("coverage", "pit", "stream")

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
        from kalprox.display.tables import card, facts, table

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

    def plot(
        self, ax: "Axes | None" = None, *, kind: str = "", label: str = "observed", number: int | None = None
    ) -> "Axes":
        """Plot how the stated uncertainty compares with the errors, or the stated probabilities with what came.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made. A second calibration can be drawn on the
            axes of the first, to compare the two; grey bands are then those of the first.
        kind : {"coverage", "pit", "stream", "reliability", "roc", "lift"}
            "coverage", the default: the share of the rows within their central intervals, against the level of the
            intervals. Below the diagonal the intervals are too narrow, above it they are too wide. The grey band is
            where calibrated intervals lie with probability 95%.

            "pit": the histogram of the probability integral transform. It is flat if the predictions are calibrated,
            U-shaped if the intervals are too narrow, hump-shaped if they are too wide, and sloped if the predictions
            are biased.

            "stream": the mean error, and the mean size of the errors relative to what was stated, in up to 16 segments
            of the stream, in the order of the rows. If calibrated, the first is 0 and the second is 1, and 95% of the
            points lie in their bands. Errors are bounded to 4 standard deviations.

            Of classes, these three are about randomised scores, and there are three more:

            "reliability", their default: the share of the events among rows with about the same stated probability,
            with its 95% interval, against that probability. Calibrated probabilities lie on the diagonal.

            "roc": the share of the events that are found, against the share of false alarms, for all thresholds.

            "lift": the share of the events among the rows with the largest probabilities, against the share of these
            rows; the diagonal is that of rows in random order.
        label : str
            The name of the rows, for the legend.
        number : int, optional
            For "roc" and "lift" of several classes: the number of the class, from 0 on, that is the event.

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
        from kalprox.display.axes import axes_for, unused_slot

        kind = kind or self._plots[0]
        if kind not in self._plots:
            *most, last = map(repr, self._plots)
            raise ValueError(f"kind must be {', '.join(most)} or {last}; got {kind!r}.")
        of_one = self.of_whole_rows and kind in ("roc", "lift")
        if of_one is (number is None):
            what = "given: which of the classes is the event" if of_one else "left out: it is for curves of one class"
            raise ValueError(f"number must be {what}; got kind={kind!r} and number={number!r}.")
        if not self.rows > 0:
            raise ValueError(f"There are no scored rows to plot: {self.verdict()}")
        draw: Any = getattr(self, f"_plot_{kind}")
        ax = axes_for(ax, SIZES[kind])
        draw(ax, label, unused_slot(ax), *(() if number is None else (number,)))
        ax.legend(fontsize="small", loc=_LEGENDS.get(kind, "best"))
        return ax

    def _plot_coverage(self, ax: "Axes", label: str, slot: int) -> None:
        from kalprox.display.plots import calibration

        calibration(ax, *coverage_curve(self), rows=independent_rows(self.verdict()), label=label, slot=slot)

    def _plot_pit(self, ax: "Axes", label: str, _: int) -> None:
        from kalprox.display.plots import pit

        slot = max(len(ax.get_legend_handles_labels()[1]) - 1, 0)  # without the line of what is expected
        pit(ax, self.pit / self.rows, independent_rows(self.verdict()), slot=slot, label=label)

    def _plot_stream(self, ax: "Axes", label: str, slot: int) -> None:
        from kalprox.display.axes import unused_slot
        from kalprox.display.plots import along_stream

        used = self.segments[:, 0, 0] > 0
        sums, shared = self.segments[used], self.segment_shared[used]
        rows = sums[:, 0, 0]
        score, size = sums[:, 0, 3] / rows, sums[:, 0, 4] / rows / USUAL_SIZE + 1
        margin = special.ndtri(0.975) * np.sqrt((1 + shared / rows) / rows)
        ends = np.concatenate([[0.0], rows.cumsum()])
        spread = margin * np.sqrt(1 / USUAL_SIZE**2 - 1)  # the std of |u| / its mean, u standard normal
        whose = "" if label == "observed" else f", {label}"
        along_stream(ax, ends, size, 1.0, spread, f"size of the errors{whose}", slot)
        along_stream(ax, ends, score, 0.0, margin, f"mean error{whose}", unused_slot(ax))
        ax.set(xlabel="rows scored", ylabel="in units of what was stated")


def coverage_curve(calibration: Shown) -> tuple[Array, Array]:
    """Return levels from 10% to 95%, and the shares of the rows within their central intervals of these levels.

    Those of `LEVELS` were counted; the others are read from the PIT histogram, whose bins end at these intervals.
    """
    bins = calibration.pit / calibration.rows
    middle = BINS // 2
    found = {round(2 * k / BINS, 9): float(bins[middle - k : middle + k].sum()) for k in range(1, middle)}
    found |= {level: float(share) for level, share in zip(LEVELS, calibration.coverage, strict=True)}
    levels = sorted(found)
    return np.array(levels), np.array([found[level] for level in levels])


def independent_rows(verdict: Verdict) -> int:
    """Return the number of independent predictions that the scored rows are equivalent to."""
    return max(round(verdict.worth), 1)
