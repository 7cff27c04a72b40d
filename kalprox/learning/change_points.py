"""Change points of a stream: the rows at which the past stopped applying, from the run lengths of its rows."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import MODERATE, Sizes, copied, expect, leaf, state
from kalprox.calibration import ChangePoint, Changes
from kalprox.learning.belief import Belief
from kalprox.learning.run_lengths import RunLengths
from kalprox.learning.settings import Settings
from kalprox.models import LINKS
from kalprox.sources import Block

__all__ = ["MOST_COLUMNS", "REPORTED", "ChangeDetector"]

REPORTED = 0.99  # the probability from which on a change is reported
MOST_COLUMNS = 64  # of a linear model whose runs are regressions on all columns
_FEWEST_ROWS = 2  # of a run before it is reported: one row is no change
_FIRST_ROWS = 32  # that are learned, or two for each coefficient, before changes are looked for
_APART = 2  # rows for each coefficient, within which a second change is not told apart from the first
_REFERENCE = 100, 10  # rows, or rows for each coefficient, after which an estimate can be a reference
_MOST_POINTS = 100  # change points that are kept
_KNOWN_SPREAD = 100.0  # degrees of freedom with which a new run knows the spread of counts and classes, which is theirs
_LARGEST = 1e30  # times the spread of the first rows; larger values have squares that overflow
_FITS = 4  # of the first rows, each without the outliers of the one before, and with its residuals as a column
_OUTLYING, _MEDIAN = 6.0, 0.6745  # stds beyond which a first row is an outlier; the median of |z| if z is normal
_FARTHEST = 3.0  # noise stds to which the residual before a row is bounded


@state
class ChangeDetector:
    """What finds change points: the run lengths of the rows, and the change points found so far. Immutable.

    For a linear model with at most `MOST_COLUMNS` columns, each run is a regression on all columns, which finds a
    change of any coefficient, of the level and of the noise, and does not depend on the batches, the penalty or the
    forgetting of the model. For other models, runs have a level and a spread only, of the residuals of a reference: an
    earlier estimate of the model, which is replaced by the current one, and the runs begin anew, whenever the number of
    rows has doubled. (The residuals of the current estimate would go on changing while it adapts to a change.)
    The residual before a row is one more column of all runs, so that correlated errors are not taken for changes.

    A change is reported once, as soon as its probability is 0.99 and two rows follow it. If nothing changes, that
    happens at most once in 99 times the expected run length, on average; that of errors which are not normal is kept
    near that by `RunLengths.power`.

    Attributes
    ----------
    kind : {"coefficients", "residuals"}
    rows : int
        The number of rows learned.
    center, scale : arrays of shape (c,)
        What is subtracted from the c columns, and what they are divided by: of the first rows.
    unit : array of shape (2,)
        The same for the target.
    reference : array of shape (1 + d,) or (2 + d,)
        The intercept and the coefficients of the reference, and the dispersion if the model learns it; empty if there
        is none.
    since : int
        The number of rows when the reference was made.
    held : array of shape (h, c + 4)
        The first rows, until there are enough: columns, target, weight, count and time.
    last : float
        The last residual, bounded.
    runs : RunLengths or None
        Once there are enough rows.
    points : array of shape (p, 5)
        The last change points; times are NaN if rows have none.
    found : int
        The number of change points found.
    """

    kind: str
    rows: int
    center: Array = leaf("c", values="moderate")
    scale: Array = leaf("c", sign="positive")
    unit: Array = leaf("2", values="moderate")
    reference: Array = leaf("r", values="moderate")
    since: int
    held: Array = leaf("h,c+4", values="any", rows=True)
    last: float = leaf(values="moderate")
    runs: RunLengths | None
    points: Array = leaf("f,5", values="any")
    found: int

    @classmethod
    def start(cls, settings: Settings, d: int, rows: int) -> "ChangeDetector":
        """Return the detector of a stream of rows with d columns, of which some were learned before."""
        regression = settings.is_exact and not settings.noise_depends_on_inputs and d <= MOST_COLUMNS
        c = d if regression else 0
        return cls(
            kind="coefficients" if regression else "residuals",
            rows=rows,
            center=np.zeros(c),
            scale=np.ones(c),
            unit=np.array([0.0, 1.0]),
            reference=np.empty(0),
            since=0,
            held=np.empty((0, c + 4)),
            last=0.0,
            runs=None,
            points=np.empty((0, 5)),
            found=0,
        )

    # ---- learning --------------------------------------------------------------------------------------

    def after(self, block: Block, belief: Belief, *, first: bool = True) -> "ChangeDetector":
        """Return the detector after a block of rows.

        `belief` is the one before the block, of which this is the `first` part or a later one.
        """
        settings, block = belief.settings, block.weighted()
        weights = np.asarray(block.weights)
        known = weights > 0
        if not known.any():
            return self
        new = self._with_reference(belief) if first and self.kind == "residuals" else self
        if new.kind == "residuals" and not len(new.reference):
            return replace(new, rows=new.rows + int(known.sum()))
        counts = np.ones(len(block)) if settings.weight_kind == "precision" else weights
        times = np.full(len(block), np.nan) if block.times is None else block.times
        X, y = new._observed(block, belief)
        table = np.column_stack([X, y, weights, counts, times])[known]
        new_dof = 1.0 if settings.likelihood.learns_noise else _KNOWN_SPREAD
        assert settings.change_points is not None
        return new._learned(table, 1 / settings.change_points, new_dof)

    def _with_reference(self, belief: Belief) -> "ChangeDetector":
        """Return the detector with the current estimate as the reference, if it is time for another one."""
        fewest, per_coefficient = _REFERENCE
        early = self.rows < max(fewest, per_coefficient * belief.coef.size, 2 * self.since)
        if early or not belief.predicts or (self.runs is not None and self.runs.changed > 0.5):
            return self
        learned = [getattr(belief.posterior.likelihood, name) for name in _learned_parameter(belief.settings)]
        reference = np.concatenate([belief.intercept.reshape(1), belief.coef.ravel(), learned])
        return replace(self, reference=reference, since=self.rows, runs=None, held=self.held[:0], last=0.0)

    def _observed(self, block: Block, belief: Belief) -> tuple[Array, Array]:
        """Return the columns and the targets of the runs."""
        if self.kind == "coefficients":
            return block.X, block.y
        d, settings = block.X.shape[1], belief.settings
        f = np.vecdot(block.X, self.reference[1 : 1 + d]) + self.reference[0]  # row by row: the same bits for any block
        f = f if block.offset is None else f + block.offset
        likelihood = settings.likelihood
        if likelihood.location:
            return np.empty((len(f), 0)), block.y - LINKS[settings.link](f)[0]
        learned = dict(zip(_learned_parameter(settings), self.reference[1 + d :], strict=True))
        if learned:
            likelihood = type(likelihood)(**learned)
        slope, curvature = likelihood.expand(block.y, f)
        return np.empty((len(f), 0)), -np.asarray(slope) / np.sqrt(np.asarray(curvature))

    def _learned(self, table: Array, hazard: float, new_dof: float) -> "ChangeDetector":
        """Return the detector after rows of the same columns as `held`."""
        runs, last, new, points = self.runs, self.last, self, []
        m, first = len(self.center) + 2, 0
        if runs is None:
            known = np.flatnonzero(_is_known(table))
            missing = max(_FIRST_ROWS, 2 * m) - len(self.held)
            held = np.concatenate([self.held, table[known[:missing]]])
            if len(known) < missing:
                return replace(self, held=held, rows=self.rows + len(table))
            first = int(known[missing - 1]) + 1
            new, runs, last = self._begun(held, self.rows + first, hazard, new_dof)
        runs = replace(copied(runs), hazard=hazard)
        for residual, time in new.steps(runs, last, table[first:]):
            last, lead = residual, runs.lead
            start, probability = runs.start[lead], 0.0
            if start > runs.known and runs.rows - start >= _FEWEST_ROWS:
                probability = runs.changed
            if probability >= REPORTED:
                points.append([runs.rows, start + 1, min(probability, 1.0), time, runs.time[lead]])
                runs.known = runs.rows + _APART * m
        kept = np.concatenate([self.points, np.reshape(points, (-1, 5))])[-_MOST_POINTS:]
        return replace(new, runs=runs, last=last, rows=runs.rows, points=kept, found=self.found + len(points))

    def steps(self, runs: RunLengths, last: float, table: Array) -> Iterator[tuple[float, float]]:
        """Let the runs learn rows in place, one at each step, and yield the residual of the row and its time.

        `last` is the residual before the first row, and the rows have the columns of `held`. A row of which a value is
        not known only counts.
        """
        known = _is_known(table).tolist()
        U = np.empty((len(table), len(self.center) + 2))
        U[:, 0], U[:, 1:-1] = 1.0, np.clip((table[:, :-4] - self.center) / self.scale, -_LARGEST, _LARGEST)
        y = np.clip((table[:, -4] - self.unit[0]) / self.unit[1], -_LARGEST, _LARGEST).tolist()
        for u, target, weight, count, time, learned in zip(U, y, *table[:, -3:].T.tolist(), known, strict=True):
            if not learned:
                runs.rows += 1
                yield last, time
                continue
            u[-1] = last
            runs.learn(u, target, weight, count, time)
            lead = runs.lead
            bound = _FARTHEST * math.sqrt(runs.rss[lead] / runs.dof[lead])
            last = min(max(target - float(runs.theta[lead, :-1] @ u[:-1]), -bound), bound)
            yield last, time

    def _begun(
        self, held: Array, rows: int, hazard: float, new_dof: float
    ) -> tuple["ChangeDetector", RunLengths, float]:
        """Return the detector in the units of the first rows, their run, and the last residual."""
        X, (y, weights, _, times) = held[:, :-4], held[:, -4:].T
        center, scale = X.mean(axis=0), X.std(axis=0)
        scale = np.where(scale > np.finfo(float).eps * np.abs(center), scale, np.maximum(np.abs(center), 1.0))
        unit = np.array([y.mean(), y.std()])
        if not unit[1] > np.finfo(float).eps * abs(unit[0]):
            unit[1] = max(abs(unit[0]), 1.0)
        root = np.sqrt(weights)
        U = np.column_stack([np.ones(len(X)), (X - center) / scale, np.zeros(len(X))])
        y = (y - unit[0]) / unit[1]
        options: dict[str, Any] = {"time": float(times[0]), "new_dof": new_dof}
        good, bound = np.ones(len(X), bool), math.inf
        for _ in range(_FITS):
            before = rows - int(good.sum())
            runs = RunLengths.after_first_rows(
                (U * root[:, None])[good], (y * root)[good], hazard, before=before, **options
            )
            residuals = y - U[:, :-1] @ runs.theta[0, :-1]
            spread = float(np.median(np.abs(residuals))) / _MEDIAN
            good = np.abs(residuals) <= (_OUTLYING * spread if spread > 0 else math.inf)
            bound = _FARTHEST * math.sqrt(runs.rss[0] / runs.dof[0])
            U[1:, -1] = np.clip(residuals[:-1], -bound, bound)
        new = replace(self, center=center, scale=scale, unit=unit, held=self.held[:0])
        return new, runs, float(np.clip(residuals[-1], -bound, bound))

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def changes(self) -> Changes:
        """What was found."""
        points = tuple(
            ChangePoint(int(row), int(start), float(probability), *(None if np.isnan(t) else float(t) for t in times))
            for row, start, probability, *times in self.points
        )
        runs = self.runs
        return Changes(points, self.found, 0.0 if runs is None else runs.changed, self.kind if runs else "")

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError if this cannot be the detector of rows with the columns of a file."""
        c, d = len(self.center), sizes["d"] or 0
        expect((self.kind, c) in (("coefficients", d), ("residuals", 0)) and self.unit[1] > 0)
        expect(len(self.reference) in (0, 1 + d, 2 + d) and (self.reference[1 + d :] > 0).all())
        expect(len(self.held) < max(_FIRST_ROWS, 2 * (c + 2)) and (self.held[:, -3] > 0).all())
        expect(len(self.points) <= min(_MOST_POINTS, self.found) and np.isfinite(self.points[:, :3]).all())
        expect(np.isfinite(self.held[:, :-1]).all() and (np.abs(self.held[:, :-1]) <= MODERATE).all())
        expect(self.runs is None or self.runs.theta.shape[1] == c + 2)


def _learned_parameter(settings: Settings) -> list[str]:
    """Return the name of the parameter of a likelihood of counts that is learned, if there is one."""
    loss = settings.likelihood
    return [] if loss.location or loss.first is None or loss.parameter is None else [loss.parameter]


def _is_known(table: Array) -> Array:
    """Return which rows have no missing values, but for times."""
    known: Array = np.isfinite(table[:, :-1]).all(axis=1)
    return known
