"""Refinement: pass over all rows again and again, linearised at the last answer, until it stops moving.

Problem (1), min over theta of 1/2 sum_k w_k (y_k - h_k(theta))^2 + g(theta), by damped proximal
Gauss-Newton. One pass brings back the residual sum of squares at theta and the information (R, z) of
the rows linearised there, d^2 numbers whatever the number of rows; the next trial is

    t = argmin 1/2 ||R (t - theta) - z||^2 + mu/2 ||S (t - theta)||^2 + g(t),

the prox of g in the metric of the data with the damping as d more rows. It replaces theta only if (1)
falls. Nothing of a pass is kept once the next one is accepted, so no datum counts twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from kalprox._arrays import Array, namespace
from kalprox._checks import check_positive, check_vector
from kalprox.information import Information
from kalprox.information.linearized import Linearized, curvature_along, linearize, rows_not_finite
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.models import Model
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Regularizer, Zero
from kalprox.solvers.prox import prox
from kalprox.sources import Source, as_source

__all__ = ["Refined", "refine"]


@dataclass(frozen=True)
class Refined:
    """The minimiser of (1), how sure it is, and how it was reached."""

    mean: Array  # (d,)
    cov: Array  # (d, d): noise_var (J'J + Hess g)^-1 from one linearisation, at the mean
    passes: int  # over the rows, those for the curvature of h included
    converged: bool
    objective: float  # (1) at the mean, from the residuals there
    message: str  # why it stopped, in words
    noise_var: float  # 1/gamma, or rss / dof where gamma was not given
    dof: float  # residual degrees of freedom: rows less effective parameters
    information: Information  # of all rows, linearised at the mean: about theta itself


class _Point(NamedTuple):
    """A theta with everything known of it, on the host."""

    theta: Array
    R: Array  # ||R (t - theta) - z||^2 + const is the linearised sum of squares at t
    z: Array
    information: Information  # of the rows alone, about t - theta; R and z hold the prior's rows too
    loss: float
    rss: float
    size: float
    prior: float  # ||root (theta - mean)||^2 of the prior
    g: float

    @property
    def objective(self) -> float:
        return self.loss + self.prior / 2 + self.g

    @property
    def rounding(self) -> float:
        """How far rounding alone moves the objective: e is known to eps |h|, so rss to 2 eps |e| |h|."""
        eps = float(np.finfo(np.dtype(self.information.T.dtype)).eps)
        return eps * ((self.rss * self.size) ** 0.5 + abs(self.objective))


class _Problem:
    """(1) over a source, and the count of the passes spent on it."""

    def __init__(
        self,
        model: Model,
        likelihood: Likelihood,
        regularizer: Regularizer,
        source: Source,
        prior: Information | None,
    ) -> None:
        self.model, self.likelihood, self.regularizer, self.source = model, likelihood, regularizer, source
        self.before = prior
        self.prior = None if prior is None else (np.asarray(prior.R), np.asarray(prior.z))
        self.passes = 0

    def at(self, theta: Array) -> _Point | None:
        """One pass: objective and linearisation at theta; None where they are not finite."""
        self.passes += 1
        rows: Linearized | None = self.source.fold(partial(linearize, self.model, self.likelihood, theta)).total
        if rows is None:
            raise ValueError("The source must have at least one good row; got none.")
        if rows.information is None:
            return None
        T = np.asarray(rows.information.triangle(), theta.dtype)
        R, z, prior = T[:-1, :-1], T[:-1, -1], 0.0
        if self.prior is not None:
            before, target = self.prior
            away = (target - before @ theta).astype(theta.dtype)
            R, z = _stack(R, z, before.astype(theta.dtype), away)
            prior = float(away @ away)
        return _Point(theta, R, z, rows.information, rows.loss, rows.rss, rows.size, prior, self.g(theta))

    def curvature(self, theta: Array, p: Array) -> Array:
        """One pass: J'W h_pp, shape (d,)."""
        self.passes += 1
        return self.source.fold(partial(curvature_along, self.model, self.likelihood, theta, p)).total

    def g(self, theta: Array) -> float:
        return float(self.regularizer.value(theta))

    def step(self, R: Array, z: Array, theta: Array) -> Array:
        """The p with theta + p = argmin_t 1/2 ||R (t - theta) - z||^2 + g(t)."""
        A = self.regularizer.root(theta.size)
        if A is None:
            return prox(R, z + R @ theta, self.regularizer, start=theta).theta - theta
        A = np.asarray(A, theta.dtype)  # solved for p itself: t - theta would lose p's leading digits
        return prox(np.vstack([R, A]), np.concatenate([z, -A @ theta]), Zero()).theta

    def moved(self, point: _Point) -> _Point:
        """The point one undamped step on, without a pass: exact where h is linear."""
        theta = point.theta + self.step(point.R, point.z, point.theta)
        information = _about(point.information, point.theta - theta)
        before = 0.0 if self.prior is None else float(((self.prior[1] - self.prior[0] @ theta) ** 2).sum())
        rss = float(information.residual(np.zeros_like(theta)))
        z = point.z - point.R @ (theta - point.theta)
        return point._replace(
            theta=theta, z=z, information=information, loss=rss / 2, rss=rss, prior=before, g=self.g(theta)
        )

    def predicted(self, point: _Point, p: Array) -> float:
        """The decrease of (1) that the linearisation promises for theta + p."""
        Rp = point.R @ p
        return float(Rp @ (point.z - Rp / 2)) + (point.g - self.g(point.theta + p))


def _stack(R: Array, z: Array, A: Array, b: Array) -> tuple[Array, Array]:
    """The triangle of ||R t - z||^2 + ||A t - b||^2, less what no t can change."""
    d = R.shape[1]
    T: Array = np.linalg.qr(np.column_stack([np.vstack([R, A]), np.concatenate([z, b])]), mode="r")
    return T[:d, :d], T[:d, d]


def refine(
    model: Model,
    regularizer: Regularizer,
    source: Source | Sequence[Array],
    start: Array,
    *,
    gamma: float | None = None,
    max_passes: int = 200,
    tol: float = 1e-10,
    prior: Information | None = None,
    likelihood: Likelihood | None = None,
) -> Refined:
    """Minimise (1) over all rows of a source, from `start`, and say how sure the answer is.

    Converges to a stationary point of (1), for g smooth or not (zeros are exact), whatever the
    scales of the parameters. The covariance is (J'J + Hess g)^-1 / gamma there: exact for linear
    h and quadratic g, Laplace's approximation otherwise. Costs `passes` times the model's Jacobian
    and O(d^2) a row; a linear model takes one pass.

    Parameters
    ----------
    model, regularizer : h and g of (1).
    source : (X, y) or (X, y, weights), arrays of NumPy or JAX; or any `kalprox.sources.Source`.
    start : first theta, shape (d,), where the model is finite.
    gamma : noise precision; None learns the noise variance from the residuals.
    max_passes : passes over the rows before giving up.
    tol : converged when an undamped step is this small relative to theta, in units of the columns' norms.
    prior : information about theta from elsewhere, in units of the noise: 1/2 ||R theta - z||^2 more in (1).
        It counts in mean, cov and objective, and is left out of `information`, rss and the row count.
    likelihood : one of `kalprox.likelihoods`; the default is Gaussian.

    >>> from kalprox.models import Function
    >>> from kalprox.regularizers import Zero
    >>> x = np.linspace(0.0, 4.0, 9)
    >>> y = 3 / (1 + 2 * x)
    >>> fit = refine(Function(lambda theta, x: theta[0] / (1 + theta[1] * x)), Zero(), (x, y), np.array([1.0, 1.0]))
    >>> fit.mean.round(8), fit.converged
    (array([3., 2.]), True)
    """
    theta = np.array(start)
    check_vector("start", theta)
    if gamma is not None:
        check_positive("gamma", gamma)
    check_positive("tol", tol)
    if max_passes < 1:
        raise ValueError(f"max_passes must be at least 1; got {max_passes}.")
    likelihood = Gaussian() if likelihood is None else likelihood
    exact = model.linear and likelihood.quadratic  # one pass, linearised at 0, where the residuals are y itself
    problem = _Problem(model, likelihood, regularizer, as_source(source), prior)
    if exact:
        theta = np.zeros_like(theta)
    elif not np.isfinite(problem.g(theta)):
        raise ValueError(f"start must lie where g is finite; {type(regularizer).__name__} is {problem.g(theta)} there.")
    point = problem.at(theta)
    if point is None:
        raise ValueError(_why_not_finite(problem, theta))
    if exact:
        point = problem.moved(point)
        left = _left(problem, point, np.linalg.norm(point.R, axis=0))
    else:
        point, left = _descend(problem, point, max_passes, tol)
    return _read(problem, point, gamma, *_verdict(problem, point, left, max_passes, tol))


_NEAR = 1e-2  # undamped steps are tried once one would move theta by less than this, relative
_BENT = 0.75  # a trial with 2 |a| / |p| above this leaves the region where the linearisation means anything
_HEAVY = 10.0  # damping at which steps are so short that more of it would lead nowhere
_STRAIGHT = 0.1  # below this the curvature is not measured again while steps gain what they promise


def _descend(problem: _Problem, point: _Point, max_passes: int, tol: float) -> tuple[_Point, float]:
    """Damped steps from afar, undamped ones near the end; also how far the next would move, relative.

    The scales S are the largest column norms of J seen, slowly forgotten, so that the path does not
    depend on the units of the parameters. The damping mu follows the ratio of actual to promised gain
    (Nielsen's rule). Each step p is bent by the geodesic acceleration a, the correction for the
    curvature of h along p: h(theta + p) is about h + J p + h_pp / 2, so a is the change of the trial
    when the targets are e - h_pp / 2. That follows curved valleys, and its size says when p is too long.
    """
    S = np.zeros_like(point.theta)
    mu, growth, bend, near = 1e-4, 2.0, np.inf, _NEAR
    while True:
        S = np.maximum(np.linalg.norm(point.R, axis=0), 0.7 * S)
        R, z = _damped(point, mu, S)
        p = problem.step(R, z, point.theta)
        promised = problem.predicted(point, p)
        flat = promised <= point.rounding
        # The damped step is the shorter one, and at hand: look at it first.
        if flat or (_relative(S, p, point.theta) <= near and _left(problem, point, S) <= near):
            before = point
            # To tol / 100: one parameter may be a small part of |S theta|, and the last step is not all that is left.
            point = _polish(problem, point, 0.0, S, max_passes, tol / 100)
            near = _left(problem, point, S)
            damping = mu
            while flat and near > tol and damping < _HEAVY:  # residuals so large that undamped steps lead away
                point = _polish(problem, point, damping, S, max_passes, tol / 100)
                near = _left(problem, point, S)
                damping = max(10 * damping, 1e-3)
            if flat or near <= tol:
                return point, near
            near /= 10  # undamped steps do not lead on from here: not again before ten times nearer
            if point is not before:
                continue
        if problem.passes >= max_passes:
            return point, _left(problem, point, S)
        trial = None
        if bend < _STRAIGHT:
            trial = problem.at(point.theta + p)
        else:
            bent = _accelerated(problem, point, R, z, p)
            bend = 2 * float(np.linalg.norm(S * (bent - p)) / np.linalg.norm(S * p))
            if bend <= _BENT and problem.passes < max_passes:
                trial = problem.at(point.theta + bent)
        if trial is not None and trial.objective < point.objective:
            gain = (point.objective - trial.objective) / promised
            mu, growth = mu * max(1 / 3, 1 - (2 * gain - 1) ** 3), 2.0
            point = trial
            if abs(gain - 1) > 0.25:
                bend = np.inf
        else:
            mu, growth, bend = mu * growth, 2 * growth, np.inf


def _damped(point: _Point, mu: float, S: Array) -> tuple[Array, Array]:
    """(R, z) with the rows sqrt(mu) S (t - theta) added. A column of zeros gets some: it does not move."""
    if mu == 0:
        return point.R, point.z
    return _stack(point.R, point.z, np.diag(mu**0.5 * np.where(S > 0, S, 1.0)), np.zeros_like(S))


def _accelerated(problem: _Problem, point: _Point, R: Array, z: Array, p: Array) -> Array:
    """p + a: the damped step (R, z) with targets e - h_pp / 2; NaN where h_pp is not finite."""
    pull = problem.curvature(point.theta, p) / 2
    if not np.isfinite(pull).all():
        return np.full_like(p, np.nan)
    return problem.step(R, z - solve_triangular(R, pull, trans=1), point.theta)


_MEMORY = 10  # earlier steps that an undamped one is mixed with


def _polish(problem: _Problem, point: _Point, mu: float, S: Array, max_passes: int, enough: float) -> _Point:
    """Steps with the same damping while the next is shorter than 0.9 of the last, until `enough`.

    Near the minimum the objective is flat to rounding, and only the lengths of the steps still tell
    better from worse: half of all digits are gained here. (1) may not rise beyond rounding. Where the
    residuals are large the steps shrink by a constant factor only, so they are mixed with earlier ones
    (Anderson): the combination whose step would be shortest, were steps linear in theta.
    """

    def step(point: _Point) -> Array:
        return problem.step(*_damped(point, mu, S), point.theta)

    p = step(point)
    thetas, steps = [point.theta], [p]
    while problem.passes < max_passes and _relative(S, p, point.theta) > enough:
        trial = problem.at(_mixed(problem, thetas, steps, S))
        if trial is not None and trial.objective <= point.objective + 4 * point.rounding:
            next_p = step(trial)
            if np.linalg.norm(S * next_p) < 0.9 * np.linalg.norm(S * p):
                point, p = trial, next_p
                thetas, steps = [*thetas[-_MEMORY:], point.theta], [*steps[-_MEMORY:], p]
                continue
        if len(thetas) == 1:
            break
        thetas, steps = [point.theta], [p]  # once more, without the earlier ones
    return point


def _mixed(problem: _Problem, thetas: list[Array], steps: list[Array], S: Array) -> Array:
    """theta + p, less the part of it that earlier steps say is an overshoot or a lag."""
    t = thetas[-1] + steps[-1]
    if len(thetas) == 1:
        return t
    moves, changes = np.diff(thetas, axis=0).T, np.diff(steps, axis=0).T
    share = np.linalg.lstsq(S[:, None] * changes, S * steps[-1], rcond=None)[0]
    # What g holds at a kink or a bound stays exactly there.
    return np.where(problem.regularizer.free(t), t - (moves + changes) @ share, t)


def _verdict(problem: _Problem, point: _Point, left: float, max_passes: int, tol: float) -> tuple[bool, str]:
    """Whether it converged and why it stopped, in words; `left` is how far the next undamped step would move."""
    if left <= tol:
        return True, f"converged: the next step would move theta by {left:.1e} relative, tol is {tol:.1e}."
    p = problem.step(point.R, point.z, point.theta)
    if problem.predicted(point, p) <= point.rounding:
        return True, f"converged to rounding: what is left ({left:.1e} relative) changes the objective by less."
    if problem.passes >= max_passes:
        return False, (
            f"stopped at max_passes={max_passes} with a step of {left:.1e} relative left, tol is {tol:.1e}: "
            "allow more passes, or start nearer."
        )
    return False, (
        f"no descent possible, though a step of {left:.1e} relative is left: the model is not smooth here, or its "
        "derivative is wrong. Try another start, or check the model's derivative."
    )


def _relative(S: Array, p: Array, theta: Array) -> float:
    """|S p| / |S theta|: how far p moves theta, in units of what the rows see; 0 where p is 0."""
    moved, size = float(np.linalg.norm(S * p)), float(np.linalg.norm(S * theta))
    return moved / size if size > 0 else (np.inf if moved > 0 else 0.0)


def _left(problem: _Problem, point: _Point, S: Array) -> float:
    """How far the next undamped step would move theta, relative."""
    return _relative(S, problem.step(point.R, point.z, point.theta), point.theta)


def _read(problem: _Problem, point: _Point, gamma: float | None, converged: bool, message: str) -> Refined:
    """The answer, from one linearisation of all rows at theta."""
    information, theta = _about(point.information, point.theta), point.theta
    posterior = InformationPosterior(
        information, problem.regularizer, gamma=gamma, prior=problem.before, mean=theta, likelihood=problem.likelihood
    )
    noise = posterior.noise
    return Refined(
        mean=theta,
        cov=posterior.cov(),
        passes=problem.passes,
        converged=converged,
        objective=point.objective,
        message=f"{message} {noise.reason}".strip(),
        noise_var=float(noise.variance),
        dof=float(information.rows) - float(posterior.edf),
        information=information,
    )


def _about(information: Information, shift: Array) -> Information:
    """Information about s as information about s + shift: the targets e become e + D shift."""
    T, center = information.T, information.shift
    xp = namespace(T)
    t = xp.asarray(shift, T.dtype)
    targets = T[:, -1] + (T[:, 1:-1] * t[None, :]).sum(axis=1)  # T is the triangle of [1 | D - c | e - m]
    mean = center[-1:] + (center[:-1] * t).sum()
    return replace(information, T=xp.column_stack([T[:, :-1], targets]), shift=xp.concatenate([center[:-1], mean]))


def _why_not_finite(problem: _Problem, theta: Array) -> str:
    part = partial(rows_not_finite, problem.model, problem.likelihood, theta)
    bad = np.flatnonzero(np.concatenate(problem.source.fold(part).total or []))
    shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    return (
        f"the model and its derivative must be finite at start (and their squares); they are not in {len(bad)} "
        f"row(s): {shown}. Change start, or remove these rows."
    )
