"""The calibration of the probabilities of several classes."""

import math
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from kalprox._arrays import Array, namespace, pytree
from kalprox.calibration import curves
from kalprox.calibration.blocks import Given
from kalprox.calibration.cells import CELLS, Cells, cell_of
from kalprox.calibration.checks import Check
from kalprox.calibration.classes import Probabilities, check_probabilities
from kalprox.calibration.sums import Calibration, zeros
from kalprox.predictive import Categories

__all__ = ["CategoryCalibration"]


@pytree
class CategoryCalibration(Probabilities):
    """The `Calibration` of the probabilities of several classes.

    What is judged is the most probable class of each row: whether it came, with the probability stated of it. This is
    what the scores, cells, reliability and verdict are about, and `errors`. The log score and the Brier score are those
    of all classes: `squared_errors` is the sum of (y_c - p_c)^2 over rows and classes. ROC, lift and the areas under
    the ROC curves are those of one class against the others.

    A row of y that does not have a single 1 and zeros cannot be judged, and is counted in `undetermined`.

    Attributes
    ----------
    outcomes : array
        The number of rows whose most probable class did not come, and came, in each cell, shape (2, 512).
    stated : array
        The sum of the probabilities of the most probable class in each cell, shape (512,).
    right : array
        The number of rows whose most probable class came.
    by_class : array
        For each class, the number of rows without it and with it, and the sum of its probabilities, in each cell of its
        probability, shape (m, 3, 512). Model files of version 0.2 have none: the curves are of rows since then.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(3), size=3000)
    >>> y = np.array([rng.multinomial(1, one) for one in p])
    >>> score = CategoryCalibration().add(Categories(p), y)
    >>> score, score.auc.round(3)
    (CategoryCalibration(3,000 rows: calibrated, log loss 0.8366), array([0.803, 0.798, 0.792]))
    """

    by_class: Any = zeros(0, 3, CELLS)

    predictives: ClassVar[tuple[type, ...]] = (Categories,)
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
        counted = one & xp.isfinite(p).all(axis=1)
        worth = counted.astype(p.dtype) if weights is None else xp.where(counted, weights, 0.0).astype(p.dtype)
        return replace(found, by_class=_sum_of_both(self.by_class, _by_class(xp, p, y, worth)))

    def merge(self, other: Self) -> Self:
        """The calibration of both streams of rows together; see `Calibration.merge`.

        Parameters
        ----------
        other : CategoryCalibration

        Returns
        -------
        CategoryCalibration
        """
        without = (replace(one, by_class=np.zeros((0, 3, CELLS))) for one in (self, other))
        found = Calibration.merge(*without)
        return replace(found, by_class=_sum_of_both(self.by_class, other.by_class))

    def _rights(self, p: Array, y: Array) -> Array:
        return y

    @property
    def auc(self) -> Array:
        """The area under the ROC curve of each class against the others, shape (m,); see `ClassCalibration.auc`."""
        return np.array([curves.area(self._cells_of(number)) for number in range(len(self.by_class))])

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
        without, events, stated = np.asarray(self.by_class)[number]
        return Cells.of(np.stack([without, events]), stated)

    def _checked_cells(self, number: int) -> Cells:
        self._check_rows()
        m = len(self.by_class)
        if not 0 <= number < m:
            raise ValueError(f"number must be that of a class, 0 to {m - 1}; got {number!r}.")
        cells = self._cells_of(number)
        if not 0 < cells.events.sum() < cells.rows.sum():
            raise ValueError(f"The curves need rows with the class {number} and without it, which there are not.")
        return cells

    def _checks(self, cells: Cells) -> tuple[Check, Check, Check]:
        slope, bias, curve = cells.checks(self.event)
        word = "over-confident" if cells.events.sum() < cells.rows @ cells.stated else "under-confident"
        return slope, bias._replace(word=word), curve


def _by_class(xp: ModuleType, p: Array, y: Array, weights: Array) -> Array:
    """Return the rows without and with each class, and its probabilities, added up by cells, shape (m, 3, CELLS)."""
    m = p.shape[1]
    p = xp.where(weights[:, None] > 0, p, 0.0)
    cells = cell_of(xp, p)
    place = cells + CELLS * xp.arange(m, dtype=cells.dtype)[None]
    parts = ((1 - y) * weights[:, None], y * weights[:, None], p * weights[:, None])
    if xp is np:
        sums = [np.bincount(place.ravel(), part.ravel(), m * CELLS) for part in parts]
    else:
        sums = [xp.zeros(m * CELLS, p.dtype).at[place.ravel()].add(part.ravel()) for part in parts]
    return xp.stack([one.reshape(m, CELLS) for one in sums], axis=1)


def _sum_of_both(one: Array, other: Array) -> Array:
    """Return the sum of the counts of two sets of rows; classes that one of them does not know come last."""
    xp, m = namespace(one, other), max(len(one), len(other))
    dtype = one.dtype if len(one) else other.dtype
    both = (xp.pad(xp.asarray(a, dtype), ((0, m - len(a)), (0, 0), (0, 0))) for a in (one, other))
    return sum(both, xp.zeros((m, *one.shape[1:]), dtype))
