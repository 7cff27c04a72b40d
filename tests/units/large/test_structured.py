"""Estimators with a structure: the same coefficients as without, on sparse rows that stay sparse."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import Lasso, LogisticRegression, Ridge

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.base import memory
from kalprox.structures import Blocks, Diagonal, LowRank, UnderstatedWarning

# What a structure drops is said wherever a std is read; that it is said has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore::kalprox.structures.UnderstatedWarning")


def _rows(n, d, per_row, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    columns = rng.integers(d, size=(n, per_row))
    at = columns.ravel(), np.arange(0, n * per_row + 1, per_row)
    X = scipy.sparse.csr_matrix((rng.normal(size=n * per_row), *at), shape=(n, d))
    X.sum_duplicates()
    coef = rng.normal(size=d) * (rng.random(d) < 0.1)
    return X, 1 + X @ coef + noise * rng.normal(size=n), coef


@pytest.fixture
def never_dense(monkeypatch):
    """Make it an error to turn a sparse matrix into a dense one."""

    def refused(self, *args, **kwargs):
        raise AssertionError("a sparse matrix was made dense")

    for kind in (scipy.sparse.csr_matrix, scipy.sparse.csc_matrix, scipy.sparse.csr_array):
        monkeypatch.setattr(kind, "toarray", refused)
        monkeypatch.setattr(kind, "todense", refused)


def test_ridge_is_that_of_scikit_learn(never_dense):
    X, y, _ = _rows(3000, 2000, 20)
    model = KalproxRegressor(structure="diagonal", alpha=2.0).fit(X, y)
    # sparse_cg centres the columns implicitly, and stops by its own tolerance
    peer = Ridge(alpha=2.0, solver="sparse_cg", tol=1e-12).fit(X, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, peer.intercept_, atol=1e-8)
    np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=1e-8)
    assert model.converged_
    residual = X.T @ (y - model.predict(X)) - 2.0 * model.coef_
    assert np.abs(residual).max() < 1e-7


def test_l1_satisfies_its_optimality_condition(never_dense):
    X, y, _ = _rows(3000, 2000, 20)
    alpha = 8.0
    model = KalproxRegressor(structure="diagonal", penalty="l1", alpha=alpha).fit(X, y)
    slope = X.T @ (y - model.predict(X))
    zero = model.coef_ == 0
    assert 500 < zero.sum() < 1990
    np.testing.assert_allclose(slope[~zero], alpha * np.sign(model.coef_[~zero]), atol=1e-6)
    assert np.abs(slope[zero]).max() <= alpha * (1 + 1e-9)
    peer = Lasso(alpha=alpha / 3000, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnderstatedWarning)
        assert ((model.coef_std_ == 0) == zero).all()


def test_classes_are_those_of_scikit_learn(never_dense):
    X, y, _ = _rows(2000, 1000, 20)
    labels = np.where(y > np.median(y), "yes", "no")
    model = KalproxClassifier(structure="diagonal", alpha=0.5).fit(X, labels)
    peer = LogisticRegression(C=2.0, tol=1e-10, max_iter=5000).fit(X, labels)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-5)
    proba, std = model.predict_proba(X[:50], return_std=True)
    assert np.abs(proba - peer.predict_proba(X[:50])).max() < 0.2  # ours are averaged over the posterior
    assert (std > 0).all() and (model.predict(X[:50]) == peer.predict(X[:50])).mean() > 0.95


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("penalty", ["ridge", "l1", "elasticnet"])
def test_it_is_the_dense_model_and_its_predictions_are_close(penalty, sparse):
    X, y, _ = _rows(600, 80, 8, seed=1)
    X = X if sparse else X.toarray() + 3.0
    dense = KalproxRegressor(penalty=penalty, alpha=2.0).fit(X, y)
    model = KalproxRegressor(penalty=penalty, alpha=2.0, structure=LowRank(10)).fit(X, y)
    np.testing.assert_allclose(model.coef_, dense.coef_, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, dense.intercept_, atol=1e-7)
    np.testing.assert_allclose(model.noise_var_, dense.noise_var_, rtol=0.02)
    (mean, std), (expected, expected_std) = (one.predict(X[:40], return_std=True) for one in (model, dense))
    np.testing.assert_allclose(mean, expected, atol=1e-7)
    np.testing.assert_allclose(std, expected_std, rtol=0.05)


def test_all_directions_give_the_exact_standard_errors():
    X, y, _ = _rows(600, 40, 8, seed=2)
    dense = KalproxRegressor(noise=0.25, penalty="ridge").fit(X, y)
    model = KalproxRegressor(noise=0.25, structure=LowRank(41), penalty="ridge").fit(X, y)
    np.testing.assert_allclose(model.coef_std_, dense.coef_std_, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X, return_std=True)[1], dense.predict(X, return_std=True)[1], rtol=1e-8)
    draws, _ = model.sample(4000, random_state=0)
    assert draws.shape == (4000, 40)
    # the variance of 4,000 draws has a relative standard error of sqrt(2 / 4000) = 2.2%
    np.testing.assert_allclose(draws.std(axis=0), dense.coef_std_, rtol=5 * 0.0112)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kalprox.structures.UnderstatedWarning")
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("penalty", ["ridge", "l1"])
def test_several_classes_have_the_standard_errors_predictions_and_draws_of_all_information(penalty, sparse):
    """What all classes have in common has no effect on probabilities, and is no part of a standard error.

    The information has a prior of 1e-8 where there is no penalty. Probabilities are means over 2^k points; the part in
    common, which a dense model has a little of, turns them: they agree to a thousandth.
    """
    rng = np.random.default_rng(2)
    X = rng.normal(size=(400, 3))
    y = rng.choice(list("abc"), 400)
    y[X[:, 0] + rng.logistic(size=400) > 1] = "a"
    times = np.full(400, 10.0)  # many rows, whose posterior is not skewed: a structure knows nothing of that
    settings = {"penalty": penalty, "alpha": 1.0 if penalty == "ridge" else 5.0}
    dense = KalproxClassifier(**settings).fit(X, y, times)
    model = KalproxClassifier(structure=LowRank(12), **settings)
    model.fit(scipy.sparse.csr_array(X) if sparse else X, y, times)
    np.testing.assert_allclose(model.coef_std_, dense.coef_std_, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(model.predict_proba(X), dense.predict_proba(X), atol=1e-3)
    coef, intercept = model.sample(20_000, random_state=0)
    assert intercept.shape == (20_000, 3)
    np.testing.assert_allclose(coef.std(axis=0), model.coef_std_, rtol=0.04, atol=1e-12)  # 4 / sqrt(2 x 20,000) x 2
    said = " ".join(str(model.summary()).split())
    assert "standard errors of coefficients are approximate with a structure" in said and "paper" not in said
    assert ("Intervals of the coefficients are empty" in said) is (penalty == "l1")


def test_understated_standard_errors_are_said():
    X, y, _ = _rows(600, 40, 8, seed=2)
    model = KalproxRegressor(structure="diagonal", penalty="ridge").fit(X, y)
    with pytest.warns(UnderstatedWarning, match="may be too small"):
        std = model.coef_std_
    dense = KalproxRegressor(penalty="ridge").fit(X, y)
    assert (std < dense.coef_std_ * 1.01).all() and (std > 0.5 * dense.coef_std_).all()
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))


def test_weights_counts_and_links():
    X, y, _ = _rows(400, 30, 6, seed=3)
    weights = np.random.default_rng(0).integers(0, 3, 400).astype(float)
    for settings in ({}, {"standardize": True}, {"fit_intercept": False}, {"weight_kind": "precision"}):
        dense = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, y, sample_weight=weights)
        model = KalproxRegressor(structure="diagonal", **({"penalty": "ridge"} | settings)).fit(
            X, y, sample_weight=weights
        )
        np.testing.assert_allclose(model.coef_, dense.coef_, atol=1e-8)
        np.testing.assert_allclose(model.noise_var_, dense.noise_var_, rtol=0.02)
    counts = np.random.default_rng(0).poisson(np.exp(0.2 * (y - y.mean()))).astype(float)
    exposure = np.random.default_rng(1).uniform(0.5, 2.0, 400)
    pair = [
        KalproxRegressor(likelihood="poisson", structure=structure).fit(X, counts, exposure=exposure)
        for structure in (None, "diagonal")
    ]
    np.testing.assert_allclose(pair[0].coef_, pair[1].coef_, atol=1e-8)
    np.testing.assert_allclose(pair[0].intercept_, pair[1].intercept_, atol=1e-8)


def test_dense_blocks_of_sparse_rows_are_those_of_dense_ones():
    X, y, _ = _rows(60, 10, 3)
    sparse, dense = (
        KalproxRegressor(structure=Blocks([5, 5]), penalty="l1", alpha=5.0, fit_intercept=False).fit(rows, y)
        for rows in (X, X.toarray())
    )
    assert 0 < (dense.coef_ == 0).sum() < 10
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(sparse.coef_std_, dense.coef_std_, rtol=1e-8)


def test_what_is_not_offered_is_refused(monkeypatch):
    X, y, _ = _rows(60, 10, 3)
    for settings in ({"alpha": "auto"}, {"coef_cov": "robust"}, {"noise": "inputs"}, {"missing": "marginalize"}):
        with pytest.raises(ValueError, match="leave structure out"):
            KalproxRegressor(structure="diagonal", **({"penalty": "ridge"} | settings)).fit(X, y)
    model = KalproxRegressor(structure="diagonal", penalty="ridge").fit(X, y)
    for call in (model.path, lambda: model.merge(model)):
        with pytest.raises(ValueError, match="structure"):
            call()
    for settings in ({"penalty": "l1"}, {"link": "exp"}, {"forget": 0.9}, {"standardize": True}):
        with pytest.raises(ValueError, match="structure"):
            KalproxRegressor(structure="diagonal", **({"penalty": "ridge"} | settings)).partial_fit(X, np.ones(60))
    monkeypatch.setattr(memory, "memory_of_machine", lambda: 1000)
    monkeypatch.setattr(memory, "_ANYWHERE", 0)
    with pytest.raises(ValueError, match=r"10 columns and 60 rows are too many .*structure='diagonal'"):
        KalproxRegressor(penalty="ridge").fit(X, y)
    assert KalproxRegressor(structure="diagonal", penalty="ridge").fit(X, y).coef_.shape == (10,)


@pytest.mark.parametrize("about", [{}, {"alpha": 100.0}, {"penalty": None}], ids=str)
@pytest.mark.parametrize("level", [0.0, 1e5])
def test_a_stream_of_sparse_rows_with_all_directions_is_exact(about, level):
    X, y, _ = _rows(500, 40, 6, seed=4)
    y, weights = y + level, np.random.default_rng(0).integers(0, 3, 500).astype(float)
    dense = KalproxRegressor(noise=0.25, **({"penalty": "ridge"} | about)).fit(X, y, sample_weight=weights)
    stream = KalproxRegressor(noise=0.25, structure=LowRank(41), **({"penalty": "ridge"} | about))
    for rows in (slice(0, 7), slice(7, 300), slice(300, 500)):
        stream.partial_fit(X[rows], y[rows], sample_weight=weights[rows])
    np.testing.assert_array_less(np.abs(stream.coef_ - dense.coef_), 1e-5 * dense.coef_std_)
    np.testing.assert_allclose(stream.coef_std_, dense.coef_std_, rtol=1e-6)
    # the intercept has a weak prior
    assert abs(stream.intercept_ - dense.intercept_) < 1e-5 * dense.intercept_std_
    assert stream.intercept_std_ == pytest.approx(dense.intercept_std_, rel=1e-6)
    assert stream.n_rows_seen_ == int((weights > 0).sum())


def test_a_fit_of_sparse_rows_with_all_directions_goes_on_as_a_stream():
    X, y, _ = _rows(500, 40, 6, seed=4)
    both = (
        KalproxRegressor(noise=0.25, structure=LowRank(41), penalty="ridge")
        .fit(X[:250], y[:250])
        .partial_fit(X[250:], y[250:])
    )
    np.testing.assert_allclose(both.coef_, KalproxRegressor(noise=0.25, penalty="ridge").fit(X, y).coef_, atol=1e-8)


def test_a_diagonal_stream_has_the_same_answer_for_sparse_and_dense_rows():
    X, y, _ = _rows(200, 30, 4, seed=5)
    w = np.random.default_rng(0).uniform(0.5, 2.0, 200)
    start = Diagonal().start(np.zeros(30), np.linspace(1.0, 2.0, 30))
    sparse, dense = start.fold(X, y, w), start
    for i in range(0, 200, 64):  # the pieces of a sparse matrix
        dense = dense.fold(X[i : i + 64].toarray(), y[i : i + 64], w[i : i + 64])
    for name in ("mean", "rss", "rows", "squares", "traces", "prior_mean"):
        np.testing.assert_allclose(getattr(sparse, name), getattr(dense, name), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(sparse.variances(), 1 / (np.linspace(1.0, 2.0, 30) + X.multiply(X).T @ w), rtol=1e-12)
    np.testing.assert_allclose(sparse.leverage(X), dense.leverage(X.toarray()), rtol=1e-10)


@pytest.mark.slow
def test_100_000_columns(never_dense):
    X, y, _ = _rows(20_000, 100_000, 30)
    model = KalproxRegressor(structure="diagonal", alpha=1.0, penalty="ridge").fit(X, y)
    residual = X.T @ (y - model.predict(X)) - model.coef_
    assert np.abs(residual).max() < 1e-7 and model.converged_
    sparse = KalproxRegressor(structure=LowRank(5), penalty="l1", alpha=15.0).fit(X, y)
    slope = X.T @ (y - sparse.predict(X))
    zero = sparse.coef_ == 0
    assert np.abs(slope[zero]).max() <= 15.0 * (1 + 1e-8)
    np.testing.assert_allclose(slope[~zero], 15.0 * np.sign(sparse.coef_[~zero]), atol=1e-5)
    _, std = sparse.predict(X[:100], return_std=True)
    assert (std >= sparse.noise_var_**0.5).all()
