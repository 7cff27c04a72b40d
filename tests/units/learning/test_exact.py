"""The exact belief with fewer rows than columns, and what reading it costs, by counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

from kalprox import KalproxRegressor
from kalprox.linalg import rank, row_space

D = 120


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) * np.exp(rng.standard_normal(D))
    X[:, 3], X[:, 4], X[:, 6] = 0.0, X[:, 5], X[:, 6] + 30
    return X, X[:, 10] - X[:, 20] + rng.standard_normal(n)


def readings(model: KalproxRegressor, X: np.ndarray) -> dict[str, np.ndarray]:
    mean, std = model.predict(X, return_std=True)
    score = model.diagnostics_
    return {
        "mean": mean,
        "std": std,
        "coef": model.coef_,
        "intercept": np.asarray(model.intercept_),
        "coef_std": model.coef_std_,
        "noise": np.asarray(model.noise_var_),
        "score": np.array([score.mean_log_score]),
    }


def assert_alike(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name, value in one.items():
        expected = other[name]
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isfinite(value), finite, err_msg=name)
        size = np.abs(expected[finite]).max(initial=0)
        np.testing.assert_allclose(value[finite], expected[finite], rtol=0, atol=1e-9 * size, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 40, 85, 119, 180])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 30.0, "fit_intercept": False},
        {"standardize": True},
        {"noise": 2.0},
        {"forget": 0.98},
        {"penalty": None},
        {"penalty": "l1", "alpha": 20.0},
        {"alpha": "auto"},
    ],
    ids=str,
)
def test_few_rows_in_batches_equal_a_model_that_never_uses_the_row_space(
    n: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows(n)
    at = np.concatenate([X[:2], rows(5, seed=1)[0]])

    def learned() -> dict[str, np.ndarray]:
        model = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X[: n // 2], y[: n // 2])
        return readings(model.partial_fit(X[n // 2 :], y[n // 2 :]), at)

    wide = learned()
    monkeypatch.setattr(row_space, "_FEWEST", 10**9)
    assert_alike(wide, learned())


def test_a_sparse_matrix_merging_and_a_model_file(tmp_path: Path) -> None:
    X, y = rows(90)
    X[np.abs(X) < 1] = 0
    whole = KalproxRegressor(diagnose=False, penalty="ridge").fit(X, y)
    sparse = KalproxRegressor(diagnose=False, penalty="ridge").fit(scipy.sparse.csr_array(X), y)
    parts = [
        KalproxRegressor(diagnose=False, penalty="ridge").fit(X[some], y[some]) for some in (slice(50), slice(50, 90))
    ]
    merged = parts[0].merge(parts[1])
    merged.save(tmp_path / "model.kalprox")
    loaded = KalproxRegressor.load(tmp_path / "model.kalprox")
    mean, std = whole.predict(X[:5], return_std=True)
    for model in (sparse, merged, loaded):
        found = model.predict(X[:5], return_std=True)
        np.testing.assert_allclose(found[0], mean, rtol=1e-9)
        np.testing.assert_allclose(found[1], std, rtol=1e-9)
        np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=1e-9)
    more, targets = rows(200, seed=2)
    np.testing.assert_allclose(
        loaded.partial_fit(more, targets).coef_,
        KalproxRegressor(diagnose=False, penalty="ridge").fit(np.concatenate([X, more]), np.append(y, targets)).coef_,
        atol=1e-9,
    )


@pytest.mark.parametrize("alpha", [1.0, "auto"])
def test_a_wide_fit_makes_no_square_array_of_the_columns(alpha: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    d, n = 3000, 60
    X = scipy.sparse.random(n, d, density=0.02, random_state=0, format="csr")
    y = np.random.default_rng(0).standard_normal(n)
    largest = []

    def watched(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            largest.extend(min(a.shape) for a in args if isinstance(a, np.ndarray) and a.ndim == 2)
            return function(*args, **kwargs)

        return call

    for name in ("svd", "qr"):
        monkeypatch.setattr(scipy.linalg, name, watched(getattr(scipy.linalg, name)))
    monkeypatch.setattr(rank, "triangular_inverse", watched(rank.triangular_inverse))
    import tracemalloc

    tracemalloc.start()
    model = KalproxRegressor(alpha=alpha).fit(X, y)
    model.predict(X[:10], return_std=True)
    assert model.coef_std_.shape == (d,)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(largest) <= n + 1
    # Arrays as large as all rows, and those of the grid of alphas; the one of d x d numbers that starts the fit is
    # zero, and its pages are never touched.
    assert peak - 8 * (d + 2) ** 2 < 30 * 8 * n * d


def test_a_prediction_after_each_batch_takes_no_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, d = np.random.default_rng(0), 80
    theta, calls = rng.standard_normal(d), []
    inverse = rank.triangular_inverse
    monkeypatch.setattr(rank, "triangular_inverse", lambda R: calls.append(R.shape) or inverse(R))
    model = KalproxRegressor(diagnose=False, penalty="ridge")
    for _ in range(4):
        X = rng.standard_normal((1500, d))
        model.partial_fit(X, X @ theta + rng.standard_normal(1500))
        np.testing.assert_allclose(model.predict(X[:7]), X[:7] @ theta, atol=1.0)
        assert model.coef_.shape == (d,)
    assert not calls
    model.predict(X[:7], return_std=True)
    assert len(calls) == 1


def test_batches_of_a_wide_model_make_no_root_of_the_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, d = np.random.default_rng(0), 700
    X, y = rng.standard_normal((60, d)), rng.standard_normal(60)
    expected = KalproxRegressor(penalty="ridge").fit(X, y).predict(X[:1], return_std=True)
    monkeypatch.setattr(row_space.WideFactor, "L", property(lambda self: pytest.fail("a root of d x d numbers")))
    model = KalproxRegressor(penalty="ridge").fit(X[:20], y[:20])
    model.predict(X[:1], return_std=True)
    model.partial_fit(X[20:40], y[20:40]).prequential(X[40:], y[40:])
    np.testing.assert_allclose(model.predict(X[:1], return_std=True), expected, rtol=1e-9)
