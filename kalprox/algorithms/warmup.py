"""The warm-up of a nonlinear stream: hold the first rows, and iterate on them until they determine theta well.

A linearisation made far from the solution is never corrected later. So the first rows are held, and refined to
convergence at each look, until no single row has much influence on the estimate (its leverage is below 0.1).
"""

from typing import Any

import numpy as np

from kalprox._arrays import Array, pytree, static
from kalprox.algorithms.refine import Refined, refine
from kalprox.information import Information
from kalprox.information.linearized import expand
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Regularizer
from kalprox.sources import Block
from kalprox.sources.forgetting import faded

__all__ = ["MAX_LEVERAGE", "HeldRows", "WarmupCutShort", "largest_leverage", "refine_held"]

MAX_LEVERAGE = 0.1  # of the most influential held row, below which the warm-up ends; docs/proximal_filter.md
_GROWTH = 1.5  # rows held at the next look, relative to this one
_PASSES = 50  # over the held rows at a look: a fit that needs more is running away, and needs more rows
_TOL = 1e-6  # relative; far below the standard errors, which are about sqrt(d / rows) of theta


class WarmupCutShort(RuntimeWarning):
    """The memory limit of the warm-up was reached before its rows determined theta well."""


@pytree
class HeldRows:
    """The rows of a warm-up, block by block, and the number of rows at which it is looked at next."""

    X: tuple[Array, ...]
    y: tuple[Array, ...]
    weights: tuple[Array, ...]
    next_look: int = static()

    @classmethod
    def none(cls, d: int) -> "HeldRows":
        """Before the first row. Fewer than 10 d rows cannot all have a leverage below 0.1."""
        return cls((), (), (), next_look=int(d / MAX_LEVERAGE))

    @property
    def rows(self) -> int:
        return sum(map(len, self.y))

    @property
    def bytes(self) -> int:
        return sum(a.nbytes for a in (*self.X, *self.y, *self.weights))

    def plus(self, block: Block) -> "HeldRows":
        """With one more block."""
        return HeldRows((*self.X, block.X), (*self.y, block.y), (*self.weights, block.weights), self.next_look)

    def later(self) -> "HeldRows":
        """The same rows, to be looked at again when there are half as many more."""
        return HeldRows(self.X, self.y, self.weights, int(_GROWTH * self.rows))

    def block(self, forget: Any) -> Block:
        """All rows as one block, with their weights as they have faded."""
        X, y, weights = map(np.concatenate, (self.X, self.y, self.weights))
        return Block(X, y, faded(weights, forget)[0])


def refine_held(
    model: Model,
    likelihood: Likelihood,
    regularizer: Regularizer,
    rows: Block,
    start: Array,
    prior: Information,
) -> Refined:
    """The held rows refined to convergence, from `start`."""
    source = rows.X, rows.y, rows.weights
    return refine(model, regularizer, source, start, prior=prior, max_passes=_PASSES, tol=_TOL, likelihood=likelihood)


def largest_leverage(model: Model, posterior: InformationPosterior, rows: Block) -> float:
    """The weight times the leverage of the most influential row; infinite where a direction is undetermined."""
    at = expand(model, posterior.likelihood, posterior.mean, rows)
    if not posterior.proper:
        return np.inf
    leverage = posterior.leverage(at.D)
    return float((leverage if at.weights is None else at.weights * leverage).max())
