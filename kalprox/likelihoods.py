"""Likelihoods: the distribution of observations y given the output f = h(theta, x) of the model.

A likelihood defines the loss -log p(y | f), its first and second derivative with respect to f, and the predictive
distribution of new observations. The recursions, the proximal filter and refinement need nothing else, so that a new
likelihood is one class in this file, independent of models, regularisers and algorithms.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from kalprox._arrays import Array, namespace, pytree
from kalprox.predictive import Predictive, Student

__all__ = ["Gaussian", "Likelihood"]


class Likelihood(ABC):
    """The loss -log p(y | f) with f = h(theta, x), up to terms that do not depend on f.

    If the noise variance is learned, the loss is in units of the noise variance. Expanded to second order at theta, the
    loss of a block with Jacobian D and weights w is a weighted least-squares problem for the step of theta: its rows
    are D, its targets -slope / curvature, its weights w * curvature.

    Attributes
    ----------
    quadratic : bool
        Whether the second-order expansion is exact. One pass over the rows is then exact for a linear model.
    learns_noise : bool
        Whether the loss is scaled by a noise variance, which can be learned from the residuals.

    Examples
    --------
    >>> import numpy as np
    >>> from kalprox.noise import Noise
    >>> y, f = np.array([3.0, 1.0]), np.array([1.0, 1.0])
    >>> gaussian = Gaussian()  # which is one
    >>> gaussian.loss(y, f), gaussian.expand(y, f), gaussian.least_squares(y, f)
    (array([2., 0.]), (array([-2.,  0.]), array([1., 1.])), (array([2., 0.]), None))
    >>> gaussian.predict(f, leverage=np.zeros(2), noise=Noise(4.0, np.inf)).std
    array([2., 2.])
    """

    quadratic: ClassVar[bool] = False
    learns_noise: ClassVar[bool] = False

    @abstractmethod
    def loss(self, y: Array, f: Array) -> Array:
        """Return the loss of observations y for the model outputs f, elementwise.

        Parameters
        ----------
        y, f : arrays of the same shape

        Returns
        -------
        array of the same shape
        """

    @abstractmethod
    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        """Return the slope and the curvature of the loss at f, elementwise.

        Parameters
        ----------
        y, f : arrays of the same shape

        Returns
        -------
        slope : array
            The first derivative of the loss with respect to f.
        curvature : array
            The second derivative, or a positive substitute for it if the loss is not convex.
        """

    def least_squares(self, y: Array, f: Array) -> tuple[Array, Array | None]:
        """Return the second-order expansion as a least-squares problem for the step of f.

        Parameters
        ----------
        y, f : arrays of the same shape

        Returns
        -------
        targets : array
            -slope / curvature.
        weights : array or None
            The curvature; None if it is 1 everywhere.
        """
        slope, curvature = self.expand(y, f)
        return -slope / curvature, curvature

    @abstractmethod
    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Predictive:
        """Return the predictive distribution of new observations.

        Parameters
        ----------
        f : array
            The output of the model at the estimate.
        leverage : array
            The variance of f in units of the noise variance.
        noise : kalprox.noise.Noise
            The noise variance and its degrees of freedom.
        sigma : float or array
            The standard deviation of the noise of each observation, in units of that of a row of weight 1; for
            likelihoods with `learns_noise` only.

        Returns
        -------
        Predictive
        """


@pytree
class Gaussian(Likelihood):
    """Normal observations y = f + noise with one noise variance: the loss is 1/2 (y - f)^2 in units of that variance.

    Examples
    --------
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

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Student:
        return Student(f, noise.std(leverage, sigma), noise.dof)
