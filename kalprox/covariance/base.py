"""The interface of every covariance structure."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array, namespace
from kalprox.base.checks import check_finite


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
        check_shape(V.shape, (d, d))
        check_finite("v0", V)
        if not np.allclose(V, V.T, rtol=1e-6, atol=0):
            raise ValueError("v0 must be symmetric; use (v0 + v0.T) / 2.")
        check_smallest(np.linalg.eigvalsh(V)[0])

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


def check_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise ValueError unless the parameters of a first covariance have the expected shape."""
    if shape != expected:
        raise ValueError(f"v0 must be the covariance of {expected[0]} parameters, as mean0 has; got shape {shape}.")


def check_smallest(eigenvalue: Any) -> None:
    """Raise ValueError unless the smallest eigenvalue of a first covariance is positive."""
    if not eigenvalue > 0:
        raise ValueError(
            f"v0 must be positive definite; its smallest eigenvalue is {eigenvalue:.3g}. "
            "Give a positive variance to every direction."
        )
