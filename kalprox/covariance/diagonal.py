"""V as its diagonal: cheap, and over-confident where parameters are correlated."""

from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree
from kalprox.base.checks import check_finite
from kalprox.covariance.base import Covariance, check_shape, check_smallest


@pytree
class Diagonal(Covariance):
    """V as the vector of its variances: O(d) per row.

    Exact while V is diagonal. The correlations that an observation creates are dropped, and the marginal variances are
    kept.

    Parameters
    ----------
    v : array
        The variances, shape (d,).

    Examples
    --------
    >>> _, V = Diagonal(np.ones(2)).condition(np.array([1.0, 1.0]), 1.0)
    >>> V.diag().round(3)
    array([0.667, 0.667])
    """

    v: Any

    def apply(self, x: Array) -> Array:
        return self.v * x

    def contract(self, gamma: Array, H: Array) -> Self:
        if H.ndim == 1:
            return type(self)((1 - gamma * self.v * H) ** 2 * self.v)
        M = namespace(self.v).eye(len(self.v), dtype=self.v.dtype) - gamma * self.v[:, None] * H
        return type(self)(M**2 @ self.v)  # the diagonal of M V M'

    def diffuse(self, q: Any) -> Self:
        q = namespace(self.v).asarray(q, self.v.dtype)
        return type(self)(self.v + (q.diagonal() if q.ndim == 2 else q))

    def condition(self, d: Array, gamma: Array) -> tuple[Array, Self]:
        Vd = self.v * d
        gain = Vd / (1 / gamma + d @ Vd)
        return gain, type(self)(self.v - gain * Vd)

    def dense(self) -> Array:
        return namespace(self.v).diag(self.v)

    def diag(self) -> Array:
        return self.v

    def variance(self, D: Array) -> Array:
        return D**2 @ self.v

    def check(self, d: int) -> None:
        v = np.asarray(self.v)
        check_shape(v.shape, (d,))
        check_finite("v0", v)
        check_smallest(v.min())

    def max_eigenvalue(self, H: Array) -> float:
        v, H = np.asarray(self.v), np.asarray(H)
        if H.ndim == 1:
            return float((v * H).max())
        root = np.sqrt(v)  # V^1/2 H V^1/2 is symmetric, with the eigenvalues of V H
        return float(np.linalg.eigvalsh(root[:, None] * H * root).max())
