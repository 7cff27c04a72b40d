"""Robust and clustered standard errors: the scores of the rows that a state learns."""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Sizes, expect, state
from kalprox.learning.belief import Belief
from kalprox.learning.errors import residual_scores
from kalprox.learning.sandwich import UNNAMED, Sandwich, excess_of, moved, next_unnamed, row_scores
from kalprox.learning.settings import Settings
from kalprox.learning.state import Around, Core, State, Step, left_after
from kalprox.sources import ArraySource, Block, Source
from kalprox.sources.forgetting import shares

__all__ = ["Sandwiched"]


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
        The cluster of each row that is held; "" for those of a batch without labels.
    """

    sandwich: Sandwich | None = None
    held_groups: tuple[str, ...] = ()

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
            return state._with_scores(one, *state._row_scores(one))

    def _after_held(self, one: Step) -> "Sandwiched":
        """Return the state after rows that came in a warm-up."""
        groups, labels = self.held_groups, one.piece.groups
        if self.settings.coef_cov == "clustered":
            groups = groups + (("",) * len(one.piece) if labels is None else tuple(labels.tolist()))
        if one.after.core.warms_up:
            return replace(self, held_groups=groups)
        scored = replace(self, held_groups=()).with_scores_of(_held_source(one.before.core, groups, one.piece))
        assert scored.sandwich is not None
        return replace(scored, sandwich=scored.sandwich.with_open_batch())

    def _row_scores(self, one: Step) -> tuple[Sandwich, Array, Array, Array]:
        """Return the sums to which the scores of a piece are added, and what `row_scores` returns of its rows."""
        block, found, belief = one.piece, one.found, one.before.belief
        assert found is not None
        if (information := one.before.core.linear_information) is not None:
            sandwich = self.sandwich or Sandwich.zero(block.X[0].copy(), information.d + 1, information.targets)
            return sandwich, sandwich.inputs(block.X), (block.y - found.mean) / found.scale, np.ones(len(block))
        (f, D), posterior = belief.value(block.X, block.offset), belief.posterior
        unknown = np.isnan(found.mean.reshape(len(block), -1)).any(axis=1)
        if self.settings.likelihood.quadratic:
            u, curvature = (block.y - found.mean) / found.scale, np.ones(len(block))
        elif unknown.all():  # also where a parameter of the likelihood is still to be learned
            D, u = D.reshape(len(block), -1, D.shape[-1])[:, 0], np.full(len(block), np.nan)
            curvature = np.zeros(len(block))
        else:
            leverage = posterior.leverage(D.reshape(-1, D.shape[-1])).reshape(f.shape)
            own = self.settings.relative_precision(block)
            D, u, curvature = row_scores(posterior.likelihood, block.y, f, D, leverage, own)
            u = np.where(unknown, np.nan, u)
        return self._sums(D.shape[1]), D, u, curvature

    def _sums(self, p: int) -> Sandwich:
        return self.sandwich or Sandwich.zero(None, p, None)

    def _with_scores(self, one: Step, sandwich: Sandwich, D: Array, u: Array, curvature: Array) -> "Sandwiched":
        """Return the state with the scores of a piece; see `row_scores` for D, u and the curvature."""
        block, settings = one.piece, self.settings
        if settings.forgets:
            times = block.times if settings.by_time else None
            u = (u.T * shares(settings.forgetting, settings.counts_of(block), times)).T
        weights: Any = block.weights
        sandwich = sandwich.with_excess(D, self._excess(one, D))
        if settings.coef_cov == "robust":
            weights = weights if block.noise is None else (1.0 if weights is None else weights) / block.noise
            return replace(self, sandwich=sandwich.after_rows(D, u, weights))
        information = curvature if weights is None else curvature * weights
        if (own := settings.relative_precision(block)) is not None:  # its root is in u
            weights = weights / np.sqrt(own)
        if block.noise is not None:
            information = information / block.noise
            weights = (1.0 if weights is None else weights) / np.sqrt(block.noise)
        return replace(self, sandwich=sandwich.after_cluster(D, u, weights, information, block.groups))

    def _excess(self, one: Step, D: Array) -> Array | None:
        """Return by how much the information of rows exceeds the second derivative of their loss; see `excess_of`."""
        if not self.settings.likelihood.majorizes or not one.before.core.predicts:
            return None
        block, belief = one.piece, one.before.belief
        posterior, f = belief.posterior, belief.value(block.X, block.offset)[0]
        return excess_of(posterior.likelihood, block.y, f, block.weights, posterior.output_variance(f, D))

    def learn_matched(self, block: Block, matched: Array) -> "Sandwiched":
        """Take the rows that a filter of single rows has learned since this state, with their scores."""
        before: Any = self.inner  # linearised rows, which alone are matched
        inner = before.learn_matched(block, matched)
        if before.warms_up:
            return self.after_step(Step(block, before, inner, None))
        design, estimate = inner.belief.design, np.asarray(inner.proximal.estimate)
        D = inner.belief.model.linearize_rows(estimate, design.rows(block.X, block.offset))[1]  # the model is linear
        if (m := design.outputs) is None:
            f, leverage = matched[:, 0], matched[:, 1]
        else:
            S = matched[:, m : m + m * m].reshape(-1, m, m)
            f, leverage = matched[:, :m], np.diagonal(S, axis1=1, axis2=2)
        own = self.settings.relative_precision(block)
        D, u, _ = row_scores(self.settings.likelihood, block.y, f, D, leverage, own)
        return replace(self, inner=inner, sandwich=self._sums(D.shape[1]).after_rows(D, u, block.weights))

    def with_scores_of(self, source: Source) -> "Sandwiched":
        """Return the state with the scores of the rows of a source, which it has learned; see `residual_scores`."""
        return replace(self, sandwich=residual_scores(self.inner.belief, self.core.faded(source)))

    # ---- what becomes of the inner state ---------------------------------------------------------------

    def closed(self) -> "Sandwiched":
        """Return the state after a batch; its rows without a label are a cluster of their own."""
        name = f"{UNNAMED}{next_unnamed(self.held_groups)}"
        groups = tuple(name if one == "" else one for one in self.held_groups)
        sandwich = self.sandwich and self.sandwich.closed()
        return replace(self, inner=self.inner.closed(), sandwich=sandwich, held_groups=groups)

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
        from kalprox.learning.new_class import with_class_from

        sandwich = self.sandwich and self.sandwich.in_coordinates(with_class_from(self.inner.belief.design))
        return replace(self, settings=settings, inner=self.inner.with_class(settings), sandwich=sandwich)

    def without_rows(self) -> "Sandwiched":
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
        if scores is not None:
            scores = scores if J is None else scores.in_coordinates(J)
            scores = scores if self.sandwich is None else self.sandwich + scores
        return replace(self, inner=self.inner.merge(other.inner), sandwich=scores)

    def _with_held(self, other: "Sandwiched") -> "Sandwiched":
        """Return the state after the rows that another one holds in its warm-up."""
        before: Any = self.inner
        inner, rows, found = before.with_held(other.inner)
        if rows is None:
            return self
        if other.held_groups:
            first = next_unnamed(self.held_groups if self.sandwich is None else self.sandwich.groups)
            rows = replace(rows, groups=np.array([moved(one, first) for one in other.held_groups]))
        return self.after_step(Step(rows, before, inner, found))

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
