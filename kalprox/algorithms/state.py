"""The state of the proximal filter, the rows that it holds, and what is read from it.

A linearisation far from the solution is never corrected later. The first rows are therefore held in memory. From time
to time they are refined to convergence, and the warm-up ends when no single row has much influence on the estimate,
that is when every leverage is below 0.1. If the loss is convex and there are 100 rows for each coefficient, 1% of them
may have more, below 0.5. Rows with a leverage of 0.1 or more under the current belief are held on after the warm-up,
and refined again with every block, until their leverage has fallen. With a robust loss the warm-up takes at least 1,000
rows, because rows that were folded while others that lie had the majority are never corrected either.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kalprox.algorithms.base import Problem
from kalprox.algorithms.refine import Refined, refine
from kalprox.base.arrays import Array, brief, is_traced, namespace, pytree, static
from kalprox.base.control import full_precision
from kalprox.base.text import count
from kalprox.base.tree import leaf
from kalprox.information import Information
from kalprox.information.linearized import (
    Expansion,
    curved_variance,
    errors_of,
    expand,
    output_leverage,
    skewness,
    sums_of,
)
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.base import Learned
from kalprox.models import Model, Predictor
from kalprox.noise import Noise, log_evidence
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive, central_interval
from kalprox.regularizers import Regularizer, Zero
from kalprox.sources import ArraySource, Block, Source
from kalprox.sources.weighting import faded_block

_GUESSED = 10.0  # the weight of a guess, in rows
_MANY = 100  # rows, before which a share of outliers says little
_REJECTED = 0.4  # the share of rows flagged as outliers from which on the estimate is rather wrong than the rows


def first_numbers(model: Model, given: Likelihood, theta: Array, block: Block) -> Learned:
    """Return a guess of the parameter from the errors of a first block at theta, where there is no warm-up."""
    return guessed_numbers(given, lambda likelihood: errors_of(model, likelihood, theta, block))


def guessed_numbers(given: Likelihood, sums_at: Callable[[Likelihood], Array]) -> Learned:
    """Return a guess of the parameter, given the sums over some rows that a likelihood learns from."""
    likelihood = given
    if getattr(given, str(given.parameter)) is None:
        likelihood = given.learned(given, sums_at(given))
    sums = 0 * sums_at(likelihood)
    known = namespace(sums).asarray([0.0, _GUESSED] + [0.0] * (len(sums) - 2), sums.dtype)
    return Learned(likelihood.with_model_numbers().numbers, known)


def next_numbers(
    learned: Learned, given: Likelihood, at: Expansion, block: Block, covariance: Any, left: Any, *, held: bool = False
) -> Learned:
    """Return what is known after a block that was expanded at the belief before it, with this covariance of theta.

    `left` is the share of earlier rows that forgetting has left. Warn when more than 40% of the rows have become
    outliers, unless the rows are `held` and will be refined again.
    """
    found = learned.plus(given, sums_of(learned.likelihood(given), at, block, covariance), left)
    if not held and not is_traced(found):
        warn_of_outliers(given, learned, found)
    return found


def outliers_of(given: Likelihood, learned: Learned | None) -> float | None:
    """Return the number of rows that were outliers for a robust likelihood; None if the likelihood is not robust."""
    if not given.majorizes:
        return None
    return 0.0 if learned is None else float(learned.sums[-2])


def warn_of_outliers(given: Likelihood, before: Learned, now: Learned) -> None:
    """Warn if more than 40% of the rows have become outliers."""
    if not given.majorizes:
        return
    earlier, share = (float(sums[-2] / max(sums[-1], _MANY)) for sums in (before.sums, now.sums))
    if earlier <= _REJECTED < share:
        warnings.warn(
            f"{share:.0%} of the rows so far are outliers for the estimate. Either most of the first rows were "
            "outliers, or the coefficients have changed since: use refine, or fit, on all rows, or forget < 1.",
            RuntimeWarning,
            stacklevel=6,
        )


def parameter_matters(model: Model, given: Likelihood, fit: Refined, rows: Block) -> float:
    """Return by how much the information of the rows of a refinement depends on what is not known of the parameter.

    It is the share by which the curvature of their losses changes within a standard deviation of the parameter. Rows
    that hardly depend on it leave it unknown without harm; the first rows of counts may all be zeros, which go with any
    dispersion, and have hardly any curvature with a large one. It is 0 if no parameter is learned, and for the scale of
    a robust loss, which says how sure the estimate is and hardly what it is.
    """
    if not given.learns or given.majorizes or fit.sums is None:
        return 0.0
    numbers = fit.likelihood.numbers
    with np.errstate(divide="ignore"):
        error = 1 / np.sqrt(fit.sums[1])  # of the log of the parameter
    low, high = (given.with_numbers(np.clip(numbers * (1 + side * error), *given.bounds)) for side in (-1, 1))
    expanded = (expand(model, likelihood, fit.mean, rows) for likelihood in (low, fit.likelihood, high))
    less, here, more = (float(np.sum(np.asarray(at.weights))) for at in expanded)
    return max(abs(less - here), abs(more - here)) / here


def learned_by(fit: Refined) -> Learned | None:
    """Return what a refinement has learned; None if the likelihood has no parameter."""
    return None if fit.sums is None else Learned(fit.likelihood.numbers, fit.sums)


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
        """Return no rows, which are to be checked for the first time."""
        return cls((), start, start, next_look=0).anew()

    def anew(self) -> "HeldRows":
        """Return the rows, to be checked at 10 d rows: fewer cannot all have a leverage below 0.1."""
        return replace(self, next_look=int(len(self.start) / MAX_LEVERAGE))

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
        return replace(faded_block(Block.joined(self.blocks), forget, kind)[0], times=None)


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
    model: Model, likelihood: Likelihood, g: Regularizer, rows: Block, start: Array, prior: Information, tol: float
) -> Refined:
    """Refine the held rows to convergence, to a relative precision of `tol`, starting from `start`."""
    passes = _PASSES * (4 if likelihood.learns else 1)
    return refine(model, g, _source(rows), start, prior=prior, max_passes=passes, tol=tol, likelihood=likelihood)


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


class FilterState(ABC):
    """What is read from the state of a proximal filter, whatever holds its information."""

    problem: Problem
    learned: Learned | None  # of the likelihood's parameter; None if it has none, or nothing has been learned
    posterior: Any  # of theta, from which all quantities are computed

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, with the parameter that has been learned, such as the scale of `Huber`."""
        given, known = self.problem.likelihood, self._known
        return given if known is None else known.likelihood(given)

    @property
    def mean(self) -> Array:
        """The estimate: the minimiser of (1), as the prox of g in the metric of the data and the prior."""
        return self.posterior.mean

    @property
    def noise(self) -> Noise:
        """The noise variance, given or learned from the residuals, and its degrees of freedom."""
        found: Noise = self.posterior.noise
        return found

    @property
    def outliers(self) -> float | None:
        """The number of rows that were outliers for a robust likelihood, as much as forgetting has left of each.

        A row is one if its error is larger than that of all but one of 1,000 good rows, under the belief before it, or
        under the estimate of a warm-up. None if the likelihood is not robust.
        """
        return outliers_of(self.problem.likelihood, self._known)

    @property
    def _known(self) -> Learned | None:
        """What is known of the likelihood's parameter."""
        return self.learned

    @abstractmethod
    def predict(self, X: Array, sigma: Any = None) -> Predictive:
        """Return the predictive distribution for new rows, including the noise."""

    def interval(self, X: Array, level: float = 0.95, sigma: Any = None) -> tuple[Array, Array]:
        """Return central predictive intervals for new rows: Student's t if the noise variance is learned.

        Parameters
        ----------
        X : array of shape (n, ...)
        level : float
            Strictly between 0 and 1.
        sigma : float or array of shape (n,), optional
            The relative standard deviation of the noise of the new rows; see `predict`.

        Returns
        -------
        low, high : arrays of shape (n,)
        """
        return central_interval(self.predict(X, sigma), level)


@pytree
class ProximalState(FilterState):
    """The state of the proximal filter: the information of the rows and of the prior.

    Everything else is computed from the state on demand and does not change it, so that the same rows give the same
    state, whether or not it was read in between.
    """

    problem: Problem = leaf(given=True)
    prior: Information = leaf(of="p")
    data: Information = leaf(of="p")
    estimate: Array = leaf("p")  # where a nonlinear model linearises the next block
    held: HeldRows | None = None  # None if the model needs no warm-up, or its warm-up has ended
    extrapolating: Block | None = leaf(of="d+f", default=None)  # rows not yet in `data`; None if there are none
    cut_short: bool = leaf(default=False, static=True)  # whether a memory limit has cut the warm-up, or rows after it
    learned: Learned | None = None  # of the likelihood's parameter; None if it has none, or nothing has been learned
    time: float | None = leaf(default=None, static=True)  # of the last row, if rows are forgotten by time
    skew: Array | None = leaf("p", default=None)  # of rows that were refined; later ones are learned by their means
    elapsed: float = static(default=1.0)  # what the time since the last row has left; see `later`

    @classmethod
    def _start(cls, problem: Problem, mean: Array) -> "ProximalState":
        """Return the state before the first row, without a prior; a nonlinear model starts at `mean`."""
        zero = Information.zero(len(mean), dtype=mean.dtype, xp=namespace(mean))
        return cls(problem, zero, zero, mean, None if problem.exact or problem.warmup == 0 else HeldRows.none(mean))

    def __repr__(self) -> str:
        about, p = f"data={self.data!r}, prior={self.prior!r}", self.problem
        held = "" if self.held is None else f", held={count(len(self.held.blocks), 'block')}"
        return f"ProximalState({brief(p.model)}, {brief(p.regularizer)}, {about}{held})"

    @cached_property
    def posterior(self) -> InformationPosterior:
        """The posterior of theta, from which all quantities below are computed.

        Before the first check of a warm-up, at 10 d rows, it refines the rows held. After that its cost does not depend
        on the number of rows held: `data` has those of the last check, and the rows since then as the filter learns
        them.
        """
        p, found = self.problem, self.linearization
        if p.exact or self.inner is p.regularizer:
            return found
        return InformationPosterior(found.data, p.regularizer, start=found.mean, **self.refined.options)

    @property
    def is_fresh(self) -> bool:
        """Whether the rows of a warm-up have not been checked yet, so that they are held and nothing else is known."""
        return self.held is not None and not np.any(self.data.T)

    @property
    def options(self) -> dict[str, Any]:
        """What a posterior takes of the state besides the information."""
        about = {"gamma": self.problem.gamma, "prior": self.prior, "likelihood": self.likelihood}
        return about | {"elapsed": self.elapsed, "skew": self.skew}

    @cached_property
    def linearization(self) -> InformationPosterior:
        """The posterior at whose mean the next block is linearised: that of `inner`."""
        now = self.refined
        data, mean = now.data, None if now.problem.exact else now.estimate
        if now.extrapolating is not None:
            data = with_block(now, data, now.extrapolating)
        return InformationPosterior(data, self.inner, mean=mean, **now.options)

    @cached_property
    def refined(self) -> "ProximalState":
        """The state with the rows of a warm-up refined that have not been checked yet; at other times itself."""
        if not (self.is_fresh and self.held is not None and self.held.rows):
            return self
        p, fit = self.problem, self.fit
        state = replace(self, data=fit.information, estimate=fit.mean, held=None, learned=learned_by(fit), skew=None)
        skew = skew_of(p.model, state.linearization, self.held_block) if fit.converged else None
        return replace(state, skew=skew)

    @cached_property
    def fit(self) -> Refined:
        """The refinement of the rows held so far."""
        assert self.held is not None
        p = self.problem
        return refine_held(p.model, p.likelihood, self.inner, self.held_block, self.held.start, self.prior, TOL)

    @property
    def held_block(self) -> Block:
        """The rows held in a warm-up, with their weights after forgetting."""
        assert self.held is not None
        return self.held.faded(self.problem.forget, self.problem.weight_kind)

    @cached_property
    def inner(self) -> Regularizer:
        """The penalty under which rows are linearised: g, or none if g has kinks and there is a prior.

        A penalty with kinks holds coefficients at zero as long as there are few rows, and says that they are known.
        Rows would be linearised there for good. So it is applied when the state is read, and not before. Bounds, which
        h may rely on, are always kept.
        """
        g, ones = self.problem.regularizer, np.ones(len(self.estimate))
        if self.problem.exact or g.smooth or is_traced(self.prior, self.estimate) or not np.any(self.prior.T):
            return g
        return Zero() if np.isfinite(g.value(ones)) and np.isfinite(g.value(-ones)) else g

    @property
    def _known(self) -> Learned | None:
        return self.refined.learned

    def cov(self) -> Array:
        """Return the covariance, (R'R + Hess g)^-1 times the noise variance; less after forgetting.

        See `kalprox.posterior.Posterior.cov` and `kalprox.posterior.InformationPosterior`.
        """
        return self.posterior.cov()

    def var(self) -> Array:
        """Return the variances of theta, shape (d,)."""
        return self.posterior.var()

    @property
    def rows(self) -> Array:
        """The number of rows, as much as forgetting has left of each; repetitions count."""
        return self.posterior.data.rows

    @property
    def predicts(self) -> bool:
        """Whether predictions are claims: not in a warm-up, nor before the first row if there is no prior."""
        if self.held is not None:
            return False
        return is_traced(self) or bool(np.any(np.asarray(self.data.T)) or np.any(np.asarray(self.prior.T)))

    @full_precision
    def predict(self, X: Array, sigma: Any = None) -> Predictive:
        """Return the predictive distribution for new rows, including the noise.

        Parameters
        ----------
        X : array of shape (n, ...)
        sigma : float or array of shape (n,), optional
            The standard deviation of the noise of the new rows, relative to that of a row of weight 1 (the default).

        Returns
        -------
        Predictive
        """
        f, D = self.problem.model.linearize_rows(self.posterior.expected, X)
        return self.posterior.predict(f, D, sigma)

    def log_evidence(self) -> Array:
        """Return the log evidence log p(y), for linear h and quadratic g; see `kalprox.noise.log_evidence`."""
        if not self.problem.exact:
            raise ValueError("log_evidence needs a linear model; got a nonlinear one.")
        if np.any(np.asarray(self.prior.T)):
            raise ValueError("log_evidence uses g as the prior: start with v0=None and a Ridge or Quadratic g.")
        data = self.data
        g, gamma = self.problem.regularizer, self.problem.gamma
        return log_evidence(data.R, data.z, data.rss, data.rows, g, gamma, data.fading)

    @property
    def converged(self) -> bool:
        """Whether the rows determine the estimate: False after a check that did not end the warm-up, or a cut."""
        if self.cut_short or self.held is None or self.held.settled or not self.held.rows:
            return not self.cut_short
        return self.is_fresh and self.fit.converged


def with_block(state: ProximalState, data: Information, block: Block) -> Information:
    """Return `data` with a block linearised at the estimate of the state."""
    return with_rows(data, expand(state.problem.model, state.likelihood, state.estimate, block), state.estimate)


def with_rows(data: Information, at: Expansion, theta: Array, some: Array | None = None) -> Information:
    """Return `data` with rows whose steps are from theta, or some of them."""
    rows = at.D, at.targets + at.D @ theta, at.weights, at.counts, at.squares
    return data.fold(*(a if a is None or some is None else a[some] for a in rows))
