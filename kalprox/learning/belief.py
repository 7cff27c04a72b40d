"""What every belief of a learner has: a posterior in the coordinates of a design, and how it learns."""

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

__all__ = ["Belief", "Path"]


class Path(NamedTuple):
    """What each alpha gives, from the information alone; the higher the score the better."""

    alphas: Array
    coef: Array  # (alphas, d) or (alphas, k, d)
    intercept: Array  # (alphas,) or (alphas, k)
    edf: Array  # effective degrees of freedom, the intercept not counted
    score: Array  # log evidence (ridge) or -BIC/2, summed over targets


@dataclass(frozen=True, eq=False)
class Belief(ABC):
    """What is known after some rows, and how more rows change it. Nothing in a belief changes; readings are kept."""

    settings: Settings

    whole_batches: ClassVar[bool] = False  # whether a batch in memory is learned at once, however long it is
    n_passes = 1  # over the rows
    message = ""  # why the minimiser was not reached

    # ---- learning --------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> Self:
        """The belief before the first row of a stream that begins with these blocks."""

    @classmethod
    @abstractmethod
    def fit(cls, settings: Settings, source: Source) -> tuple[Self, Counts]:
        """The belief after all rows of a source, and how many there were."""

    @abstractmethod
    def learn(self, block: Block) -> Self:
        """This belief and one more block of rows."""

    @abstractmethod
    def with_settings(self, settings: Settings) -> Self:
        """The same rows under other settings; refused where what was learned does not allow it."""

    @property
    def predicts(self) -> bool:
        """Whether its predictions are to be judged: not before the first row, and not during a warm-up."""
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
        """The weight of the penalty that is used."""
        return self.settings.penalty.alpha

    @property
    def noise(self) -> Noise:
        return self.posterior.noise

    @property
    def _theta(self) -> Array:
        return np.asarray(self.posterior.mean).T  # (d,) or (k, d)

    @cached_property
    def coef(self) -> Array:
        """(d,) or (k, d)."""
        return self.design.coef(self._theta)

    @cached_property
    def intercept(self) -> Array:
        """() or (k,)."""
        return np.asarray(self.design.intercept_of(self._theta))

    @cached_property
    def covariance(self) -> Array:
        """Of the coefficients, (d, d) or (k, d, d)."""
        first, scale = self.design.first, self.design.scale
        C = np.asarray(self.posterior.cov())[..., first:, first:]
        return C if scale is None else C / scale[:, None] / scale

    @cached_property
    def coef_std(self) -> Array:
        """(d,) or (k, d)."""
        variances = np.asarray(self.posterior.var())[..., self.design.first :]
        return np.sqrt(variances) if self.design.scale is None else np.sqrt(variances) / self.design.scale

    @cached_property
    def intercept_std(self) -> Array:
        """() or (k,)."""
        if not self.design.intercept:
            return np.zeros_like(self.intercept)
        at_zero = self.design.rows(np.zeros((1, len(self.design.center))))  # type: ignore[arg-type]
        return np.sqrt(np.asarray(self.noise.variance) * self.posterior.leverage(at_zero)[0])

    def coef_interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """The ends of the central interval of each coefficient, shaped like `coef`."""
        reach = (np.asarray(self.noise.quantile(level)) * self.coef_std.T).T
        return self.coef - reach, self.coef + reach

    def intercept_interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """The ends of the central interval of the intercept, shaped like `intercept`."""
        reach = np.asarray(self.noise.quantile(level)) * self.intercept_std
        return self.intercept - reach, self.intercept + reach

    def mean(self, X: Any) -> Array:
        """The expected observations for rows of X, (n,) or (n, k)."""
        return self._value(self.design.rows(X))[0]

    def predict(self, X: Array) -> Predictive:
        """The distribution of new observations for rows of X, noise included."""
        return self.posterior.predict(*self._value(self.design.rows(X)))

    def _value(self, inputs: Array) -> tuple[Array, Array]:
        """What h says for its inputs at the estimate, and its Jacobian."""
        f, D = self.settings.model.linearize_rows(np.asarray(self.posterior.mean), inputs)
        return f + self.design.offset, D

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """n draws of coef (n, d) or (n, k, d) and intercept (n,) or (n, k)."""
        draws = self.posterior.sample(n, rng)
        return self.design.coef(draws), np.asarray(self.design.intercept_of(draws))

    # ---- saving ----------------------------------------------------------------------------------------

    @abstractmethod
    def saved(self) -> dict[str, Any]:
        """What the belief holds, as values that can be saved; see `kalprox.learning.saved`."""

    @classmethod
    @abstractmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> Self:
        """The belief about d features that gave `saved`."""

    # ---- what only some beliefs can do -------------------------------------------------------------------

    def merge(self, other: "Belief") -> Self:
        """The belief after the rows of both."""
        raise ValueError(
            "merge needs linear models, link='identity' and method='exact': others have no common linearisation. "
            "Fit one model on all rows instead."
        )

    def path(self, alphas: Array | None) -> Path:
        """Every alpha and what it gives, with no pass over the data."""
        raise ValueError("path needs link='identity' and method='exact'; fit once for each alpha instead.")

    @property
    def log_evidence(self) -> Array:
        """log p(y) with the penalty read as a prior, () or (k,)."""
        raise ValueError("log_evidence_ is exact for link='identity' and method='exact' only.")
