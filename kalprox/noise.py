"""The noise variance, its degrees of freedom, and the evidence.

All functions take an information (R, z, rss, rows), with sum_k w_k (y_k - x_k' theta)^2 = ||R theta - z||^2 + rss. The
number of rows is the sum of the weights if they are repetitions. If forgetting has faded the rows, the weights are
first divided by c = squares / rows (`LeastSquares.fading`): sum w = sum w^2 is then the effective number of rows.
"""

import math
from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array, cast_on_jax, namespace, pytree, special_functions, static
from kalprox.base.checks import check_positive, concrete
from kalprox.base.text import worded
from kalprox.base.tree import leaf
from kalprox.linalg.rank import tolerance
from kalprox.regularizers import Regularizer


@pytree
class Noise:
    """The noise variance and its degrees of freedom.

    Parameters
    ----------
    variance : float or array
    dof : float or array
        The residual degrees of freedom; infinite if the variance is given and not learned.
    doubt : str
        Why the variance may be wrong, although it is a number, and what to change.

    Examples
    --------
    >>> noise = Noise.learned(rss=24.0, rows=15, edf=3.0)
    >>> float(noise.variance), float(noise.dof)
    (2.0, 12.0)
    >>> float(noise.std(leverage=0.125))
    1.5
    """

    variance: Any = leaf(sign="nonnegative", values="any")
    dof: Any = leaf(values="any")
    doubt: str = static(default="", kw_only=True)

    @classmethod
    def known(cls, gamma: Any) -> Self:
        """Return the noise of given precision gamma, so variance 1/gamma; intervals are then normal."""
        check_positive("gamma", gamma)
        return cls(1 / gamma, math.inf)

    @classmethod
    def learned(cls, rss: Any, rows: Any, edf: Any) -> Self:
        """Estimate the variance sigma^2 = rss / (rows - edf), with rows - edf degrees of freedom.

        Without a penalty the estimate is unbiased, and equals `scale` of statsmodels. If no degrees of freedom remain,
        the variance is NaN, and `reason` explains why.

        Parameters
        ----------
        rss : float or array
            The residual sum of squares at the estimate, ||R theta - z||^2 + rss.
        rows : float
            The number of rows.
        edf : float or array
            The effective degrees of freedom of the fit; see `effective_dof`. Add 1 for an intercept outside R.

        Returns
        -------
        Noise
        """
        xp = namespace(rss, rows, edf)
        rss = xp.asarray(rss) * 1.0
        rows, edf = xp.asarray(rows, rss.dtype), xp.asarray(edf, rss.dtype)
        dof = rows - edf
        # rows - edf has the rounding error of edf; if it is not larger than that, the quotient would be meaningless.
        enough = dof > xp.finfo(rss.dtype).eps ** 0.5 * rows
        return cls(xp.where(enough, rss / xp.where(enough, dof, 1), xp.nan), dof)

    @property
    def reason(self) -> str:
        """Why the variance is NaN or in doubt, and what to change; empty if it is neither."""
        if not np.isnan(np.asarray(self.variance)).any():
            return self.doubt
        dof = float(np.min(np.asarray(self.dof)))
        if not dof <= 0.5:
            return (
                "The noise variance is NaN because the residuals or the degrees of freedom are NaN: "
                "check the rows for NaN, and check that theta is a minimum."
            )
        less = ""
        if dof < -(np.finfo(float).eps ** 0.5):  # no fit has more degrees of freedom than there are whole rows
            less = (
                " The rows count for less than one each: if their weights say how precise they are, and not how often "
                "they count, set {weight_kind='precision' (--weight-kind precision)|--weight-kind precision}."
            )
        return worded(
            f"The noise level cannot be learned: rows - (effective degrees of freedom) = {dof:.3g}, so that no "
            f"residual degrees of freedom remain.{less} Add rows, strengthen the penalty (ridge with {{alpha='auto'}} "
            "learns the noise level from fewer rows than coefficients), or give the noise variance{| with --noise}."
        )

    def std(self, leverage: Array, sigma: Any = 1) -> Array:
        """Return the predictive scale of a new observation at x, sqrt(variance * (sigma^2 + leverage)).

        With few degrees of freedom this scale of Student's t distribution is smaller than the standard deviation.

        Parameters
        ----------
        leverage : array
            x' (R'R + H)^-1 x, the variance of the prediction in units of the noise variance. For a nonlinear h, x is
            the gradient of h.
        sigma : float or array
            The standard deviation of the noise of the observation, in units of that of a row of weight 1. With 0 the
            result is the scale of the mean of the observation.

        Returns
        -------
        array of the shape of leverage
        """
        return namespace(self.variance, leverage).sqrt(self.variance * (sigma**2 + leverage))


def effective_dof(R: Array, regularizer: Regularizer, theta: Array, factor: Any, *, prior: bool = False) -> Array:
    """Return the effective degrees of freedom of the fit, trace((R'R + H)^-1 R'R) on the free coordinates of g.

    H is the Hessian of g at theta. The trace is rank(R) for g = 0 and the trace of the hat matrix for ridge. It is the
    number of nonzero coefficients for L1 (of coefficients strictly inside their bounds for Box) if their columns are
    independent, and the trace on the active set for elastic net and group L1. It is the divergence of the fit with
    respect to y, wherever g is twice differentiable on the free coordinates. O(d^3).

    Parameters
    ----------
    R : array of shape (m, d)
    regularizer : Regularizer
        The penalty g.
    theta : array of shape (d,)
        The estimate.
    factor : kalprox.linalg.factor.Factor
        L with L L' = (R'R + H)^-1, plus the prior precision if there is one: the trace is the squared norm of R L.
    prior : bool
        Whether the factor has a prior.

    Returns
    -------
    scalar array
    """
    if not prior and namespace(R, regularizer, theta) is np and not _is_curved(regularizer, theta):
        return np.asarray(float(factor.L.shape[1]))  # the rank of the free columns, exactly
    return (factor.whitened(R) ** 2).sum()


def _is_curved(g: Regularizer, theta: np.ndarray) -> bool:
    """Whether g has curvature on its free coordinates."""
    if (root := g.root(len(theta))) is not None:
        return bool(root.any())
    h, free = np.asarray(g.hessian(theta)), np.asarray(g.free(theta))
    return bool((h if h.ndim == 1 else h[free])[..., free].any())


def log_evidence(
    R: Array, z: Array, rss: Any, rows: Any, regularizer: Regularizer, gamma: Any | None = None, fading: Any = 1.0
) -> Array:
    """Return the log evidence log p(y) of a linear model with the penalty g = 1/2 ||A theta||^2 as its prior.

    The model is y | theta ~ N(X theta, I/gamma), theta ~ N(0, (gamma A'A)^-1), so that the posterior mean minimises
    the objective. With S = min over t of ||R t - z||^2 + ||A t||^2 + rss,

        log p(y | gamma) = 1/2 log(det A'A / det(R'R + A'A)) + rows/2 log(gamma / 2 pi) - gamma S / 2.

    If gamma is None, it is integrated out under the improper prior p(gamma) = 1/gamma:

        log p(y) = 1/2 log(det A'A / det(R'R + A'A)) + log Gamma(rows/2) - rows/2 log(pi S).

    This is a log density up to a constant that is the same for every g and X, so that values for the same y can be
    compared.

    Parameters
    ----------
    R, z, rss, rows
        The information of the rows. For a model with an unpenalised intercept pass the centred R, z and rss, and
        rows - 1: the result is then the restricted log likelihood.
    regularizer : Regularizer
        A quadratic penalty whose A has full column rank.
    gamma : float, optional
        The noise precision.
    fading : float
        squares / rows of the information, 1 if nothing was forgotten. The whole objective is divided by it, which moves
        no minimum: S becomes S / fading, and the rows rows / fading.

    Returns
    -------
    scalar array
        Exact. The cost is one SVD and one QR, O(d^3).

    Examples
    --------
    >>> from kalprox.regularizers import Ridge
    >>> round(float(log_evidence(np.eye(1), np.array([0.0]), 0.0, 1, Ridge(1.0), gamma=1.0)), 6)  # N(0; 0, 2)
    -1.265512
    """
    if gamma is not None:
        check_positive("gamma", gamma)
    xp = namespace(R, z, regularizer)
    regularizer = cast_on_jax(regularizer, R)
    d = R.shape[1]
    root = regularizer.root(d)
    if root is None:
        raise ValueError(
            "log_evidence needs a quadratic regulariser (Ridge or Quadratic), which is a Gaussian prior; "
            f"got {type(regularizer).__name__}."
        )
    A = xp.asarray(root, R.dtype)
    size = xp.abs(A).max(axis=0) if A.shape[0] else xp.zeros(d, A.dtype)
    scale = xp.where(size > 0, size, 1)
    A = A / scale[None, :]
    s = xp.linalg.svd(A, compute_uv=False)
    proper = (s > tolerance(d, None, A.dtype) * s[0]).sum() == d if A.shape[0] >= d else False
    if concrete(proper) is not None and not proper:
        raise ValueError(
            f"log_evidence needs a proper prior: {type(regularizer).__name__} does not penalise every direction of "
            "theta. Penalise every coordinate; for a free intercept pass the centred views and rows - 1."
        )
    stack = xp.concatenate(
        [xp.concatenate([R / scale[None, :], z[:, None]], axis=1), xp.concatenate([A, xp.zeros_like(A[:, :1])], axis=1)]
    )
    U = xp.linalg.qr(stack, mode="r")
    S = ((U[d:, d] ** 2).sum() + rss) / fading
    rows = xp.asarray(rows / fading, R.dtype)
    volumes = xp.log(s).sum() - xp.log(xp.abs(xp.diagonal(U)[:d])).sum()
    return _log_density(xp.where(proper, volumes, xp.nan), S, rows, gamma)  # under jit no exception can be raised


def ridge_log_evidence(
    s: np.ndarray, z: np.ndarray, rss: Any, rows: float, alpha: Any, gamma: float | None = None, fading: float = 1.0
) -> np.ndarray:
    """Return `log_evidence` for the penalty alpha/2 ||theta||^2 in O(d k), given the singular values of R.

    Parameters
    ----------
    s : array of shape (m,)
        The singular values of R = U diag(s) V'.
    z : array of shape (m, k)
        U'z, for each of k targets.
    rss, rows, gamma, fading
        As for `log_evidence`; rss has shape (k,).
    alpha : float or array of shape (a,)
        Numbers > 0.

    Returns
    -------
    array of shape (k,) or (a, k)

    Examples
    --------
    >>> ridge_log_evidence(np.ones(1), np.zeros((1, 1)), np.zeros(1), 1, 1.0, gamma=1.0).round(6)  # N(0; 0, 2)
    array([-1.265512])
    """
    alpha = np.asarray(alpha)[..., None]
    kept = alpha / (alpha + s**2)  # the part of the prior precision in each direction
    S = (kept @ z**2 + rss) / fading
    evidence: np.ndarray = _log_density(
        np.log(kept).sum(axis=-1, keepdims=True) / 2, S, np.asarray(rows / fading), gamma
    )
    return evidence


def ridge_evidence_slopes(
    s: np.ndarray, z: np.ndarray, rss: Any, rows: float, alpha: float, gamma: float | None = None, fading: float = 1.0
) -> tuple[float, float]:
    """Return the first two derivatives of `ridge_log_evidence`, summed over the targets, with respect to log(alpha).

    Examples
    --------
    >>> ridge_evidence_slopes(np.ones(1), np.zeros((1, 1)), np.zeros(1), 1, 1.0, gamma=1.0)
    (0.25, -0.125)
    """
    kept = alpha / (alpha + s**2)
    first = kept * (1 - kept)  # the derivative of kept
    second = first * (1 - 2 * kept)
    S, move, bend = ((part @ z**2 + extra) / fading for part, extra in ((kept, rss), (first, 0.0), (second, 0.0)))
    volume, change = z.shape[1] * float((1 - kept).sum()), z.shape[1] * float(first.sum())
    if gamma is not None:
        return (volume - gamma * float(move.sum())) / 2, -(change + gamma * float(bend.sum())) / 2
    n = rows / fading
    return (volume - n * float((move / S).sum())) / 2, -(change + n * float((bend / S - (move / S) ** 2).sum())) / 2


def _log_density(volumes: Array, S: Array, rows: Array, gamma: Any | None) -> Array:
    """Return the log evidence, given 1/2 log(det A'A / det(R'R + A'A)), the objective S and the number of rows."""
    xp = namespace(volumes, S)
    if gamma is not None:
        return volumes + rows / 2 * xp.log(xp.asarray(gamma / (2 * math.pi), rows.dtype)) - gamma * S / 2
    log_S = xp.where(S > 0, xp.log(xp.where(S > 0, math.pi * S, 1)), -math.inf)  # no noise at all is infinitely likely
    return volumes + special_functions(xp).gammaln(rows / 2) - rows / 2 * log_S


def gaussian_log_likelihood(rss: Any, rows: float, variance: float | None = None) -> Any:
    """Return the log likelihood of rows with normal noise, at its largest if the variance is not given.

    What depends on the number of rows alone is left out.

    Parameters
    ----------
    rss : float or array
        The residual sum of squares.
    rows : float
    variance : float, optional
        The noise variance. By default it is rss / rows.

    Returns
    -------
    float or array

    Examples
    --------
    >>> gaussian_log_likelihood(8.0, 4.0, 2.0), round(float(gaussian_log_likelihood(8.0, 4.0)), 3)
    (-2.0, -1.386)
    """
    if variance is not None:
        return -rss / variance / 2
    return -rows * np.log(np.maximum(rss, np.finfo(float).tiny) / rows) / 2
