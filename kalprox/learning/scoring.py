"""Prequential scores, of predictions made before the rows are learned: for the learner, and for each alpha."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.calibration import Calibration
from kalprox.predictive import Predictive
from kalprox.sources import Block
from kalprox.sources.weighting import counts_of

__all__ = ["FEWEST_ROWS", "AlphaScores", "doubling_pieces", "is_due", "scored"]

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
    if weights is None or belief.settings.weights == "frequency":
        return update(score, belief.predict(X), y, weights)
    counts = counts_of(weights, "precision")
    return update(score, belief.predict(X, np.where(weights > 0, weights, 1) ** -0.5), y, counts)


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


FEWEST_ROWS = 32  # rows learned before the first prediction; a piece is never longer than all rows before it
_DECADES = np.arange(6.0, -1.01, -0.25)


@dataclass(frozen=True)
class AlphaScores:
    """The prequential score of each alpha: the sum of log predictive densities of rows not yet learned."""

    alphas: Array  # (m,), descending
    scores: Array  # (m,)

    @classmethod
    def around(cls, largest: float) -> "AlphaScores":
        """Return zero scores on a grid around `largest`, the alpha per row that shrinks all coefficients to zero.

        The largest useful alpha grows with the number of rows, so that the grid extends six decades above `largest`.
        """
        alphas = largest * 10**_DECADES
        return cls(alphas, np.zeros(len(alphas)))

    def after(self, beliefs: Iterable[Any], block: Block) -> "AlphaScores":
        """Return the scores after a block; `beliefs` has one belief for each alpha.

        An alpha without residual degrees of freedom has no predictive density, and gets the lowest score of the others.
        """
        found = [scored(Calibration(), belief, block) for belief in beliefs]
        scores = np.array([s.log_score if s.undetermined == 0 else np.nan for s in found], float)
        if np.isnan(scores).all():
            return self
        return AlphaScores(self.alphas, self.scores + np.where(np.isnan(scores), np.nanmin(scores), scores))

    def faded(self, left: float) -> "AlphaScores":
        """Return the scores multiplied by `left`, the share of their weight that forgetting leaves."""
        return AlphaScores(self.alphas, self.scores * left)

    @property
    def best(self) -> float | None:
        """The alpha of the highest score, interpolated by a parabola; None before the first score."""
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
    """Cut a block of `length` rows, which follow `rows` others, so that no piece is longer than all rows before it."""
    pieces, start = [], 0
    while start < length:
        stop = min(length, start + max(FEWEST_ROWS, rows + start))
        pieces.append(slice(start, stop))
        start = stop
    return pieces
