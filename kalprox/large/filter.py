"""The proximal filter of many parameters: a precision matrix of a given structure, and no warm-up.

Each block of rows is a proximal step: the estimate after it minimises the loss of its rows plus the metric of all rows
before it, 1/2 (theta - m)'P(theta - m). For a linear model and the Gaussian likelihood one step is exact. For a
nonlinear model the step is iterated, each time linearised at the point found last, and damped so that the sum falls;
a block on which that does not converge is taken in smaller pieces. Losses of linear models that are not quadratic are
fitted to their moments under the belief, in pieces that say less than all rows before them.
"""

import warnings
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.algorithms.base import Algorithm, Problem, checked_rows, start_mean
from kalprox.algorithms.state import FilterState
from kalprox.base.arrays import Array, Partial, asarray_like, brief, is_traced, namespace, pytree, static
from kalprox.base.checks import check_positive, concrete
from kalprox.base.control import full_precision
from kalprox.base.pickling import PickledFields
from kalprox.large.information import Structured
from kalprox.large.posterior import StructuredPosterior, noise_of
from kalprox.large.prox import minimise, ridge_of
from kalprox.large.step import Found, learn_pieces, learns_compiled
from kalprox.likelihoods.base import Learned
from kalprox.predictive import Predictive
from kalprox.regularizers import Regularizer, Zero
from kalprox.sources import Block
from kalprox.sources.forgetting import faded
from kalprox.sources.times import in_order
from kalprox.sources.weighting import counts_of
from kalprox.structures import Structure, UnderstatedWarning

__all__ = ["StructuredState", "structured_filter"]

_LOST = 1e-6  # the share of the precision below which nothing is said of what a structure drops
_ROUNDING = 0.1  # the rounding error, in standard errors, from which on a warning is given
_BYTES = 1 << 26  # of the Jacobian of rows that are predicted at a time


@pytree
class StructuredState(PickledFields, FilterState):
    """The state of the proximal filter with a structure: the information of the rows and of the prior."""

    problem: Problem
    data: Structured
    estimate: Array  # where a nonlinear model linearises the next block
    learned: Learned | None = None  # of the likelihood's parameter; None if it has none, or nothing has been learned
    absorbed: bool = static(default=False)  # whether g is the prior, and in `data`
    time: float | None = static(default=None)  # of the last row, if rows are forgotten by time

    def __repr__(self) -> str:
        p, data = self.problem, self.data
        about = f"{data.d} parameters, rank={data.rank}, rows={brief(data.rows)}"
        return f"StructuredState({brief(p.model)}, {brief(p.regularizer)}, {about})"

    @cached_property
    def posterior(self) -> StructuredPosterior:
        """The posterior of theta, from which all quantities below are computed."""
        p, data, g = self.problem, self.data, Zero() if self.absorbed else self.problem.regularizer
        found = minimise(data.precision, data.mean, g, None if p.exact else self.estimate)
        noise = noise_of(data, self.likelihood, p.gamma, g=g, mean=found.theta)
        return StructuredPosterior(found.theta, noise, self.likelihood, lambda: data.factor(g, found.theta))

    @cached_property
    def inner(self) -> Regularizer:
        """The penalty under which rows are linearised: g if it is smooth or has bounds, and else none."""
        g = self.problem.regularizer
        if self.absorbed:
            return Zero()
        if g.smooth or self.problem.exact:
            return g
        ones = np.ones(self.data.d)
        return Zero() if np.isfinite(g.value(ones)) and np.isfinite(g.value(-ones)) else g

    @property
    def rows(self) -> Array:
        """The number of rows, as much as forgetting has left of each; repetitions count."""
        return self.data.rows

    @property
    def predicts(self) -> bool:
        """Whether predictions are claims: always, because there is a prior."""
        return True

    def var(self) -> Array:
        """Return the variances of theta, shape (d,); warn if they are known to be too small."""
        self._warn()
        return self.posterior.var()

    def cov(self) -> Array:
        """Return the covariance of theta, shape (d, d), of up to 5,000 parameters; warn as `var` does."""
        self._warn()
        return self.posterior.cov()

    def _warn(self, stacklevel: int = 3) -> None:
        """Warn, once for each state, of variances that are too small."""
        if "_warned" in self.__dict__ or is_traced(self):
            return
        self.__dict__["_warned"] = True
        lost = float(self.data.dropped)
        if lost > _LOST:
            warnings.warn(
                "The variances of single parameters, and of the mean along contrasts of correlated inputs, are too "
                f"small: of {lost:.0%} of the precision that the rows have added, the structure keeps no correlations, "
                "and without them everything seems better known than it is. Predictions that include the noise are "
                "affected far less; their std is measured by kp.run(..., calibrate=True), and conformal intervals "
                "correct it. A higher rank, or structure='dense', keeps more.",
                UnderstatedWarning,
                stacklevel=stacklevel,
            )

    @full_precision
    def predict(self, X: Array, sigma: Any = None) -> Predictive:
        """Return the predictive distribution for new rows, including the noise.

        Parameters
        ----------
        X : array of shape (n, ...)
        sigma : float or array of shape (n,), optional
            The standard deviation of the noise of the new rows, relative to that of a row of weight 1 (the default).
            With 0 the std is that of the mean alone. Do not rely on it for a network, whose misfit counts as noise, or
            where the structure drops correlations, of which a warning tells: it is too small. That of new rows, noise
            included, is what the verdict of a calibration judges.

        Returns
        -------
        Predictive
        """
        if sigma is not None and (given := concrete(sigma)) is not None and not np.any(given):
            self._warn(stacklevel=4)
        xp, mean = namespace(X), self.mean
        parts: list[tuple[Array, Array]] = []
        start, most = 0, 1 if mean.nbytes > _BYTES else min(len(X), 16)
        while start < len(X) or not parts:
            f, D = self.problem.model.linearize_rows(mean, X[start : start + most])
            parts.append((f, self.posterior.output_variance(f, D)))
            start += most
            most = max(1, _BYTES // max(D[:1].nbytes, 1))  # now that the number of outputs is known
            most = 1 << (most.bit_length() - 1)  # few lengths, so that few are compiled
        f, leverage = parts[0] if len(parts) == 1 else tuple(xp.concatenate(a) for a in zip(*parts, strict=True))
        return self.posterior.predictive(f, leverage, sigma)


def structured_filter(problem: Problem, structure: Structure) -> Algorithm:
    """Return the filter of a problem with a structure; see `kalprox.proximal_filter`."""
    return Algorithm(
        init=Partial(_init, (problem, structure)),
        step=Partial(_step, (problem,)),
        predict=Partial(StructuredState.predict, ()),
        by_block=True,
    )


def _init(problem: Problem, structure: Structure, mean0: Any, v0: Any = None) -> StructuredState:
    mean = start_mean(mean0)
    xp, d = namespace(mean), len(mean)
    if v0 is None:
        ridge = ridge_of(problem.regularizer, d)
        if ridge is None:
            raise ValueError(
                f"structure={structure!r} needs a prior: give v0, the prior variance of the parameters, as a number or "
                "with one entry per parameter, or a Ridge regulariser with a positive weight."
            )
        data = structure.start(xp.zeros_like(mean), asarray_like(ridge, mean))
        return StructuredState(problem, data, mean, absorbed=True)
    v = np.asarray(v0) if concrete(v0) is not None else v0
    if not hasattr(v, "shape") or v.shape not in ((), (d,)):
        raise ValueError(
            f"v0 must be a number or have shape ({d},) with structure={structure!r}, whose prior is diagonal; "
            f"got {brief(v0)}."
        )
    check_positive("v0", v)
    gamma = 1.0 if problem.gamma is None else problem.gamma / problem.likelihood.unit
    return StructuredState(problem, structure.start(mean, asarray_like(1 / (v * gamma), mean)), mean)


@full_precision
def _step(
    problem: Problem,
    state: StructuredState,
    X: Array,
    y: Array,
    weights: Array | None = None,
    times: Array | None = None,
) -> StructuredState:
    state = replace(state, problem=problem)
    compiles = learns_compiled(problem, state.inner, state.data, X, y)
    block = Block(X, y, checked_rows(X, y, weights, look=not compiles))
    problem.likelihood.check(y, None if weights is None else block.weights)
    known = np.ones(len(y)) if weights is None else concrete(weights)
    if known is not None and not known.any():
        return state  # rows of weight 0 are no rows
    if problem.by_time:
        block = replace(block, times=in_order(times, state.time, np.asarray(block.weights)))
    counts = counts_of(block.weights, problem.weight_kind)
    weights, counts, squares, left = faded(block.weights, problem.forget, counts, block.times, state.time)
    data = state.data if left is None else state.data.forget(left)
    time = state.time if block.times is None else float(block.times[-1])
    block = Block(block.X, block.y, weights, counts=counts, squares=squares)
    found, rounding = learn_pieces(problem, state.inner, Found(data, state.estimate, state.learned), block, left)
    _check_digits(rounding)
    return replace(state, time=time, **found._asdict())


def _check_digits(rounding: Array) -> None:
    """Warn where rounding has reached what the estimate is known to."""
    if is_traced(rounding) or rounding.dtype != np.float32 or (lost := float(rounding)) < _ROUNDING:
        return
    warnings.warn(
        f"float32 has too few digits for what the rows say beside the prior: the error of the estimate by rounding is "
        f"about {min(lost, 1.0):.1g} standard errors or more. Use float64, or a smaller v0.",
        RuntimeWarning,
        stacklevel=4,
    )
