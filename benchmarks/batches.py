"""Short batches: `partial_fit` of 16 to 4,096 rows at a time, every row scored, beside SGDRegressor's.

*long* streams go on with 65,536 rows after as many, learned before the clock starts, so that folds, new estimates for
the score and the memory of the buffer have the share of the time that they have in the long run; *new* ones are the
first 8,192 rows of a stream.
`error` is the relative distance of the final coefficients to the ridge solution.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import FLOOR, Case, Data, Peer, Settings
from benchmarks.linear import floor

_BEFORE = 65_536


def cases() -> list[Case]:
    found = []
    for d in (10, 30, 100):
        for size in (16, 64, 256, 512, 1024, 4096):
            long = {"d": d, "n": 65_536, "batch": size, "before": _BEFORE}
            found.append(Case(f"batches of {size}, long stream", long))
            if size in (16, 256, 1024):
                found.append(Case(f"batches of {size}, new stream", {"d": d, "n": 8192, "batch": size, "before": 0}))
    return found


def data(settings: Settings) -> Data:
    from kalprox.paper import problems

    rows = problems.ridge(settings["n"] + settings["before"], settings["d"], 5)
    return {"X": rows.X, "y": rows.y, "theta": rows.theta}


def judge(settings: Settings, data: Data, peer: Peer, rows: int, answer: Any) -> dict[str, Any]:
    from benchmarks.reference import distance, ridge

    return {} if peer.name == FLOOR else {"error": distance(np.ravel(answer), ridge(data["X"], data["y"], 1.0))}


def _streamed(make: Callable[[], Any]) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        X, y, before = data["X"], data["y"], settings["before"]
        starts = range(before, len(y), settings["batch"])
        batches = [(X[i : i + settings["batch"]], y[i : i + settings["batch"]]) for i in starts]
        begun = make()
        for i in range(0, before, settings["batch"]):
            begun.partial_fit(X[i : i + settings["batch"]], y[i : i + settings["batch"]])

        def go() -> Any:
            model = copy.deepcopy(begun)
            for batch in batches:
                model.partial_fit(*batch)
            return model.coef_

        return go

    return build


def _kalprox(**options: Any) -> Any:
    from kalprox import KalproxRegressor

    return KalproxRegressor(fit_intercept=False, **({"penalty": "ridge"} | options))


def _sgd() -> Any:
    from sklearn.linear_model import SGDRegressor

    return SGDRegressor(fit_intercept=False, alpha=0.0, learning_rate="constant", eta0=0.001)


PEERS = [
    Peer(FLOOR, "scipy", floor),
    Peer("kalprox partial_fit", "kalprox", _streamed(_kalprox), note="every row scored"),
    Peer("kalprox partial_fit, diagnose=False", "kalprox", _streamed(lambda: _kalprox(diagnose=False))),
    Peer("scikit-learn SGDRegressor", "scikit-learn", _streamed(_sgd), note="one pass"),
]
