"""The paper: the incremental proximal gradient method read as a Kalman filter.

Equations are named by their labels in the paper (see the references of `pipg`). Only the general recursion is written
here: with a linear h and a quadratic g it is the linear-quadratic case (KFMeanPred)-(KFCovUpdate), and Remark 1's mixed
cases likewise.
"""

import warnings
from typing import Any

import numpy as np

from kalprox.algorithms.base import Algorithm, start_covariance, start_mean
from kalprox.base.arrays import Array, Partial, eager, is_traced
from kalprox.base.checks import check_positive
from kalprox.covariance import Covariance
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.names import likelihood_of
from kalprox.models import Model
from kalprox.paper.states import Belief, check_target, predictive, row_step
from kalprox.regularizers import Regularizer

__all__ = ["pipg", "predict", "update"]


def pipg(
    model: Model, regularizer: Regularizer, *, gamma: Any, q: Any = 0.0, likelihood: Likelihood | None = None
) -> Algorithm:
    """The probabilistic incremental proximal gradient method, as printed in the paper.

    Each row costs O(d^3), because of M V M'. Two properties to know before relying on the result: a full gradient step
    on g is taken at every row, so that the estimate settles at argmin sum f_k + n g; and V counts the curvature of g
    twice, so that with g != 0 it is a metric rather than a posterior covariance. Its predictions are then
    over-confident: `kalprox.run(..., calibrate=True)` measures by how much. `kalprox.proximal_filter` has neither
    property.

    Parameters
    ----------
    model : Model
        h, one of `kalprox.models`.
    regularizer : Regularizer
        g, twice differentiable, one of `kalprox.regularizers`.
    gamma : float
        The noise precision (noise variance 1/gamma), which is also the step size.
    q : float or array
        Q, which accounts for the linearisation error: a scalar, a diagonal of shape (d,), or a matrix.
    likelihood : Likelihood, optional
        How observations scatter around h, one of `kalprox.likelihoods`; the default is Gaussian, as in the paper.
        gamma scales the loss of any other likelihood too, and should be 1 unless it has a dispersion.

    Returns
    -------
    Algorithm
        `init(mean0, v0)` takes the prior mean and covariance: v0 is a scalar, a diagonal, a matrix, or one of
        `kalprox.covariance`. `step(state, x, y)` takes one row, `predict(state, x)` one row or a block.

    References
    ----------
    O. D. Akyildiz, E. Chouzenoux, V. Elvira, J. Miguez, "A probabilistic incremental proximal gradient method", IEEE
    Signal Processing Letters 26(8), 2019.

    Examples
    --------
    >>> import kalprox as kp
    >>> alg = kp.pipg(kp.models.Linear(), kp.regularizers.Ridge(0.1), gamma=1.0)
    >>> state = alg.init(np.zeros(2), 1.0)
    >>> state = alg.step(state, np.array([1.0, 0.0]), np.array(2.0))
    >>> state.mean.round(3), state.var().round(3)
    (array([0.895, 0.   ]), array([0.448, 0.81 ]))
    """
    check_positive("gamma", gamma)
    _check_process_noise(q)
    likelihood = likelihood_of(likelihood, known=True)
    return Algorithm(
        init=Partial(_init, (regularizer, gamma)),
        step=Partial(_step, (model, likelihood, regularizer, gamma, q)),
        predict=Partial(predictive, (model, likelihood, gamma)),
    )


def predict(g: Regularizer, gamma: Array, q: Array, theta: Array, V: Covariance) -> tuple[Array, Covariance]:
    """Eqs. (EKFMeanPred), (EKFcovPred): a gradient step on g in the metric V, and its effect on V."""
    theta_ = theta - gamma * V.apply(g.grad(theta))  # m_V(theta)
    V_ = V.contract(gamma, g.hessian(theta)).diffuse(q)  # M V M' + Q,  M = I - gamma V Hess g(theta)
    return theta_, V_


def update(
    h: Model, likelihood: Likelihood, gamma: Array, theta: Array, V: Covariance, x: Array, y: Array
) -> tuple[Array, Covariance]:
    """Eqs. (EKFMeanUpdate), (EKFCovUpdate): the (linearised) proximal step on f_k, and its effect on V.

    For the Gaussian likelihood e = y - h(theta) is the innovation and the curvature is 1; any other likelihood is
    expanded to second order. Several outputs are taken one after the other at the same linearisation: their noises are
    independent, so this is the joint update.
    """
    value, D = h.linearize(theta, x)
    check_target(y, value)
    slope, curvature = likelihood.expand(y, value)
    e, precision = -slope / curvature, gamma / likelihood.unit * curvature
    if D.ndim == 1:
        gain, V = V.condition(D, precision)
        return theta + gain * e, V
    step = 0 * theta
    for d_j, e_j, precision_j in zip(D, e, precision, strict=True):
        gain, V = V.condition(d_j, precision_j)
        step = step + gain * (e_j - d_j @ step)
    return theta + step, V


def _init(regularizer: Regularizer, gamma: Any, mean0: Any, v0: Any) -> Belief:
    mean = start_mean(mean0)
    V = start_covariance(v0, mean)
    _check_first_prediction(V, regularizer, gamma, mean)
    return Belief(mean, V)


@row_step
def _step(
    h: Model, likelihood: Likelihood, g: Regularizer, gamma: Array, q: Array, state: Belief, x: Array, y: Array
) -> Belief:
    theta, V = predict(g, gamma, q, state.mean, state.V)
    theta, V = update(h, likelihood, gamma, theta, V, x, y)
    return Belief(theta, V)


def _check_process_noise(q: Any) -> None:
    if is_traced(q):
        return
    lowest = np.linalg.eigvalsh(q)[0] if np.ndim(q) == 2 else np.min(q)
    if not lowest >= 0:
        raise ValueError(f"q must be >= 0 (as a matrix: positive semi-definite); got smallest value {lowest:.3g}.")


def _check_first_prediction(V: Covariance, g: Regularizer, gamma: Any, mean: Array) -> None:
    """M = I - gamma V H is singular where an eigenvalue of gamma V H is 1, and expands V where one is above 2."""
    if is_traced(V, g, gamma, mean):
        return
    with eager():  # inside jit, arrays from outside still have values to check
        largest = float(gamma) * V.max_eigenvalue(g.hessian(mean))
    advice = (
        f"gamma * max eig(v0 * Hess g) is {largest:.3g} at mean0; keep it below 1: "
        "lower v0, gamma or the regulariser's lam, or raise its delta."
    )
    if largest >= 2:
        raise ValueError(f"The first prediction step would expand the covariance, and the recursion diverge: {advice}")
    if largest >= 1:
        warnings.warn(
            f"The first prediction step overshoots, and at 1 makes the covariance singular and freezes the "
            f"estimate: {advice}",
            RuntimeWarning,
            stacklevel=4,
        )
