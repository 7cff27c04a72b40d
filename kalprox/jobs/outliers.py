"""Outliers of a robust fit to files: each row that is flagged is written to the quarantine file, and learned."""

from typing import Any, NamedTuple

import numpy as np

from kalprox.algorithms.proximal_filter import prediction_errors
from kalprox.base.arrays import Array
from kalprox.learning.learner import Learner
from kalprox.learning.linearised import Linearised
from kalprox.learning.state import State
from kalprox.learning.targets import Seen
from kalprox.likelihoods.robust import Robust
from kalprox.sources import Block
from kalprox.sources.quarantine import BadRow, Quarantine, Reason


class _RowFlags(NamedTuple):
    """The rows of a block as a robust likelihood sees them.

    Attributes
    ----------
    errors : array of shape (n,)
        The errors of the predictions, in their standard deviations.
    weights : array of shape (n,)
        The weight of each row in the fit, from 1 for a row that is exactly as predicted to 0.
    outliers : array of bool, shape (n,)
        Which rows are outliers: those with an error larger than that of all but one of 1,000 good rows.
    """

    errors: Array
    weights: Array
    outliers: Array

    @classmethod
    def of(cls, likelihood: Robust, errors: Array) -> "_RowFlags":
        """Return the flags of rows with these errors in standard deviations."""
        weights = likelihood.weight(errors) / likelihood.weight(0 * errors)
        return cls(errors, np.asarray(weights), np.asarray(likelihood.is_outlier(errors)))


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
            self._write(rows.y, _flags_at(state, rows))

    def judge(self, learner: Learner, block: Block) -> None:
        """Write the outliers of a block that was learned in several passes, by the estimate of all rows."""
        self.places = block.place.names()
        self._write(block.y, _flags_at(learner.state, block))

    def watch(self, before: State, piece: Block, after: State) -> None:
        """Write the outliers of a piece of a stream, and those of a warm-up that ends with it."""
        found = _flags_between(before, piece, after)
        if found is not None:
            held = None if len(found.errors) == len(piece) else before.core.held_rows()
            self._write(piece.y if held is None else np.concatenate([held.y, piece.y]), found)

    def _write(self, y: np.ndarray, found: _RowFlags) -> None:
        """Write the outliers among rows that were judged: the first of `places`."""
        rows = []
        for i in np.flatnonzero(found.outliers).tolist():
            file, row = self.places[i]
            why = f"error {found.errors[i]:+.4g} standard deviations, weight {found.weights[i]:.4g}"
            value = f"{y[i]:.10g}" if self.values else ""
            rows.append(BadRow(file, row, self.target, f"{Reason.OUTLIER}: {why}", value))
        self.quarantine.note(rows)
        del self.places[: len(found.errors)]


def _flags_at(state: State, block: Block) -> _RowFlags:
    """Return the flags of rows that a state has learned, by its estimate, as a fit of several passes counts them."""
    state = state.core
    assert isinstance(state, Linearised)
    inputs, mean = state.fixed.block(block), state.proximal.linearization.mean
    likelihood, f = state.proximal.likelihood, np.asarray(state.belief.model.linearize_rows(mean, inputs.X)[0])
    assert isinstance(likelihood, Robust)
    errors = likelihood.standardised(block.y, f, 0.0)
    return _RowFlags.of(likelihood, errors if block.weights is None else np.where(block.weights > 0, errors, 0.0))


def _flags_between(before: State, piece: Block, after: State) -> _RowFlags | None:
    """Return the flags of the rows that a stream has judged with a piece of rows.

    A row is judged by the state before it was learned. The rows of a warm-up are held, and no state predicts them:
    they are judged all together by the estimate at its end, those of the piece included, and not before.

    Parameters
    ----------
    before, after : State
        The state before and after the piece.
    piece : Block

    Returns
    -------
    _RowFlags or None
        Of the rows of the piece, or of all rows held so far; None if none are judged.
    """
    before, after = before.core, after.core
    assert isinstance(before, Linearised)
    if not before.warms_up:
        likelihood = before.proximal.likelihood
        assert isinstance(likelihood, Robust)
        return _RowFlags.of(likelihood, _errors_before(before, piece))
    held = before.held_rows()
    return None if after.warms_up else _flags_at(after, piece if held is None else Block.joined([held, piece]))


def _errors_before(state: Linearised, block: Block) -> Array:
    """Return the errors of a block that a state is about to learn, in standard deviations of its predictions.

    After the warm-up, with a robust likelihood; see `kalprox.algorithms.proximal_filter.prediction_errors`.
    """
    now = state if state.seen is None else state.with_seen(state.seen + Seen.of(state.settings, block), block)
    return prediction_errors(now.proximal, now.fixed.block(block))
