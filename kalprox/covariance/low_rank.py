"""V through its precision, a diagonal plus a few directions."""

from typing import Any, Self

from kalprox._arrays import Array, namespace, pytree
from kalprox.covariance.base import Covariance


@pytree
class LowRank(Covariance):
    """V = (diag(p) + W W')^-1 with W of shape (d, r): O(d r^2) a row, O(d r) memory.

    Each observation appends one direction; the r leading ones are kept and the diagonal of the
    dropped one goes to p, so that no parameter's own precision is lost, only correlations. Exact
    while at most r directions have been seen. A rank far too small is over-confident.
    """

    p: Any
    W: Any

    @classmethod
    def start(cls, v: Any, d: int, rank: int) -> Self:
        """The prior variance v, a scalar or shape (d,), before any direction has been seen."""
        if not 1 <= rank <= d:
            raise ValueError(f"rank must be between 1 and d = {d}; got {rank}.")
        xp = namespace(v)
        v = xp.broadcast_to(xp.asarray(v, dtype=None if hasattr(v, "dtype") else float), (d,))
        return cls(1 / v, xp.zeros((d, rank), v.dtype))

    def apply(self, x: Array) -> Array:
        xp = namespace(self.p)
        scaled = self.W / self.p[:, None]
        return x / self.p - scaled @ xp.linalg.solve(self._inner(), scaled.T @ x)

    def predict(self, gamma: Array, H: Array, q: Any) -> Self:
        """To first order in gamma V H: M V M' has the precision P + 2 gamma H. Adding Q is exact.

        Of a dense H the diagonal is kept.
        """
        xp = namespace(self.p)
        p = self.p + 2 * gamma * (H if H.ndim == 1 else xp.diagonal(H))
        q = xp.asarray(q, p.dtype)
        # V + Q = (1/p + q) - (W/p) S^-1 (W/p)', inverted by Woodbury once more
        shrink = 1 / (1 + (xp.diagonal(q) if q.ndim == 2 else q) * p)
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

    def diag(self) -> Array:
        return namespace(self.p).diagonal(self.dense())

    def dense(self) -> Array:
        xp = namespace(self.p)
        scaled = self.W / self.p[:, None]
        return xp.diag(1 / self.p) - scaled @ xp.linalg.solve(self._inner(), scaled.T)

    def _inner(self) -> Array:
        """I + W' diag(p)^-1 W, the small matrix of Woodbury's identity."""
        xp = namespace(self.p)
        return xp.eye(self.W.shape[1], dtype=self.W.dtype) + self.W.T @ (self.W / self.p[:, None])
