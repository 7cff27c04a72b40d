"""What the paper builds on and compares with: IPM (Kalman filter, EKF), IPG in any metric, SGD."""

from typing import Any

from jax.tree_util import Partial

from kalprox._arrays import Array, cast, namespace
from kalprox._checks import check_positive
from kalprox._control import fori_loop, full_precision
from kalprox.algorithms.base import Algorithm, Belief, Point, check_row, innovation, start_covariance, start_mean
from kalprox.algorithms.pipg import update
from kalprox.covariance import Covariance, Dense, Diagonal
from kalprox.models import Linear, Model, Predictor, predictor
from kalprox.regularizers import Regularizer

__all__ = ["exact_prox", "ipg", "ipm", "sgd"]


def ipm(model: Model, *, gamma: Any) -> Algorithm:
    """The incremental proximal method, g = 0: eq. (IPM) in the metric V_{k-1}, O(d^2) a row.

    With a linear h it is the Kalman filter, eqs. (KalmanUpdateMean)-(KalmanUpdateCov), and the
    exact posterior after one pass. Else it is the extended Kalman filter; several passes then
    help the mean, while V shrinks with each as if the rows were new.

    >>> import numpy as np, kalprox as kp
    >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
    >>> state = alg.step(alg.init(np.zeros(1), 1.0), np.array([1.0]), np.array(3.0))
    >>> state.mean, state.cov()
    (array([1.5]), array([[0.5]]))
    """
    check_positive("gamma", gamma)
    return Algorithm(init=Partial(_start_belief), step=Partial(_ipm_step, model, gamma))


def ipg(model: Predictor, regularizer: Regularizer, *, gamma: Any, decay: Any = 0.51, metric: Any = None) -> Algorithm:
    """(Variable-metric) incremental proximal gradient, eq. (VarMetIPG), with step gamma / k^decay.

    The proximal step on f_k is exact for every h(x' theta), closed form where h is linear: see
    `exact_prox`. The paper calls it out of reach for the sigmoid.

    Args:
      model: `Linear()` or a `GLM`.
      regularizer: g, differentiable.
      gamma: the step size of the first row.
      decay: 0 keeps the step constant (and diverges where gamma is not small).
      metric: V_{k-1}: None for the identity; a scalar, a diagonal or a matrix for a constant
        one; or a function of k = 1, 2, ... that returns one of these.

    >>> import numpy as np, kalprox as kp
    >>> alg = kp.ipg(kp.models.GLM("sigmoid"), kp.regularizers.Zero(), gamma=1.0)
    >>> alg.step(alg.init(np.zeros(1)), np.array([1.0]), np.array(1.0)).mean.round(6)
    array([0.117275])
    """
    check_positive("gamma", gamma)
    check_positive("decay", decay, strict=False)
    if not isinstance(model, Predictor):
        raise TypeError(
            f"ipg needs a model of the form h(x' theta), Linear() or GLM(link), whose proximal step is "
            f"one-dimensional; got {type(model).__name__}. Use ipm or pipg, which linearise."
        )
    if callable(metric):
        metric = Partial(metric)
    return Algorithm(init=Partial(_start_point), step=Partial(_ipg_step, model, regularizer, gamma, decay, metric))


def sgd(model: Model, regularizer: Regularizer, *, alpha0: Any, alpha1: Any) -> Algorithm:
    """Stochastic gradient descent on f_k + g with the learning rate alpha0 / (1 + alpha1 k), O(d) a row.

    As in `pipg`, g counts once per row.

    >>> import numpy as np, kalprox as kp
    >>> alg = kp.sgd(kp.models.Linear(), kp.regularizers.Zero(), alpha0=0.5, alpha1=1.0)
    >>> alg.step(alg.init(np.zeros(1)), np.array([1.0]), np.array(4.0)).mean
    array([1.])
    """
    check_positive("alpha0", alpha0)
    check_positive("alpha1", alpha1, strict=False)
    return Algorithm(init=Partial(_start_point), step=Partial(_sgd_step, model, regularizer, alpha0, alpha1))


def exact_prox(model: Predictor, gamma: Array, theta: Array, V: Covariance, x: Array, y: Array) -> Array:
    """prox of gamma f_k in the metric V: argmin over t of gamma/2 (y - h(x't))^2 + 1/2 ||t - theta||^2_V.

    Only the predictor a = x't matters: t = theta + V x (a - u)/s with u = x'theta, s = x'Vx, and a
    minimises phi(a) = gamma/2 (y - h(a))^2 + (a - u)^2 / (2 s). No minimiser is further from u than
    sqrt(s gamma) |y - h(u)|. That range is cut into cells (phi may have several valleys), and in the
    best one the zero of phi' is found by bisection, to the last bit.
    """
    xp = namespace(theta)
    Vx = V.apply(x)
    u, s = predictor(theta, x), x @ Vx
    e = innovation(y, model.link(u)[0])
    if isinstance(model, Linear):
        return theta + Vx * (e / (1 / gamma + s))

    def phi(a: Array) -> Array:  # 2 s phi(a)
        return s * gamma * (y - model.link(a)[0]) ** 2 + (a - u) ** 2

    def falls(a: Array) -> Array:
        h, dh = model.link(a)
        return a - u < s * gamma * (y - h) * dh

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        down = falls(middle)
        return xp.where(down, middle, low), xp.where(down, high, middle)

    reach = (s * gamma) ** 0.5 * xp.abs(e)
    cells = xp.linspace(-1, 1, 129, dtype=theta.dtype)
    centre = u + reach * cells[xp.argmin(phi(u + reach * cells))]
    a, _ = fori_loop(xp, 64, halve, (centre - reach / 64, centre + reach / 64))
    return theta + Vx * xp.where(s > 0, (a - u) / xp.where(s > 0, s, 1), 0)


def _start_belief(mean0: Any, v0: Any) -> Belief:
    mean = start_mean(mean0)
    return Belief(mean, start_covariance(v0, mean))


def _start_point(mean0: Any, v0: Any = None) -> Point:
    """v0 is accepted, so that algorithms can be swapped, and has no use here."""
    mean = start_mean(mean0)
    return Point(mean, namespace(mean).asarray(0, "int32"))


@full_precision
def _ipm_step(model: Model, gamma: Any, state: Belief, x: Array, y: Array) -> Belief:
    check_row(x, y)
    h, gamma, x, y = cast((model, gamma, x, y), state.mean)
    return Belief(*update(h, gamma, state.mean, state.V, x, y))


@full_precision
def _ipg_step(
    model: Predictor, regularizer: Regularizer, gamma: Any, decay: Any, metric: Any, state: Point, x: Array, y: Array
) -> Point:
    check_row(x, y)
    theta, rows = state.mean, state.rows + 1
    h, g, gamma, decay, x, y, k = cast((model, regularizer, gamma, decay, x, y, rows), theta)
    V = _metric(metric(rows) if callable(metric) else metric, theta)
    step = gamma / k**decay
    theta = theta - step * V.apply(g.grad(theta))
    return Point(exact_prox(h, step, theta, V, x, y), rows)


def _metric(metric: Any, theta: Array) -> Covariance:
    xp = namespace(theta)
    v = cast(1.0 if metric is None else metric, theta)
    return Dense(v) if v.ndim == 2 else Diagonal(xp.broadcast_to(v, theta.shape))


@full_precision
def _sgd_step(
    model: Model, regularizer: Regularizer, alpha0: Any, alpha1: Any, state: Point, x: Array, y: Array
) -> Point:
    check_row(x, y)
    theta, rows = state.mean, state.rows + 1
    h, g, alpha0, alpha1, x, y, k = cast((model, regularizer, alpha0, alpha1, x, y, rows), theta)
    value, D = h.linearize(theta, x)
    e = innovation(y, value)
    gradient = g.grad(theta) - (e @ D if D.ndim == 2 else e * D)
    return Point(theta - alpha0 / (1 + alpha1 * k) * gradient, rows)
