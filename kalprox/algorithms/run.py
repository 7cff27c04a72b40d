"""Rows through an algorithm: compiled, recorded, watched. Knows no algebra."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kalprox._arrays import Array, is_traced, namespace, pytree, register_pytrees
from kalprox._checks import check_finite, check_floating, check_same_length
from kalprox.algorithms.base import Algorithm
from kalprox.calibration import Calibration

__all__ = ["Diverged", "Run", "Trace", "run"]

_PIECE = 8192  # rows handed to the compiled loop at once, at most: enough for the calls from Python to cost nothing
_PIECE_BYTES = 1 << 26  # of inputs handed to the compiled loop at once, at most: fewer rows where they are long


@pytree
class Trace:
    """What was recorded, stacked: after `rows[i]` rows, `mean[i]` and `var[i]` (None without a belief)."""

    rows: Any
    mean: Any
    var: Any
    extra: Any  # what the `record` function gave, stacked; None without one


@pytree
class Run:
    """The last state, the trace to it, and how well the predictions on the way held (if asked)."""

    state: Any
    trace: Trace
    calibration: Calibration | None = None


register_pytrees()


class Diverged(FloatingPointError):
    """The estimate is no longer finite. `.run` holds the last finite state and the trace to it."""

    def __init__(self, message: str, so_far: Run):
        super().__init__(message)
        self.run = so_far


def run(
    alg: Algorithm,
    state: Any,
    X: Array,
    y: Array,
    *,
    record_every: int = 1000,
    record: Callable[[Any], Any] | None = None,
    passes: int = 1,
    calibrate: bool = False,
    progress: bool = False,
) -> Run:
    """Take the rows of X and y, in order, through `alg` from `state`.

    The paper's algorithms go row by row, in a compiled loop over pieces of the data. It recompiles
    neither for another number of rows nor for another gamma, lam or q, and memory grows only with
    what is recorded. The proximal filter takes blocks of `record_every` rows, at most 8192. NumPy
    arrays are answered with NumPy arrays, in the dtype of the state's mean, whatever JAX's x64 flag says.

    Args:
      alg: any of kalprox's algorithms.
      state: where to start, from `alg.init`.
      X: the inputs, shape (n, ...); `models.Function` takes any row, the others (n, d).
      y: the targets, shape (n,), or (n, m) for a model with m outputs.
      record_every: record after every so many rows, and after the last row of each pass.
      record: a function of the state whose results are stacked beside the means and variances.
      passes: how often to go through the rows; the proximal filter goes once, and `refine` is for more.
      calibrate: predict each block before it is learned, and keep score: the proximal filter only. Rows
        of a warm-up are not judged.
      progress: show a bar.

    >>> import kalprox as kp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2500, 2))
    >>> y = X @ np.array([1.0, -1.0]) + rng.normal(size=2500)
    >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
    >>> out = kp.run(alg, alg.init(np.zeros(2), 100.0), X, y)
    >>> out.trace.rows
    array([1000, 2000, 2500])
    >>> out.state.mean.round(2), np.sqrt(out.state.var()).round(2)
    (array([ 1., -1.]), array([0.02, 0.02]))
    """
    _check_data(X, y, record_every, passes)
    if alg.by_block:
        if passes != 1:
            raise ValueError(
                f"passes must be 1 for a proximal filter, or rows would count twice; got {passes}. Use refine."
            )
        return _over_blocks(alg, state, X, y, record_every, record, calibrate, progress)
    if calibrate:
        raise ValueError("calibrate=True needs an algorithm that predicts, such as proximal_filter.")
    on_host = namespace(alg, state, X, y) is np
    piece = max(1, min(_PIECE, _PIECE_BYTES * len(X) // max(X.nbytes, 1)))
    every = min(record_every, piece)
    length = every * (piece // every)
    trace: list[tuple[np.ndarray, Any]] = []
    done = 0
    with _precision(state.mean.dtype if on_host else None), _bar(progress, passes * len(X)) as advance:
        for start, stop in _pieces(len(X), length, record_every, passes):
            begin = max(0, min(start, len(X) - length))  # a short last piece looks back: one shape for all
            data = _window(X, begin, length), _window(y, begin, length)
            new, records = _scan(alg.step, state, *data, start - begin, stop - begin, every, record)
            if not is_traced(new.mean) and not np.isfinite(new.mean).all():
                raise Diverged(
                    f"The estimate is no longer finite after rows {done} to {done + stop - start}. "
                    "Lower gamma (or alpha0) or v0, or scale the columns of X.",
                    Run(state, _stack(trace)),
                )
            marks = [*range(every, stop - start, every), stop - start]
            if on_host:  # a slice of JAX's would compile anew for each length
                records = jax.tree_util.tree_map(np.asarray, records)
            if every == record_every or stop % record_every == 0 or stop == len(X):  # not inside a long stretch
                trace.append((done + np.array(marks), jax.tree_util.tree_map(itemgetter(slice(len(marks))), records)))
            state, done = new, done + stop - start
            advance(stop - start)
        out = Run(state, _stack(trace))
        return jax.tree_util.tree_map(np.asarray, out) if on_host else out


def _over_blocks(
    alg: Algorithm,
    state: Any,
    X: Array,
    y: Array,
    record_every: int,
    record: Callable | None,
    calibrate: bool,
    bar: bool,
) -> Run:
    length = min(record_every, _PIECE)
    calibration = Calibration() if calibrate else None
    trace: list[tuple[np.ndarray, Any]] = []
    with _bar(bar, len(X)) as advance:
        for start, stop in _pieces(len(X), length, record_every, 1):
            block = _window(X, start, stop - start), _window(y, start, stop - start)
            if calibration is not None:
                calibration = calibration.update(*_before(state, *block))
            state = alg.step(state, *block)
            if stop % record_every == 0 or stop == len(X):
                seen = (state.mean, state.var(), record(state) if record else None)
                trace.append((np.array([stop]), jax.tree_util.tree_map(lambda r: namespace(r).asarray(r)[None], seen)))
            advance(stop - start)
    return Run(state, _stack(trace), calibration)


def _before(state: Any, X: Array, y: Array) -> tuple[Array, Array, Array, Any]:
    """What the state predicts of a block it has not seen, and what came: mean, std, y, degrees of freedom."""
    if state.held is not None:
        return y.ravel(), np.full(y.size, np.inf), y.ravel(), np.inf
    mean, std, dof = state.predict(X)
    return mean.ravel(), std.ravel(), y.ravel(), dof


@partial(jax.jit, static_argnames=("every", "record"))
def _scan(
    step: Any, state: Any, X: Array, y: Array, start: Any, stop: Any, every: int, record: Callable | None
) -> tuple[Any, Any]:
    """Rows start to stop of (X, y) through `step`, a record after every `every` of them."""

    def stretch(state: Any, first: Array) -> tuple[Any, Any]:
        last = jnp.minimum(first + every, stop)
        state = lax.fori_loop(first, last, lambda i, state: step(state, X[i], y[i]), state)
        var = state.var() if hasattr(state, "var") else None
        return state, (state.mean, var, record(state) if record else None)

    return lax.scan(stretch, state, start + jnp.arange(0, len(X), every))


def _pieces(n: int, length: int, record_every: int, passes: int) -> Iterator[tuple[int, int]]:
    """Where each piece starts and stops: at most `length` rows, none across a recorded row."""
    stretch = max(record_every, length)
    for _ in range(passes):
        for first in range(0, n, stretch):
            last = min(first + stretch, n)
            for start in range(first, last, length):
                yield start, min(start + length, last)


def _window(a: Array, begin: int, length: int) -> Array:
    """Rows begin to begin + length of `a`; zeros, never looked at, where it has fewer."""
    if len(a) < length:
        return namespace(a).pad(a, [(0, length - len(a)), *[(0, 0)] * (a.ndim - 1)])
    if namespace(a) is np:
        return a[begin : begin + length]
    return lax.dynamic_slice_in_dim(a, begin, length)  # a[begin:...] would compile anew for each begin


def _stack(trace: list[tuple[np.ndarray, Any]]) -> Trace:
    if not trace:
        return Trace(np.zeros(0, int), None, None, None)
    rows, records = zip(*trace, strict=True)
    return Trace(np.concatenate(rows), *jax.tree_util.tree_map(lambda *r: namespace(*r).concatenate(r), *records))


@contextlib.contextmanager
def _precision(dtype: Any) -> Iterator[None]:
    """float64 where the host's arrays are float64, without touching JAX's global flag."""
    if dtype is None:
        yield
    else:
        with jax.enable_x64(dtype == np.float64):
            yield


@contextlib.contextmanager
def _bar(show: bool, total: int) -> Iterator[Callable[[int], None]]:
    if not show:
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=total)
        yield lambda rows: bar.advance(task, rows)


def _check_data(X: Array, y: Array, record_every: int, passes: int) -> None:
    for name, a in (("X", X), ("y", y)):
        if not hasattr(a, "dtype"):
            raise TypeError(f"{name} must be a NumPy or JAX array; got {type(a).__name__}.")
        check_floating(name, a)
    check_same_length(X, y)
    if len(X) == 0:
        raise ValueError("X and y must have at least one row; got none.")
    for name, a in (("X", X), ("y", y)):
        check_finite(name, a)
    for name, count in (("record_every", record_every), ("passes", passes)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1; got {count}.")
