"""Normal observations."""

from typing import Any, ClassVar

from kalprox.base.arrays import Array, namespace, pytree, static
from kalprox.likelihoods.base import Likelihood
from kalprox.predictive import FromMoments, Student

TARGETS = ("range", "any")


@pytree
class Gaussian(Likelihood):
    """Normal observations y = f + noise with one noise variance: the loss is 1/2 (y - f)^2 in units of that variance.

    Parameters
    ----------
    targets : {"range", "any"}
        Which targets are learned with a link whose range is bounded. "range": those that lie in it, up to noise; others
        are an error, which names them. A target is refused if it lies outside by more than the largest of as many
        normal errors as there are rows, and all of them if their mean lies outside by more than the error of a mean.
        The standard deviation of the noise is the one given, or that of y, which is at least as large; targets with
        noise about the link are refused with a probability of 0.001 at most. "any": every target is learned.

    Examples
    --------
    >>> import numpy as np
    >>> Gaussian().expand(np.array([3.0]), np.array([1.0]))
    (array([-2.]), array([1.]))
    """

    help: ClassVar[str] = "numbers with normal noise"
    targets: str = static(default="range")

    quadratic: ClassVar[bool] = True
    learns_noise: ClassVar[bool] = True
    location: ClassVar[bool] = True
    predictive: ClassVar[type[FromMoments] | None] = Student

    def __post_init__(self) -> None:
        if self.targets not in TARGETS:
            raise ValueError(f"targets must be one of {', '.join(TARGETS)}; got {self.targets!r}.")

    def loss(self, y: Array, f: Array) -> Array:
        return (y - f) ** 2 / 2

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        return f - y, namespace(y, f).ones_like(f)

    def least_squares(self, y: Array, f: Array) -> tuple[Array, None]:
        return y - f, None

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> Student:
        return Student(f, noise.std(leverage, sigma), noise.dof)
