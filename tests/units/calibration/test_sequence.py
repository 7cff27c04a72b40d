"""The sums that depend on the order of the rows: against a plain computation, in any blocks, on JAX, merged."""

from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalprox.calibration import Calibration
from kalprox.calibration.checks import BOUND, LAGS, SEGMENTS, USUAL_SIZE

SEQUENCE = [name for name in Calibration.layout.names if name.startswith(("recent", "lagged", "segment"))]


def rows(n, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    mean = offset + rng.normal(size=n)
    return mean, np.full(n, 1.5), mean + 2 * rng.standard_t(3, size=n)


def plain(mean, std, y):
    """The sequence of normal predictions made one at a time, computed from all rows at once."""
    score = np.clip((y - mean) / std, -BOUND, BOUND)
    v = np.abs(score) - USUAL_SIZE
    length = 16
    while len(y) > SEGMENTS * length:
        length *= 2
    lagged = np.array([[s[k:] @ s[: len(s) - k] if k < len(s) else 0.0 for k in range(LAGS + 1)] for s in (score, v)])
    segments, origins = np.zeros((SEGMENTS, 5, 5)), np.zeros(SEGMENTS)
    for k, start in enumerate(range(0, len(y), length)):
        part = slice(start, start + length)
        origins[k] = mean[start]
        x = mean[part] - mean[start]
        values = np.array([np.ones_like(x), x, x**2, score[part], v[part]])
        segments[k] = values @ values.T
    recent = np.hstack([np.zeros((2, LAGS)), [score, v]])[:, -LAGS:]
    return SimpleNamespace(
        **dict(zip(SEQUENCE, (recent, lagged, segments, origins, np.zeros(SEGMENTS), float(length)), strict=True))
    )


def assert_same(found, expected, rtol=1e-10):
    for name in SEQUENCE:
        a, b = np.asarray(getattr(found, name)), np.asarray(getattr(expected, name))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1.0, float(np.abs(b).max())), err_msg=name)


@pytest.mark.parametrize("n", [1, 7, 16, 17, 256, 257, 1000, 5000])
def test_the_sums_are_what_they_say(n):
    mean, std, y = rows(n)
    assert_same(Calibration().update(mean, std, y), plain(mean, std, y))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 700), max_size=6))
def test_any_blocks_give_the_same_sequence(seed, cuts):
    """Rows of weight 0 and rows without a finite std are not part of it."""
    rng = np.random.default_rng(seed)
    mean, std, y = rows(700, seed)
    weights = rng.integers(0, 3, size=700).astype(float)
    std[rng.random(700) < 0.1] = np.inf
    kept = (weights > 0) & np.isfinite(std)
    c = Calibration()
    for a, b in pairwise([0, *sorted(cuts), 700]):
        c = c.update(mean[a:b], std[a:b], y[a:b], weights=weights[a:b])
    assert_same(c, plain(mean[kept], std[kept], y[kept]))


def test_one_row_at_a_time():
    mean, std, y = rows(600)
    c = Calibration()
    for row in zip(mean, std, y, strict=True):
        c = c.update(*row)
    assert_same(c, plain(mean, std, y))


@pytest.mark.slow
def test_jax_gives_the_same_in_blocks_and_at_once():
    mean, std, y = rows(640)
    weights = np.arange(640.0) % 3
    kept = weights > 0
    expected = plain(mean[kept], std[kept], y[kept])
    with jax.enable_x64(True):
        update = jax.jit(Calibration.update)
        whole = update(Calibration(), *map(jnp.asarray, (mean, std, y)), np.inf, weights)
        assert_same(whole, expected)
        blocks = tuple(jnp.asarray(a.reshape(40, 16)) for a in (mean, std, y, weights))
        scanned, _ = jax.lax.scan(lambda c, b: (c.update(*b[:3], weights=b[3]), None), Calibration(), blocks)
        assert_same(scanned, expected)
        merged = jax.jit(Calibration.merge)(scanned, whole)
        assert_same(merged, Calibration().update(mean, std, y, weights=weights).merge(whole))


def test_a_sequence_of_jax_goes_on_with_numpy():
    mean, std, y = rows(500)
    with jax.enable_x64(True):
        begun = jax.jit(Calibration.update)(Calibration(), *(jnp.asarray(a[:100]) for a in (mean, std, y)))
    assert_same(begun.update(mean[100:], std[100:], y[100:]), plain(mean, std, y))


@pytest.mark.slow
def test_in_float32_it_stays_float32():
    mean, std, y = rows(640)
    blocks = tuple(jnp.asarray(a.reshape(40, 16), "float32") for a in (mean, std, y))
    got, _ = jax.lax.scan(lambda c, block: (c.update(*block), None), Calibration(), blocks)
    assert got.segments.dtype == jnp.float32
    assert_same(got, plain(mean, std, y), rtol=1e-4)


@pytest.mark.parametrize(("n", "m"), [(0, 50), (50, 0), (300, 400), (16, 5000), (4000, 4000), (3999, 4001)])
def test_a_merge_is_one_stream_after_the_other_but_for_the_seam(n, m):
    one, other = rows(n, 1), rows(m, 2)
    a, b = Calibration().update(*one), Calibration().update(*other)
    both = a.merge(b)
    np.testing.assert_allclose(both.lagged, a.lagged + b.lagged, rtol=1e-14)
    assert both.segments[:, 0, 0].sum() == n + m
    used = np.count_nonzero(both.segments[:, 0, 0])
    assert used <= SEGMENTS and (both.segments[:used, 0, 0] > 0).all()  # no gap
    # The predictions of all rows, taken from their origins, have the moments that they have.
    counts, x, x2 = both.segments[:, 0, 0], both.segments[:, 0, 1], both.segments[:, 1, 1]
    mean = np.concatenate([one[0], other[0]])
    np.testing.assert_allclose((x + counts * both.segment_origins).sum(), mean.sum(), rtol=1e-10)
    squares = (x2 + 2 * both.segment_origins * x + counts * both.segment_origins**2).sum()
    np.testing.assert_allclose(squares, mean @ mean, rtol=1e-10)
    np.testing.assert_array_equal(both.recent, b.recent if m else a.recent)
    further = both.update(*rows(3000, 3))  # it goes on
    assert further.segments[:, 0, 0].sum() == n + m + 3000


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_large_predictions_lose_no_digits(offset):
    """Also where the first one, made from nothing, is far from the others."""
    rng = np.random.default_rng(0)
    signal = rng.normal(size=4000)
    y = signal + np.exp(0.3 * signal) * rng.normal(size=4000)
    mean = signal + offset
    mean[0] = 0
    verdict = Calibration().update(mean, 1.0, y + offset).verdict()
    unequal = next(check for check in verdict.checks if check.word == "unequal spread")
    assert unequal.found and unequal.p_value < 1e-50


def test_huge_predictions_leave_the_sums_finite():
    mean, std, y = rows(200)
    mean[50], y[50] = 1e300, 1e300
    c = Calibration().update(mean, std, y)
    assert all(np.isfinite(value).all() for value in c.sums)
    assert c.verdict().word
