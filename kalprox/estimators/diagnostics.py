"""The score that an estimator keeps of itself: each batch predicted before it is learned."""

from typing import Any

import numpy as np
import scipy.sparse

from kalprox.calibration import Calibration
from kalprox.estimators.checks import Rows
from kalprox.estimators.waiting import Waiting

__all__ = ["judged", "judged_waiting"]

JUDGED = 512, 1 / 16  # rows of a batch that are judged, or share of it: a std costs twice what learning a row does


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
