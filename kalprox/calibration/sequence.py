"""Sums over the scores in the order of the stream: products of scores a few rows apart, and sums over segments of it.

A stream is cut into at most `SEGMENTS` segments of equal length. When all are full, neighbours are joined, and the
length doubles. So the state has a fixed size, and the segments do not depend on the blocks in which the rows came.

Scores are bounded to [-`BOUND`, `BOUND`], so that a few huge errors cannot hide or imitate what all the others show.
Every row counts once here, whatever its weight.
"""

import math
from types import ModuleType
from typing import NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import expect

__all__ = ["BOUND", "FIRST_LENGTH", "LAGS", "SEGMENTS", "USUAL_SIZE", "VALUES", "Sequence", "joined", "prolonged"]

BOUND = 4.0  # of the absolute score
USUAL_SIZE = math.sqrt(2 / math.pi)  # the mean of the absolute score, if calibrated
LAGS = 10  # products of scores up to this number of rows apart
VALUES = 5  # of a row, whose products are summed over a segment: 1, x, x^2, score, v; see `Sequence`
_BITS = 4
SEGMENTS = 1 << _BITS
FIRST_LENGTH = 16.0  # rows of a segment, at first
_MOST = float(np.finfo(float).max ** 0.2)  # the bound of x, so that x^4 stays finite
# Where x becomes x + h, the values of a row are multiplied by 1 + h _SHIFT + h^2 _SHIFT_TWICE.
_SHIFT, _SHIFT_TWICE = np.zeros((2, VALUES, VALUES))
_SHIFT[1, 0], _SHIFT[2, 1], _SHIFT_TWICE[2, 0] = 1, 2, 1


class Sequence(NamedTuple):
    """The part of a `Calibration` that depends on the order of the rows.

    For each row, v is the absolute score less its usual size, and x is the prediction less the first one of its
    segment, so that no digits are lost where predictions are large and vary little.

    Attributes
    ----------
    recent : array
        The last `LAGS` scores and v, shape (2, LAGS).
    lagged : array
        The sums of products of two scores, and of two v, 0 to `LAGS` rows apart, shape (2, LAGS + 1).
    segments : array
        The sums over each segment of the products of any two of (1, x, x^2, score, v), shape (SEGMENTS, 5, 5).
    segment_origins : array
        The first prediction of each segment, shape (SEGMENTS,).
    segment_shared : array
        For each segment, the sum of the numbers of rows predicted together, per degree of freedom; (SEGMENTS,).
    segment_length : array
        The number of rows after which the next segment begins.
    """

    recent: Array
    lagged: Array
    segments: Array
    segment_origins: Array
    segment_shared: Array
    segment_length: Array

    def expect_possible(self) -> None:
        """Raise a ValueError unless the segments can be those of a stream."""
        length, rows = self.segment_length, self.segments[:, 0, 0]
        expect(np.log2(max(float(length), 1.0) / FIRST_LENGTH) in range(64))
        expect(((rows >= 0) & (rows <= length) & (rows == np.round(rows))).all())


def prolonged(xp: ModuleType, before: Sequence, u: Array, mean: Array, shared: Array, judged: Array | None) -> Sequence:
    """Continue the sequence by the rows of a block that were judged; None says that all were. O(b)."""
    if xp is np:
        if judged is not None:
            u, mean, shared = u[judged], mean[judged], shared[judged]
        return before if len(u) == 0 else _prolonged_on_host(before, u, mean, shared)
    return before if u.shape[0] == 0 else _prolonged_in_fixed_shapes(xp, before, u, mean, shared, judged)


def _prolonged_on_host(before: Sequence, u: Array, mean: Array, shared: Array) -> Sequence:
    b, before = len(u), Sequence(*map(np.asarray, before))
    length, rows = int(before.segment_length), before.segments[:, 0, 0]
    current = max(int(np.count_nonzero(rows)) - 1, 0)
    filled = int(rows[current])
    doublings = max((current + (filled + b - 1) // length).bit_length() - _BITS, 0)
    segments, origins, shares = before.segments, before.segment_origins, before.segment_shared
    if doublings:
        segments, origins, shares = _regrouped(np, segments, origins, shares, np.arange(SEGMENTS) >> doublings)
        length, current = length << doublings, current >> doublings
        filled = int(segments[current, 0, 0])
    else:
        segments, origins, shares = segments.copy(), origins.copy(), shares.copy()
    values = np.empty((VALUES, b))
    values[0] = 1
    score = np.minimum(np.maximum(u, -BOUND), BOUND, out=values[3])
    np.subtract(np.abs(score), USUAL_SIZE, out=values[4])
    start = 0
    while start < b:
        if filled == length:
            current, filled = current + 1, 0
        stop = min(b, start + length - filled)
        if filled == 0:
            origins[current] = mean[start]
        part = values[:, start:stop]
        x = np.minimum(np.maximum(mean[start:stop] - origins[current], -_MOST), _MOST, out=part[1])
        np.multiply(x, x, out=part[2])
        products, sums = part @ part[1:].T, segments[current]  # four times as fast as part @ part.T
        sums[:, 1:] += products
        sums[1:, 0] += products[0]
        sums[0, 0] += stop - start
        shares[current] += shared[start:stop].sum()
        start, filled = stop, filled + stop - start
    recent, lagged = _lagged(np, before, values[3:])
    return Sequence(recent[:, -LAGS:].copy(), lagged, segments, origins, shares, np.asarray(float(length)))


def _prolonged_in_fixed_shapes(
    xp: ModuleType, before: Sequence, u: Array, mean: Array, shared: Array, judged: Array | None
) -> Sequence:
    """The same for JAX, where shapes are fixed: rows to be left out go to the end, and count nothing."""
    b, dtype = u.shape[0], u.dtype
    judged = xp.ones(b, bool) if judged is None else judged
    count, rows = judged.sum(), xp.argsort(~judged, stable=True)
    present = (xp.arange(b) < count).astype(dtype)
    u, mean, shared = u[rows] * present, mean[rows] * present, shared[rows] * present
    score = xp.clip(u, -BOUND, BOUND)
    v = xp.abs(score) - USUAL_SIZE * present
    before = Sequence(*(xp.asarray(a, dtype) for a in before))

    length, filled_rows = before.segment_length, before.segments[:, 0, 0]
    current = xp.maximum((filled_rows > 0).sum() - 1, 0)
    filled = filled_rows[current]
    number = current + ((filled + xp.arange(b).astype(dtype)) // length).astype(int)
    last = current + ((filled + count.astype(dtype) - 1) // length).astype(int)
    doublings = xp.maximum(xp.frexp(last.astype(dtype))[1].astype(int) - _BITS, 0)
    number = xp.minimum(number >> doublings, SEGMENTS - 1)
    segments, origins, shares = _regrouped(
        xp, before.segments, before.segment_origins, before.segment_shared, xp.arange(SEGMENTS) >> doublings
    )
    member = (number[None] == xp.arange(SEGMENTS)[:, None]).astype(dtype) * present[None]
    opens = (segments[:, 0, 0] == 0) & (member.sum(axis=1) > 0)
    origins = xp.where(opens, mean[xp.argmax(member, axis=1)], origins)
    most = xp.finfo(dtype).max ** 0.2
    x = xp.clip(mean - origins[number], -most, most)
    values = xp.stack([xp.ones(b, dtype), x, x * x, score, v])
    segments = segments + xp.einsum("kr,ir,jr->kij", member, values, values, precision="highest")
    recent, lagged = _lagged(xp, before, values[3:])
    return Sequence(
        recent[:, count + xp.arange(LAGS)],
        lagged,
        segments,
        origins,
        shares + (member * shared[None]).sum(axis=1),
        length * (1 << doublings).astype(dtype),
    )


def _lagged(xp: ModuleType, before: Sequence, block: Array) -> tuple[Array, Array]:
    """The last scores followed by those of the block, and the sums of products of scores 0 to `LAGS` rows apart."""
    series = xp.concatenate([before.recent, block], axis=1)
    products = [xp.correlate(series[i], block[i], mode="valid")[::-1] for i in (0, 1)]
    return series, before.lagged + (np.array(products) if xp is np else xp.stack(products))


def _regrouped(
    xp: ModuleType, segments: Array, origins: Array, shares: Array, group: Array
) -> tuple[Array, Array, Array]:
    """Add up the segments of each group; `group`, ascending, is the number of each segment's group."""
    member = (group[None] == xp.arange(SEGMENTS)[:, None]).astype(segments.dtype)
    start = origins[xp.argmax(member, axis=1)] * member.max(axis=1)
    most = xp.finfo(segments.dtype).max ** 0.2
    h = xp.clip(xp.where(segments[:, 0, 0] > 0, origins - start[group], 0), -most, most)
    h = h[:, None, None]
    eye, once, twice = (xp.asarray(a[None], h.dtype) for a in (np.eye(VALUES), _SHIFT, _SHIFT_TWICE))
    T = eye + h * once + h * h * twice
    precise = {} if xp is np else {"precision": "highest"}
    moved = xp.matmul(xp.matmul(T, segments, **precise), T.transpose(0, 2, 1), **precise)
    return xp.tensordot(member, moved, 1, **precise), start, xp.matmul(member, shares, **precise)


def joined(xp: ModuleType, one: Sequence, other: Sequence) -> Sequence:
    """Two sequences, one after the other. Products of scores on both sides of the seam are left out."""
    parts = [Sequence(*(xp.asarray(a) for a in part)) for part in (one, other)]
    length = xp.maximum(one.segment_length, other.segment_length)
    doublings = [xp.frexp(length / part.segment_length)[1].astype(int) - 1 for part in parts]
    used = [(part.segments[:, 0, 0] > 0).sum() for part in parts]
    needed = [((n - 1) >> k) + 1 for n, k in zip(used, doublings, strict=True)]
    more = (sum(needed) > SEGMENTS).astype(int)
    first, second = (
        _regrouped(xp, *part[2:5], xp.arange(SEGMENTS) >> (k + more)) for part, k in zip(parts, doublings, strict=True)
    )
    place = xp.arange(SEGMENTS) - (((used[0] - 1) >> (doublings[0] + more)) + 1)
    after = [xp.where((place >= 0).reshape(-1, *[1] * (a.ndim - 1)), a[xp.maximum(place, 0)], 0) for a in second]
    segments, origins, shares = (a + b for a, b in zip(first, after, strict=True))
    recent = xp.where(used[1] > 0, parts[1].recent, parts[0].recent)
    lagged = parts[0].lagged + parts[1].lagged
    return Sequence(recent, lagged, segments, origins, shares, length * (1 << more).astype(length.dtype))
