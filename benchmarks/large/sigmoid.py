"""The paper's sigmoid: y = sigmoid(x' theta) + N(0, 1), AR(0.8) input, a tenth of the taps not zero."""

from typing import Any

import numpy as np

import kalprox as kp
from benchmarks.large.measures import STRUCTURES, learned, of_coefficients, of_predictions, table
from kalprox.paper.problems import sparse

ROWS = {50: 20_000, 500: 20_000, 5000: 20_000}
BLOCK, NEW = 500, 1000
DENSE_AT_MOST = 500


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return the measures of each structure and number of taps, in one pass."""
    found = []
    for d, n in ROWS.items():
        if quick:
            n = 4000 if d <= DENSE_AT_MOST else 1000
        size = min(1.0, 5 / d**0.5)  # so that the predictor has the same size for every d
        rows = sparse(n + NEW, d, size, 0)
        X, y = np.ascontiguousarray(rows.X), rows.y
        for name, structure in STRUCTURES.items():
            if name.startswith(("blocks", "last")) or (name == "dense" and d > (50 if quick else DENSE_AT_MOST)):
                continue
            alg = kp.proximal_filter(kp.models.GLM("sigmoid"), kp.regularizers.Zero(), structure=structure(d))
            state, us = learned(alg, alg.init(np.zeros(d), size**2 / 10), X[:n], y[:n], BLOCK)
            facts = of_coefficients(state, rows.theta, None) | of_predictions(state.predict(X[n:]), y[n:])
            found.append({"d": d, "n": n, "structure": name, "us": us, **facts})
    return found


def parts(numbers: list[dict[str, Any]]) -> dict[str, str]:
    """Return one table."""
    lines = [([f"{one['d']:,}", f"{one['n']:,}", one["structure"]], one) for one in numbers]
    return {"sigmoid": table(["d", "rows", "structure"], lines)}
