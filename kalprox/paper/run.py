"""Rows through an algorithm, what is recorded along the way, and the calibration of the predictions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from kalprox.algorithms.base import Algorithm
from kalprox.base.arrays import Array, fields_repr, is_traced, namespace, pytree, tree_map
from kalprox.base.checks import check_finite, check_floating, check_is, check_level, check_same_length
from kalprox.base.control import batched_in_groups, import_jax, unrolling, window
from kalprox.base.extras import is_installed
from kalprox.base.text import count
from kalprox.calibration import Calibration, calibration_for
from kalprox.display.axes import axes_for, figure_label, line_style, thousands, unused_slot
from kalprox.display.plots import MOST_LINES, curves, legend, lines
from kalprox.display.progress import progress_bar
from kalprox.display.tables import card, facts, first_rows, table
from kalprox.predictive import Predictive, Student

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        mean, var = _mean_and_variance(self.trace)
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
        mean, _ = _mean_and_variance(self.trace)
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


def _mean_and_variance(trace: Trace) -> tuple[np.ndarray, np.ndarray | None]:
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
    mean, var = _mean_and_variance(trace)
    reach = None if var is None else float(special.ndtri((1 + level) / 2)) * np.sqrt(var)
    lines(ax, trace.rows, mean, labels, shown, None if reach is None else (mean - reach, mean + reach))
    if truth is not None:
        for slot, j in enumerate(shown):
            ax.axhline(truth[j], color=line_style(slot)["color"], linewidth=0.9, linestyle="--")
    thousands(ax.xaxis)
    ax.set_ylabel("estimate" if reach is None else f"estimate, with {100 * level:.4g}% bands")


def _plot_error(ax: "Axes", trace: Trace, truth: Array, label: str) -> None:
    mean, var = _mean_and_variance(trace)
    size = float(np.linalg.norm(truth)) or 1.0
    slot = unused_slot(ax)
    curves(ax, trace.rows, {label: np.linalg.norm(mean - truth, axis=1) / size}, slots={label: slot})
    if var is not None:
        stated = np.sqrt(var.sum(axis=1)) / size
        dotted: dict[str, Any] = {"color": line_style(slot)["color"], "linewidth": 1, "linestyle": ":"}
        ax.plot(trace.rows, stated, label=f"{label}, stated", **dotted)
    ax.set_ylabel("relative error of the estimate" if truth.any() else "error of the estimate")
    ax.legend(fontsize="small")


PIECE = 8192  # rows given to the compiled loop at once, at most: enough for the calls from Python to cost nothing
_PIECE_BYTES = 1 << 26  # of inputs given to the compiled loop at once, at most: fewer rows where rows are long
_CACHE = 5 << 14  # bytes of states that a CPU takes from row to row together under `jax.vmap`; measured

Record = Callable[[Any], Any] | None
Scanned = tuple[Any, Any, Any]


def run(
    alg: Algorithm,
    state: Any,
    X: Array,
    y: Array,
    *,
    record_every: int = 1000,
    record: Record = None,
    passes: int = 1,
    calibrate: bool = False,
    progress: bool = False,
) -> Run:
    """Take the rows of X and y, in order, through `alg` from `state`.

    The paper's algorithms go row by row, in a compiled loop over pieces of the data. The loop is compiled once for a
    model, a regulariser and a shape of rows: neither another number of rows nor another gamma, lam or q recompiles it,
    and memory grows only with what is recorded. Without JAX (`pip install "kalprox[jax]"`) it is a loop of Python, with
    the same results, that takes about ten times as long. The proximal filter takes blocks of `record_every` rows, at
    most 8192. NumPy arrays are answered with NumPy arrays, in the dtype of the state's mean, whatever JAX's x64 flag
    says.

    Parameters
    ----------
    alg : Algorithm
        Any of kalprox's algorithms.
    state : object
        Where to start, from `alg.init`.
    X : array
        The inputs, shape (n, d); rows of any shape for `models.Function`.
    y : array
        The targets, shape (n,), or (n, m) for a model with m outputs.
    record_every : int
        Record after every so many rows, and after the last row of each pass.
    record : callable, optional
        A function of the state whose results are stacked beside the means and variances.
    passes : int
        The number of passes over the rows. The proximal filter takes one pass; `refine` takes more.
    calibrate : bool
        Predict each row before it is learned, and compare the stated uncertainty with the errors. The proximal filter,
        `pipg` and `ipm` state their uncertainty; `ipg` and `sgd` do not. Rows of a warm-up are not judged, nor rows
        that were predicted from nothing: the first block of a filter without a prior. With g != 0,
        the intervals of `pipg` are too narrow: its V counts the curvature of g twice, and its mean counts g at every
        row.
    progress : bool
        Show a progress bar, in a terminal or a notebook.

    Returns
    -------
    Run
        The last state, the trace, and the calibration.

    Examples
    --------
    >>> import kalprox as kp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2500, 2))
    >>> y = X @ np.array([1.0, -1.0]) + rng.normal(size=2500)
    >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
    >>> out = kp.run(alg, alg.init(np.zeros(2), 100.0), X, y, calibrate=True)
    >>> out.trace.rows
    array([1000, 2000, 2500])
    >>> out.state.mean.round(2), np.sqrt(out.state.var()).round(2)
    (array([ 1., -1.]), array([0.02, 0.02]))
    >>> out.calibration.verdict().word
    'calibrated'
    """
    check_is("alg", alg, Algorithm, "an Algorithm, such as kalprox.proximal_filter(...)")
    _check_data(X, y, record_every, passes)
    if alg.by_block:
        if passes != 1:
            raise ValueError(
                f"passes must be 1 for a proximal filter, or rows would count twice; got {passes}. Use refine."
            )
        return _over_blocks(alg, state, X, y, record_every, record, calibrate, progress)
    if calibrate:
        _check_calibrate(state, passes)
    on_host = namespace(alg, state, X, y) is np
    compile = not on_host or is_installed("jax")
    scan = _compiled_scan() if compile else _loop_rows
    precision = import_jax("A compiled loop needs").enable_x64 if on_host and compile else nullcontext
    longest = _piece_length(X)
    every = min(record_every, longest)
    length = every * (longest // every)
    trace: list[tuple[np.ndarray, Any]] = []
    done, total = 0, passes * len(X)
    calibration, predict = (Calibration(), alg.predict) if calibrate else (None, None)
    bar = progress_bar("rows", total, shown=progress)
    with precision(state.mean.dtype == np.float64), bar as learned:
        for start, stop in pieces(len(X), length, record_every, passes):
            begin = max(0, min(start, len(X) - length))  # a short last piece looks back: one shape for all
            data, place = (window(X, begin, length), window(y, begin, length)), (start - begin, stop - begin)
            new, records, predicted = scan(alg.step, predict, state, *data, *place, every=every, record=record)
            if not is_traced(new.mean) and not np.isfinite(new.mean).all():
                raise Diverged(
                    f"The estimate is no longer finite after rows {done} to {done + stop - start}. "
                    "Lower gamma (or alpha0) or v0, or scale the columns of X.",
                    Run(state, stacked(trace), calibration),
                )
            if on_host:  # a slice of a JAX array would compile anew for each length
                records, predicted = tree_map(np.asarray, (records, predicted))
            if calibration is not None:
                calibration = _score_rows(calibration, predicted, data[1], *place)
            if every == record_every or stop % record_every == 0 or stop == len(X):  # not inside a long stretch
                marks = np.array([*range(every, stop - start, every), stop - start])
                trace.append((done + marks, tree_map(itemgetter(slice(len(marks))), records)))
            state, done = new, done + stop - start
            learned(done, total)
        out = Run(state, stacked(trace), calibration)
        return tree_map(np.asarray, out) if on_host else out


def _over_blocks(
    alg: Algorithm, state: Any, X: Array, y: Array, record_every: int, record: Record, calibrate: bool, progress: bool
) -> Run:
    calibration = calibration_for(state.problem.likelihood) if calibrate else None
    trace: list[tuple[np.ndarray, Any]] = []
    with progress_bar("rows", len(X), shown=progress) as learned:
        for start, stop in pieces(len(X), min(record_every, PIECE), record_every, 1):
            block = window(X, start, stop - start), window(y, start, stop - start)
            if calibration is not None:
                calibration = _score_block(calibration, alg, state, *block)
            state = alg.step(state, *block)
            if stop % record_every == 0 or stop == len(X):
                seen = (state.mean, state.posterior.var(), record(state) if record else None)
                trace.append((np.array([stop]), tree_map(lambda r: namespace(r).asarray(r)[None], seen)))
            learned(stop, len(X))
    return Run(state, stacked(trace), calibration)


def _score_block(calibration: Calibration, alg: Algorithm, state: Any, X: Array, y: Array) -> Calibration:
    """The calibration with the predictions of a block that has not been learned yet."""
    predicted: Predictive
    if not state.predicts:
        predicted = Student(np.full(y.shape, np.nan), np.full(y.shape, np.inf), np.inf)
    else:
        predicted = alg.predict(state, X)
    rows = predicted.mean, predicted.std, y
    if not calibration.of_whole_rows:
        rows = tuple(a.ravel() for a in rows)
    return calibration.update(*rows, getattr(predicted, "dof", np.inf))


def _score_rows(calibration: Calibration, predicted: Any, y: Array, start: int, stop: int) -> Calibration:
    """The calibration with the predictions of rows start to stop, each made before its row was learned."""
    mean, std = predicted
    xp, rows = namespace(mean, y), np.arange(len(y)).reshape(-1, *[1] * (y.ndim - 1))
    weights = xp.asarray(np.broadcast_to((start <= rows) & (rows < stop), y.shape), y.dtype)
    return calibration.update(mean.ravel(), std.ravel(), y.ravel(), weights=weights.ravel(), together=1.0)


def _check_calibrate(state: Any, passes: int) -> None:
    if not hasattr(state, "var"):
        raise ValueError(
            "calibrate=True needs an algorithm that states its uncertainty: proximal_filter, pipg or ipm. "
            "ipg and sgd have an estimate without a covariance."
        )
    if passes != 1:
        raise ValueError(f"calibrate=True needs passes=1: later passes predict rows already learned; got {passes}.")


def _check_data(X: Array, y: Array, record_every: int, passes: int) -> None:
    for name, a in (("X", X), ("y", y)):
        check_floating(name, a)
        check_finite(name, a)
    check_same_length(X, y)
    if len(X) == 0:
        raise ValueError("X and y must have at least one row; got none.")
    for name, number in (("record_every", record_every), ("passes", passes)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1; got {number}.")


# ---- the loops over rows: of Python, and compiled where JAX is installed --------------------------------------


def _piece_length(X: Array) -> int:
    """The number of rows of X to give to the compiled loop at once. It depends on the size of a row only."""
    return max(1, min(PIECE, _PIECE_BYTES * len(X) // max(int(X.nbytes), 1)))


def pieces(n: int, length: int, record_every: int, passes: int) -> Iterator[tuple[int, int]]:
    """Where each piece starts and stops: at most `length` rows, and none across a recorded row."""
    stretch = max(record_every, length)
    for _ in range(passes):
        for first in range(0, n, stretch):
            last = min(first + stretch, n)
            for start in range(first, last, length):
                yield start, min(start + length, last)


def _loop_rows(
    step: Any, predict: Any, state: Any, X: Array, y: Array, start: int, stop: int, *, every: int, record: Record
) -> Scanned:
    """Take rows start to stop of (X, y) through `step`, by a loop of Python.

    Returns
    -------
    state : object
        The last state.
    records : tuple
        The mean, the variances and the result of `record` after every `every` rows, stacked.
    predicted : tuple or None
        The means and standard deviations of all rows, each predicted before it was learned; None where `predict` is.
    """
    records: list[Any] = []
    predicted = None if predict is None else (np.zeros(y.shape, state.mean.dtype), np.zeros(y.shape, state.mean.dtype))
    for i in range(start, stop):
        if predicted is not None:
            predicted[0][i], predicted[1][i] = _moments(predict(state, X[i], block=False))
        state = step(state, X[i], y[i])
        if (i + 1 - start) % every == 0 or i + 1 == stop:
            records.append(_recorded(state, record))
    return state, tree_map(lambda *values: np.stack(values), *records), predicted


@cache
def _compiled_scan() -> Callable[..., Scanned]:
    """`_loop_rows` as a program of JAX, compiled for all starts and stops; see there."""
    import jax

    def scan_rows(step: Any, predict: Any, state: Any, *rows: Any, every: int, record: Record) -> Scanned:
        size = sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(state))
        scan = batched_in_groups(partial(_scan_rows, every=every, record=record), _CACHE // max(size, 1))
        return scan(step, predict, state, *rows)

    return jax.jit(scan_rows, static_argnames=("every", "record"))


def _scan_rows(
    step: Any, predict: Any, state: Any, X: Array, y: Array, start: Any, stop: Any, *, every: int, record: Record
) -> Scanned:
    import jax.numpy as jnp
    from jax import lax

    def one_row(i: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        state, predicted = carry
        if predict is not None:
            new = _moments(predict(state, X[i], block=False))
            predicted = tuple(a.at[i].set(b) for a, b in zip(predicted, new, strict=True))
        return step(state, X[i], y[i]), predicted

    def stretch(carry: tuple[Any, Any], first: Array) -> tuple[Any, Any]:
        carry = state, _ = _each_row(first, jnp.minimum(first + every, stop), one_row, carry)
        return carry, _recorded(state, record)

    nothing = None if predict is None else (jnp.zeros(y.shape, state.mean.dtype),) * 2
    (state, predicted), records = lax.scan(stretch, (state, nothing), start + jnp.arange(0, len(X), every))
    return state, records, predicted


def _each_row(first: Array, last: Array, one_row: Callable[[Array, Any], Any], carry: Any) -> Any:
    """Take rows first to last through `one_row`, several in each turn of the loop where that is faster."""
    import jax.numpy as jnp
    from jax import lax

    together = unrolling()
    if together == 1:
        return lax.fori_loop(first, last, one_row, carry)
    turns = jnp.maximum(last - first, 0) // together

    def turn(i: Array, carry: Any) -> Any:
        for j in range(together):
            carry = one_row(first + together * i + j, carry)
        return carry

    return lax.fori_loop(first + together * turns, last, one_row, lax.fori_loop(0, turns, turn, carry))


def _recorded(state: Any, record: Record) -> tuple[Any, Any, Any]:
    return state.mean, state.var() if hasattr(state, "var") else None, record(state) if record else None


def _moments(predicted: Predictive) -> tuple[Array, Array]:
    """The mean and the standard deviation of a prediction that a `Calibration` can judge; others are refused."""
    if not isinstance(predicted, Student):
        raise TypeError(
            f"calibrate=True judges normal and Student predictions, those of the Gaussian likelihood; got "
            f"{type(predicted).__name__}. Set calibrate=False."
        )
    return predicted.mean, predicted.std
