"""Which alpha predicts best: every block is predicted with each alpha of a grid before it is learned."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kalprox._arrays import Array
from kalprox.calibration import Calibration
from kalprox.estimators.checks import Rows
from kalprox.estimators.diagnostics import judged

if TYPE_CHECKING:
    from kalprox.estimators.linear import LinearBelief

__all__ = ["FEWEST", "Prequential", "doubling"]

FEWEST = 32  # rows before the first prediction; later ones are made at each doubling of the rows, at the latest
_DECADES = np.arange(6.0, -1.01, -0.25)


@dataclass(frozen=True)
class Prequential:
    """For each alpha, the sum of the log predictive densities of the rows, each predicted before it was learned."""

    alphas: Array  # (m,), descending
    scores: Array  # (m,)

    @classmethod
    def begin(cls, belief: "LinearBelief") -> "Prequential":
        """On a grid around the largest alpha that one row's worth of the data so far could need.

        The alpha that leaves nothing of a fit grows like the number of rows, so that the grid reaches six decades up.
        """
        equations = belief.equations
        largest = belief.penalty.alphas(equations.R, equations.z)[0] / float(belief.information.rows)
        alphas = largest * 10**_DECADES
        return cls(alphas, np.zeros(len(alphas)))

    def judged(self, belief: "LinearBelief", rows: Rows) -> "Prequential":
        """With the score of these rows, as `belief` would predict them with each alpha.

        An alpha that leaves no degrees of freedom makes no claim: it gets the lowest score of those that do.
        """
        found = [judged(Calibration(), at, rows) for at in belief.along(self.alphas)]
        scores = np.array([s.log_score if s.undetermined == 0 else np.nan for s in found], float)
        if np.isnan(scores).all():
            return self
        return Prequential(self.alphas, self.scores + np.where(np.isnan(scores), np.nanmin(scores), scores))

    def faded(self, left: float) -> "Prequential":
        return Prequential(self.alphas, self.scores * left)

    @property
    def best(self) -> float | None:
        """The alpha with the highest score, between two of the grid by a parabola; None before the first judgement."""
        if not self.scores.any():
            return None
        i = int(np.argmax(self.scores))
        if 0 < i < len(self.scores) - 1:
            below, top, above = self.scores[i - 1 : i + 2]
            bend = below - 2 * top + above
            shift = 0.5 * (below - above) / bend if bend < 0 else 0.0
            return float(self.alphas[i] * (self.alphas[i + 1] / self.alphas[i]) ** shift)
        return float(self.alphas[i])


def doubling(rows: int, length: int) -> list[slice]:
    """A block of `length` rows, after `rows` others, cut so that no piece is longer than all before it."""
    pieces, start = [], 0
    while start < length:
        stop = min(length, start + max(FEWEST, rows + start))
        pieces.append(slice(start, stop))
        start = stop
    return pieces
