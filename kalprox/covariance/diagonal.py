"""V as its diagonal: cheap, and over-confident where parameters are correlated."""

from typing import Any, Self

from kalprox._arrays import Array, namespace, pytree
from kalprox.covariance.base import Covariance


@pytree
class Diagonal(Covariance):
    """V as the vector of its variances, shape (d,): O(d) a row.

    Exact while V is diagonal. After an observation the correlations it created are dropped and
    the marginal variances kept.
    """

    v: Any

    def apply(self, x: Array) -> Array:
        return self.v * x

    def predict(self, gamma: Array, H: Array, q: Any) -> Self:
        xp = namespace(self.v)
        if H.ndim == 2:  # of M V M' keep the diagonal: M = I - gamma diag(v) H
            M = xp.eye(len(self.v), dtype=self.v.dtype) - gamma * self.v[:, None] * H
            v = M**2 @ self.v
        else:
            v = (1 - gamma * self.v * H) ** 2 * self.v
        q = xp.asarray(q, self.v.dtype)
        return type(self)(v + (xp.diagonal(q) if q.ndim == 2 else q))

    def condition(self, d: Array, gamma: Array) -> tuple[Array, Self]:
        Vd = self.v * d
        gain = Vd / (1 / gamma + d @ Vd)
        return gain, type(self)(self.v - gain * Vd)

    def diag(self) -> Array:
        return self.v

    def dense(self) -> Array:
        return namespace(self.v).diag(self.v)
