"""The calibration of the probabilities of several classes."""

import math
from collections.abc import Callable
from dataclasses import field, fields, replace
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree, static
from kalprox.calibration import curves
from kalprox.calibration.blocks import Given
from kalprox.calibration.cells import Cells
from kalprox.calibration.checks import Check
from kalprox.calibration.classes import ClassCalibration, Probabilities, check_probabilities
from kalprox.calibration.sums import Calibration
from kalprox.calibration.verdict import Verdict
from kalprox.predictive import Categories

__all__ = ["CategoryCalibration"]


@pytree
class CategoryCalibration(Probabilities):
    """The `Calibration` of the probabilities of several classes.

    The scores, cells, reliability and `errors` are about the most probable class of each row: whether it came, with the
    probability stated of it. The verdict judges this, and each class against the others. The log score and the Brier
    score are those of all classes: `squared_errors` is the sum of (y_c - p_c)^2 over rows and classes. ROC, lift and
    the areas under the ROC curves are those of one class against the others.

    A row of y that does not have a single 1 and zeros cannot be judged, and is counted in `undetermined`.

    Attributes
    ----------
    outcomes : array
        The number of rows whose most probable class did not come, and came, in each cell, shape (2, 512).
    stated : array
        The sum of the probabilities of the most probable class in each cell, shape (512,).
    right : array
        The number of rows whose most probable class came.
    of_class : ClassCalibration
        The sums of the calibrations of each of the m classes against the others, in arrays with one more dimension, of
        the length m, which comes first.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(3), size=3000)
    >>> y = np.array([rng.multinomial(1, one) for one in p])
    >>> score = CategoryCalibration().add(Categories(p), y)
    >>> score, score.auc.round(3)
    (CategoryCalibration(3,000 rows: calibrated, log loss 0.8366), array([0.803, 0.798, 0.792]))
    """

    of_class: ClassCalibration = field(
        default_factory=lambda: _mapped(lambda a: np.zeros((0, *a.shape)), ClassCalibration())
    )

    predictive: Any = static(default=Categories)
    event: ClassVar[str] = "the most probable class came"
    of_whole_rows: ClassVar[bool] = True

    def update(
        self,
        mean: Array,
        std: Array,
        y: Array,
        dof: Any = math.inf,
        weights: Array | None = None,
        together: Array | None = None,
        X: Array | None = None,
    ) -> Self:
        """Add a block's probabilities of m classes, made before it was learned, and the classes that came; see `add`.

        Parameters
        ----------
        mean : array of shape (b, m)
            The probabilities; NaN for rows that were not predicted.
        std : array
            Not used: the probabilities say what it is.
        y : array of shape (b, m)
            A 1 for the class of each row.
        dof : array
            Not used.
        weights : array, optional
            Repetitions, shape (b,); 1 by default.
        together : array, optional
            Not used.
        X : array, optional
            As in `Calibration.update`.

        Returns
        -------
        CategoryCalibration
            The sums including the block.
        """
        xp = namespace(mean, y, weights)
        p, y = (np.asarray(a, float) if xp is np else xp.asarray(a) * 1.0 for a in (mean, y))
        if p.ndim != 2 or p.shape != y.shape:
            raise ValueError(f"mean and y must have the same shape (b, m); got {p.shape} and {y.shape}.")
        check_probabilities(p)
        best = p.argmax(axis=1)
        one = ((y == 0) | (y == 1)).all(axis=1) & (y.sum(axis=1) == 1)
        right = xp.where(one, xp.take_along_axis(y, best[:, None], axis=1)[:, 0], 0.5 + 0 * y.sum(axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_prob = xp.maximum(xp.log((p * y).sum(axis=1)), float(np.log(np.finfo(p.dtype).tiny)))
        given = Given(log_prob, ((y - p) ** 2).sum(axis=1))
        top = p.max(axis=1)
        found = self._updated(top, 0 * top, right, math.inf, weights, together, given)
        p = xp.where(xp.isfinite(p).all(axis=1)[:, None], p, xp.nan)
        y = xp.where(one[:, None], y, 0.5)  # neither the class nor the others: not judged
        parts = [
            part.update(p[:, c], 0.0, y[:, c], weights=weights, X=X) for c, part in enumerate(self.parts(p.shape[1]))
        ]
        return replace(found, of_class=_stacked(xp, parts))

    def merge(self, other: Self) -> Self:
        """The calibration of both streams of rows together; see `Calibration.merge`.

        Parameters
        ----------
        other : CategoryCalibration

        Returns
        -------
        CategoryCalibration
        """
        found = Calibration.merge(*(replace(one, of_class=ClassCalibration()) for one in (self, other)))
        m = max(len(one.of_class.rows) for one in (self, other))
        parts = [one.merge(two) for one, two in zip(self.parts(m), other.parts(m), strict=True)]
        return replace(found, of_class=_stacked(namespace(self.rows, other.rows), parts) if m else self.of_class)

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
        known = len(self.of_class.rows)
        parts = [_mapped(lambda a, c=c: a[c], self.of_class) for c in range(known)]
        new = ClassCalibration()
        new = replace(new, **new.curvature.widened(self.of_class.column_means.shape[1])._asdict())
        return parts + [new] * (m - known)

    @property
    def by_class(self) -> Array:
        """For each class, the rows without and with it and the sum of its probabilities, in each cell; (m, 3, 512)."""
        cells = self.of_class
        return namespace(cells.stated).stack([cells.outcomes[:, 0], cells.outcomes[:, 1], cells.stated], axis=1)

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
        parts = self.parts()
        m = len(parts)
        verdicts = [
            replace(part, pull=self.pull)._verdict_among(1 + m, f"class {c + 1} of {m} came")
            for c, part in enumerate(parts)
        ]
        return min(
            [self._verdict_among(1 + m), *(one for one in verdicts if one.findings)], key=lambda one: one.importance
        )

    def _rights(self, p: Array, y: Array) -> Array:
        return y

    @property
    def auc(self) -> Array:
        """The area under the ROC curve of each class against the others, shape (m,); see `ClassCalibration.auc`."""
        return np.array([curves.area(self._cells_of(number)) for number in range(len(self.of_class.rows))])

    def roc(self, number: int) -> curves.Roc:
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
        return curves.roc(self._checked_cells(number))

    def lift(self, number: int) -> curves.Lift:
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
        return curves.lift(self._checked_cells(number))

    def _cells_of(self, number: int) -> Cells:
        return Cells.of(self.of_class.outcomes[number], self.of_class.stated[number])

    def _checked_cells(self, number: int) -> Cells:
        self._check_rows()
        m = len(self.of_class.rows)
        if not 0 <= number < m:
            raise ValueError(f"number must be that of a class, 0 to {m - 1}; got {number!r}.")
        cells = self._cells_of(number)
        if not 0 < cells.events.sum() < cells.rows.sum():
            raise ValueError(f"The curves need rows with the class {number} and without it, which there are not.")
        return cells

    def _checks(self, cells: Cells, event: str, several: int) -> tuple[Check, Check, Check]:
        slope, bias, curve = cells.checks(event, several)
        word = "over-confident" if cells.events.sum() < cells.rows @ cells.stated else "under-confident"
        return slope, bias._replace(word=word), curve


def _stacked(xp: ModuleType, parts: list[ClassCalibration]) -> ClassCalibration:
    """Return the calibrations of classes as one, whose arrays have a first dimension for the classes."""
    return _mapped(lambda *arrays: xp.stack([xp.asarray(a) for a in arrays]), *parts)


def _mapped(function: Callable[..., Array], *parts: ClassCalibration) -> ClassCalibration:
    """Return the sums that a function makes of each of the sums of the parts."""
    names = [f.name for f in fields(ClassCalibration) if not f.metadata.get("static")]
    return ClassCalibration(**{name: function(*(getattr(part, name) for part in parts)) for name in names})
