"""The calibration of probabilities: of an event, such as that of the second of two classes, and of several classes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from kalprox.base.arrays import Array, pytree, static
from kalprox.base.checks import concrete
from kalprox.calibration import curves
from kalprox.calibration.cells import CELLS, Cells, cell_of
from kalprox.calibration.checks import Check, Stream, correlated, drifting, drifting_slope
from kalprox.calibration.sums import Calibration, Findings, Given, Rows
from kalprox.calibration.verdict import FEWEST_EVENTS, Range, Verdict
from kalprox.predictive import Categories, Classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUPS = 5  # of the table in a notebook


@pytree
class ClassCalibration(Calibration):
    """The `Calibration` of the probability of yes, y = 1, in place of no, y = 0.

    Log loss and Brier score are exact. For reliability, ROC and lift the rows are counted in 512 cells of the stated
    log odds, of the width 1/16: the area under the ROC curve is accurate to 0.001. The state has a fixed size, and adds
    up: see `merge`.

    The score of a row is randomised, as that of `CountCalibration`. A y that is neither 0 nor 1, such as a share with
    its number as the weight, cannot be judged: it is counted in `undetermined`. `errors` and `squared_errors` are sums
    of y - p and of its square.

    Attributes
    ----------
    outcomes : array
        The number of rows with y = 0 and with y = 1 in each cell, shape (2, 512).
    stated : array
        The sum of the probabilities in each cell, shape (512,).
    right : array
        The number of rows whose more probable class came; a probability of 0.5 predicts 0.
    pull : float or None
        The coefficients times the gradient of their penalty, of the model that stated the probabilities and forgets
        nothing; None if it is not known, or if it forgets.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.beta(1, 5, size=5000)
    >>> y = rng.random(5000) < p
    >>> honest = ClassCalibration().add(Classes(p), y)
    >>> honest
    ClassCalibration(5,000 rows: calibrated, log loss 0.3631, AUC 0.7892)
    >>> extreme = p**3 / (p**3 + (1 - p) ** 3)
    >>> verdict = ClassCalibration().add(Classes(extreme), y).verdict()
    >>> verdict.word, verdict.measured.split("; ")[0]
    ('over-confident', 'the event came in 16.1% of the rows (5.85% were stated), and the log odds differ 0.36 times as \
much as stated')
    """

    pull: float | None = static(default=None)
    predictive: Any = static(default=Classes)

    layout: ClassVar[np.dtype[Any]] = np.dtype(
        [*Calibration.layout.descr, ("outcomes", float, (2, CELLS)), ("stated", float, CELLS), ("right", float)]
    )
    has_intervals: ClassVar[bool] = False
    kind: ClassVar[str] = "classes"
    scored: ClassVar[Any] = Classes  # whether the event comes is one of two classes
    event: ClassVar[str] = "the event came"
    _plots: ClassVar[tuple[str, ...]] = ("reliability", "roc", "lift", *Calibration._plots)
    about_scores: ClassVar[str] = (
        "the mean of -log of the probability of the class that came, the mean squared error of the probabilities, the "
        "share of the rows whose most probable class came, and the area under the ROC curve, for several classes the "
        "mean of those of each class against the others"
    )

    def _updated(self, rows: Rows, X: Array | None) -> Self:
        check_probabilities(rows.mean)
        return super()._updated(rows._replace(dof=math.inf), X)  # a probability shares no estimate of the noise

    def _add_more(self, sums: Any, rows: Rows) -> None:
        p, y, w = rows.mean, rows.y, rows.weights
        cell = cell_of(p)
        for total, part in zip((*sums["outcomes"], sums["stated"]), (w * (1 - y), w * y, w * p), strict=True):
            total += np.bincount(cell, part, CELLS)
        sums["right"] += self._rights(p, y) @ w

    @property
    def cells(self) -> Cells:
        """The rows by stated probability; see `kalprox.calibration.cells`."""
        return Cells.of(self.outcomes, self.stated)

    @property
    def log_loss(self) -> Array:
        """The mean of -log of the probability of the class that came, which is at most 708; lower is better."""
        return -self.mean_log_score

    @property
    def brier(self) -> Array:
        """The Brier score: the mean of (y - p)^2, summed over the classes if there are more than two."""
        return self._mean(self.squared_errors)

    @property
    def accuracy(self) -> Array:
        """The share of the rows whose most probable class came."""
        return self._mean(self.right)

    def reliability(self, bins: int = 10) -> curves.Reliability:
        """Return the share of events among rows with about the same stated probability.

        Parameters
        ----------
        bins : int
            The number of groups, with about as many rows each. There are fewer where the probabilities hardly differ:
            those within 1/16 of the log odds stay together.

        Returns
        -------
        Reliability
            `stated`, `observed`, `low`, `high` and `rows`: arrays with an entry for each group.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(size=4000)
        >>> score = ClassCalibration().add(Classes(p), rng.random(4000) < p)
        >>> found = score.reliability(bins=4)
        >>> found.stated.round(2), found.observed.round(2)
        (array([0.12, 0.37, 0.62, 0.87]), array([0.13, 0.38, 0.63, 0.87]))
        """
        if not bins >= 1:
            raise ValueError(f"bins must be at least 1; got {bins!r}.")
        self._check_rows()
        return curves.reliability(self.cells, int(bins))

    def _check_rows(self) -> None:
        if not float(self.rows) > 0:
            raise ValueError(f"There are no scored rows: {self.verdict()}")

    @property
    def scores(self) -> dict[str, Any]:
        """The scores that a report shows, by name; the area is that of the classes that have rows."""
        areas = np.atleast_1d(self.auc)
        known = areas[np.isfinite(areas)]
        found = {"log loss": float(self.log_loss), "Brier score": float(self.brier), "accuracy": float(self.accuracy)}
        return found | {"mean AUC" if self.of_whole_rows else "AUC": float(known.mean()) if len(known) else math.nan}

    def _in_short(self, found: Verdict) -> str:
        return f"log loss {float(self.log_loss):.4g}" + ("" if self.of_whole_rows else f", AUC {self.auc:.4g}")

    def _in_detail(self, found: Verdict) -> tuple[dict[str, str], Sequence[str], list[tuple[str, ...]]]:
        more = {"Scores": ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())}
        groups = self.reliability(_GROUPS)
        rows: list[tuple[str, ...]] = [
            (f"{n:,.10g}", f"{p:.2%}", f"{share:.2%}", f"{low:.2%} to {high:.2%}")
            for p, share, low, high, n in zip(*groups, strict=True)
        ]
        return more, ("rows", "stated", "came", "95% interval"), rows

    def _plot_reliability(self, ax: "Axes", label: str, slot: int) -> None:
        from kalprox.display.plots import reliability

        reliability(ax, *self.reliability()[:4], label=label, slot=slot)

    def _plot_roc(self, ax: "Axes", label: str, slot: int, *of: int) -> None:
        from kalprox.display.plots import roc

        false, true, _ = self.roc(*of)
        area = self.auc[of] if of else self.auc
        roc(ax, false, true, label=f"{label} (area {area:.3f})", slot=slot)

    def _plot_lift(self, ax: "Axes", label: str, slot: int, *of: int) -> None:
        from kalprox.display.plots import lift

        lift(ax, *self.lift(*of)[:2], label=label, slot=slot)

    def verdict(self) -> Verdict:
        """Calibrated, or what is wrong with the probabilities and the one thing to change; with the numbers.

        Calibrated probabilities are called something else with probability 0.02 (`FALSE_ALARMS`) at most, however rare
        the event is. What is looked for, the first that is found giving the word:

        drifting, correlated
            As in `Calibration.verdict`, by scores that are randomised; also if their slope in the prediction changes.
        nonlinear
            The scores depend on squares or products of columns, as in `Calibration.verdict`.
        over-confident, under-confident
            The log odds of the event differ less, or more, than those stated; before "nonlinear" where this is the more
            certain. If they differ more by what the penalty
            does not explain (`pull`), the model lags behind coefficients that change: this is called drifting. If the
            penalty explains it, a slope of the scores that changes along the stream is no drift.
        biased
            The number of events is not the sum of the probabilities. For several classes, where the event is that the
            most probable one came, this is called over-confident or under-confident, too.
        nonlinear
            The log odds of the event are not a straight line in those stated.

        The number of events with given probabilities has a known distribution, whose tails are computed by a saddle
        point. An error of the log odds below 0.1, or of their differences below 10%, is not named. Rows that were not
        predicted, and targets that are not whole, such as shares, are not judged.

        Returns
        -------
        Verdict
        """
        return super().verdict()

    def _findings(self, stream: Stream, effective: float, ranges: tuple[Range, Range], event: str) -> Findings:
        drift, cells, measured = drifting_slope(stream), self.cells, ""
        checks: tuple[Check, ...] = (drifting(stream), drift, correlated(stream))
        if effective > 0:
            slope, bias, curve = self._checks(cells, event or self.event, stream.several)
            bend = self.curvature.check(stream)
            bend = bend._replace(found=bend.found and not bias.found)  # a bias depends on the probability, too
            if self.pull is not None and slope.found and slope.word == "under-confident" and not bend.found:
                if cells.explained(self.pull):
                    checks = tuple(check._replace(found=check.found and check is not drift) for check in checks)
                else:
                    lags = f"{slope.measured}, more than the penalty explains"
                    slope = slope._replace(word="drifting", measured=lags)
            # Log odds that are all too small or too large look a little like products of columns, and the reverse.
            by_certainty = (slope, bend) if slope.p_value < bend.p_value else (bend, slope)
            checks += (*by_certainty, bias, curve)
            about = bias.measured if math.isnan(slope.p_value) else f"{bias.measured}, and {slope.measured}"
            measured = about if event else f"{about}; log loss {self.log_loss:.3g}, Brier score {self.brier:.3g}"
        words = list(dict.fromkeys(check.word for check in checks if check.found))
        return Findings(checks, words, float(cells.variance.sum()) >= FEWEST_EVENTS, measured)

    def _checks(self, cells: Cells, event: str, several: int) -> tuple[Check, Check, Check]:
        return cells.checks(event, several)

    def _rights(self, p: Array, y: Array) -> Array:
        return ((p > 0.5) == (y == 1)) * 1.0

    @property
    def auc(self) -> Any:
        """The area under the ROC curve: the probability that a row with y = 1 has the larger p of two, to 0.001.

        It is NaN as long as all rows have the same class.
        """
        return curves.area(self.cells)

    def roc(self) -> curves.Roc:
        """Return the receiver operating characteristic, at the thresholds between the cells.

        Returns
        -------
        Roc
            `false_positive_rate`, `true_positive_rate` and `threshold`: arrays.

        Examples
        --------
        >>> score = ClassCalibration().add(Classes(np.array([0.2, 0.4, 0.6, 0.8])), np.array([0, 1, 0, 1]))
        >>> score.roc().true_positive_rate, score.auc
        (array([0. , 0.5, 0.5, 1. , 1. ]), 0.75)
        """
        self._check_both()
        return curves.roc(self.cells)

    def lift(self) -> curves.Lift:
        """Return how many of the events are among the rows with the largest probabilities.

        Returns
        -------
        Lift
            `rows`, `events` and `lift`: arrays.

        Examples
        --------
        >>> score = ClassCalibration().add(Classes(np.array([0.2, 0.4, 0.6, 0.8])), np.array([0, 1, 0, 1]))
        >>> score.lift().rows, score.lift().lift.round(2)
        (array([0.25, 0.5 , 0.75, 1.  ]), array([2.  , 1.  , 1.33, 1.  ]))
        """
        self._check_both()
        return curves.lift(self.cells)

    def _check_both(self) -> None:
        self._check_rows()
        if not (np.asarray(self.outcomes).sum(axis=1) > 0).all():
            raise ValueError("The ROC and lift curves need rows of both classes; all scored rows have the same one.")


def check_probabilities(p: Array) -> None:
    """Raise a ValueError if some of the numbers are no probabilities; NaN is none that is stated."""
    numbers = concrete(p)
    wrong = None if numbers is None else (np.asarray(numbers) < 0) | (np.asarray(numbers) > 1)
    if wrong is not None and wrong.any():
        raise ValueError(
            f"mean must hold probabilities, between 0 and 1; got {np.asarray(numbers)[wrong].flat[0]:g}, and "
            f"{wrong.sum()} such value(s) in all."
        )


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
