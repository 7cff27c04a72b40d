"""V as a full matrix: exact."""

from typing import Any, Self

from kalprox._arrays import Array, namespace, pytree
from kalprox.covariance.base import Covariance


@pytree
class Dense(Covariance):
    """V as a full (d, d) matrix. `predict` costs O(d^3), `condition` O(d^2); nothing is dropped."""

    V: Any

    def apply(self, x: Array) -> Array:
        return self.V @ x

    def predict(self, gamma: Array, H: Array, q: Any) -> Self:
        V, gamma = self.V, namespace(self.V).asarray(gamma, self.V.dtype)
        # M V M' as V - 2 gamma VHV + gamma^2 VH VHV: symmetric to rounding, and three quarters of XLA's time for M.
        VH = V * H[None, :] if H.ndim == 1 else V @ H
        VHV = VH @ V
        return type(self)(_plus_diagonal(V - 2 * gamma * VHV + gamma**2 * (VH @ VHV), q))

    def condition(self, d: Array, gamma: Array) -> tuple[Array, Self]:
        Vd = self.V @ d
        gain = Vd / (1 / gamma + d @ Vd)
        return gain, type(self)(self.V - gain[:, None] * Vd[None, :])

    def diag(self) -> Array:
        return namespace(self.V).diagonal(self.V)

    def dense(self) -> Array:
        return self.V


def _plus_diagonal(V: Array, q: Any) -> Array:
    """V + Q for q a scalar, a diagonal or a matrix."""
    xp = namespace(V, q)
    q = xp.asarray(q, V.dtype)
    return V + (q if q.ndim == 2 else xp.diag(xp.broadcast_to(q, (len(V),))))
