"""Noise whose variance the inputs predict: a state whose rows have the weights that this gives them."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import state
from kalprox.learning.belief import Belief
from kalprox.learning.innovations import Innovations
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.settings import Settings
from kalprox.learning.state import Around, State, Step, left_after
from kalprox.predictive import Student
from kalprox.sources import Block

_SHARE = 8  # a piece has at most this part of the rows before it, so that the variance is learned on the way


@state
class SpreadByInputs(Around):
    """A state of a linear model, and how the variance of the noise depends on the inputs.

    The variance is learned from the errors of the predictions. A row is learned with the variance that was predicted
    for it, in units of the noise variance, as its `noise`.

    Attributes
    ----------
    by_inputs : InputNoise
    """

    by_inputs: InputNoise

    @cached_property
    def belief(self) -> Belief:
        return self.inner.belief.with_fields(input_noise=self.by_inputs)

    # ---- learning --------------------------------------------------------------------------------------

    def steps(self, block: Block, rows: int, *, every_row: bool = False, most: int = sys.maxsize) -> Iterator[Step]:
        state, start = self, 0
        while start < len(block):
            information = state.core.linear_information
            assert information is not None
            length = 1 if every_row else max(int(float(information.rows) // _SHARE), 1)
            piece = block.part(start, min(start + length, len(block)))
            one = next(state.inner.steps(state.weighed(piece), rows, every_row=every_row, most=most))
            piece = piece.part(0, len(one.piece))
            after, found = state.after_step(one), one.found and state.widened(one)
            yield Step(piece, state, after, found)
            start, rows, state = start + len(piece), rows + piece.count, after

    def relative_variance(self, X: Array) -> Array:
        """Return the variance of the noise at the inputs X, in units of the noise variance."""
        return self.by_inputs.relative_variance(X, self.inner.belief.mean(X))

    def weighed(self, block: Block) -> Block:
        """Return a block whose rows have the noise that their inputs predict."""
        return replace(block, noise=self.relative_variance(block.X) * (1.0 if block.noise is None else block.noise))

    def widened(self, one: Step) -> Innovations:
        """Return the innovations of a piece with the tails that the uncertainty of the variances gives them."""
        block, found = one.piece, one.found
        own = self.settings.own_variance(block)
        assert found is not None and own is not None
        known = np.isfinite(found.scale)
        share = np.divide(own, found.scale**2, out=np.zeros(len(block)), where=known)
        s = self.by_inputs.log_uncertainty(block.X, self.inner.belief.mean(block.X), share)
        wide = Student(found.mean, found.std, found.dof).with_uncertain_variance(s)
        return found._replace(std=wide.std, dof=wide.dof, issued=found.issued * np.sqrt(1 + s))

    def after_step(self, one: Step) -> "SpreadByInputs":
        block, found, settings = one.piece, one.found, self.settings
        assert found is not None
        variance = np.asarray(one.before.belief.noise.variance if one.before.core.predicts else np.nan)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            squares = ((block.y - found.mean) / found.scale) ** 2 / variance
        variance = variance * self.relative_variance(block.X)
        left, times = left_after(settings, block, one.before.core.time), block.times if settings.by_time else None
        before = self.by_inputs if left == 1 else InputNoise(self.by_inputs.information.forget(left))
        counts = settings.counts(block.weights)
        after = before.after(block.X, found.mean, variance, squares, counts, settings.forgetting, times)
        return replace(self, inner=one.after, by_inputs=after)

    # ---- what becomes of the inner state ---------------------------------------------------------------

    def with_scores_of(self, source: object) -> "SpreadByInputs":
        """Return the state as it is: the residuals of rows of unequal noise say no more than the innovations."""
        return self

    def with_settings(self, settings: Settings) -> State:
        if not settings.noise_depends_on_inputs:
            return self.inner.with_settings(settings)
        return super().with_settings(settings)

    def with_origin(self, columns: Array, values: Array) -> "SpreadByInputs":
        by_inputs = InputNoise(self.by_inputs.information.with_origin(1 + columns, values))
        return replace(super().with_origin(columns, values), by_inputs=by_inputs)

    def without_rows(self) -> "SpreadByInputs":
        return replace(super().without_rows(), by_inputs=InputNoise(self.by_inputs.information.about_means()))

    def merge(self, other: State) -> "SpreadByInputs":
        assert isinstance(other, SpreadByInputs)  # whose settings are the same
        by_inputs = InputNoise(self.by_inputs.information + other.by_inputs.information)
        return replace(self, inner=self.inner.merge(other.inner), by_inputs=by_inputs)
