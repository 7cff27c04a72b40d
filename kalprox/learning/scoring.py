"""Scores of predictions that were made before the rows were learned: of the learner itself, and of each alpha."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.calibration import Calibration
from kalprox.predictive import Predictive
from kalprox.sources import Block

__all__ = ["FEWEST_ROWS", "AlphaScores", "doubling_pieces", "is_due", "scored"]

_JUDGED = 512, 1 / 16  # rows of a batch that are judged, or share of it: a std costs twice what learning a row does
_ALL_UNTIL = 16384  # rows learned up to which every batch is judged; after that
_EVERY = 16, 32768, 64  # one batch in 16, but at least one in 32,768 rows, or in 64 rows a column: it costs O(d^3)


def is_due(score: Calibration, before: int, after: int, d: int) -> bool:
    """Whether a batch that takes the number of rows learned from `before` to `after` is judged.

    Only the score and the counts decide, so that a stream that is resumed continues as it would have.
    """
    every = min(max(_EVERY[0] * (after - before), 1), max(_EVERY[1], _EVERY[2] * d))
    return before < _ALL_UNTIL or before // every != after // every or float(score.rows) == 0


def scored(score: Calibration, belief: Any, block: Block) -> Calibration:
    """`score`, and that of the rows of a block as `belief` predicts them: all of them, or some, evenly spaced."""
    X, y, weights = block.X, block.y, block.weights
    most = max(_JUDGED[0], int(_JUDGED[1] * len(y)))
    if len(y) > most:
        some = np.linspace(0, len(y) - 1, most).astype(int)
        X, y, weights = X[some], y[some], None if weights is None else weights[some]
    return update(score, belief.predict(X), y, weights)


def update(
    score: Calibration, predicted: Predictive, y: Array, weights: Array | None, together: Array | None = None
) -> Calibration:
    """`score`, and that of predictions of y, (n,) or (n, k): target by target."""
    n = len(y)
    dof = getattr(predicted, "dof", np.inf)
    if np.ndim(dof) < 2:
        dof = np.broadcast_to(dof, (n, *y.shape[1:])) if np.ndim(dof) else np.full((n, *y.shape[1:]), dof)
    columns = (np.reshape(a, (n, -1)).T for a in (predicted.mean, predicted.std, y, dof))
    for mean, std, target, dof_ in zip(*columns, strict=True):
        score = score.update(mean, std, target, dof_, weights, together=together)
    return score


FEWEST_ROWS = 32  # learned before the first prediction; later ones are made at each doubling of the rows at the latest
_DECADES = np.arange(6.0, -1.01, -0.25)


@dataclass(frozen=True)
class AlphaScores:
    """For each alpha, the sum of the log predictive densities of the rows, each predicted before it was learned."""

    alphas: Array  # (m,), descending
    scores: Array  # (m,)

    @classmethod
    def around(cls, largest: float) -> "AlphaScores":
        """No scores yet, on a grid around the largest alpha that one row's worth of the data so far could need.

        The alpha that leaves nothing of a fit grows with the number of rows, so that the grid reaches six decades up.
        """
        alphas = largest * 10**_DECADES
        return cls(alphas, np.zeros(len(alphas)))

    def after(self, beliefs: Iterable[Any], block: Block) -> "AlphaScores":
        """With the score of a block, as each of `beliefs`, one for each alpha, predicts it.

        An alpha that leaves no degrees of freedom makes no claim: it gets the lowest score of those that do.
        """
        found = [scored(Calibration(), belief, block) for belief in beliefs]
        scores = np.array([s.log_score if s.undetermined == 0 else np.nan for s in found], float)
        if np.isnan(scores).all():
            return self
        return AlphaScores(self.alphas, self.scores + np.where(np.isnan(scores), np.nanmin(scores), scores))

    def faded(self, left: float) -> "AlphaScores":
        """The scores as they count once later rows have come."""
        return AlphaScores(self.alphas, self.scores * left)

    @property
    def best(self) -> float | None:
        """The alpha with the highest score, interpolated by a parabola; None before the first score."""
        if not self.scores.any():
            return None
        i = int(np.argmax(self.scores))
        if 0 < i < len(self.scores) - 1:
            below, top, above = self.scores[i - 1 : i + 2]
            bend = below - 2 * top + above
            shift = 0.5 * (below - above) / bend if bend < 0 else 0.0
            return float(self.alphas[i] * (self.alphas[i + 1] / self.alphas[i]) ** shift)
        return float(self.alphas[i])


def doubling_pieces(rows: int, length: int) -> list[slice]:
    """A block of `length` rows, after `rows` others, cut so that no piece is longer than all before it."""
    pieces, start = [], 0
    while start < length:
        stop = min(length, start + max(FEWEST_ROWS, rows + start))
        pieces.append(slice(start, stop))
        start = stop
    return pieces
