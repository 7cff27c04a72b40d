"""Covariance structures: how V is stored. A structure implements its own algebra."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array, is_traced, namespace, pytree
from kalprox.base.checks import check_finite
from kalprox.base.control import called

__all__ = ["Covariance", "Dense", "Diagonal", "LowRank", "SquareRoot"]


class Covariance(ABC):
    """A d x d covariance matrix V with the operations that the paper's recursions need.

    A structure must implement `apply`, `contract`, `diffuse`, `condition` and `dense`. The other methods have a default
    that forms the dense matrix; a structure meant for large d replaces them, so that V is never formed.

    Examples
    --------
    >>> from kalprox.covariance import Dense
    >>> V = Dense(np.diag([4.0, 1.0]))  # which is one
    >>> V.check(2)
    >>> V.apply(np.array([1.0, 1.0])), V.diag(), V.variance(np.array([[1.0, 1.0]]))
    (array([4., 1.]), array([4., 1.]), array([5.]))
    >>> gain, after = V.condition(np.array([1.0, 0.0]), 1.0)
    >>> after.dense()
    array([[0.8, 0. ],
           [0. , 1. ]])
    >>> V.diffuse(0.5).diag(), V.contract(0.1, np.ones(2)).diag().round(2), V.max_eigenvalue(np.ones(2))
    (array([4.5, 1.5]), array([1.44, 0.81]), 4.0)
    """

    @abstractmethod
    def apply(self, x: Array) -> Array:
        """The product V x.

        Parameters
        ----------
        x : array of shape (d,)

        Returns
        -------
        array of shape (d,)
        """

    @abstractmethod
    def contract(self, gamma: Array, H: Array) -> Self:
        """M V M' with M = I - gamma V H: what a gradient step on g does to V.

        Parameters
        ----------
        gamma : array
            The step size.
        H : array
            The Hessian of g; shape (d,) stands for a diagonal matrix, otherwise (d, d).

        Returns
        -------
        Covariance
        """

    @abstractmethod
    def diffuse(self, q: Any) -> Self:
        """V + Q: what the drift of the parameters between two rows does to V.

        Parameters
        ----------
        q : float or array of shape (d,) or (d, d)
            A scalar, a diagonal or a matrix.

        Returns
        -------
        Covariance
        """

    @abstractmethod
    def condition(self, d: Array, gamma: Array) -> tuple[Array, Self]:
        """Condition on an observation of d' theta with noise variance 1/gamma.

        Parameters
        ----------
        d : array
            The direction that is observed, shape (d,).
        gamma : array
            The noise precision.

        Returns
        -------
        gain : array
            The Kalman gain V d / (1/gamma + d' V d), shape (d,).
        V : Covariance
            The covariance after the observation.
        """

    @abstractmethod
    def dense(self) -> Array:
        """V as a matrix.

        Returns
        -------
        array of shape (d, d)
        """

    def diag(self) -> Array:
        """The variances of the parameters.

        Returns
        -------
        array of shape (d,)
        """
        return namespace(self).diagonal(self.dense())

    def variance(self, D: Array) -> Array:
        """d' V d for a vector d, or for each row d of a matrix.

        Parameters
        ----------
        D : array of shape (..., d)

        Returns
        -------
        array of shape (...)
        """
        return (D @ self.dense() * D).sum(axis=-1)

    def check(self, d: int) -> None:
        """Raise ValueError unless V is a finite, symmetric, positive definite matrix of shape (d, d).

        Parameters
        ----------
        d : int
            The number of parameters.
        """
        V = np.asarray(self.dense())
        _check_shape(V.shape, (d, d))
        check_finite("v0", V)
        if not np.allclose(V, V.T, rtol=1e-6, atol=0):
            raise ValueError("v0 must be symmetric; use (v0 + v0.T) / 2.")
        _check_smallest(np.linalg.eigvalsh(V)[0])

    def max_eigenvalue(self, H: Array) -> float:
        """The largest eigenvalue of V H, or an upper bound of it.

        Parameters
        ----------
        H : array of shape (d,) or (d, d)
            The Hessian of g; a vector stands for a diagonal matrix.

        Returns
        -------
        float
        """
        V, H = np.asarray(self.dense()), np.asarray(H)
        return float(np.linalg.eigvals(V * H if H.ndim == 1 else V @ H).real.max())


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
        _check_shape(v.shape, (d,))
        check_finite("v0", v)
        _check_smallest(v.min())

    def max_eigenvalue(self, H: Array) -> float:
        v, H = np.asarray(self.v), np.asarray(H)
        if H.ndim == 1:
            return float((v * H).max())
        root = np.sqrt(v)  # V^1/2 H V^1/2 is symmetric, with the eigenvalues of V H
        return float(np.linalg.eigvalsh(root[:, None] * H * root).max())


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
        _check_shape(L.shape, (d, d))
        check_finite("v0", L)
        _check_smallest(np.linalg.svd(L, compute_uv=False)[-1] ** 2)


def _potter(L: Array, d: Array, gamma: Array) -> tuple[Array, Array]:
    """Return the gain and the new root after an observation of d' theta with noise variance 1/gamma.

    With f = L'd and r^2 = 1 / (1 + gamma f'f), I - gamma r^2 f f' is the square of I - gamma r^2 / (1 + r) f f'.
    """
    f = d @ L
    Lf = L @ f
    r = 1 / namespace(L).sqrt(1 + gamma * (f @ f))
    shrink = gamma * r**2
    return Lf * shrink, L - Lf[:, None] * (f * (shrink / (1 + r)))[None, :]


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
        _check_shape(p.shape, (d,))
        _check_shape(W.shape, (d, W.shape[-1]))
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


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise ValueError unless the parameters of a first covariance have the expected shape."""
    if shape != expected:
        raise ValueError(f"v0 must be the covariance of {expected[0]} parameters, as mean0 has; got shape {shape}.")


def _check_smallest(eigenvalue: Any) -> None:
    """Raise ValueError unless the smallest eigenvalue of a first covariance is positive."""
    if not eigenvalue > 0:
        raise ValueError(
            f"v0 must be positive definite; its smallest eigenvalue is {eigenvalue:.3g}. "
            "Give a positive variance to every direction."
        )
