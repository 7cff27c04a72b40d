"""Tests of the variance of the noise as a function of the inputs."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from kalprox import KalproxRegressor
from kalprox.information import Information
from kalprox.learning.input_noise import _SLOPE, InputNoise
from kalprox.predictive import Student

ROWS, D = 2000, 3


def _rows(seed, n=ROWS):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)), rng.normal(size=n)


def _model_of(X, u, log_variance, *, forget=1.0, mean=None):
    """The model after innovations u that were predicted with the variance 1 and have this true log variance."""
    mean = np.zeros(len(X)) if mean is None else mean
    squares = u**2 * np.exp(log_variance)
    return InputNoise(Information.zero(1 + X.shape[1])).after(X, mean, np.ones(len(X)), squares, None, forget)


def _streamed(model, X, y, size, **options):
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        model.partial_fit(X[rows], y[rows], **{name: values[rows] for name, values in options.items()})
    return model


def _log_ratio(model, X):
    """The log of the std of each row, relative to their geometric mean."""
    log = np.log(model.predict(X, return_std=True)[1])
    return log - log.mean()


def test_a_change_of_the_log_variance_changes_the_mean_response_by_as_much():
    def mean_response(delta):
        return quad(lambda u: stats.norm.pdf(u) * np.log1p(u**2 * np.exp(delta)) / _SLOPE, -40, 40)[0]

    assert (mean_response(1e-4) - mean_response(-1e-4)) / 2e-4 == pytest.approx(1.0, abs=1e-6)


def test_the_weights_of_the_inputs_are_nearly_efficient():
    """The squared error of a slope of sd 1 has the mean 2.27 / n; that of the logs of squares has 4.93 / n."""
    slopes = []
    for seed in range(100):
        X, u = _rows(seed)
        w = _model_of(X, u, 0.2 * X[:, 0])._found[0]
        slopes.append(w[1] - 0.2)
    error = np.sum(np.square(slopes)) * ROWS / 2.27
    assert stats.chi2.ppf(0.001, 100) < error < stats.chi2.ppf(0.999, 100)


def test_noise_that_does_not_depend_on_the_inputs_is_left_alone():
    """With weights that are not shrunk, the std of log v would be about (2.27 D / n)^(1/2) = 0.06 on average."""
    spread = []
    for seed in range(20):
        X, u = _rows(seed)
        spread.append(np.std(np.log(_model_of(X, u, 0.0).relative_variance(X, np.zeros(ROWS)))))
    assert np.mean(spread) < 0.03


def _log_score(noise, X, y, size=100):
    """The mean log density of the rows after the first batch, each batch predicted before it is learned."""
    model, scores = KalproxRegressor(noise=noise, diagnose=False, penalty="ridge"), []
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        if start:
            scores.append(model._predictive(X[rows]).log_prob(y[rows]))
        model.partial_fit(X[rows], y[rows])
    return np.mean(scores)


@pytest.mark.slow
def test_a_stream_of_equal_noise_loses_little():
    lost = []
    for seed in range(8):
        X, noise = _rows(seed)
        y = X.sum(axis=1) + noise
        lost.append(_log_score("learn", X, y) - _log_score("inputs", X, y))
    assert np.mean(lost) < 0.001


def test_weights_that_say_how_the_variance_depends_on_the_inputs_leave_nothing_to_learn():
    X, noise = _rows(0)
    sd = np.exp(X[:, 0])
    model = KalproxRegressor(noise="inputs", weight_kind="precision", diagnose=False, penalty="ridge")
    _streamed(model, X, X.sum(axis=1) + sd * noise, 100, sample_weight=sd**-2)
    assert np.abs(_log_ratio(model, X)).max() < 0.1


def test_a_stream_finds_how_the_variance_depends_on_the_inputs():
    X, noise = _rows(1)
    model = KalproxRegressor(noise="inputs", diagnose=False, penalty="ridge")
    _streamed(model, X, X.sum(axis=1) + np.exp(0.5 * X[:, 0]) * noise, 100)
    slope = np.linalg.lstsq(X, _log_ratio(model, X), rcond=None)[0]
    assert slope == pytest.approx([0.5, 0, 0], abs=4 * 0.5 * (2.27 / ROWS) ** 0.5)


def test_an_outlier_moves_the_log_variances_by_little():
    X, u = _rows(2)
    before = np.log(_model_of(X, u, X[:, 0]).relative_variance(X, np.zeros(ROWS)))
    u[1000] = 1e6
    after = np.log(_model_of(X, u, X[:, 0]).relative_variance(X, np.zeros(ROWS)))
    assert np.abs(after - before).mean() < 0.1


@pytest.mark.parametrize("forget", [1.0, 0.995])
def test_the_model_does_not_depend_on_the_blocks(forget):
    X, u = _rows(3, 600)
    whole = _model_of(X, u, X[:, 1], forget=forget)
    model = InputNoise(Information.zero(1 + D))
    for start, stop in ((0, 1), (1, 250), (250, 600)):
        rows = slice(start, stop)
        squares = u[rows] ** 2 * np.exp(X[rows, 1])
        model = InputNoise(model.information.forget(forget ** (stop - start)))
        model = model.after(X[rows], np.zeros(stop - start), np.ones(stop - start), squares, None, forget)
    np.testing.assert_allclose(model._found[0], whole._found[0], rtol=1e-9, atol=1e-12)
    assert float(model.information.effective_rows) == pytest.approx(float(whole.information.effective_rows), rel=1e-12)


def test_two_models_merge_into_that_of_all_rows():
    X, u = _rows(4)
    whole, half = _model_of(X, u, X[:, 2]), ROWS // 2
    parts = [_model_of(X[rows], u[rows], X[rows, 2]) for rows in (slice(half), slice(half, None))]
    both = InputNoise(parts[0].information + parts[1].information)
    np.testing.assert_allclose(both._found[0], whole._found[0], rtol=1e-9, atol=1e-12)


def test_a_constant_column_has_no_weight():
    X, u = _rows(5)
    X[:, 1] = 7.0
    w = _model_of(X, u, X[:, 0])._found[0]
    assert w[2] == w[0] == 0 and w[1] == pytest.approx(1.0, abs=0.2)


def test_rows_without_a_finite_prediction_are_left_out():
    X, _ = _rows(6, 4)
    known = np.array([1.0, np.nan, np.inf, 1.0])
    model = InputNoise(Information.zero(1 + D)).after(X, known, np.ones(4), np.ones(4), None, 1.0)
    assert float(model.information.rows) == 2
    assert model.after(X[:1], np.zeros(1), np.zeros(1), np.ones(1), None, 1.0) is model
    assert (model.relative_variance(X, np.zeros(4)) == 1).all()


def test_intervals_cover_where_few_rows_have_told_of_the_variance():
    """200 rows for 30 slopes; as if the log variances were known, intervals cover 0.54 and 0.981."""
    sizes, n, d, new = [], 200, 30, 50
    for seed in range(200):
        rng = np.random.default_rng(seed)
        X, w = rng.normal(size=(2 * n + new, d)), 0.15 * rng.normal(size=d)
        e = rng.normal(size=len(X)) * np.exp(X @ w / 2)
        model = InputNoise(Information.zero(1 + d)).after(X[:n], np.zeros(n), np.ones(n), e[:n] ** 2, None, 1.0)
        v = model.relative_variance(X, np.zeros(len(X)))
        variance = np.mean(e[n:-new] ** 2 / v[n:-new])  # from rows that v was not learned from, as in a stream
        known = Student(np.zeros(new), np.sqrt(variance * v[-new:]), n - 1.0)
        s = model.log_uncertainty(X[-new:], np.zeros(new), np.ones(new))
        sizes.append(np.abs(2 * known.with_uncertain_variance(s).cdf(e[-new:]) - 1))
    for level in (0.5, 0.99):
        low, high = stats.binom.ppf([0.005, 0.995], 200 * new, level)
        assert low <= np.sum(np.array(sizes) < level) <= high


def test_only_the_share_of_the_noise_is_uncertain():
    X, u = _rows(7)
    model = _model_of(X, u, X[:, 0])
    whole = model.log_uncertainty(X, np.zeros(ROWS), np.ones(ROWS))
    assert (whole > 0).all()
    np.testing.assert_allclose(model.log_uncertainty(X, np.zeros(ROWS), np.full(ROWS, 0.5)), whole / 4)
    stream = _streamed(KalproxRegressor(noise="inputs", diagnose=False, penalty="ridge"), X, X.sum(axis=1) + u, 100)
    assert stream._predictive(X[:5], sigma=0.0).dof == pytest.approx(np.full(5, stream.noise_dof_))
    assert (stream._predictive(X[:5]).dof < stream.noise_dof_).all()


def test_gaussian_intervals_have_the_degrees_of_freedom_of_each_row():
    X, noise = _rows(8, 400)
    model = _streamed(
        KalproxRegressor(noise="inputs", penalty="ridge"), X, X.sum(axis=1) + np.exp(X[:, 0]) * noise, 100
    )
    found = model._predictive(X)
    low, high = model.predict_interval(X, 0.9)
    np.testing.assert_allclose(high - low, 2 * found.std * stats.t.ppf(0.95, found.dof), rtol=1e-9)
    np.testing.assert_allclose(model.predict(X, return_std=True)[1], found.std)


@pytest.mark.slow
def test_rows_learned_one_by_one_are_weighted_as_in_a_batch():
    X, noise = _rows(9, 2600)
    y = X.sum(axis=1) + np.exp(X[:, 0]) * noise
    single, batch = (
        KalproxRegressor(noise="inputs", penalty="ridge").partial_fit(X[:2400], y[:2400]) for _ in range(2)
    )
    _streamed(single, X[2400:], y[2400:], 1)
    batch.partial_fit(X[2400:], y[2400:])
    weights = [model._learner.belief.input_noise._found[0] for model in (single, batch)]
    np.testing.assert_allclose(*weights, atol=0.02)
    assert single.diagnostics_.nis == pytest.approx(batch.diagnostics_.nis, rel=0.01)


@pytest.mark.slow
def test_the_innovations_of_a_long_batch_are_those_of_single_rows():
    X, noise = _rows(0, 1500)
    y = X.sum(axis=1) + np.exp(0.5 * X[:, 0]) * noise
    scores = [
        _streamed(KalproxRegressor(noise="inputs", penalty="ridge"), X, y, size).diagnostics_ for size in (10, 1500)
    ]
    assert scores[0].nis == pytest.approx(scores[1].nis, rel=0.01)
    assert scores[0].mean_log_score == pytest.approx(scores[1].mean_log_score, abs=2e-3)
