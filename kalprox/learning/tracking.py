"""What a learner keeps of its innovations: the prequential score and the quantiles of conformal intervals."""

from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.calibration import Calibration
from kalprox.calibration.sequence import FIRST_LENGTH
from kalprox.learning.innovations import Innovations, common
from kalprox.learning.quantiles import Quantiles
from kalprox.learning.saved import Saved, expect

__all__ = ["Tracking"]


@dataclass(frozen=True, eq=False)
class Tracking:
    """The prequential score of each target, and the tracked quantiles.

    Attributes
    ----------
    scores : tuple of Calibration
        One for each target, since the order of the rows of one target matters.
    quantiles : Quantiles
    not_judged : str
        Why rows were learned that were not scored; empty if there were none.
    """

    scores: tuple[Calibration, ...]
    quantiles: Quantiles
    not_judged: str = ""

    @classmethod
    def none(cls, targets: int | None = None, not_judged: str = "") -> "Tracking":
        """Return the tracking of no rows."""
        return cls((Calibration(),) * (targets or 1), Quantiles.normal(targets), not_judged)

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
        columns = (np.reshape(a, (len(y), -1)).T for a in (found.mean, found.std, y, found.dof))
        scores = tuple(
            score.update(mean, common(std), target, common(dof), counts, together=found.together)
            for score, mean, std, target, dof in zip(self.scores, *columns, strict=True)
        )
        return replace(self, scores=scores)

    def issued(self, z: Array, counts: Array | None = None) -> "Tracking":
        """Return the tracking after a batch with these standardised errors of the intervals that were issued for it."""
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
    def restored(cls, targets: int | None, saved: Saved) -> "Tracking":
        """Return the tracking from saved values.

        Files of version 0.1 have one score for all targets, and no quantiles.
        """
        none, several = cls.none(targets), "diagnostics.0" in saved
        names = [f"diagnostics.{j}" for j in range(targets or 1)] if several else ["diagnostics"]
        scores = [saved.value(Calibration, name) for name in names]
        for score in scores:
            for field in fields(Calibration):
                expect(np.shape(getattr(score, field.name)) == np.shape(getattr(Calibration(), field.name)))
            _expect_sums(score)
        quantiles = saved.value(Quantiles, "quantiles") if "quantiles" in saved else none.quantiles
        expect(quantiles.ends.shape == quantiles.missed.shape == none.quantiles.ends.shape and quantiles.rows >= 0)
        return cls((*scores, *none.scores[len(scores) :]), quantiles, str(saved.header.get("not_judged", "")))


def _expect_sums(score: Calibration) -> None:
    """Raise a ValueError unless counts and sums of squares are not negative, and segments as they can be."""
    for name in ("rows", "undetermined", "covered", "squares", "pit", "squared_errors", "shared", "segment_shared"):
        expect((getattr(score, name) >= 0).all())
    length, rows = score.segment_length, score.segments[:, 0, 0]
    expect(np.log2(max(float(length), 1.0) / FIRST_LENGTH) in range(64))
    expect(((rows >= 0) & (rows <= length) & (rows == np.round(rows))).all())
