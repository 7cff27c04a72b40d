"""The calibration of counts: scores, blocks, what is wrong with them, and how rarely right ones are called wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kalprox.calibration import FALSE_ALARMS, CountCalibration
from kalprox.predictive import Classes, Counts


def poisson(mean, n, rng, spread=0.7):
    return mean * np.exp(spread * rng.normal(size=n) - spread**2 / 2)


def fields(score):
    apart = (
        "not_judged",
        "changes",
        "missingness",
        "targets",
        "pull",
        "of_class",
        "shared",
        "segment_shared",
        "predictive",
    )
    names = (f.name for f in dataclasses.fields(score) if f.name not in apart)
    return {name: np.asarray(getattr(score, name)) for name in names}


def same(a, b, rtol=1e-12):
    for name, one in fields(a).items():
        np.testing.assert_allclose(one, fields(b)[name], rtol=rtol, atol=rtol * float(a.rows), err_msg=name)


def in_blocks(score, predicted, y, cuts, weights=None):
    for start, stop in zip([0, *cuts], [*cuts, len(y)], strict=True):
        part = type(predicted)(*(a[start:stop] for a in predicted))
        score = score.add(part, y[start:stop], None if weights is None else weights[start:stop])
    return score


def test_blocks_do_not_matter():
    rng = np.random.default_rng(0)
    mean = poisson(2.0, 3000, rng)
    y, predicted = rng.poisson(mean) + 0.0, Counts(mean, np.sqrt(mean))
    y[rng.random(3000) < 0.1] += 0.5  # not judged, and so not numbered either
    weights = rng.integers(0, 3, size=3000) + 0.0
    for w in (None, weights):
        whole = in_blocks(CountCalibration(), predicted, y, [], w)
        for cuts in ([1, 2, 3, 50, 1000], list(range(7, 3000, 7))):
            same(whole, in_blocks(CountCalibration(), predicted, y, cuts, w))
    assert whole.verdict().word == "calibrated"


def test_sums_are_those_of_scipy():
    rng = np.random.default_rng(1)
    mean = poisson(5.0, 400, rng)
    y = rng.poisson(mean)
    score = CountCalibration().add(Counts(mean, np.sqrt(mean)), y)
    assert float(score.log_score) == pytest.approx(stats.poisson(mean).logpmf(y).sum())
    assert float(score.errors) == pytest.approx((y - mean).sum()) and float(score.expected) == pytest.approx(mean.sum())
    assert float(score.variance) == pytest.approx(mean.sum())


def test_targets_that_are_not_counts_are_not_judged_and_it_is_said():
    score = CountCalibration().update(np.full(50, 2.0), np.full(50, 2**0.5), np.full(50, 1.5))
    assert score.rows == 0 and score.undetermined == 50 and score.log_score == 0
    assert "the target is not whole" in str(score.verdict())
    some = score.update(np.full(50, 2.0), np.full(50, 2**0.5), np.r_[np.full(49, 2.0), -1.0])
    assert some.rows == 49 and some.undetermined == 51


def test_predictions_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="CountCalibration judges predictions of the type Counts; got Classes"):
        CountCalibration().add(Classes(np.ones(3)), np.ones(3))


RIGHT = {
    "mean 0.05": (0.05, 0.0),
    "mean 1": (1.0, 0.0),
    "mean 1000": (1000.0, 0.0),
    "negative binomial": (3.0, 0.8),
    "negative binomial of mean 0.05": (0.05, 2.0),
}


def drawn(kind, n, rng):
    mean, dispersion = RIGHT[kind]
    m = poisson(mean, n, rng)
    rate = m if dispersion == 0 else m * rng.gamma(1 / dispersion, dispersion, size=n)
    return Counts(m, np.sqrt(m + dispersion * m**2)), rng.poisson(rate)


def alarms(kind, streams, n, seed):
    rng = np.random.default_rng(seed)
    words = [CountCalibration().add(*drawn(kind, n, rng)).verdict().word for _ in range(streams)]
    return streams - words.count("calibrated") - words.count("too few rows to say")


@pytest.mark.parametrize("kind", RIGHT)
def test_right_predictions_are_rarely_called_wrong(kind):
    assert alarms(kind, 60, 1000, 0) <= stats.binom.ppf(0.999, 60, FALSE_ALARMS)


@pytest.mark.slow
@pytest.mark.parametrize("n", [200, 2000])
@pytest.mark.parametrize("kind", RIGHT)
def test_false_alarms_are_as_rare_as_they_say(kind, n):
    assert alarms(kind, 600, n, n) <= stats.binom.ppf(0.999, 600, FALSE_ALARMS)


@pytest.mark.parametrize(("mean", "n"), [(0.1, 20_000), (0.3, 8000), (2.0, 2000), (1000.0, 500)])
def test_over_dispersed_counts_are_found_and_the_likelihood_that_has_them_is_named(mean, n):
    rng, right = np.random.default_rng(int(mean)), 0
    for _ in range(20):
        m = poisson(mean, n, rng)
        verdict = CountCalibration().add(Counts(m, np.sqrt(m)), rng.poisson(m * rng.gamma(1.0, 1.0, size=n))).verdict()
        right += verdict.word == "over-confident"
    assert right >= 18 and 'likelihood="quasi-poisson" or likelihood="negative-binomial"' in str(verdict)


@pytest.mark.parametrize(("mean", "n"), [(0.05, 40_000), (2.0, 4000)])
def test_a_wrong_intercept_is_found(mean, n):
    rng, right = np.random.default_rng(int(mean)), 0
    for factor in [1.2, 1 / 1.2] * 10:
        m = poisson(mean, n, rng)
        score = CountCalibration().add(Counts(factor * m, np.sqrt(factor * m)), rng.poisson(m))
        right += "biased" in score.verdict().findings
    assert right >= 18


def test_a_spread_that_grows_otherwise_than_stated_names_the_negative_binomial():
    rng, n = np.random.default_rng(0), 20_000
    m = poisson(3.0, n, rng)
    y = rng.poisson(m * rng.gamma(2.0, 0.5, size=n))
    multiple = ((y - m) ** 2 / m).mean()  # as quasi-Poisson learns it
    verdict = CountCalibration().add(Counts(m, np.sqrt(multiple * m)), y).verdict()
    assert "unequal spread" in verdict.findings and 'likelihood="negative-binomial"' in str(verdict)


@pytest.mark.slow
def test_jax_gives_the_same_sums():
    rng = np.random.default_rng(2)
    predicted, y = drawn("mean 1", 200, rng)
    with jax.enable_x64(True):
        found = jax.jit(lambda c, m, s, y: c.update(m, s, y))(
            CountCalibration(), *(jnp.asarray(a * 1.0) for a in (*predicted, y))
        )
        same(CountCalibration().add(predicted, y), found, rtol=1e-7)
