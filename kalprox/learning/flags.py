"""Outliers among the rows of a robust fit: the error of each row in standard deviations, its weight, and a flag."""

from typing import NamedTuple

import numpy as np

from kalprox.algorithms.proximal_filter import prediction_errors
from kalprox.base.arrays import Array
from kalprox.learning.linearised import Linearised
from kalprox.learning.state import State
from kalprox.learning.targets import Seen
from kalprox.likelihoods.robust import Robust
from kalprox.sources import Block

__all__ = ["RowFlags", "flags_at", "flags_between"]


class RowFlags(NamedTuple):
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
    def of(cls, likelihood: Robust, errors: Array) -> "RowFlags":
        """Return the flags of rows with these errors in standard deviations."""
        weights = likelihood.weight(errors) / likelihood.weight(0 * errors)
        return cls(errors, np.asarray(weights), np.asarray(likelihood.is_outlier(errors)))


def flags_at(state: State, block: Block) -> RowFlags:
    """Return the flags of rows that a state has learned, by its estimate, as a fit of several passes counts them."""
    state = state.core
    assert isinstance(state, Linearised)
    inputs, mean = state.fixed.block(block), state.proximal.linearization.mean
    likelihood, f = state.proximal.likelihood, np.asarray(state.belief.model.linearize_rows(mean, inputs.X)[0])
    assert isinstance(likelihood, Robust)
    errors = likelihood.standardised(block.y, f, 0.0)
    return RowFlags.of(likelihood, errors if block.weights is None else np.where(block.weights > 0, errors, 0.0))


def flags_between(before: State, piece: Block, after: State) -> RowFlags | None:
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
    RowFlags or None
        Of the rows of the piece, or of all rows held so far; None if none are judged.
    """
    before, after = before.core, after.core
    assert isinstance(before, Linearised)
    if not before.warms_up:
        likelihood = before.proximal.likelihood
        assert isinstance(likelihood, Robust)
        return RowFlags.of(likelihood, _errors_before(before, piece))
    held = before.held_rows()
    return None if after.warms_up else flags_at(after, piece if held is None else Block.joined([held, piece]))


def _errors_before(state: Linearised, block: Block) -> Array:
    """Return the errors of a block that a state is about to learn, in standard deviations of its predictions.

    After the warm-up, with a robust likelihood; see `kalprox.algorithms.proximal_filter.prediction_errors`.
    """
    now = state if state.seen is None else state.with_seen(state.seen + Seen.of(state.settings, block), block)
    return prediction_errors(now.proximal, now.fixed.block(block))
