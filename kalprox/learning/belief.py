"""Beliefs: what the rows learned so far say about a model, its parameters and its predictions."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.pickling import PickledFields
from kalprox.base.tree import leaf, state
from kalprox.learning.doubts import doubt_of_penalty
from kalprox.learning.errors import StandardErrors
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.rules import check
from kalprox.noise import Noise
from kalprox.predictive import Predictive

__all__ = ["Belief", "Facts"]


class Facts(NamedTuple):
    """What a belief knows besides its estimate.

    Attributes
    ----------
    alpha : float, or array of shape (k,)
        The weight of the penalty, as given or chosen; one for each target if it was chosen for several.
    alpha_limit : float or None
        0 or infinity, if alpha="auto" found that the smaller, or the larger, alpha is the better.
    column_std : array of shape (d,) or None
        The standard deviation of each column of X over the rows learned; None if it is not known.
    targets_outside : float
        The number of targets learned that lie outside the range of the link.
    n_outliers : float or None
        The number of rows flagged as outliers, each before it was learned; None if the likelihood is not robust.
    """

    alpha: Any
    alpha_limit: float | None = None
    column_std: Array | None = None
    targets_outside: float = 0.0
    n_outliers: float | None = None


@state
class Belief(PickledFields, StandardErrors):
    """The estimate after some rows, how sure it is, and predictions. It does not change; what is computed is cached.

    Attributes
    ----------
    settings : Settings
    sandwich : Sandwich or None
        The sums for robust or clustered standard errors, if the settings ask for them.
    input_noise : InputNoise or None
        How the variance of the noise depends on the inputs, if the settings ask for it.
    time : float or None
        The time of the last row, if rows are forgotten by time.
    n_passes : int
        The number of passes over the rows.
    fit_message : str
        Why the fit did not reach the minimiser; empty if it did.
    merge_distance : float
        About how many standard errors merges have left the estimate from the minimiser; 0 if they were exact.
    """

    input_noise: InputNoise | None = leaf(default=None, kw_only=True)
    time: float | None = leaf(default=None, kw_only=True)
    n_passes: int = leaf(default=1, kw_only=True)
    fit_message: str = leaf(default="", kw_only=True)
    merge_distance: float = leaf(default=0.0, kw_only=True)

    @property
    def converged(self) -> bool:
        """Whether the estimate is the minimiser."""
        return True

    @property
    def message(self) -> str:
        """Why the estimate is not the minimiser; empty if it is."""
        return self.fit_message

    @property
    def predicts(self) -> bool:
        """Whether its predictions can be scored: False before the first row and during a warm-up."""
        return True

    @property
    def effective_rows(self) -> float:
        """The number of rows of equal weight that are worth as much as those that forgetting has left."""
        raise NotImplementedError

    @cached_property
    def facts(self) -> Facts:
        """What is known besides the estimate."""
        return Facts(self.settings.alpha)

    @property
    def noise(self) -> Noise:
        """The noise variance used in predictions, and its degrees of freedom."""
        return self.posterior.noise

    @property
    def effects(self) -> Array:
        """The size of the effect of each column: |coefficient| times the standard deviation of the column, like `coef`.

        It is the change of the prediction (for a nonlinear link: of the linear predictor) when the column increases by
        one standard deviation. Where the standard deviations are not known, it is |coefficient|.
        """
        std = self.facts.column_std
        return np.abs(self.coef) * (1.0 if std is None else std)

    @cached_property
    def interval_doubt(self) -> str:
        """Says that the penalty has moved the intervals of the coefficients off the truth; empty if it has not."""
        return doubt_of_penalty(self)

    # ---- predictions -----------------------------------------------------------------------------------

    def mean(self, X: Any) -> Array:
        """Return the predictive means for rows of X, shape (n,) or (n, k)."""
        return self.output(X) if self.settings.likelihood.location else self.predict(X).mean

    def predict(
        self, X: Array, sigma: Any = None, offset: Array | None = None, left_open: Array | None = None
    ) -> Predictive:
        """Return the predictive distribution for rows of X with these offsets.

        It includes the noise of relative std `sigma` (default 1), and the variance of the output that missing features
        leave open, if there are any.
        """
        return self.posterior.predict(*self._expected(X, offset), sigma, left_open)

    def output(self, X: Array, offset: Array | None = None) -> Array:
        """Return the output of the model for rows of X at the estimate, shape (n,) or (n, m)."""
        return self.value(X, offset)[0]

    def log_odds(self, X: Array, offset: Array | None = None, left_open: Array | None = None) -> Array:
        """Return the log odds of the probabilities of classes for rows of X, averaged over the posterior, shape (n,).

        For several classes, they are the logarithms of the probabilities less their mean, shape (n, m).
        """
        f, D = self._expected(X, offset)
        likelihood, leverage = self.settings.likelihood, self._output_variance(f, D, left_open)
        yes, no = (np.log(likelihood.predict(g, leverage, self.noise).mean) for g in (f, -f))
        return yes - no if f.ndim == 1 else yes - yes.mean(axis=-1, keepdims=True)

    def probability_std(self, X: Array, offset: Array | None = None, left_open: Array | None = None) -> Array:
        """Return the standard deviations of the probabilities of classes for rows of X, which the rows leave."""
        f, D = self._expected(X, offset)
        return self.settings.likelihood.probability_std(f, self._output_variance(f, D, left_open))

    def _output_variance(self, f: Array, D: Array, left_open: Array | None) -> Array:
        variance = self.posterior.output_variance(f, D)
        return variance if left_open is None else variance + left_open

    def value(self, X: Array, offset: Array | None = None) -> tuple[Array, Array]:
        """Return the output of the model for rows of X at the estimate, and its Jacobian."""
        return self._value(self.design.rows(X, offset))

    def _value(self, inputs: Array) -> tuple[Array, Array]:
        f, D = self.model.linearize_rows(np.asarray(self.posterior.mean), inputs)
        return (f + self.design.offset_rest) + self.design.offset, D

    def _expected(self, X: Array, offset: Array | None) -> tuple[Array, Array]:
        """Return the output of the model at the mean of the posterior, over which predictions average; its Jacobian."""
        (f, D), posterior = self.value(X, offset), self.posterior
        return (f if posterior.expected is posterior.mean else f + D @ (posterior.expected - posterior.mean)), D

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draw n times from the posterior: coef (n, d) or (n, k, d), and intercept (n,) or (n, k)."""
        draws, K = self.posterior.sample(n, rng), self.contrasts(self.posterior)
        draws = draws if K is None else self.design.by_output(draws @ K.T)
        return self.design.coef(draws), np.asarray(self.design.intercept_of(draws))

    # ---- of some models only ---------------------------------------------------------------------------

    def minimax(self, X: Array) -> Array:
        """Return the predictions of the Vovk-Azoury-Warmuth forecaster for rows of X, shape (n,) or (n, k)."""
        raise NotImplementedError

    @property
    def log_evidence(self) -> Array:
        """The log evidence log p(y) with the penalty as the prior, shape () or (k,)."""
        check(self.settings, way="evidence")
        raise NotImplementedError
