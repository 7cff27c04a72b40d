"""The right word for each kind of stream, over many seeds; and what the verdict says."""

from functools import cache

import numpy as np
import pytest
from data import flights
from scipy import stats

from benchmarks.streams import DIAGNOSES, STREAMS, predictions, stream
from kalprox.calibration import FALSE_ALARMS, Calibration, Verdict
from kalprox.calibration.verdict import LEVELS, coverage_range, expected_ranges

D = 5


@cache
def scored(kind, n, streams, first=0):
    """The calibrations of streams, each row predicted exactly from all rows before it."""
    rows = [stream(kind, first + seed, n, D) for seed in range(streams)]
    X, y = np.stack([s.X for s in rows]), np.stack([s.y for s in rows])
    judged = slice(D + 2, None)
    blocks = (a[:, judged] for a in (*predictions(X, y, rows[0].noise), y, X))
    return [Calibration().update(m, s, t, f, together=1.0, X=x) for m, s, f, t, x in zip(*blocks, strict=True)]


def words(kind, n, streams, first=0):
    return [c.verdict().word for c in scored(kind, n, streams, first)]


def test_every_kind_of_stream_has_a_diagnosis():
    assert set(DIAGNOSES) == set(STREAMS)


@pytest.mark.parametrize("kind", DIAGNOSES)
def test_a_stream_is_diagnosed(kind):
    """Right in 90% of the streams: of 8, at least as many as the binomial distribution allows with 0.999."""
    assert words(kind, 2500, 8).count(DIAGNOSES[kind]) >= stats.binom.ppf(0.001, 8, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2000, 5000])
@pytest.mark.parametrize("kind", DIAGNOSES)
def test_of_200_streams_90_percent_are_diagnosed(kind, n):
    right = words(kind, n, 200).count(DIAGNOSES[kind])
    assert right >= 190 if kind == "independent" else right >= 180


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 300, 1000, 3000])
def test_false_alarms_are_as_rare_as_they_say(n):
    alarms = 1000 - words("independent", n, 1000, first=1000).count("calibrated")
    assert alarms <= stats.binom.ppf(0.999, 1000, FALSE_ALARMS)


def test_many_rows_do_not_reject_trifles():
    n, rng = 200_000, np.random.default_rng(0)
    z, along = rng.normal(size=n), np.linspace(-1, 1, n)
    mean = rng.normal(size=n)
    trifles = {
        "correlated": z + 0.03 * np.concatenate([[0], z[:-1]]),
        "drifting": z + 0.05 * along,
        "drifting spread": z * (1 + 0.03 * along),
        "unequal spread": z * (1 + 0.02 * mean),
        "heavy tails": rng.standard_t(20, size=n) * 0.9**0.5,
        "skewed": (rng.gamma(60, size=n) - 60) / 60**0.5,
    }
    for what, error in trifles.items():
        verdict = Calibration().update(mean, 1.0, mean + error, together=1.0).verdict()
        assert verdict.word == "calibrated", what
        assert min(check.p_value for check in verdict.checks) < 1e-10, what  # significant, and yet not worth a word


def test_the_verdict_does_not_depend_on_the_blocks():
    for kind in ("AR(.9)", "slow drift", "sd = |x_0|", "missing square"):
        s = stream(kind, 3, 2500)
        mean, std, dof = (a[0, 7:] for a in predictions(s.X[None], s.y[None]))
        y, whole, cut = s.y[7:], Calibration(), Calibration()
        whole = whole.update(mean, std, y, dof, together=1.0, X=s.X[7:])
        for a in range(0, len(y), 100):
            b = slice(a, a + 100)
            cut = cut.update(mean[b], std[b], y[b], dof[b], together=1.0, X=s.X[7:][b])
        one, other = whole.verdict(), cut.verdict()
        assert one.word == other.word == DIAGNOSES[kind] and one.findings == other.findings
        for p, q in zip(one.checks, other.checks, strict=True):
            assert p.p_value == pytest.approx(q.p_value, rel=1e-6, abs=1e-300)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("AR(.9)", 'coef_cov="clustered"'),
        ("slow drift", 'forget="auto"'),
        ("sd grows with the prediction", 'noise="inputs"'),
        ("missing product", "the square or product"),
        ("Student 3", 'method="conformal"'),
        ("noise given x .5", 'noise="learn"'),
    ],
)
def test_the_headline_says_what_to_change(kind, advice):
    text = str(scored(kind, 2500, 8)[0].verdict())
    headline, numbers = text.split(" Over 2,493 rows")
    assert headline.startswith(f"{DIAGNOSES[kind]}: ") and advice in headline
    assert "expected" in numbers


def test_all_that_was_found_is_said_with_its_numbers():
    rng = np.random.default_rng(0)
    error = np.where(np.arange(3000) < 1500, 0, 2) + rng.exponential(size=3000) - 1
    verdict = Calibration().update(rng.normal(size=3000), 1.0, error).verdict()
    assert verdict.findings[:2] == ("drifting", "correlated") and verdict.word == "drifting"
    text = str(verdict)
    assert "Also: correlated" in text and "Along the stream the mean of the scores varies by" in text
    assert len(verdict.coverages) == len(LEVELS) and verdict.coverages[-1] == verdict.coverage
    assert verdict.coverages_bounds[-1] == verdict.coverage_bounds


def verdict_on(X, y):
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    mean, std, dof = (a[0, X.shape[1] + 2 :] for a in predictions(X[None], y[None]))
    return Calibration().update(mean, std, y[X.shape[1] + 2 :], dof, together=1.0).verdict()


def test_polls_of_successive_days_are_correlated():
    """Trump's approval (River's data, 1,001 days): the intervals cover, and yet the rows are not independent."""
    from river import datasets

    rows = [(list(x.values()), y) for x, y in datasets.TrumpApproval()]
    verdict = verdict_on(np.array([x for x, _ in rows], float), np.array([y for _, y in rows], float))
    assert verdict.word == "correlated" and verdict.coverage_bounds[0] < verdict.coverage < verdict.coverage_bounds[1]


@pytest.mark.slow
def test_flights_drift_in_the_order_of_time_and_do_not_when_shuffled():
    columns = ["dep_delay", "distance", "hour"]
    rows = flights(100_000)[["time_hour", "arr_delay", *columns]].dropna().sort_values("time_hour", kind="stable")
    X, y = rows[columns].to_numpy(float), rows["arr_delay"].to_numpy(float)
    assert verdict_on(X[:5000], y[:5000]).findings[:2] == ("drifting", "correlated")
    some = np.random.default_rng(0).permutation(len(y))[:5000]
    assert not {"drifting", "correlated", "calibrated"} & set(verdict_on(X[some], y[some]).findings)


@pytest.mark.parametrize("size", [1e-3, 1e-60, 1e-100, 1e-150, 1e-200])
def test_errors_that_are_nothing_beside_the_std_are_under_confident(size):
    """The powers of their scores underflow: the verdict was a division by zero."""
    y = size * np.random.default_rng(0).normal(size=500)
    assert Calibration().update(np.zeros(500), np.ones(500), y).verdict().word == "under-confident"


def test_a_gross_error_of_the_std_comes_before_heavy_tails():
    y = np.random.default_rng(0).standard_t(4, size=3000)
    assert Calibration().update(0.0, 1.0, y).verdict().findings == ("heavy tails",)
    assert Calibration().update(0.0, 0.4, y).verdict().findings == ("over-confident", "heavy tails")


def test_skewed_errors_are_called_so():
    error = np.random.default_rng(0).gamma(8, size=5000)  # skewness 0.71, kurtosis 3.75
    verdict = Calibration().update(8.0, 8**0.5, error).verdict()
    assert verdict.word == "skewed" and 'method="conformal"' in str(verdict)


def test_what_could_not_be_judged_says_why():
    verdict = Verdict.not_judged("the rows were learned in several passes.")
    assert verdict.word == "not judged" and verdict.rows == 0
    assert str(verdict) == "not judged, because the rows were learned in several passes."


def test_rows_judged_well_do_not_speak_for_many_that_were_not():
    y = np.random.default_rng(0).normal(size=300)
    std = np.where(np.arange(300) < 150, 1.0, np.inf)
    few = Calibration().update(np.zeros(300), np.where(np.arange(300) < 290, 1.0, np.inf), y).verdict()
    many = Calibration().update(np.zeros(300), std, y).verdict()
    assert many.word == few.word == "calibrated"
    assert str(many).startswith("calibrated: But only 150 of 300 rows could be judged")
    assert "reliable" in str(few) and "reliable" not in str(many)


@pytest.mark.parametrize("n", [1e9, 1e13, 1e18, 1e100, 1e300])
def test_the_ranges_of_enormous_counts_are_those_of_a_material_error(n):
    """Such as from weights of 1e13, for which a quantile of the binomial distribution did not return."""
    (low, high), coverage = expected_ranges(n)
    assert (low, high) == (0.95**2, 1.05**2)
    for level in LEVELS:
        z = stats.norm.ppf((1 + level) / 2)
        expected = [2 * stats.norm.cdf(z * factor) - 1 for factor in (0.95, 1.05)]
        np.testing.assert_allclose(coverage_range(n, level), expected, rtol=1e-12)
    assert coverage == coverage_range(n, 0.95)
