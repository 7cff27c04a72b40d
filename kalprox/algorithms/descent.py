"""The descent of refinement: damped proximal Gauss-Newton steps from afar, undamped ones near the end."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from kalprox._arrays import Array, namespace
from kalprox.information import Information
from kalprox.information.linearized import Linearized, curvature_along, linearize
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.regularizers import Regularizer, Zero
from kalprox.solvers.prox import prox
from kalprox.sources import Source

__all__ = ["Point", "Problem", "about", "descend", "steps_left"]


class Point(NamedTuple):
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


class Problem:
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

    def at(self, theta: Array) -> Point | None:
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
            R, z = stacked(R, z, before.astype(theta.dtype), away)
            prior = float(away @ away)
        return Point(theta, R, z, rows.information, rows.loss, rows.rss, rows.size, prior, self.g(theta))

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

    def moved(self, point: Point) -> Point:
        """The point one undamped step on, without a pass: exact where h is linear."""
        theta = point.theta + self.step(point.R, point.z, point.theta)
        information = about(point.information, point.theta - theta)
        before = 0.0 if self.prior is None else float(((self.prior[1] - self.prior[0] @ theta) ** 2).sum())
        rss = float(information.residual(np.zeros_like(theta)))
        z = point.z - point.R @ (theta - point.theta)
        return point._replace(
            theta=theta, z=z, information=information, loss=rss / 2, rss=rss, prior=before, g=self.g(theta)
        )

    def predicted(self, point: Point, p: Array) -> float:
        """The decrease of (1) that the linearisation promises for theta + p."""
        Rp = point.R @ p
        return float(Rp @ (point.z - Rp / 2)) + (point.g - self.g(point.theta + p))


def stacked(R: Array, z: Array, A: Array, b: Array) -> tuple[Array, Array]:
    """The triangle of ||R t - z||^2 + ||A t - b||^2, less what no t can change."""
    d = R.shape[1]
    T: Array = np.linalg.qr(np.column_stack([np.vstack([R, A]), np.concatenate([z, b])]), mode="r")
    return T[:d, :d], T[:d, d]


def about(information: Information, shift: Array) -> Information:
    """Information about s as information about s + shift: the targets e become e + D shift."""
    T, center = information.T, information.shift
    xp = namespace(T)
    t = xp.asarray(shift, T.dtype)
    targets = T[:, -1] + (T[:, 1:-1] * t[None, :]).sum(axis=1)  # T is the triangle of [1 | D - c | e - m]
    mean = center[-1:] + (center[:-1] * t).sum()
    return replace(information, T=xp.column_stack([T[:, :-1], targets]), shift=xp.concatenate([center[:-1], mean]))


_NEAR = 1e-2  # undamped steps are tried once one would move theta by less than this, relative
_BENT = 0.75  # a trial with 2 |a| / |p| above this leaves the region where the linearisation means anything
_HEAVY = 10.0  # damping at which steps are so short that more of it would lead nowhere
_STRAIGHT = 0.1  # below this the curvature is not measured again while steps gain what they promise


def descend(problem: Problem, point: Point, max_passes: int, tol: float) -> tuple[Point, float]:
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
        if flat or (relative_length(S, p, point.theta) <= near and steps_left(problem, point, S) <= near):
            before = point
            # To tol / 100: one parameter may be a small part of |S theta|, and the last step is not all that is left.
            point = _polish(problem, point, 0.0, S, max_passes, tol / 100)
            near = steps_left(problem, point, S)
            damping = mu
            while flat and near > tol and damping < _HEAVY:  # residuals so large that undamped steps lead away
                point = _polish(problem, point, damping, S, max_passes, tol / 100)
                near = steps_left(problem, point, S)
                damping = max(10 * damping, 1e-3)
            if flat or near <= tol:
                return point, near
            near /= 10  # undamped steps do not lead on from here: not again before ten times nearer
            if point is not before:
                continue
        if problem.passes >= max_passes:
            return point, steps_left(problem, point, S)
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


def _damped(point: Point, mu: float, S: Array) -> tuple[Array, Array]:
    """(R, z) with the rows sqrt(mu) S (t - theta) added. A column of zeros gets some: it does not move."""
    if mu == 0:
        return point.R, point.z
    return stacked(point.R, point.z, np.diag(mu**0.5 * np.where(S > 0, S, 1.0)), np.zeros_like(S))


def _accelerated(problem: Problem, point: Point, R: Array, z: Array, p: Array) -> Array:
    """p + a: the damped step (R, z) with targets e - h_pp / 2; NaN where h_pp is not finite."""
    pull = problem.curvature(point.theta, p) / 2
    if not np.isfinite(pull).all():
        return np.full_like(p, np.nan)
    return problem.step(R, z - solve_triangular(R, pull, trans=1), point.theta)


_MEMORY = 10  # earlier steps that an undamped one is mixed with


def _polish(problem: Problem, point: Point, mu: float, S: Array, max_passes: int, enough: float) -> Point:
    """Steps with the same damping while the next is shorter than 0.9 of the last, until `enough`.

    Near the minimum the objective is flat to rounding, and only the lengths of the steps still tell
    better from worse: half of all digits are gained here. (1) may not rise beyond rounding. Where the
    residuals are large the steps shrink by a constant factor only, so they are mixed with earlier ones
    (Anderson): the combination whose step would be shortest, were steps linear in theta.
    """

    def step(point: Point) -> Array:
        return problem.step(*_damped(point, mu, S), point.theta)

    p = step(point)
    thetas, steps = [point.theta], [p]
    while problem.passes < max_passes and relative_length(S, p, point.theta) > enough:
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


def _mixed(problem: Problem, thetas: list[Array], steps: list[Array], S: Array) -> Array:
    """theta + p, less the part of it that earlier steps say is an overshoot or a lag."""
    t = thetas[-1] + steps[-1]
    if len(thetas) == 1:
        return t
    moves, changes = np.diff(thetas, axis=0).T, np.diff(steps, axis=0).T
    share = np.linalg.lstsq(S[:, None] * changes, S * steps[-1], rcond=None)[0]
    # What g holds at a kink or a bound stays exactly there.
    return np.where(problem.regularizer.free(t), t - (moves + changes) @ share, t)


def relative_length(S: Array, p: Array, theta: Array) -> float:
    """|S p| / |S theta|: how far p moves theta, in units of what the rows see; 0 where p is 0."""
    moved, size = float(np.linalg.norm(S * p)), float(np.linalg.norm(S * theta))
    return moved / size if size > 0 else (np.inf if moved > 0 else 0.0)


def steps_left(problem: Problem, point: Point, S: Array) -> float:
    """How far the next undamped step would move theta, relative."""
    return relative_length(S, problem.step(point.R, point.z, point.theta), point.theta)
