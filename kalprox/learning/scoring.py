"""The prequential score of a learner: of predictions made before the rows are learned."""

from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.calibration import Calibration
from kalprox.predictive import Predictive
from kalprox.sources import Block

__all__ = ["is_due", "scored", "update"]

_JUDGED = 512, 1 / 16  # rows of a batch that are scored, or share of it: a std costs twice as much as learning a row
_ALL_UNTIL = 16384  # every batch is scored up to this number of rows; after that
_EVERY = 16, 32768, 64  # one batch in 16, but at least one per 32,768 rows or 64 rows per column, since it costs O(d^3)


def is_due(score: Calibration, before: int, after: int, d: int) -> bool:
    """Whether to score a batch that increases the number of learned rows from `before` to `after`.

    The decision depends on the score and the counts alone, so that a resumed stream gives the same result.
    """
    every = min(max(_EVERY[0] * (after - before), 1), max(_EVERY[1], _EVERY[2] * d))
    return before < _ALL_UNTIL or before // every != after // every or float(score.rows) == 0


def scored(score: Calibration, belief: Any, block: Block) -> Calibration:
    """Add the predictions of a block to `score`: of all its rows, or of an evenly spaced sample of a long block."""
    X, y, weights = block.X, block.y, block.weights
    most = max(_JUDGED[0], int(_JUDGED[1] * len(y)))
    if len(y) > most:
        some = np.linspace(0, len(y) - 1, most).astype(int)
        X, y, weights = X[some], y[some], None if weights is None else weights[some]
    return update(score, belief.predict(X), y, weights)


def update(
    score: Calibration, predicted: Predictive, y: Array, weights: Array | None, together: Array | None = None
) -> Calibration:
    """Add predictions of y, of shape (n,) or (n, k), to `score`, target by target."""
    n = len(y)
    dof = getattr(predicted, "dof", np.inf)
    if np.ndim(dof) < 2:
        dof = np.broadcast_to(dof, (n, *y.shape[1:])) if np.ndim(dof) else np.full((n, *y.shape[1:]), dof)
    columns = (np.reshape(a, (n, -1)).T for a in (predicted.mean, predicted.std, y, dof))
    for mean, std, target, dof_ in zip(*columns, strict=True):
        score = score.update(mean, std, target, dof_, weights, together=together)
    return score
