"""The paper's recursions: PIPG, and what it builds on and is compared with: IPM (Kalman filter, EKF), IPG, SGD."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from kalprox.algorithms.base import Algorithm, start_covariance, start_mean
from kalprox.base.arrays import Array, Partial, asarray_like, cast, eager, is_traced, namespace, pytree, tree_map
from kalprox.base.checks import check_finite, check_floating, check_positive
from kalprox.base.control import fori_loop, full_precision
from kalprox.covariance import Covariance, Dense, Diagonal, SquareRoot
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.likelihoods.names import likelihood_of
from kalprox.models import Model, Predictor, predictor
from kalprox.noise import Noise
from kalprox.predictive import Predictive
from kalprox.regularizers import Regularizer


@pytree
class Belief:
    """The belief theta ~ N(mean, V)."""

    mean: Any
    V: Covariance

    def cov(self) -> Array:
        """The covariance as a matrix, shape (d, d)."""
        return self.V.dense()

    def var(self) -> Array:
        """The variances, shape (d,)."""
        return self.V.diag()

    def variance(self, D: Array) -> Array:
        """The variances of the predictors D theta."""
        return self.V.variance(D)


@pytree
class Point:
    """An estimate without a covariance, and the number of rows it was made from."""

    mean: Any
    rows: Any

    def variance(self, D: Array) -> Array:
        """The variances of the predictors D theta, infinite: nothing is known about the error of theta."""
        return namespace(D).full_like(D[..., 0], np.inf)


def row_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the equations of a row, `step(*numbers, state, x, y)`.

    Before any arithmetic the row is checked. The numbers, x and y then come in the array library and dtype of the
    state, so that a float64 penalty weight does not promote a float32 recursion, and products are in full precision.
    """

    @full_precision
    @wraps(step)
    def checked(*args: Any) -> Any:
        *numbers, state, x, y = args
        with eager():
            for name, value in (("x", x), ("y", y)):
                if hasattr(value, "dtype"):
                    check_floating(name, value)
                check_finite(name, value)
        numbers, x, y = cast((numbers, x, y), state.mean)
        return step(*numbers, _in_library_of(x, state), x, y)

    return checked


@full_precision
def predictive(
    model: Model, likelihood: Likelihood, gamma: Any, state: Belief | Point, x: Array, block: bool | None = None
) -> Predictive:
    """The predictive distribution of y at x under what `state` says of theta, with h linearised at the mean.

    `block` is whether x is a block of rows; by default it is one if it has two dimensions.
    """
    h, likelihood, gamma, x = cast((model, likelihood, gamma, x), state.mean)
    state = _in_library_of(x, state)
    block = x.ndim == 2 if block is None else block
    f, D = h.linearize_rows(state.mean, x) if block else h.linearize(state.mean, x)
    gamma = gamma / likelihood.unit
    return likelihood.predict(f, gamma * state.variance(D), Noise.known(gamma))


def _in_library_of(x: Array, state: Any) -> Any:
    """`state`, or where it is NumPy's and x, cast to its dtype, is traced inside jit, the state as arrays of JAX."""
    same = isinstance(state.mean, np.ndarray) is isinstance(x, np.ndarray)
    return state if same else tree_map(namespace(x).asarray, state)


def check_target(y: Array, value: Array) -> None:
    """Raise unless y has the shape of the model's output: otherwise it would be broadcast."""
    if y.shape != value.shape:
        raise ValueError(f"y must have the shape of the model's output, {value.shape}; got {y.shape}.")


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
