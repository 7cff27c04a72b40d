"""The verdict on a stream of predictions: calibrated, over-confident or under-confident."""

import math
from typing import NamedTuple

from scipy import special

__all__ = ["BINS", "FALSE_ALARMS", "FEWEST_ROWS", "LEVELS", "MATERIAL", "Verdict", "expected_ranges", "judge"]

LEVELS = (0.5, 0.8, 0.95)  # of the central intervals whose coverage is counted
BINS = 20  # of the PIT histogram
FALSE_ALARMS = 0.01  # the largest probability that a calibrated stream is not called calibrated
MATERIAL = 0.05  # a relative error of the std below this is called calibrated, however many rows there are
FEWEST_ROWS = 30  # from this number on, a std wrong by a factor of two is detected with probability 0.99


class Verdict(NamedTuple):
    """A word for the calibration of a stream, and the numbers behind it; `str(verdict)` adds advice.

    Attributes
    ----------
    word : str
        "calibrated", "over-confident", "under-confident" or "too few rows to say".
    rows : float
        The number of rows judged.
    worth : float
        The number of rows, each predicted on its own, that would be as informative. It is smaller than `rows` where
        blocks of rows were predicted from one noise variance learned with few degrees of freedom.
    undetermined : float
        The number of rows not judged, because no finite predictive distribution was stated.
    nis : float
        The mean squared normalised innovation; 1 is expected.
    nis_bounds : tuple of float
        The range of `nis` that counts as calibrated.
    coverage : float
        The share of rows inside their central 95% interval.
    coverage_bounds : tuple of float
        The range of `coverage` that counts as calibrated.
    shape_p_value : float
        The p-value of the PIT histogram's uniformity; NaN below 100 effective rows.
    """

    word: str
    rows: float
    worth: float
    undetermined: float
    nis: float
    nis_bounds: tuple[float, float]
    coverage: float
    coverage_bounds: tuple[float, float]
    shape_p_value: float

    def __str__(self) -> str:
        text = f"{self.word}: "
        if self.rows > 0:
            size, (a, b), (c, d) = self.nis**0.5, self.nis_bounds, self.coverage_bounds
            fewer = "" if self.worth > 0.9 * self.rows else f" (as informative as {self.worth:.0f})"
            text += (
                f"over {self.rows:.10g} rows{fewer} the errors are {size:.3g} times as large as stated "
                f"(NIS {self.nis:.3g}, expected {a:.2f} to {b:.2f}) and 95% intervals cover "
                f"{self.coverage:.1%} (expected {c:.1%} to {d:.1%}). "
            )
        text += _ADVICE[self.word]
        if self.word == "calibrated" and self.shape_p_value < FALSE_ALARMS:
            text += (
                " The spread is right but the shape is not (the PIT histogram is not uniform, "
                f"p = {self.shape_p_value:.1g}): look for bias, skewness or outliers."
            )
        if self.undetermined > 0:
            text += f" {self.undetermined:.10g} more rows had no finite std and were not judged."
        return text


_ADVICE = {
    "calibrated": "The stated std is reliable.",
    "over-confident": "The stated std is too small: widen it, or look for what the model leaves out, such as drift, "
    "a missing input, or a linearisation far from the solution.",
    "under-confident": "The stated std is too large: learn the noise variance, or give a smaller one.",
    "too few rows to say": f"At least {FEWEST_ROWS} scored predictions are needed; with fewer, a std off by a factor "
    "of two could go unnoticed.",
}


def judge(rows: float, shared: float, undetermined: float, nis: float, coverage: float, uniformity: float) -> Verdict:
    """The verdict on the sums of a `Calibration`, where its `verdict` explains the tests.

    `shared` is the number of pairs of rows that share a learned noise variance, each divided by its degrees of freedom;
    `coverage` is that of the 95% intervals, and `uniformity` Pearson's statistic of the PIT histogram.
    """
    effective = rows / (1 + shared / rows) if rows > 0 else 0.0
    nis_bounds, coverage_bounds = expected_ranges(effective)
    if nis > nis_bounds[1] or coverage < coverage_bounds[0]:
        word = "over-confident"
    elif nis < nis_bounds[0] or coverage > coverage_bounds[1]:
        word = "under-confident"
    else:
        word = "calibrated" if effective >= FEWEST_ROWS else "too few rows to say"
    statistic = uniformity * effective / rows if effective >= 5 * BINS else math.nan
    p_value = float(special.chdtrc(BINS - 1, statistic))
    return Verdict(word, rows, effective, undetermined, nis, nis_bounds, coverage, coverage_bounds, p_value)


def expected_ranges(n: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ranges of NIS and of the 95% coverage of n independent calibrated rows, but for `FALSE_ALARMS`.

    n NIS is chi-square with n degrees of freedom, and the number of covered rows is binomial. Neither range is narrower
    than what a std wrong by `MATERIAL` leads to.
    """
    if n <= 0:
        return (0.0, math.inf), (0.0, 1.0)
    tail = FALSE_ALARMS / 4  # two tests, two sides
    low, high = 2 * special.gammaincinv(n / 2, tail) / n, 2 * special.gammainccinv(n / 2, tail) / n
    trials = max(round(n), 1)
    few, many = _binomial_quantile(tail, trials) / trials, _binomial_quantile(1 - tail, trials) / trials
    z = special.ndtri((1 + LEVELS[-1]) / 2)
    wide, narrow = (2 * special.ndtr(z * f) - 1 for f in (1 + MATERIAL, 1 - MATERIAL))
    return (
        (float(min(low, (1 - MATERIAL) ** 2)), float(max(high, (1 + MATERIAL) ** 2))),
        (float(min(few, narrow)), float(max(many, wide))),
    )


def _binomial_quantile(p: float, n: int) -> float:
    """The smallest k with P(at most k of n rows are covered) >= p. (scipy.stats has it, and takes 0.5 s to import.)"""
    k = math.ceil(special.bdtrik(p, n, LEVELS[-1]))
    return float(k - 1 if k > 0 and special.bdtr(k - 1, n, LEVELS[-1]) >= p else k)
