"""forget="auto" beside every fixed way to forget, on streams that drift and on the same rows in random order."""

import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import grid

__all__ = ["measure", "parts"]

FIRST, DAY = 1008, 24  # the first rows are not scored
BLOCK = 500
FACTORS = (1.0, 0.9995, 0.999, 0.998, 0.995, 0.99, 0.96)
STEPS = (0.001, 0.01, 0.1)
SMOOTHING = (None, 0.999)
RATES = {"River LogisticRegression": (0.01, 0.03, 0.1), "Vowpal Wabbit": (0.5, 2.0, 5.0)}


def bikeshare() -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and the number of bikers of each hour: month, hour and weather, and the counts before."""
    import pandas as pd

    file = Path(__file__).parents[2] / "examples" / "bikeshare.csv.gz"
    with gzip.open(file) as opened:
        rows = pd.read_csv(opened)
    y = rows["bikers"].to_numpy(float)
    levels = pd.get_dummies(rows[["mnth", "hr", "weathersit"]].astype(str), drop_first=True)
    X = np.column_stack([levels, rows[["workingday", "temp"]], np.roll(y, 1), np.roll(y, DAY)]).astype(float)
    return X[DAY:], y[DAY:]


def flights(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first rows of the flights of 2013, by day, and their arrival delays."""
    from benchmarks.real_streams import flight_rows

    X, y, _ = flight_rows()
    X = X[:rows]
    return X[:, X.any(axis=0)], y[:rows]


def shuffled(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


def score(X: np.ndarray, y: np.ndarray, forget: Any) -> tuple[float, float, Any]:
    """Return the mean log score of the rows from FIRST on, the time of a row in microseconds, and the model."""
    from kalprox import KalproxRegressor

    model = KalproxRegressor(forget=forget, penalty="ridge")
    model.partial_fit(X[:FIRST], y[:FIRST])
    before, begin = float(model.diagnostics_.log_score), time.process_time()
    for start in range(FIRST, len(y), BLOCK):
        model.partial_fit(X[start : start + BLOCK], y[start : start + BLOCK])
    spent = time.process_time() - begin
    rows = len(y) - FIRST
    return (float(model.diagnostics_.log_score) - before) / rows, 1e6 * spent / rows, model


def river(X: np.ndarray, y: np.ndarray, smoothing: float | None) -> float:
    """Return the mean log score of River's model, given the noise variance that least squares finds in all rows."""
    from river.linear_model import BayesianLinearRegression
    from scipy import stats

    residual = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    model = BayesianLinearRegression(beta=1 / residual.var(), smoothing=smoothing)
    columns, found = [f"x{j}" for j in range(X.shape[1])], []
    for i in range(len(y)):
        x = dict(zip(columns, X[i].tolist(), strict=True))
        if i >= FIRST:
            said = model.predict_one(x, with_dist=True)
            found.append(stats.norm.logpdf(y[i], said.mu, max(said.sigma, 1e-9)))
        model.learn_one(x, y[i])
    return float(np.mean(found))


def one_stream(X: np.ndarray, y: np.ndarray, *, with_river: bool) -> dict[str, Any]:
    from kalprox.forgetting import RandomWalk

    fixed = {f"{factor:g}" if factor < 1 else "none": factor for factor in FACTORS}
    fixed |= {f"intercept {step:g}": RandomWalk(0, intercept=step) for step in STEPS}
    scores = {name: score(X, y, way)[:2] for name, way in fixed.items()}
    auto, us, model = score(X, y, "auto")
    found: dict[str, Any] = {"rows": len(y), "inputs": X.shape[1], "auto": auto, "us": us}
    found["fixed"] = {name: value for name, (value, _) in scores.items()}
    found["fixed us"] = sum(scores[name][1] for name in model.forget_weights_.names)
    rows, names, weights = model.forget_weights_
    found["weights"] = dict(zip(names, weights[rows >= FIRST].mean(axis=0).tolist(), strict=True))
    if with_river:
        found["river"] = {str(smoothing): river(X, y, smoothing) for smoothing in SMOOTHING}
    return found


def classes(most: int) -> dict[str, Any]:
    """Return the log loss of late flights, each predicted before it is learned, and that of the best peers."""
    from benchmarks.classes import _river, _vowpal_wabbit, late_flights, log_loss
    from kalprox import KalproxClassifier

    rows = late_flights(quick=True)
    X, y = rows.X[:most], rows.y[:most]
    found: dict[str, Any] = {"rows": len(y), "inputs": X.shape[1]}
    for forget in ("auto", 1.0):
        model, p = KalproxClassifier(forget=forget), np.full(len(y), 0.5)
        for i in range(len(y)):
            if i:
                p[i] = model.predict_proba(X[i : i + 1])[0, 1]
            model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1])
        found[f"kalprox, forget={forget!r}"] = log_loss(y, p)
    peers: dict[str, Callable[[float], Any]] = {"River LogisticRegression": _river, "Vowpal Wabbit": _vowpal_wabbit}
    for name, build in peers.items():
        losses = {rate: log_loss(y, build(rate)(X, y)) for rate in RATES[name]}
        best = min(losses, key=lambda rate: losses[rate])
        found[f"{name}, rate {best:g}, the best of {len(losses)}"] = losses[best]
    return found


def measure(quick: bool) -> dict[str, Any]:
    """Measure all streams; with `quick`, the first rows of each, and River's model on Bikeshare only."""
    X, y = bikeshare()
    bikes = (X[:4500], y[:4500]) if quick else (X, y)
    delays = flights(6_000 if quick else 100_000)
    return {
        "streams": {
            "Bikeshare": one_stream(*bikes, with_river=True),
            "flights": one_stream(*delays, with_river=not quick),
            "Bikeshare, shuffled": one_stream(*shuffled(*bikes), with_river=False),
            "flights, shuffled": one_stream(*shuffled(*delays), with_river=False),
        },
        "classes": classes(4_000 if quick else 20_000),
    }


def parts(numbers: dict[str, Any]) -> dict[str, str]:
    """Return the tables."""
    streams = numbers["streams"]
    head = ["", *streams]

    def best(found: dict[str, float]) -> str:
        name = max(found, key=lambda one: found[one])
        return f"{found[name]:.4f} ({name})"

    rows = [
        ["rows", *(f"{one['rows']:,}" for one in streams.values())],
        ["inputs", *(str(one["inputs"]) for one in streams.values())],
        ['forget="auto"', *(f"**{one['auto']:.4f}**" for one in streams.values())],
        ["no forgetting", *(f"{one['fixed']['none']:.4f}" for one in streams.values())],
        [
            "the best factor in hindsight",
            *(best({k: v for k, v in one["fixed"].items() if "intercept" not in k}) for one in streams.values()),
        ],
        [
            "the best walk of the intercept in hindsight",
            *(best({k: v for k, v in one["fixed"].items() if "intercept" in k}) for one in streams.values()),
        ],
        [
            "auto less the best, in all rows",
            *(
                f"{(one['auto'] - max(one['fixed'].values())) * (one['rows'] - FIRST):+,.0f}"
                for one in streams.values()
            ),
        ],
        ["River, the best smoothing", *(best(one["river"]) if "river" in one else "" for one in streams.values())],
        ["auto, µs a row", *(f"{one['us']:,.0f}" for one in streams.values())],
        ["its members one by one, µs a row", *(f"{one['fixed us']:,.0f}" for one in streams.values())],
    ]
    losses = [[name, f"{value:.4f}"] for name, value in numbers["classes"].items() if name not in ("rows", "inputs")]
    about = f"log loss of {numbers['classes']['rows']:,} rows"
    return {"bank": grid(head, rows), "bank classes": grid(["", about], losses)}
