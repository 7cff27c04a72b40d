"""How the calibration of classes shows itself: in a line of text, in a notebook, and its plots."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kalprox.calibration.showing import Shown
from kalprox.calibration.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kalprox.calibration.curves import Lift, Reliability, Roc

__all__ = ["ShownClasses"]

_GROUPS = 5  # of the table in a notebook
_OF_SCORES = ("coverage", "pit", "stream")
_SIZES = {"reliability": (4.8, 4.6), "roc": (4.6, 4.6), "lift": (6.4, 4.0)}


class ShownClasses(Shown):
    """The text, the HTML and the plots of the calibration of classes."""

    if TYPE_CHECKING:
        log_loss: Any
        brier: Any
        accuracy: Any
        auc: Any
        by_class: Any

        def reliability(self, bins: int = 10) -> "Reliability": ...

    @property
    def _of_several(self) -> bool:
        """Whether each of several classes has its own curves."""
        return hasattr(self, "by_class")

    def _in_short(self, found: Verdict) -> str:
        return f"log loss {float(self.log_loss):.4g}" + ("" if self._of_several else f", AUC {self.auc:.4g}")

    def _in_detail(self, found: Verdict) -> tuple[dict[str, str], Sequence[str], list[tuple[str, ...]]]:
        more = {
            "Scores": f"log loss {float(self.log_loss):.4g}, Brier score {float(self.brier):.4g}, accuracy "
            f"{float(self.accuracy):.2%}" + ("" if self._of_several else f", AUC {self.auc:.4g}")
        }
        groups = self.reliability(_GROUPS)
        rows: list[tuple[str, ...]] = [
            (f"{n:,.10g}", f"{p:.2%}", f"{share:.2%}", f"{low:.2%} to {high:.2%}")
            for p, share, low, high, n in zip(*groups, strict=True)
        ]
        return more, ("rows", "stated", "came", "95% interval"), rows

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        kind: str = "reliability",
        label: str = "observed",
        number: int | None = None,
    ) -> "Axes":
        """Plot how good the stated probabilities are.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made. A second calibration can be drawn on the
            axes of the first, to compare the two.
        kind : {"reliability", "roc", "lift", "coverage", "pit", "stream"}
            "reliability": the share of the events among rows with about the same stated probability, with its 95%
            interval, against that probability. Calibrated probabilities lie on the diagonal.

            "roc": the share of the events that are found, against the share of false alarms, for all thresholds.

            "lift": the share of the events among the rows with the largest probabilities, against the share of these
            rows; the diagonal is that of rows in random order.

            "coverage", "pit" and "stream" are about the randomised scores; see `Calibration.plot`.
        label : str
            The name of the rows, for the legend.
        number : int, optional
            For "roc" and "lift" of several classes: the number of the class, from 0 on, that is the event.

        Returns
        -------
        Axes

        Examples
        --------
        >>> import numpy as np
        >>> from kalprox.calibration import ClassCalibration
        >>> from kalprox.predictive import Classes
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(size=1000)
        >>> ax = ClassCalibration().add(Classes(p), rng.random(1000) < p).plot()
        >>> ax.get_xlabel()
        'stated probability'
        """
        if kind in _OF_SCORES:
            return super().plot(ax, kind=kind, label=label)
        if kind not in _SIZES:
            raise ValueError(f"kind must be one of {', '.join(map(repr, (*_SIZES, *_OF_SCORES)))}; got {kind!r}.")
        of_one = self._of_several and kind != "reliability"
        if of_one is (number is None):
            what = "given: which of the classes is the event" if of_one else "left out: it is for curves of one class"
            raise ValueError(f"number must be {what}; got kind={kind!r} and number={number!r}.")
        from kalprox.display import readings
        from kalprox.display.axes import axes_for, unused_slot

        found: Reliability | Roc | Lift = getattr(self, kind)(*(() if number is None else (number,)))
        ax = axes_for(ax, _SIZES[kind])
        slot = unused_slot(ax)
        if kind == "reliability":
            readings.reliability(ax, *found[:4], label=label, slot=slot)
        elif kind == "roc":
            area = self.auc if number is None else self.auc[number]
            readings.roc(ax, found[0], found[1], label=f"{label} (area {area:.3f})", slot=slot)
        else:
            readings.lift(ax, found[0], found[1], label=label, slot=slot)
        ax.legend(fontsize="small", loc="upper left" if kind == "reliability" else "lower right")
        return ax
