"""Nonlinear streams behind the estimator: their prior and centre, their first rows, rows in sorted order."""

import warnings

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.exceptions import ConvergenceWarning

from kalprox import KalproxClassifier, KalproxRegressor, penalties
from kalprox.learning import linearised
from kalprox.learning.belief import PenaltyTooStrong
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.likelihoods import Gaussian
from kalprox.sources import Block

LINKS = {
    "sigmoid": lambda u: 1 / (1 + np.exp(-u)),
    "tanh": np.tanh,
    "softplus": lambda u: np.logaddexp(0, u),
    "exp": np.exp,
}


def rows(link, n=1500, d=3, seed=0, scale=1.0, noise=0.1):
    rng = np.random.default_rng(seed)
    X, coef = rng.normal(size=(n, d)), np.array([0.8, -0.5, 0.3])[:d]
    return X * scale, LINKS[link](0.3 + X @ coef) + noise * rng.normal(size=n), coef / scale


def streamed(link, X, y, lengths, **settings):
    model, start = KalproxRegressor(link=link, penalty=None, **settings), 0
    while start < len(y):
        stop = start + next(lengths)
        model.partial_fit(X[start:stop], y[start:stop])
        start = stop
    return model


def lengths(*first, then):
    yield from first
    while True:
        yield then


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("scale", [pytest.param(1e-3, marks=pytest.mark.slow), 1e3])
def test_a_first_batch_of_one_row_does_not_fix_the_scale(link, scale):
    X, y, _ = rows(link, scale=scale)
    fit = KalproxRegressor(link=link, penalty=None).fit(X, y)
    for first in (1, 7, 100, 1500):
        model = streamed(link, X, y, lengths(first, then=100))
        assert (np.abs(model.coef_ - fit.coef_) < 0.3 * fit.coef_std_).all()
        np.testing.assert_allclose(model.coef_std_, fit.coef_std_, rtol=0.05)


def test_before_the_first_check_the_answer_does_not_depend_on_the_batches():
    X, y, _ = rows("sigmoid", n=30)
    whole = KalproxRegressor(link="sigmoid", penalty=None).partial_fit(X, y)
    for first in (1, 2, 29):
        model = streamed("sigmoid", X, y, lengths(first, then=1))
        np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-5)
        np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=1e-5)


def test_constant_rows_first():
    X, y, _ = rows("sigmoid", scale=1e-3)
    fit = KalproxRegressor(link="sigmoid", penalty=None).fit(X, y)
    X, y = np.vstack([np.repeat(X[:1], 200, axis=0), X]), np.concatenate([y[:1] + np.linspace(-0.1, 0.1, 200), y])
    fit = KalproxRegressor(link="sigmoid", penalty=None).fit(X, y)
    model = streamed("sigmoid", X, y, lengths(1, then=100))
    assert (np.abs(model.coef_ - fit.coef_) < 0.5 * fit.coef_std_).all()


def test_the_centre_is_that_of_the_rows_held():
    X, y, _ = rows("tanh", n=600)
    X[0] += 1e6
    model = streamed("tanh", X, y, lengths(1, then=50))
    center = model._learner.belief.design.center
    assert np.abs(center).max() < 1e6 / 40 * 1.01  # the mean of the 40 rows of the first check or more


def sorted_rows(link, seed, n=2000):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3, 3, n))[:, None]
    slope = 1.0 if link == "exp" else 2.0
    return x, LINKS[link](0.3 + slope * x[:, 0]) + 0.3 * rng.normal(size=n), slope


def sorted_coverage(link, seeds):
    covered = 0
    for seed in seeds:
        X, y, slope = sorted_rows(link, seed)
        model = streamed(link, X, y, lengths(then=100))
        assert model.converged_
        covered += abs(model.coef_[0] - slope) <= 1.96 * model.coef_std_[0]
    return covered


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_a_sorted_stream_is_not_lost_on_the_plateau(link):
    """Five seeds; with one linearisation for each row, three to five of them ended hundreds of std away."""
    for seed in range(5):
        X, y, slope = sorted_rows(link, seed)
        model = streamed(link, X, y, lengths(then=100))
        assert abs(model.coef_[0] - slope) < 5 * model.coef_std_[0]


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_sorted_streams_cover(link):
    """At least 90% of 95% intervals, less what 12 seeds leave open."""
    assert sorted_coverage(link, range(100, 112)) >= binom.ppf(0.005, 12, 0.9)


def test_a_warm_up_that_has_not_ended_is_not_convergence():
    X, y, _ = sorted_rows("sigmoid", 0)
    model = KalproxRegressor(link="sigmoid", penalty=None).partial_fit(X[:200], y[:200])
    assert not model.converged_
    assert "the 200 rows held so far do not determine the coefficients" in model._learner.belief.message
    for i in range(200, 2000, 100):
        model.partial_fit(X[i : i + 100], y[i : i + 100])
    assert model.converged_


def counts(kind, n, seed):
    rng = np.random.default_rng(seed)
    exposure, X = np.ones(n), rng.normal(size=(n, 5))
    if kind == "exposures":
        exposure = rng.lognormal(size=n)
        return X, rng.poisson(exposure * np.exp(0.5 + X @ [0.4, -0.3, 0, 0.2, 0])), exposure
    X = rng.standard_t(2.5, size=(n, 5))
    return X, rng.poisson(np.exp(0.2 + X @ [0.02, -0.02, 0, 0.01, 0])), exposure


@pytest.mark.parametrize("kind", ["exposures", "heavy tails"])
def test_counts_are_judged_although_a_few_rows_have_a_large_leverage(kind):
    X, y, exposure = counts(kind, 2000, seed=1)
    model = KalproxRegressor(likelihood="poisson")
    for i in range(0, 2000, 100):
        some = slice(i, i + 100)
        model.partial_fit(X[some], y[some], exposure=exposure[some])
    batch = KalproxRegressor(likelihood="poisson").fit(X, y, exposure=exposure)
    assert np.max(np.abs(model.coef_ - batch.coef_) / batch.coef_std_) < 0.1
    np.testing.assert_allclose(model.coef_std_, batch.coef_std_, rtol=0.05)
    assert model.diagnostics_.rows > 1000 and model.diagnostics_.verdict().word == "calibrated"


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["quasi-poisson", "negative-binomial"])
def test_counts_that_begin_with_zeros(likelihood):
    """Sorted by the count: zeros say nothing about the dispersion, and the stream ends where that of Poisson's does."""
    X, y, exposure = counts("exposures", 1500, seed=7)
    order = np.argsort(y, kind="stable")
    assert not y[order[:400]].any()
    models = model, poisson, before = [
        KalproxRegressor(likelihood=name, penalty="ridge") for name in (likelihood, "poisson", likelihood)
    ]
    for i in range(0, 1500, 100):
        some = order[i : i + 100]
        for one in models if i < 400 else models[:2]:
            one.partial_fit(X[some], y[some], exposure=exposure[some])
    assert before.predict(X, exposure=np.ones(1500)).max() < 0.1
    assert np.max(np.abs(model.coef_ - poisson.coef_) / poisson.coef_std_) < 0.1
    assert np.abs(np.log(model.coef_std_ / poisson.coef_std_)).max() < 0.3
    assert model.diagnostics_.verdict().word != "calibrated"


@pytest.mark.parametrize("likelihood", ["poisson", "quasi-poisson", "negative-binomial"])
def test_a_fit_of_counts_that_are_all_zero_says_so(likelihood):
    X, y = np.random.default_rng(0).normal(size=(100, 2)), np.zeros(100)
    with pytest.warns(ConvergenceWarning, match="All counts are zero: the intercept runs to minus infinity"):
        model = KalproxRegressor(likelihood=likelihood, penalty="ridge").fit(X, y)
    assert not model.converged_ and model.predict(X).max() < 1e-6


def test_a_stream_of_dispersed_counts_is_that_of_poisson_counts_with_a_larger_covariance():
    X, y, exposure = counts("exposures", 2000, seed=3)
    y = np.random.default_rng(4).poisson(y * np.random.default_rng(5).gamma(2.0, 0.5, size=2000))
    models = [KalproxRegressor(likelihood=name, penalty="ridge") for name in ("poisson", "quasi-poisson")]
    for model in models:
        for i in range(0, 2000, 100):
            some = slice(i, i + 100)
            model.partial_fit(X[some], y[some], exposure=exposure[some])
    one, other = models
    assert other.noise_var_ > 3
    np.testing.assert_allclose(other.coef_, one.coef_, rtol=0, atol=0.02 * other.coef_std_.min())
    np.testing.assert_allclose(other.coef_std_, one.coef_std_ * other.noise_var_**0.5, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exposures", "heavy tails"])
def test_false_alarms_about_counts_with_rows_of_large_leverage_are_few(kind):
    words = []
    for seed in range(100, 130):
        X, y, exposure = counts(kind, 2000, seed)
        model = KalproxRegressor(likelihood="poisson")
        for i in range(0, 2000, 250):
            some = slice(i, i + 250)
            model.partial_fit(X[some], y[some], exposure=exposure[some])
        words.append(model.diagnostics_.verdict().word)
    assert len(words) - words.count("calibrated") - words.count("too few rows to say") <= binom.ppf(0.995, 30, 0.05)


@pytest.mark.slow
def test_the_error_that_the_predictions_of_a_long_batch_share_is_not_called_bias():
    p_values = []
    for seed in range(60):
        X, y, exposure = counts("exposures", 2000, 200 + seed)
        model = KalproxRegressor(likelihood="poisson").partial_fit(X, y, exposure=exposure)
        p_values += [check.p_value for check in model.diagnostics_.verdict().checks if check.word == "biased"]
    known = np.isfinite(p_values)
    # A belief predicts a quarter of its rows: its error adds up to a quarter to the variance of the sum of theirs.
    level = 2 * norm.sf(norm.isf(0.025) / 1.25**0.5)
    assert known.sum() > 40 and np.less(p_values, 0.05).sum() <= binom.ppf(0.995, known.sum(), level)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The warm-up of the stream has not ended")
@pytest.mark.parametrize("link", ["sigmoid", "exp"])
@pytest.mark.parametrize("batch", [1, 30])
def test_a_sorted_stream_resumes_bit_for_bit(link, batch, tmp_path):
    X, y, _ = sorted_rows(link, 1, n=90 if batch == 1 else 1500)
    straight, resumed = (KalproxRegressor(link=link, penalty=None) for _ in range(2))
    kinds = set()
    for i in range(0, len(y), batch):
        straight.partial_fit(X[i : i + batch], y[i : i + batch])
        resumed.partial_fit(X[i : i + batch], y[i : i + batch])
        if batch > 1 or i % 7 == 0:
            resumed.save(tmp_path / "model")
            resumed = KalproxRegressor.load(tmp_path / "model")
        state = resumed._learner.state.proximal
        kinds.add((state.held is None, state.extrapolating is None))
        np.testing.assert_array_equal(resumed.coef_, straight.coef_)
        np.testing.assert_array_equal(resumed.covariance_, straight.covariance_)
        assert resumed.converged_ == straight.converged_
    assert {(False, True)} <= kinds and (batch == 1 or (True, True) in kinds)
    assert link == "sigmoid" or batch == 1 or (True, False) in kinds


def sorted_inputs(seed, n=2000, d=5):
    """Rows sorted by the linear predictor of several inputs behind a hyperbolic tangent, with noise 0.2."""
    rng = np.random.default_rng([seed, n, d])
    X, coef = rng.normal(size=(n, d)), rng.choice([-1.0, 1.0], size=d)
    X = X[np.argsort(X @ coef)]
    return X, np.tanh(X @ coef) + 0.2 * rng.normal(size=n), coef


def in_batches(model, X, y, size=100):
    for i in range(0, len(y), size):
        model.partial_fit(X[i : i + size], y[i : i + size])
    return model


@pytest.mark.slow
def test_several_sorted_inputs_end_at_the_fit():
    for seed in range(3):
        X, y, _ = sorted_inputs(seed)
        model, fit = (KalproxRegressor(link="tanh", penalty=None, fit_intercept=False) for _ in range(2))
        in_batches(model, X, y), fit.fit(X, y)
        assert (np.abs(model.coef_ - fit.coef_) < 0.5 * fit.coef_std_).all()
        np.testing.assert_allclose(model.coef_std_, fit.coef_std_, rtol=0.1)
        model.coef_interval()  # no warning


@pytest.mark.slow
def test_several_sorted_inputs_are_covered():
    """At least 90% of 5 x 20 intervals, less what so many leave open."""
    covered = 0
    for seed in range(20):
        X, y, coef = sorted_inputs(seed)
        low, high = in_batches(KalproxRegressor(link="tanh", penalty=None, fit_intercept=False), X, y).coef_interval()
        covered += ((low <= coef) & (coef <= high)).sum()
    assert covered >= binom.ppf(0.005, 100, 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_penalty_that_moves_the_intervals_off_the_truth_warns(shuffled):
    """alpha=1 with little noise: sorted or not, the intervals cover less than half, and they say so."""
    for seed in range(3):
        X, y, _ = sorted_inputs(seed)
        order = np.random.default_rng(seed).permutation(len(y)) if shuffled else slice(None)
        model = in_batches(KalproxRegressor(link="tanh", fit_intercept=False, penalty="ridge"), X[order], y[order])
        with pytest.warns(PenaltyTooStrong, match="Use penalty=None, a smaller alpha"):
            model.coef_interval()


def test_a_penalty_that_fits_does_not_warn():
    for seed in range(20):
        X, y, _ = sorted_inputs(seed)
        y = y + np.random.default_rng(seed).normal(size=len(y))
        KalproxRegressor(link="tanh", fit_intercept=False, penalty="ridge").fit(X, y).coef_interval()


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("noise", [1e-1, 1e-3])
def test_the_weak_prior_is_weak_where_there_is_little_noise(noise, shuffled):
    """At a noise of 1e-3 a prior on the scale of y moved the coefficient by 12 standard errors."""
    rng = np.random.default_rng(2)
    X = np.sort(rng.uniform(-3, 3, 2000))[:, None]
    X = X[rng.permutation(2000)] if shuffled else X
    y = np.tanh(0.3 + 2 * X[:, 0]) + noise * rng.normal(size=2000)
    fit, model = (KalproxRegressor(link="tanh", penalty=None) for _ in range(2))
    fit.fit(X, y), in_batches(model, X, y)
    assert abs(model.coef_[0] - fit.coef_[0]) < 0.25 * fit.coef_std_[0]


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [(0.0, np.inf), (-0.1, 0.1), (0.2, 3.0)])
def test_converged_with_bounds_is_optimality(bounds):
    """The projected gradient is zero wherever `converged_` says so; bounds that exclude zero are no bad start."""
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, coef = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4)), rng.normal(size=4)
        y = np.tanh(X @ coef + 0.3) + 0.3 * rng.normal(size=60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = KalproxRegressor(
                link="tanh", penalty=penalties.Box(*bounds), likelihood=Gaussian(targets="any")
            ).fit(X, y)
        f = np.tanh(X @ model.coef_ + model.intercept_)
        J = (1 - f**2)[:, None] * np.column_stack([np.ones(60), X])
        gradient = J.T @ (f - y) / np.linalg.norm(J, axis=0) / np.linalg.norm(f - y)
        inner = gradient[1:]
        inner = np.where(model.coef_ <= bounds[0], np.minimum(inner, 0), inner)
        inner = np.where(model.coef_ >= bounds[1], np.maximum(inner, 0), inner)
        if model.converged_:
            found += 1
            assert max(np.abs(inner).max(), abs(gradient[0])) < 1e-6
    assert found >= 15


# ---- the score of a warm-up ------------------------------------------------------------------------------------


def classes_of(n, d, seed, std):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (rng.random(n) < 1 / (1 + np.exp(-X @ rng.normal(scale=std, size=d)))).astype(float)


@pytest.mark.parametrize("kind", ["bernoulli", "weights", "offsets", "categorical"])
@pytest.mark.parametrize(
    "rows", [64, pytest.param(250, marks=pytest.mark.slow)]
)  # before the first check of the warm-up, and after it
def test_the_rows_of_a_batch_in_a_warm_up_are_predicted_one_by_one(kind, rows):
    X, y = classes_of(rows + 100, 20, 0, 0.5)
    about = {}
    if kind == "weights":
        about["weights"] = np.where(np.arange(len(y)) % 7 == 0, 0.0, 1.5)
    if kind == "offsets":
        about["offset"] = np.linspace(-1, 1, len(y))
    if kind == "categorical":
        X, y = X[:, :6], np.eye(3)[np.argmax(X[:, :3] + np.random.default_rng(1).gumbel(size=(len(y), 3)), axis=1)]
    whole = Block(X, y, **about)
    learner = Learner(Settings.of(likelihood="categorical" if kind == "categorical" else "bernoulli"))
    learner.learn(whole.part(0, rows))
    state, block = learner.state, whole.part(rows, rows + 100)
    assert not state.predicts and state.proximal.is_fresh is (rows < 10 * state.fixed.size)
    live = linearised.filter_after(state.proximal, state.fixed)
    at_once = live.predict(block.X, **({} if block.offset is None else {"offset": block.offset}))
    after, found = state._predicted(block, exact=True)
    np.testing.assert_array_equal(after.belief.coef, state.learn(block).belief.coef)  # the score changes nothing
    for i in range(100):
        row = block.part(i, i + 1)
        one = live.predict(row.X, **({} if row.offset is None else {"offset": row.offset}))
        np.testing.assert_allclose(found.mean[i], one.mean[0], rtol=1e-12)
        np.testing.assert_allclose(found.std[i], one.std[0], rtol=1e-12)
        weight = 1.0 if row.weights is None else float(row.weights[0])
        if weight:
            live.learn(row.X[0], row.y[0], weight, 0.0 if row.offset is None else float(row.offset[0]))
    np.testing.assert_allclose(found.issued, (block.y - at_once.mean) / at_once.std, rtol=1e-12)
    judged = state._predicted(block)[1]
    known = np.isfinite(judged.mean)
    assert known.any() and (judged.mean[known] == found.mean[known]).all()


def test_small_batches_of_a_warm_up_are_not_learned_again_and_again(monkeypatch):
    """A filter of single rows starts with the rows held: it is made only for batches that are not much shorter.

    Batches of up to 64 rows have a filter of their own, which goes on from batch to batch.
    """
    made, length = [], 70
    monkeypatch.setattr(linearised, "filter_after", lambda state, design: made.append(state.held.rows))
    X, y = classes_of(15 * length, 120, 0, 0.5)
    model = KalproxClassifier()
    for i in range(0, len(y), length):
        model.partial_fit(X[i : i + length], y[i : i + length], classes=[0, 1])
    assert model._learner.state.core.warms_up and made and max(made) == 8 * length


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 3000])
def test_wide_classes_are_judged_by_what_the_rows_say(length):
    """A penalty much weaker than right makes early probabilities too extreme.

    Those of a batch are not judged where the penalty says more than the rows. Single rows are judged from the first on,
    so that early ones, which are too extreme, may be told from later ones: this can be called drift.
    """
    words = {50.0: set(), 1.0: set()}
    for seed in range(1 if length == 1 else 3):
        X, y = classes_of(3000, 200, seed, 50**-0.5)
        for alpha, found in words.items():
            model = KalproxClassifier(alpha=alpha)
            for i in range(0, 3000, length):
                model.partial_fit(X[i : i + length], y[i : i + length], classes=[0, 1])
            assert model.diagnostics_.rows >= 500
            found.add(model.diagnostics_.verdict().word)
    assert words[50.0] == {"calibrated"}
    if length == 1:
        assert words[1.0] <= {"over-confident", "drifting"}
    else:
        assert "over-confident" in words[1.0] <= {"calibrated", "over-confident"}


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 100, 1000])
def test_false_alarms_about_classes_in_a_warm_up_are_few(length):
    words = []
    for seed in range(300, 308 if length == 1 else 320):
        X, y = classes_of(1000, 50, seed, 0.28)
        model = KalproxClassifier(alpha=12.5)
        for i in range(0, 1000, length):
            model.partial_fit(X[i : i + length], y[i : i + length], classes=[0, 1])
        words.append(model.diagnostics_.verdict().word)
    assert len(words) - words.count("calibrated") <= binom.ppf(0.995, len(words), 0.02)
