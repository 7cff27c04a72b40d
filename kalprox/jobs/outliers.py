"""Outliers of a robust fit to files: each row that is flagged is written to the quarantine file, and learned."""

from typing import Any

import numpy as np

from kalprox.learning.flags import RowFlags, flags_at, flags_between
from kalprox.learning.learner import Learner
from kalprox.learning.state import State
from kalprox.sources import Block
from kalprox.sources.quarantine import BadRow, Quarantine, Reason

__all__ = ["OutlierLog"]


class OutlierLog:
    """Writes the rows of a fit that a robust likelihood flags to a quarantine file.

    A row of a stream is flagged when it comes, before it is learned. The rows of a warm-up are held, and flagged at its
    end, or at that of the rows.

    Parameters
    ----------
    quarantine : Quarantine
    target : str
        The name of the target column.
    values : bool
        Whether the file has the values of targets.
    places : sequence of pairs
        The files and row numbers of rows that a run to resume holds in its warm-up; see `places`.

    Attributes
    ----------
    places : list of pairs
        The files and row numbers of rows that were learned, and have not been judged yet.
    """

    def __init__(self, quarantine: Quarantine, target: str, *, values: bool, places: Any = ()) -> None:
        self.quarantine, self.target, self.values = quarantine, target, values
        self.places: list[tuple[str, int]] = [(str(file), int(row)) for file, row in places]

    def expect(self, block: Block) -> None:
        """Get ready for a block of a stream, whose pieces are then given to `watch`."""
        self.places += block.place.names()

    def finish(self, learner: Learner) -> None:
        """Write the outliers of a warm-up that has not ended."""
        state = learner.state
        if (rows := state.core.held_rows()) is not None:
            self._write(rows.y, flags_at(state, rows))

    def judge(self, learner: Learner, block: Block) -> None:
        """Write the outliers of a block that was learned in several passes, by the estimate of all rows."""
        self.places = block.place.names()
        self._write(block.y, flags_at(learner.state, block))

    def watch(self, before: State, piece: Block, after: State) -> None:
        """Write the outliers of a piece of a stream, and those of a warm-up that ends with it."""
        found = flags_between(before, piece, after)
        if found is not None:
            held = None if len(found.errors) == len(piece) else before.core.held_rows()
            self._write(piece.y if held is None else np.concatenate([held.y, piece.y]), found)

    def _write(self, y: np.ndarray, found: RowFlags) -> None:
        """Write the outliers among rows that were judged: the first of `places`."""
        rows = []
        for i in np.flatnonzero(found.outliers).tolist():
            file, row = self.places[i]
            why = f"error {found.errors[i]:+.4g} standard deviations, weight {found.weights[i]:.4g}"
            value = f"{y[i]:.10g}" if self.values else ""
            rows.append(BadRow(file, row, self.target, f"{Reason.OUTLIER}: {why}", value))
        self.quarantine.note(rows)
        del self.places[: len(found.errors)]
