"""A predictive distribution in the interface of `river.proba`."""

import math
import random

from river import proba

from kalprox.base.checks import check_level
from kalprox.predictive import Predictive, Student

__all__ = ["PredictiveDistribution"]


class PredictiveDistribution(proba.base.ContinuousDistribution):
    """The predictive distribution of one observation, with the interface of `river.proba.Gaussian`.

    It is Student's t distribution if the noise variance is learned, the normal one if it is given, and that of counts
    with a likelihood of counts. A distribution is what was known when it was made: it cannot be updated.

    Parameters
    ----------
    predictive : kalprox.predictive.Predictive
        Of one row.
    n_samples : int
        The number of rows learned before.
    seed : int, optional
        That of `sample`.

    Examples
    --------
    >>> import numpy as np
    >>> found = PredictiveDistribution(Student(np.array([1.0]), np.array([2.0]), math.inf), 10, seed=1)
    >>> found, found.mu, found.sigma, found(1.0), found.cdf(1.0)
    (Student(μ=1.000, σ=2.000, dof=inf), 1.0, 2.0, 0.199471..., 0.5)
    >>> found.interval(0.95)
    (-2.919..., 4.919...)
    """

    def __init__(self, predictive: Predictive, n_samples: int, seed: int | None = None) -> None:
        self.predictive = predictive
        self.seed = seed
        self._n_samples = n_samples

    def __repr__(self) -> str:
        about = f", dof={self.dof:.4g}" if isinstance(self.predictive, Student) else ""
        return f"{type(self.predictive).__name__}(μ={self.mu:.3f}, σ={self.sigma:.3f}{about})"

    __str__ = __repr__

    @property
    def n_samples(self) -> int:
        """The number of rows learned before."""
        return self._n_samples

    @property
    def mu(self) -> float:
        """The mean."""
        return float(self.predictive.mean[0])

    @property
    def dof(self) -> float:
        """The degrees of freedom of Student's t distribution; infinite for others."""
        found = getattr(self.predictive, "dof", math.inf)
        return float(found if isinstance(found, (int, float)) or not getattr(found, "shape", ()) else found[0])

    @property
    def scale(self) -> float:
        """The scale of Student's t distribution, which `predict` of `kalprox.KalproxRegressor` returns."""
        return float(self.predictive.std[0])

    @property
    def sigma(self) -> float:
        """The standard deviation: infinite with no more than 2 degrees of freedom."""
        dof = self.dof
        if math.isinf(dof):
            return self.scale
        return self.scale * math.sqrt(dof / (dof - 2)) if dof > 2 else math.inf

    @property
    def mode(self) -> float:
        """The mean, which is the mode of a symmetric distribution."""
        return self.mu

    def __call__(self, x: float) -> float:
        """Return the density at x, or the probability of the count x."""
        return math.exp(self.log_pdf(x))

    def log_pdf(self, x: float) -> float:
        """Return the log of the density, or of the probability, at a value.

        Parameters
        ----------
        x : float

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> round(PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1).log_pdf(0.0), 3)
        -0.919
        """
        return float(self.predictive.log_prob(self.predictive.mean * 0 + x)[0])

    def cdf(self, x: float) -> float:
        """Return the probability that the observation is at most a value.

        Parameters
        ----------
        x : float

        Returns
        -------
        float
        """
        return float(self.predictive.cdf(self.predictive.mean * 0 + x)[0])

    def quantile(self, p: float) -> float:
        """Return a quantile.

        Parameters
        ----------
        p : float
            Its probability.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> round(PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1).quantile(0.975), 2)
        1.96
        """
        return float(self.predictive.quantile(p)[0])

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the ends of the central interval that has this probability.

        Parameters
        ----------
        level : float
            Strictly between 0 and 1.

        Returns
        -------
        low, high : float
        """
        check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def sample(self) -> float:
        """Draw an observation.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> found = PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1, seed=0)
        >>> round(found.sample(), 3)
        1.013
        """
        if "_rng" not in vars(self):
            self._rng = random.Random(self.seed)
        return self.quantile(self._rng.random())

    def update(self, x: float) -> None:
        """Raise a NotImplementedError: an observation does not change a prediction, but the model.

        Parameters
        ----------
        x : float

        Examples
        --------
        >>> import numpy as np
        >>> PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1).update(3.0)
        Traceback (most recent call last):
        NotImplementedError: A predictive distribution cannot be updated: update the model, and predict again.
        """
        raise NotImplementedError("A predictive distribution cannot be updated: update the model, and predict again.")

    def revert(self, x: float) -> None:
        """Raise a NotImplementedError; see `update`.

        Parameters
        ----------
        x : float

        Examples
        --------
        >>> import numpy as np
        >>> PredictiveDistribution(Student(np.zeros(1), np.ones(1), math.inf), 1).revert(3.0)
        Traceback (most recent call last):
        NotImplementedError: A predictive distribution cannot be updated: update the model, and predict again.
        """
        self.update(x)
