"""A network on two real streams, each block of rows predicted before it is learned."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import stats

import kalprox as kp
from benchmarks.large.measures import LEVEL, STRUCTURES, megabytes, table
from benchmarks.large.optimizers import RATES, one_pass
from benchmarks.living.bank import bikeshare, flights
from kalprox.large.net import Dense, DenseStart

FIRST, BLOCK, BATCH = 1000, 100, 10
HIDDEN = (50,)
ROWS = {"Bikeshare": 8500, "flights": 30_000}
Forecasts = tuple[np.ndarray, np.ndarray]


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return the scores of all models on both streams, of the rows after the first 1,000."""
    found = []
    for stream, rows in ROWS.items():
        n = min(2500, rows) if quick else rows
        X, y = (a[:n] for a in (bikeshare() if stream == "Bikeshare" else flights(n)))
        X = X[:, X.std(axis=0) > 0]
        found += [{"stream": stream, "rows": len(y), "inputs": X.shape[1], **one} for one in _models(X, y)]
    return found


def _models(X: np.ndarray, y: np.ndarray) -> Iterator[dict[str, Any]]:
    linear = kp.KalproxRegressor(standardize=True, penalty="ridge")
    yield {"model": "linear, KalproxRegressor", **_prequential(linear, X, y)}
    for name in ("diagonal", "rank 5", "rank 20", "rank 100", "last 51, rank 20"):
        structure = kp.structures.LastLayer(51, rank=20) if name.startswith("last") else STRUCTURES[name](0)
        net = kp.KalproxNetRegressor(HIDDEN, structure=structure)
        found = _prequential(net, X, y)
        d = net._state.data.d
        yield {"model": f"network, {name}", "d": d, "mb": megabytes(net._state.data), **found}
    for name in RATES:
        yield _best_rate(name, X, y)


def _prequential(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    model.partial_fit(X[:FIRST], y[:FIRST])
    means, stds, seconds = [], [], 0.0
    for start in range(FIRST, len(y), BLOCK):
        rows = slice(start, start + BLOCK)
        mean, std = model.predict(X[rows], return_std=True)
        means, stds = [*means, mean], [*stds, std]
        begin = time.perf_counter()
        model.partial_fit(X[rows], y[rows])
        seconds += time.perf_counter() - begin
    return _scores(y[FIRST:], np.concatenate(means), np.concatenate(stds)) | {"us": seconds / (len(y) - FIRST) * 1e6}


def _scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    z = (y - mean) / std
    return {
        "rmse": np.sqrt(np.mean((y - mean) ** 2)),
        "predictive_coverage": np.mean(abs(z) < stats.norm.ppf((1 + LEVEL) / 2)),
        "predictive_z": np.sqrt(np.mean(z**2)),
        "log_score": np.mean(stats.norm.logpdf(z) - np.log(std)),
    }


def _best_rate(name: str, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the scores of the learning rate with the smallest error; the std is that of all errors before."""
    import jax

    apply = jax.vmap(Dense("tanh"), (None, 0))

    def loss(params: Any, X: Any, y: Any) -> Any:
        return ((apply(params, X)[:, 0] - y) ** 2).mean()

    center, scale = X[:FIRST].mean(axis=0), X[:FIRST].std(axis=0)
    level, spread = y[:FIRST].mean(), y[:FIRST].std()
    inputs = ((X - center) / np.where(scale > 0, scale, 1)).astype(np.float32)
    targets = ((y - level) / spread).astype(np.float32)
    start = jax.tree_util.tree_map(np.float32, DenseStart(HIDDEN, "tanh")(0, X.shape[1], 1))
    predict: Callable[..., Any] = jax.jit(apply)
    best: dict[str, Any] = {"rmse": np.inf}
    for rate in RATES[name]:
        begin = time.perf_counter()
        passed, _ = one_pass(name, rate, loss, start, inputs, targets, BATCH)
        us = (time.perf_counter() - begin) / len(y) * 1e6
        blocks = range(FIRST, len(y), BLOCK)
        means = [np.asarray(predict(passed[i // BATCH], inputs[i : i + BLOCK]))[:, 0] for i in blocks]
        mean = level + spread * np.concatenate(means)
        errors = np.r_[[spread**2], (y[FIRST:] - mean) ** 2]
        past = np.sqrt(np.cumsum(errors) / np.arange(1, len(errors) + 1))[:-1]
        found = _scores(y[FIRST:], mean, np.repeat(past[::BLOCK], BLOCK)[: len(mean)])
        if found["rmse"] < best["rmse"]:
            best = {"model": f"network, {name}, best rate of five ({rate:g})", "us": us, **found}
    return best


def parts(numbers: list[dict[str, Any]]) -> dict[str, str]:
    """Return one table for each stream."""
    found = {}
    for stream in ROWS:
        lines = [
            ([one["model"], f"{one['d']:,}" if one.get("d") else "", f"{one['rmse']:.2f}"], one)
            for one in numbers
            if one["stream"] == stream
        ]
        found[f"streams {stream}"] = table(["", "parameters", "rmse"], lines)
    return found
