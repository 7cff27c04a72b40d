"""Robust and clustered standard errors: the scores of the rows that a state learns."""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Sizes, expect, state
from kalprox.learning.belief import Belief
from kalprox.learning.errors import residual_scores
from kalprox.learning.innovations import Innovations
from kalprox.learning.sandwich import Sandwich, excess_of, moved, row_scores, unnamed
from kalprox.learning.settings import Settings
from kalprox.learning.state import Around, Core, State, Step, left_after
from kalprox.sources import ArraySource, Block, Source
from kalprox.sources.weighting import shares


@state
class Sandwiched(Around):
    """A state and the sums of the scores of its rows, for standard errors that are robust or clustered.

    The score of a row comes from its prediction before it was learned. The rows of a warm-up are held, and none was
    predicted: their scores come from the residuals at its end.

    Attributes
    ----------
    sandwich : Sandwich or None
        None before the first row that was not held.
    held_groups : tuple of str
        The cluster of each row that is held.
    batches : int
        The number of batches that have ended. One without labels is a cluster of its own.
    """

    sandwich: Sandwich | None = None
    held_groups: tuple[str, ...] = ()
    batches: int = 0

    @cached_property
    def belief(self) -> Belief:
        held = partial(_scores_of_held, self.inner, self.held_groups) if self.core.held_rows() is not None else None
        return self.inner.belief.with_fields(sandwich=self.sandwich, of_held=held)

    @property
    def predicts_every_row(self) -> bool:
        return self.inner.predicts_every_row

    # ---- learning --------------------------------------------------------------------------------------

    def after_step(self, one: Step) -> "Sandwiched":
        left, sandwich = left_after(self.settings, one.piece, one.before.core.time), self.sandwich
        state = replace(self, inner=one.after, sandwich=sandwich if left == 1 else sandwich and sandwich.forget(left))
        if one.before.core.warms_up:
            return state._after_held(one)
        assert one.found is not None
        with np.errstate(invalid="ignore"):
            return state._after_rows(one.piece, one.before, one.found)

    def _after_held(self, one: Step) -> "Sandwiched":
        """Return the state after rows that came in a warm-up."""
        groups, labels = self.held_groups, one.piece.groups
        if self.settings.coef_cov == "clustered":
            groups += (unnamed(self.batches),) * len(one.piece) if labels is None else tuple(labels.tolist())
        if one.after.core.warms_up:
            return replace(self, held_groups=groups)
        return replace(self, held_groups=()).with_scores_of(_held_source(one.before.core, groups, one.piece))

    def _after_rows(self, block: Block, before: State, found: Innovations) -> "Sandwiched":
        """Return the state after rows that another one has predicted."""
        curvature: Array | None = None
        if (information := before.core.linear_information) is not None:
            sums = self.sandwich or Sandwich.zero(block.X[0].copy(), information.d + 1, information.targets)
            return self._with_scores(block, sums, sums.inputs(block.X), (block.y - found.mean) / found.scale)
        belief, likelihood = before.belief, before.belief.posterior.likelihood
        f, D = belief.value(block.X, block.offset)
        excess, unknown = None, np.isnan(found.mean.reshape(len(block), -1)).any(axis=1)
        if likelihood.majorizes and before.core.predicts:
            excess = excess_of(likelihood, block.y, f, block.weights, belief.posterior.output_variance(f, D))
        if self.settings.likelihood.quadratic:
            u = (block.y - found.mean) / found.scale
        elif unknown.all():  # also where a parameter of the likelihood is still to be learned
            D, u, curvature = D.reshape(len(block), -1, D.shape[-1])[:, 0], np.full(len(block), np.nan), 0.0 * unknown
        else:
            leverage = belief.posterior.leverage(D.reshape(-1, D.shape[-1])).reshape(f.shape)
            own = self.settings.relative_precision(block)
            D, u, curvature = row_scores(likelihood, block.y, f, D, leverage, own)
            u = np.where(unknown, np.nan, u)
        return self._with_scores(block, self._sums(D.shape[1]).with_excess(D, excess), D, u, curvature)

    def _sums(self, p: int) -> Sandwich:
        return self.sandwich or Sandwich.zero(None, p, None)

    def _with_scores(
        self, block: Block, sums: Sandwich, D: Array, u: Array, curvature: Array | None = None
    ) -> "Sandwiched":
        """Return the state with the scores of rows in these sums; see `row_scores` for D, u and the curvature."""
        settings, noise = self.settings, 1.0 if block.noise is None else block.noise
        if settings.forgets:
            times = block.times if settings.by_time else None
            u = (u.T * shares(settings.forgetting, settings.counts_of(block), times)).T
        weights = np.ones(len(block)) if block.weights is None else block.weights
        if settings.coef_cov == "robust":
            return replace(self, sandwich=sums.after_rows(D, u, weights / noise))
        information = (1.0 if curvature is None else curvature) * weights / noise
        if (own := settings.relative_precision(block)) is not None:  # its root is in u
            weights = weights / np.sqrt(own)
        labels = unnamed(self.batches) if block.groups is None else block.groups
        return replace(self, sandwich=sums.after_clusters(D, u, weights / np.sqrt(noise), information, labels))

    def after_filter(self, live: Any, block: Block, found: list[Array]) -> tuple["Sandwiched", Innovations | None]:
        """Take the rows that a filter of single rows has learned since this state, with their scores."""
        before: Any = self.inner  # linearised rows, which alone are matched
        inner, innovations = before.after_filter(live, block, found)
        if before.warms_up:
            return self.after_step(Step(block, before, inner, None)), innovations
        matched = np.array(found)
        design, estimate = inner.belief.design, np.asarray(inner.proximal.estimate)
        D = inner.belief.model.linearize_rows(estimate, design.rows(block.X, block.offset))[1]  # the model is linear
        if (m := design.outputs) is None:
            f, leverage = matched[:, 0], matched[:, 1]
        else:
            S = matched[:, m : m + m * m].reshape(-1, m, m)
            f, leverage = matched[:, :m], np.diagonal(S, axis1=1, axis2=2)
        own = self.settings.relative_precision(block)
        D, u, _ = row_scores(self.settings.likelihood, block.y, f, D, leverage, own)
        sandwich = self._sums(D.shape[1]).after_rows(D, u, block.weights)
        return replace(self, inner=inner, sandwich=sandwich), innovations

    def with_scores_of(self, source: Source) -> "Sandwiched":
        """Return the state with the scores of the rows of a source, which it has learned; see `residual_scores`."""
        return replace(self, sandwich=residual_scores(self.inner.belief, self.core.faded(source)))

    # ---- what becomes of the inner state ---------------------------------------------------------------

    def closed(self) -> "Sandwiched":
        """Return the state after a batch; its rows without a label are a cluster of their own."""
        sandwich = self.sandwich and self.sandwich.with_few_batches()
        return replace(self, inner=self.inner.closed(), sandwich=sandwich, batches=self.batches + 1)

    def with_settings(self, settings: Settings) -> State:
        if settings.coef_cov == "model":
            return self.inner.with_settings(settings)
        return super().with_settings(settings)

    def with_origin(self, columns: Array, values: Array) -> "Sandwiched":
        sandwich = self.sandwich
        if sandwich is not None and sandwich.center is not None:
            center = sandwich.center.copy()
            center[columns] = values
            sandwich = replace(sandwich, center=center)
        return replace(super().with_origin(columns, values), sandwich=sandwich)

    def with_class(self, settings: Settings) -> "Sandwiched":
        from kalprox.learning.weak_prior import with_class_from

        sandwich = self.sandwich and self.sandwich.in_coordinates(with_class_from(self.inner.belief.design))
        return replace(self, settings=settings, inner=self.inner.with_class(settings), sandwich=sandwich)

    def without_rows(self) -> "Sandwiched":
        """Return the state without values of single rows, such as that about which the scores were summed."""
        state, sandwich = super().without_rows(), self.sandwich
        if sandwich is not None and (information := state.core.linear_information) is not None:
            sandwich = sandwich.about(np.asarray(information.x_mean))
        return replace(state, sandwich=sandwich)

    def merge(self, other: State) -> "Sandwiched":
        assert isinstance(other, Sandwiched)  # whose settings are the same
        if other.core.warms_up:
            return self._with_held(other)
        if self.core.warms_up:
            return other.merge(self)
        scores, J = other.sandwich, self.core.coordinates_of(other.core)
        scores = scores if J is None or scores is None else scores.in_coordinates(J)
        if self.sandwich is not None and scores is not None:
            scores = self.sandwich.merge(scores, self.batches)
        return replace(self, inner=self.inner.merge(other.inner), sandwich=scores, batches=self.batches + other.batches)

    def _with_held(self, other: "Sandwiched") -> "Sandwiched":
        """Return the state after the rows that another one holds in its warm-up."""
        before: Any = self.inner
        inner, rows, found = before.with_held(other.inner)
        if rows is None:
            return self
        if other.held_groups:
            rows = replace(rows, groups=np.array([moved(one, self.batches) for one in other.held_groups]))
        after = self.after_step(Step(rows, before, inner, found))
        return replace(after, batches=self.batches + other.batches)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless the held rows have clusters if they need them."""
        held = self.core.held_rows()
        expect(len(self.held_groups) in (0, 0 if held is None else len(held)))


def _scores_of_held(state: State, groups: tuple[str, ...]) -> Sandwich:
    """Return the scores of the rows of a warm-up, from their residuals at its estimate."""
    return residual_scores(state.belief, state.core.faded(_held_source(state.core, groups)))


def _held_source(before: Core, groups: tuple[str, ...], *more: Block) -> Source:
    """Return the rows of a warm-up and more rows, in these clusters."""
    rows = before.held_rows()
    joined = Block.joined([*([] if rows is None else [rows]), *more]).weighted()
    about: dict[str, Any] = {"offset": joined.offset, "times": joined.times}
    about["groups"] = np.array(groups) if groups else None
    return ArraySource(joined.X, joined.y, joined.weights, **about)
