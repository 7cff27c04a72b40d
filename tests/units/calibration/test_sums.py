"""Calibration: every diagnostic against SciPy, and the verdict's error rates against the binomial law."""

import subprocess
import sys
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kalprox.calibration import BINS, FALSE_ALARMS, FEWEST_ROWS, LEVELS, Calibration
from kalprox.calibration.verdict import MATERIAL, SPREAD_ALARMS, expected_ranges
from kalprox.information import Information
from kalprox.noise import Noise
from kalprox.predictive import standard_score

# Without `shared`, which depends on the blocks.
FIELDS = ("rows", "undetermined", "covered", "squares", "pit", "log_score", "errors", "squared_errors", "powers")
DOFS = [0.5, 3.0, 30.0, 199.0, 201.0, 1e4, 1e9, np.inf]


def predictive(dof):
    return stats.norm if np.isinf(dof) else stats.t(dof)


def stream(n, dof=np.inf, seed=0, shrink=1.0):
    """Predictions and what then came, true where shrink = 1; below, the stated std is that share of the truth."""
    rng = np.random.default_rng(seed)
    mean, std = rng.normal(size=n), np.exp(rng.normal(size=n))
    return mean, shrink * std, mean + std * predictive(dof).rvs(size=n, random_state=rng)


def assert_same(a, b, rtol=1e-12):
    for name in FIELDS:
        x, y = np.asarray(getattr(a, name)), np.asarray(getattr(b, name))
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * float(a.rows + a.undetermined), err_msg=name)


@pytest.mark.parametrize("dof", DOFS)
def test_every_number_against_scipy(dof):
    mean, std, y = stream(500, max(dof, 3.0), seed=1)
    c = Calibration().update(mean, std, y, dof)
    z, law = (y - mean) / std, predictive(dof)
    assert c.rows == 500
    assert c.mean_log_score == pytest.approx(np.mean(law.logpdf(z) - np.log(std)), rel=1e-11)
    np.testing.assert_array_equal(c.coverage, [np.mean(np.abs(z) <= law.ppf((1 + level) / 2)) for level in LEVELS])
    np.testing.assert_array_equal(c.pit, np.histogram(law.cdf(z), BINS, (0, 1))[0])
    u = np.where(z < 0, 1, -1) * stats.norm.ppf(law.cdf(-np.abs(z)))
    assert c.nis == pytest.approx(np.mean(u**2), rel=1e-9)
    assert c.bias == pytest.approx(np.mean(y - mean), rel=1e-12)
    assert c.rmse == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-12)
    assert c.uniformity == pytest.approx(tuple(stats.chisquare(c.pit)), rel=1e-12)


@pytest.mark.parametrize("dof", [200.0, 300.0, 1e3, 1e5, 1e8])
def test_the_expansion_of_the_normal_score_is_as_good_as_it_says(dof):
    for z, tol in ((np.linspace(-6, 6, 41), 1e-12), (np.linspace(6, 15, 11), 1e-8)):
        u, _ = standard_score(z, np.asarray(dof))
        np.testing.assert_allclose(-np.abs(u), stats.norm.ppf(stats.t.cdf(-np.abs(z), dof)), rtol=0, atol=tol)
        np.testing.assert_array_equal(np.sign(u), np.sign(z))


def test_the_normal_score_goes_on_where_the_tail_underflows():
    z = np.array([1e2, 1e4, 1e8, 1e76])
    for dof in DOFS:
        u, log_density = standard_score(z, np.asarray(dof))
        assert np.isfinite(u).all()
        assert np.isfinite(log_density).all()
        assert (np.diff(u) >= 0).all()
        assert u[-1] > 10 or dof < 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 60), max_size=4), st.sampled_from(DOFS))
def test_any_chunking_and_any_merge_is_one_stream(seed, cuts, dof):
    mean, std, y = stream(60, 5.0, seed)
    weights = np.random.default_rng(seed).integers(0, 4, size=60)
    dofs = np.full(60, dof)
    dofs[::3] = 7.0
    whole = Calibration().update(mean, std, y, dofs, weights)
    folded, merged = Calibration(), Calibration()
    bounds = [0, *sorted(cuts), 60]
    for a, b in pairwise(bounds):
        block = (mean[a:b], std[a:b], y[a:b], dofs[a:b], weights[a:b])
        folded, merged = folded.update(*block), merged.merge(Calibration().update(*block))
    assert_same(folded, whole)
    assert_same(merged, whole)
    i = np.repeat(np.arange(60), weights)  # weight 2 is the row twice, 0 no row
    repeated = Calibration().update(mean[i], std[i], y[i], dofs[i])
    assert_same(repeated, whole)
    assert repeated.shared == pytest.approx(whole.shared, rel=1e-12)


def test_one_row_at_a_time_as_numbers():
    mean, std, y = stream(50)
    c = Calibration()
    for row in zip(mean, std, y, strict=True):
        c = c.update(*map(float, row), dof=9)
    whole = Calibration().update(mean, std, y, 9.0)
    assert_same(c, whole)
    assert c.shared == 0  # predicted one at a time, they are independent
    assert whole.shared == pytest.approx(50 * 49 / 9, rel=1e-14)


def test_rows_without_a_finite_prediction_are_counted_apart():
    mean, std, y = stream(6)
    kept = Calibration().update(mean[4:], std[4:], y[4:], 5.0)
    std[0], std[1], mean[2] = np.inf, np.nan, np.nan
    dof = np.array([5.0, 5, 5, -1, 5, 5])
    c = Calibration().update(mean, std, y, dof)
    assert c.undetermined == 4
    for name in set(FIELDS) - {"undetermined"}:
        np.testing.assert_allclose(getattr(c, name), getattr(kept, name), rtol=1e-14)
    assert "4 more rows had no finite std" in str(c.verdict())


def test_zero_weight_rows_may_hold_anything():
    mean, std, y = stream(6)
    weights = np.array([0.0, 0, 0, 1, 1, 1])
    whole = Calibration().update(mean[3:], std[3:], y[3:])
    mean[0], std[1], y[2] = np.nan, -1.0, np.inf
    c = Calibration().update(mean, std, y, weights=weights)
    assert c.undetermined == 0
    assert_same(c, whole)


def test_a_std_of_zero_is_a_claim():
    right, wrong = Calibration().update(1.0, 0.0, 1.0), Calibration().update(1.0, 0.0, 1.1)
    np.testing.assert_array_equal(right.coverage, 1)
    np.testing.assert_array_equal(wrong.coverage, 0)
    assert wrong.verdict().word == "over-confident"
    both = right.merge(wrong).update(0.0, 1.0, 1e300)
    assert all(np.isfinite(getattr(both, name)).all() for name in set(FIELDS) - {"squared_errors"})


def test_nothing_seen():
    verdict = Calibration().verdict()
    assert verdict.word == "too few rows to say"
    assert str(FEWEST_ROWS) in str(verdict)
    assert np.isnan(Calibration().nis)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mean": np.zeros(2)}, "mean must be a number or have y's shape"),
        ({"std": -np.ones(3)}, "std must be >= 0"),
        ({"y": np.array([0.0, np.nan, 0.0])}, "y must be finite.*: 1"),
        ({"y": np.zeros((3, 1))}, "y must be a number or a vector"),
        ({"weights": np.array([1.0, -1.0, 1.0])}, "weights"),
    ],
)
def test_what_it_refuses(change, match):
    with pytest.raises(ValueError, match=match):
        Calibration().update(**({"mean": np.zeros(3), "std": np.ones(3), "y": np.zeros(3)} | change))


# -- on JAX arrays -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dof", [4.0, 200.0, np.inf])
def test_jax_gives_the_same(dof):
    mean, std, y = stream(64, 4.0)
    weights = np.arange(64.0) % 3
    expected = Calibration().update(mean, std, y, dof, weights)
    with jax.enable_x64(True):
        update = jax.jit(Calibration.update)
        got = update(Calibration(), *map(jnp.asarray, (mean, std, y)), dof, weights)
        assert_same(got, expected)
        assert float(got.shared) == pytest.approx(float(expected.shared), rel=1e-14)
        assert got.verdict().word == expected.verdict().word


@pytest.mark.slow
def test_a_compiled_scan_in_float32():
    mean, std, y = stream(64, 4.0)
    blocks = tuple(jnp.asarray(a.reshape(8, 8), "float32") for a in (mean, std, y))
    got, _ = jax.lax.scan(lambda c, block: (c.update(*block, dof=jnp.float32(50.0)), None), Calibration(), blocks)
    assert got.squares.dtype == jnp.float32
    assert_same(got, Calibration().update(mean, std, y, 50.0), rtol=1e-5)


# -- the verdict, over many seeds --------------------------------------------------------------------


def verdicts(streams, n, dof=np.inf, shrink=1.0, stated=None):
    words = []
    for seed in range(streams):
        mean, std, y = stream(n, dof, [seed, n], shrink)
        c = Calibration().update(mean, std, y, dof if stated is None else stated)
        c.by_name["shared"] = 0  # these rows share nothing
        words.append(c.verdict().word)
    return words


@pytest.mark.slow
@pytest.mark.parametrize(("n", "dof"), [(FEWEST_ROWS, np.inf), (100, np.inf), (100, 4.0), (1000, 20.0)])
def test_calibrated_streams_are_called_calibrated(n, dof):
    streams = 600
    alarms = streams - verdicts(streams, n, dof).count("calibrated")
    # Two tests at half of SPREAD_ALARMS: together between the one (were they the same test) and the sum (were they
    # exclusive); the coverage is counted in whole rows, which can only make it rarer. The other checks add the rest.
    low, high = stats.binom.ppf(0.0005, streams, SPREAD_ALARMS / 2), stats.binom.ppf(0.9995, streams, FALSE_ALARMS)
    assert low <= alarms <= high


@pytest.mark.slow
def test_the_rate_of_false_alarms_is_as_designed():
    """The same in one long run: NIS is chi-square and the coverage binomial, drawn with their dependence."""
    n, streams = 200, 20_000
    u = np.random.default_rng(5).normal(size=(streams, n))
    (a, b), (c, d) = expected_ranges(n)
    nis, coverage = (u**2).mean(axis=1), (np.abs(u) <= stats.norm.ppf(0.975)).mean(axis=1)
    alarms = np.sum((nis < a) | (nis > b) | (coverage < c) | (coverage > d))
    assert stats.binom.ppf(0.0005, streams, SPREAD_ALARMS / 2) <= alarms
    assert alarms <= stats.binom.ppf(0.9995, streams, SPREAD_ALARMS)


@pytest.mark.parametrize("n", [1, 2, 30, 31.4, 1000, 10_000, 1e8])
def test_the_expected_ranges_are_quantiles_of_chi_square_and_of_the_binomial(n):
    nis, coverage = expected_ranges(n)
    tail, trials = SPREAD_ALARMS / 4, round(n)
    low, high = stats.chi2.ppf([tail, 1 - tail], n) / n
    few, many = stats.binom.ppf([tail, 1 - tail], trials, 0.95) / trials
    narrow, wide = 1 - MATERIAL, 1 + MATERIAL
    np.testing.assert_allclose(nis, [min(low, narrow**2), max(high, wide**2)], rtol=1e-9)
    shares = [2 * stats.norm.cdf(stats.norm.ppf(0.975) * f) - 1 for f in (narrow, wide)]
    np.testing.assert_allclose(coverage, [min(few, shares[0]), max(many, shares[1])], rtol=1e-12)


@pytest.mark.integration
def test_a_verdict_does_not_import_scipy_stats():
    code = (
        "import sys, numpy as np; from kalprox.calibration import Calibration; "
        "Calibration().update(0.0, 1.0, np.ones(100)).verdict(); assert 'scipy.stats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(("shrink", "word"), [(0.5, "over-confident"), (2.0, "under-confident")])
@pytest.mark.parametrize(("n", "factor"), [(30, 2.0), (121, 1.4), (403, 1.2)])
def test_a_wrong_std_is_found_as_often_as_it_says(n, factor, shrink, word):
    shrink = 1 / factor if shrink < 1 else factor
    found = verdicts(300, n, shrink=shrink).count(word)
    assert found >= stats.binom.ppf(0.001, 300, 0.99)


def test_student_errors_are_calibrated_with_student_and_have_heavy_tails_with_normal():
    assert verdicts(60, 400, dof=4.0).count("calibrated") >= stats.binom.ppf(0.001, 60, 1 - FALSE_ALARMS)
    words = verdicts(60, 400, dof=4.0, stated=np.inf)
    assert words.count("heavy tails") >= 50 and "calibrated" not in words


@pytest.mark.slow
def test_a_std_wrong_by_a_thousandth_is_not_condemned_by_a_million_rows():
    y = np.random.default_rng(0).normal(size=1_000_000)
    assert Calibration().update(0.0, 0.99, y).verdict().word == "calibrated"  # NIS 14 standard errors off
    assert Calibration().update(0.0, 0.94, y).verdict().word == "over-confident"
    assert Calibration().update(0.0, 1.06, y).verdict().word == "under-confident"


def test_the_right_spread_with_the_wrong_shape_is_said():
    skewed = np.random.default_rng(0).gamma(30.0, size=20_000)
    verdict = Calibration().update(30.0, 30**0.5, skewed).verdict()
    assert verdict.word == "calibrated"
    assert "the shape is not" in str(verdict)


def test_pit_of_the_exact_predictive_is_uniform():
    """Its p-value is then uniform itself: over 300 streams, by Kolmogorov and Smirnov."""
    p = []
    for seed in range(300):
        dof = DOFS[1 + seed % (len(DOFS) - 1)]
        mean, std, y = stream(2000, dof, [7, seed])
        p.append(Calibration().update(mean, std, y, dof).uniformity[1])
    assert stats.kstest(p, "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_a_regression_predicted_before_it_is_learned():
    """Row by row, noise level unknown from the first row on: the scores are independent normal, exactly."""
    alarms, squares, n, d = 0, 0.0, 60, 3
    for seed in range(40):
        rng = np.random.default_rng([11, seed])
        X = rng.normal(size=(n, d))
        y = X @ rng.normal(size=d) + 2 * rng.normal(size=n)
        info, c = Information.from_rows(X[:5], y[:5]), Calibration()
        for k in range(5, n):
            noise = Noise.learned(info.rss, info.rows, d)
            leverage = np.sum(np.linalg.solve(info.R.T, X[k]) ** 2)
            c = c.update(X[k] @ info.solve(), noise.std(leverage), y[k], noise.dof)
            info = info.fold(X[k : k + 1], y[k : k + 1])
        alarms += c.verdict().word != "calibrated"
        squares += c.squares
    total = 40 * (n - 5)
    assert stats.chi2.ppf(0.0005, total) <= squares <= stats.chi2.ppf(0.9995, total)
    assert alarms <= stats.binom.ppf(0.9995, 40, FALSE_ALARMS)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "b", "blocks"), [(50, 50, 8), (50, 200, 2), (1000, 200, 2)])
def test_a_regression_predicted_in_blocks(start, b, blocks):
    """The rows of a block share one noise estimate: counted as independent, the second of these gives
    17% false alarms."""
    alarms, streams, d, n = 0, 200, 10, start + b * blocks
    for seed in range(streams):
        rng = np.random.default_rng([13, seed, b])
        X = rng.normal(size=(n, d))
        y = X @ rng.normal(size=d) + 2 * rng.normal(size=n)
        info, c = Information.from_rows(X[:start], y[:start]), Calibration()
        for k in range(start, n, b):
            rows, targets = X[k : k + b], y[k : k + b]
            noise = Noise.learned(info.rss, info.rows, d)
            leverage = np.sum(np.linalg.solve(info.R.T, rows.T) ** 2, axis=0)
            c = c.update(rows @ info.solve(), noise.std(leverage), targets, noise.dof)
            info = info.fold(rows, targets)
        alarms += c.verdict().word != "calibrated"
    assert alarms <= stats.binom.ppf(0.9995, streams, FALSE_ALARMS)


def test_few_degrees_of_freedom_are_worth_few_rows():
    y = np.random.default_rng(0).standard_t(10, size=5000)
    verdict = Calibration().update(0.0, 1.0, y, dof=10.0).verdict()
    assert verdict.worth == pytest.approx(5000 / (1 + 4999 / 10), rel=1e-12)
    assert verdict.word == "too few rows to say"
    assert "Over 5,000 rows (as informative as 10) the errors" in str(verdict)


def test_rows_without_noise_are_exact():
    """A constant target was called under-confident, with the advice to lower a noise variance that was 0 already."""
    zeros, ones = np.zeros(100), np.ones(100)
    verdict = Calibration().update(ones, zeros, ones).verdict()
    assert verdict.word == "exact"
    assert str(verdict).startswith("exact: Every prediction was right") and "NIS" not in str(verdict)
    assert Calibration().update(ones[:20], zeros[:20], ones[:20]).verdict().word == "too few rows to say"
    assert Calibration().update(ones, ones, ones).verdict().word == "under-confident"  # the std could have been smaller
    assert Calibration().update(ones, zeros, np.where(np.arange(100) == 7, 1.1, 1)).verdict().word != "exact"


def test_str_is_a_sentence_or_two():
    mean, std, y = stream(1000, shrink=2.0)
    text = str(Calibration().update(mean, std, y).verdict())
    assert text.startswith('under-confident: The stated std is too large. Use noise="learn", or give a smaller')
    assert "Over 1,000 rows the errors are 0.491 times as large as stated" in text
    assert "intervals of 50%, 80% and 95% cover 82.5%, 99.5% and 100.0%" in text
