"""V through its precision matrix: a diagonal plus a few directions."""

from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree
from kalprox.base.checks import check_finite
from kalprox.covariance.base import Covariance, check_shape
from kalprox.covariance.diagonal import Diagonal


@pytree
class LowRank(Covariance):
    """V = (diag(p) + W W')^-1 with W of shape (d, r): O(d r^2) per row, O(d r) memory.

    Each observation appends one direction to W. The r leading directions are kept; the diagonal of the dropped one is
    added to p, so that only correlations are lost, and no parameter's own precision. Exact while at most r directions
    have been observed. With a rank that is far too small, V is over-confident.

    Parameters
    ----------
    p : array
        The diagonal part of the precision, positive, shape (d,).
    W : array
        The directions, shape (d, r).

    Examples
    --------
    >>> _, V = LowRank.start(1.0, d=3, rank=1).condition(np.array([1.0, 1.0, 0.0]), 1.0)
    >>> V.diag().round(3)
    array([0.667, 0.667, 1.   ])
    """

    p: Any
    W: Any

    @classmethod
    def start(cls, v: Any, d: int, rank: int) -> Self:
        """A diagonal prior, before any direction has been observed.

        Parameters
        ----------
        v : float or array
            The prior variance, a scalar or one per parameter.
        d : int
            The number of parameters.
        rank : int
            The number r of directions to keep, between 1 and d.

        Returns
        -------
        LowRank
        """
        if not 1 <= rank <= d:
            raise ValueError(f"rank must be between 1 and d = {d}; got {rank}.")
        xp = namespace(v)
        v = xp.broadcast_to(xp.asarray(v, dtype=None if hasattr(v, "dtype") else float), (d,))
        return cls(1 / v, xp.zeros((d, rank), v.dtype))

    def apply(self, x: Array) -> Array:
        scaled, inner = self._woodbury()
        return x / self.p - scaled @ namespace(self.p).linalg.solve(inner, scaled.T @ x)

    def contract(self, gamma: Array, H: Array) -> Self:
        """M V M' to first order in gamma V H: the precision grows by 2 gamma H. Of a dense H the diagonal is used.

        Parameters
        ----------
        gamma : array
            The step size.
        H : array
            The Hessian of g; shape (d,) stands for a diagonal matrix, otherwise (d, d).

        Returns
        -------
        LowRank
        """
        return type(self)(self.p + 2 * gamma * (H if H.ndim == 1 else H.diagonal()), self.W)

    def diffuse(self, q: Any) -> Self:
        """V + Q, exact for a diagonal Q; of a dense Q the diagonal is used.

        Parameters
        ----------
        q : float or array of shape (d,) or (d, d)

        Returns
        -------
        LowRank
        """
        xp, p = namespace(self.p), self.p
        q = xp.asarray(q, p.dtype)
        # V + Q = (1/p + q) - (W/p) S^-1 (W/p)', inverted by Woodbury's identity once more
        shrink = 1 / (1 + (q.diagonal() if q.ndim == 2 else q) * p)
        W = shrink[:, None] * self.W
        S = xp.eye(W.shape[1], dtype=W.dtype) + self.W.T @ ((1 - shrink)[:, None] * self.W / p[:, None])
        L = xp.linalg.cholesky(S)
        return type(self)(shrink * p, xp.linalg.solve(L, W.T).T)

    def condition(self, d: Array, gamma: Array) -> tuple[Array, Self]:
        xp = namespace(self.p)
        Vd = self.apply(d)
        gain = Vd / (1 / gamma + d @ Vd)
        grown = xp.concatenate([self.W, (gamma**0.5 * d)[:, None]], axis=1)
        U, s, _ = xp.linalg.svd(grown, full_matrices=False)
        directions = U * s[None, :]
        r = self.W.shape[1]
        dropped = (directions[:, r:] ** 2).sum(axis=1)
        return gain, type(self)(self.p + dropped, directions[:, :r])

    def dense(self) -> Array:
        xp = namespace(self.p)
        scaled, inner = self._woodbury()
        return xp.diag(1 / self.p) - scaled @ xp.linalg.solve(inner, scaled.T)

    def diag(self) -> Array:
        scaled, inner = self._woodbury()
        return 1 / self.p - (scaled @ namespace(self.p).linalg.inv(inner) * scaled).sum(axis=1)

    def variance(self, D: Array) -> Array:
        scaled, inner = self._woodbury()
        seen = D @ scaled
        return D**2 @ (1 / self.p) - (seen @ namespace(self.p).linalg.inv(inner) * seen).sum(axis=-1)

    def check(self, d: int) -> None:
        p, W = np.asarray(self.p), np.asarray(self.W)
        check_shape(p.shape, (d,))
        check_shape(W.shape, (d, W.shape[-1]))
        check_finite("v0", p)
        check_finite("v0", W)
        if not p.min() > 0:
            raise ValueError(f"v0 must be positive definite: its diagonal precision p must be > 0; got {p.min():.3g}.")

    def max_eigenvalue(self, H: Array) -> float:
        """An upper bound of the largest eigenvalue of V H: V is at most diag(p)^-1, its value in all but r directions.

        Parameters
        ----------
        H : array of shape (d,) or (d, d)

        Returns
        -------
        float
        """
        return Diagonal(1 / np.asarray(self.p)).max_eigenvalue(H)

    def _woodbury(self) -> tuple[Array, Array]:
        """W / p, and the small matrix I + W' diag(p)^-1 W of Woodbury's identity."""
        scaled = self.W / self.p[:, None]
        return scaled, namespace(self.p).eye(self.W.shape[1], dtype=self.W.dtype) + self.W.T @ scaled
