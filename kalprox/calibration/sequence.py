"""Sums over the scores in the order of the stream: products of scores a few rows apart, and sums over segments of it.

A stream is cut into at most `SEGMENTS` segments of equal length. When all are full, neighbours are joined, and the
length doubles. So the state has a fixed size, and the segments do not depend on the blocks in which the rows came.

Scores are bounded to [-`BOUND`, `BOUND`], so that a few huge errors cannot hide or imitate what all the others show.
Every row counts once here, whatever its weight.

For each row, v is the absolute score less its usual size, and x is the prediction less the first one of its segment, so
that no digits are lost where predictions are large and vary little. The sums are parts of those of a `Calibration`:

recent
    The last `LAGS` scores and v, shape (2, LAGS).
lagged
    The sums of products of two scores, and of two v, 0 to `LAGS` rows apart, shape (2, LAGS + 1).
segments
    The sums over each segment of the products of any two of (1, x, x^2, score, v), shape (SEGMENTS, 5, 5).
segment_origins
    The first prediction of each segment, shape (SEGMENTS,).
segment_shared
    For each segment, the sum of the numbers of rows predicted together, per degree of freedom; (SEGMENTS,).
segment_length
    The number of rows after which the next segment begins.
"""

import math
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import expect

__all__ = ["BOUND", "FIRST_LENGTH", "LAGS", "SEGMENTS", "USUAL_SIZE", "VALUES", "expect_possible", "join", "prolong"]

BOUND = 4.0  # of the absolute score
USUAL_SIZE = math.sqrt(2 / math.pi)  # the mean of the absolute score, if calibrated
LAGS = 10  # products of scores up to this number of rows apart
VALUES = 5  # of a row, whose products are summed over a segment: 1, x, x^2, score, v
_SEGMENTED = ("segments", "segment_origins", "segment_shared")
_BITS = 4
SEGMENTS = 1 << _BITS
FIRST_LENGTH = 16.0  # rows of a segment, at first
_MOST = float(np.finfo(float).max ** 0.2)  # the bound of x, so that x^4 stays finite
# Where x becomes x + h, the values of a row are multiplied by 1 + h _SHIFT + h^2 _SHIFT_TWICE.
_SHIFT, _SHIFT_TWICE = np.zeros((2, VALUES, VALUES))
_SHIFT[1, 0], _SHIFT[2, 1], _SHIFT_TWICE[2, 0] = 1, 2, 1


def expect_possible(sums: Any) -> None:
    """Raise a ValueError unless the segments can be those of a stream."""
    length, rows = sums["segment_length"], sums["segments"][:, 0, 0]
    expect(np.log2(max(length, 1.0) / FIRST_LENGTH) in range(64))
    expect(((rows >= 0) & (rows <= length) & (rows == np.round(rows))).all())


def prolong(sums: Any, u: Array, mean: Array, shared: Array) -> None:
    """Continue the sequence by rows that were judged, in place. O(b)."""
    if not len(u):
        return
    segments, origins, shares = (sums[name] for name in _SEGMENTED)
    b, size, rows = len(u), int(sums["segment_length"]), segments[:, 0, 0]
    current = max(int(np.count_nonzero(rows)) - 1, 0)
    filled = int(rows[current])
    doublings = max((current + (filled + b - 1) // size).bit_length() - _BITS, 0)
    if doublings:
        segments[:], origins[:], shares[:] = _regrouped(sums, doublings)
        size, current = size << doublings, current >> doublings
        sums["segment_length"], filled = size, int(rows[current])
    values = np.empty((VALUES, b))
    values[0] = 1
    score = np.minimum(np.maximum(u, -BOUND), BOUND, out=values[3])
    np.subtract(np.abs(score), USUAL_SIZE, out=values[4])
    start = 0
    while start < b:
        if filled == size:
            current, filled = current + 1, 0
        stop = min(b, start + size - filled)
        if filled == 0:
            origins[current] = mean[start]
        part = values[:, start:stop]
        x = np.minimum(np.maximum(mean[start:stop] - origins[current], -_MOST), _MOST, out=part[1])
        np.multiply(x, x, out=part[2])
        products, own = part @ part[1:].T, segments[current]  # four times as fast as part @ part.T
        own[:, 1:] += products
        own[1:, 0] += products[0]
        own[0, 0] += stop - start
        shares[current] += shared[start:stop].sum()
        start, filled = stop, filled + stop - start
    series = np.concatenate([sums["recent"], values[3:]], axis=1)
    for i, total in enumerate(sums["lagged"]):
        total += np.correlate(series[i], values[3 + i], mode="valid")[::-1]
    sums["recent"] = series[:, -LAGS:]


def _regrouped(sums: Any, doublings: int) -> list[Array]:
    """Return the segments, their origins and what they share, with groups of 2^doublings neighbours added up."""
    segments, origins, shares = (sums[name] for name in _SEGMENTED)
    group = np.arange(SEGMENTS) >> doublings
    member = (group == np.arange(SEGMENTS)[:, None]).astype(float)
    start = origins[member.argmax(axis=1)] * member.max(axis=1)
    h = np.clip(np.where(segments[:, 0, 0] > 0, origins - start[group], 0.0), -_MOST, _MOST)[:, None, None]
    T = np.eye(VALUES) + h * _SHIFT + h * h * _SHIFT_TWICE
    return [np.tensordot(member, T @ segments @ T.transpose(0, 2, 1), 1), start, member @ shares]


def join(sums: Any, one: Any, other: Any) -> None:
    """Set those of one sequence after the other. Products of scores on both sides of the seam are left out."""
    length = max(one["segment_length"], other["segment_length"])
    used = [int(np.count_nonzero(part["segments"][:, 0, 0])) for part in (one, other)]

    def doublings() -> list[int]:
        return [int(np.log2(length / part["segment_length"])) for part in (one, other)]

    def places() -> list[int]:
        return [-(-n >> k) for n, k in zip(used, doublings(), strict=True)]

    if sum(places()) > SEGMENTS:
        length *= 2
    of_one, of_other = (_regrouped(part, k) for part, k in zip((one, other), doublings(), strict=True))
    start = places()[0]
    for name, first, second in zip(_SEGMENTED, of_one, of_other, strict=True):
        first[start:] += second[: SEGMENTS - start]
        sums[name] = first
    sums["segment_length"], sums["recent"] = length, (other if used[1] else one)["recent"]
