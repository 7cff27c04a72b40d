"""The loop over single rows, compiled where JAX is installed, and the pieces of the data that it is given."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, tree_map
from kalprox.base.control import batched_in_groups, unrolling
from kalprox.predictive import Predictive, Student

__all__ = ["PIECE", "Record", "compiled_scan", "loop_rows", "piece_length", "pieces"]

PIECE = 8192  # rows given to the compiled loop at once, at most: enough for the calls from Python to cost nothing
_PIECE_BYTES = 1 << 26  # of inputs given to the compiled loop at once, at most: fewer rows where rows are long
_CACHE = 5 << 14  # bytes of states that a CPU takes from row to row together under `jax.vmap`; measured

Record = Callable[[Any], Any] | None
Scanned = tuple[Any, Any, Any]


def piece_length(X: Array) -> int:
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


def loop_rows(
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
def compiled_scan() -> Callable[..., Scanned]:
    """`loop_rows` as a program of JAX, compiled for all starts and stops; see there."""
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
