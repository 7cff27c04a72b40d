"""Refinement of theta and of the parameter of a likelihood, such as the scale of good rows, in turn."""

from dataclasses import replace

import numpy as np

from kalprox.algorithms.descent import Point, Problem, descend
from kalprox.base.arrays import Array
from kalprox.likelihoods import Likelihood

__all__ = ["descend_jointly"]

_ROUGH = 1e-2  # the first tolerance of theta, relative, which falls with the steps of the parameter
_FIRST = 0.05  # and no more than as many standard errors
_FAR = np.log(10.0)  # the largest step of the log of the parameter
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
        problem.likelihood = given.learned(given, problem.errors(theta))
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
    enough = max(tol, _ROUNDING * point.eps)
    share, before = 1.0, None
    least = max(problem.given.bounds[0], point.eps * problem.likelihood.numbers[0])
    while True:
        inner = max(tol, share * _rough(problem, point))
        point, left = descend(problem, point, max_passes, inner, straight=straight)
        straight = True
        phi, score, slope = _score(problem, point)
        if before is not None and phi != before[0]:
            secant = (before[1] - score) / (phi - before[0])
            slope = secant if slope / 4 < secant < 4 * slope else slope  # not the noise of a rough theta
        goal = phi + float(np.clip(score / slope, -_FAR, _FAR))
        # Of an exact fit the scale is rounding.
        goal = float(np.clip(goal, np.log(least), np.log(problem.given.bounds[1])))
        change = abs(goal - phi)
        if (change <= enough and inner <= tol) or problem.passes >= max_passes:
            return point, left, change if change > enough else 0.0
        share = 0.0
        if change > enough:
            share, before, old = min(1.0, change), (phi, score), problem.likelihood
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
