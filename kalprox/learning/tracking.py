"""What a learner keeps of the rows it predicts: the score, the quantiles of conformal intervals, and change points."""

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, Sizes, expect, leaf, state
from kalprox.calibration import Calibration, calibration_for
from kalprox.calibration.missingness import Informative, Missingness
from kalprox.kernel.library import kernel
from kalprox.kernel.scores import move_quantiles
from kalprox.learning.belief import Belief
from kalprox.learning.change_points import ChangeDetector
from kalprox.learning.innovations import Innovations, common
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.sources import Block

INTERVALS = ("gaussian", "conformal")  # the kinds of predictive intervals
CONFORMAL_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # of the intervals that are tracked
_SLOWEST = 0.02  # the step never gets smaller, so that the quantiles follow a stream that changes
_DECAY = 0.6
_FARTHEST = 2.0  # how far a block can move a quantile, in stds, if it misses all its rows
_SHARED = 0.25  # the exponent of the number of rows whose intervals share one quantile


@state
class Quantiles:
    """The tracked quantiles of the standardised errors z = (y - mean) / std, for each level and each side.

    An interval is mean - low * std to mean + high * std. For a level 1 - a, each side may be missed by a share a / 2 of
    the rows. After the rows of a block have come, each of its two quantiles q becomes

        q + eta * sum over the rows of (miss - a / 2),

    where a miss is an observation beyond the end of the interval that was issued before the block. Over a whole stream
    the sum of eta * (miss - a / 2) is therefore the last q minus the first: with a constant eta the share of misses
    differs from a / 2 by (q_last - q_first) / (eta rows), for any sequence of observations and any model. The step eta
    of one row is max(rows^-0.6, 0.02). That of a block of b rows, whose intervals share one q, is divided by b^0.25,
    and at most 2 / b.

    Attributes
    ----------
    ends : array of shape (levels, 2) or (levels, 2, k)
        (low, high) for each of `CONFORMAL_LEVELS`. The first ones are those of the normal distribution.
    rows : float
        The number of rows whose intervals were compared with their observations.
    missed : array of the shape of ends
        The numbers of these rows below and above the intervals that were issued for them.

    References
    ----------
    A. Angelopoulos, E. Candes and R. Tibshirani, "Conformal PID control for time series prediction", 2023, which tracks
    a quantile by its misses in the same way.

    Examples
    --------
    >>> quantiles = Quantiles.normal(None)
    >>> for z in np.random.default_rng(0).standard_t(3, size=2000):
    ...     quantiles = quantiles.after(np.array([z]))
    >>> low, high = quantiles.of(0.9)
    >>> bool(1.7 < low < 3.0 and 1.7 < high < 3.0)  # the quantile of Student's t with 3 degrees of freedom is 2.35
    True
    """

    ends: Array = leaf("5,2,k")
    rows: float = leaf(sign="nonnegative")
    missed: Array = leaf("5,2,k")

    @classmethod
    def normal(cls, targets: int | None) -> "Quantiles":
        """Return the quantiles of the normal distribution, from which the tracking starts."""
        q = special.ndtri((1 + np.array(CONFORMAL_LEVELS)) / 2)
        shape = (len(q), 2) if targets is None else (len(q), 2, targets)
        ends = np.broadcast_to(q.reshape(-1, *[1] * (len(shape) - 1)), shape).copy()
        return cls(ends, 0.0, np.zeros(shape))

    def after(self, z: Array, counts: Array | None = None) -> "Quantiles":
        """Return the quantiles after a block of rows whose intervals were issued together.

        Parameters
        ----------
        z : array of shape (b,) or (b, k)
            The standardised errors. Rows with NaN had no interval, and do not count. Neither do rows with an infinite
            one, whose std was 0: no multiple of it would have covered them.
        counts : array of shape (b,), optional
            How often each row counts; 1 by default.

        Returns
        -------
        Quantiles
        """
        return self.after_rows(z, np.full(len(z), len(z)), counts)

    def _after_batch(self, z: Array, counts: Array | None) -> "Quantiles":
        known = np.isfinite(z) if z.ndim == 1 else np.isfinite(z).all(axis=1)
        weights = known if counts is None else np.where(known, counts, 0)
        rows = float(weights.sum())
        if rows == 0:
            return self
        low, high = self.ends[:, 0, None], self.ends[:, 1, None]  # (levels, 1) or (levels, 1, k)
        w = weights[:, None] if z.ndim == 2 else weights
        missed = np.stack([(w * (-z[None] > low)).sum(axis=1), (w * (z[None] > high)).sum(axis=1)], axis=1)
        allowed = rows * _SIDES.reshape(-1, *[1] * (missed.ndim - 1))
        ends = self.ends + _step(self.rows, rows) * (missed - allowed)
        return Quantiles(ends, self.rows + rows, self.missed + missed)

    def after_rows(self, z: Array, together: Array, counts: Array | None = None) -> "Quantiles":
        """Return the quantiles after consecutive batches, with the bits that `after` gives for one after the other.

        `together` is the length of the batch that each row came in, 0 if no interval was issued for it. For the other
        parameters see `after`.
        """
        if z.ndim == 1 and kernel() is not None:
            return self._moved(z, counts, together)
        quantiles, i = self, 0
        while i < len(together):
            size = max(int(together[i]), 1)
            if together[i]:
                quantiles = quantiles._after_batch(z[i : i + size], None if counts is None else counts[i : i + size])
            i += size
        return quantiles

    def _moved(self, z: Array, counts: Array | None, together: Array) -> "Quantiles":
        """Return what `after_rows` says of one target, from the compiled kernel."""
        shape, size = self.ends.shape, self.ends.size
        vector = np.concatenate([self.ends.ravel(), [self.rows], self.missed.ravel()])
        rows = np.empty((3, len(z)))
        rows[0], rows[1], rows[2] = z, 1.0 if counts is None else counts, together
        move_quantiles(vector, rows, _STEPS)
        return Quantiles(vector[:size].reshape(shape), float(vector[size]), vector[size + 1 :].reshape(shape))

    def merge(self, other: "Quantiles") -> "Quantiles":
        """Return the mean of both, weighted by their rows, which is about what tracking all rows would give."""
        rows = self.rows + other.rows
        share = other.rows / rows if rows else 0.0
        return Quantiles(self.ends + share * (other.ends - self.ends), rows, self.missed + other.missed)

    @property
    def coverage(self) -> Array:
        """The share of the rows inside the intervals issued for them, for each level; (levels,) or (levels, k)."""
        return 1 - self.missed.sum(axis=1) / self.rows if self.rows else np.full_like(self.missed.sum(axis=1), np.nan)

    def of(self, level: float) -> tuple[Array, Array]:
        """Return the lower and the upper quantile of the interval of this level, numbers or of shape (k,)."""
        for known, (low, high) in zip(CONFORMAL_LEVELS, self.ends, strict=True):
            if abs(known - level) < 1e-9:
                return low, high
        raise ValueError(
            f"level must be one of {', '.join(map(str, CONFORMAL_LEVELS))} for conformal intervals, whose quantiles "
            f"are tracked while learning; got {level!r}."
        )


_SIDES = (1 - np.array(CONFORMAL_LEVELS)) / 2
_STEPS = np.array([*_SIDES, _SLOWEST, _DECAY, _SHARED, _FARTHEST])  # as the kernel takes them


def _step(before: float, rows: float) -> float:
    """Return eta for a block of this many rows after `before` others."""
    return float(min(max((before + rows) ** -_DECAY, _SLOWEST) / rows**_SHARED, _FARTHEST / rows))


_GAUSSIAN = Gaussian()
# A prediction is not scored if its noise has fewer degrees of freedom, and it is wider than so many stds of the noise.
_FEWEST_DOF, _WIDEST = 8, 3.0


@state
class Tracking:
    """The prequential score of each target, the tracked quantiles, and the change points.

    Attributes
    ----------
    scores : tuple of Calibration
        One for each target, since the order of the rows of one target matters; one for all classes of a target.
    quantiles : Quantiles
        Of the errors of numbers and counts, in units of their std. Classes have no intervals: nothing is tracked.
    not_judged : str
        Why rows were learned that were not scored; empty if there were none.
    detector : ChangeDetector or None
        What finds change points, if the settings ask for them.
    missingness : Missingness or None
        The errors of rows with and without gaps, if features may be missing.
    """

    scores: tuple[Calibration, ...]
    quantiles: Quantiles
    not_judged: str = ""
    detector: ChangeDetector | None = None
    missingness: Missingness | None = None

    @classmethod
    def none(cls, targets: int | None = None, not_judged: str = "", likelihood: Likelihood = _GAUSSIAN) -> "Tracking":
        """Return the tracking of no rows, of which the likelihood has so many targets."""
        score = calibration_for(likelihood)
        targets = None if score.of_whole_rows else targets
        return cls((score,) * (targets or 1), Quantiles.normal(targets), not_judged)

    @property
    def score(self) -> Calibration:
        """The score of all targets together."""
        changes = None if self.detector is None else self.detector.changes
        missingness = None if (informative := self.informative) is None else informative.check()
        targets = self.scores if len(self.scores) > 1 else ()
        told = [one for one in self.scores if float(one.rows) or float(one.undetermined)]
        whole = reduce(lambda one, other: one.merge(other), told or self.scores[:1])
        about: dict[str, Any] = {"changes": changes, "targets": targets, "missingness": missingness}
        return replace(whole, not_judged=self.not_judged or whole.not_judged, **about)

    @property
    def informative(self) -> Informative | None:
        """The feature whose gaps say most about the target; None if there are too few to say."""
        if self.missingness is None:
            return None
        return self.missingness.informative(max(score.dependence.long_run for score in self.scores))

    def watched(self, block: Block, belief: Belief, rows: int, *, first: bool = True) -> "Tracking":
        """Return the tracking after change points were looked for in a block, if the settings ask for it.

        `rows` is the number of rows learned before those that `belief` lacks. The block is the first part of them if
        `first`.
        """
        if belief.settings.change_points is None:
            return self if self.detector is None else replace(self, detector=None)
        if block.y.ndim > 1:
            check(belief.settings, way="targets")
        detector = self.detector or ChangeDetector.start(belief.settings, block.X.shape[1], rows)
        return replace(self, detector=detector.after(block, belief, first=first))

    def with_features(self, settings: Settings, d: int) -> "Tracking":
        """Return the tracking of a model of d features, which had fewer; change points are looked for anew."""
        missingness = self.missingness and self.missingness.with_features(d)
        if (before := self.detector) is None:
            return replace(self, missingness=missingness)
        after = ChangeDetector.start(settings, d, before.rows)
        detector = replace(after, points=before.points, found=before.found)
        return replace(self, detector=detector, missingness=missingness)

    def scored(self, settings: Settings, block: Block, found: Innovations, counts: Array | None = None) -> "Tracking":
        """Return the tracking with the scores of more rows, which come after those scored before.

        Parameters
        ----------
        settings : Settings
            Those with which the rows were predicted.
        block : Block
        found : Innovations
        counts : array of shape (b,), optional
            How often each row counts; 1 by default.

        Notes
        -----
        With a penalty, predictions whose noise has fewer than 8 degrees of freedom, and is less than a ninth of their
        variance, are not scored: with about as many coefficients as rows, the noise is known only if the penalty is
        right.
        """
        X, y = block.X, block.y
        if settings.fills_gaps:
            before = self.missingness or Missingness(slopes=settings.missing == "marginalize")
            after = before.after(found.mean, found.std, y, counts, block.missing, X.shape[1])
            self = replace(self, missingness=after)
        if settings.likelihood.predictive is None:
            return self
        if self.scores[0].of_whole_rows:
            return replace(self, scores=(self.scores[0].update(found.mean, found.std, y, weights=counts, X=X),))
        if settings.penalty.penalises and found.given is None:
            found = _with_known_noise(found)
        columns = (np.reshape(a, (len(y), -1)).T for a in (found.mean, found.std, y, found.dof))
        targets, given = zip(self.scores, *columns, strict=True), found.given
        if given is not None:
            scores = tuple(
                score.update_given(mean, std, target, given.of_target(j), counts, X)
                for j, (score, mean, std, target, _) in enumerate(targets)
            )
            return replace(self, scores=scores)
        scores = tuple(
            score.update(mean, common(std), target, common(dof), counts, found.together, X)
            for score, mean, std, target, dof in targets
        )
        return replace(self, scores=scores)

    def issued(self, z: Array, together: Array, counts: Array | None = None) -> "Tracking":
        """Return the tracking after batches with these standardised errors of the intervals that were issued for them.

        `together` is the length of the batch that each row came in; see `Quantiles.after_rows`.
        """
        if not self.scores[0].has_intervals:
            return self
        return replace(self, quantiles=self.quantiles.after_rows(z, together, counts))

    def merge(self, other: "Tracking") -> "Tracking":
        """Return the tracking of both streams."""
        scores = tuple(mine.merge(theirs) for mine, theirs in zip(self.scores, other.scores, strict=True))
        not_judged, missingness = self.not_judged or other.not_judged, self.missingness or other.missingness
        if self.missingness is not None and other.missingness is not None:
            missingness = self.missingness.merge(other.missingness)
        return Tracking(scores, self.quantiles.merge(other.quantiles), not_judged, missingness=missingness)

    # ---- saving ----------------------------------------------------------------------------------------

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> "Tracking":
        """Return the tracking that was saved under `name`."""
        none = cls.none(sizes["k"], likelihood=settings.likelihood)
        about = {key: getattr(none.scores[0], key) for key in ("predictive", "not_judged")}
        kind, places = type(none.scores[0]), range(len(none.scores))
        scores = tuple(saved.tree(kind, f"{name}.scores.{j}", sizes, **about) for j in places)
        return saved.tree(cls, name, sizes, scores=scores)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless the errors of rows with gaps are those of as many features."""
        if self.missingness is not None:
            sums = self.missingness.sums
            expect(len(sums) in (0, 1 + (sizes["d"] or 0)) and (sums[..., [0, 2, 5, 7]] >= 0).all())


def _with_known_noise(found: Innovations) -> Innovations:
    """Return the innovations, with those that `Tracking.scored` does not score as unknown."""
    hidden = (found.dof < _FEWEST_DOF) & (found.scale > _WIDEST)
    if not hidden.any():
        return found
    changed: dict[str, Any] = {"mean": (np.nan, found.mean), "std": (np.inf, found.std), "dof": (np.inf, found.dof)}
    changed = {name: np.where(hidden, *values) for name, values in changed.items()}
    return found._replace(**changed)
