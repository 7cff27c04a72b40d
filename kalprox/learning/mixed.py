"""What a mixture of beliefs says: its predictions, and the moments of its coefficients."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import state
from kalprox.learning.bank_weights import ForgetWeights, Odds, WeightRecord
from kalprox.learning.belief import Belief, Facts
from kalprox.learning.design import Design
from kalprox.learning.errors import Errors, Estimate
from kalprox.learning.linear import LinearBelief
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.predictive import Predictive, mixed
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

    def mean_of(self, values: list[Array], *, rows: bool = False) -> Array:
        """Return the mean of values of the members; a member without a share adds nothing.

        If they are those of `rows`, their first axis is that of the rows, and the next one that of the targets.
        """
        all_values, w = np.stack([np.asarray(value) for value in values]), self._shares
        w = w.reshape(len(w), *[1] * rows, *w.shape[1:], *[1] * (all_values.ndim - w.ndim - rows))
        with np.errstate(invalid="ignore"):
            found: Array = np.where(w > 0, w * all_values, 0.0).sum(axis=0)
        return found

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
    def converged(self) -> bool:
        return self.predicts and all(member.converged for member in self.members if member.predicts)

    @property
    def message(self) -> str:
        return "" if self.predicts else self.members[0].message

    @cached_property
    def facts(self) -> Facts:
        """Those of the heaviest member; what does not depend on forgetting, of the first, which forgets nothing."""
        first = self.members[0].facts
        return self._heaviest.facts._replace(column_std=first.column_std, targets_outside=first.targets_outside)

    @cached_property
    def noise(self) -> Noise:
        found = [member.noise for member in self.members]
        variance, heaviest = self.mean_of([one.variance for one in found]), self._heaviest.noise
        dof = _harmonic(self, [one.dof for one in found])
        return replace(heaviest, variance=variance[()], dof=dof[()])

    @cached_property
    def coef(self) -> Array:
        return self.mean_of([member.coef for member in self.members])

    @cached_property
    def intercept(self) -> Array:
        return self.mean_of([member.intercept for member in self.members])

    def errors(self, *, penalised: bool = True) -> "MixedErrors":
        return MixedErrors(self, penalised)

    @property
    def why_no_std(self) -> str:
        return self.members[0].why_no_std

    @property
    def interval_doubt(self) -> str:
        return self._heaviest.interval_doubt

    @property
    def debiased(self) -> bool:
        return self.members[0].debiased

    def mean(self, X: Any) -> Array:
        if self.settings.likelihood.location and isinstance(self.members[0], LinearBelief):
            return self.mean_of([member.mean(X) for member in self.members], rows=True)
        return self.predict(X).mean

    def predict(
        self, X: Array, sigma: Any = None, offset: Array | None = None, left_open: Array | None = None
    ) -> Predictive:
        return mixed([member.predict(X, sigma, offset, left_open) for member in self.members], self.weights)

    def output(self, X: Array, offset: Array | None = None) -> Array:
        return self.mean_of([member.output(X, offset) for member in self.members], rows=True)

    def log_odds(self, X: Array, offset: Array | None = None, left_open: Array | None = None) -> Array:
        logs = np.log(p := self.predict(X, None, offset, left_open).mean)
        with np.errstate(divide="ignore"):
            found: Array = logs - np.log1p(-p) if p.ndim == 1 else logs - logs.mean(axis=-1, keepdims=True)
        return found

    def probability_std(self, X: Array, offset: Array | None = None, left_open: Array | None = None) -> Array:
        each = [member.predict(X, None, offset, left_open).mean for member in self.members]
        stds = [member.probability_std(X, offset, left_open) for member in self.members]
        return _spread_of(self, each, stds, rows=True)[1]

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draw n times from the mixture: first the member, for each target, then the coefficients."""
        columns = self._shares.reshape(len(self.members), -1)
        chosen = np.stack([rng.choice(len(self.members), size=n, p=w / w.sum()) for w in columns.T], axis=1)
        coef, intercept = np.zeros((n, *self.coef.shape)), np.zeros((n, *self.intercept.shape))
        for k in np.unique(chosen):
            some = np.flatnonzero((chosen == k).any(axis=1))
            c, i = self.members[k].sample(len(some), rng)
            here = chosen[some] == k  # (rows, targets)
            if self.weights.ndim == 1:
                coef[some], intercept[some] = c, i
            else:
                coef[some] = np.where(here[..., None], c, coef[some])
                intercept[some] = np.where(here, i, intercept[some])
        return coef, intercept


def _spread_of(
    mixture: MixedBelief, values: list[Array], stds: list[Array], *, rows: bool = False
) -> tuple[Array, Array]:
    """Return the mean and the standard deviation of a mixture, by the law of total variance."""
    mean = mixture.mean_of(values, rows=rows)
    pairs = zip(values, stds, strict=True)
    return mean, np.sqrt(mixture.mean_of([np.asarray(s) ** 2 + (value - mean) ** 2 for value, s in pairs], rows=rows))


def _harmonic(mixture: MixedBelief, dofs: list[Any]) -> Array:
    """Return the harmonic mean of degrees of freedom, shape () or (k,)."""
    shape = mixture.weights.shape[1:]
    dofs = [np.asarray(dof, float) for dof in dofs]  # clusters have one for each coefficient, and of each class
    dofs = [dof.min(axis=tuple(range(len(shape), dof.ndim))) for dof in dofs]
    with np.errstate(divide="ignore"):
        found: Array = 1 / mixture.mean_of([1 / np.broadcast_to(np.asarray(dof, float), shape) for dof in dofs])
    return found


class MixedErrors(Errors):
    """The standard errors of a mixture.

    Parameters
    ----------
    belief : MixedBelief
    penalised : bool
        Whether they are those with the penalty.
    """

    def __init__(self, belief: MixedBelief, penalised: bool) -> None:
        self.mixed, self.members, self.penalised = belief, belief.members, penalised

    def covariance(self) -> Array:
        covariances = []
        for member in self.members:
            far = member.coef - self.mixed.coef
            covariances.append(member.covariance + far[..., :, None] * far[..., None, :])
        return self.mixed.mean_of(covariances)

    def coef_std(self) -> Array:
        return _spread_of(self.mixed, [one.coef for one in self.members], [one.coef_std for one in self.members])[1]

    def coef(self) -> Estimate:
        found = [member.coef_estimate(self.penalised) for member in self.members]
        value, std = _spread_of(self.mixed, [one.value for one in found], [one.std for one in found])
        dof = _harmonic(self.mixed, [one.dof for one in found])[()]
        return Estimate(value, std, dof, np.full_like(std, np.nan))

    def determined(self) -> Array:
        found: Array = np.all([member.determined(self.penalised) for member in self.members], axis=0)
        return found

    def intercept_std(self) -> Array:
        values, stds = [one.intercept for one in self.members], [one.intercept_std for one in self.members]
        return _spread_of(self.mixed, values, stds)[1]

    def intercept(self) -> tuple[Array, Array, Array]:
        found = [member.intercept_estimate(self.penalised) for member in self.members]
        value, std = _spread_of(self.mixed, [one.mean for one in found], [one.std for one in found])
        return value, std, _harmonic(self.mixed, [one.dof for one in found])[()]
