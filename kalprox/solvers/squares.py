"""1/2 ||R t - z||^2, and the sizes that residuals are measured against."""

from typing import Any, NamedTuple, Self

import numpy as np

from kalprox._arrays import Array, namespace
from kalprox.linalg.rank import maybe_singular, tolerance
from kalprox.linalg.triangle import column_norms, qr, rounding, solve_triangular, svd

__all__ = ["Squares", "default_tol", "free_step"]


def default_tol(dtype: Any) -> float:
    """The residual that counts as converged: 1e-9 in float64, 1e-4 in float32."""
    return float(np.finfo(dtype).eps) ** 0.575


class Squares(NamedTuple):
    """1/2 ||R t - z||^2, with the sizes that everything is measured against."""

    R: Array
    z: Array
    norms: Array  # of R's columns
    size: Array  # of z

    @classmethod
    def of(cls, R: Array, z: Array) -> Self:
        return cls(R, z, column_norms(R), column_norms(z))

    def at(self, t: Array) -> tuple[Array, Array]:
        """R t - z, and the size ||z|| + ||R t|| of its two terms."""
        fit = self.R @ t
        return fit - self.z, self.size + column_norms(fit)

    def relative(self, gradient: Array, terms: Array, size: Array) -> Array:
        """The largest entry of a gradient, each relative to ||R_j|| `terms`, as from `at`, and to g's own `size`."""
        xp = namespace(self.R)
        # Far below all that was ever measured is zero: with z = 0 all sizes shrink with theta itself.
        size = xp.maximum(xp.multiply.outer(self.norms, terms) + size, np.finfo(self.R.dtype).tiny ** 0.75)
        return (xp.abs(gradient) / size).max(axis=0)

    def rounded(self, t: Array, terms: Array) -> Array:
        """The residual that rounding leaves: more where columns cancel, but not for that any above `default_tol`."""
        xp, dtype = namespace(self.R), self.R.dtype
        least = rounding(len(t), dtype)
        lost = (self.norms * xp.abs(t)).sum() / (terms + np.finfo(dtype).tiny)
        return xp.clip(least * lost, least, max(least, default_tol(dtype)))


def free_step(
    X: np.ndarray, A: np.ndarray, r: np.ndarray, slope: np.ndarray, rows: Any = None
) -> tuple[np.ndarray, bool]:
    """p = argmin 1/2 ||X p - r||^2 + 1/2 ||A p||^2 + slope' p; where that has no minimum, the direction
    in which it falls without end, and True."""
    U, y = qr(np.concatenate([X, A]), r)
    if not maybe_singular(U, rows):
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
