"""The one rule for rank, and everything that is decided by it.

Scale the columns of R to length one, and let s be its singular values. A singular value counts when

    s_i > tolerance(d, rows, dtype) * s_max,    tolerance = max(4 (10 + d), sqrt(min(rows, 1e7))) * eps.

The rank is the number of singular values that count; the directions of the others are undetermined. The first term
is what one QR factorisation of d columns leaves of a zero. The second is what folding leaves: each row adds about
eps at random, so that copies of a column, folded row by row, were told apart by 15 eps after 1,000 rows and by 45
eps after 20,000. Blocks do better, and weights may be large, so the number of rows is capped.

Singular values are computed only where a cheaper bound cannot exclude a deficient rank: s_min >= 1 / ||R^-1||_F.
"""

import math
from typing import Any, NamedTuple, Self

import numpy as np

from kalprox.base.arrays import Array, namespace
from kalprox.base.control import compiled_on_jax, cond_rare, with_jvp
from kalprox.linalg.triangle import (
    column_norms,
    lapack,
    product,
    qr_factors,
    rounding,
    solve_triangular,
    svd,
    triangular_inverse,
)


def tolerance(d: int, rows: Any, dtype: Any) -> Array:
    """Return the ratio of singular values above which one counts, for d columns of length one: the rule above.

    Parameters
    ----------
    d : int
        The number of columns.
    rows : scalar or None
        The total weight of the rows folded into the triangle. None, where it is not known, leaves only the first
        term of the rule.
    dtype : dtype
        float32 or float64.

    Examples
    --------
    >>> eps = np.finfo(float).eps
    >>> float(tolerance(2, None, float) / eps), float(tolerance(2, 1e6, float) / eps)
    (48.0, 1000.0)
    """
    least = rounding(d, dtype)
    if rows is None:
        return np.asarray(least, dtype)
    xp, eps = namespace(rows), float(np.finfo(dtype).eps)
    if xp is np:
        return np.asarray(max(math.sqrt(min(max(float(rows), 0), 1e7)) * eps, least), dtype)
    return xp.maximum(xp.sqrt(xp.clip(xp.asarray(rows, dtype), 0, 1e7)) * eps, least)


def maybe_singular(R: Array, rows: Any = None) -> Array:
    """Whether the triangle R may be rank deficient: False only where the rule surely finds full rank. O(d^3)."""
    return inverse_and_doubt(R, rows)[1]


def surely_full(R: np.ndarray, rows: Any = None) -> bool:
    """Whether LAPACK's estimate of the condition leaves no doubt that the rank is full. NumPy only, O(d^2).

    The estimate of ||R^-1||_1, columns scaled, is seldom wrong by a factor of 10: 100 times that is allowed for.
    """
    if not (R.size and R.diagonal().all()):
        return False
    scaled, d = _unit_columns(R)[0], len(R)
    rcond = lapack("trcon", R.dtype)(scaled)[0]
    size = np.abs(scaled).sum(axis=0).max()  # the 1-norm; s_min >= 1 / (sqrt(d) ||R^-1||_1), and s_max <= sqrt(d)
    return bool(1000 * tolerance(d, rows, R.dtype) * d < rcond * size)


def inverse_and_doubt(R: Array, rows: Any) -> tuple[Array, Array]:
    """Return R^-1, and whether its norm leaves it open that R is rank deficient."""
    xp, found = namespace(R), triangular_inverse(R)
    with np.errstate(over="ignore", invalid="ignore"):
        # The squared norm of the inverse of the scaled R. Overflow and NaN count as doubt.
        size = (xp.einsum("ij,ij->j", R, R) * xp.einsum("ij,ij->i", found, found)).sum()
        return found, ~(tolerance(len(R), rows, R.dtype) ** 2 * len(R) * size < 1)


@compiled_on_jax
def rank(R: Array, rows: Any = None) -> Array:
    """Return the number of directions that the triangle R determines, by the rule above. O(d^3).

    Examples
    --------
    >>> R = np.array([[1.0, 1.0], [0.0, 1e-13]])
    >>> int(rank(R)), int(rank(R, rows=1e6))
    (2, 1)
    """
    xp = namespace(R)
    return cond_rare(maybe_singular(R, rows), lambda: Singular.of(R, rows).counts.sum(), lambda: xp.asarray(R.shape[1]))


@compiled_on_jax
def undetermined(R: Array, rows: Any, A: Array) -> Array:
    """Return which combinations a'theta, a the rows of A, the triangle R leaves undetermined. O(d^3).

    The variance of such a combination is infinite. It is one where a, divided by the column norms of R, has more
    than sqrt(eps) of its length in the null space of the scaled R. There is none where the rank is full.
    """
    xp = namespace(R, A)

    def by_svd() -> Array:
        found = Singular.of(R, rows)
        a = A / found.scale[None]
        along = xp.where(found.counts[None], 0, product(a, found.Vt.T))
        return (along**2).sum(axis=1) > xp.finfo(R.dtype).eps * (a**2).sum(axis=1)

    return cond_rare(maybe_singular(R, rows), by_svd, lambda: xp.zeros(len(A), bool))


def _minimum_norm_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    (R, rows, z), (dR, _, dz) = primals, tangents
    theta, P = solve_and_factor(R, rows, z)
    dR = namespace(R).triu(dR)  # entries below the diagonal are never read
    return theta, least_squares_step(R, P, dz - product(dR, theta), product(dR.T, product(R, theta) - z))


@compiled_on_jax
@with_jvp(_minimum_norm_jvp)
def minimum_norm(R: Array, rows: Any, z: Array) -> Array:
    """Return the theta of least norm among those that minimise ||R theta - z||; z is (d,) or (d, k). O(d^3).

    Where the rank is full this is back-substitution, with the accuracy of QR. Under JAX the derivative is that of a
    least-squares solution; the SVD behind a deficient rank is not differentiated.

    Examples
    --------
    >>> minimum_norm(np.array([[1.0, 1.0], [0.0, 0.0]]), None, np.array([4.0, 0.0])).round(12)
    array([2., 2.])
    """
    return solve_and_factor(R, rows, z)[0]


def least_squares_step(R: Array, P: Array, w: Array, v: Array) -> Array:
    """Return argmin over p of 1/2 ||R p - w||^2 + 1/2 ||A p||^2 + v'p, given P with P P' = (R'R + A'A)^+.

    The result is linear in w and v. The derivative of the minimiser of a least-squares problem is of this form.
    """
    return product(P, product(product(R, P).T, w) - product(P.T, v))


def solve_and_factor(R: Array, rows: Any, z: Array) -> tuple[Array, Array]:
    """Return `minimum_norm(R, rows, z)` and a matrix P with P P' = (R'R)^+: R^-1 where the rank is surely full."""
    xp = namespace(R, z)
    inverse, doubt = inverse_and_doubt(R, rows)

    def by_svd() -> tuple[Array, Array]:
        found = Singular.of(R, rows)
        P = found.pseudo_inverse_factor()
        theta = product(P, product(found.U.T, z))
        full = found.counts.all()  # only the bound failed: back-substitution keeps the accuracy of QR
        safe = xp.where(full, R, xp.eye(len(R), dtype=R.dtype))
        return xp.where(full, solve_triangular(safe, z), theta), P

    return cond_rare(doubt, by_svd, lambda: (solve_triangular(R, z), inverse))


class Singular(NamedTuple):
    """The SVD of R with columns scaled to length one, and which singular values count."""

    U: Array
    s: Array
    Vt: Array
    scale: Array  # what the columns were divided by
    counts: Array

    @classmethod
    def of(cls, R: Array, rows: Any) -> Self:
        scaled, scale = _unit_columns(R)
        U, s, Vt = svd(scaled)
        return cls(U, s, Vt, scale, s > tolerance(R.shape[1], rows, R.dtype) * s[0])

    @property
    def inverse(self) -> Array:
        """1 / s for the singular values that count, and zero for the others."""
        xp = namespace(self.s)
        return xp.where(self.counts, 1 / xp.where(self.counts, self.s, 1), 0)

    def pseudo_inverse_factor(self) -> Array:
        """Return P with R^+ = P U' and (R'R)^+ = P P'.

        P is V / s in the units of theta, minus its part in the null space of R. That part is expressed in the basis
        N = V2 / scale, so that every column of R N is zero up to its own rounding error. With an orthogonal projector
        the error would be that of the largest coefficient.
        """
        xp = namespace(self.Vt)
        P = (self.Vt * self.inverse[:, None] / self.scale[None]).T
        # The last rows of Vt span the null space. In reverse order they come first, and the QR of the masked rest is 0.
        null = xp.where(self.counts, 0, 1).astype(P.dtype)[::-1]
        N = (self.Vt / self.scale[None]).T[:, ::-1] * null[None]
        Q, C = qr_factors(N)
        return P - product(N, solve_triangular(C + xp.diag(1 - null), product(Q.T, P) * null[:, None]))


def _unit_columns(R: Array) -> tuple[Array, Array]:
    """Return R with columns of length one (or zero), and the lengths by which they were divided."""
    norms = column_norms(R)
    scale = namespace(R).where(norms > 0, norms, 1)
    return R / scale[None], scale
