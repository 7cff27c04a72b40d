"""Normal observations."""

from typing import Any, ClassVar

from kalprox._arrays import Array, namespace, pytree
from kalprox.likelihoods.base import Likelihood
from kalprox.predictive import FromMoments, Student

__all__ = ["Gaussian"]


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
    location: ClassVar[bool] = True
    predictive: ClassVar[type[FromMoments] | None] = Student

    def loss(self, y: Array, f: Array) -> Array:
        return (y - f) ** 2 / 2

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        return f - y, namespace(y, f).ones_like(f)

    def least_squares(self, y: Array, f: Array) -> tuple[Array, None]:
        return y - f, None

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Student:
        return Student(f, noise.std(leverage, sigma), noise.dof)
