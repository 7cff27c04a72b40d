"""The methods that the paper builds on and compares with: IPM (Kalman filter, EKF), IPG in any metric, SGD."""

from typing import Any

from kalprox.algorithms.base import Algorithm, start_covariance, start_mean
from kalprox.base.arrays import Array, Partial, asarray_like, cast, namespace
from kalprox.base.checks import check_positive
from kalprox.base.control import fori_loop
from kalprox.covariance import Covariance, Dense, Diagonal, SquareRoot
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.likelihoods.names import likelihood_of
from kalprox.models import Model, Predictor, predictor
from kalprox.paper.pipg import update
from kalprox.paper.states import Belief, Point, check_target, predictive, row_step
from kalprox.regularizers import Regularizer

__all__ = ["exact_prox", "ipg", "ipm", "sgd"]


def ipm(model: Model, *, gamma: Any, likelihood: Likelihood | None = None) -> Algorithm:
    """The incremental proximal method, g = 0: eq. (IPM) in the metric V_{k-1}. O(d^2) per row.

    With a linear h and Gaussian noise it is the Kalman filter, eqs. (KalmanUpdateMean)-(KalmanUpdateCov), and gives the
    exact posterior after one pass. Otherwise it is the extended Kalman filter; further passes then improve the mean,
    while V shrinks with each pass as if the rows were new.

    V is kept as a square root (`kalprox.covariance.SquareRoot`) unless `init` is given another structure, so that no
    variance becomes negative, however large v0 and gamma or alike the rows are.

    Parameters
    ----------
    model : Model
        h, one of `kalprox.models`.
    gamma : float
        The noise precision (noise variance 1/gamma), which is also the step size.
    likelihood : Likelihood, optional
        How observations scatter around h, one of `kalprox.likelihoods`; the default is Gaussian. gamma scales the loss
        of any other likelihood too, and should be 1 unless it has a dispersion.

    Returns
    -------
    Algorithm
        As for `kalprox.pipg`.

    Examples
    --------
    >>> import numpy as np, kalprox as kp
    >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
    >>> state = alg.step(alg.init(np.zeros(1), 1.0), np.array([1.0]), np.array(3.0))
    >>> state.mean, state.cov()
    (array([1.5]), array([[0.5]]))
    """
    check_positive("gamma", gamma)
    likelihood = likelihood_of(likelihood, known=True)
    return Algorithm(
        init=Partial(_start_belief, ()),
        step=Partial(_ipm_step, (model, likelihood, gamma)),
        predict=Partial(predictive, (model, likelihood, gamma)),
    )


def ipg(model: Predictor, regularizer: Regularizer, *, gamma: Any, decay: Any = 0.51, metric: Any = None) -> Algorithm:
    """(Variable-metric) incremental proximal gradient, eq. (VarMetIPG), with step size gamma / k^decay.

    The proximal step on the squared loss f_k is exact for every h(x' theta), in closed form where h is linear: see
    `exact_prox`. The paper does not carry it out for the sigmoid.

    Parameters
    ----------
    model : Linear or GLM
        h, a function of one linear predictor.
    regularizer : Regularizer
        g, differentiable.
    gamma : float
        The step size of the first row.
    decay : float
        The exponent of the decreasing step size. 0 keeps it constant: the estimate then does not settle, and for a
        linear h its error stays bounded only while gamma max eig(V Hess g) is below 2, because the step on g is
        explicit.
    metric : None, scalar, array or callable
        V_{k-1}. None is the identity; a scalar, a diagonal or a matrix is constant; a function of k = 1, 2, ... returns
        one of these.

    Returns
    -------
    Algorithm
        `init(mean0)` needs no covariance, and the state has none: `predict` gives an infinite standard deviation.

    Examples
    --------
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
        metric = Partial(metric, ())
    return Algorithm(
        init=Partial(_start_point, ()),
        step=Partial(_ipg_step, (model, regularizer, gamma, decay, metric)),
        predict=Partial(predictive, (model, Gaussian(), 1.0)),
    )


def sgd(
    model: Model, regularizer: Regularizer, *, alpha0: Any, alpha1: Any, likelihood: Likelihood | None = None
) -> Algorithm:
    """Stochastic gradient descent on f_k + g with the learning rate alpha0 / (1 + alpha1 k). O(d) per row.

    As in `pipg`, g counts once per row.

    Parameters
    ----------
    model : Model
        h, one of `kalprox.models`.
    regularizer : Regularizer
        g, differentiable.
    alpha0, alpha1 : float
        The learning rate at first, and how fast it decreases.
    likelihood : Likelihood, optional
        How observations scatter around h, one of `kalprox.likelihoods`; the default is Gaussian.

    Returns
    -------
    Algorithm
        `init(mean0)` needs no covariance, and the state has none: `predict` gives an infinite standard deviation.

    Examples
    --------
    >>> import numpy as np, kalprox as kp
    >>> alg = kp.sgd(kp.models.Linear(), kp.regularizers.Zero(), alpha0=0.5, alpha1=1.0)
    >>> alg.step(alg.init(np.zeros(1)), np.array([1.0]), np.array(4.0)).mean
    array([1.])
    """
    check_positive("alpha0", alpha0)
    check_positive("alpha1", alpha1, strict=False)
    likelihood = likelihood_of(likelihood, known=True)
    return Algorithm(
        init=Partial(_start_point, ()),
        step=Partial(_sgd_step, (model, likelihood, regularizer, alpha0, alpha1)),
        predict=Partial(predictive, (model, likelihood, likelihood.unit)),
    )


def exact_prox(model: Predictor, gamma: Array, theta: Array, V: Covariance, x: Array, y: Array) -> Array:
    """The prox of gamma f_k in the metric V: argmin over t of gamma/2 (y - h(x't))^2 + 1/2 ||t - theta||^2_V.

    Only the predictor a = x't matters: t = theta + V x (a - u)/s with u = x'theta, s = x'Vx, and a minimises
    phi(a) = gamma/2 (y - h(a))^2 + (a - u)^2 / (2 s). No minimiser is further from u than sqrt(s gamma) |y - h(u)|.
    phi may have several local minima, so that range is cut into cells, and the zero of phi' in the best cell is found
    by bisection, to the last bit.
    """
    xp = namespace(theta)
    Vx = V.apply(x)
    u, s = predictor(theta, x), x @ Vx
    value = model.link(u)[0]
    check_target(y, value)
    e = y - value
    if model.linear:
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
    V = start_covariance(v0, mean)
    return Belief(mean, V if isinstance(v0, Covariance) or not isinstance(V, Dense) else SquareRoot.of(V.V))


def _start_point(mean0: Any, v0: Any = None) -> Point:
    """v0 is accepted, so that algorithms can be swapped, and ignored."""
    mean = start_mean(mean0)
    return Point(mean, namespace(mean).asarray(0, "int32"))


@row_step
def _ipm_step(h: Model, likelihood: Likelihood, gamma: Array, state: Belief, x: Array, y: Array) -> Belief:
    return Belief(*update(h, likelihood, gamma, state.mean, state.V, x, y))


@row_step
def _ipg_step(
    h: Predictor, g: Regularizer, gamma: Array, decay: Array, metric: Any, state: Point, x: Array, y: Array
) -> Point:
    theta, k = state.mean, state.rows + 1
    V = _metric(metric(k) if callable(metric) else metric, theta)
    step = gamma / asarray_like(k, theta) ** decay
    theta = theta - step * V.apply(g.grad(theta))
    return Point(exact_prox(h, step, theta, V, x, y), k)


def _metric(metric: Any, theta: Array) -> Covariance:
    v = cast(1.0 if metric is None else metric, theta)
    return Dense(v) if v.ndim == 2 else Diagonal(namespace(theta).broadcast_to(v, theta.shape))


@row_step
def _sgd_step(
    h: Model, likelihood: Likelihood, g: Regularizer, alpha0: Array, alpha1: Array, state: Point, x: Array, y: Array
) -> Point:
    theta, k = state.mean, state.rows + 1
    value, D = h.linearize(theta, x)
    check_target(y, value)
    slope, _ = likelihood.expand(y, value)
    gradient = g.grad(theta) + (slope @ D if D.ndim == 2 else slope * D)
    return Point(theta - alpha0 / (1 + alpha1 * asarray_like(k, theta)) * gradient, k)
