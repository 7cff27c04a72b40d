"""The function 1/2 ||R t - z||^2, its gradient on a scale without units, and exact steps on free coordinates."""

from typing import Any, NamedTuple, Self

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from kalprox.base.arrays import Array, namespace
from kalprox.linalg.rank import tolerance
from kalprox.linalg.triangle import column_norms, qr, rounding, solve_triangular, svd

_SMALLEST_PIVOT = np.finfo(float).eps ** 0.5  # relative to 1, or in a Gram matrix to its diagonal


def default_tol(dtype: Any) -> float:
    """The residual up to which a minimiser counts as converged by default: 1e-9 in float64, 1e-4 in float32."""
    eps = float(np.finfo(dtype).eps)
    return float(eps**0.575)


class Squares(NamedTuple):
    """The function 1/2 ||R t - z||^2, with the sizes that residuals are relative to."""

    R: Array
    z: Array
    norms: Array  # the norms of the columns of R
    size: Array  # the norm of z

    @classmethod
    def of(cls, R: Array, z: Array) -> Self:
        """From R of shape (m, d) and z of shape (m,) or (m, k)."""
        return cls(R, z, column_norms(R), column_norms(z))

    def at(self, t: Array) -> tuple[Array, Array]:
        """Return R t - z, and the size ||z|| + ||R t|| of its two terms."""
        fit = self.R @ t
        return fit - self.z, self.size + column_norms(fit)

    def relative(self, gradient: Array, terms: Array, size: Array) -> Array:
        """Return the largest entry of a gradient, entry j relative to ||R_j|| `terms` + `size_j`.

        `terms` is what `at` returned, and `size` the size of the terms of g.
        """
        xp = namespace(self.R)
        # Sizes have a lower bound, because with z = 0 all of them shrink with theta.
        size = xp.maximum(xp.multiply.outer(self.norms, terms) + size, np.finfo(self.R.dtype).tiny ** 0.75)
        return (xp.abs(gradient) / size).max(axis=0)

    def rounded(self, t: Array, terms: Array) -> Array:
        """Return the residual that rounding error explains. It grows where columns cancel, up to `default_tol`."""
        xp, dtype = namespace(self.R), self.R.dtype
        least = rounding(len(t), dtype)
        lost = (self.norms * xp.abs(t)).sum() / (terms + np.finfo(dtype).tiny)
        return xp.clip(least * lost, least, max(least, default_tol(dtype)))


def free_step(
    X: np.ndarray, A: np.ndarray, r: np.ndarray, slope: np.ndarray, rows: Any = None
) -> tuple[np.ndarray, bool]:
    """Return the p that minimises 1/2 ||X p - r||^2 + 1/2 ||A p||^2 + slope'p, and False.

    Where there is no minimum, return a direction along which the function is unbounded below, and True. The rank of
    [X; A] is decided by the rule of `kalprox.linalg.rank` for that weight of `rows`.
    """
    # A step is only a proposal, and the optimality of the result is verified: a test of the pivots is enough here.
    G = X.T @ X + A.T @ A if len(A) else X.T @ X
    U, failed = dpotrf(G)
    if not failed and (U.diagonal() ** 2 > _SMALLEST_PIVOT * G.diagonal()).all():
        p = dpotrs(U, X.T @ r - slope)[0]
        left = X.T @ (r - X @ p) - slope - (A.T @ (A @ p) if len(A) else 0)  # restores digits that G = X'X loses
        return p + dpotrs(U, left)[0], False
    U, y = qr(np.concatenate([X, A]), r)
    if np.abs(U.diagonal()).min() > _SMALLEST_PIVOT:
        return solve_triangular(U, y - solve_triangular(U, slope, transposed=True)), False
    W, s, Vt = svd(U)
    positive = s > tolerance(len(s), rows, float) * s[0]
    null = Vt[~positive]
    fall = null.T @ (null @ slope)
    if np.linalg.norm(fall) > 1e-10 * np.linalg.norm(slope):
        return -fall, True
    if positive.all():
        return solve_triangular(U, y - solve_triangular(U, slope, transposed=True)), False
    s, W, V = s[positive], W[:, positive], Vt[positive].T
    return V @ ((W.T @ y - (V.T @ slope) / s) / s), False
