"""The descent of refinement: damped proximal Gauss-Newton steps, and undamped ones near the minimum.

The parameter of a likelihood, such as the scale of good rows, moves in turn with theta.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from kalprox.base.arrays import Array, namespace
from kalprox.information import Information
from kalprox.information.implicit import largest_move
from kalprox.information.linearized import Linearized, curvature_along, curvature_left_out, errors_of, linearize
from kalprox.likelihoods import Likelihood
from kalprox.linalg.triangle import square
from kalprox.models import Model, Predictor
from kalprox.noise import Noise
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Regularizer, Zero
from kalprox.solvers.prox import prox
from kalprox.solvers.terms import within_bounds
from kalprox.sources.base import MappedSource


class Triangle(NamedTuple):
    """The quadratic function 1/2 p'Hp - b'p of a step p: the change of the loss, and of a prior, to second order.

    Here it is 1/2 ||R p - z||^2 up to a constant, with a triangle R of shape (d, d). Without a matrix it is
    `kalprox.large.refinement.Products`, which has the same methods but `bent`.
    """

    R: Array
    z: Array

    def scales(self) -> Array:
        """Return the square roots of the diagonal of H, shape (d,)."""
        return np.linalg.norm(self.R, axis=0)

    def decrease(self, p: Array) -> float:
        """Return b'p - 1/2 p'Hp."""
        Rp = self.R @ p
        return float(Rp @ (self.z - Rp / 2))

    def damped(self, mu: float, S: Array) -> "Triangle":
        """Return it with mu/2 ||S p||^2 added; a coordinate whose scale is zero is damped too, and does not move."""
        if mu == 0:
            return self
        return stacked(self, np.diag(mu**0.5 * np.where(S > 0, S, 1.0)), np.zeros_like(S))

    def pulled(self, pull: Array) -> "Triangle":
        """Return it with p'pull added."""
        return Triangle(self.R, self.z - solve_triangular(self.R, pull, trans=1))

    def bent(self, E: Array) -> "Triangle":
        """Return it with 1/2 p'E p added; as it is, if there would be no minimum."""
        R, scale = self.R, self.scales()
        scale = np.where(scale > 0, scale, 1)
        A = R / scale
        try:
            U = np.linalg.cholesky(A.T @ A + E / scale[:, None] / scale).T
        except np.linalg.LinAlgError:
            return self
        return Triangle(U * scale, solve_triangular(U, A.T @ self.z, trans=1))

    def step(self, g: Regularizer, theta: Array, accuracy: float = 0.0) -> Array:
        """Return the p that minimises it plus g(theta + p).

        A method that finds p by iterations may leave this share of the optimality residual.
        """
        R, z, A = self.R, self.z, g.root(theta.size)
        if A is None:
            p = prox(R, z + R @ theta, g, start=theta).theta - theta
            pieces = g.pieces()
            return p if pieces is None else within_bounds(theta, p, pieces.low, pieces.high)
        A = np.asarray(A, theta.dtype)  # solving for t, and subtracting theta, would cancel digits of p
        return prox(np.vstack([R, A]), np.concatenate([z, -A @ theta]), Zero()).theta


def stacked(local: Triangle, A: Array, b: Array) -> Triangle:
    """Return the triangle of 1/2 ||R p - z||^2 + 1/2 ||A p - b||^2, up to a constant."""
    R, z = local
    d = R.shape[1]
    T: Array = np.linalg.qr(np.column_stack([np.vstack([R, A]), np.concatenate([z, b])]), mode="r")
    return Triangle(T[:d, :d], T[:d, d])


FINE, _ROUGH = 1e-6, 1e-2  # the accuracy of undamped steps, and of damped ones, where these are found by iterations


class Point(NamedTuple):
    """A point theta with the objective and the linearisation there, on the host."""

    theta: Array
    local: Any  # the loss and the prior near theta: a `Triangle`, or what has its methods without a matrix
    columns: Array  # (d,), the norms of the columns of the Jacobian of the rows alone
    information: Information | None  # of t - theta, from the rows alone; None if it is not formed
    loss: float
    rss: float
    size: float
    prior: float  # ||root (theta - mean)||^2 of the prior
    g: float
    sums: Array | None  # what the likelihood learns its parameter from
    eps: float  # the rounding error of the numbers in the rows

    @property
    def objective(self) -> float:
        return self.loss + self.prior / 2 + self.g

    @property
    def rounding(self) -> float:
        """The rounding error of the objective: that of a residual e is eps |h|, so that of rss is 2 eps |e| |h|."""
        return float(self.eps * ((self.rss * self.size) ** 0.5 + abs(self.objective)))


class Reading(NamedTuple):
    """What the rows, the prior and g say at a minimum; see `kalprox.algorithms.refine.Refined` for its fields."""

    information: Any
    noise: Noise
    dof: float
    cov: Array | None
    var: Array


@dataclass(eq=False)
class Problem:
    """The objective (1) of `kalprox.algorithms.refine` over a source, and the number of passes made so far.

    `watch` is called with the number of passes made and None, for that of all passes, when another one begins.
    """

    model: Model
    likelihood: Likelihood
    regularizer: Regularizer
    source: MappedSource
    before: Information | None  # the prior
    watch: Callable[[int, None], None] = lambda done, total: None
    no_step: ClassVar[str] = (  # why there is a next step, and none that decreases the objective
        "The model is not smooth here, or its derivative is wrong. Try another start, or check the derivative."
    )

    def __post_init__(self) -> None:
        self.given = self.likelihood  # `likelihood` has the parameter that this one learns, once it is known
        self.prior = None if self.before is None else (np.asarray(self.before.R), np.asarray(self.before.z))
        self.passes = self.products = 0  # products are with the Jacobian or its transpose, where there is no matrix

    def count_pass(self) -> None:
        """Count a pass, which begins, and report the number of passes."""
        self.watch(self.passes, None)
        self.passes += 1

    def over_rows(self, part: Callable[..., Any], *at: Array, **options: Any) -> Any:
        """Make one pass for the sum over blocks of part(model, likelihood, *at, block)."""
        self.count_pass()
        return self.source.fold(partial(part, self.model, self.likelihood, *at, **options)).total

    def at(self, theta: Array) -> Point | None:
        """Make one pass for the objective and the linearisation at theta; return None if they are not finite."""
        rows: Linearized | None = self.over_rows(linearize, theta)
        if rows is None:
            raise ValueError("The source must have at least one good row; got none.")
        if rows.information is None:
            return None
        if not rows.information.rows > 0:
            raise ValueError("The source must have at least one row of positive weight; got zeros only.")
        T = square(np.asarray(rows.information.triangle(), theta.dtype))
        local, prior = Triangle(T[:-1, :-1], T[:-1, -1]), 0.0
        columns = local.scales()
        if self.prior is not None:
            before, target = self.prior
            away = (target - before @ theta).astype(theta.dtype)
            local = stacked(local, before.astype(theta.dtype), away)
            prior = float(away @ away)
        eps = float(np.finfo(np.dtype(rows.information.T.dtype)).eps)
        about = rows.information, rows.loss, rows.rss, rows.size, prior, self.g(theta), rows.sums, eps
        return Point(theta, local, columns, *about)

    @property
    def is_straight(self) -> bool:
        """Whether the rows of the linearisation do not depend on theta, so that a step needs no correction."""
        return self.model.linear and not self.likelihood.interacts

    @property
    def is_newton(self) -> bool:
        """Whether the linearisation has the Hessian of the loss, so that undamped steps are those of Newton's method.

        That is so for a linear h and a convex loss, unless the likelihood descends with an upper bound of the loss.
        """
        return self.model.linear and self.likelihood.log_concave and not self.likelihood.majorizes

    def curvature(self, theta: Array, p: Array) -> Array:
        """Make one pass for J'W h_pp, shape (d,), with h_pp the second derivative of h along p."""
        return self.over_rows(curvature_along, theta, p)

    def largest_move(self, theta: Array, p: Array) -> float:
        """Make one pass for the largest change of an output of a row by a step p."""
        self.count_pass()
        return max(self.source.fold(partial(largest_move, self.model, theta, p)).total or [0.0])

    def curvature_left_out(self, theta: Array) -> Array | None:
        """Make one pass for what the linearisation leaves out of the Hessian of the loss; None for a general model."""
        if not isinstance(self.model, Predictor) or self.likelihood.interacts:
            return None
        E = self.over_rows(curvature_left_out, theta)
        return E if E is not None and np.isfinite(E).all() else None

    def g(self, theta: Array) -> float:
        return float(self.regularizer.value(theta))

    def step(self, point: Point, accuracy: float = FINE) -> Array:
        """Return the undamped step from a point."""
        return point.local.step(self.regularizer, point.theta, accuracy)

    def one_step(self, theta: Array, tol: float) -> tuple[Point, float] | None:
        """Return the minimiser for a linear h and a quadratic loss, and the relative length of the next step.

        None if the rows are not finite at theta = 0, where they are linearised.
        """
        if (point := self.at(np.zeros_like(theta))) is None:
            return None
        local, theta = point.local, self.step(point)
        assert point.information is not None
        information = about(point.information, -theta)
        before = 0.0 if self.prior is None else float(((self.prior[1] - self.prior[0] @ theta) ** 2).sum())
        rss = float(information.residual(np.zeros_like(theta)))
        local = Triangle(local.R, local.z - local.R @ theta)
        point = point._replace(theta=theta, local=local, information=information, g=self.g(theta))
        point = point._replace(loss=rss / 2, rss=rss, prior=before)
        return point, steps_left(self, point, local.scales())

    def predicted(self, point: Point, p: Array) -> float:
        """Return the decrease of (1) that the linearisation predicts for theta + p."""
        return float(point.local.decrease(p)) + (point.g - self.g(point.theta + p))

    def edf(self, point: Point) -> float:
        """Return the effective degrees of freedom of the fit at a point."""
        assert point.information is not None
        return float(self._posterior(point, point.information).edf)

    def read(self, point: Point, gamma: float | None) -> Reading:
        """Return what is known at a point; one pass if the descent used another linearisation there."""
        information = point.information
        if self.likelihood.majorizes:
            rows: Linearized | None = self.over_rows(linearize, point.theta, descent=False)
            information = None if rows is None else rows.information
        assert information is not None
        posterior = self._posterior(point, information, gamma=gamma, likelihood=self.likelihood)
        cov, dof = posterior.cov(), float(information.effective_rows) - float(posterior.edf)
        return Reading(posterior.data, posterior.noise, dof, cov, np.diag(cov))

    def _posterior(self, point: Point, information: Information, **options: Any) -> InformationPosterior:
        """Return the posterior at a point, given the information of theta less the point."""
        data = about(information, point.theta)
        return InformationPosterior(data, self.regularizer, prior=self.before, mean=point.theta, **options)


def about(information: Information, shift: Array) -> Information:
    """Turn information about s into information about s + shift: the targets e become e + D shift."""
    T, center = information.T, information.shift
    xp = namespace(T)
    t = xp.asarray(shift, T.dtype)
    targets = T[:, -1] + (T[:, 1:-1] * t[None, :]).sum(axis=1)  # T is the triangle of [1 | D - c | e - m]
    mean = center[-1:] + (center[:-1] * t).sum()
    return replace(information, T=xp.column_stack([T[:, :-1], targets]), shift=xp.concatenate([center[:-1], mean]))


_NEAR = 1e-2  # undamped steps are tried when the next one changes theta by less than this, relative
_BENT = 0.75  # a trial with 2 |a| / |p| above this is too long for the linearisation to be valid
_HEAVY = 10.0  # the largest damping of the last steps: with more of it they would be too short to help
_STRAIGHT = 0.1  # below this the curvature is not computed again while steps decrease (1) as predicted


def descend(
    problem: Problem, point: Point, max_passes: int, tol: float, *, straight: bool = False
) -> tuple[Point, float]:
    """Descend from `point` to a minimum; return the last point, and the relative length of the next undamped step.

    With `straight` the curvature of h is not computed for the first step, as after one that went as predicted.

    The scales S are the largest column norms of J so far, with slow decay, so that the path does not depend on the
    units of the parameters. The damping mu follows the ratio of actual to predicted decrease (Nielsen's rule). Each
    step p is corrected by the geodesic acceleration a, which accounts for the curvature of h along p: h(theta + p) is
    about h + J p + h_pp / 2, so that p + a is the step for the targets e - h_pp / 2. The correction follows curved
    valleys, and a large correction shows that p is too long.

    References
    ----------
    H. B. Nielsen, "Damping parameter in Marquardt's method", IMM-REP-1999-05, Technical University of Denmark, 1999.
    M. K. Transtrum and J. P. Sethna, "Improvements to the Levenberg-Marquardt algorithm for nonlinear least-squares
    minimization", arXiv:1201.5885, 2012.
    """
    S = np.zeros_like(point.theta)
    mu, growth, bend, near = 1e-4, 2.0, 0.0 if straight else np.inf, _NEAR
    while True:
        S = np.maximum(point.local.scales(), 0.7 * S)
        local = point.local.damped(mu, S)
        p = local.step(problem.regularizer, point.theta, _ROUGH)
        promised = problem.predicted(point, p)
        flat = promised <= point.rounding
        # The damped step is shorter than the undamped one and already computed, so that it is tested first.
        if flat or (relative_length(S, p, point.theta) <= near and steps_left(problem, point, S) <= near):
            before = point
            # To tol / 100: a parameter may be a small part of |S theta|, and the error may exceed the last step.
            point = _polish(problem, point, 0.0, S, max_passes, tol / 100)
            near = steps_left(problem, point, S)
            damping = mu
            while flat and near > tol and damping < _HEAVY:  # large residuals: undamped steps diverge
                point = _polish(problem, point, damping, S, max_passes, tol / 100)
                near = steps_left(problem, point, S)
                damping = max(10 * damping, 1e-3)
            if flat or near <= tol:
                return point, near
            near /= 10  # undamped steps do not converge from here; try again when the step is a tenth of this
            if point is not before:
                continue
        if problem.passes >= max_passes:
            return point, steps_left(problem, point, S)
        trial = None
        if bend < _STRAIGHT or problem.is_straight:
            trial = problem.at(point.theta + p)
        else:
            pull = problem.curvature(point.theta, p) / 2
            known = bool(np.isfinite(pull).all())
            bent = local.pulled(pull).step(problem.regularizer, point.theta, _ROUGH) if known else np.nan * p
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


_MEMORY = 10  # the number of earlier steps in Anderson mixing
_QUICK = 0.1  # where a step is this share of the last, they shrink quadratically, and mixing would slow them down
_MANY = 4  # more passes than this at the rate of the last one are worth one for the Hessian


def _polish(problem: Problem, point: Point, mu: float, S: Array, max_passes: int, enough: float) -> Point:
    """Take steps with constant damping while each is shorter than 0.9 of the last, until the length is `enough`.

    Near the minimum the objective is constant up to rounding, and only the lengths of the steps show progress: half of
    all digits are gained here. (1) may not increase beyond rounding. If the residuals are large, steps shrink only by a
    constant factor; Anderson mixing with earlier steps then finds the combination whose step would be shortest if
    steps were linear in theta. If that takes many passes, one is spent on what the linearisation leaves out of the
    Hessian, which makes the next steps those of Newton's method with the Hessian of that point. Where it leaves out
    nothing, steps are those of Newton's method from the beginning, and need neither.
    """
    E: Array | None = None

    def step(point: Point) -> Array:
        local = point.local.damped(mu, S)
        return (local if E is None else local.bent(E)).step(problem.regularizer, point.theta, FINE)

    p, tried = step(point), False
    thetas, steps = [point.theta], [p]
    while problem.passes < max_passes and relative_length(S, p, point.theta) > enough:
        trial = problem.at(_mixed(problem, thetas, steps, S))
        if trial is not None and trial.objective <= point.objective + 4 * point.rounding:
            next_p = step(trial)
            ratio = float(np.linalg.norm(S * next_p) / np.linalg.norm(S * p))
            if ratio < 0.9:
                point, p = trial, next_p
                if problem.is_newton or (ratio < _QUICK and problem.is_straight):
                    thetas, steps = [], []
                thetas, steps = [*thetas[-_MEMORY:], point.theta], [*steps[-_MEMORY:], p]
                left = relative_length(S, p, point.theta)
                slow = left * ratio**_MANY > enough and not (tried or problem.is_newton)
                if slow and problem.passes < max_passes - 1:
                    E, tried = problem.curvature_left_out(point.theta), True
                    p = step(point)
                    thetas, steps = [point.theta], [p]
                continue
        if len(thetas) == 1 and E is None:
            break
        E = None  # try again without it, and without the earlier steps
        p = step(point)
        thetas, steps = [point.theta], [p]
    return point


def _mixed(problem: Problem, thetas: list[Array], steps: list[Array], S: Array) -> Array:
    """Return theta + p with the correction of Anderson mixing."""
    t = thetas[-1] + steps[-1]
    if len(thetas) == 1:
        return t
    moves, changes = np.diff(thetas, axis=0).T, np.diff(steps, axis=0).T
    share = np.linalg.lstsq(S[:, None] * changes, S * steps[-1], rcond=None)[0]
    # Coordinates that g holds at a kink or a bound stay exactly there.
    return np.where(problem.regularizer.free(t), t - (moves + changes) @ share, t)


def relative_length(S: Array, p: Array, theta: Array) -> float:
    """Return |S p| / |S theta|, the length of p relative to theta; 0 if p is 0."""
    moved, size = float(np.linalg.norm(S * p)), float(np.linalg.norm(S * theta))
    return moved / size if size > 0 else (np.inf if moved > 0 else 0.0)


def steps_left(problem: Problem, point: Point, S: Array) -> float:
    """Return the relative length of the next undamped step."""
    return relative_length(S, problem.step(point), point.theta)


_FIRST = 0.05  # standard errors to which theta is refined, while the parameter of a likelihood moves by a lot
_FAR = np.log(10.0)  # the largest step of the log of the parameter
_SHORT = 0.1  # steps below this are not kept within the interval in which the solution lies, found with a rough theta
_STEADY = 1.5  # the largest factor between two slopes of a score that confirm each other
_ROUNDING = 64  # times the rounding error, below which a step of the parameter cannot be found


def descend_jointly(
    problem: Problem, theta: Array, max_passes: int, tol: float, *, straight: bool = False
) -> tuple[Point, float, float] | None:
    """Descend from theta to a minimum, at which the parameter that the likelihood learns solves its equation.

    Theta is refined with the parameter held, roughly at first, and the parameter moves by a step of the secant method
    for its score at the refined theta, until neither moves. Refinement with the likelihood `first` finds the start, if
    there is one. `problem.likelihood` has the parameter in the end.

    Returns
    -------
    point : Point
    left : float
        The relative length of the next step of theta.
    change : float
        The relative change of the parameter that is left over, 0 if none is learned.

    None if the model is not finite at theta.
    """
    given = problem.given
    if given.first is not None and not straight:
        problem.given = problem.likelihood = given.first
        found = descend_jointly(problem, theta, max_passes, _ROUGH)
        problem.given = problem.likelihood = given
        if found is None:
            return None
        theta = found[0].theta
    if _value(problem.likelihood) is None:
        problem.likelihood = given.learned(given, problem.over_rows(errors_of, theta))
    point = problem.at(theta)
    if point is None:
        return None
    point = _nearer(problem, point, max_passes)
    point, left, change = _alternate(problem, point, max_passes, tol, straight)
    if point.sums is not None:
        problem.likelihood = given.finished(problem.likelihood, point.sums, problem.edf(point))
    return point, left, change


def _nearer(problem: Problem, point: Point, max_passes: int) -> Point:
    """Return the minimiser for a `rough` likelihood if a point is farther from the minimum, and else the point.

    It is tried where the expansion of the loss promises a decrease by more than the loss: steps from there lead too
    far. For a linear model it takes one pass, and one for the loss there; without a matrix it would take more passes
    than it saves.
    """
    likelihood, rough = problem.likelihood, problem.likelihood.rough
    if rough is None or not problem.model.linear or point.information is None or problem.passes + 2 > max_passes:
        return point
    if not problem.predicted(point, problem.step(point)) > abs(point.loss):
        return point
    problem.likelihood = rough
    solved = problem.one_step(point.theta, _ROUGH)
    problem.likelihood = likelihood
    trial = None if solved is None else problem.at(solved[0].theta)
    return trial if trial is not None and trial.objective < point.objective else point


def _alternate(
    problem: Problem, point: Point, max_passes: int, tol: float, straight: bool
) -> tuple[Point, float, float]:
    if problem.given.parameter is None or _value(problem.given) is not None:
        return *descend(problem, point, max_passes, tol, straight=straight), 0.0
    eps = point.eps
    enough = max(tol, _ROUNDING * eps)
    low, high, share, before, secant = -np.inf, np.inf, 1.0, None, np.nan
    least = float(np.log(max(problem.given.bounds[0], eps * problem.likelihood.numbers[0])))
    while True:
        inner = max(tol, share * _rough(problem, point))
        point, left = descend(problem, point, max_passes, inner, straight=straight)
        straight = True
        phi, score, slope = _score(problem, point)
        low, high = (phi, high) if score > 0 else (low, phi)
        if high - low < _SHORT:  # found with a rough theta
            low, high = -np.inf, np.inf
        if before is not None and phi != before[0]:
            last, secant = secant, (before[1] - score) / (phi - before[0])
            steady = last < _STEADY * secant and 0 < secant < _STEADY * last  # not the noise of a rough theta
            slope = secant if steady or slope / 4 < secant < 4 * slope else slope
        with np.errstate(over="ignore"):
            goal = phi + float(np.clip(score / slope, -_FAR, _FAR))
        if abs(goal - phi) > _SHORT and not low < goal < high:
            goal = (low + high) / 2
        goal = float(np.clip(goal, least, np.log(problem.given.bounds[1])))  # of an exact fit the scale is rounding
        change = abs(goal - phi)
        if (change <= enough and inner <= tol) or problem.passes >= max_passes:
            return point, left, change if change > enough else 0.0
        share = min(1.0, change) if change > enough else 0.0
        if change > enough:
            before = phi, score
            old = problem.likelihood
            problem.likelihood = replace(old, **{str(old.parameter): float(np.exp(goal))})  # type: ignore[type-var]
            trial = problem.at(point.theta)
            if trial is None:  # not finite with this parameter
                problem.likelihood = old
                return point, left, change
            point = trial


def _score(problem: Problem, point: Point) -> tuple[float, float, float]:
    """Return the log of the parameter, its score, and how fast that falls."""
    likelihood, sums = problem.likelihood, point.sums
    assert sums is not None
    score = float(likelihood.score(sums, problem.edf(point)))
    return float(np.log(likelihood.numbers[0])), score, max(float(sums[1]), np.finfo(float).tiny)


def _rough(problem: Problem, point: Point) -> float:
    """Return the relative precision of theta that is enough while the parameter still moves by a lot."""
    size = float(np.linalg.norm(point.local.scales() * point.theta))
    errors = float(problem.likelihood.unit) ** 0.5 * len(point.theta) ** 0.5
    return min(_ROUGH, _FIRST * errors / size) if size > 0 else _ROUGH


def _value(likelihood: Likelihood) -> float | None:
    """Return the parameter; None if it is not known, 0 if there is none."""
    return 0.0 if likelihood.parameter is None else getattr(likelihood, likelihood.parameter)
