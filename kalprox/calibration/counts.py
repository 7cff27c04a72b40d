"""The calibration of predicted counts."""

import math
from typing import Any, ClassVar

import numpy as np
from scipy import special

from kalprox.base.arrays import pytree, static
from kalprox.calibration.checks import CHECK_ALARMS, Check, Stream, correlated, drifting, two_sided, unequal_spread
from kalprox.calibration.sums import Calibration, Findings, Rows
from kalprox.calibration.verdict import FEWEST_ROWS, MATERIAL, TAIL, Range, spread_word
from kalprox.predictive import Counts

MATERIAL_BIAS = 0.05  # of the mean, relative to it
_FEWEST_EVENTS = 10.0  # for the check of the mean


@pytree
class CountCalibration(Calibration):
    """The `Calibration` of predicted counts: Poisson, over-dispersed or negative binomial.

    The score of a count is randomised: u = Phi^-1(F(y - 1) + v P(y)), where v is a uniform number that depends on the
    number of the row in the stream and on its prediction only. If the predictions are right, u is standard normal
    however small the means are, so that `verdict` has the bounds of `Calibration.verdict`. It looks for a wrong mean
    ("biased") besides, and not for heavy tails and skewness, which are part of the spread of counts.

    A y that is no count, such as a rate with its exposure as the weight, cannot be judged by the probability of a
    count: it is counted in `undetermined`. Model counts with the log of the exposure as an offset to have them judged.

    Attributes
    ----------
    expected : array
        The sum of the means.
    variance : array
        The sum of the squared std.
    squared_variance : array
        The sum of the variances of the squared errors, if the predictions are right.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> mean = np.exp(rng.normal(size=2000))
    >>> right = CountCalibration().add(Counts(mean, np.sqrt(mean)), rng.poisson(mean))
    >>> right.verdict().word
    'calibrated'
    >>> scattered = CountCalibration().add(Counts(mean, np.sqrt(mean)), rng.poisson(mean * rng.gamma(1.0, 1.0, 2000)))
    >>> print(scattered.verdict().word, scattered.verdict().advice.split(",")[0], sep=": ")
    over-confident: The counts vary more than stated. Use likelihood="quasi-poisson" or likelihood="negative-binomial"
    """

    predictive: Any = static(default=Counts)
    layout: ClassVar[np.dtype[Any]] = np.dtype(
        [*Calibration.layout.descr, *((name, float) for name in ("expected", "variance", "squared_variance"))]
    )
    kind: ClassVar[str] = "counts"
    material: ClassVar[float] = 0.0  # whether a spread by the scores matters, the squared errors say

    def _add_more(self, sums: Any, rows: Rows) -> None:
        mean, w = rows.mean, rows.weights
        V = self.predictive.of_moments(mean, rows.std, math.inf).std ** 2
        dispersion = (V - mean) / np.maximum(mean, np.finfo(float).tiny) ** 2
        sums["expected"] += mean @ w
        sums["variance"] += V @ w
        sums["squared_variance"] += (V**2 * (2 + 6 * dispersion) + V) @ w  # negative binomial, or binomial

    def _findings(self, stream: Stream, effective: float, ranges: tuple[Range, Range], event: str) -> Findings:
        """As those of numbers, but that tails are part of the spread of counts, which is material by the errors."""
        bias, dispersion = self._bias(stream), self._dispersion(stream, spread_word(float(self.nis), ranges[0]))
        nonlinear = self.curvature.check(stream)
        checks = drifting(stream), correlated(stream), nonlinear, bias, dispersion, unequal_spread(stream)
        enough = min(effective, float(self.expected)) >= FEWEST_ROWS
        return Findings(checks, [check.word for check in checks if check.found], enough)

    def _dispersion(self, stream: Stream, by_scores: str) -> Check:
        """Are the squared errors, or the scores, as large as stated? It must be material by the squared errors.

        The sum of the squared errors is taken as gamma distributed, with its mean and its variance. Scores of small
        counts are mostly random, and show less of it.
        """
        variance, squared = float(self.variance), float(self.squared_variance)
        ratio = less = more = math.nan
        if float(self.expected) >= _FEWEST_EVENTS and math.isfinite(squared):
            ratio, shape = float(self.squared_errors) / variance, variance**2 / squared
            less, more = (float(f(shape, shape * ratio)) for f in (special.gammainc, special.gammaincc))
        tail = TAIL / stream.several
        by_errors = "over-confident" if more < tail else "under-confident" if less < tail else ""
        word = spread_word(ratio, ((1 - MATERIAL) ** 2, (1 + MATERIAL) ** 2))
        measured = f"the squared errors are {ratio:.3g} times as large as the variances stated"
        found = word != "" and word in (by_scores, by_errors)
        return Check(word or "over-confident", measured, min(2 * min(less, more), 1.0), found)

    def _bias(self, stream: Stream) -> Check:
        """Are the counts as large as predicted on average?

        The sum of the errors is normal. Its variance is the larger of that stated and that observed, times
        `Dependence.long_run`, so that neither over-dispersion nor correlation is called bias.
        """
        expected, errors = float(self.expected), float(self.errors)
        measured = f"the counts add up to {expected + errors:,.0f}, and {expected:,.0f} were predicted"
        if not expected >= _FEWEST_EVENTS:
            return Check("biased", measured, math.nan, False)
        variance = max(float(self.variance), float(self.squared_errors))
        p_value = two_sided(errors / math.sqrt(variance * stream.scores.long_run))
        found = p_value < CHECK_ALARMS / stream.several and abs(errors) >= MATERIAL_BIAS * expected
        return Check("biased", measured, p_value, found)
