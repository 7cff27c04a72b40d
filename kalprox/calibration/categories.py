"""The calibration of the probabilities of several classes."""

import math
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from kalprox.base.arrays import Array, pytree, static
from kalprox.calibration import curves
from kalprox.calibration.blocks import Given, Rows
from kalprox.calibration.cells import Cells
from kalprox.calibration.checks import Check
from kalprox.calibration.classes import ClassCalibration, check_probabilities
from kalprox.calibration.verdict import Verdict
from kalprox.predictive import Categories

__all__ = ["CategoryCalibration"]


@pytree
class CategoryCalibration(ClassCalibration):
    """The `Calibration` of the probabilities of several classes.

    The scores, cells, reliability and `errors` are about the most probable class of each row: whether it came, with the
    probability stated of it. The verdict judges this, and each class against the others. The log score and the Brier
    score are those of all classes: `squared_errors` is the sum of (y_c - p_c)^2 over rows and classes. ROC, lift and
    the areas under the ROC curves are those of one class against the others.

    A row of y that does not have a single 1 and zeros cannot be judged, and is counted in `undetermined`. The arrays
    must have values: inside `jax.jit` there are none.

    Attributes
    ----------
    outcomes : array
        The number of rows whose most probable class did not come, and came, in each cell, shape (2, 512).
    stated : array
        The sum of the probabilities of the most probable class in each cell, shape (512,).
    right : array
        The number of rows whose most probable class came.
    of_class : tuple of ClassCalibration
        The calibrations of each of the m classes against the others.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(3), size=3000)
    >>> y = np.array([rng.multinomial(1, one) for one in p])
    >>> score = CategoryCalibration().add(Categories(p), y)
    >>> score, score.auc.round(3)
    (CategoryCalibration(3,000 rows: calibrated, log loss 0.8366), array([0.803, 0.798, 0.792]))
    """

    of_class: tuple[ClassCalibration, ...] = ()

    predictive: Any = static(default=Categories)
    event: ClassVar[str] = "the most probable class came"
    of_whole_rows: ClassVar[bool] = True

    def _updated(self, rows: Rows, X: Array | None) -> Self:
        p, y = (np.asarray(a, float) for a in (rows.mean, rows.y))
        if p.ndim != 2 or p.shape != y.shape:
            raise ValueError(f"mean and y must have the same shape (b, m); got {p.shape} and {y.shape}.")
        check_probabilities(p)
        best, one = p.argmax(axis=1), ((y == 0) | (y == 1)).all(axis=1) & (y.sum(axis=1) == 1)
        right = np.where(one, np.take_along_axis(y, best[:, None], axis=1)[:, 0], 0.5 + 0 * y.sum(axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_prob = np.maximum(np.log((p * y).sum(axis=1)), math.log(np.finfo(float).tiny))
        given = Given(log_prob, ((y - p) ** 2).sum(axis=1))
        found = super()._updated(rows._replace(mean=p.max(axis=1), std=0.0, y=right, dof=math.inf, given=given), None)
        p = np.where(np.isfinite(p).all(axis=1)[:, None], p, np.nan)
        y = np.where(one[:, None], y, 0.5)  # neither the class nor the others: not judged
        parts = enumerate(self.parts(p.shape[1]))
        of_class = tuple(part.update(p[:, c], 0.0, y[:, c], weights=rows.weights, X=X) for c, part in parts)
        return replace(found, of_class=of_class)

    def merge(self, other: Self) -> Self:
        """The calibration of both streams of rows together; see `Calibration.merge`.

        Parameters
        ----------
        other : CategoryCalibration

        Returns
        -------
        CategoryCalibration
        """
        found = super().merge(other)
        m = max(len(self.of_class), len(other.of_class))
        both = zip(self.parts(m), other.parts(m), strict=True)
        return replace(found, of_class=tuple(one.merge(two) for one, two in both))

    def parts(self, m: int = 0) -> list[ClassCalibration]:
        """Return the calibrations of each class against the others.

        Parameters
        ----------
        m : int
            The least number of classes; those that were not known so far have no rows.

        Returns
        -------
        list of ClassCalibration
        """
        return [*self.of_class, *[ClassCalibration()] * (m - len(self.of_class))]

    @property
    def by_class(self) -> Array:
        """For each class, the rows without and with it and the sum of its probabilities, in each cell; (m, 3, 512)."""
        cells = [np.vstack([part.outcomes, part.stated]) for part in self.of_class]
        return np.array(cells).reshape(len(cells), 3, len(self.stated))

    def verdict(self) -> Verdict:
        """Calibrated, or what is wrong with the probabilities and the one thing to change; see `ClassCalibration`.

        What is judged is whether the most probable class came, and whether each class did, with a probability of false
        alarms that holds for all together. The verdict is that with the most important finding.

        Returns
        -------
        Verdict
        """
        found = super().verdict()
        if found.word == "not judged":
            return found
        m = len(self.of_class)
        verdicts = [
            replace(part, pull=self.pull)._verdict_among(1 + m, f"class {c} of {m} came")
            for c, part in enumerate(self.of_class, 1)
        ]
        verdicts = [self._verdict_among(1 + m), *(one for one in verdicts if one.findings)]
        return min(verdicts, key=lambda one: one.importance)

    def _rights(self, p: Array, y: Array) -> Array:
        return y

    @property
    def auc(self) -> Any:
        """The area under the ROC curve of each class against the others, shape (m,); see `ClassCalibration.auc`."""
        return np.array([part.auc for part in self.of_class])

    def roc(self, number: int) -> curves.Roc:  # type: ignore[override]
        """Return the receiver operating characteristic of one class against the others.

        Parameters
        ----------
        number : int
            The number of the class, from 0 on.

        Returns
        -------
        Roc
            `false_positive_rate`, `true_positive_rate` and `threshold`: arrays.

        Examples
        --------
        >>> p = np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])
        >>> score = CategoryCalibration().add(Categories(p), np.eye(3))
        >>> score.roc(0).true_positive_rate, score.auc
        (array([0., 1., 1., 1.]), array([1., 1., 1.]))
        """
        return self._against_others(number).roc()

    def lift(self, number: int) -> curves.Lift:  # type: ignore[override]
        """Return how many of the rows of one class are among those with the largest probabilities of it.

        Parameters
        ----------
        number : int
            The number of the class, from 0 on.

        Returns
        -------
        Lift
            `rows`, `events` and `lift`: arrays.

        Examples
        --------
        >>> p = np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])
        >>> CategoryCalibration().add(Categories(p), np.eye(3)).lift(0).lift
        array([3. , 1.5, 1. ])
        """
        return self._against_others(number).lift()

    def _against_others(self, number: int) -> ClassCalibration:
        self._check_rows()
        m = len(self.of_class)
        if not 0 <= number < m:
            raise ValueError(f"number must be that of a class, 0 to {m - 1}; got {number!r}.")
        return self.of_class[number]

    def _checks(self, cells: Cells, event: str, several: int) -> tuple[Check, Check, Check]:
        slope, bias, curve = cells.checks(event, several)
        word = "over-confident" if cells.events.sum() < cells.rows @ cells.stated else "under-confident"
        return slope, bias._replace(word=word), curve
