"""Likelihoods: the distribution of observations y given the output f = h(theta, x) of the model.

A likelihood defines the loss -log p(y | f), its first and second derivative with respect to f, and the predictive
distribution of new observations. The recursions, the proximal filter and refinement need nothing else, so that a new
likelihood is one class in one file of this package, independent of models, regularisers and algorithms.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from kalprox._arrays import Array
from kalprox.predictive import Predictive

__all__ = ["Likelihood"]


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
    interacts : bool
        Whether the outputs of a row interact in the loss, which is then not elementwise: see `contrasts`.
    """

    quadratic: ClassVar[bool] = False
    learns_noise: ClassVar[bool] = False
    interacts: ClassVar[bool] = False

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

    def contrasts(self, f: Array, D: Array) -> Array:
        """Return the Jacobian of what the least-squares problem is about, given that of f.

        It is that of f itself, unless the outputs of a row interact in the loss, as the classes of `Categorical` do.

        Parameters
        ----------
        f : array of shape (b,) or (b, m)
        D : array of shape (b, d) or (b, m, d)

        Returns
        -------
        array of the shape of D
        """
        return D

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
