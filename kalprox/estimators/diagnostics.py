"""The score that an estimator keeps of itself: each batch predicted before it is learned."""

from typing import Any

import numpy as np
import scipy.sparse

from kalprox.calibration import Calibration
from kalprox.estimators.checks import Rows
from kalprox.estimators.waiting import Waiting

__all__ = ["due", "judged", "judged_waiting"]

JUDGED = 512, 1 / 16  # rows of a batch that are judged, or share of it: a std costs twice what learning a row does
FIRST = 16384  # rows of which every batch is judged, and then
SELDOM = 16, 32768, 64  # one batch in so many, but one in so many rows, or rows a column: it needs a reading, O(d^3)


def due(score: Calibration, before: int, after: int, d: int) -> bool:
    """Whether a batch that takes the rows learned from `before` to `after` is judged: all of the first ones, later one
    in several. The score and the counts tell, so that a stream that is taken up again goes on as it would."""
    every = min(max(SELDOM[0] * (after - before), 1), max(SELDOM[1], SELDOM[2] * d))
    return before < FIRST or before // every != after // every or float(score.rows) == 0


def judged(score: Calibration, belief: Any, rows: Rows) -> Calibration:
    """`score`, and that of these rows as `belief` predicts them: all, or `JUDGED` of them, evenly spaced."""
    X, y, weights = rows
    most = max(JUDGED[0], int(JUDGED[1] * len(y)))
    if len(y) > most:
        some = np.linspace(0, len(y) - 1, most).astype(int)
        X, y, weights = X[some], y[some], None if weights is None else weights[some]
    X = X.toarray() if scipy.sparse.issparse(X) else X
    predicted = belief.predict(X), belief.std(X), y
    mean, std, y = (np.reshape(a, (len(X), -1)).T for a in predicted)
    for m, s, t, dof in zip(mean, std, y, np.broadcast_to(belief.noise.dof, len(y)), strict=True):
        score = score.update(m, s, t, dof, weights)
    return score


def judged_waiting(score: Calibration, waiting: Waiting) -> Calibration:
    """`score`, and that of the rows that wait, as they were predicted batch by batch."""
    if not waiting:
        return score
    _, y, mean, std, dof, together = waiting.all
    weights = np.where(together > 0, 1.0, 0.0)
    for m, s, t, d in zip(*(np.reshape(a, (len(waiting), -1)).T for a in (mean, std, y, dof)), strict=True):
        score = score.update(m, s, t, d, weights, together=together)
    return score
