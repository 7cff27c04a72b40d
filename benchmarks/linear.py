"""(a) Linear least squares, y = x' theta + noise without intercept: in one call, as a stream, and row by row.

Every peer solves ridge regression with alpha = 1 (the prior N(0, 1) and noise of variance 1), or alpha = 0 if it has no
penalty. Errors are relative distances to the solution by QR of the same rows. `prediction` is the root mean square of
x' (theta_hat - theta) on fresh rows, in units of the noise.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import FLOOR, Case, Data, Peer, Settings, at_most

BLOCK, BATCH = 4096, 64
_ROWS = {10: 400_000, 30: 200_000, 100: 100_000, 300: 40_000, 1000: 16_384}
_FEW = (FLOOR, "kalprox Information.fold, 4,096", "kalprox partial_fit, 4,096", "scikit-learn SGDRegressor, 4,096")


def cases() -> list[Case]:
    found = [
        Case("linear", {"d": d, "n": n, "twin": 0.0}, None if d in (10, 100) else _quick_ones())
        for d, n in _ROWS.items()
    ]
    for d in (30, 100, 300):
        found.append(Case("linear, ill-conditioned", {"d": d, "n": 6_000_000 // max(d, 120), "twin": 1e-7}, _folds()))
    for n in (1024, 8192, 65_536, 262_144):
        found.append(Case("linear, against n", {"d": 100, "n": n, "twin": 0.0}, _FEW))
    return found


def _quick_ones() -> tuple[str, ...]:
    """Return the names of the peers without the slow row-by-row ones, but with River and padasip for comparison."""
    return tuple(p.name for p in PEERS if p.package in ("kalprox", "scipy", "scikit-learn", "river", "padasip"))


def _folds() -> tuple[str, ...]:
    return tuple(p.name for p in PEERS if p.name.startswith((FLOOR, "kalprox I", "SciPy", "scikit-learn")))


def data(settings: Settings) -> Data:
    n, d = settings["n"], settings["d"]
    rng = np.random.default_rng([7, d])
    theta = rng.standard_normal(d)
    X, fresh = rng.standard_normal((n, d)), rng.standard_normal((2000, d))
    for rows in (X, fresh):
        if settings["twin"]:
            rows[:, -1] = rows[:, 0] + settings["twin"] * rows[:, -1]
    return {"X": X, "y": X @ theta + rng.standard_normal(n), "fresh": fresh, "theta": theta}


_answers: dict[tuple, np.ndarray] = {}


def judge(settings: Settings, data: Data, peer: Peer, rows: int, answer: Any) -> dict[str, Any]:
    from benchmarks.reference import distance, ridge

    if peer.name == FLOOR:
        return {}
    alpha = peer.facts.get("alpha", 1.0)
    key = (*settings.values(), rows, alpha)
    if key not in _answers:
        _answers[key] = ridge(data["X"][:rows], data["y"][:rows], alpha)
    theta = np.asarray(answer, float).ravel()
    return {
        "error": distance(theta, _answers[key]),
        "prediction": float(np.sqrt(np.mean((data["fresh"] @ (theta - data["theta"])) ** 2))),
    }


def floor(data: Data, settings: Settings) -> Callable[[], Any]:
    """Compute one triangle of X'X without a copy of X, in the longest calls that BLAS allows."""
    from scipy.linalg.blas import dsyrk

    X = np.ascontiguousarray(data["X"])
    return lambda: dsyrk(1.0, X.T)[0, 0]


def _blocks(data: Data, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    X, y = data["X"], data["y"]
    return [(X[i : i + length], y[i : i + length]) for i in range(0, len(X), length)]


# ---- kalprox ---------------------------------------------------------------------------------------


def _from_rows(data: Data, settings: Settings) -> Callable[[], Any]:
    from kalprox import Information

    return lambda: Information.from_rows(data["X"], data["y"]).solve()


def _fold(length: int) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from kalprox import Information

        def go() -> Any:
            info = Information.zero(settings["d"])
            for X, y in _blocks(data, length):
                info = info.fold(X, y)
            return info.solve()

        return go

    return build


def _estimator(length: int | None, **options: Any) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from kalprox import KalproxRegressor

        def go() -> Any:
            model = KalproxRegressor(fit_intercept=False, **({"penalty": "ridge"} | options))
            if length is None:
                return model.fit(data["X"], data["y"]).coef_
            for X, y in _blocks(data, length):
                model.partial_fit(X, y)
            return model.coef_

        return go

    return build


def _prequential(length: int) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from kalprox import KalproxRegressor

        def go() -> Any:
            model = KalproxRegressor(fit_intercept=False, penalty="ridge")
            for X, y in _blocks(data, length):
                model.prequential(X, y)
            return model.coef_

        return go

    return build


# ---- SciPy, scikit-learn and River ------------------------------------------------------------------------


def _scipy_qr(data: Data, settings: Settings) -> Callable[[], Any]:
    """Householder QR of all rows at once, which shows the accuracy that float64 allows."""
    import scipy.linalg

    def go() -> Any:
        d = settings["d"]
        T = scipy.linalg.qr(np.column_stack([data["X"], data["y"]]), mode="r", overwrite_a=True, check_finite=False)[0]
        return scipy.linalg.solve_triangular(T[:d, :d], T[:d, d])

    return go


def _sklearn(name: str, **options: Any) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from sklearn import linear_model

        return lambda: getattr(linear_model, name)(fit_intercept=False, **options).fit(data["X"], data["y"]).coef_

    return build


def _sgd(length: int | None) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from sklearn.linear_model import SGDRegressor

        def go() -> Any:
            model = SGDRegressor(alpha=1 / len(data["y"]), fit_intercept=False, random_state=0, max_iter=1, tol=None)
            if length is None:
                return model.fit(data["X"], data["y"]).coef_
            for X, y in _blocks(data, length):
                model.partial_fit(X, y)
            return model.coef_

        return go

    return build


def _river_many(data: Data, settings: Settings) -> Callable[[], Any]:
    import pandas
    from river.linear_model import BayesianLinearRegression

    frames = [(pandas.DataFrame(X), pandas.Series(y)) for X, y in _blocks(data, BLOCK)]

    def go() -> Any:
        model = BayesianLinearRegression()
        for X, y in frames:
            model.learn_many(X, y)
        return [model.predict_one({j: 1.0}) for j in range(settings["d"])]

    return go


# ---- row by row ------------------------------------------------------------------------------------


def _river_one(data: Data, settings: Settings) -> Callable[[], Any]:
    from river.linear_model import BayesianLinearRegression

    rows = [(dict(enumerate(x.tolist())), float(y)) for x, y in zip(data["X"], data["y"], strict=True)]

    def go() -> Any:
        model = BayesianLinearRegression()
        for x, y in rows:
            model.learn_one(x, y)
        return [model.predict_one({j: 1.0}) for j in range(settings["d"])]

    return go


def _padasip(data: Data, settings: Settings) -> Callable[[], Any]:
    from padasip.filters import FilterRLS

    def go() -> Any:
        rls = FilterRLS(settings["d"], mu=1.0, eps=1.0, w="zeros")
        rls.run(data["y"], data["X"])
        return rls.w

    return go


def _filterpy(data: Data, settings: Settings) -> Callable[[], Any]:
    from filterpy.kalman import KalmanFilter

    def go() -> Any:
        kf = KalmanFilter(dim_x=settings["d"], dim_z=1)
        for x, y in zip(data["X"], data["y"], strict=True):
            kf.update(y, H=x[None])
        return kf.x

    return go


def _pykalman(data: Data, settings: Settings) -> Callable[[], Any]:
    from pykalman import KalmanFilter

    d = settings["d"]

    def go() -> Any:
        kf = KalmanFilter(
            transition_matrices=np.eye(d),
            transition_covariance=np.zeros((d, d)),
            observation_matrices=data["X"][:, None],
            observation_covariance=np.eye(1),
            initial_state_mean=np.zeros(d),
            initial_state_covariance=np.eye(d),
        )
        return kf.filter(data["y"][:, None])[0][-1]

    return go


def _dynamax(data: Data, settings: Settings) -> Callable[[], Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from dynamax.linear_gaussian_ssm.inference import lgssm_filter, make_lgssm_params

    d = settings["d"]
    eye = jnp.eye(d)

    @jax.jit
    def last(X: Any, y: Any) -> Any:
        params = make_lgssm_params(jnp.zeros(d), eye, eye, 0 * eye, X[:, None], jnp.eye(1))
        return lgssm_filter(params, y[:, None]).filtered_means[-1]

    X, y = jnp.asarray(data["X"]), jnp.asarray(data["y"])
    return lambda: np.asarray(last(X, y))


def _statsmodels(data: Data, settings: Settings) -> Callable[[], Any]:
    from statsmodels.regression.recursive_ls import RecursiveLS

    return lambda: RecursiveLS(data["y"], data["X"]).fit().params


def _cuthbert(data: Data, settings: Settings) -> Callable[[], Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from cuthbert import filter as run
    from cuthbert.gaussian import kalman

    d = settings["d"]
    eye, zero, one = jnp.eye(d), jnp.zeros(d), jnp.eye(1)

    @jax.jit
    def last(X: Any, y: Any) -> Any:
        kf = kalman.build_filter(
            zero, eye, lambda row: (eye, zero, 0 * eye), lambda row: (row[0][None], jnp.zeros(1), one, row[1][None])
        )
        return run(kf, (X, y), kf.init_prepare()).mean[-1]

    X, y = jnp.asarray(data["X"]), jnp.asarray(data["y"])
    return lambda: np.asarray(last(X, y))


_FREE = {"alpha": 0.0}
PEERS = [
    Peer(FLOOR, "scipy", floor),
    Peer("kalprox Information.from_rows", "kalprox", _from_rows, facts=_FREE),
    Peer("kalprox Information.fold, 4,096", "kalprox", _fold(BLOCK), facts=_FREE),
    Peer("kalprox Information.fold, 1,024", "kalprox", _fold(1024), facts=_FREE),
    Peer("kalprox KalproxRegressor.fit", "kalprox", _estimator(None)),
    Peer("kalprox partial_fit, 4,096", "kalprox", _estimator(BLOCK), note="every row scored"),
    Peer("kalprox partial_fit, 4,096, diagnose=False", "kalprox", _estimator(BLOCK, diagnose=False)),
    Peer("kalprox prequential, 4,096", "kalprox", _prequential(BLOCK), most_d=300, note="each row predicted exactly"),
    Peer("kalprox partial_fit, 64", "kalprox", _estimator(BATCH), at_most(5000), most_d=300),
    Peer("SciPy qr of all rows", "scipy", _scipy_qr, most_d=300, facts=_FREE),
    Peer("scikit-learn Ridge", "scikit-learn", _sklearn("Ridge", alpha=1.0)),
    Peer("scikit-learn LinearRegression", "scikit-learn", _sklearn("LinearRegression"), facts=_FREE),
    Peer("scikit-learn SGDRegressor, one call", "scikit-learn", _sgd(None), note="one pass"),
    Peer("scikit-learn SGDRegressor, 4,096", "scikit-learn", _sgd(BLOCK), note="one pass"),
    Peer("scikit-learn SGDRegressor, 64", "scikit-learn", _sgd(BATCH), at_most(20_000), note="one pass"),
    Peer("River BayesianLinearRegression.learn_many, 4,096", "river", _river_many),
    Peer("River BayesianLinearRegression.learn_one", "river", _river_one, at_most(5000, 2e10)),
    Peer("padasip FilterRLS", "padasip", _padasip, at_most(3000, 4e9)),
    Peer("filterpy KalmanFilter.update", "filterpy", _filterpy, at_most(3000, 4e9), most_d=300),
    Peer("pykalman KalmanFilter.filter", "pykalman", _pykalman, at_most(1000, 2e9), most_d=300),
    Peer("dynamax lgssm_filter", "dynamax", _dynamax, at_most(3000, 2e9), most_d=300),
    Peer("statsmodels RecursiveLS", "statsmodels", _statsmodels, at_most(600, 4e8), most_d=100, facts=_FREE),
    Peer("cuthbert Kalman filter", "cuthbert", _cuthbert, at_most(600, 4e8), most_d=100),
]
