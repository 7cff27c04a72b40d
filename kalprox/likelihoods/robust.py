"""Observations some of which lie: the influence of a row on the estimate stays bounded."""

from abc import abstractmethod
from typing import Any, ClassVar

from kalprox._arrays import Array, namespace, pytree
from kalprox.likelihoods.base import Likelihood
from kalprox.predictive import Student as StudentPrediction

__all__ = ["Huber", "Student"]


class Robust(Likelihood):
    """A loss of r = (y - f) / scale that grows more slowly than r^2 / 2: rows have weights, which fall with |r|.

    The curvature is taken from the parabola that touches the loss at f and lies above it, w r^2 / 2 with the weight w
    of the row. The second derivative may be zero or negative where |r| is large, and a step could overshoot.
    """

    location: ClassVar[bool] = True

    scale: Any

    @abstractmethod
    def weight(self, r: Array) -> Array:
        """Return the weights of rows with these errors in units of the scale.

        Parameters
        ----------
        r : array

        Returns
        -------
        array of the same shape
        """

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        r = (y - f) / self.scale
        weight = self.weight(r)
        return -weight * r / self.scale, weight / self.scale**2


@pytree
class Huber(Robust):
    """A loss that is quadratic up to `threshold` standard deviations and linear beyond.

    With r = (y - f) / scale the loss is r^2 / 2, or threshold (|r| - threshold / 2) where |r| is larger.
    Predictions are those of good rows, which are normal.

    Parameters
    ----------
    threshold : float
        With 1.345 the estimate has 95% of the efficiency of least squares if the noise is normal.
    scale : float
        The standard deviation of the noise of good rows.

    Examples
    --------
    >>> import numpy as np
    >>> Huber().expand(np.array([0.5, 100.0]), np.array([0.0, 0.0]))
    (array([-0.5  , -1.345]), array([1.     , 0.01345]))
    >>> Huber().weight(np.array([1.0, 13.45]))
    array([1. , 0.1])
    """

    threshold: Any = 1.345
    scale: Any = 1.0

    def loss(self, y: Array, f: Array) -> Array:
        xp = namespace(y, f)
        size = xp.abs(y - f) / self.scale
        low = xp.minimum(size, self.threshold)
        return low * (size - low / 2)

    def weight(self, r: Array) -> Array:
        xp = namespace(r)
        return self.threshold / xp.maximum(xp.abs(r), self.threshold)

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> StudentPrediction:
        xp = namespace(f)
        return StudentPrediction(f, xp.sqrt(self.scale**2 * sigma**2 + leverage), xp.inf)


@pytree
class Student(Robust):
    """Observations with the errors of Student's t distribution: rows far away lose their influence.

    With r = (y - f) / scale the loss is (dof + 1) / 2 log(1 + r^2 / dof). It is not convex. In
    predictions the scale has the variance of the noise and of f together.

    Parameters
    ----------
    dof : float
        The degrees of freedom.
    scale : float
        The scale of the errors, smaller than their standard deviation.

    Examples
    --------
    >>> import numpy as np
    >>> slope, curvature = Student().expand(np.array([0.5, 100.0]), np.array([0.0, 0.0]))
    >>> slope.round(3), curvature.round(4)
    (array([-0.588, -0.05 ]), array([1.1765e+00, 5.0000e-04]))
    >>> Student().weight(np.array([0.0, 4.0]))
    array([1.25, 0.25])
    """

    dof: Any = 4.0
    scale: Any = 1.0

    def loss(self, y: Array, f: Array) -> Array:
        r = (y - f) / self.scale
        return (self.dof + 1) / 2 * namespace(r).log1p(r**2 / self.dof)

    def weight(self, r: Array) -> Array:
        return (self.dof + 1) / (self.dof + r**2)

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> StudentPrediction:
        xp = namespace(f)
        shrunk = (self.dof - 2) / self.dof if self.dof > 2 else 1.0
        return StudentPrediction(f, xp.sqrt(self.scale**2 * sigma**2 + leverage * shrunk), self.dof)
