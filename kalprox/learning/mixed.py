"""What a mixture of beliefs says, the weights of its members, and how predictions move these."""

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Sizes, expect, leaf, state
from kalprox.learning.belief import Belief, Facts
from kalprox.learning.design import Design
from kalprox.learning.errors import Errors, Estimate
from kalprox.learning.linear import LinearBelief
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.predictive import Predictive, mixed
from kalprox.predictive.mixture import shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes


RATES = (0.0001, 0.001, 0.01, 0.1)  # the shares of the probability that are divided equally after every row
SHARE_OF_RATES = 0.0001
_MOST = 256  # points of a record


class ForgetWeights(NamedTuple):
    """How the weights of the ways to forget have moved along a stream, with forget="auto".

    Attributes
    ----------
    rows : array of shape (m,)
        The number of rows learned at each point: at most 257 points, at equal distances but for the last, which is now.
    names : tuple of str
        The K ways to forget.
    weights : array of shape (m, K), or (m, K, k) if y has k columns
        The probability of each after these rows. It is what mixes the predictions of the next one.

    Examples
    --------
    >>> from kalprox import KalproxRegressor
    >>> X = np.arange(40.0)[:, None] % 7
    >>> found = KalproxRegressor(forget="auto").fit(X, X[:, 0]).forget_weights_
    >>> found.names[:2], found.weights.shape == (len(found.rows), len(found.names))
    (('none', '0.9995'), True)
    """

    rows: Array
    names: tuple[str, ...]
    weights: Array

    def plot(self, ax: "Axes | None" = None, *, target: int | None = None) -> "Axes":
        """Draw the weights along the stream, stacked.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made.
        target : int, optional
            The target whose weights are drawn, if y has several columns. It must be given then.

        Returns
        -------
        Axes

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> X = np.arange(40.0)[:, None] % 7
        >>> ax = KalproxRegressor(forget="auto").fit(X, X[:, 0]).forget_weights_.plot()
        >>> ax.get_xlabel()
        'rows'
        """
        from kalprox.display.axes import axes_for
        from kalprox.display.plots import stacked

        weights = self.weights
        if weights.ndim == 3:
            if target is None:
                raise ValueError(
                    f"y has {weights.shape[2]} columns, which have weights of their own: set target=0, 1, ..."
                )
            weights = weights[:, :, target]
        ax = axes_for(ax)
        stacked(ax, self.rows, weights, self.names, "weight")
        return ax


@state
class WeightRecord:
    """The weights after every `stride` rows. When there are more than 256 points, every other one is dropped.

    Which rows are recorded depends on their number alone, and not on how they were divided into batches.

    Attributes
    ----------
    n : int
        The number of rows so far.
    stride : int
    rows : array of shape (m,)
    weights : array of shape (m, K) or (m, K, k)
    """

    n: int
    stride: int
    rows: Array = leaf("n", sign="nonnegative")
    weights: Array = leaf("n,K,k", sign="nonnegative")

    @classmethod
    def start(cls, weights: Array) -> "WeightRecord":
        """Return the record before the first row."""
        return cls(0, 1, np.zeros(1), weights[None])

    def after(self, weights: Array, learned: Array | None) -> "WeightRecord":
        """Return the record after more rows, given the weights after each of them, shape (b, K) or (b, K, k).

        `learned` says which rows count: those of weight 0 are no rows. All by default.
        """
        weights = weights if learned is None else weights[learned]
        numbers = self.n + 1.0 + np.arange(len(weights))
        rows, stride = self.rows, self.stride
        while len(rows) + (self.n + len(weights)) // stride - self.n // stride > _MOST:
            stride *= 2
            rows = self.rows[self.rows % stride == 0]
        new, old = numbers % stride == 0, self.rows % stride == 0
        return WeightRecord(
            self.n + len(weights),
            stride,
            np.concatenate([self.rows[old], numbers[new]]),
            np.concatenate([self.weights[old], weights[new]]),
        )

    def read(self, names: tuple[str, ...], now: Array) -> ForgetWeights:
        """Return the record for reading, with the weights as they are now in the end."""
        if self.rows[-1] == self.n:
            return ForgetWeights(self.rows, names, self.weights)
        return ForgetWeights(np.append(self.rows, self.n), names, np.concatenate([self.weights, now[None]]))

    def _check_restored(self, _: Sizes) -> None:
        """Raise a ValueError if this cannot be a record."""
        expect(self.stride >= 1 and 1 <= len(self.rows) <= _MOST and (self.weights <= 1).all())
        expect((np.diff(self.rows) > 0).all() and self.rows[-1] <= self.n)


@state
class Odds:
    """The probability of each member of a bank, jointly with that of the rate at which the best member changes.

    After every row the probability of a member is multiplied by what the member had predicted for the row: a
    probability, or a density. Then, for each rate, that share of the probability is divided equally among the members,
    so that none is ever lost (fixed share [1]_). The rates are mixed in the same way, with a small share of their own.
    A member that makes no claim about a row keeps its probability, as if it had said what the mixture of the others
    did [2]_.

    For K members, M rates of which r is the smallest, and s the share of the rates, the log score of the mixture over n
    rows is at least that of any one member less

        log(K M) - (n - 1) log((1 - r + r / K) (1 - s + s / M)),

    which is 3.5 + 0.00016 n for K = 8; if the members predict equally well, the loss is nothing.

    Attributes
    ----------
    joint : array of shape (M, K) or (M, K, k)
        Adds up to 1 over the first two axes.

    References
    ----------
    .. [1] M. Herbster, M. K. Warmuth, "Tracking the best expert", Machine Learning 32, 1998.
    .. [2] Y. Freund, R. E. Schapire, Y. Singer, M. K. Warmuth, "Using and combining predictors that specialize", STOC
       1997.
    """

    joint: Array = leaf("4,K,k", sign="nonnegative")

    def _check_restored(self, _: Sizes) -> None:
        """Raise a ValueError unless the probabilities add up to 1."""
        expect(np.allclose(self.weights.sum(axis=0), 1))

    @classmethod
    def equal(cls, members: int, targets: int | None) -> "Odds":
        """Return equal probabilities."""
        shape = (len(RATES), members) if targets is None else (len(RATES), members, targets)
        return cls(np.full(shape, 1 / (len(RATES) * members)))

    @property
    def weights(self) -> Array:
        """The probability of each member, shape (K,) or (K, k)."""
        found: Array = self.joint.sum(axis=0)
        return found

    def after(self, log_prob: Array, claims: Array, counts: Array | None) -> tuple["Odds", Array]:
        """Return the odds after a block, and the weights before each of its rows and after the last.

        A row that counts n times moves them as n rows of which none was learned in between; one of weight 0 does not.
        O(b M^2 K^2).

        Parameters
        ----------
        log_prob : array of shape (K, b) or (K, b, k)
            The log of the probability or density that each member had predicted for the row that came.
        claims : bool array of the same shape
            Which of them are claims.
        counts : array of shape (b,), optional
            How often each row counts; 1 by default.

        Returns
        -------
        odds : Odds
        weights : array of shape (b + 1, K) or (b + 1, K, k)
        """
        M, K, *targets = self.joint.shape
        b, w = log_prob.shape[1], self.joint.reshape(M * K, *targets)
        path = np.empty((b + 1, M * K, *targets))
        path[0] = w
        if counts is not None:
            each = counts.reshape(b, *[1] * len(targets))
            log_prob, claims = log_prob * each, claims & (each > 0)
        logs = np.where(claims, log_prob, -np.inf)
        most = logs.max(axis=0)
        judged = np.isfinite(most)  # by one member at least
        p = np.moveaxis(np.exp(logs - np.where(judged, most, 0.0)), 1, 0)
        p, claims = (np.tile(a, (1, M, *[1] * len(targets))) for a in (p, np.moveaxis(claims, 1, 0)))
        simple, shared = bool(claims.all() and judged.all()), _sharing(K, 1.0)
        for i in range(b):
            shared = shared if counts is None else _sharing(K, float(counts[i]))
            said = p[i]
            if not simple:  # who makes no claim has said what the mixture of the others did
                mass, total = np.where(claims[i], w, 0.0).sum(axis=0), (w * said).sum(axis=0)
                said = np.where(claims[i], said, total / np.where(mass > 0, mass, 1.0))
            after = shared @ (w * said)
            total = after.sum(axis=0)
            w = after / total if simple else np.where(judged[i], after / np.where(judged[i], total, 1.0), w)
            path[i + 1] = w
        return Odds(w.reshape(self.joint.shape)), path.reshape(b + 1, M, K, *targets).sum(axis=1)


@lru_cache(maxsize=64)
def _sharing(members: int, count: float) -> Array:
    """Return the matrix that shares joint probabilities, as a vector of M K, among members and rates after a row."""
    M = len(RATES)
    left, left_of_rates = (1 - np.array(RATES)) ** count, (1 - SHARE_OF_RATES) ** count
    within = np.zeros((M, members, M, members))
    for m in range(M):
        within[m, :, m] = left[m] * np.eye(members) + (1 - left[m]) / members
    among = left_of_rates * np.eye(M) + (1 - left_of_rates) / M
    found: Array = np.einsum("ml,lkno->mkno", among, within).reshape(M * members, M * members)
    return found


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
    first, pairs = values[0], zip(values, stds, strict=True)  # about it, equal members have no spread
    mean = first + mixture.mean_of([value - first for value in values], rows=rows)
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
