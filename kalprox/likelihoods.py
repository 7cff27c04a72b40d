"""Likelihoods: how observations scatter around h(theta, x).

A likelihood says what it costs to observe y where the model says f = h(theta, x), and how that cost bends. Everything
that learns (the recursions, the proximal filter, refinement) asks for nothing else, so that a new likelihood is one
class here. It knows nothing of models, regularisers or algorithms.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from kalprox._arrays import Array, namespace, pytree
from kalprox.predictive import Predictive, Student

__all__ = ["Gaussian", "Likelihood"]


class Likelihood(ABC):
    """-log p(y | f) with f = h(theta, x), up to terms without f and, where the noise is learned, in units of the noise.

    Expanded to second order at a point, a block of rows with Jacobian D becomes rows of least squares: the rows are D,
    the targets -slope / curvature (about a step of theta), the weights w * curvature.
    """

    quadratic: ClassVar[bool] = False  # whether the expansion is exact, so that one pass is, for a linear h
    learns_noise: ClassVar[bool] = False  # whether a noise variance scales the loss

    @abstractmethod
    def loss(self, y: Array, f: Array) -> Array:
        """The cost of observing y where the model says f, elementwise."""

    @abstractmethod
    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        """The first derivative of the loss with respect to f, and a curvature > 0: the second derivative, or what
        stands for it where the loss is not convex."""

    def least_squares(self, y: Array, f: Array) -> tuple[Array, Array | None]:
        """The expansion as targets -slope / curvature, about a step of f, and weights; None where these are all 1."""
        slope, curvature = self.expand(y, f)
        return -slope / curvature, curvature

    @abstractmethod
    def predict(self, f: Array, leverage: Array, noise: Any) -> Predictive:
        """The distribution of new observations.

        Parameters
        ----------
        f : array
            What the model says at the estimate.
        leverage : array
            The variance of f in units of the noise variance.
        noise : kalprox.noise.Noise
            The noise variance and its degrees of freedom.
        """


@pytree
class Gaussian(Likelihood):
    """y = f + noise, with normal noise of one variance: the loss is 1/2 (y - f)^2 in units of the noise variance.

    >>> import numpy as np
    >>> Gaussian().expand(np.array([3.0]), np.array([1.0]))
    (array([-2.]), array([1.]))
    """

    quadratic: ClassVar[bool] = True
    learns_noise: ClassVar[bool] = True

    def loss(self, y: Array, f: Array) -> Array:
        return (y - f) ** 2 / 2

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        return f - y, namespace(y, f).ones_like(f)

    def least_squares(self, y: Array, f: Array) -> tuple[Array, None]:
        return y - f, None

    def predict(self, f: Array, leverage: Array, noise: Any) -> Student:
        return Student(f, noise.std(leverage), noise.dof)
