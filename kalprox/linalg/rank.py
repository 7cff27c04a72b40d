"""Rank, minimum norm, undetermined directions and inverses of a triangle, by one rule for rank."""

import numpy as np
import scipy.linalg

from kalprox._arrays import Array, namespace
from kalprox._control import compiled_on_jax, cond_rare
from kalprox.linalg.triangle import column_norms, inverse_norm, lapack, product, solve_triangular

__all__ = ["inverse", "maybe_singular", "minimum_norm", "rank", "undetermined"]


def maybe_singular(U: Array) -> Array:
    """Whether a triangle U of unit columns may be rank deficient: a diagonal understates its condition, so the
    bound is wide, and singular values decide behind it."""
    xp = namespace(U)
    return xp.abs(xp.diagonal(U)).min() < np.finfo(U.dtype).eps ** 0.5


@compiled_on_jax
def rank(R: Array, rows: Array) -> Array:
    """How many singular values of R, on columns scaled to length one, count for that number of rows.

    O(d^3): a bound by the inverse settles full rank, an SVD the rest.
    """
    xp, tol = namespace(R), _rank_tolerance(R, rows)
    return cond_rare(~_surely_full_rank(R, tol), lambda: _singular(R, tol)[-1].sum(), lambda: xp.asarray(R.shape[1]))


@compiled_on_jax
def undetermined(R: Array, rows: Array, A: Array) -> Array:
    """Which rows of A, divided by the column norms of R, have more than sqrt(eps) of their length in the
    null space of the scaled R. O(d^3), and none if the rank is full."""
    xp, tol = namespace(R), _rank_tolerance(R, rows)

    def by_svd() -> Array:
        _, _, Vt, scale, counts = _singular(R, tol)
        a = A / scale[None]
        along = xp.where(counts[None], 0, product(a, Vt.T))
        return (along**2).sum(axis=1) > xp.finfo(R.dtype).eps * (a**2).sum(axis=1)

    return cond_rare(~_surely_full_rank(R, tol), by_svd, lambda: xp.zeros(len(A), bool))


@compiled_on_jax
def minimum_norm(R: Array, rows: Array, z: Array) -> Array:
    """The theta of least norm among those that minimise ||R theta - z||; z is (d,) or (d, k). O(d^3).

    Back-substitution, with QR's accuracy, where the rank is full. Where it is not, a solution on scaled
    columns, less its part in the null space of R. That part is found in the basis N = V2 / scale rather
    than by a projector, so that R N is zero to rounding column by column: a projector's error would be
    that of the largest coefficient.
    """
    xp, tol = namespace(R, z), _rank_tolerance(R, rows)

    def by_svd() -> Array:
        U, s, Vt, scale, counts = _singular(R, tol)
        inverse = xp.where(counts, 1 / xp.where(counts, s, 1), 0)[:, None]
        theta = product(Vt.T, product(U.T, z.reshape(len(z), -1)) * inverse) / scale[:, None]
        # The last rows of Vt span the null space: in reverse they come first, and QR of the rest, masked, is zero.
        null = xp.where(counts, 0, 1).astype(R.dtype)[::-1]
        N = (Vt / scale[None]).T[:, ::-1] * null[None]
        Q, C = scipy.linalg.qr(N) if xp is np else xp.linalg.qr(N)
        part = solve_triangular(C + xp.diag(1 - null), product(Q.T, theta) * null[:, None])
        theta = theta - product(N, part)
        full = counts.all()
        safe = xp.where(full, R, xp.eye(len(R), dtype=R.dtype))  # rank = d after all: keep QR's accuracy
        return xp.where(full, solve_triangular(safe, z), theta.reshape(z.shape))

    return cond_rare(~_surely_full_rank(R, tol), by_svd, lambda: solve_triangular(R, z))


def _rank_tolerance(R: Array, rows: Array) -> Array:
    """The least ratio of singular values that counts: max(d, sqrt(rows)) * eps.

    Copies of a column, folded row by row, were told apart by 15 eps after 1,000 rows and 45 eps
    after 20,000. Blocks do better, and weights may be large, so the number of rows is capped.
    """
    xp = namespace(R)
    folded = xp.sqrt(xp.clip(xp.asarray(rows, R.dtype), R.shape[1] ** 2, 1e7))
    return folded * xp.asarray(xp.finfo(R.dtype).eps, R.dtype)


def _surely_full_rank(R: Array, tol: Array) -> Array:
    """A bound that settles the common case without singular values: s_min >= 1 / ||R^-1||_F."""
    R, _ = _scaled(R)
    return tol * namespace(R).sqrt((R**2).sum()) < 1 / inverse_norm(R)  # False for NaN


def inverse(R: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """R^-1 where the rank is surely full, by the same bound; None where singular values have to tell. NumPy only."""
    norms, diagonal = column_norms(R), R.diagonal()
    if not diagonal.all():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        found = lapack("trtri", R.dtype)(R)[0]
        size = np.sqrt(((norms[:, None] * found) ** 2).sum())  # of the scaled R's inverse
        return found if _rank_tolerance(R, rows) * np.sqrt(len(R)) < 1 / size else None  # None for NaN


def _singular(R: Array, tol: Array) -> tuple[Array, ...]:
    """SVD of the scaled R, the scale, and which singular values count."""
    xp = namespace(R)
    scaled, scale = _scaled(R)
    U, s, Vt = scipy.linalg.svd(scaled) if xp is np else xp.linalg.svd(scaled)
    return U, s, Vt, scale, s > tol * s[0]


def _scaled(R: Array) -> tuple[Array, Array]:
    """R with columns of length one (or zero), and the lengths it was divided by."""
    norms = column_norms(R)
    scale = namespace(R).where(norms > 0, norms, 1)
    return R / scale[None], scale
