"""(e) L1 to optimality: one alpha, and the path of 100.

`optimality` is the largest violation of the optimality conditions, in units of alpha, over all alphas of a path.
`error` is the largest relative distance to coordinate descent on X'X in longdouble at the last alpha.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import FLOOR, Case, Data, Peer, Settings
from benchmarks.linear import floor


def cases() -> list[Case]:
    return [Case("L1 to optimality", {"d": d, "n": 20_000}) for d in (100, 300)]


def data(settings: Settings) -> Data:
    n, d = settings["n"], settings["d"]
    rng = np.random.default_rng([11, d])
    X = rng.standard_normal((n, d))
    for j in range(1, d):  # neighbours with a correlation of 0.5
        X[:, j] = 0.5 * X[:, j - 1] + 0.75**0.5 * X[:, j]
    theta = np.zeros(d)
    theta[rng.choice(d, d // 10, replace=False)] = rng.standard_normal(d // 10)
    y = X @ theta + 3 * rng.standard_normal(n)
    largest = np.abs(X.T @ y).max() / n
    return {"X": X, "y": y, "alphas": largest * np.geomspace(1, 1e-3, 100), "alpha": np.array([largest / 20])}


def judge(settings: Settings, data: Data, peer: Peer, rows: int, answer: Any) -> dict[str, Any]:
    if peer.name == FLOOR:
        return {}
    alphas = data["alphas"] if "path" in peer.name else data["alpha"]
    coefs = np.asarray(answer, float).reshape(len(alphas), -1)
    X, y, n = data["X"], data["y"], settings["n"]
    G, b = X.T @ X / n, X.T @ y / n
    worst = 0.0
    for alpha, coef in zip(alphas, coefs, strict=True):
        slope = b - G @ coef
        off = np.where(coef == 0, np.maximum(np.abs(slope) - alpha, 0), np.abs(slope - alpha * np.sign(coef)))
        worst = max(worst, float(off.max() / alpha))
    best = _descent(G, b, alphas[-1], coefs[-1])
    return {"optimality": worst, "error": float(np.linalg.norm(coefs[-1] - best) / np.linalg.norm(best))}


def _descent(G: np.ndarray, b: np.ndarray, alpha: float, start: np.ndarray) -> np.ndarray:
    """Run coordinate descent to convergence; the signs of the solution then give the minimiser in closed form."""
    t = start.copy()
    for _ in range(500):
        before = t.copy()
        for j in range(len(t)):
            s = b[j] - G[j] @ t + G[j, j] * t[j]
            t[j] = np.sign(s) * max(abs(s) - alpha, 0) / G[j, j]
        if np.abs(t - before).max() <= 1e-13 * np.abs(t).max():
            break
    on = t != 0
    t[on] = np.linalg.solve(G[np.ix_(on, on)], b[on] - alpha * np.sign(t[on]))
    return t


def _kalprox(data: Data, settings: Settings) -> Callable[[], Any]:
    from kalprox import KalproxRegressor

    alpha = settings["n"] * data["alpha"][0]
    return lambda: KalproxRegressor(penalty="l1", alpha=alpha, fit_intercept=False).fit(data["X"], data["y"]).coef_


def _kalprox_path(data: Data, settings: Settings) -> Callable[[], Any]:
    from kalprox import KalproxRegressor

    def go() -> Any:
        model = KalproxRegressor(penalty="l1", fit_intercept=False).fit(data["X"], data["y"])
        return model.path(settings["n"] * data["alphas"]).coef

    return go


def _kalprox_path_again(data: Data, settings: Settings) -> Callable[[], Any]:
    from kalprox import KalproxRegressor

    model = KalproxRegressor(penalty="l1", fit_intercept=False).fit(data["X"], data["y"])
    return lambda: model.path(settings["n"] * data["alphas"]).coef


def _sklearn(data: Data, settings: Settings) -> Callable[[], Any]:
    from sklearn.linear_model import Lasso

    model = Lasso(data["alpha"][0], fit_intercept=False, tol=1e-10, max_iter=100_000)
    return lambda: model.fit(data["X"], data["y"]).coef_


def _sklearn_path(**options: Any) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from sklearn.linear_model import lasso_path

        return lambda: lasso_path(data["X"], data["y"], alphas=data["alphas"], **options)[1].T

    return build


def _skglm(data: Data, settings: Settings) -> Callable[[], Any]:
    from skglm import Lasso

    return lambda: Lasso(data["alpha"][0], fit_intercept=False, tol=1e-10).fit(data["X"], data["y"]).coef_


def _cyanure(data: Data, settings: Settings) -> Callable[[], Any]:
    from cyanure.estimators import Regression

    options = {"penalty": "l1", "lambda_1": data["alpha"][0], "fit_intercept": False, "tol": 1e-10}
    model = Regression(**options, max_iter=5000, verbose=False, n_threads=1)
    return lambda: model.fit(data["X"], data["y"]).coef_


PEERS = [
    Peer(FLOOR, "scipy", floor),
    Peer("kalprox KalproxRegressor.fit", "kalprox", _kalprox),
    Peer("scikit-learn Lasso", "scikit-learn", _sklearn, note="tol 1e-10"),
    Peer("skglm Lasso", "skglm", _skglm, note="tol 1e-10"),
    Peer("cyanure Regression", "cyanure", _cyanure, note="tol 1e-10"),
    Peer("kalprox fit and path", "kalprox", _kalprox_path, note="100 alphas"),
    Peer("kalprox path alone", "kalprox", _kalprox_path_again, note="rows learned before"),
    Peer("scikit-learn lasso_path", "scikit-learn", _sklearn_path(), note="as it comes, tol 1e-4"),
    Peer("scikit-learn lasso_path, tol 1e-10", "scikit-learn", _sklearn_path(tol=1e-10, max_iter=100_000)),
]
