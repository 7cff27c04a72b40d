"""Run lengths: how probable it is that the current regime began at each row, with a regression for each beginning."""

import math
from typing import Any

import numpy as np
from scipy.special import gammaln

from kalprox.base.arrays import Array
from kalprox.base.pickling import PickledFields
from kalprox.base.tree import Sizes, expect, leaf, state
from kalprox.kernel.followers import CompiledRuns

__all__ = ["RUNS", "RunLengths"]

RUNS = 10  # runs that are kept of each kind
_OUTLIERS = 0.01  # the share of outliers that is expected at first, which is worth as many rows:
_OUTLIER_ROWS = 1000
_FEWEST_OUTLIERS = 0.005  # the share that is always expected, so that a single row is no change
_OUTLIER_SCALE = 5.0  # the scale of their Cauchy distribution, in stds of the noise
_SURPRISE = 4.0  # the squared error of a row, in units of its variance, that a young run does not take for noise
_FARTHEST = 36.0  # the largest squared error, in units of its variance, that counts for the kurtosis
_WIDEST = 1e8  # the largest variance of a coefficient, in units of the noise variance
_SMALLEST = 1e-14  # the smallest noise variance, in units of the variance of the first targets
# As the compiled kernel takes them.
_CONSTANTS = np.array(
    [_OUTLIER_ROWS, _FEWEST_OUTLIERS, _OUTLIER_SCALE, _SURPRISE, _FARTHEST, _WIDEST, _SMALLEST], float
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
        some = np.extract(squared <= _FARTHEST, squared)
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
