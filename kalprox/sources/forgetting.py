"""Forgetting: how weights fade as later rows come."""

from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array, asarray_like, namespace
from kalprox.base.checks import concrete
from kalprox.forgetting import Forgetting

_FORGOTTEN = 1e-100  # no block fades earlier rows further, lest what is left of them underflow


class Faded(NamedTuple):
    """The rows of a block once the whole block has come, and the share that is left of everything before it."""

    weights: Array  # (b,)
    counts: Array  # (b,), the sum of the fading factors of the rows that a row stands for
    squares: Array  # (b,), the sum of the squares of these factors
    left: Array | None  # None where nothing is forgotten


def faded(
    weights: Array,
    forget: Any,
    counts: Array | None = None,
    times: Array | None = None,
    since: float | None = None,
) -> Faded:
    """Multiply the weights of a block by what forgetting leaves of them. Any split into blocks gives the same.

    By row, a row that counts n times stands for n rows one after the other, so that it is worth 1 + forget + ... =
    (1 - forget^n) / (1 - forget), and fades by `forget` for every later row. By time, it stands for n rows at its time.

    Parameters
    ----------
    weights : array of shape (b,)
    forget : float, ByRow or ByTime
        A number, in (0, 1], is what a row's weight is multiplied by with every later row.
    counts : array of shape (b,), optional
        1 for each row, and 0 for a row of weight 0, if the weights are precisions. By default the weight of a row is
        the number of rows that it stands for.
    times : array of shape (b,), optional
        The times of the rows, in order, for `ByTime`.
    since : float, optional
        The time of the last row before the block; None if there was none.

    Returns
    -------
    Faded
        A share that underflows is the smallest positive number of full precision.
    """
    if times is not None:
        counts = weights if counts is None else counts
        share = forget.left(times, times[-1])
        left = forget.left(times[0] if since is None else since, times[-1])
        return Faded(weights * share, counts * share, counts * share**2, left)
    forget = forget.per_row if isinstance(forget, Forgetting) else forget
    number = concrete(forget)
    counts = weights if counts is None else counts
    if number is not None and number == 1:
        return Faded(weights, counts, counts, None)
    rho = asarray_like(forget, weights)
    seen = counts.cumsum()
    share = rho ** (seen[-1] - seen)
    left = share * (1 - rho**counts) / (1 - rho)
    squares = share**2 * (1 - rho ** (2 * counts)) / (1 - rho**2)
    before = namespace(rho).maximum(rho ** seen[-1], np.finfo(rho.dtype).tiny)
    return Faded(left if counts is weights else weights * share, left, squares, before)


class Course(NamedTuple):
    """How earlier rows fade on the way through a block, for each of its rows at the moment when it is predicted.

    Attributes
    ----------
    left : array of shape (b,)
        The share that is left of what was known at the first row of the block.
    elapsed : array of shape (b,)
        The part of this share that is due to the time since the row before.
    worth : array of shape (b,)
        The weight of the row per unit of its own, in units of the first row of the block.
    rows, squares : array of shape (b,)
        The sums over the rows of the block before it of what is left of each, and of its square.
    """

    left: Array
    elapsed: Array
    worth: Array
    rows: Array
    squares: Array


def course(forget: Forgetting, counts: Array, times: Array | None = None, since: float | None = None) -> Course:
    """Return how earlier rows fade on the way through a block whose rows count so often; see `faded`."""
    if times is not None:
        left = np.maximum(forget.left(times[0], times), _FORGOTTEN)
        before = np.append(times[0] if since is None else since, times[:-1])
        sums = (np.cumsum(counts / left**power) - counts / left**power for power in (1, 2))
        rows, squares = (left**power * total for power, total in zip((1, 2), sums, strict=True))
        return Course(left, forget.left(before, times), 1 / left, rows, squares)
    rho = forget.per_row
    seen, ones = np.cumsum(counts), np.ones(len(counts))
    at = seen - counts
    if rho == 1:
        return Course(ones, ones, ones, at, at)
    seen = np.minimum(seen, np.log(_FORGOTTEN) / np.log(rho))
    at = np.minimum(at, seen)
    each = np.where(counts > 0, (1 - rho**counts) / (1 - rho) / np.where(counts > 0, counts, 1), 0)
    return Course(rho**at, ones, each / rho**seen, (1 - rho**at) / (1 - rho), (1 - rho ** (2 * at)) / (1 - rho**2))


def shares(forget: Forgetting, counts: Array, times: Array | None = None) -> Array:
    """Return what the rows of a block, which count so often, have left of their weights after the last of them."""
    if times is not None:
        return np.asarray(forget.left(times, times[-1]))
    seen = np.cumsum(counts)
    return np.asarray(forget.per_row ** (seen[-1] - seen))
