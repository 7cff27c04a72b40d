"""Change points of a stream: the rows at which the past stopped applying, from the run lengths of its rows."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import gammaln

from kalprox.base.arrays import Array
from kalprox.base.tree import MODERATE, PickledFields, Sizes, copied, expect, leaf, state
from kalprox.calibration import ChangePoint, Changes
from kalprox.kernel.filter import CompiledRuns
from kalprox.learning.belief import Belief
from kalprox.learning.settings import Settings
from kalprox.models import LINKS
from kalprox.sources import Block

RUNS = 10  # runs that are kept of each kind
_OUTLIERS = 0.01  # the share of outliers that is expected at first, which is worth as many rows:
_OUTLIER_ROWS = 1000
_FEWEST_OUTLIERS = 0.005  # the share that is always expected, so that a single row is no change
_OUTLIER_SCALE = 5.0  # the scale of their Cauchy distribution, in stds of the noise
_SURPRISE = 4.0  # the squared error of a row, in units of its variance, that a young run does not take for noise
_LARGEST_ERROR = 36.0  # the largest squared error, in units of its variance, that counts for the kurtosis
_WIDEST = 1e8  # the largest variance of a coefficient, in units of the noise variance
_SMALLEST = 1e-14  # the smallest noise variance, in units of the variance of the first targets
# As the compiled kernel takes them.
_CONSTANTS = np.array(
    [_OUTLIER_ROWS, _FEWEST_OUTLIERS, _OUTLIER_SCALE, _SURPRISE, _LARGEST_ERROR, _WIDEST, _SMALLEST], float
)


@state(frozen=False)
class RunLengths(PickledFields):
    """The posterior of the row at which the current run began, for rows y = u'theta + noise.

    Within a run the coefficients and the noise variance are constant, and with each row a new run begins with the
    probability `hazard`. For each beginning there is a conjugate regression of the rows since then, whose predictive
    distribution is Student's t: the weight of a run is multiplied by the density that it gave to the next row. A new
    run starts from what the most probable one knows, faded to one row for the level, one row for each coefficient, and
    `new_dof` degrees of freedom for the noise. So nothing depends on units, and a run pays for what it learns anew.
    Where there are coefficients besides the level, there are two new runs, each with half of the probability: the
    second one keeps the coefficients, so that a small change of the level or the noise is found as early as if there
    were none.

    With the probability `outliers`, which is learned, a row is an outlier, with a Cauchy distribution around the most
    probable run: it then says nothing about any run, and each run counts it by the probability that it is none. And as
    long as a run has fewer rows than coefficients, it explains rows that surprise it by its coefficients and not by its
    noise, which would seem to fall again later: its covariance is widened for them, after it was judged by them.

    `RUNS` runs of each kind are kept. Of two neighbours that began at about the same time, relative to their age, the
    earlier one is given up, and its weight goes to the later one: no weight is lost, and the beginnings that are left
    are close together among the last rows and far apart earlier. But for these three approximations the posterior is
    exact.
    O(runs m^2) per row.

    If nothing changes, the odds of a change since some row grow by `hazard` per row on average, whatever the priors of
    the runs are: the odds reach A at most once in A / hazard rows on average.

    Attributes
    ----------
    hazard : float
        The probability that a run begins with a row.
    theta : array of shape (places, m)
        The coefficients of each run; the first one is the level. There is one place more than runs are kept, and
        as many places again for the runs that began with the coefficients of the run before them.
    root : array of shape (places, m, m)
        root' root is the covariance of theta in units of the noise variance.
    rss, dof : arrays of shape (places,)
        The noise variance is rss / dof, with as many degrees of freedom.
    size : array of shape (places,)
        The number of rows that a run knows, with what it keeps of the past.
    start, time : arrays of shape (places,)
        The number of rows before the run, and the time of its first row.
    weight : array of shape (places,)
        The probability of each run; 0 for a place that is free.
    rows : int
        The number of rows learned.
    outliers : float
        The share of outliers; 0 for plain conjugate regressions, without outliers or surprises.
    new_dof : float
        The degrees of freedom with which a new run knows its noise variance: 1 if it may be any, and many if it hardly
        changes.
    known : int
        The number of rows before which all changes were reported: no weight moves from runs that began before to those
        that began later.
    moments : array of shape (3,)
        The number of errors of the most probable run, and the sums of their squares and fourth powers, in units of
        their std; see `power`.

    References
    ----------
    R. P. Adams and D. J. C. MacKay, "Bayesian online changepoint detection", 2007. A. N. Shiryaev, "On optimum methods
    in quickest detection problems", 1963, for the odds as a statistic.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.concatenate([rng.normal(size=200), rng.normal(3, 1, size=10)])
    >>> runs = RunLengths.after_first_rows(np.ones((30, 1)), y[:30], hazard=0.001)
    >>> for value in y[30:]:
    ...     runs.learn(np.ones(1), value)
    >>> round(runs.changed, 3), int(runs.start[runs.lead])
    (1.0, 200)
    """

    hazard: float
    theta: Array = leaf("r,m", values="moderate")
    root: Array = leaf("r,m,m", values="moderate")
    rss: Array = leaf("r", sign="positive", values="moderate")
    dof: Array = leaf("r", sign="positive")
    size: Array = leaf("r", sign="positive")
    start: Array = leaf("r", sign="nonnegative")
    time: Array = leaf("r", values="any")
    weight: Array = leaf("r", sign="nonnegative")
    rows: int
    outliers: float
    new_dof: float = leaf(sign="positive")
    known: int
    moments: Array = leaf("3", sign="nonnegative", values="moderate")

    def __post_init__(self) -> None:
        places, m = self.theta.shape
        self._by_kind = np.arange(places).reshape(_kinds(m), -1)
        self._is_new = np.arange(places) < self._by_kind.shape[1]  # began with new coefficients too
        arrays = self.theta, self.root, self.rss, self.dof, self.size, self.start, self.time, self.weight, self.moments
        self._compiled = CompiledRuns.of(_kinds(m), arrays, _CONSTANTS)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.__post_init__()

    @classmethod
    def after_first_rows(
        cls,
        U: Array,
        y: Array,
        hazard: float,
        *,
        before: int = 0,
        time: float = 0.0,
        outliers: float = _OUTLIERS,
        new_dof: float = 1.0,
        keep: int = RUNS,
    ) -> "RunLengths":
        """Return the one run of the first rows, which are fitted by least squares. O(n m^2).

        Parameters
        ----------
        U : array of shape (n, m)
            The first column is 1.
        y : array of shape (n,)
        hazard : float
        before : int
            The number of rows before these.
        time : float
            The time of the first of them.
        outliers, new_dof : float
        keep : int
            The number of runs of each kind that are kept.

        Returns
        -------
        RunLengths
        """
        n, m = U.shape
        values, vectors = np.linalg.eigh(U.T @ U)
        root = vectors / np.sqrt(np.maximum(values, 0) + 1 / _WIDEST)
        theta = root @ (root.T @ (U.T @ y))
        error, dof = y - U @ theta, max(n - float(((U @ root) ** 2).sum()), 1.0)
        places = (keep + 1) * _kinds(m)
        made = cls(
            hazard=hazard,
            theta=np.zeros((places, m)),
            root=np.zeros((places, m, m)),
            rss=np.ones(places),
            dof=np.ones(places),
            size=np.ones(places),
            start=np.full(places, float(before)),
            time=np.full(places, time),
            weight=np.zeros(places),
            rows=before + n,
            outliers=outliers,
            new_dof=new_dof,
            known=before + n - 1,
            moments=np.zeros(3),
        )
        made._count(error**2 * dof / max(float(error @ error), dof * _SMALLEST))
        made.theta[0], made.root[0], made.weight[0] = theta, root.T, 1.0
        made.rss[0], made.dof[0], made.size[0] = max(float(error @ error), dof * _SMALLEST), dof, n
        return made

    @property
    def lead(self) -> int:
        """The place of the most probable run."""
        return int(self.weight.argmax())

    @property
    def changed(self) -> float:
        """The probability of a change that is not reported yet: that the current run began after `known` rows."""
        return float(self.weight[self.start > self.known].sum())

    def learn(self, u: Array, y: float, weight: float = 1.0, count: float = 1.0, time: float = 0.0) -> None:
        """Learn one row in place.

        Parameters
        ----------
        u : array of shape (m,)
            The first entry is 1.
        y : float
        weight : float
            The inverse of the variance of its noise, in units of the noise variance; for a row that counts several
            times, as many times that.
        count : float
            How many rows it counts for.
        time : float
            The time of the row.
        """
        if self._compiled is None:
            self._learn(u, y, weight, count, time)
        else:
            about = self.hazard, self.outliers, self.rows, self.known, self.new_dof
            self.outliers = self._compiled.learn(u, (y, weight, count, time, *about))
        self.rows += 1

    def _learn(self, u: Array, y: float, weight: float, count: float, time: float) -> None:
        """`learn` without the compiled kernel."""
        lead = self.lead
        self._begin(lead, time)
        theta, root, rss, dof = self.theta, self.root, self.rss, self.dof
        v, error = root @ u, y - theta @ u
        leverage, squared = np.vecdot(v, v), error**2
        s, after = 1 + weight * leverage, dof + count
        log_p = gammaln(after / 2) - gammaln(dof / 2)
        log_p -= 0.5 * (np.log(s) + after * np.log(rss + squared * weight / s) - dof * np.log(rss))
        w, counted, power = np.full(len(s), weight), np.full(len(s), count), 1.0
        if self.outliers > 0:
            power, far = self.power, weight * squared * dof / (s * rss)
            scale = _OUTLIER_SCALE * math.sqrt(rss[lead] / dof[lead] * count / weight)
            # A factor of (weight / count / pi)^(count / 2) is left out of all densities.
            cauchy = math.log(scale * (1 + (float(error[lead]) / scale) ** 2) * math.sqrt(math.pi * weight / count))
            log_p += math.log1p(-self.outliers)
            either = np.logaddexp(log_p, math.log(self.outliers) - count * cauchy)
            good = np.exp(log_p - either)  # the probability that the row is no outlier of the run
            self._count(far[lead])
            share = (1 - float(good[lead]) - self.outliers) / (_OUTLIER_ROWS + self.rows)
            self.outliers = max(self.outliers + share, _FEWEST_OUTLIERS)
            log_p, w, counted = either, weight * good, count * good
            # Young runs, with fewer rows than coefficients, explain rows that surprise them by coefficients, not noise.
            young = (self.rows - self.start < len(u)) & self._is_new
            wider = np.where(young, np.maximum(far / _SURPRISE, 1.0), 1.0)
            root *= np.sqrt(wider)[:, None, None]
            v *= np.sqrt(wider)[:, None]
            s = 1 + w * leverage * wider
        w /= s
        gain = (v[:, None] @ root)[:, 0]
        theta += gain * (w * error)[:, None]
        root -= (v * (w / (1 + 1 / np.sqrt(s)))[:, None])[:, :, None] * gain[:, None]  # Potter's update
        dof += counted
        rss[:] = np.maximum(rss + squared * w, dof * _SMALLEST)
        self.size += counted
        log_p *= power
        self.weight *= np.exp(np.minimum(log_p - log_p[self.weight > 0].max(), 0.0))
        self.weight /= self.weight.sum()
        self._make_room()

    @property
    def power(self) -> float:
        """The power of the densities by which the runs are judged: 1 if the noise is normal.

        If the errors have the kurtosis k, the sum of the squares of n of them varies as that of 2 n / (k - 1) normal
        ones: heavy or skewed tails, and a noise that depends on the inputs, make the spread of a short run differ from
        that of others for no reason. The power lets them tell as little as they do. It is 1 as long as normal errors
        would have such a kurtosis, too, and where a new run knows its spread.
        """
        n, second, fourth = self.moments
        if self.new_dof > 1:
            return 1.0
        kurtosis = n * fourth / second**2 if second > 0 else 3.0
        return 1.0 if kurtosis < 3 + math.sqrt(24 / n) else 2 / (kurtosis - 1)

    def _count(self, squared: Array) -> None:
        """Count squared errors, in units of their variance, for `power`; none that are surely outliers."""
        some = np.extract(squared <= _LARGEST_ERROR, squared)
        self.moments += np.array([len(some), some.sum(), (some * some).sum()])

    def _begin(self, lead: int, time: float) -> None:
        """Let runs begin with the next row, in free places, from what the most probable run knows: one of each kind."""
        root, size = self.root[lead], float(self.size[lead])
        m = len(root)
        room = _WIDEST / np.maximum((root * root).sum(axis=0), 1 / _WIDEST)  # a coefficient may be undetermined
        widen = np.maximum(np.minimum(room, size / m), 1)
        widen[0] = level = max(min(room[0], size), 1)
        self.weight *= 1 - self.hazard
        places = self._by_kind[np.arange(len(self._by_kind)), self.weight[self._by_kind].argmin(axis=1)]
        self.theta[places], self.start[places], self.time[places] = self.theta[lead], self.rows, time
        self.weight[places] = self.hazard / len(places)
        self.rss[places], self.dof[places] = self.rss[lead] / self.dof[lead] * self.new_dof, self.new_dof
        np.multiply(root, np.sqrt(widen), out=self.root[places[0]])
        self.size[places[0]] = min(size, m)
        for new in places[1:]:
            self.root[new], self.size[new] = root, size
            self.root[new, :, 0] *= level**0.5

    def _make_room(self) -> None:
        """Give up a run of each kind that has no free place for the next one."""
        for runs in self._by_kind:
            if not self.weight[runs].all():
                continue
            order = runs[self.start[runs].argsort()]
            start, weight = self.start[order], self.weight[order]
            loss = weight[:-1] * (start[1:] - start[:-1]) / (self.rows + 1 - start[:-1])
            loss[(start[:-1] <= self.known) & (start[1:] > self.known)] = math.inf
            i = int(loss.argmin())
            self.weight[order[i + 1]] += weight[i]
            self.weight[order[i]] = 0.0

    def _check_restored(self, _: Sizes) -> None:
        """Raise a ValueError if the arrays cannot be those of runs."""
        expect(len(self.weight) == (RUNS + 1) * _kinds(self.theta.shape[1]))
        expect(abs(self.weight.sum() - 1) < 1e-6 and not self.weight[self._by_kind].all(axis=1).any())
        expect((self.start <= self.rows).all() and 0 < self.hazard < 1)
        expect(0 <= self.outliers < 1 and self.moments[0] >= 1)


def _kinds(m: int) -> int:
    """Return how many kinds of runs begin with a row: with or without new coefficients, if there are any."""
    return 1 if m == 1 else 2


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
