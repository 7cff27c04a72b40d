"""How an estimator shows what it has found: a plot of its coefficients."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kalprox.estimators.base import LearnerEstimator
from kalprox.learning.belief import PenaltyTooStrong

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Showing"]


class Showing(LearnerEstimator):
    """The plot of the coefficients."""

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        level: float = 0.95,
        top: int | None = None,
        scaled: bool = False,
        anytime: bool = False,
        targets: Sequence[int] | None = None,
    ) -> "Axes":
        """Plot the coefficients with their intervals, those of `coef_interval`. Needs `pip install 'kalprox[report]'`.

        A coefficient without a finite interval, which neither the rows nor the penalty determine, is a ring. Where the
        penalty has kinks or bounds, the intervals are debiased, and a coefficient may lie outside of its own.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made.
        level : float
            The level of the intervals, strictly between 0 and 1.
        top : int, optional
            The number of coefficients shown, those with the largest effects: |coefficient| times the standard deviation
            of the column. By default as many as fit on the axes, and 40 at most.
        scaled : bool
            Whether each coefficient is multiplied by the standard deviation of its column, so that columns in different
            units can be compared.
        anytime : bool
            Whether the intervals may be looked at after every row; see `coef_interval`.
        targets : sequence of int, optional
            The columns of y whose coefficients are shown, 7 at most; by default all.

        Returns
        -------
        Axes

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 3))
        >>> ax = KalproxRegressor().fit(X, X @ [2.0, 0.0, -1.0] + rng.normal(size=200)).plot(level=0.9)
        >>> [label.get_text() for label in ax.get_yticklabels()], ax.get_xlabel()
        (['x0', 'x1', 'x2'], 'coefficient, with 90% intervals')
        """
        from kalprox.display.readings import plot_coefficients

        belief = self._with_std
        if belief.interval_doubt and not anytime:
            warnings.warn(belief.interval_doubt, PenaltyTooStrong, stacklevel=2)
        low, high = belief.coef_interval(level, anytime)
        k = len(belief.coef) if belief.coef.ndim == 2 else 1
        chosen = np.arange(k) if targets is None else np.asarray(targets)
        if chosen.ndim != 1 or not len(chosen) or not ((chosen >= 0) & (chosen < k)).all():
            raise ValueError(f"targets must be numbers of columns of y, from 0 to {k - 1}; got {targets!r}.")
        unit = 1.0
        if scaled:
            if belief.column_std is None:
                raise ValueError("scaled=True needs the standard deviations of the columns, which are not known here.")
            unit = belief.column_std
        with np.errstate(invalid="ignore"):  # the std of a constant column times an infinite interval
            arrays = [np.atleast_2d(a)[chosen] for a in (belief.coef * unit, low * unit, high * unit, belief.effects)]
        ax = plot_coefficients(
            ax,
            self._coef_names(belief),
            *arrays,
            level=level,
            top=top,
            what="coefficient × std of its column" if scaled else "coefficient",
            targets=[f"y{j}" for j in chosen] if k > 1 else ("",),
        )
        return ax
