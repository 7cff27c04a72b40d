"""The null distribution of each check, and that it holds when there is something else to be found."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from benchmarks.streams import autoregressive
from kalprox.calibration import Calibration
from kalprox.calibration.checks import CHECK_ALARMS, RELABEL, Shape, _kurtosis_score

WORDS = ("drifting", "correlated", "nonlinear", "unequal spread", "heavy tails", "skewed")
STREAMS = 150
DRAWS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "AR(.5)": lambda rng, n: autoregressive(rng, n, 1, 0.5)[:, 0],
    "AR(.9)": lambda rng, n: autoregressive(rng, n, 1, 0.9)[:, 0],
    "clusters": lambda rng, n: (np.repeat(rng.normal(size=n // 10), 10) + rng.normal(size=n)) / 2**0.5,
    "heavy": lambda rng, n: rng.standard_t(2.5, size=n),
    "small": lambda rng, n: 0.2 * rng.normal(size=n),
    "large": lambda rng, n: 5 * rng.normal(size=n),
    "wider": lambda rng, n: rng.normal(size=n) * np.where(np.arange(n) < n / 2, 1, 1.5),
}


@cache
def checks(kind, n=2000):
    """The checks of streams of scores of one kind, by word; predictions do not depend on the scores."""
    rng, out = np.random.default_rng([7, n]), {word: [] for word in WORDS}
    for _ in range(STREAMS):
        mean = rng.normal(size=n)
        y, X = mean + DRAWS[kind](rng, n), rng.exponential(size=(n, 3))
        verdict = Calibration().update(mean, 1.0, y, together=1.0, X=X).verdict()
        for check in verdict.checks:
            out[check.word].append(check)
    return out


def found(kind, word):
    return sum(check.found for check in checks(kind)[word])


def at_most(level):
    return stats.binom.ppf(0.999, STREAMS, level)


@pytest.mark.parametrize("n", [64, 200, 5000])
def test_the_kurtosis_is_scored_as_scipy_does(n):
    u = np.random.default_rng(n).standard_t(9, size=n)
    shape = Calibration().update(0.0, 1.0, u).powers
    assert Shape.of(shape).kurtosis == pytest.approx(stats.kurtosis(u, fisher=False), rel=1e-9)
    assert Shape.of(shape).skewness == pytest.approx(stats.skew(u), rel=1e-9)
    assert _kurtosis_score(n, Shape.of(shape).kurtosis) == pytest.approx(stats.kurtosistest(u).statistic, rel=1e-9)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "kind", ["normal", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("small", "large"))]
)
def test_p_values_are_uniform_or_larger_whatever_the_spread(kind, word):
    assert sum(check.p_value < 0.05 for check in checks(kind)[word]) <= at_most(0.05)
    assert found(kind, word) <= at_most(CHECK_ALARMS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["AR(.5)", "AR(.9)", "clusters"])
def test_correlated_scores_do_not_drift(kind):
    assert found(kind, "correlated") == STREAMS
    assert found(kind, "drifting") <= at_most(0.02)  # the correlation that the null distribution needs is estimated


def test_heavy_tails_are_nothing_else():
    assert found("heavy", "heavy tails") == STREAMS
    assert found("heavy", "drifting") + found("heavy", "correlated") <= at_most(2 * CHECK_ALARMS)
    assert found("heavy", "unequal spread") <= at_most(RELABEL)


def test_a_change_of_the_spread_is_a_drift():
    assert found("wider", "drifting") == STREAMS


def test_predictions_of_two_values_are_compared():
    rng = np.random.default_rng(0)
    mean = rng.integers(0, 2, size=2000).astype(float)
    verdict = Calibration().update(mean, 1.0, mean + (0.8 + 0.4 * mean) * rng.normal(size=2000)).verdict()
    assert verdict.word == "unequal spread"
