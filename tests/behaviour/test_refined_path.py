"""Paths of models that one pass does not solve: each alpha against other libraries, and against a fit of its own."""

import numpy as np
import pytest
from scipy import stats
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from kalprox import KalproxClassifier, KalproxRegressor

N, ALPHAS = 400, np.array([10.0, 100.0, 0.1])


@pytest.fixture(scope="module")
def rows():
    """Rows of columns far from zero, and targets of two classes, of three, counts, and numbers with outliers."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3)) * [1.0, 2.0, 0.5] + [0.0, 5.0, -3.0]
    f = (X - [0.0, 5.0, -3.0]) @ [1.0, -0.5, 0.0]
    three = (np.stack([f, -f, 0 * f]) + rng.gumbel(size=(3, N))).argmax(axis=0)
    numbers = f + rng.standard_t(2, size=N)
    return {
        "X": X,
        2: np.where(f + rng.logistic(size=N) > 0, "yes", "no"),
        3: three,
        "poisson": rng.poisson(np.exp(f / 2)).astype(float),
        "huber": numbers,
        "student": numbers,
        "tanh": np.tanh(f) + 0.1 * rng.normal(size=N),
    }


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", ["ridge", "l1"])
def test_every_alpha_of_classes_equals_logistic_regression(rows, classes, penalty):
    X, y = rows["X"], rows[classes]
    model = KalproxClassifier(penalty=penalty, class_weight="balanced").fit(X, y)
    before = model.coef_
    path = model.path(ALPHAS, X=X, y=y)
    how = {"solver": "newton-cg", "l1_ratio": 0.0} if penalty == "ridge" else {"solver": "saga", "l1_ratio": 1.0}
    for alpha, coef, intercept in zip(path.alphas, path.coef, path.intercept, strict=True):
        theirs = LogisticRegression(C=1 / alpha, class_weight="balanced", tol=1e-11, max_iter=100_000, **how)
        theirs.fit(X - X.mean(axis=0), y)
        np.testing.assert_allclose(coef, theirs.coef_, rtol=0, atol=1e-6)
        at_zero = theirs.intercept_ - theirs.coef_ @ X.mean(axis=0)
        off = at_zero.mean() - intercept.mean() if classes == 3 else 0.0  # a number that all classes share
        np.testing.assert_allclose(intercept, at_zero - off, rtol=0, atol=1e-5)
        if penalty == "l1":
            np.testing.assert_array_equal(coef != 0, np.abs(theirs.coef_) > 1e-8)
    np.testing.assert_array_equal(model.coef_, before)
    assert path.converged.all() and path.classes == list(map(str, model.classes_)) and path.names == ["x0", "x1", "x2"]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_score_is_that_of_schwarz(rows, classes):
    X, y = rows["X"], rows[classes]
    path = KalproxClassifier().fit(X, y).path(ALPHAS, X=X, y=y)
    labels = np.unique(y)
    codes = np.searchsorted(labels, y)
    for alpha, coef, intercept, edf, score in zip(*path, strict=True):
        F = X @ coef.T + intercept
        F = np.column_stack([np.zeros(N), F[:, 0]]) if classes == 2 else F
        logs = F - np.log(np.exp(F).sum(axis=1, keepdims=True))
        P = np.exp(logs)
        Z = np.column_stack([np.ones(N), X])
        m = classes
        H = sum(np.kron(np.diag(p) - np.outer(p, p), np.outer(z, z)) for p, z in zip(P, Z, strict=True))
        A = np.kron(np.eye(m), alpha * np.diag([0.0, 1, 1, 1]))
        if classes == 2:
            H, A = H[4:, 4:], A[4:, 4:]
        expected = np.trace(np.linalg.pinv(H + A) @ H) - (m - 1)
        assert edf == pytest.approx(expected, rel=1e-6)
        assert score == pytest.approx(logs[np.arange(N), codes].sum() - expected / 2 * np.log(N), rel=1e-6)
    assert path.criterion == "-BIC/2"


@pytest.mark.parametrize("kind", ["poisson", "huber", "student", "tanh"])
def test_every_alpha_of_a_regression_equals_a_fit(rows, kind):
    X, y = rows["X"], rows[kind]
    settings = {"link": "tanh"} if kind == "tanh" else {"likelihood": kind}
    path = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, y).path(ALPHAS, X=X, y=y)
    rest = [] if kind == "student" else [0.0]
    for alpha, coef, intercept in zip(*path[:3], strict=True):
        alone = KalproxRegressor(alpha=alpha, **settings).fit(X, y)
        np.testing.assert_allclose(coef, alone.coef_, rtol=1e-6, atol=1e-8)
        assert intercept == pytest.approx(alone.intercept_, rel=1e-6)
        if kind == "poisson":
            theirs = PoissonRegressor(alpha=alpha / N, solver="newton-cholesky", tol=1e-10).fit(X, y)
            np.testing.assert_allclose(coef, theirs.coef_, rtol=0, atol=1e-6)
            logs = stats.poisson.logpmf(y, theirs.predict(X)).sum()
            at = int(np.flatnonzero(path.alphas == alpha)[0])
            assert path.score[at] == pytest.approx(logs - path.edf[at] / 2 * np.log(N), rel=1e-5)
        if kind == "student":
            loss = alone.likelihood_
            logs = stats.t.logpdf(y, loss.dof, X @ coef + intercept, loss.scale).sum()
            rest.append(path.score[len(rest)] - logs + path.edf[len(rest)] / 2 * np.log(N))
    assert np.isfinite(path.score).all() and np.ptp(rest) < 1e-4  # what is left out does not depend on alpha


def test_the_largest_alpha_of_the_grid_is_the_smallest_without_coefficients(rows):
    X, y = rows["X"], rows[2]
    model = KalproxClassifier(penalty="l1").fit(X, y)
    path = model.path(X=X, y=y)
    centred, share = X - X.mean(axis=0), (y == "yes").mean()
    assert path.alphas[0] == pytest.approx(np.abs(centred.T @ ((y == "yes") - share)).max(), rel=1e-9)
    assert not path.coef[0].any() and path.coef[1].any() and len(path.alphas) > 20
    assert path.score.argmax() > 0 and "not converged" not in repr(path)
    assert path.plot().get_xscale() == "log"
    assert model.path([1.0, 2.0], X=X, y=y).plot(kind="score").get_xscale() == "log"


def test_weights_offsets_forgetting_and_sparse_rows(rows):
    X, y, weights = rows["X"], rows["poisson"], np.random.default_rng(1).integers(1, 4, N)
    about = {"sample_weight": weights, "offset": 0.1 * X[:, 0]}
    model = KalproxRegressor(likelihood="poisson").fit(X, y, **about)
    path = model.path([5.0], X=X, y=y, **about)
    np.testing.assert_allclose(
        path.coef[0], KalproxRegressor(likelihood="poisson", alpha=5.0).fit(X, y, **about).coef_, rtol=1e-8
    )
    model = KalproxClassifier(forget=0.99).fit(X, rows[2])
    path, alone = model.path([5.0], X=X, y=rows[2]), KalproxClassifier(forget=0.99, alpha=5.0).fit(X, rows[2])
    np.testing.assert_allclose(path.coef[0], alone.coef_, rtol=1e-8)
    model = KalproxClassifier(missing="impute").fit(X, rows[2])
    gaps = np.where(np.random.default_rng(2).random(X.shape) < 0.1, np.nan, X)
    alone = KalproxClassifier(missing="impute", alpha=5.0).fit(gaps, rows[2])
    np.testing.assert_allclose(model.path([5.0], X=gaps, y=rows[2]).coef[0], alone.coef_, rtol=1e-8)


def test_mistakes_are_named(rows):
    X, y = rows["X"], rows[2]
    model = KalproxClassifier().fit(X, y)
    with pytest.raises(ValueError, match="Give X and y, the rows that it was fitted to"):
        model.path([1.0])
    with pytest.raises(ValueError, match="both X and y, or neither"):
        model.path([1.0], X=X)
    with pytest.raises(ValueError, match="alphas must be"):
        model.path([-1.0], X=X, y=y)
    with pytest.raises(ValueError, match="not among the classes"):
        model.path([1.0], X=X, y=np.full(N, "maybe"))
    with pytest.raises(ValueError, match="a penalty with a weight"):
        KalproxClassifier(penalty=None).fit(X, y).path([1.0], X=X, y=y)
    with pytest.raises(ValueError, match="Leave X and y out"):
        KalproxRegressor(penalty="ridge").fit(X, rows["tanh"]).path([1.0], X=X, y=rows["tanh"])
    with pytest.raises(NotFittedError):
        KalproxClassifier().path([1.0], X=X, y=y)
    with pytest.raises(ValueError, match="which of the 3 classes"):
        KalproxClassifier().fit(X, rows[3]).path([1.0], X=X, y=rows[3]).plot()
    with pytest.warns(ConvergenceWarning, match="stopped at max_passes=2"):
        model = KalproxClassifier(max_passes=2).fit(X, y)
    with pytest.warns(ConvergenceWarning, match=r"minimiser for alpha = 0\.01"):
        path = model.path([0.01], X=X, y=y)
    assert not path.converged.any() and "not converged: 1 of 1 alphas" in repr(path)
