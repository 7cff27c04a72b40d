"""V as a full matrix: exact."""

from typing import Any, Self

from kalprox.base.arrays import Array, namespace, pytree
from kalprox.covariance.base import Covariance


@pytree
class Dense(Covariance):
    """V as a full matrix: exact. `contract` costs O(d^3), `condition` O(d^2).

    Parameters
    ----------
    V : array
        The covariance matrix, shape (d, d).

    Examples
    --------
    >>> import numpy as np
    >>> gain, V = Dense(np.eye(2)).condition(np.array([1.0, 0.0]), 1.0)
    >>> gain, V.diag()
    (array([0.5, 0. ]), array([0.5, 1. ]))
    """

    V: Any

    def apply(self, x: Array) -> Array:
        return self.V @ x

    def contract(self, gamma: Array, H: Array) -> Self:
        V, gamma = self.V, namespace(self.V).asarray(gamma, self.V.dtype)
        # M V M' as V - 2 gamma VHV + gamma^2 VH VHV is symmetric to rounding, and takes XLA three quarters of the time
        # of the product with M.
        VH = V * H[None, :] if H.ndim == 1 else V @ H
        VHV = VH @ V
        return type(self)(V - 2 * gamma * VHV + gamma**2 * (VH @ VHV))

    def diffuse(self, q: Any) -> Self:
        xp = namespace(self.V, q)
        q = xp.asarray(q, self.V.dtype)
        return type(self)(self.V + (q if q.ndim == 2 else xp.diag(xp.broadcast_to(q, (len(self.V),)))))

    def condition(self, d: Array, gamma: Array) -> tuple[Array, Self]:
        Vd = self.V @ d
        gain = Vd / (1 / gamma + d @ Vd)
        return gain, type(self)(self.V - gain[:, None] * Vd[None, :])

    def dense(self) -> Array:
        return self.V
