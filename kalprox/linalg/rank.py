"""The one rule for rank, and everything that is decided by it.

Scale the columns of R to length one, and let s be its singular values. A singular value counts when

    s_i > tolerance(d, rows, dtype) * s_max,    tolerance = max(4 (10 + d), sqrt(min(rows, 1e7))) * eps.

The rank is the number of singular values that count; the directions of the others are undetermined. The first term
is what one QR factorisation of d columns leaves of a zero. The second is what folding leaves: each row adds about
eps at random, so that copies of a column, folded row by row, were told apart by 15 eps after 1,000 rows and by 45
eps after 20,000. Blocks do better, and weights may be large, so the number of rows is capped.

Singular values are computed only where a cheaper bound cannot exclude a deficient rank: s_min >= 1 / ||R^-1||_F.
"""

from typing import Any, NamedTuple, Self

import numpy as np

from kalprox._arrays import Array, namespace
from kalprox._control import compiled_on_jax, cond_rare
from kalprox.linalg.triangle import (
    column_norms,
    product,
    qr_factors,
    rounding,
    solve_triangular,
    svd,
    triangular_inverse,
)

__all__ = [
    "gram_inverse",
    "gram_solve",
    "inverse",
    "maybe_singular",
    "minimum_norm",
    "rank",
    "tolerance",
    "undetermined",
]


def tolerance(d: int, rows: Any, dtype: Any) -> Array:
    """The least ratio of singular values that counts, for d columns of length one: see the rule above.

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
    xp = namespace(rows)
    folded = xp.sqrt(xp.clip(xp.asarray(rows, dtype), 0, 1e7)) * float(np.finfo(dtype).eps)
    return xp.maximum(folded, least)


def maybe_singular(R: Array, rows: Any = None) -> Array:
    """Whether the triangle R may be rank deficient: False only where the rule surely finds full rank. O(d^3)."""
    return _inverse_and_doubt(R, rows)[1]


def inverse(R: np.ndarray, rows: Any = None) -> np.ndarray | None:
    """Return R^-1 where the rank is surely full, and None where singular values have to decide. NumPy only, O(d^3)."""
    found, doubt = _inverse_and_doubt(R, rows)
    return None if doubt else found


def _inverse_and_doubt(R: Array, rows: Any) -> tuple[Array, Array]:
    """R^-1, and whether it is so large that R may be rank deficient."""
    xp, found = namespace(R), triangular_inverse(R)
    with np.errstate(over="ignore", invalid="ignore"):
        # The squared norm of the inverse of the scaled R. Where it overflows or is NaN there is doubt.
        size = (xp.einsum("ij,ij->j", R, R) * xp.einsum("ij,ij->i", found, found)).sum()
        return found, ~(tolerance(len(R), rows, R.dtype) ** 2 * len(R) * size < 1)


@compiled_on_jax
def rank(R: Array, rows: Any = None) -> Array:
    """Return the number of directions that R determines, by the rule above. O(d^3)."""
    xp = namespace(R)
    return cond_rare(
        maybe_singular(R, rows), lambda: _Singular.of(R, rows).counts.sum(), lambda: xp.asarray(R.shape[1])
    )


@compiled_on_jax
def undetermined(R: Array, rows: Any, A: Array) -> Array:
    """Return which combinations a'theta, a the rows of A, the triangle R leaves undetermined. O(d^3).

    The variance of such a combination is infinite. It is one where a, divided by the column norms of R, has more
    than sqrt(eps) of its length in the null space of the scaled R. There is none where the rank is full.
    """
    xp = namespace(R, A)

    def by_svd() -> Array:
        found = _Singular.of(R, rows)
        a = A / found.scale[None]
        along = xp.where(found.counts[None], 0, product(a, found.Vt.T))
        return (along**2).sum(axis=1) > xp.finfo(R.dtype).eps * (a**2).sum(axis=1)

    return cond_rare(maybe_singular(R, rows), by_svd, lambda: xp.zeros(len(A), bool))


@compiled_on_jax
def minimum_norm(R: Array, rows: Any, z: Array) -> Array:
    """Return the theta of least norm among those that minimise ||R theta - z||; z is (d,) or (d, k). O(d^3).

    Where the rank is full this is back-substitution, with the accuracy of QR.
    """
    xp = namespace(R, z)

    def by_svd() -> Array:
        found = _Singular.of(R, rows)
        theta = found.shortest(found.solve(z.reshape(len(z), -1))).reshape(z.shape)
        full = found.counts.all()  # the bound was too wide: keep the accuracy of QR
        safe = xp.where(full, R, xp.eye(len(R), dtype=R.dtype))
        return xp.where(full, solve_triangular(safe, z), theta)

    return cond_rare(maybe_singular(R, rows), by_svd, lambda: solve_triangular(R, z))


@compiled_on_jax
def gram_solve(R: Array, rows: Any, b: Array) -> Array:
    """Return (R'R)^+ b, the minimum-norm solution of R'R theta = b, for b of shape (d,) or (d, k). O(d^3)."""
    xp = namespace(R, b)

    def regular(R: Array) -> Array:
        return solve_triangular(R, solve_triangular(R, b, transposed=True))

    def by_svd() -> Array:
        found = _Singular.of(R, rows)
        right = product(found.Vt, found.shortest(b.reshape(len(b), -1)) / found.scale[:, None])
        theta = product(found.Vt.T, right * found.inverse[:, None] ** 2) / found.scale[:, None]
        full = found.counts.all()
        safe = xp.where(full, R, xp.eye(len(R), dtype=R.dtype))
        return xp.where(full, regular(safe), found.shortest(theta).reshape(b.shape))

    return cond_rare(maybe_singular(R, rows), by_svd, lambda: regular(R))


@compiled_on_jax
def gram_inverse(R: Array, rows: Any = None) -> Array:
    """Return (R'R)^-1, with infinite entries where R leaves a direction undetermined. O(d^3).

    The variance of a coordinate that `undetermined` names is infinite: the limit of an ever vaguer prior. So is its
    covariance with another such coordinate, with the sign of that limit, unless the two do not vary together.
    """
    xp, eps = namespace(R), float(np.finfo(R.dtype).eps)
    found, doubt = _inverse_and_doubt(R, rows)

    def by_svd() -> Array:
        found = _Singular.of(R, rows)
        root = found.Vt.T * found.inverse[None] / found.scale[:, None]
        null = xp.where(found.counts[:, None], 0, found.Vt)
        along = product(null.T, null)
        share = xp.sqrt(xp.diagonal(along))  # of each coordinate's unit vector in the null space
        share = xp.where(share > eps**0.5, share, 0)
        size = share[:, None] * share[None]
        infinite = (size > 0) & (xp.abs(along) > eps**0.5 * size)
        return xp.where(infinite, xp.where(along > 0, np.inf, -np.inf), product(root, root.T))

    return cond_rare(doubt, by_svd, lambda: product(found, found.T))


class _Singular(NamedTuple):
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
        """1 / s where it counts, else zero."""
        xp = namespace(self.s)
        return xp.where(self.counts, 1 / xp.where(self.counts, self.s, 1), 0)

    def solve(self, z: Array) -> Array:
        """A theta that minimises ||R theta - z||, z of shape (d, k): the shortest one in scaled columns."""
        return product(self.Vt.T, product(self.U.T, z) * self.inverse[:, None]) / self.scale[:, None]

    def shortest(self, theta: Array) -> Array:
        """theta (d, k) without its part in the null space of R.

        The part is found in the basis N = V2 / scale rather than by a projector, so that R N is zero to rounding
        column by column: the error of a projector would be that of the largest coefficient.
        """
        xp = namespace(theta)
        # The last rows of Vt span the null space. In reverse they come first, and QR of the masked rest is zero.
        null = xp.where(self.counts, 0, 1).astype(theta.dtype)[::-1]
        N = (self.Vt / self.scale[None]).T[:, ::-1] * null[None]
        Q, C = qr_factors(N)
        return theta - product(N, solve_triangular(C + xp.diag(1 - null), product(Q.T, theta) * null[:, None]))


def _unit_columns(R: Array) -> tuple[Array, Array]:
    """R with columns of length one (or zero), and the lengths by which they were divided."""
    norms = column_norms(R)
    scale = namespace(R).where(norms > 0, norms, 1)
    return R / scale[None], scale
