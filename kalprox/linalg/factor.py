"""A factor of the covariance: what leverage, standard errors and draws are computed from."""

from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree, static
from kalprox.base.control import compiled, cond_rare
from kalprox.linalg.rank import Singular, inverse_and_doubt
from kalprox.linalg.triangle import product


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

    def faded(self, R: Array, fading: Any) -> "Factor":
        """The factor of P (fading R'R + Hess g) P, with P = L L' = (R'R + Hess g)^-1. O(d^3).

        It is the covariance of the estimate if the rows are equally noisy but their weights have faded, so that X'W^2X
        is about fading * X'WX: all of it for a prior or a penalty, and `fading` of it for rows alone. A direction in
        which g is concave has no prior.
        """
        xp = namespace(self.L, R, fading)
        Q = _times(self._on_free(R), self.L)
        M = xp.eye(Q.shape[1], dtype=Q.dtype) - (1 - fading) * _times(Q.T, Q)
        try:
            root = xp.linalg.cholesky(M)
        except np.linalg.LinAlgError:
            e, W = np.linalg.eigh(_times(Q.T, Q))
            root = W * np.sqrt(fading * np.maximum(e, 0) + np.maximum(1 - e, 0))
        return replace(self, L=_times(self.L, root))

    def _on_free(self, D: Array) -> Array:
        """The columns of D that belong to free coordinates."""
        return D if self.free is None else D[:, self.free]

    @property
    def proper(self) -> bool:
        """Whether every direction is determined, so that all variances are finite."""
        return self.null.shape[1] == 0 or not np.asarray(self.null).any()

    def leverage(self, D: Array) -> Array:
        """x' (R'R + Hess g)^-1 x for each row x of D, shape (n,); infinite for a row with a part along `null`.

        O(d^2) a row.
        """
        xp, root = namespace(D, self.L), _times(self._on_free(D), self.L)
        leverage = np.einsum("ij,ij->i", root, root) if xp is np else (root**2).sum(axis=1)
        if self.null.shape[1] == 0:
            return leverage
        return xp.where(self.undetermined(D), xp.inf, leverage)

    def whitened(self, R: Array) -> Array:
        """R L: rows whose squared norms are the leverages of the rows of R, which have no part along `null`."""
        return _times(self._on_free(R), self.L)

    @property
    def n_undetermined(self) -> int:
        """The number of columns of `null`."""
        return int(self.null.shape[1])

    def along_null(self, D: Array) -> Array:
        """The coordinates of each row of D along the undetermined directions: zero where none has a part in it."""
        return self._on_free(D) / self.scale @ self.null

    def undetermined(self, D: Array) -> Array:
        """Whether x'theta has an infinite variance, for each row x of D, shape (n,). O(d) for each column of `null`."""
        if self.null.shape[1] == 0:
            return np.zeros(len(D), bool)
        xp, a = namespace(D, self.L), self._on_free(D) / self.scale[None]
        return (_times(a, self.null) ** 2).sum(axis=1) > xp.finfo(D.dtype).eps * (a**2).sum(axis=1)

    def covariance(self) -> Array:
        """L L' among all coordinates, shape (d, d): zero for those held, infinite along `null`.

        The variance of a coordinate with a part along `null` is infinite: the limit of an ever vaguer prior. So is its
        covariance with another such coordinate, with the sign of that limit, unless the two do not vary together.
        """
        C = _times(self.L, self.L.T)
        if self.null.shape[1]:
            C = with_infinities(C, _times(self.null, self.null.T))
        return self._everywhere(self._everywhere(C).T)  # which is symmetric

    def variances(self) -> Array:
        """The diagonal of the covariance, shape (d,)."""
        xp = namespace(self.L)
        v = (self.L**2).sum(axis=1)
        if self.null.shape[1]:
            share = xp.sqrt((self.null**2).sum(axis=1))  # of the unit vector of each coordinate
            v = xp.where(share > xp.finfo(share.dtype).eps ** 0.5, xp.inf, v)
        return self._everywhere(v)

    @property
    def normals(self) -> int:
        """The number of independent standard normal numbers that a draw takes."""
        return int(self.L.shape[1])

    def draws(self, normals: Array) -> Array:
        """L e for each row e of `normals`, which has as many columns as L: draws of theta about its mean, (n, d)."""
        return self._everywhere(normals @ self.L.T)

    def _everywhere(self, values: Array) -> Array:
        """The values of free coordinates, on the last axis, among those of all: zeros for coordinates that are held."""
        if self.free is None:
            return values
        everywhere = np.zeros((*values.shape[:-1], self.d), values.dtype)
        everywhere[..., self.free] = values
        return everywhere


def with_infinities(C: Array, along: Array) -> Array:
    """Return the covariance C with infinities along undetermined directions, onto which `along` projects.

    An entry is infinite, with the sign of `along`, unless its two coordinates do not vary together along them.
    """
    xp = namespace(C)
    eps = xp.finfo(C.dtype).eps ** 0.5
    share = xp.sqrt(xp.maximum(along.diagonal(), 0))
    share = xp.where(share > eps, share, 0)
    size = share[:, None] * share[None]
    infinite = (size > 0) & (xp.abs(along) > eps * size)
    return xp.where(infinite, xp.where(along > 0, xp.inf, -xp.inf), C)


def _times(A: Array, B: Array) -> Array:
    """A @ B: NumPy's own product, which copies neither, or a product in full precision by JAX."""
    return A @ B if namespace(A, B) is np else product(A, B)


def _numpy_factor(U: np.ndarray, rows: Any) -> tuple[np.ndarray, ...]:
    """L, null and scale, with as many columns as the rank and the rest of it."""
    found, doubt = inverse_and_doubt(U, rows) if U.size else (U, False)
    if doubt:
        singular = Singular.of(U, rows)
        if not singular.counts.all():
            known, scale = singular.counts, singular.scale
            return singular.Vt[known].T / singular.s[known] / scale[:, None], singular.Vt[~known].T, scale
    return found, np.zeros((U.shape[1], 0)), np.ones(U.shape[1])


def _jax_factor(U: Array, rows: Any) -> tuple[Array, ...]:
    """The same in arrays of one shape: columns without a meaning are zero."""
    import jax.numpy as jnp

    found, doubt = inverse_and_doubt(U, rows)

    def by_svd() -> tuple[Array, Array, Array]:
        singular = Singular.of(U, rows)
        null = jnp.where(singular.counts[None], 0, singular.Vt.T)
        return singular.Vt.T * singular.inverse[None] / singular.scale[:, None], null, singular.scale

    return cond_rare(doubt, by_svd, lambda: (found, jnp.zeros_like(U), jnp.ones_like(U[0])))
