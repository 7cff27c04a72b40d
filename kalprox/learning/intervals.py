"""Intervals of estimated numbers: for one look at them, and for any number of looks."""

from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.predictive import Student

__all__ = ["TUNED_CLUSTERS", "TUNED_ROWS", "Estimate"]

TUNED_ROWS = 125  # the tuning constants are the precision of so many rows: narrowest at eight times as many, 1,000
TUNED_CLUSTERS = 25  # the same for clusters: narrowest at 200


class Estimate(NamedTuple):
    """Estimates with what their intervals are computed from; with k targets the arrays have a leading axis.

    Attributes
    ----------
    value : array of shape (d,) or (k, d)
    std : array of the same shape
        The standard errors.
    dof : float, or array of shape (k,), or of that of `value`
        The degrees of freedom of the standard errors.
    precision : array of shape (d,) or (k, d)
        The inverse variance in units of the noise variance, 1 / [(X'X)^-1]_jj for least squares: how much the rows say.
    """

    value: Array
    std: Array
    dof: Any
    precision: Array

    def interval(self, level: float) -> tuple[Array, Array]:
        """Return the ends of the intervals that each contain the truth with probability `level`, at one look."""
        return Student(self.value, self.std, self._dof).interval(level)

    @property
    def _dof(self) -> Array:
        """The degrees of freedom in a shape that broadcasts with `std`."""
        dof = np.asarray(self.dof, float)
        return dof if dof.ndim in (0, self.value.ndim) else dof[..., None]

    def anytime_interval(self, level: float, tuning: Array | float) -> tuple[Array, Array]:
        """Return the ends of intervals that, with probability `level`, contain the truth at every look.

        With g the tuning constant, z2 the precision, nu the degrees of freedom and a = 1 - level, let r = g / (g + z2)
        and k = (r a^2)^(1 / (nu + 1)). The interval reaches as far as std sqrt(nu (1 - k) / (k - r)), and
        std sqrt(-log(r a^2) / (1 - r)) for infinite nu; it is unbounded where k <= r. It holds all values whose Bayes
        factor, with a prior N(., sigma^2 / g) as the alternative, is below 1 / a. That factor is a martingale for any
        g that does not depend on the targets and does not change [1]_.

        Parameters
        ----------
        level : float
        tuning : array of shape (d,), or float
            The constants g, in units of the precision. For level 0.95 the interval is narrowest, in standard errors,
            where the precision is 8 g, and then 1.6 times as wide as `interval`.

        References
        ----------
        .. [1] M. Lindon, D. W. Ham, M. Tingley, I. Bojinov, "Anytime-valid linear models and regression adjusted causal
           inference in randomized experiments", arXiv:2210.08589, 2022.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be strictly between 0 and 1, such as 0.95; got {level!r}.")
        nu = self._dof
        with np.errstate(divide="ignore", invalid="ignore"):
            r = tuning / (tuning + self.precision)
            log = np.log(r) + 2 * np.log(1 - level)
            short = -np.expm1(log / (nu + 1))  # 1 - k
            square = np.where(np.isinf(nu), -log / (1 - r), nu * short / (1 - r - short))
            bounded = (square > 0) & np.isfinite(square) & np.isfinite(self.std)
            reach = np.where(bounded, self.std * np.sqrt(np.where(bounded, square, 0)), np.inf)
        return self.value - reach, self.value + reach
