"""V through a square root of it: no variance is ever negative."""

from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array, is_traced, namespace, pytree
from kalprox.base.checks import check_finite
from kalprox.base.control import called
from kalprox.covariance.base import Covariance, check_shape, check_smallest


@pytree
class SquareRoot(Covariance):
    """V = L L': exact. `contract` and `diffuse` cost O(d^3), `condition` O(d^2), by Potter's update.

    Variances are sums of squares, so that none is negative, whatever is rounded. An observation that divides a variance
    by 1 + s costs log10(1 + s) / 2 digits of it; the matrix itself (`Dense`) would lose twice as many.

    Parameters
    ----------
    L : array
        Any square root of V, not necessarily triangular, shape (d, d).

    References
    ----------
    J. E. Potter's square-root update, in P. S. Maybeck, "Stochastic Models, Estimation, and Control", vol. 1, 1979.

    Examples
    --------
    >>> gain, V = SquareRoot(np.eye(2)).condition(np.array([1.0, 0.0]), 1.0)
    >>> gain, V.diag()
    (array([0.5, 0. ]), array([0.5, 1. ]))
    """

    L: Any

    @classmethod
    def of(cls, V: Array) -> Self:
        """Return the square root of a positive definite matrix, computed in units where its diagonal is 1.

        Parameters
        ----------
        V : array of shape (d, d)
            A positive definite matrix.

        Returns
        -------
        SquareRoot

        Examples
        --------
        >>> SquareRoot.of(np.diag([4.0, 9.0])).L
        array([[2., 0.],
               [0., 3.]])
        """
        xp = namespace(V)
        c = xp.sqrt(xp.diagonal(V))
        try:
            return cls(c[:, None] * xp.linalg.cholesky(V / c[:, None] / c[None]))
        except np.linalg.LinAlgError as error:
            raise ValueError(
                "v0 must be positive definite; in units of its standard deviations its smallest eigenvalue is zero up "
                "to rounding. Give a positive variance to every direction."
            ) from error

    def apply(self, x: Array) -> Array:
        return self.L @ (x @ self.L)

    def contract(self, gamma: Array, H: Array) -> Self:
        L = self.L
        HL = H[:, None] * L if H.ndim == 1 else H @ L
        return type(self)(L - gamma * (L @ (L.T @ HL)))  # M L is a root of M V M'

    def diffuse(self, q: Any) -> Self:
        xp = namespace(self.L, q)
        q = xp.asarray(q, self.L.dtype)
        if q.ndim == 2:
            e, W = xp.linalg.eigh(q)
            root = W * xp.sqrt(xp.maximum(e, 0))[None]
        else:
            root = xp.diag(xp.sqrt(xp.broadcast_to(q, (len(self.L),))))
        return type(self)(xp.linalg.qr(xp.concatenate([self.L.T, root.T]), mode="r").T)

    def condition(self, d: Array, gamma: Array) -> tuple[Array, Self]:
        potter = called(_potter) if is_traced(self.L, d, gamma) else _potter
        gain, L = potter(self.L, d, gamma)
        return gain, type(self)(L)

    def dense(self) -> Array:
        return self.L @ self.L.T

    def diag(self) -> Array:
        return (self.L**2).sum(axis=1)

    def variance(self, D: Array) -> Array:
        return ((D @ self.L) ** 2).sum(axis=-1)

    def check(self, d: int) -> None:
        L = np.asarray(self.L)
        check_shape(L.shape, (d, d))
        check_finite("v0", L)
        check_smallest(np.linalg.svd(L, compute_uv=False)[-1] ** 2)


def _potter(L: Array, d: Array, gamma: Array) -> tuple[Array, Array]:
    """Return the gain and the new root after an observation of d' theta with noise variance 1/gamma.

    With f = L'd and r^2 = 1 / (1 + gamma f'f), I - gamma r^2 f f' is the square of I - gamma r^2 / (1 + r) f f'.
    """
    f = d @ L
    Lf = L @ f
    r = 1 / namespace(L).sqrt(1 + gamma * (f @ f))
    shrink = gamma * r**2
    return Lf * shrink, L - Lf[:, None] * (f * (shrink / (1 + r)))[None, :]
