"""Refinement: passes over all rows, each linearised at the last estimate, until the estimate no longer moves.

Problem (1), min over theta of sum_k w_k loss(y_k, h_k(theta)) + g(theta), by damped proximal Gauss-Newton. One pass
brings back the loss at theta and the information (R, z) of the rows linearised there, d^2 numbers whatever the number
of rows; the next trial is

    t = argmin 1/2 ||R (t - theta) - z||^2 + mu/2 ||S (t - theta)||^2 + g(t),

the prox of g in the metric of the data with the damping as d more rows. It replaces theta only if (1)
falls. Nothing of a pass is kept once the next one is accepted, so no datum counts twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import check_positive, check_vector
from kalprox.algorithms.descent import Point, Problem, about, descend, steps_left
from kalprox.information import Information
from kalprox.information.linearized import rows_not_finite
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.models import Model
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Regularizer
from kalprox.sources import Source, as_source

__all__ = ["Refined", "refine"]


@dataclass(frozen=True)
class Refined:
    """The minimiser of (1), its uncertainty, and how it was reached.

    Attributes
    ----------
    mean : array of shape (d,)
    cov : array of shape (d, d)
        noise_var (J'J + Hess g)^-1 from one linearisation, at the mean.
    passes : int
        Passes over the rows, those for the curvature of h included.
    converged : bool
    objective : float
        (1) at the mean, from the residuals there.
    message : str
        Why refinement stopped.
    noise_var : float
        1 / gamma, or the residual sum of squares over `dof` where gamma was not given.
    dof : float
        The residual degrees of freedom: rows less effective parameters.
    information : Information
        Of all rows, linearised at the mean: about theta itself.
    """

    mean: Array
    cov: Array
    passes: int
    converged: bool
    objective: float
    message: str
    noise_var: float
    dof: float
    information: Information


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
    model : Model
        h, one of `kalprox.models`.
    regularizer : Regularizer
        g, one of `kalprox.regularizers`, smooth or not.
    source : (X, y), (X, y, weights) or kalprox.sources.Source
        The rows: arrays of NumPy or JAX, or any source.
    start : array of shape (d,)
        The first theta, where the model is finite.
    gamma : float, optional
        The noise precision. None learns the noise variance from the residuals.
    max_passes : int
        The largest number of passes over the rows.
    tol : float
        Converged when an undamped step is this small relative to theta, in units of the columns' norms.
    prior : Information, optional
        Information about theta from elsewhere, in units of the noise: 1/2 ||R theta - z||^2 more in (1). It counts in
        mean, cov and objective, and is left out of `information`, the residuals and the number of rows.
    likelihood : Likelihood, optional
        How observations scatter around h, one of `kalprox.likelihoods`; the default is Gaussian.

    Returns
    -------
    Refined

    Examples
    --------
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
    problem = Problem(model, likelihood, regularizer, as_source(source), prior)
    if exact:
        theta = np.zeros_like(theta)
    elif not np.isfinite(problem.g(theta)):
        raise ValueError(f"start must lie where g is finite; {type(regularizer).__name__} is {problem.g(theta)} there.")
    point = problem.at(theta)
    if point is None:
        raise ValueError(_why_not_finite(problem, theta))
    if exact:
        point = problem.moved(point)
        left = steps_left(problem, point, np.linalg.norm(point.R, axis=0))
    else:
        point, left = descend(problem, point, max_passes, tol)
    return _read(problem, point, gamma, *_verdict(problem, point, left, max_passes, tol))


def _verdict(problem: Problem, point: Point, left: float, max_passes: int, tol: float) -> tuple[bool, str]:
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


def _read(problem: Problem, point: Point, gamma: float | None, converged: bool, message: str) -> Refined:
    """The answer, from one linearisation of all rows at theta."""
    information, theta = about(point.information, point.theta), point.theta
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


def _why_not_finite(problem: Problem, theta: Array) -> str:
    part = partial(rows_not_finite, problem.model, problem.likelihood, theta)
    bad = np.flatnonzero(np.concatenate(problem.source.fold(part).total or []))
    shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    return (
        f"the model and its derivative must be finite at start (and their squares); they are not in {len(bad)} "
        f"row(s): {shown}. Change start, or remove these rows."
    )
