"""What a learner keeps of the rows it predicts: the score, the quantiles of conformal intervals, and change points."""

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, Sizes, expect, state
from kalprox.calibration import Calibration, calibration_for
from kalprox.calibration.missingness import Informative, Missingness
from kalprox.learning.belief import Belief
from kalprox.learning.change_points import ChangeDetector
from kalprox.learning.innovations import Innovations, common
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.sources import Block

__all__ = ["Tracking"]

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
