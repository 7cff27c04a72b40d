"""Structures that drop correlations say so where a std is given, and networks judge their predictions."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.stats import binom

import kalprox as kp
from kalprox import KalproxClassifier, KalproxNetClassifier, KalproxNetRegressor, KalproxRegressor


def autoregressive(seed, n, d=12, rho=0.85):
    rng, i = np.random.default_rng(seed), np.arange(d)
    X = rng.normal(size=(n, d)) @ np.linalg.cholesky(rho ** np.abs(i[:, None] - i)).T
    coef = rng.normal(size=d)
    return X, X @ coef + rng.normal(size=n), coef


CONTRASTS = np.eye(12)[:-1] - np.eye(12)[1:]


@pytest.mark.parametrize("structure", ["diagonal", kp.structures.LowRank(3)])
@pytest.mark.parametrize("length", [None, 50])
def test_the_std_of_the_mean_says_what_a_structure_drops(structure, length):
    X, y, _ = autoregressive(31, 600)
    model = KalproxRegressor(structure=structure, fit_intercept=False, penalty="ridge")
    for i in range(0, 600, length or 600):
        model.partial_fit(X[i : i + (length or 600)], y[i : i + (length or 600)])
    for rows in (CONTRASTS, CONTRASTS[:1]):
        with pytest.warns(UserWarning, match="along contrasts of correlated columns"):
            model.predict(rows, return_std=True, sigma=0)
        with pytest.warns(UserWarning, match="along contrasts of correlated columns"):
            model.predict_interval(rows, of="mean")
    with pytest.warns(UserWarning, match="along contrasts of correlated columns"):  # with the noise, far from all rows
        model.predict(100 * CONTRASTS, return_std=True)


def test_the_std_along_contrasts_is_too_small_as_the_warning_says():
    """Were it right, the mean of 11 squares over 6 models would be above 2 with a probability below 1e-6."""
    z = []
    for seed in range(6):
        X, y, coef = autoregressive(seed + 50, 1500)
        model = KalproxRegressor(structure="diagonal", fit_intercept=False, penalty="ridge").fit(X, y)
        with pytest.warns(UserWarning, match="may be too small"):
            mean, std = model.predict(CONTRASTS, return_std=True, sigma=0)
        z.append((mean - CONTRASTS @ coef) / std)
    assert np.mean(np.square(z)) > 2


def test_nothing_is_said_where_nothing_is_lost_or_the_noise_is_nearly_all():
    X, y, _ = autoregressive(32, 3000)
    exact = KalproxRegressor(fit_intercept=False, penalty="ridge").fit(X, y)
    diagonal = KalproxRegressor(structure="diagonal", fit_intercept=False, penalty="ridge").fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact.predict(CONTRASTS, return_std=True, sigma=0)
        diagonal.predict(CONTRASTS, return_std=True)
        diagonal.predict(CONTRASTS)


def test_the_std_of_probabilities_says_it_too():
    X, y, _ = autoregressive(33, 800)
    model = KalproxClassifier(structure="diagonal").partial_fit(X, y > 0, classes=[False, True])
    with pytest.warns(UserWarning, match="along contrasts of correlated columns"):
        model.predict_proba(X[:3], return_std=True)


def slow_columns(seed, n):
    """Two random walks: for hundreds of rows they are nearly constant, as the intercept is."""
    rng = np.random.default_rng(seed)
    X = np.cumsum(rng.normal(size=(n, 2)), axis=0) / 20
    return X, X @ [1.0, -2.0] + 3, rng


@pytest.mark.parametrize(
    ("likelihood", "sparse"),
    [
        *[("gaussian", False), ("student", True), ("poisson", False), ("bernoulli", True)],
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in [("gaussian", True), ("student", False), ("poisson", True), ("bernoulli", False)]
        ),
    ],
)
def test_a_first_batch_with_a_structure_is_fitted_as_fit_does(likelihood, sparse):
    """Learned piece by piece, its coefficients were off by up to 100 of their standard errors, and nothing said so."""
    X, mean, rng = slow_columns(61, 3000)
    rate = np.clip(mean, -5, 5)
    targets = {"student": mean + rng.standard_t(4, size=3000), "gaussian": mean + rng.normal(size=3000)}
    targets |= {
        "poisson": 1.0 * rng.poisson(np.exp(rate / 3)),
        "bernoulli": 1 * (rng.random(3000) < 1 / (1 + np.exp(-rate))),
    }
    kind, about = (
        (KalproxClassifier, {}) if likelihood == "bernoulli" else (KalproxRegressor, {"likelihood": likelihood})
    )
    rows, y = scipy.sparse.csr_array(X) if sparse else X, targets[likelihood]
    fitted, streamed = (kind(structure="diagonal", diagnose=False, **about) for _ in range(2))
    fitted.fit(rows, y)
    streamed.partial_fit(rows, y, **({"classes": [0, 1]} if kind is KalproxClassifier else {}))
    assert streamed.converged_
    np.testing.assert_allclose(streamed.coef_, fitted.coef_, rtol=1e-5)
    np.testing.assert_allclose(streamed.intercept_, fitted.intercept_, rtol=1e-4)


def in_batches(model, X, y, sizes, **about):
    for i, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        model.partial_fit(X[i : i + size], y[i : i + size], **about)
    return model


@pytest.mark.parametrize("likelihood", ["gaussian", "student", "poisson", "bernoulli"])
@pytest.mark.parametrize("sizes", [(1, 16, 17, 3000), pytest.param((1, 3033), marks=pytest.mark.slow), (60, 2974)])
def test_a_long_batch_after_short_ones_is_fitted_as_fit_does(likelihood, sizes):
    """Learned piece by piece, its coefficients were off by up to 18 of their standard errors, and nothing said so.

    The share of the first rows, whose correlations the structure has dropped, may move them by half of one.
    """
    X, mean, rng = slow_columns(62, 3034)
    rate = np.clip(mean, -5, 5)
    targets = {"student": mean + rng.standard_t(4, size=3034), "gaussian": mean + rng.normal(size=3034)}
    targets |= {
        "poisson": 1.0 * rng.poisson(np.exp(rate / 3)),
        "bernoulli": 1 * (rng.random(3034) < 1 / (1 + np.exp(-rate))),
    }
    classes = likelihood == "bernoulli"
    kind, about = (KalproxClassifier, {}) if classes else (KalproxRegressor, {"likelihood": likelihood})
    fitted = kind(structure="diagonal", diagnose=False, **about).fit(X, targets[likelihood])
    streamed = kind(structure="diagonal", diagnose=False, **about)
    in_batches(streamed, X, targets[likelihood], sizes, **({"classes": [0, 1]} if classes else {}))
    assert streamed.converged_
    with pytest.warns(UserWarning, match="may be too small"):
        assert np.abs((streamed.coef_ - fitted.coef_) / fitted.coef_std_).max() < 0.5


@pytest.mark.parametrize("structure", ["diagonal", kp.structures.LowRank(1)])
def test_rows_in_the_order_of_a_column_are_learned_as_fit_does(structure):
    """The first row alone says where columns are centred, which is their largest value here.

    The 21 first rows are a 190th of all. They may move the estimate by half of a standard error at most: by as much as
    rows with 7 times their weight would, on one side.
    """
    rng = np.random.default_rng(63)
    X = rng.normal(size=(4000, 3))
    X = X[np.argsort(-X[:, 1])]
    y = X @ [1.0, -2.0, 0.5] + 3 + rng.normal(size=4000)
    fitted = KalproxRegressor(diagnose=False).fit(X, y)
    streamed = in_batches(KalproxRegressor(structure=structure), X, y, (1, 20, 3979))
    np.testing.assert_allclose(streamed.coef_, fitted.coef_, rtol=0, atol=0.5 * fitted.coef_std_.min())


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))])
def test_shuffled_independent_rows_are_learned_in_silence(seed):
    rng = np.random.default_rng(seed + 200)
    X = rng.normal(size=(1500, 4)) + [0.0, 1.0, -2.0, 0.5]
    y = X @ [1.0, -2.0, 0.5, 0.0] + 3 + rng.normal(size=1500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = in_batches(KalproxRegressor(structure="diagonal"), X, y, (1, 16, 17, 366, 600, 500))
        model.predict(X[:5], return_std=True)
        assert model.converged_
    exact = KalproxRegressor(diagnose=False).fit(X, y)
    model = in_batches(KalproxRegressor(structure="diagonal"), X, y, (1, 16, 1483))
    assert np.abs((model.coef_ - exact.coef_) / exact.coef_std_).max() < 0.5


def columns(kind, rng, n):
    if kind == "levels":
        return np.eye(5)[rng.integers(5, size=n)][:, 1:]
    X = rng.normal(size=(n, 4))
    if kind == "sorted":
        return X[np.argsort(-X[:, 1])]
    i = np.arange(4)
    return X @ np.linalg.cholesky(0.8 ** np.abs(i[:, None] - i)).T if kind == "autoregressive" else X


@pytest.mark.parametrize("kind", ["independent", "levels", "sorted", "autoregressive"])
@pytest.mark.parametrize(
    "sizes",
    [(1, 16, 17, 366, 1100), (500, 500, 500), pytest.param((1, 16, 17, 366, 600, 500), marks=pytest.mark.slow)],
)
def test_middling_batches_after_one_row_end_within_a_standard_error_of_a_fit(kind, sizes):
    """They ended up to 9 of them off: earlier rows claimed to know contrasts that they had hardly told apart."""
    for seed in range(4):
        rng = np.random.default_rng(seed + 300)
        X = columns(kind, rng, 1500)
        y = X @ rng.normal(size=4) + 3 + rng.normal(size=1500)
        exact = KalproxRegressor(diagnose=False).fit(X, y)
        model = in_batches(KalproxRegressor(structure="diagonal", diagnose=False), X, y, sizes)
        assert np.abs((model.coef_ - exact.coef_) / exact.coef_std_).max() < 1


def test_a_summary_says_that_the_estimate_of_short_batches_may_be_off():
    X, y, _ = autoregressive(35, 600)
    model = in_batches(KalproxRegressor(structure="diagonal"), X, y, (20,) * 30)
    assert "the estimate, too, may be off" in " ".join(str(model.summary()).split())


@pytest.mark.slow
def test_later_batches_stay_near_the_estimate_of_all_rows():
    """The largest error of two coefficients was .08 on average over ten streams, and .19 in one of them."""
    off = []
    for seed in range(10):
        X, mean, rng = slow_columns(seed + 70, 2000)
        y = mean + 0.3 * rng.normal(size=2000)
        model = KalproxRegressor(structure="diagonal", diagnose=False)
        for i in range(0, 2000, 200):
            model.partial_fit(X[i : i + 200], y[i : i + 200])
        exact = KalproxRegressor(diagnose=False).fit(X, y)
        off.append(np.abs(model.coef_ - exact.coef_).max())
    assert np.mean(off) < 0.04 and max(off) < 0.1


def test_where_a_structure_is_off_the_estimate_is_doubted_too():
    X, mean, rng = slow_columns(90, 2000)
    model = KalproxRegressor(structure="diagonal")
    for i in range(0, 2000, 50):
        model.partial_fit(X[i : i + 50], mean[i : i + 50] + rng.normal(size=50))
    with pytest.warns(UserWarning, match="in several batches the estimate, too, may be off"):
        assert np.isfinite(model.coef_std_).all()


def test_a_filter_warns_of_the_std_of_the_mean():
    X, y, _ = autoregressive(34, 300)
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(1.0), structure="diagonal")
    state = alg.step(alg.init(np.zeros(12), 1.0), X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state.predict(CONTRASTS)
    with pytest.warns(UserWarning, match="along contrasts of correlated inputs"):
        state.predict(CONTRASTS, sigma=0)


def waves(seed, n):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, 50 + 10 * np.sin(3 * X[:, 0]) + 5 * np.abs(X[:, 1]) + 2 * rng.normal(size=n)


def test_a_network_has_a_verdict():
    X, y = waves(40, 200)
    score = KalproxNetRegressor((2,)).fit(X, y).diagnostics_
    assert float(score.rows) + float(score.undetermined) == 200 and score.verdict().rows > 100


@pytest.mark.slow
def test_a_network_judges_its_predictions_of_new_rows_in_their_units():
    X, y = waves(41, 1500)
    model = KalproxNetRegressor((20,)).fit(X, y)
    score = model.diagnostics_
    assert float(score.rows) + float(score.undetermined) == 1500
    assert score.verdict().word == "calibrated"
    new, target = waves(42, 400)
    error = np.sqrt(np.mean((model.predict(new) - target) ** 2))
    assert 0.8 * error < float(score.rmse) < 3 * error  # that of the first rows, of which little was known, is larger
    low, high = model.predict_interval(new, 0.9)
    assert binom.ppf(1e-4, 400, 0.85) < ((low <= target) & (target <= high)).sum() < binom.ppf(1 - 1e-4, 400, 0.94)


@pytest.mark.slow
def test_the_rows_of_a_stream_are_judged_by_what_was_known_before_them():
    X, y = waves(43, 400)
    model = KalproxNetRegressor((8,)).partial_fit(X[:200], y[:200])
    before, mean = model.diagnostics_, model.predict(X[200:264])
    after = model.partial_fit(X[200:264], y[200:264]).diagnostics_
    assert float(after.rows - before.rows) == 64
    np.testing.assert_allclose(float(after.squared_errors - before.squared_errors), ((y[200:264] - mean) ** 2).sum())
    worse = KalproxNetRegressor((8,)).partial_fit(X[:200], y[:200]).partial_fit(X[200:], y[200:] + 40).diagnostics_
    assert worse.verdict().word != "calibrated"


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_a_network_of_classes_judges_its_probabilities(classes):
    X, y = waves(44, 1200)
    labels = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    score = KalproxNetClassifier((10,)).fit(X, labels).diagnostics_
    assert float(score.rows) + float(score.undetermined) == 1200
    assert score.verdict().kind == "classes" and 0 < score.log_loss < np.log(classes)
