"""The rows that a nonlinear stream holds in memory: those of its warm-up, and later those that extrapolate.

A linearisation far from the solution is never corrected later. The first rows are therefore held in memory. From time
to time they are refined to convergence, and the warm-up ends when no single row has much influence on the estimate,
that is when every leverage is below 0.1. If the loss is convex and there are 100 rows for each coefficient, 1% of them
may have more, below 0.5. Rows with a leverage of 0.1 or more under the current belief are held on after the warm-up,
and refined again with every block, until their leverage has fallen. With a robust loss the warm-up takes at least 1,000
rows, because rows that were folded while others that lie had the majority are never corrected either.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kalprox.algorithms.refine import Refined, refine
from kalprox.base.arrays import Array, pytree
from kalprox.base.tree import leaf
from kalprox.information import Information
from kalprox.information.linearized import curved_variance, expand, output_leverage, skewness
from kalprox.likelihoods import Likelihood
from kalprox.models import Model, Predictor
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Regularizer
from kalprox.sources import ArraySource, Block, Source
from kalprox.sources.forgetting import faded
from kalprox.sources.weighting import counts_of

__all__ = [
    "MAX_CHANGE",
    "MAX_LEVERAGE",
    "ROBUST_ROWS",
    "TOL",
    "HeldRows",
    "WarmupCutShort",
    "bytes_of",
    "counted",
    "far_rows",
    "leverages",
    "refine_held",
    "skew_of",
]

MAX_LEVERAGE = 0.1  # the warm-up ends when all leverages are below this; see docs/explanation/proximal_filter.md
ROBUST_ROWS = 1000  # held at least with a robust loss: rows that lie may come in bursts, and be most of the first rows
MAX_CHANGE = 0.2  # of the curvature of the loss of a row that is linearised once, within a standard deviation of f
_MAX_BEND = 0.05  # the share of the variance of h that may be nonlinear in a row that is linearised once
_GROWTH = 1.5  # the number of rows at the next check, relative to this one
_SETTLED_GROWTH = 3  # the same, if the rows determine theta and more are only held because some may lie
_PASSES = 50  # passes over the held rows at a check; a fit that needs more is diverging, and needs more rows
_RUNAWAY = 0.75  # a fit with a larger leverage has diverged; see docs/explanation/proximal_filter.md
TOL = 1e-6  # relative; far below the relative standard errors, which are about sqrt(d / rows)


class WarmupCutShort(RuntimeWarning):
    """The memory limit of the warm-up was reached before its rows determined theta well."""


@pytree
class HeldRows:
    """The rows held in a warm-up, block by block, and the number of rows at which they are checked next."""

    blocks: tuple[Block, ...] = leaf(of="d+f")
    start: Array = leaf("p")  # where the next refinement starts
    origin: Array = leaf("p")  # where the first refinement started
    next_look: int = leaf(static=True)
    settled: bool = leaf(default=False, static=True)  # whether the estimate was determined, but more rows were wanted

    @classmethod
    def none(cls, start: Array) -> "HeldRows":
        """Return no rows, to be checked at 10 d rows: fewer cannot all have a leverage below 0.1."""
        return cls((), start, start, next_look=int(len(start) / MAX_LEVERAGE))

    @property
    def rows(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def bytes(self) -> int:
        return sum(map(bytes_of, self.blocks))

    def plus(self, block: Block) -> "HeldRows":
        """Return the held rows with one more block.

        Blocks are joined with later ones that are as long, so that few are left of many short ones.
        """
        kept, total = len(self.blocks), len(block)
        while kept and len(self.blocks[kept - 1]) <= total:
            kept -= 1
            total += len(self.blocks[kept])
        return replace(self, blocks=(*self.blocks[:kept], Block.joined([*self.blocks[kept:], block])))

    def is_due(self, limit: int) -> bool:
        """Whether to check the rows now: there are enough of them, or they take `limit` bytes."""
        return self.rows >= self.next_look or self.bytes >= limit

    def to_check(self) -> "HeldRows":
        """Return the rows, to be checked at once, after which the warm-up goes on."""
        return replace(self, next_look=0)

    def may_end(self, limit: int) -> bool:
        """Whether a check may end the warm-up: not one before its time, unless the rows take `limit` bytes."""
        return self.next_look > 0 or self.bytes >= limit

    def later(self, fit: Refined, leverage: float, settled: bool) -> "HeldRows":
        """Return the same rows, to be checked again when there are 1.5 times as many; 3 times, if they are settled.

        A fit that diverged is not a good start for the next one: on a plateau of the link there is no way back.
        """
        start = fit.mean if fit.converged and leverage < _RUNAWAY else self.origin
        rows = min(_SETTLED_GROWTH * self.rows, ROBUST_ROWS) if settled else int(_GROWTH * self.rows)
        return replace(self, start=start, next_look=rows, settled=settled)

    def moved(self, rows: Callable[[Block], Block], theta: Callable[[Array], Array]) -> "HeldRows":
        """Return the rows in other coordinates: `rows` of each block, and `theta` of each parameter vector."""
        blocks = tuple(map(rows, self.blocks))
        return replace(self, blocks=blocks, start=theta(self.start), origin=theta(self.origin))

    def faded(self, forget: Any, kind: str) -> Block:
        """Return all rows as one block, with their weights, of that `kind`, after forgetting."""
        rows = Block.joined(self.blocks)
        weights, counts, squares, _ = faded(rows.weights, forget, counts_of(rows.weights, kind), rows.times)
        return replace(rows, weights=weights, counts=counts, squares=squares, times=None)


def bytes_of(rows: Block) -> int:
    """Return the bytes that rows take."""
    return sum(int(a.nbytes) for a in (rows.X, rows.y, rows.weights, rows.counts, rows.squares) if a is not None)


def counted(rows: Block) -> Block:
    """Return rows that extrapolate as they are held after the warm-up, with their weights after forgetting.

    The leverages of rows that have been learned add up to at most d, so that only 10 d rows or so are held.
    """
    counts = rows.weights if rows.counts is None else rows.counts
    squares = counts if rows.squares is None else rows.squares
    return Block(rows.X, rows.y, rows.weights, counts=counts, squares=squares)


def refine_held(
    model: Model,
    likelihood: Likelihood,
    regularizer: Regularizer,
    rows: Block,
    start: Array,
    prior: Information,
    tol: float = TOL,
) -> Refined:
    """Refine the held rows to convergence, to a relative precision of `tol`, starting from `start`."""
    source = _source(rows)
    passes = _PASSES * (4 if likelihood.learns else 1)
    return refine(model, regularizer, source, start, prior=prior, max_passes=passes, tol=tol, likelihood=likelihood)


def _source(rows: Block) -> ArraySource:
    return ArraySource(rows.X, rows.y, rows.weights, counts=rows.counts, squares=rows.squares)


def skew_of(model: Model, posterior: InformationPosterior, rows: Block | Source) -> Array | None:
    """Return the `skewness` of rows that were refined, over their posterior. One pass.

    None if h is not linear, if the loss is symmetric, and if a direction of theta is undetermined.
    """
    likelihood = posterior.likelihood
    if not model.linear or likelihood.quadratic or likelihood.location or not posterior.proper:
        return None
    source, noise_var = _source(rows) if isinstance(rows, Block) else rows, float(posterior.noise.variance)
    V = np.asarray(posterior.factors[0].covariance()) * (1.0 if np.isnan(noise_var) else noise_var)
    with np.errstate(all="ignore"):
        found = source.fold(partial(skewness, model, likelihood, np.asarray(posterior.mean), V)).total
    return found if found is not None and np.isfinite(found).all() else None


def leverages(model: Model, posterior: InformationPosterior, rows: Block) -> tuple[Array, Array, Array]:
    """Return the leverage of each row, whether it is bent, and whether one linearisation of it is not enough.

    The leverage is the variance of h under the belief, in units of the noise variance and times the weight of the row:
    d'Vd for a nearly linear h. A row far from the others has a large one, and so has a row on which a link that looks
    flat at the estimate may well not be flat; see `output_leverage` and `curved_variance`. It is infinite where a
    direction of theta is undetermined, or no degrees of freedom are left. Of a row with several outputs the largest
    counts.

    A row is bent if more than 5% of the variance of h is not linear in theta, or if the curvature of the loss changes
    by more than 20% within a standard deviation of the belief, as it does for rare events; unless the leverage is so
    small that even as many such rows as there are in all would have less than 0.1 together. One linearisation is not
    enough if the row is bent, or if its leverage is 0.1 or more.
    """
    noise_var, metric = float(posterior.noise.variance), posterior.metric_factors[0]
    if not (posterior.proper and noise_var >= 0):
        return np.full(len(rows), np.inf), np.ones(len(rows), bool), np.ones(len(rows), bool)
    at = expand(model, posterior.likelihood, posterior.mean, rows)
    bent = np.zeros(at.f.shape, bool)
    if isinstance(model, Predictor) and not model.linear:
        found, share = output_leverage(model, posterior.mean, rows.X, metric.leverage(rows.X), noise_var)
        bent = share > _MAX_BEND
    else:
        found = metric.leverage(at.D)
        if not posterior.likelihood.quadratic:
            spread = noise_var if posterior.likelihood.location else 1.0  # counts are learned as Poisson counts are
            f, std = (a.reshape(rows.y.shape) for a in (at.f, np.sqrt(found * spread)))
            bent = (posterior.likelihood.curvature_change(rows.y, f, std) > MAX_CHANGE).ravel()
        if not model.linear:
            curved = curved_variance(model, posterior.mean, rows.X, metric, noise_var)
            found = found + curved
            bent = bent | (curved > _MAX_BEND * found)
    found = np.asarray(found if at.weights is None else at.weights * found).reshape(len(rows), -1)
    bent = _is_bent(found, bent.reshape(len(rows), -1), float(posterior.data.rows)).any(axis=1)
    leverage = found.max(axis=1)
    return leverage, bent, bent | (leverage >= MAX_LEVERAGE)


def far_rows(likelihood: Likelihood, y: Array, f: Array, variance: Array, weights: Array, rows: float) -> Array:
    """Return for which observations one linearisation is not enough, as in `leverages`.

    The beliefs about the outputs were N(f, variance), the loss is elementwise, and `rows` were learned before.
    """
    found = likelihood.expand(y, f)[1] * weights * variance
    bent = _is_bent(found, likelihood.curvature_change(y, f, np.sqrt(variance)) > MAX_CHANGE, rows)
    return bent | (found >= MAX_LEVERAGE)


def _is_bent(leverage: Array, bent: Array, rows: float) -> Array:
    return bent & (leverage * rows >= MAX_LEVERAGE)
