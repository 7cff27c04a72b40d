"""The result of a run: the last state, what was recorded along the way, and the calibration of the predictions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, fields_repr, is_traced, namespace, pytree, tree_map
from kalprox.base.checks import check_level
from kalprox.base.text import count
from kalprox.calibration import Calibration
from kalprox.display.axes import axes_for, figure_label, thousands, unused_slot
from kalprox.display.html import card, facts, first_rows, table
from kalprox.display.plots import curves
from kalprox.display.readings import MOST_LINES, legend, lines
from kalprox.display.style import line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Diverged", "Run", "Trace", "stacked"]


@pytree
class Trace:
    """What was recorded along a run, stacked.

    Attributes
    ----------
    rows : array
        The number of rows learned at each record, shape (m,).
    mean : array
        The estimates, shape (m, d).
    var : array or None
        The variances, shape (m, d); None for an algorithm without a covariance.
    extra : object
        The results of the `record` function, stacked; None without one.

    Examples
    --------
    >>> import kalprox as kp
    >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
    >>> X, y = np.ones((4, 1)), np.array([1.0, 3.0, 2.0, 2.0])
    >>> trace = kp.run(alg, alg.init(np.zeros(1), 1e6), X, y, record_every=2).trace
    >>> trace.rows, np.asarray(trace.mean).round(3)
    (array([2, 4]), array([[2.],
           [2.]]))
    """

    rows: Any
    mean: Any
    var: Any
    extra: Any

    def __repr__(self) -> str:
        if is_traced(self) or np.ndim(self.rows) != 1:
            return fields_repr(self)
        rows = np.asarray(self.rows)
        if not len(rows):
            return "Trace(no records)"
        about = f"{count(len(rows), 'record')} of {count(self.mean.shape[-1], 'coefficient')}"
        about += "" if self.var is None else " with variances"
        about += "" if self.extra is None else ", and extra"
        return f"Trace({about}, after {rows[0]:,} to {rows[-1]:,} rows)"


@pytree
class Run:
    """The result of a run.

    Attributes
    ----------
    state : object
        The last state.
    trace : Trace
        What was recorded along the way.
    calibration : Calibration or None
        How the predictions of rows not yet learned compare with the rows; None unless `calibrate` was True.

    Examples
    --------
    >>> import kalprox as kp
    >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
    >>> X, y = np.ones((4, 1)), np.array([1.0, 3.0, 2.0, 2.0])
    >>> out = kp.run(alg, alg.init(np.zeros(1), 1e6), X, y)
    >>> np.asarray(out.state.mean).round(3), out.calibration is None
    (array([2.]), True)
    """

    state: Any
    trace: Trace
    calibration: Calibration | None = None

    def _repr_html_(self) -> str | None:
        if is_traced(self) or np.ndim(self.trace.rows) != 1:
            return None
        about, doubts = {"Trace": repr(self.trace).removeprefix("Trace(").removesuffix(")")}, []
        if self.calibration is not None:
            verdict = self.calibration.verdict()
            about["Verdict"] = str(verdict)
            doubts = ["Verdict"] if verdict.word != "calibrated" else []
        if not len(self.trace.rows):
            return card("Run", facts(about, doubts))
        mean, var = _recorded(self.trace)
        columns = {"mean": mean[-1]} if var is None else {"mean": mean[-1], "std": np.sqrt(var[-1])}
        labels = [f"theta[{j}]" for j in range(len(mean[-1]))]
        return card("Run", facts(about, doubts), table(("", *columns), first_rows(labels, *columns.values())))

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        kind: str = "mean",
        coefs: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        truth: Array | None = None,
        level: float = 0.95,
        label: str = "error",
    ) -> "Axes":
        """Plot what was recorded along the run: the estimates with their bands, or their error.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made. The errors of several runs can be drawn
            on the same axes.
        kind : {"mean", "error"}
            "mean": a line for each coefficient, with a band of the level that is stated. "error": the distance of the
            estimates from the truth, ||mean - truth|| / ||truth||, on logarithmic axes; and, for an algorithm with a
            covariance, what it states: the root mean square of that distance under N(mean, V).
        coefs : sequence of int, optional
            The coefficients that have a colour and a label, 7 at most. By default those that are the largest at the
            end. The others are thin grey lines.
        names : sequence of str, optional
            The names of all coefficients; by default their numbers.
        truth : array of shape (d,), optional
            The true coefficients, which "mean" shows as dashed lines. "error" needs them.
        level : float
            The level of the bands, strictly between 0 and 1.
        label : str
            The name of the run, for "error".

        Returns
        -------
        Axes

        Examples
        --------
        >>> import kalprox as kp
        >>> rng = np.random.default_rng(0)
        >>> theta = np.array([1.0, -1.0])
        >>> X = rng.normal(size=(2500, 2))
        >>> y = X @ theta + rng.normal(size=2500)
        >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
        >>> out = kp.run(alg, alg.init(np.zeros(2), 100.0), X, y, record_every=100)
        >>> ax = out.plot(truth=theta)
        >>> ax = out.plot(kind="error", truth=theta, label="ipm")
        >>> ax.get_yscale(), ax.get_legend_handles_labels()[1]
        ('log', ['ipm', 'ipm, stated'])
        """
        if kind not in ("mean", "error"):
            raise ValueError(f"kind must be 'mean' or 'error'; got {kind!r}.")
        check_level(level)
        if not len(self.trace.rows):
            raise ValueError("There is nothing to plot: the run ended before its first record. Lower record_every.")
        mean, _ = _recorded(self.trace)
        d = mean.shape[1]
        if kind == "error" and truth is None:
            raise ValueError("kind='error' needs the true coefficients: give truth.")
        truth = None if truth is None else np.asarray(truth, float)
        if truth is not None and truth.shape != (d,):
            raise ValueError(f"truth must have the shape of the estimates, {(d,)}; got {truth.shape}.")
        if names is not None and len(names) != d:
            raise ValueError(f"names must name each of the {d} coefficients; got {len(names)}.")
        shown, own = _shown(mean, coefs), ax is None
        ax = axes_for(ax)
        if kind == "error":
            _plot_error(ax, self.trace, truth, label)
        else:
            labels = [f"theta[{j}]" if names is None else figure_label(str(names[j]), f"theta[{j}]", 24) for j in shown]
            _plot_means(ax, self.trace, truth, shown, labels, level)
            legend(ax, f"{len(shown)} of {d:,}" if len(shown) < d else "", outside=own)
        ax.set_xlabel("rows learned")
        return ax


class Diverged(FloatingPointError):
    """The estimate is no longer finite. The attribute `run` holds the last finite state and the trace up to it."""

    def __init__(self, message: str, so_far: Run):
        super().__init__(message)
        self.run = so_far


def stacked(trace: list[tuple[np.ndarray, Any]]) -> Trace:
    """The records of each piece of a run, as one trace."""
    if not trace:
        return Trace(np.zeros(0, int), None, None, None)
    rows, records = zip(*trace, strict=True)
    return Trace(np.concatenate(rows), *tree_map(lambda *r: namespace(*r).concatenate(r), *records))


def _recorded(trace: Trace) -> tuple[np.ndarray, np.ndarray | None]:
    """The means and the variances as NumPy arrays of float64; None in place of variances that there are not."""
    return np.asarray(trace.mean, float), None if trace.var is None else np.asarray(trace.var, float)


def _shown(mean: Array, coefs: Sequence[int] | None) -> Array:
    """The coefficients with a colour and a label."""
    if coefs is None:
        return np.sort(np.argsort(-np.abs(mean[-1]), kind="stable")[:MOST_LINES])
    shown, d = np.asarray(coefs), mean.shape[1]
    if not 1 <= shown.size <= MOST_LINES or not ((shown >= 0) & (shown < d)).all():
        raise ValueError(f"coefs must be 1 to {MOST_LINES} numbers from 0 to {d - 1}; got {coefs!r}.")
    return shown


def _plot_means(
    ax: "Axes", trace: Trace, truth: Array | None, shown: Array, labels: Sequence[str], level: float
) -> None:
    mean, var = _recorded(trace)
    reach = None if var is None else float(special.ndtri((1 + level) / 2)) * np.sqrt(var)
    lines(ax, trace.rows, mean, labels, shown, None if reach is None else (mean - reach, mean + reach))
    if truth is not None:
        for slot, j in enumerate(shown):
            ax.axhline(truth[j], color=line_style(slot)["color"], linewidth=0.9, linestyle="--")
    thousands(ax.xaxis)
    ax.set_ylabel("estimate" if reach is None else f"estimate, with {100 * level:.4g}% bands")


def _plot_error(ax: "Axes", trace: Trace, truth: Array, label: str) -> None:
    mean, var = _recorded(trace)
    size = float(np.linalg.norm(truth)) or 1.0
    slot = unused_slot(ax)
    curves(ax, trace.rows, {label: np.linalg.norm(mean - truth, axis=1) / size}, slots={label: slot})
    if var is not None:
        stated = np.sqrt(var.sum(axis=1)) / size
        dotted: dict[str, Any] = {"color": line_style(slot)["color"], "linewidth": 1, "linestyle": ":"}
        ax.plot(trace.rows, stated, label=f"{label}, stated", **dotted)
    ax.set_ylabel("relative error of the estimate" if truth.any() else "error of the estimate")
    ax.legend(fontsize="small")
