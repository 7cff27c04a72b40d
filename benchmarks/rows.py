"""(d) One row at a time: learn a row, predict the next. Each peer gets the rows in its own input format.

`error` is the relative distance of the final coefficients to the ridge solution. `prediction` is the root mean square
error of the predictions over the second half of the stream, in units of the noise.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import FLOOR, Case, Data, Peer, Settings, at_most
from benchmarks.linear import floor
from kalprox import penalties


def cases() -> list[Case]:
    ridge = tuple(peer.name for peer in PEERS if peer.name not in _SETTINGS)
    found = [Case("one row, then one prediction", {"d": 50, "n": 2500}, ridge)]
    for d in (20, 50):
        settings = {"d": d, "n": 400, "before": 2600}
        found.append(Case("one row, then one prediction, by setting", settings, _BY_SETTING))
    return found


def data(settings: Settings) -> Data:
    from kalprox.paper import problems

    before = settings.get("before", 0)
    rows = problems.ridge(before + settings["n"], settings["d"], 3)
    first = {"X_before": rows.X[:before], "y_before": rows.y[:before]}
    return {"X": rows.X[before:], "y": rows.y[before:], "theta": rows.theta, **first}


def judge(settings: Settings, data: Data, peer: Peer, rows: int, answer: Any) -> dict[str, Any]:
    from benchmarks.reference import distance, ridge

    if peer.name == FLOOR or answer is None:
        return {}
    theta, predicted = np.asarray(answer[0], float).ravel(), np.asarray(answer[1], float)
    X, y = data["X"][:rows], data["y"][:rows]
    off = (y[1:] - predicted[: rows - 1])[rows // 2 :]
    return {"error": distance(theta, ridge(X, y, 1.0)), "prediction": float(np.sqrt(np.mean(off**2)))}


def _kalprox(with_std: bool = False, **options: Any) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from kalprox import KalproxRegressor

        X, y = data["X"], data["y"]
        rows = [(X[i : i + 1], y[i : i + 1], X[i + 1 : i + 2]) for i in range(len(y) - 1)]

        def go() -> Any:
            model, out = KalproxRegressor(fit_intercept=False, **({"penalty": "ridge"} | options)), []
            for x, t, coming in rows:
                model.partial_fit(x, t)
                out.append(model.predict(coming, return_std=True)[0][0] if with_std else model.predict(coming)[0])
            model.partial_fit(X[-1:], y[-1:])
            return model.coef_, out

        return go

    return build


def _river(with_dist: bool) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from river.linear_model import BayesianLinearRegression

        xs = [dict(enumerate(x.tolist())) for x in data["X"]]
        ys = data["y"].tolist()

        def go() -> Any:
            model, out = BayesianLinearRegression(), []
            for i in range(len(ys) - 1):
                model.learn_one(xs[i], ys[i])
                predicted = model.predict_one(xs[i + 1], with_dist=with_dist)
                out.append(predicted.mu if with_dist else predicted)
            model.learn_one(xs[-1], ys[-1])
            return [model.predict_one({j: 1.0}) for j in range(settings["d"])], out

        return go

    return build


def _padasip(data: Data, settings: Settings) -> Callable[[], Any]:
    from padasip.filters import FilterRLS

    X, y = data["X"], data["y"]

    def go() -> Any:
        rls, out = FilterRLS(settings["d"], mu=1.0, eps=1.0, w="zeros"), []
        for i in range(len(y) - 1):
            rls.adapt(y[i], X[i])
            out.append(rls.predict(X[i + 1]))
        rls.adapt(y[-1], X[-1])
        return rls.w, out

    return go


def _setting(convert: Callable[..., tuple[Any, ...]], **options: Any) -> Callable[[Data, Settings], Callable[[], Any]]:
    """One row and one prediction by a model that has learned others before; the rows are given as `convert` says."""

    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from kalprox import KalproxRegressor

        X, y, first = data["X"], data["y"], data["y_before"]
        if options.get("targets"):
            y, first = (np.column_stack([a, 2 * a, -a]) for a in (y, first))
        begun = KalproxRegressor(
            **({"penalty": "ridge"} | {name: value for name, value in options.items() if name != "targets"})
        )
        begun.partial_fit(*convert(data["X_before"], first)[:2])
        rows = [convert(X[i : i + 1], y[i : i + 1]) for i in range(len(y))]

        def go() -> None:
            model = copy.deepcopy(begun)
            for x, *rest in rows:
                model.predict(x)
                model.partial_fit(x, *rest)

        return go

    return build


def _arrays(X: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    return X, y


def _lists(X: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    return X.tolist(), y.tolist()


def _frames(X: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    import pandas as pd

    return pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]), pd.Series(y)


def _weighted(X: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    return X, y, np.full(len(y), 2.0)


_BY_NAME: dict[str, tuple[Callable[..., tuple[Any, ...]], dict[str, Any]]] = {
    "ridge": (_arrays, {}),
    "lists": (_lists, {}),
    "frames": (_frames, {}),
    "sample_weight": (_weighted, {}),
    "three targets": (_arrays, {"targets": True}),
    "forget=0.999": (_arrays, {"forget": 0.999}),
    "standardize=True": (_arrays, {"standardize": True}),
    "penalty='l1'": (_arrays, {"penalty": "l1"}),
    "penalty='elasticnet'": (_arrays, {"penalty": "elasticnet"}),
    "penalty='smooth_l1'": (_arrays, {"penalty": "smooth_l1"}),
    "penalty='box'": (_arrays, {"penalty": penalties.Box(0.0, 1.0)}),
    "alpha='auto'": (_arrays, {"alpha": "auto"}),
}
_SETTINGS = {f"kalprox, {name}": how for name, how in _BY_NAME.items()}
_BY_SETTING = (FLOOR, *_SETTINGS)

PEERS = [
    Peer(FLOOR, "scipy", floor),
    Peer("kalprox KalproxRegressor", "kalprox", _kalprox(), note="each row judged before it is learned"),
    Peer("kalprox KalproxRegressor, diagnose=False", "kalprox", _kalprox(diagnose=False)),
    Peer("kalprox KalproxRegressor, return_std", "kalprox", _kalprox(True), at_most(500), note="judged"),
    Peer("River BayesianLinearRegression", "river", _river(False)),
    Peer("River BayesianLinearRegression, with_dist", "river", _river(True)),
    Peer("padasip FilterRLS", "padasip", _padasip),
    *(Peer(name, "kalprox", _setting(convert, **options)) for name, (convert, options) in _SETTINGS.items()),
]
