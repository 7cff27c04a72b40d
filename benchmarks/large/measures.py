"""What is measured of a structure: time, memory, the error of the mean, and how honest the standard deviations are."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

import kalprox as kp
from benchmarks.table import grid

__all__ = ["LEVEL", "STRUCTURES", "learned", "of_coefficients", "of_predictions", "table"]

LEVEL = 0.9
STRUCTURES: dict[str, Callable[[int], Any]] = {
    "dense": lambda d: "dense",
    "diagonal": lambda d: "diagonal",
    "rank 5": lambda d: kp.structures.LowRank(5),
    "rank 20": lambda d: kp.structures.LowRank(20),
    "rank 100": lambda d: kp.structures.LowRank(100),
    "blocks of 50": lambda d: kp.structures.Blocks([50] * (d // 50)),
    "last 50, rank 20": lambda d: kp.structures.LastLayer(50, rank=20),
}
_COLUMNS = {
    "us": ("µs a row", "{:,.0f}"),
    "mb": ("state, MB", "{:,.2f}"),
    "error": ("error of the mean", "{:.3f}"),
    "coverage": ("coefficients covered", "{:.3f}"),
    "rms_z": ("rms z of coefficients", "{:.2f}"),
    "std_ratio": ("std of coefficients / exact", "{:.2f}"),
    "predictive_ratio": ("std of f / exact", "{:.2f}"),
    "predictive_coverage": ("new rows covered", "{:.3f}"),
    "predictive_z": ("rms z of new rows", "{:.2f}"),
    "log_score": ("log score", "{:.4f}"),
}


def learned(alg: Any, state: Any, X: np.ndarray, y: np.ndarray, block: int) -> tuple[Any, float]:
    """Return the state after all rows but the first block, and the microseconds that each took."""
    state = alg.step(state, X[:block], y[:block])
    begin = time.perf_counter()
    for start in range(block, len(y), block):
        state = alg.step(state, X[start : start + block], y[start : start + block])
    _ = state.mean
    return state, (time.perf_counter() - begin) / max(1, len(y) - block) * 1e6


def megabytes(state: Any) -> float:
    """Return the size of the arrays of a state."""
    import jax

    return sum(np.asarray(leaf).nbytes for leaf in jax.tree_util.tree_leaves(state)) / 1e6


def of_coefficients(state: Any, truth: np.ndarray, exact: Any) -> dict[str, float]:
    """Compare the mean and the standard deviations of theta with the truth and, if it is there, an exact posterior."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kp.structures.UnderstatedWarning)
        std = np.sqrt(np.asarray(state.var()))
    mean, z = np.asarray(state.mean), stats.norm.ppf((1 + LEVEL) / 2)
    away = (truth - mean) / std
    found = {"coverage": np.mean(abs(away) < z), "rms_z": np.sqrt(np.mean(away**2)), "mb": megabytes(state)}
    found["error"] = np.linalg.norm(mean - (truth if exact is None else exact.mean)) / np.linalg.norm(truth)
    if exact is not None:
        found["std_ratio"] = np.mean(std / np.sqrt(exact.var()))
    return found


def of_predictions(predicted: Any, y: np.ndarray) -> dict[str, float]:
    """Score predictive distributions of new rows."""
    low, high = (np.asarray(predicted.quantile(p)) for p in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    z = (y - np.asarray(predicted.mean)) / np.asarray(predicted.std)
    return {
        "predictive_coverage": np.mean((low <= y) & (y <= high)),
        "predictive_z": np.sqrt(np.mean(z**2)),
        "log_score": np.mean(np.asarray(predicted.log_prob(y))),
    }


def table(first: list[str], lines: list[tuple[list[str], dict[str, Any]]], leave: tuple[str, ...] = ()) -> str:
    """Return a table with the columns in which any line has a value."""
    shown = [c for c in _COLUMNS if c not in leave and any(found.get(c) is not None for _, found in lines)]
    cells = [
        [*names, *("" if found.get(c) is None else _COLUMNS[c][1].format(found[c]) for c in shown)]
        for names, found in lines
    ]
    return grid([*first, *(_COLUMNS[c][0] for c in shown)], cells)
