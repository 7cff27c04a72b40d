"""The prequential score of each alpha: of predictions made with it, before the rows were learned."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.sources import Block

__all__ = ["FEWEST_ROWS", "AlphaScores", "doubling_pieces"]

_MOST = 512, 1 / 16  # rows of a block that are predicted, or share of it: a std costs twice as much as learning a row
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
        block = _sample(block)
        scores = np.array([_log_score(belief, block) for belief in beliefs])
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


def _sample(block: Block) -> Block:
    """Return the block, or an evenly spaced sample of its rows if it is long."""
    most = max(_MOST[0], int(_MOST[1] * len(block)))
    if len(block) <= most:
        return block
    some = np.linspace(0, len(block) - 1, most).astype(int)
    return Block(block.X[some], block.y[some], None if block.weights is None else block.weights[some])


def _log_score(belief: Any, block: Block) -> float:
    """Return the sum of the log predictive densities of the rows, NaN if a row has none."""
    predicted = belief.predict(block.X)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_prob = predicted.log_prob(block.y).reshape(len(block), -1).sum(axis=1)
    if block.weights is None:
        return float(log_prob.sum())
    return float((log_prob * block.weights)[block.weights > 0].sum())


def doubling_pieces(rows: int, length: int) -> list[slice]:
    """Cut a block of `length` rows, which follow `rows` others, so that no piece is longer than all rows before it."""
    pieces, start = [], 0
    while start < length:
        stop = min(length, start + max(FEWEST_ROWS, rows + start))
        pieces.append(slice(start, stop))
        start = stop
    return pieces
