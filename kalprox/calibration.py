"""Is the stated uncertainty true? Diagnostics that run along as rows stream through, and a verdict in words.

Predict each block before learning it, and show both to a `Calibration`. Every error is turned into
its normal score u = Phi^-1(F(y)), F the predictive distribution function, normal or Student's: where the
predictions are right, u is standard normal whatever the degrees of freedom, so that every diagnostic
is read off u and every bound is exact.
"""

import math
from dataclasses import field, fields
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import special, stats

from kalprox._arrays import Array, namespace, pytree
from kalprox._checks import check_finite, check_positive, concrete
from kalprox.predictive import special_functions, standard_score

__all__ = ["LEVELS", "Calibration", "Verdict"]

LEVELS = (0.5, 0.8, 0.95)  # of the central intervals whose coverage is counted
BINS = 20  # of the PIT histogram
FALSE_ALARMS = 0.01  # how often a calibrated stream is called something else, at most
MATERIAL = 0.05  # a std off by less than this share is called calibrated, however many rows say so
FEWEST_ROWS = 30  # from here on, a std wrong by a factor of two is found 99 times in 100


def _zeros(*shape: int) -> Any:
    return field(default_factory=lambda: np.zeros(shape))


@pytree
class Calibration:
    """Sums over the rows shown so far, O(1) of them; `Calibration()` has seen none. Adds up: see `merge`.

    Weights are repetitions: 2 is the row twice, 0 no row, whatever it holds. A row whose predictive std
    (or mean) is infinite or NaN makes no claim that y could contradict. Counting it as covered would flatter
    the coverage, as missed would slander it; it is counted in `undetermined` and in nothing else. A std of 0
    is a claim, and an error then counts as enormous. JAX arrays are followed, under jit too; in
    float32 the counts are exact up to 16.7 million rows.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=1000)
    >>> honest = Calibration().update(np.zeros(1000), np.ones(1000), y)
    >>> honest.verdict().word
    'calibrated'
    >>> print(Calibration().update(np.zeros(1000), np.full(1000, 0.5), y).verdict())
    over-confident: over 1000 rows the errors are 1.96 times as large as stated (NIS 3.83, expected \
0.88 to 1.13) and 95% intervals cover 68.0% (expected 93.0% to 96.8%). The stated std is too small: widen it, \
or look for what the model leaves out: drift, a missing input, a linearisation made too early.
    """

    rows: Any = _zeros()  # judged
    undetermined: Any = _zeros()  # not judged: no finite predictive distribution
    covered: Any = _zeros(len(LEVELS))
    squares: Any = _zeros()  # of u
    pit: Any = _zeros(BINS)  # histogram of Phi(u)
    log_score: Any = _zeros()  # sum of log predictive densities
    errors: Any = _zeros()  # sum of y - mean
    squared_errors: Any = _zeros()
    shared: Any = _zeros()  # pairs of rows predicted from one learned noise level, each over its dof

    def update(
        self,
        mean: Array,
        std: Array,
        y: Array,
        dof: Any = math.inf,
        weights: Array | None = None,
        together: Array | None = None,
    ) -> Self:
        """With a block's predictions, made together before it was learned, and what was then observed.

        Args:
          mean, y: shape (b,), or numbers.
          std: the scale of the predictive distribution (`Noise.std`), same shape, or one for all.
          dof: its degrees of freedom (`Noise.dof`), same shape, or one for all; infinite for normal.
          weights: repetitions, same shape; 1 each when None.
          together: how many rows were predicted at once with each, itself counted, same shape; all when None.

        Any chunking gives the same sums, to rounding; only `shared`, which widens the verdict's bounds, counts
        which rows came together. O(b): about 0.1 us a row, and 0.2 ms a call.
        """
        xp = namespace(mean, std, y, dof, weights)
        y = np.asarray(y, float) if xp is np else xp.asarray(y) * 1.0
        if y.ndim > 1:
            raise ValueError(f"y must be a number or a vector of shape (b,); got shape {y.shape}.")
        y = xp.atleast_1d(y)
        weights = _like(xp, "weights", 1.0 if weights is None else weights, y)
        mean, std, dof = _like(xp, "mean", mean, y), _like(xp, "std", std, y), _like(xp, "dof", dof, y)
        check_positive("weights", weights, strict=False)
        counts = weights > 0
        check_finite("y", xp.where(counts, y, 0))
        negative = concrete(counts & (std < 0))
        if negative is not None and negative.any():
            raise ValueError(f"std must be >= 0; got a negative one in {negative.sum()} row(s). Infinity says unknown.")
        with np.errstate(all="ignore"):  # overflow is caught by value, below
            block = _sums(xp, mean, std, y, dof, weights, together)
        return type(self)(*(_add(getattr(self, f.name), block[f.name]) for f in fields(self)))

    def merge(self, other: Self) -> Self:
        """What both have seen: the same as one stream of all the rows."""
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def nis(self) -> Array:
        """The mean squared normalised innovation, of normal scores: 1 is right, 4 is a std too small by half."""
        return self._mean(self.squares)

    @property
    def coverage(self) -> Array:
        """Which share of the rows fell inside their central interval, for each of `LEVELS`."""
        return self._mean(self.covered)

    @property
    def mean_log_score(self) -> Array:
        """The log predictive density of a row, on average: to compare models on the same rows; higher is better."""
        return self._mean(self.log_score)

    @property
    def bias(self) -> Array:
        """The mean of y - mean."""
        return self._mean(self.errors)

    @property
    def rmse(self) -> Array:
        """The root mean square of y - mean."""
        return self._mean(self.squared_errors) ** 0.5

    @property
    def uniformity(self) -> tuple[float, float]:
        """Pearson's statistic of the PIT histogram against uniform, and its p-value (chi-square, `BINS` - 1).

        It sees what scale alone does not: tails, skewness, bias. Wants 100 rows or more.
        """
        expected = float(self.rows) / BINS
        if expected == 0:
            return math.nan, math.nan
        statistic = float(((np.asarray(self.pit) - expected) ** 2).sum() / expected)
        return statistic, float(special.chdtrc(BINS - 1, statistic))

    def verdict(self) -> "Verdict":
        """Calibrated, over-confident or under-confident, or too few rows to say; with the numbers.

        Two tests, each allowed half of `FALSE_ALARMS`: n NIS against chi-square with n degrees of freedom, and the
        number of rows inside their 95% interval against the binomial law. A calibrated stream is called
        something else at most once in 100. The bounds are never narrower than a std wrong by 5%
        (`MATERIAL`) would need, so that a million rows do not condemn a std wrong by a thousandth.

        Power: a std wrong by a factor f is found 99 times in 100 from 30 rows on for f = 2, 121 for 1.4,
        403 for 1.2 and 1,461 for 1.1, too small or too large. With fewer than `FEWEST_ROWS` rows and nothing
        found, the verdict is "too few rows to say". Where the two tests disagree (many small errors, a few
        huge), over-confident wins: it is the one that hurts.

        The laws hold exactly when rows are predicted one at a time. The b rows of a block share one learned noise
        variance, whose relative variance is 2/dof, so that their sum of squares varies by 2b + 2b(b - 1)/dof
        and not by 2b: they are worth that much fewer rows (`worth`), and the bounds widen. They share the
        error of theta too; that is not counted, and small once rows^2 is well above b d.
        """
        n = float(self.rows)
        worth = n / (1 + float(self.shared) / n) if n > 0 else 0.0
        nis, coverage = float(self.nis), float(self.coverage[-1])
        nis_bounds, coverage_bounds = _bounds(worth)
        if nis > nis_bounds[1] or coverage < coverage_bounds[0]:
            word = "over-confident"
        elif nis < nis_bounds[0] or coverage > coverage_bounds[1]:
            word = "under-confident"
        else:
            word = "calibrated" if worth >= FEWEST_ROWS else "too few rows to say"
        statistic = self.uniformity[0] * worth / n if worth >= 5 * BINS else math.nan
        p_value = float(special.chdtrc(BINS - 1, statistic))
        return Verdict(word, n, worth, float(self.undetermined), nis, nis_bounds, coverage, coverage_bounds, p_value)

    def _mean(self, total: Array) -> Array:
        xp = namespace(total)
        return xp.where(self.rows > 0, total / xp.where(self.rows > 0, self.rows, 1), xp.nan)


class Verdict(NamedTuple):
    """A word, and the numbers behind it; `str` of it says what to do."""

    word: str
    rows: float
    worth: float  # how many rows predicted one at a time say as much
    undetermined: float
    nis: float
    nis_bounds: tuple[float, float]
    coverage: float  # of 95% intervals
    coverage_bounds: tuple[float, float]
    shape_p_value: float  # of the PIT histogram; NaN below 100 rows' worth

    def __str__(self) -> str:
        text = f"{self.word}: "
        if self.rows > 0:
            size, (a, b), (c, d) = self.nis**0.5, self.nis_bounds, self.coverage_bounds
            worth = "" if self.worth > 0.9 * self.rows else f", worth {self.worth:.0f} predicted one at a time,"
            text += (
                f"over {self.rows:.10g} rows{worth} the errors are {size:.3g} times as large as stated "
                f"(NIS {self.nis:.3g}, expected {a:.2f} to {b:.2f}) and 95% intervals cover "
                f"{self.coverage:.1%} (expected {c:.1%} to {d:.1%}). "
            )
        text += _ADVICE[self.word]
        if self.word == "calibrated" and self.shape_p_value < FALSE_ALARMS:
            text += (
                " The spread is right but the shape is not (PIT histogram not uniform, "
                f"p = {self.shape_p_value:.1g}): look for bias, skewness or outliers."
            )
        if self.undetermined > 0:
            text += f" {self.undetermined:.10g} more rows had no finite std and were not judged."
        return text


_ADVICE = {
    "calibrated": "The stated std can be believed.",
    "over-confident": "The stated std is too small: widen it, or look for what the model leaves out: drift, "
    "a missing input, a linearisation made too early.",
    "under-confident": "The stated std is too wide: learn the noise level, or give a smaller one.",
    "too few rows to say": f"Show at least {FEWEST_ROWS} rows' worth: with fewer, a std wrong twofold can pass.",
}


def _bounds(n: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where NIS and the 95% coverage of n independent calibrated rows lie, all but `FALSE_ALARMS` of the time."""
    tail = FALSE_ALARMS / 4  # two tests, two sides
    if n <= 0:
        return (0.0, math.inf), (0.0, 1.0)
    low, high = stats.chi2.ppf([tail, 1 - tail], n) / n
    few, many = stats.binom.ppf([tail, 1 - tail], max(round(n), 1), LEVELS[-1]) / max(round(n), 1)
    z = special.ndtri((1 + LEVELS[-1]) / 2)
    wide, narrow = (2 * special.ndtr(z * f) - 1 for f in (1 + MATERIAL, 1 - MATERIAL))
    return (
        (float(min(low, (1 - MATERIAL) ** 2)), float(max(high, (1 + MATERIAL) ** 2))),
        (float(min(few, narrow)), float(max(many, wide))),
    )


def _like(xp: ModuleType, name: str, value: Any, y: Array) -> Array:
    """`value` in y's dtype; one number, or y's shape."""
    value = xp.asarray(value, y.dtype)
    if value.ndim and value.shape != y.shape:
        raise ValueError(f"{name} must be a number or have y's shape, {y.shape}; got shape {value.shape}.")
    return value


def _add(total: Array, value: Array) -> Array:
    """total + value in total's dtype, so that a carried state keeps its type."""
    total = namespace(value).asarray(total)
    return total + value.astype(total.dtype)


def _sums(
    xp: ModuleType, mean: Array, std: Array, y: Array, dof: Array, weights: Array, together: Array | None
) -> dict[str, Array]:
    """A block's contribution to each field of `Calibration`."""
    counts = weights > 0
    judged = counts & xp.isfinite(mean) & xp.isfinite(std) & xp.isfinite(y) & (dof > 0)
    # What is not judged may hold anything: harmless numbers in its place, with weight 0.
    w = xp.where(judged, weights, 0)
    e = xp.where(judged, y - mean, 0)
    dof = xp.where(dof > 0, dof, xp.inf)
    std = xp.maximum(xp.where(judged, std, 1), xp.finfo(y.dtype).tiny)
    limit = xp.finfo(y.dtype).max ** 0.25  # z^4 stays finite: no single row can turn a sum into NaN
    z = xp.clip(e / std, -limit, limit)
    u, log_density = standard_score(z, dof)
    size = xp.abs(u)
    bins = xp.minimum(special_functions(xp).ndtr(u) * BINS, BINS - 1).astype(int)
    length = {"minlength": BINS} if xp is np else {"length": BINS}  # JAX must know it beforehand
    return {
        "rows": w.sum(),
        "undetermined": xp.where(counts & ~judged, weights, 0).sum(),
        "covered": xp.stack([xp.where(size <= reach, w, 0).sum() for reach in _REACH]),
        "squares": (w * u**2).sum(),
        "pit": xp.bincount(bins, weights=w, **length),
        "log_score": (w * (log_density - xp.log(std))).sum(),
        "errors": (w * e).sum(),
        "squared_errors": (w * e**2).sum(),
        "shared": (xp.maximum((w.sum() if together is None else together) - 1, 0) * (w / dof)).sum(),
    }


_REACH = [float(special.ndtri((1 + level) / 2)) for level in LEVELS]
