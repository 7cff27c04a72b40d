"""What the rows of a linear model say about its coefficients before there is a penalty."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.pickling import PickledFields
from kalprox.information import Equations, Information
from kalprox.learning.design import Design
from kalprox.learning.ridge_evidence import RidgeEvidence
from kalprox.learning.settings import Settings
from kalprox.learning.state import FIRST_PIECE

__all__ = ["LinearRows"]


@dataclass(frozen=True, eq=False)
class LinearRows(PickledFields):
    """The rows of a linear model, as all beliefs about them read them, whatever the weight of their penalty.

    Attributes
    ----------
    settings : Settings
    information : Information
    spread_before : array of shape (d,) or None
        The `spread` before the last rows.
    """

    settings: Settings
    information: Information
    spread_before: Array | None = None

    @cached_property
    def scale(self) -> Array:
        """The standard deviation of each column, 1 for a constant column; all ones without standardisation."""
        info = self.information
        std = self.column_std if self.settings.standardize else None
        return np.ones(info.d) if std is None else np.where(std > 0, std, 1.0)

    @cached_property
    def column_std(self) -> Array | None:
        """The standard deviation of each column; None if the moments are not kept."""
        info = self.information
        if not self.settings.forgetting.keeps_moments:
            return None
        return np.linalg.norm(info.centered().compact()[0], axis=0) / (float(info.T[0, 0]) or 1.0)

    @cached_property
    def design(self) -> Design:
        """The design centred at the means of the rows, which makes intercept and coefficients independent."""
        info = self.information
        if not self.settings.fit_intercept:
            return Design(np.zeros(info.d), self.scale, False, 0.0)
        (mean, rest), d = info.means(), info.d
        y_mean, y_rest = (values[d] if info.targets is None else values[d:] for values in (mean, rest))
        return Design(mean[:d], self.scale, True, y_mean, rest[:d] if rest[:d].any() else None, y_rest)

    @cached_property
    def centered(self) -> Equations:
        """The equations of the coefficients in units of 1 / scale, with the intercept minimised out."""
        info = self.information
        T = info.centered().triangle() if self.settings.fit_intercept else info.triangle()
        if self.settings.standardize:
            T = T / np.concatenate([self.scale, np.ones(T.shape[1] - info.d)])
        return Equations(T, info.rows, info.squares, info.targets)

    @cached_property
    def equations(self) -> Equations:
        """The equations of theta in the coordinates of the design."""
        if not self.settings.fit_intercept:
            return self.centered
        held = self.centered.held
        T = np.zeros((held.shape[0] + 1, held.shape[1] + 1))
        T[0, 0], T[1:, 1:] = self.information.T[0, 0], held
        return Equations(T, self.centered.rows, self.centered.squares, self.centered.targets)

    @cached_property
    def evidence(self) -> RidgeEvidence:
        """The evidence of a ridge penalty as a function of its weight."""
        weight = float(self.information.T[0, 0]) ** 2
        return RidgeEvidence(self.centered, self.settings.gamma, weight, intercept=self.settings.fit_intercept)

    @property
    def are_few(self) -> bool:
        """Whether there are no more rows than coefficients, so that some alpha fits every row exactly."""
        return float(self.information.effective_rows) - self.settings.fit_intercept <= self.information.d

    @cached_property
    def spread(self) -> Array:
        """The mean square of each column when it first varied, after 32 rows; zero before.

        It sets the scale of confidence sequences, which need one that depends on no target and does not change.
        """
        info = self.information
        before = np.zeros(info.d) if self.spread_before is None else self.spread_before
        if float(info.rows) < FIRST_PIECE or before.all():
            return before
        now = (info.centered().compact()[0] ** 2).sum(axis=0) / float(info.rows)
        return np.where(before > 0, before, now if self.settings.fit_intercept else now + info.x_mean**2)
