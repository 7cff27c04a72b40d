"""A factor of the covariance: what leverage, standard errors and draws are computed from."""

from typing import Any

import numpy as np

from kalprox._arrays import Array, namespace, pytree, static
from kalprox._control import compiled, cond_rare
from kalprox.linalg.rank import _rank_tolerance as rank_tolerance
from kalprox.linalg.rank import inverse, rank
from kalprox.linalg.triangle import column_norms, solve_triangular

__all__ = ["Factor"]


@pytree
class Factor:
    """The covariance of theta in units of the noise, (R'R + Hess g)^-1 = L L', and the directions nothing determines.

    Only the `free` coordinates have a part in it: the others are held at a kink or a bound of g, and their variance
    is zero. Along `null` the variance is infinite: the limit of an ever vaguer prior.

    Parameters
    ----------
    L : array of shape (f, r)
        The root, on the f free coordinates.
    null : array of shape (f, q)
        An orthonormal basis of the undetermined directions, in units of 1 / `scale`; columns of zeros mean nothing.
    scale : array of shape (f,)
        The units in which the rank was decided: the norms of the columns.
    free : array of shape (f,) or None
        The numbers of the free coordinates; None where all are free.
    d : int
        The number of coordinates.
    """

    L: Array
    null: Array
    scale: Array
    free: Any
    d: int = static()

    @classmethod
    def of(cls, U: Array, rows: Array, free: Array | None = None, d: int | None = None) -> "Factor":
        """From the triangle U with U'U = R'R + Hess g on the free coordinates; `rows` were folded into R. O(d^3)."""
        d = U.shape[1] if d is None else d
        if namespace(U, rows) is np:
            L, null, scale = _numpy_factor(U, rows)
        else:
            L, null, scale = compiled(_jax_factor)(U, rows)
        return cls(L, null, scale, free, d)

    @classmethod
    def of_covariance(cls, C: Array) -> "Factor":
        """From a covariance, in units of the noise, known in every direction."""
        values, vectors = np.linalg.eigh(np.asarray(C))
        d = len(values)
        return cls(vectors * np.sqrt(np.maximum(values, 0)), np.zeros((d, 0)), np.ones(d), None, d)

    @property
    def proper(self) -> bool:
        """Whether every direction is determined, so that all variances are finite."""
        return self.null.shape[1] == 0 or not np.asarray(self.null).any()

    def leverage(self, D: Array) -> Array:
        """x' (R'R + Hess g)^-1 x for each row x of D, shape (n,); infinite for a row with a part along `null`.

        O(d^2) a row.
        """
        xp = namespace(D, self.L)
        D = D if self.free is None else D[:, self.free]
        root = D @ self.L
        leverage = xp.einsum("ij,ij->i", root, root)
        if self.null.shape[1] == 0:
            return leverage
        a = D / self.scale[None]
        along = ((a @ self.null) ** 2).sum(axis=1)
        return xp.where(along > xp.finfo(D.dtype).eps * (a**2).sum(axis=1), xp.inf, leverage)

    def covariance(self) -> Array:
        """L L' among all coordinates, shape (d, d): zero for those held, infinite (with its sign) along `null`."""
        xp = namespace(self.L)
        C = self.L @ self.L.T
        if self.null.shape[1]:
            unknown = self.null @ self.null.T
            touched = xp.abs(unknown) > xp.finfo(C.dtype).eps ** 0.5
            C = xp.where(touched, xp.where(unknown > 0, xp.inf, -xp.inf), C)
        if self.free is None:
            return C
        everywhere = np.zeros((self.d, self.d), C.dtype)
        everywhere[np.ix_(self.free, self.free)] = C
        return everywhere

    def variances(self) -> Array:
        """The diagonal of the covariance, shape (d,)."""
        xp = namespace(self.L)
        v = (self.L**2).sum(axis=1)
        if self.null.shape[1]:
            v = xp.where((self.null**2).sum(axis=1) > xp.finfo(v.dtype).eps ** 0.5, xp.inf, v)
        if self.free is None:
            return v
        everywhere = np.zeros(self.d, v.dtype)
        everywhere[self.free] = v
        return everywhere

    def draws(self, normals: Array) -> Array:
        """L e for each row e of `normals`, which has as many columns as L: draws of theta about its mean, (n, d)."""
        moved = normals @ self.L.T
        if self.free is None:
            return moved
        everywhere = np.zeros((len(moved), self.d))
        everywhere[:, self.free] = moved
        return everywhere


def _numpy_factor(U: np.ndarray, rows: Any) -> tuple[np.ndarray, ...]:
    """L, null and scale, with as many columns as the rank and the rest of it."""
    f = U.shape[1]
    ones, none = np.ones(f), np.zeros((f, 0))
    L = inverse(U, rows) if f else U
    r = f if L is not None else int(rank(U, rows))
    if r == f:
        return (solve_triangular(U, np.eye(f, dtype=U.dtype)) if L is None else L), none, ones
    norms = column_norms(U)
    scale = np.where(norms > 0, norms, 1)
    _, s, Vt = np.linalg.svd(U / scale)
    return Vt[:r].T / s[:r] / scale[:, None], Vt[r:].T, scale


def _jax_factor(U: Array, rows: Any) -> tuple[Array, ...]:
    """The same in arrays of one shape: columns without a meaning are zero."""
    import jax.numpy as jnp

    norms = column_norms(U)
    scale = jnp.where(norms > 0, norms, 1)
    unit, tol = U / scale[None], rank_tolerance(U, rows)
    eye = jnp.eye(len(U), dtype=U.dtype)
    diagonal = jnp.abs(jnp.diagonal(unit)).min()

    def by_svd() -> tuple[Array, Array]:
        _, s, Vt = jnp.linalg.svd(unit)
        counts = s > tol * s[0]
        L = Vt.T * jnp.where(counts, 1 / jnp.where(counts, s, 1), 0)[None] / scale[:, None]
        return L, Vt.T * jnp.where(counts, 0, 1).astype(U.dtype)[None]

    def regular() -> tuple[Array, Array]:
        return solve_triangular(U, eye), jnp.zeros_like(U)

    doubtful = diagonal < jnp.finfo(U.dtype).eps ** 0.5  # a diagonal understates the condition: singular values decide
    L, null = cond_rare(doubtful, by_svd, regular)
    return L, null, scale
