"""The state of the proximal filter, and what is read from it."""

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.algorithms.base import Problem
from kalprox.algorithms.parameters import learned_by, outliers_of
from kalprox.algorithms.refine import Refined
from kalprox.algorithms.warmup import HeldRows, refine_held, skew_of
from kalprox.base.arrays import Array, brief, is_traced, pytree, static
from kalprox.base.control import full_precision
from kalprox.base.text import count
from kalprox.base.tree import leaf
from kalprox.information import Information
from kalprox.information.linearized import expand
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.parameters import Learned
from kalprox.noise import Noise, log_evidence
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive, central_interval
from kalprox.regularizers import Regularizer, Zero
from kalprox.sources import Block

__all__ = ["FilterState", "ProximalState", "with_block"]


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
        return refine_held(p.model, p.likelihood, self.inner, self.held_block, self.held.start, self.prior)

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
    at = expand(state.problem.model, state.likelihood, state.estimate, block)
    return data.fold(at.D, at.targets + at.D @ state.estimate, at.weights, at.counts, at.squares)
