"""What a learner keeps of its innovations: the prequential score and the quantiles of conformal intervals."""

from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.calibration import Calibration, calibration_for
from kalprox.calibration.sequence import FIRST_LENGTH
from kalprox.learning.innovations import Innovations, common
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.saved import Saved, expect
from kalprox.likelihoods import Gaussian, Likelihood

__all__ = ["Tracking"]

_GAUSSIAN = Gaussian()


@dataclass(frozen=True, eq=False)
class Tracking:
    """The prequential score of each target, and the tracked quantiles.

    Attributes
    ----------
    scores : tuple of Calibration
        One for each target, since the order of the rows of one target matters; one for all classes of a target.
    quantiles : Quantiles
        Of the errors of numbers and counts, in units of their std. Classes have no intervals: nothing is tracked.
    not_judged : str
        Why rows were learned that were not scored; empty if there were none.
    """

    scores: tuple[Calibration, ...]
    quantiles: Quantiles
    not_judged: str = ""

    @classmethod
    def none(cls, targets: int | None = None, not_judged: str = "", likelihood: Likelihood = _GAUSSIAN) -> "Tracking":
        """Return the tracking of no rows, of which the likelihood has so many targets."""
        score = calibration_for(likelihood)
        targets = None if score.of_whole_rows else targets
        return cls((score,) * (targets or 1), Quantiles.normal(targets), not_judged)

    @property
    def score(self) -> Calibration:
        """The score of all targets together."""
        return replace(reduce(Calibration.merge, self.scores), not_judged=self.not_judged)

    def scored(self, y: Array, found: Innovations, counts: Array | None = None) -> "Tracking":
        """Return the tracking with the scores of more rows, which come after those scored before.

        Parameters
        ----------
        y : array of shape (b,) or (b, k)
        found : Innovations
        counts : array of shape (b,), optional
            How often each row counts; 1 by default.
        """
        if self.scores[0].of_whole_rows:
            return replace(self, scores=(self.scores[0].update(found.mean, found.std, y, weights=counts),))
        columns = (np.reshape(a, (len(y), -1)).T for a in (found.mean, found.std, y, found.dof))
        scores = tuple(
            score.update(mean, common(std), target, common(dof), counts, together=found.together)
            for score, mean, std, target, dof in zip(self.scores, *columns, strict=True)
        )
        return replace(self, scores=scores)

    def issued(self, z: Array, counts: Array | None = None) -> "Tracking":
        """Return the tracking after a batch with these standardised errors of the intervals that were issued for it."""
        if not self.scores[0].has_intervals:
            return self
        return replace(self, quantiles=self.quantiles.after(z, counts))

    def merge(self, other: "Tracking") -> "Tracking":
        """Return the tracking of both streams."""
        scores = tuple(map(Calibration.merge, self.scores, other.scores))
        return Tracking(scores, self.quantiles.merge(other.quantiles), self.not_judged or other.not_judged)

    # ---- saving ----------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Return the tracking as values that can be saved; see `kalprox.learning.saved`."""
        one, *others = self.scores
        scores = one if not others else {str(j): score for j, score in enumerate(self.scores)}
        return {"diagnostics": scores, "quantiles": self.quantiles, "not_judged": self.not_judged}

    @classmethod
    def restored(cls, targets: int | None, saved: Saved, likelihood: Likelihood = _GAUSSIAN) -> "Tracking":
        """Return the tracking from saved values.

        Files of version 0.1 have one score for all targets, and no quantiles.
        """
        none, several = cls.none(targets, likelihood=likelihood), "diagnostics.0" in saved
        names = [f"diagnostics.{j}" for j in range(targets or 1)] if several else ["diagnostics"]
        scores = [saved.value(type(none.scores[0]), name) for name in names]
        for score in scores:
            _expect_sums(score)
        quantiles = saved.value(Quantiles, "quantiles") if "quantiles" in saved else none.quantiles
        expect(quantiles.ends.shape == quantiles.missed.shape == none.quantiles.ends.shape and quantiles.rows >= 0)
        return cls((*scores, *none.scores[len(scores) :]), quantiles, str(saved.header.get("not_judged", "")))


def _expect_sums(score: Calibration) -> None:
    """Raise a ValueError unless shapes are right, no count or sum of squares is negative, and segments can be."""
    empty = type(score)()
    for field in fields(score):
        expect(np.shape(getattr(score, field.name)) == np.shape(getattr(empty, field.name)))
    signed = ("log_score", "errors", "powers", "recent", "lagged", "segments", "segment_origins", "not_judged")
    for name in {field.name for field in fields(score)}.difference(signed):
        expect((getattr(score, name) >= 0).all())
    length, rows = score.segment_length, score.segments[:, 0, 0]
    expect(np.log2(max(float(length), 1.0) / FIRST_LENGTH) in range(64))
    expect(((rows >= 0) & (rows <= length) & (rows == np.round(rows))).all())
