"""Whether features are missing independently of the target, given the features that are there."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.tree import leaf, state
from kalprox.calibration.checks import CHECK_ALARMS, MATERIAL_SHIFT, Check
from kalprox.calibration.verdict import FEWEST_ROWS

_BOUND = 10.0  # of errors and predictions, in stds, so that no row decides alone


class Informative(NamedTuple):
    """The feature whose gaps say most about the target: its column, how far the errors are off, and a p-value.

    The shift is that of the errors in rows without the feature, in their stds. The p-value is that of all features
    together (Bonferroni).
    """

    column: int
    shift: float
    p_value: float

    @property
    def found(self) -> bool:
        """Whether the shift is significant, and large enough to matter."""
        return self.p_value < CHECK_ALARMS and self.shift >= MATERIAL_SHIFT

    def measured(self, name: str) -> str:
        """Return what was measured, in words, of the feature that is called so."""
        return f"where {name} is missing, the errors are shifted by {self.shift:.2g} std (p = {self.p_value:.1g})"

    def check(self) -> Check:
        """Return it as a check of a verdict."""
        name = f"column {self.column} (counted from 0)"
        return Check("informative missingness", self.measured(name), self.p_value, self.found)


@state
class Missingness:
    """Sums of the errors of predictions over all rows, and over the rows without each feature.

    If a feature is missing independently of the target, given the features that are there, then the error z of a row's
    prediction, in stds, has mean zero whatever is missing, and is not correlated with the prediction q. The regressions
    of z on (1, q) in rows with and without a feature are compared by Wald's test, with White's covariance, since the
    spread of the errors may differ. Where means stand for missing features, which are then not predicted from the
    others, only the means of z are compared.

    Attributes
    ----------
    sums : array of shape (1 + d, k, 8)
        For all rows, and for those without each of d features: of each of k targets the number of rows, and the sums of
        q, q^2, z, z q, z^2, z^2 q and z^2 q^2.
    origin : array of shape (k,)
        What is subtracted from predictions, in the units of the targets.
    slopes : bool
        Whether missing features are predicted from the others, so that q counts.
    """

    sums: Any = leaf("f,t,8", factory=lambda: np.zeros((0, 0, 8)))
    origin: Any = leaf("t", factory=lambda: np.zeros(0))
    slopes: bool = True

    def after(self, mean: Any, std: Any, y: Any, counts: Any, missing: Any, d: int) -> "Missingness":
        """Return the sums after more rows, predicted before they were learned; `missing` is None if nothing was."""
        mean, std, y = (np.reshape(a, (len(y), -1)) for a in (mean, std, y))
        with np.errstate(all="ignore"):
            z = (y - mean) / std
            known = np.isfinite(z) & np.isfinite(mean)
            if not known.any():
                return self
            fresh = not len(self.sums)
            origin = np.nanmedian(np.where(known, mean, np.nan), axis=0) if fresh else self.origin
            q = np.clip((mean - origin) / std, -_BOUND, _BOUND)
        z, q = np.where(known, np.clip(z, -_BOUND, _BOUND), 0.0), np.where(known, q, 0.0)
        zz = z * z
        values = np.stack([known * 1.0, q, q * q, z, z * q, zz, zz * q, zz * q * q], axis=2)
        values = values if counts is None else values * counts[:, None, None]
        sums = np.zeros((1 + d, y.shape[1], 8)) if fresh else self.sums.copy()
        sums[0] += values.sum(axis=0)
        if missing is not None:
            sums[1:] += np.tensordot(missing.astype(float), values, (0, 0))
        return replace(self, sums=sums, origin=np.nan_to_num(origin))

    def merge(self, other: "Missingness") -> "Missingness":
        """Return the sums of both."""
        if self.sums.shape != other.sums.shape:
            return self if len(self.sums) else other
        return replace(self, sums=self.sums + other.sums)

    def with_features(self, d: int) -> "Missingness":
        """Return the sums with d features, of which those after the ones so far were never missing."""
        more = 1 + d - len(self.sums)
        return replace(self, sums=np.pad(self.sums, ((0, more), (0, 0), (0, 0)))) if len(self.sums) else self

    def informative(self, long_run: float) -> Informative | None:
        """Return the feature whose gaps say most about the target; None if there are too few rows to say.

        `long_run` is the variance of the mean of successive errors, relative to that of independent ones.
        """
        found = []
        for i, of_feature in enumerate(self.sums[1:]):
            for without, whole in zip(of_feature, self.sums[0], strict=True):
                if without[0] >= FEWEST_ROWS:
                    found.append(Informative(i, *_compared(without, whole - without, long_run, self.slopes)))
        if not found:
            return None
        first = min(found, key=lambda one: one.p_value)
        return first._replace(p_value=min(first.p_value * len(found), 1.0))


def _compared(some: Any, others: Any, long_run: float, slopes: bool) -> tuple[float, float]:
    """Return by how much the regressions of z on (1, q) differ between rows, in std of z, and the p-value."""
    size = 2 if slopes else 1
    theta, cov, spread = _regression(some, size)
    if others[0] >= FEWEST_ROWS:
        other, more, _ = _regression(others, size)
        theta, cov = theta - other, cov + more
    try:
        statistic = float(theta @ np.linalg.solve(cov * long_run, theta))
    except np.linalg.LinAlgError:  # errors that are all zero
        return 0.0, 1.0
    shift = math.sqrt(max(float(theta @ spread @ theta), 0.0))
    return shift, float(special.chdtrc(size, max(statistic, 0.0)))


def _regression(sums: Any, size: int) -> tuple[Any, Any, Any]:
    """Return the coefficients of z in (1, q), or in 1, their covariance, and the mean square of (1, q)."""
    n, q, q2, z, zq, z2, z2q, z2q2 = sums
    spread = np.array([[n, q], [q, q2]])[:size, :size] / n
    bread = np.linalg.pinv(spread, rcond=1e-8, hermitian=True) / n
    meat = np.array([[z2, z2q], [z2q, z2q2]])[:size, :size]
    return bread @ np.array([z, zq])[:size], bread @ meat @ bread, spread
