"""Conformal intervals: the identity that holds for any sequence, and what it gives on real rows."""

import numpy as np
import pytest
from data import flights

from kalprox import KalproxRegressor
from kalprox.learning.tracking import CONFORMAL_LEVELS, Quantiles

SEQUENCES = {
    "normal": lambda rng: rng.normal(size=600),
    "heavy": lambda rng: rng.standard_t(1, size=600),
    "constant": lambda rng: np.full(600, 1e6),
    "never missed": lambda rng: np.zeros(600),
    "alternating": lambda rng: 50.0 * (-1.0) ** np.arange(600),
    "growing": lambda rng: np.exp(np.arange(600) / 20),
}
CUTS = {"rows": range(1, 600), "blocks": range(50, 600, 50), "mixture": [1, 2, 3, 40, 41, 300, 301, 302, 590]}


def step(before, rows):
    """The step of a block of this many rows, as the class states it."""
    return min(max((before + rows) ** -0.6, 0.02) / rows**0.25, 2 / rows)


def sums(z, cuts):
    """By hand, for each level and side: the sum of eta (miss - a / 2), the misses, and the last ends."""
    quantiles, total, missed, before = Quantiles.normal(None), 0.0, 0.0, 0
    sides = (1 - np.array(CONFORMAL_LEVELS)) / 2
    for block in np.split(z, cuts):
        low, high = quantiles.ends.T
        miss = np.stack([(block[:, None] < -low).sum(axis=0), (block[:, None] > high).sum(axis=0)], axis=1)
        total = total + step(before, len(block)) * (miss - len(block) * sides[:, None])
        missed, before = missed + miss, before + len(block)
        quantiles = quantiles.after(block)
    return total, missed, quantiles


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_the_steps_add_up_to_the_move_of_the_quantile(sequence, cuts):
    z = SEQUENCES[sequence](np.random.default_rng(0))
    total, missed, last = sums(z, CUTS[cuts])
    np.testing.assert_allclose(total, last.ends - Quantiles.normal(None).ends, rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(last.missed, missed)
    assert last.rows == len(z)
    np.testing.assert_allclose(last.coverage, 1 - missed.sum(axis=1) / len(z), rtol=1e-14)


@pytest.mark.parametrize("strategy", ["just outside", "just inside", "above"])
def test_against_an_adversary_who_sees_the_interval(strategy):
    """Whatever y does, a constant step eta bounds the share of misses by the move of q over eta times the rows."""
    quantiles, n, i = Quantiles.normal(None), 4000, CONFORMAL_LEVELS.index(0.9)
    begin = 800  # the step is constant after 0.02^(-1/0.6) = 678 rows
    for t in range(n):
        low, high = quantiles.of(0.9)
        z = {"just outside": (-1) ** t * 1e-6 - low * (t % 2) + high * (1 - t % 2), "just inside": 0.0, "above": 1e9}
        quantiles = quantiles.after(np.array([z[strategy]]))
        if t + 1 == begin:
            first = quantiles
    shares = (quantiles.missed - first.missed)[i] / (n - begin)
    moves = (quantiles.ends - first.ends)[i]
    np.testing.assert_allclose(shares - 0.05, moves / (0.02 * (n - begin)), atol=1e-10)


def test_rows_one_by_one_have_the_bits_of_blocks_of_one():
    z = np.random.default_rng(0).standard_t(2, size=300)
    z[[7, 100]] = np.nan
    together = np.ones(300)
    together[50:57], together[200:203] = 7, 0
    fast, slow = Quantiles.normal(None).after_rows(z, together), Quantiles.normal(None)
    for rows in [*range(50), slice(50, 57), *range(57, 200), *range(203, 300)]:
        slow = slow.after(np.atleast_1d(z[rows]))
    for name in ("ends", "rows", "missed"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))


def test_rows_that_come_alone_follow_the_definition_bit_for_bit():
    z = np.random.default_rng(1).standard_t(3, size=1500)
    ends, missed = Quantiles.normal(None).ends, np.zeros((len(CONFORMAL_LEVELS), 2))
    share = (1 - np.array(CONFORMAL_LEVELS))[:, None] / 2
    for i, value in enumerate(z.tolist()):
        miss = np.stack([-value > ends[:, 0], value > ends[:, 1]], axis=1) * 1.0
        ends = ends + max((i + 1.0) ** -0.6, 0.02) * (miss - share)
        missed += miss
    found = Quantiles.normal(None).after_rows(z, np.ones(1500))
    np.testing.assert_array_equal(found.ends, ends)
    np.testing.assert_array_equal(found.missed, missed)
    assert found.rows == 1500


def test_several_targets_are_tracked_apart_and_counts_repeat_rows():
    rng = np.random.default_rng(0)
    z, counts = rng.normal(size=(200, 2)) * [1, 3], rng.integers(0, 3, size=200)
    both = Quantiles.normal(2).after(z[:90], counts[:90]).after(z[90:], counts[90:])
    for j in range(2):
        one = Quantiles.normal(None)
        for rows in (slice(0, 90), slice(90, 200)):
            one = one.after(np.repeat(z[rows, j], counts[rows]))
        np.testing.assert_allclose(both.ends[..., j], one.ends, rtol=1e-12)
        np.testing.assert_array_equal(both.missed[..., j], one.missed)


def test_merging_is_the_mean_of_both_by_their_rows():
    rng = np.random.default_rng(0)
    a, b = (Quantiles.normal(None).after_rows(rng.normal(size=n) * s, np.ones(n)) for n, s in ((300, 1), (100, 4)))
    both = a.merge(b)
    np.testing.assert_allclose(both.ends, 0.75 * a.ends + 0.25 * b.ends, rtol=1e-13)
    np.testing.assert_array_equal(both.missed, a.missed + b.missed)
    assert both.rows == 400
    none = Quantiles.normal(None)
    np.testing.assert_array_equal(none.merge(a).ends, a.ends)
    np.testing.assert_array_equal(none.merge(none).ends, none.ends)


def test_what_cannot_be_given_is_refused():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X.sum(axis=1) + np.random.default_rng(1).normal(size=60)
    model = KalproxRegressor(penalty="ridge").partial_fit(X, y)
    with pytest.raises(ValueError, match=r"level must be one of 0\.5, 0\.8, 0\.9, 0\.95, 0\.99 .* got 0\.7"):
        model.predict_interval(X, 0.7, method="conformal")
    with pytest.raises(ValueError, match="method must be one of gaussian, conformal; got 'exact'"):
        model.predict_interval(X, 0.9, method="exact")
    with pytest.raises(ValueError, match="Conformal intervals need rows that were predicted"):
        KalproxRegressor(diagnose=False, penalty="ridge").fit(X, y).predict_interval(X, 0.9, method="conformal")


@pytest.mark.parametrize("size", [1, 7, 100, 700])
def test_the_misses_are_those_of_the_intervals_that_were_issued(size):
    """The intervals that a user gets before each batch, counted by hand; also through the buffer of single rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    y = X.sum(axis=1) + rng.standard_t(2, size=900) * (1 + (np.arange(900) > 500))
    model = KalproxRegressor(penalty="ridge").fit(X[:200], y[:200])
    first, missed = model._learner.stream.quantiles, np.zeros(2)
    for i in range(200, 900, size):
        low, high = model.predict_interval(X[i : i + size], 0.9, method="conformal")
        missed += [(y[i : i + size] < low).sum(), (y[i : i + size] > high).sum()]
        model.partial_fit(X[i : i + size], y[i : i + size])
    last = model._learner.stream.quantiles
    np.testing.assert_array_equal((last.missed - first.missed)[CONFORMAL_LEVELS.index(0.9)], missed)
    assert last.rows - first.rows == 700


def delays():
    rows = flights().dropna(subset=["dep_delay", "air_time", "distance", "hour", "arr_delay"])
    return rows[["dep_delay", "air_time", "distance", "hour"]].to_numpy(float), rows["arr_delay"].to_numpy(float)


@pytest.mark.slow
def test_flights_one_by_one_and_in_blocks():
    X, y = delays()
    i = CONFORMAL_LEVELS.index(0.9)
    model, inside = KalproxRegressor(penalty="ridge").fit(X[:1000], y[:1000]), []
    for t in range(1000, 13_000):
        low, high = model.predict_interval(X[t : t + 1], 0.9, method="conformal")
        inside.append(low[0] <= y[t] <= high[0])
        model.partial_fit(X[t : t + 1], y[t : t + 1])
    assert abs(np.mean(inside) - 0.9) < 0.003
    assert np.convolve(inside, np.ones(1000) / 1000, "valid").min() > 0.77
    blocks = KalproxRegressor(penalty="ridge")
    for start in range(0, len(y), 1000):
        blocks.partial_fit(X[start : start + 1000], y[start : start + 1000])
    assert abs(blocks._learner.stream.quantiles.coverage[i] - 0.9) < 0.005
