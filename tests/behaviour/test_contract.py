"""KalproxRegressor keeps the contract of scikit-learn: checks, frames, sparse rows, settings, pickle."""

import io
import pickle
import subprocess
import sys
import tracemalloc
import warnings

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
from regressor_data import X_DIABETES, X_SCALED, Y_DIABETES, linear_data, link_data
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from kalprox import KalproxClassifier, KalproxNetClassifier, KalproxNetRegressor, KalproxRegressor, regularizers
from kalprox.likelihoods import Gaussian


def expected_failures(estimator):
    """Cross-validation puts rows into folds in their order: a row of weight 2 is in one fold, two copies may not be."""
    if getattr(estimator, "penalty", None) != "l1" or estimator.alpha != "auto":
        return {}
    kinds = ("dense", "sparse")
    return {f"check_sample_weight_equivalence_on_{kind}_data": expected_failures.__doc__ for kind in kinds}


@parametrize_with_checks([KalproxRegressor(penalty="ridge"), KalproxClassifier()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Inputs are centred and scaled by the rows of the first call")  # of a network
@parametrize_with_checks(
    [
        KalproxRegressor(penalty=None),
        KalproxRegressor(penalty="l1", alpha=0.1),
        KalproxRegressor(likelihood="poisson"),
        KalproxRegressor(alpha="auto", standardize=True),
        KalproxRegressor(noise=1.0, fit_intercept=False, diagnose=False, penalty="ridge"),
        KalproxRegressor(penalty="l1", alpha="auto"),
        KalproxRegressor(link="softplus", penalty="ridge"),
        KalproxRegressor(likelihood="negative-binomial"),
        KalproxRegressor(likelihood="huber", penalty="ridge"),
        KalproxRegressor(likelihood="student", penalty="ridge"),
        KalproxClassifier(penalty="l1", alpha=0.1),
        KalproxNetRegressor(hidden=(10,)),
        KalproxNetClassifier(hidden=(10,)),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_checks_of_other_settings(estimator, check):
    with warnings.catch_warnings():
        if getattr(estimator, "link", None) == "softplus":  # standard normal targets: the best fit is its plateau at 0
            warnings.filterwarnings("ignore", "stopped on a plateau", ConvergenceWarning)
        if getattr(estimator, "likelihood", None) == "student":  # 16 rows, half predicted exactly, leave its scale open
            warnings.filterwarnings("ignore", "stopped at max_passes=200: the scale", ConvergenceWarning)
        check(estimator)


def test_pipeline_search_cross_validation_and_clone():
    model = KalproxRegressor(penalty=regularizers.Ridge(2.0))
    assert clone(model).penalty.lam == 2.0
    search = GridSearchCV(
        make_pipeline(StandardScaler(), KalproxRegressor(penalty="ridge")), {"kalproxregressor__alpha": [1.0, 1e6]}
    )
    assert search.fit(X_DIABETES, Y_DIABETES).best_params_ == {"kalproxregressor__alpha": 1.0}
    ours, theirs = (cross_val_predict(m, X_SCALED, Y_DIABETES) for m in (KalproxRegressor(penalty="ridge"), Ridge()))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_a_pipeline_that_hands_on_frames_keeps_their_names():
    X, y = linear_data()
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    pipeline = (
        make_pipeline(StandardScaler(), KalproxRegressor(penalty="ridge")).set_output(transform="pandas").fit(frame, y)
    )
    assert list(pipeline[-1].feature_names_in_) == list(frame.columns)
    np.testing.assert_allclose(pipeline.predict(frame), make_pipeline(StandardScaler(), Ridge()).fit(X, y).predict(X))


@pytest.mark.parametrize("flag", [False, True])
def test_float64_inside_whatever_jax_s_flag_says(flag):
    X, y = linear_data(n=60)
    with jax.enable_x64(flag):
        model = KalproxRegressor(link="tanh", alpha=2.0).fit(X, np.tanh(y))
        model.partial_fit(X[:7], np.tanh(y[:7]))
        assert jax.config.jax_enable_x64 == flag
        assert model.coef_.dtype == model.predict(X).dtype == np.float64
    expected = KalproxRegressor(link="tanh", alpha=2.0).fit(X, np.tanh(y)).partial_fit(X[:7], np.tanh(y[:7]))
    np.testing.assert_array_equal(model.coef_, expected.coef_)


def test_metadata_routing_of_sample_weight():
    X, y = linear_data()
    weights = np.arange(len(y)) % 3.0
    with sklearn.config_context(enable_metadata_routing=True):
        model = KalproxRegressor(penalty="ridge").set_fit_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        routed = make_pipeline(scaler, model).fit(X, y, sample_weight=weights)
    direct = Ridge().fit(StandardScaler().fit_transform(X), y, sample_weight=weights)
    np.testing.assert_allclose(routed[-1].coef_, direct.coef_, rtol=1e-10)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_and_their_names(frame):
    X, y = linear_data()
    names = ["a", "b", "c", "d"]
    model = KalproxRegressor(penalty="ridge").fit(frame(dict(zip(names, X.T, strict=True))), y)
    assert list(model.feature_names_in_) == names
    # The values of a frame lie column by column, so that they are summed in another order.
    np.testing.assert_allclose(model.coef_, KalproxRegressor(penalty="ridge").fit(X, y).coef_, rtol=1e-12)
    np.testing.assert_array_equal(model.coef_, KalproxRegressor(penalty="ridge").fit(np.asfortranarray(X), y).coef_)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame(dict(zip("dcba", X.T, strict=True))))


@pytest.mark.slow
@pytest.mark.integration
def test_the_linear_route_never_imports_jax():
    code = """
import sys, numpy as np
from kalprox import KalproxRegressor
X = np.random.default_rng(0).normal(size=(50, 3)); y = X @ [1.0, 2.0, 3.0]
for penalty in (None, "ridge", "l1", "elasticnet", "smooth_l1", "box"):
    m = KalproxRegressor(penalty=penalty).partial_fit(X, y).partial_fit(X, y)
    m.predict_interval(X); m.covariance_; m.sample(2, 0); m.diagnostics_.verdict()
KalproxRegressor(alpha="auto").fit(X, y).alpha_
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1800)


def test_sparse_rows_are_made_dense_block_by_block():
    rng = np.random.default_rng(0)
    X = scipy.sparse.random(300, 8, 0.3, format="csr", random_state=0)
    y = X @ rng.normal(size=8) + rng.normal(size=300)
    sparse = KalproxRegressor(penalty="ridge").fit(X, y)
    dense = KalproxRegressor(penalty="ridge").fit(X.toarray(), y)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-10)
    for ours, theirs in zip(
        sparse.predict(X, return_std=True), dense.predict(X.toarray(), return_std=True), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"standardize": True}])
def test_sparse_rows_behind_a_link_are_the_dense_ones(settings):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random(300, 6, 0.4, format="csr", random_state=rng)
    y = np.tanh(X @ rng.normal(size=6)) + 0.1 * rng.normal(size=300)
    sparse, dense = (
        KalproxRegressor(link="tanh", **({"penalty": "ridge"} | settings)).fit(A, y)
        for A, b in ((X, 70), (X.toarray(), 300))
    )
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-8)
    np.testing.assert_allclose(sparse.coef_std_, dense.coef_std_, rtol=1e-8)
    np.testing.assert_allclose(sparse.predict(X), dense.predict(X.toarray()), rtol=1e-8)


@pytest.mark.slow
def test_sparse_rows_take_no_dense_memory():
    peaks = []
    for n in (40_000, 160_000):  # what does not grow with the rows are a block of 32 MiB, and matrices of d^2 numbers
        X = scipy.sparse.random(n, 200, 0.01, format="csr", random_state=0)
        y = X @ np.ones(200)
        model = KalproxRegressor(penalty="ridge")
        tracemalloc.start()
        try:
            model.fit(X, y).predict(X, return_std=True)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] - peaks[0] < 120_000 * 200 * 8 / 16


def test_bad_rows_can_be_skipped_and_are_counted():
    X, y = linear_data()
    bad_X, bad_y = X.copy(), y.copy()
    bad_X[3, 1], bad_X[7, 0], bad_y[9] = np.nan, np.inf, np.nan
    good = np.setdiff1d(np.arange(len(y)), [3, 7, 9])
    expected = KalproxRegressor(penalty="ridge").fit(X[good], y[good])
    for rows in (bad_X, scipy.sparse.csr_array(bad_X)):
        model = KalproxRegressor(missing="drop", penalty="ridge").fit(rows, bad_y)
        assert (model.n_rows_seen_, model.n_rows_rejected_, model.n_rows_unlabelled_) == (117, 2, 1)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-12)
    model = KalproxRegressor(penalty="ridge").fit(X, y)
    before = model.coef_
    with pytest.raises(ValueError, match=r"X must be finite; got NaN or infinity in 2 row.s.: 3, 7"):
        model.partial_fit(bad_X, y)
    np.testing.assert_array_equal(model.coef_, before)
    assert model.n_rows_seen_ == 120


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": "lasso"}, "penalty must be None, one of ridge, l1"),
        ({"alpha": -1.0}, "alpha must be finite and >= 0"),
        ({"alpha": "best"}, "alpha must be a number >= 0 or 'auto'"),
        ({"penalty": "box", "alpha": "auto"}, "alpha='auto' needs a penalty with a weight"),
        ({"penalty": regularizers.L1(1.0), "alpha": 2.0}, "alpha must be 1 if penalty is a Regularizer"),
        ({"penalty": "group"}, "penalty='group' needs to know the groups"),
        ({"link": "probit"}, "link must be one of identity"),
        ({"function": lambda theta, x: theta[0]}, "start, the first theta"),
        ({"noise": 0.0}, "noise must be finite and > 0"),
        ({"noise": 1e-320}, "noise must be at least"),
        ({"noise": "guess"}, "noise must be 'learn', 'inputs' or the noise variance"),
        ({"forget": 0.0}, r"forget must lie in \(0, 1\]"),
        ({"missing": "ignore"}, "missing must be one of raise, drop, impute, marginalize"),
        ({"link": "sigmoid", "alpha": "auto"}, "alpha='auto' needs link='identity'"),
        (
            {"link": "sigmoid", "likelihood": Gaussian(targets="any"), "start": [0.0]},
            r"start must have one entry per coefficient.*\(5,\)",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(*linear_data())


@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_pickle_and_joblib(link):
    import joblib

    X, y = link_data("sigmoid")
    model = KalproxRegressor(link=link, penalty="ridge").partial_fit(X[:200], y[:200])
    model.predict(X, return_std=True)  # with its readings cached
    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    buffer.seek(0)
    for again in (pickle.loads(pickle.dumps(model)), joblib.load(buffer)):
        np.testing.assert_array_equal(again.coef_, model.coef_)
        a, b = (clone(model).partial_fit(X[:200], y[:200]).partial_fit(X[200:], y[200:]), again)
        b.partial_fit(X[200:], y[200:])
        np.testing.assert_array_equal(a.coef_, b.coef_)


@pytest.mark.integration
def test_without_scikit_learn_the_message_says_what_to_install():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "try:\n    from kalprox import KalproxRegressor\n"
        "except ImportError as error:\n    assert 'pip install \"kalprox[estimator]\"' in str(error), error\n"
        "else:\n    raise AssertionError('imported')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
