"""Rows as dictionaries: the time of a row beside River's own linear models, and how well each predicts River's data."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.table import grid

SIZES = (10, 50)


def measure(quick: bool) -> dict[str, Any]:
    from river import datasets, evaluate, linear_model, metrics

    from kalprox.adapters.river import RiverClassifier, RiverRegressor

    models: dict[str, Callable[[], Any]] = {
        "kalprox": RiverRegressor,
        "kalprox, diagnose=True": lambda: RiverRegressor(diagnose=True),
        "River BayesianLinearRegression": linear_model.BayesianLinearRegression,
        "River LinearRegression": linear_model.LinearRegression,
    }
    rows, repeats = (2500, 2) if quick else (10_000, 5)
    times = {name: {str(d): _times(make, d, rows, repeats) for d in SIZES} for name, make in models.items()}
    errors = {
        name: evaluate.progressive_val_score(datasets.TrumpApproval(), make(), metrics.MAE()).get()
        for name, make in {**models, "kalprox, forget=0.95": lambda: RiverRegressor(forget=0.95)}.items()
        if "diagnose" not in name
    }
    losses = {
        name: evaluate.progressive_val_score(datasets.Phishing(), make(), metrics.LogLoss()).get()
        for name, make in {
            "kalprox": RiverClassifier,
            "River LogisticRegression": linear_model.LogisticRegression,
        }.items()
    }
    return {"rows": rows, "times": times, "errors": errors, "losses": losses}


def _times(make: Callable[[], Any], d: int, n: int, repeats: int) -> dict[str, float | None]:
    """The microseconds of processor time of a row, the least of several streams: learning, and predicting between."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=d) + rng.normal(size=n)).tolist()
    names = [f"x{j}" for j in range(d)]
    rows = [dict(zip(names, x, strict=True)) for x in X.tolist()]
    has_dist = type(make()).__name__ != "LinearRegression"
    found: dict[str, list[float]] = {"learn": [], "predict": [], "dist": []}
    for _ in range(repeats):
        model = make()
        begin = time.process_time()
        for x, target in zip(rows, y, strict=True):
            model.learn_one(x, target)
        found["learn"].append(time.process_time() - begin)
        for kind, options in (("predict", {}), ("dist", {"with_dist": True})):
            if kind == "dist" and not has_dist:
                continue
            model = make()
            spent = 0.0
            for x, target in zip(rows, y, strict=True):
                begin = time.process_time()
                model.predict_one(x, **options)
                model.learn_one(x, target)
                spent += time.process_time() - begin
            found[kind].append(spent)
    return {kind: 1e6 * min(spent) / n if spent else None for kind, spent in found.items()}


def parts(numbers: dict[str, Any]) -> dict[str, str]:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.0f}"

    rows = [
        [name, *(shown(found[str(d)][kind]) for d in SIZES for kind in ("learn", "predict", "dist"))]
        for name, found in numbers["times"].items()
    ]
    heads = [f"d = {d}: {what}" for d in SIZES for what in ("learn", "predict, learn", "with_dist, learn")]
    scores = [[name, f"{error:.3g}"] for name, error in numbers["errors"].items()]
    losses = [[name, f"{loss:.3f}"] for name, loss in numbers["losses"].items()]
    return {
        "rivers": grid(["µs a row", *heads], rows),
        "rivers errors": grid(["TrumpApproval, as it comes", "mean absolute error"], scores)
        + "\n\n"
        + grid(["Phishing, as it comes", "log loss"], losses),
    }
