"""What a mixture of beliefs says: its predictions, and the moments of its coefficients."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import state
from kalprox.learning.bank_weights import ForgetWeights, Odds, WeightRecord
from kalprox.learning.belief import Belief
from kalprox.learning.design import Design
from kalprox.learning.intervals import Estimate
from kalprox.learning.linear import LinearBelief
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.predictive import Predictive, Student, mixed
from kalprox.predictive.mixture import shares

__all__ = ["MixedBelief"]


@state
class MixedBelief(Belief):
    """Beliefs about the same rows, one of which is right, with the probability of each.

    Predictions are those of the mixture. Of the coefficients, the estimate is the mean of the mixture, and covariances
    are those of the mixture: the mean of those of the members, and the covariance of their estimates. The noise
    variance is the mean, and degrees of freedom are the harmonic mean. Intervals of coefficients are those of Student's
    t distribution with these moments. What has no mean is that of the member with the largest weight.

    Attributes
    ----------
    members : tuple of Belief
    odds : Odds
        The probability of each member.
    names : tuple of str
        The way in which each member forgets.
    record : WeightRecord
        The weights along the stream.
    """

    members: tuple[Belief, ...]
    odds: Odds
    names: tuple[str, ...]
    record: WeightRecord

    # ---- the weights -----------------------------------------------------------------------------------

    @cached_property
    def weights(self) -> Array:
        """The probability of each member, which mixes the predictions of the next row, shape (K,) or (K, k)."""
        return self.odds.weights

    @property
    def forget_weights(self) -> ForgetWeights:
        """How the weights have moved."""
        return self.record.read(self.names, self.weights)

    @property
    def memory(self) -> Array:
        """The mean over the members of the effective number of rows that each remembers, shape () or (k,)."""
        rows = np.array([member.effective_rows for member in self.members])
        return np.asarray(np.tensordot(rows, self.weights, axes=(0, 0)))

    @property
    def _heaviest(self) -> Belief:
        """The member with the largest weight, over all targets: what has no mean is read from it."""
        return self.members[int(self.weights.reshape(len(self.members), -1).sum(axis=1).argmax())]

    @cached_property
    def _shares(self) -> Array:
        """The weights of the members whose noise is known, adding up to 1; those of all if none is."""
        known = np.array([np.isfinite(np.asarray(member.noise.variance)) for member in self.members])
        return shares(self.weights, np.broadcast_to(known, self.weights.shape))

    def _mean_of(self, values: list[Array]) -> Array:
        """Return the mean of values of the members; a member without a share adds nothing."""
        all_values = np.stack([np.asarray(value) for value in values])
        w = self._shares.reshape(*self._shares.shape, *[1] * (all_values.ndim - self._shares.ndim))
        with np.errstate(invalid="ignore"):
            found: Array = np.where(w > 0, w * all_values, 0.0).sum(axis=0)
        return found

    def _spread_of(self, values: list[Array], stds: list[Array]) -> tuple[Array, Array]:
        """Return the mean and the standard deviation of a mixture, by the law of total variance."""
        mean = self._mean_of(values)
        pairs = zip(values, stds, strict=True)
        return mean, np.sqrt(self._mean_of([np.asarray(s) ** 2 + (value - mean) ** 2 for value, s in pairs]))

    def _of(self, read: Callable[[Belief], Any]) -> list[Any]:
        return [read(member) for member in self.members]

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def design(self) -> Design:
        """That of the heaviest member; the members differ in their centres."""
        return self._heaviest.design

    @property
    def posterior(self) -> Posterior:
        """That of the heaviest member, for what has no mean: the likelihood and its parameters."""
        return self._heaviest.posterior

    @property
    def predicts(self) -> bool:
        return any(member.predicts for member in self.members)

    @property
    def targets(self) -> int | None:
        return self.members[0].targets

    @property
    def converged(self) -> bool:
        return self.predicts and all(member.converged for member in self.members if member.predicts)

    @property
    def message(self) -> str:
        return "" if self.predicts else self.members[0].message

    @property
    def alpha(self) -> float:
        """The weight of the penalty as given, or as chosen by the heaviest member."""
        return self._heaviest.alpha

    @property
    def alpha_limit(self) -> float | None:
        return self._heaviest.alpha_limit

    @property
    def column_std(self) -> Array | None:
        return self.members[0].column_std  # that forgets nothing

    @property
    def targets_outside(self) -> float:
        return self.members[0].targets_outside

    @property
    def n_outliers(self) -> float | None:
        return self._heaviest.n_outliers

    @cached_property
    def noise(self) -> Noise:
        found = self._of(lambda member: member.noise)
        variance, heaviest = self._mean_of([one.variance for one in found]), self._heaviest.noise
        dof = self._harmonic([one.dof for one in found])
        return replace(heaviest, variance=variance[()], dof=dof[()])

    def _harmonic(self, dofs: list[Any]) -> Array:
        """Return the harmonic mean of degrees of freedom, shape () or (k,)."""
        shape = self.weights.shape[1:]
        dofs = [np.asarray(dof, float) for dof in dofs]  # clusters have one for each coefficient, and of each class
        dofs = [dof.min(axis=tuple(range(len(shape), dof.ndim))) for dof in dofs]
        with np.errstate(divide="ignore"):
            found: Array = 1 / self._mean_of([1 / np.broadcast_to(np.asarray(dof, float), shape) for dof in dofs])
        return found

    @cached_property
    def coef(self) -> Array:
        return self._mean_of(self._of(lambda member: member.coef))

    @cached_property
    def intercept(self) -> Array:
        return self._mean_of(self._of(lambda member: member.intercept))

    @cached_property
    def coef_std(self) -> Array:
        return self._spread_of(self._of(lambda member: member.coef), self._of(lambda member: member.coef_std))[1]

    @cached_property
    def intercept_std(self) -> Array:
        pairs = self._of(lambda member: member.intercept), self._of(lambda member: member.intercept_std)
        return self._spread_of(*pairs)[1]

    @cached_property
    def covariance(self) -> Array:
        apart = [coef - self.coef for coef in self._of(lambda member: member.coef)]
        covariances = self._of(lambda member: member.covariance)
        return self._mean_of(
            [C + far[..., :, None] * far[..., None, :] for C, far in zip(covariances, apart, strict=True)]
        )

    @property
    def why_no_std(self) -> str:
        return self.members[0].why_no_std

    @property
    def interval_doubt(self) -> str:
        return self._heaviest.interval_doubt

    @property
    def debiased(self) -> bool:
        return self.members[0].debiased

    def determined(self, penalised: bool) -> Array:
        found: Array = np.all(self._of(lambda member: member.determined(penalised)), axis=0)
        return found

    def coef_estimate(self, penalised: bool) -> Estimate:
        found: list[Estimate] = self._of(lambda member: member.coef_estimate(penalised))
        value, std = self._spread_of([one.value for one in found], [one.std for one in found])
        return Estimate(value, std, self._harmonic([one.dof for one in found])[()], np.full_like(std, np.nan))

    def intercept_estimate(self, penalised: bool) -> Student:
        found: list[Student] = self._of(lambda member: member.intercept_estimate(penalised))
        value, std = self._spread_of([one.mean for one in found], [one.std for one in found])
        return Student(value, std, self._harmonic([one.dof for one in found])[()])

    def mean(self, X: Any) -> Array:
        if self.settings.likelihood.location and isinstance(self.members[0], LinearBelief):
            return self._mean_of_rows(self._of(lambda member: member.mean(X)))
        return self.predict(X).mean

    def predict(
        self, X: Array, sigma: Any = None, offset: Array | None = None, left_open: Array | None = None
    ) -> Predictive:
        return mixed(self._of(lambda member: member.predict(X, sigma, offset, left_open)), self.weights)

    def output(self, X: Array, offset: Array | None = None) -> Array:
        return self._mean_of_rows(self._of(lambda member: member.output(X, offset)))

    def _mean_of_rows(self, values: list[Array]) -> Array:
        """Return the mean of values of the members for rows, shape (n,) or (n, k)."""
        w, all_values = self._shares, np.stack(values)
        found: Array = (w.reshape(len(w), 1, *w.shape[1:], *[1] * (all_values.ndim - 1 - w.ndim)) * all_values).sum(0)
        return found

    def log_odds(self, X: Array, offset: Array | None = None, left_open: Array | None = None) -> Array:
        logs = np.log(p := self.predict(X, None, offset, left_open).mean)
        with np.errstate(divide="ignore"):
            found: Array = logs - np.log1p(-p) if p.ndim == 1 else logs - logs.mean(axis=-1, keepdims=True)
        return found

    def probability_std(self, X: Array, offset: Array | None = None, left_open: Array | None = None) -> Array:
        each = self._of(lambda member: member.predict(X, None, offset, left_open).mean)
        stds = self._of(lambda member: member.probability_std(X, offset, left_open))
        mean = self._mean_of_rows(each)
        pairs = zip(each, stds, strict=True)
        return np.sqrt(self._mean_of_rows([s**2 + (p - mean) ** 2 for p, s in pairs]))

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draw n times from the mixture: first the member, for each target, then the coefficients."""
        columns = self._shares.reshape(len(self.members), -1)
        chosen = np.stack([rng.choice(len(self.members), size=n, p=w / w.sum()) for w in columns.T], axis=1)
        coef, intercept = np.zeros((n, *self.coef.shape)), np.zeros((n, *self.intercept.shape))
        for k in np.unique(chosen):
            some = np.flatnonzero((chosen == k).any(axis=1))
            c, i = self.members[k].sample(len(some), rng)
            here = chosen[some] == k  # (rows, targets)
            if self.targets is None:
                coef[some], intercept[some] = c, i
            else:
                coef[some] = np.where(here[..., None], c, coef[some])
                intercept[some] = np.where(here, i, intercept[some])
        return coef, intercept
