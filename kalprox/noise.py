"""How much the data scatter around the fit, with how many degrees of freedom, and how likely they are.

Everything here is read off an information (R, z, rss, rows), with sum_k w_k (y_k - x_k' theta)^2 =
||R theta - z||^2 + rss. Weights are repetitions: `rows` is their sum.
"""

import math
from functools import partial
from typing import Any, Self

import numpy as np

from kalprox._arrays import Array, cast, namespace, pytree
from kalprox._checks import check_positive, concrete
from kalprox.linalg.triangle import column_norms
from kalprox.predictive import special_functions, standard_quantile
from kalprox.regularizers import Regularizer
from kalprox.solvers.newton import curvature

__all__ = ["Noise", "curves_upwards", "effective_dof", "log_evidence"]


@pytree
class Noise:
    """The noise variance, and the degrees of freedom it was learned with (infinite: it was given).

    >>> noise = Noise.learned(rss=24.0, rows=15, edf=3.0)
    >>> float(noise.variance), float(noise.dof)
    (2.0, 12.0)
    >>> round(float(noise.std(leverage=0.125)), 3), round(float(noise.quantile(0.95)), 3)
    (1.5, 2.179)
    """

    variance: Any
    dof: Any

    @classmethod
    def known(cls, gamma: Any) -> Self:
        """Noise of precision gamma, variance 1/gamma: intervals are then normal."""
        check_positive("gamma", gamma)
        return cls(1 / gamma, math.inf)

    @classmethod
    def learned(cls, rss: Any, rows: Any, edf: Any) -> Self:
        """sigma^2 = rss / (rows - edf), with rows - edf degrees of freedom.

        Args:
          rss: the residual sum of squares at the estimate, ||R theta - z||^2 + rss.
          rows: how many rows there are, the sum of their weights.
          edf: `effective_dof`, plus 1 where an intercept was fitted outside R.

        Unbiased, and statsmodels' `scale`, where there is no penalty. Where no degrees of freedom
        are left the variance is NaN, and `reason` says why.
        """
        xp = namespace(rss, rows, edf)
        rss = xp.asarray(rss) * 1.0
        rows, edf = xp.asarray(rows, rss.dtype), xp.asarray(edf, rss.dtype)
        dof = rows - edf
        # rows - edf carries edf's rounding error: below this, dividing by it would only magnify it.
        enough = dof > xp.finfo(rss.dtype).eps ** 0.5 * rows
        return cls(xp.where(enough, rss / xp.where(enough, dof, 1), xp.nan), dof)

    @property
    def reason(self) -> str:
        """Why the variance is NaN, and what to change; empty where it is a number."""
        if not np.isnan(np.asarray(self.variance)).any():
            return ""
        dof = float(np.min(np.asarray(self.dof)))
        if not dof <= 0.5:
            return (
                "The noise variance is not a number because the residuals or the degrees of freedom are not: "
                "check the rows for NaN, and that theta is a minimum."
            )
        return (
            f"The noise level cannot be learned: rows - (effective degrees of freedom) = {dof:.3g}, so the fit "
            "leaves no residual to learn from. Add rows, strengthen the penalty, or give the noise variance."
        )

    def std(self, leverage: Array) -> Array:
        """The scale of a new observation at x: sqrt(sigma^2 (1 + x' (R'R + H)^-1 x)).

        `leverage` is x' (R'R + H)^-1 x, in units of the noise; x is the gradient of h where h is
        nonlinear. With few degrees of freedom this is Student's scale, smaller than the deviation.
        """
        return namespace(self.variance, leverage).sqrt(self.variance * (1 + leverage))

    def quantile(self, level: float = 0.95) -> Array:
        """t_{(1 + level)/2, dof}: how many scales a central interval reaches either way; NaN if dof <= 0."""
        if not 0 < level < 1:
            raise ValueError(f"level must be strictly between 0 and 1, such as 0.95; got {level!r}.")
        return standard_quantile(self.dof, (1 + level) / 2)


def effective_dof(
    R: Array, regularizer: Regularizer, theta: Array, *, prior: Array | None = None, factor: Any = None
) -> Array:
    """trace((R'R + H)^-1 R'R), H the Hessian of g at theta, both on the coordinates g leaves free.

    `prior`, shape (m, d), is the root of a prior's precision in units of the noise: it adds to H. `factor`, where it
    has been computed already, is the `kalprox.linalg.factor.Factor` of the posterior; it saves most of the work.

    The degrees of freedom the fit uses up: rank(R) for g = 0, the trace of the hat matrix for
    ridge, the number of nonzeros for L1 (of coordinates strictly inside for Box) where their columns
    are independent, and the same trace on the active set for elastic net and group L1.

    Exact (it is the divergence of the fit with respect to y) wherever g is twice differentiable on
    the free coordinates. NaN where R'R + H is not positive definite, so that theta is no minimum.

    Never forms R'R: with Q an orthonormal basis of the columns of [R; A], A'A = H, the trace is
    ||Q_R||^2, its rows beside R. The columns are scaled first, which does not change it and lets the rank
    be decided. One SVD of a (2d, d) matrix, O(d^3).
    """
    xp = namespace(R, regularizer, theta)
    if xp is np and factor is not None and (curves := curves_upwards(regularizer, theta)) is not None:
        if not curves and prior is None:
            return np.asarray(float(factor.L.shape[1]))  # the rank of the free columns
        Q = (R if factor.free is None else R[:, factor.free]) @ factor.L
        return (Q**2).sum()
    if xp is not np:
        R, regularizer = xp.asarray(R), cast(regularizer, R)
    matmul = np.matmul if xp is np else partial(xp.matmul, precision="highest")  # a GPU would round float32
    free = regularizer.free(theta)
    known = xp.where(free[None, :], R if prior is None else xp.concatenate([R, xp.asarray(prior, R.dtype)]), 0)
    scale, A, N = curvature(column_norms(known), regularizer, theta)
    stack = xp.concatenate([known / scale[None, :], A])
    Q, s, Vt = xp.linalg.svd(stack, full_matrices=False)
    kept = s > max(stack.shape) * xp.finfo(s.dtype).eps * s[0]
    Q_R, Q_A = xp.where(kept[None, :], Q[: R.shape[0]], 0), xp.where(kept[None, :], Q[R.shape[0] :], 0)
    if N is None:
        by_data, by_g = (Q_R**2).sum(axis=0), (Q_A**2).sum(axis=0)  # they add up to 1: the smaller is the exact one
        return xp.where(kept & (by_g < by_data), 1 - by_g, by_data).sum()
    # Some curvature is negative: H = A'A - N'N. In the basis Q, R'R + H is I - K'K and R'R is I - Q_A'Q_A.
    K = matmul(N, Vt.T) * xp.where(kept, 1 / xp.where(kept, s, 1), 0)[None, :]
    eye = xp.eye(len(s), dtype=s.dtype)
    values, W = xp.linalg.eigh(eye - matmul(K.T, K))
    shares = (W * matmul(xp.diag(kept.astype(s.dtype)) - matmul(Q_A.T, Q_A), W)).sum(axis=0)
    return xp.where(values[0] > 0, (shares / xp.where(values > 0, values, 1)).sum(), xp.nan)


def curves_upwards(g: Regularizer, theta: np.ndarray) -> bool | None:
    """Whether g curves on its free coordinates; None where some of its curvature is negative."""
    root = g.root(len(theta))
    if root is not None:
        return bool(root.any())
    h, free = np.asarray(g.hessian(theta)), np.asarray(g.free(theta))
    values = h[free] if h.ndim == 1 else np.linalg.eigvalsh(h[np.ix_(free, free)])
    size = np.abs(values).max(initial=0)
    if (values < -len(theta) * np.finfo(values.dtype).eps * size).any():
        return None
    return bool(size > 0)


def log_evidence(R: Array, z: Array, rss: Any, rows: Any, regularizer: Regularizer, gamma: Any | None = None) -> Array:
    """log p(y) of the linear model with g = 1/2 ||A theta||^2 read as a prior: how well g suits the data.

    y | theta ~ N(X theta, I/gamma),  theta ~ N(0, (gamma A'A)^-1), so that the posterior mean is the
    minimiser of the objective, and with S its least value twice over, min ||R t - z||^2 + ||A t||^2 + rss,

        log p(y | gamma) = 1/2 log(det A'A / det(R'R + A'A)) + rows/2 log(gamma / 2 pi) - gamma S / 2.

    With gamma None the noise is integrated out under p(gamma) = 1/gamma. That prior is improper, so the
    answer is a density only up to a constant, the same for every g and every X: for one y,
    differences mean what they should:

        log p(y) = 1/2 log(det A'A / det(R'R + A'A)) + log Gamma(rows/2) - rows/2 log(pi S).

    With a free intercept pass the centred views and rows - 1: the evidence of the contrasts, which a
    flat intercept cannot reach (the restricted likelihood).

    Needs A of full column rank: a direction without a prior has no evidence. Exact; one SVD and one QR, O(d^3).

    >>> from kalprox.regularizers import Ridge
    >>> round(float(log_evidence(np.eye(1), np.array([0.0]), 0.0, 1, Ridge(1.0), gamma=1.0)), 6)  # N(0; 0, 2)
    -1.265512
    """
    if gamma is not None:
        check_positive("gamma", gamma)
    xp = namespace(R, z, regularizer)
    if xp is not np:
        regularizer = cast(regularizer, R)
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
    proper = (s > max(A.shape) * xp.finfo(A.dtype).eps * s[0]).sum() == d if A.shape[0] >= d else False
    if concrete(proper) is not None and not proper:
        raise ValueError(
            f"log_evidence needs a proper prior: {type(regularizer).__name__} leaves a direction of theta without "
            "any. Penalise every coordinate; for a free intercept pass the centred views and rows - 1."
        )
    stack = xp.concatenate(
        [xp.concatenate([R / scale[None, :], z[:, None]], axis=1), xp.concatenate([A, xp.zeros_like(A[:, :1])], axis=1)]
    )
    U = xp.linalg.qr(stack, mode="r")
    S = (U[d:, d] ** 2).sum() + rss
    rows = xp.asarray(rows, R.dtype)
    volumes = xp.log(s).sum() - xp.log(xp.abs(xp.diagonal(U)[:d])).sum()
    volumes = xp.where(proper, volumes, xp.nan)  # under jit, where nothing can be raised
    if gamma is not None:
        return volumes + rows / 2 * xp.log(xp.asarray(gamma / (2 * math.pi), R.dtype)) - gamma * S / 2
    return volumes + special_functions(xp).gammaln(rows / 2) - rows / 2 * xp.log(math.pi * S)
