"""A linear problem whose posterior is known: what each structure loses of it."""

from typing import Any

import numpy as np

import kalprox as kp
from benchmarks.large.measures import STRUCTURES, learned, of_coefficients, of_predictions, table

SIZES = (50, 500, 2000)
BLOCK, NEW = 500, 1000
DENSE_AT_MOST = 500  # parameters at which every structure runs; above, the slow ones are left out
SLOW = ("blocks of 50",)


def rows(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs of an AR(0.8) along the columns, targets with noise of variance 1, and theta ~ N(0, 4 / d)."""
    rng = np.random.default_rng([seed, d])
    X = rng.normal(size=(n, d))
    for j in range(1, d):
        X[:, j] = 0.8 * X[:, j - 1] + 0.6 * X[:, j]
    theta = 2 / d**0.5 * rng.normal(size=d)
    return X, X @ theta + rng.normal(size=n), theta


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return the measures of each structure and number of parameters, in one pass over 4 d rows, at least 2,000."""
    found = []
    for d in SIZES[:2] if quick else SIZES:
        n = max(2000, 4 * d)
        X, y, theta = rows(n + NEW, d, 0)
        exact, exact_std = None, None
        for name, structure in STRUCTURES.items():
            if d > DENSE_AT_MOST and name in SLOW:
                continue
            alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Zero(), structure=structure(d))
            state, us = learned(alg, alg.init(np.zeros(d), 4 / d), X[:n], y[:n], BLOCK)
            predicted = state.predict(X[n:])
            std = np.sqrt(np.asarray(predicted.std) ** 2 - 1)
            if name == "dense":
                exact, exact_std = state, std
            facts = of_coefficients(state, theta, exact) | of_predictions(predicted, y[n:])
            found.append(
                {"d": d, "n": n, "structure": name, "us": us, "predictive_ratio": np.mean(std / exact_std), **facts}
            )
    return found


def parts(numbers: list[dict[str, Any]]) -> dict[str, str]:
    """Return one table."""
    lines = [([f"{one['d']:,}", one["structure"]], one) for one in numbers]
    return {"linear": table(["d", "structure"], lines)}
