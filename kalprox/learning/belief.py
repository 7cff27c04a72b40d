"""The base class of beliefs: a posterior in the coordinates of a design, and how rows update it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from kalprox._arrays import Array
from kalprox.learning.design import Design
from kalprox.learning.saved import Saved
from kalprox.learning.settings import Settings
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.predictive import Predictive
from kalprox.sources import Block, Counts, Source

__all__ = ["Belief", "Path", "check_any_row"]


class Path(NamedTuple):
    """Solutions of a linear model for a grid of alphas.

    Attributes
    ----------
    alphas : array of shape (m,)
    coef : array of shape (m, d) or (m, k, d)
    intercept : array of shape (m,) or (m, k)
    edf : array of shape (m,) or (m, k)
        The effective degrees of freedom, not counting the intercept.
    score : array of shape (m,)
        The log evidence for ridge, -BIC/2 for other penalties, summed over targets. Higher is better.
    """

    alphas: Array
    coef: Array
    intercept: Array
    edf: Array
    score: Array


def check_any_row(counts: Counts) -> None:
    """Raise a ValueError if a pass over a source found no row that counts."""
    if counts.good == 0:
        raise ValueError(
            f"There is no good row to learn from: of {counts.read} row(s) read, {counts.bad} were bad and all others "
            "have weight 0. Correct the rows, or give at least one a positive weight."
        )


@dataclass(frozen=True, eq=False)
class Belief(ABC):
    """The state of a learner after some rows. A belief is immutable; quantities computed from it are cached.

    Attributes
    ----------
    settings : Settings
    whole_batches : bool
        Whether a batch in memory is learned as one block, however long it is.
    n_passes : int
        The number of passes over the rows.
    message : str
        Why the minimiser was not reached; empty if it was.
    """

    settings: Settings

    whole_batches: ClassVar[bool] = False
    n_passes = 1
    message = ""

    # ---- learning --------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> Self:
        """Return the belief before the first row of a stream that begins with these blocks."""

    @classmethod
    @abstractmethod
    def fit(cls, settings: Settings, source: Source) -> tuple[Self, Counts]:
        """Return the belief after all rows of a source, and the number of rows."""

    @abstractmethod
    def learn(self, block: Block) -> Self:
        """Return the belief after one more block of rows."""

    @abstractmethod
    def with_settings(self, settings: Settings) -> Self:
        """Return the belief of the same rows under other settings; raise if it would need the rows again."""

    @property
    def predicts(self) -> bool:
        """Whether its predictions can be scored: False before the first row and during a warm-up."""
        return True

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def design(self) -> Design:
        """The coordinates of theta."""

    @property
    @abstractmethod
    def posterior(self) -> Posterior:
        """The posterior of theta."""

    @property
    @abstractmethod
    def converged(self) -> bool:
        """Whether the estimate is the minimiser."""

    @property
    def alpha(self) -> float:
        """The weight of the penalty, as given or chosen."""
        return self.settings.penalty.alpha

    @property
    def noise(self) -> Noise:
        return self.posterior.noise

    @property
    def _theta(self) -> Array:
        return np.asarray(self.posterior.mean).T  # (d,) or (k, d)

    @cached_property
    def coef(self) -> Array:
        """The coefficients, shape (d,) or (k, d)."""
        return self.design.coef(self._theta)

    @cached_property
    def intercept(self) -> Array:
        """The intercept, shape () or (k,)."""
        return np.asarray(self.design.intercept_of(self._theta))

    @cached_property
    def covariance(self) -> Array:
        """The covariance of the coefficients, shape (d, d) or (k, d, d)."""
        first, scale = self.design.first, self.design.scale
        C = np.asarray(self.posterior.cov())[..., first:, first:]
        return C if scale is None else C / scale[:, None] / scale

    @cached_property
    def coef_std(self) -> Array:
        """The standard errors of the coefficients, shape (d,) or (k, d)."""
        variances = np.asarray(self.posterior.var())[..., self.design.first :]
        return np.sqrt(variances) if self.design.scale is None else np.sqrt(variances) / self.design.scale

    @cached_property
    def intercept_std(self) -> Array:
        """The standard error of the intercept, shape () or (k,); zero without intercept."""
        if not self.design.intercept:
            return np.zeros_like(self.intercept)
        at_zero = self.design.rows(np.zeros((1, len(self.design.center))))  # type: ignore[arg-type]
        return np.sqrt(np.asarray(self.noise.variance) * self.posterior.leverage(at_zero)[0])

    def coef_interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return the ends of the central interval of each coefficient, shaped like `coef`."""
        reach = (np.asarray(self.noise.quantile(level)) * self.coef_std.T).T
        return self.coef - reach, self.coef + reach

    def intercept_interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return the ends of the central interval of the intercept, shaped like `intercept`."""
        reach = np.asarray(self.noise.quantile(level)) * self.intercept_std
        return self.intercept - reach, self.intercept + reach

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of X, shape (n,) or (n, k)."""
        return self._value(self.design.rows(X))[0]

    def predict(self, X: Array) -> Predictive:
        """Return the predictive distribution for rows of X, including the noise."""
        return self.posterior.predict(*self._value(self.design.rows(X)))

    def _value(self, inputs: Array) -> tuple[Array, Array]:
        """Return the output of the model at the estimate, and its Jacobian."""
        f, D = self.settings.model.linearize_rows(np.asarray(self.posterior.mean), inputs)
        return (f + self.design.offset_rest) + self.design.offset, D

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draw n times from the posterior: coef (n, d) or (n, k, d), and intercept (n,) or (n, k)."""
        draws = self.posterior.sample(n, rng)
        return self.design.coef(draws), np.asarray(self.design.intercept_of(draws))

    # ---- saving ----------------------------------------------------------------------------------------

    @abstractmethod
    def saved(self) -> dict[str, Any]:
        """Return the state of the belief as values that can be saved; see `kalprox.learning.saved`."""

    @classmethod
    @abstractmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> Self:
        """Return the belief about d features whose method `saved` returned these values."""

    # ---- supported by exact beliefs only -----------------------------------------------------------------

    def merge(self, other: "Belief") -> Self:
        """Return the belief after the rows of both."""
        raise ValueError(
            "merge needs linear models, link='identity' and method='exact': other models are linearised at different "
            "points. Fit one model to all rows instead."
        )

    def path(self, alphas: Array | None) -> Path:
        """Return the solution for each alpha, without a pass over the data."""
        raise ValueError("path needs link='identity' and method='exact'; fit once for each alpha instead.")

    @property
    def log_evidence(self) -> Array:
        """The log evidence log p(y) with the penalty as the prior, shape () or (k,)."""
        raise ValueError("log_evidence_ needs link='identity' and method='exact'.")
