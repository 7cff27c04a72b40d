"""What a stream of scores shows besides its spread: drift, correlation, unequal spread, heavy tails, skewness.

Each check has a test, whose null distribution holds whatever the other checks find, and a least size, below which a
deviation is not worth a word, however many rows there are to prove it. Where `several` targets or classes are judged, a
check has as many times smaller a level, so that it holds for all together, however their scores depend on each other.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.tree import expect

BOUND = 4.0  # of the absolute score
USUAL_SIZE = math.sqrt(2 / math.pi)  # the mean of the absolute score, if calibrated
LAGS = 10  # products of scores up to this number of rows apart
VALUES = 5  # of a row, whose products are summed over a segment: 1, x, x^2, score, v
_SEGMENTED = ("segments", "segment_origins", "segment_shared")
_BITS = 4
SEGMENTS = 1 << _BITS
FIRST_LENGTH = 16.0  # rows of a segment, at first
_MOST = float(np.finfo(float).max ** 0.2)  # the bound of x, so that x^4 stays finite
# Where x becomes x + h, the values of a row are multiplied by 1 + h _SHIFT + h^2 _SHIFT_TWICE.
_SHIFT, _SHIFT_TWICE = np.zeros((2, VALUES, VALUES))
_SHIFT[1, 0], _SHIFT[2, 1], _SHIFT_TWICE[2, 0] = 1, 2, 1


def expect_possible(sums: Any) -> None:
    """Raise a ValueError unless the segments can be those of a stream."""
    length, rows = sums["segment_length"], sums["segments"][:, 0, 0]
    expect(np.log2(max(length, 1.0) / FIRST_LENGTH) in range(64))
    expect(((rows >= 0) & (rows <= length) & (rows == np.round(rows))).all())


def prolong(sums: Any, u: Array, mean: Array, shared: Array) -> None:
    """Continue the sequence by rows that were judged, in place. O(b)."""
    if not len(u):
        return
    segments, origins, shares = (sums[name] for name in _SEGMENTED)
    b, size, rows = len(u), int(sums["segment_length"]), segments[:, 0, 0]
    current = max(int(np.count_nonzero(rows)) - 1, 0)
    filled = int(rows[current])
    doublings = max((current + (filled + b - 1) // size).bit_length() - _BITS, 0)
    if doublings:
        segments[:], origins[:], shares[:] = _regrouped(sums, doublings)
        size, current = size << doublings, current >> doublings
        sums["segment_length"], filled = size, int(rows[current])
    values = np.empty((VALUES, b))
    values[0] = 1
    score = np.minimum(np.maximum(u, -BOUND), BOUND, out=values[3])
    np.subtract(np.abs(score), USUAL_SIZE, out=values[4])
    start = 0
    while start < b:
        if filled == size:
            current, filled = current + 1, 0
        stop = min(b, start + size - filled)
        if filled == 0:
            origins[current] = mean[start]
        part = values[:, start:stop]
        x = np.minimum(np.maximum(mean[start:stop] - origins[current], -_MOST), _MOST, out=part[1])
        np.multiply(x, x, out=part[2])
        products, own = part @ part[1:].T, segments[current]  # four times as fast as part @ part.T
        own[:, 1:] += products
        own[1:, 0] += products[0]
        own[0, 0] += stop - start
        shares[current] += shared[start:stop].sum()
        start, filled = stop, filled + stop - start
    series = np.concatenate([sums["recent"], values[3:]], axis=1)
    for i, total in enumerate(sums["lagged"]):
        total += np.correlate(series[i], values[3 + i], mode="valid")[::-1]
    sums["recent"] = series[:, -LAGS:]


def _regrouped(sums: Any, doublings: int) -> list[Array]:
    """Return the segments, their origins and what they share, with groups of 2^doublings neighbours added up."""
    segments, origins, shares = (sums[name] for name in _SEGMENTED)
    group = np.arange(SEGMENTS) >> doublings
    member = (group == np.arange(SEGMENTS)[:, None]).astype(float)
    start = origins[member.argmax(axis=1)] * member.max(axis=1)
    h = np.clip(np.where(segments[:, 0, 0] > 0, origins - start[group], 0.0), -_MOST, _MOST)[:, None, None]
    T = np.eye(VALUES) + h * _SHIFT + h * h * _SHIFT_TWICE
    return [np.tensordot(member, T @ segments @ T.transpose(0, 2, 1), 1), start, member @ shares]


def join(sums: Any, one: Any, other: Any) -> None:
    """Set those of one sequence after the other. Products of scores on both sides of the seam are left out."""
    length = max(one["segment_length"], other["segment_length"])
    used = [int(np.count_nonzero(part["segments"][:, 0, 0])) for part in (one, other)]

    def doublings() -> list[int]:
        return [int(np.log2(length / part["segment_length"])) for part in (one, other)]

    def places() -> list[int]:
        return [-(-n >> k) for n, k in zip(used, doublings(), strict=True)]

    if sum(places()) > SEGMENTS:
        length *= 2
    of_one, of_other = (_regrouped(part, k) for part, k in zip((one, other), doublings(), strict=True))
    start = places()[0]
    for name, first, second in zip(_SEGMENTED, of_one, of_other, strict=True):
        first[start:] += second[: SEGMENTS - start]
        sums[name] = first
    sums["segment_length"], sums["recent"] = length, (other if used[1] else one)["recent"]


CHECK_ALARMS = 0.002  # the largest probability of each check to find something in a calibrated stream
FEWEST_ROWS = 64  # for the checks of shape and correlation
FEWEST_SEGMENTS = 8  # for the checks that compare segments of the stream
FEWEST_INFORMATION = 50.0  # about the slope of log odds; a learned intercept alone leaves 5 to 20, which mean nothing
MATERIAL_CORRELATION = 0.05  # of successive scores
MATERIAL_SUM = 0.1  # of the correlations with the last scores: the std of a mean is then off by 10%
MATERIAL_SHIFT = 0.1  # the standard deviation of the mean of the scores along the stream
MATERIAL_SPREAD = 0.05  # the relative standard deviation of their spread along the stream
MATERIAL_UNEQUAL = 0.04  # the relative change of the spread with a standard deviation of the prediction
MATERIAL_KURTOSIS = 1.0  # in excess of 3
MATERIAL_SKEWNESS = 0.5
RELABEL = 0.02  # the level of the check for unequal spread in a stream that has heavy tails


class Check(NamedTuple):
    """One check of a stream of scores.

    Attributes
    ----------
    word : str
        The name of what it looks for.
    measured : str
        What was measured, in words.
    p_value : float
        The probability of a deviation as large as this, if there is none; NaN if there are too few rows.
    found : bool
        Whether the deviation is significant, and large enough to matter.
    """

    word: str
    measured: str
    p_value: float
    found: bool


_SMALLEST = 1e-150  # the least variance of scores whose square has its digits


class Shape(NamedTuple):
    """The skewness and the kurtosis of the scores, and the number of rows that they come from."""

    rows: float
    skewness: float
    kurtosis: float

    @classmethod
    def of(cls, powers: np.ndarray) -> "Shape":
        """Return the shape of scores with these sums of the powers 0 to 4."""
        n = float(powers[0])
        if n <= 0:
            return cls(0.0, math.nan, math.nan)
        m1, m2, m3, m4 = (float(p) for p in powers[1:] / n)
        variance = m2 - m1**2
        if not variance > max(1e-12 * m2, _SMALLEST):
            return cls(n, math.nan, math.nan)
        third, fourth = m3 - 3 * m1 * m2 + 2 * m1**3, m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
        return cls(n, third / variance**1.5, fourth / variance**2)

    @property
    def excess(self) -> float:
        """By how much the kurtosis exceeds the normal distribution's 3; 0 if it does not."""
        return max(self.kurtosis - 3, 0.0) if self.rows > 0 and not math.isnan(self.kurtosis) else 0.0


class Dependence(NamedTuple):
    """How a series depends on its past.

    Attributes
    ----------
    rows : float
        The length of the series.
    variance : float
        Its variance about its mean.
    lags : array
        Its correlations with itself 1 to `LAGS` rows before, shape (LAGS,).
    """

    rows: float
    variance: float
    lags: np.ndarray

    @property
    def long_run(self) -> float:
        """The variance of the mean of many successive values, divided by what it would be if they were independent.

        It is the larger of 1 + twice the sum of the correlations and of what the first correlation implies if they fall
        off geometrically, (1 + r)/(1 - r); the first misses what is beyond `LAGS` rows, the second what falls off more
        slowly. It is never less than 1.
        """
        r = min(max(float(self.lags[0]), 0.0), 1 - 1 / max(self.rows, 2.0))
        return max(1.0, 1 + 2 * float(self.lags.sum()), (1 + r) / (1 - r))


class Stream(NamedTuple):
    """What the checks look at.

    Attributes
    ----------
    segments : dict of str to array
        The sums over each segment that has rows, by name; x and v are explained in `kalprox.calibration.checks`.
    scores, sizes : Dependence
        That of the scores, and that of their absolute values.
    shape : Shape
    several : int
        The number of targets or classes that are judged.
    """

    segments: dict[str, np.ndarray]
    scores: Dependence
    sizes: Dependence
    shape: Shape
    several: int

    @classmethod
    def of(cls, sums: Any, several: int = 1) -> "Stream":
        """Return the stream of scores with these sums of a `Calibration`, by name."""
        products = sums["segments"]
        used = products[:, 0, 0] > 0
        places = {"rows": (0, 0), "x": (0, 1), "x2": (1, 1), "x3": (1, 2), "x4": (2, 2), "score": (0, 3), "v": (0, 4)}
        places |= {"x score": (1, 3), "vx": (1, 4), "vx2": (2, 4), "v2": (4, 4)}
        segments = {name: products[used, i, j] for name, (i, j) in places.items()}
        segments |= {"shared": sums["segment_shared"][used], "origin": sums["segment_origins"][used]}
        rows = float(segments["rows"].sum())
        scores = sizes = Dependence(rows, math.nan, np.zeros(LAGS))
        if rows > LAGS:
            means = np.array([segments["score"].sum(), segments["v"].sum()]) / rows
            lagged = sums["lagged"] / rows - means[:, None] ** 2
            scores, sizes = (
                Dependence(rows, float(p[0]), p[1:] / p[0] if p[0] > 0 else np.zeros(LAGS)) for p in lagged
            )
        return cls(segments, scores, sizes, Shape.of(sums["powers"]), several)


def correlated(stream: Stream) -> Check:
    """Are successive scores correlated? By the first correlation, and by the sum of the first `LAGS`.

    Independent scores have correlations that are independent and normal with the variance 1/n.
    """
    n, lags = stream.scores.rows, stream.scores.lags
    r, total = float(lags[0]), float(lags.sum())
    measured = f"the correlation of successive scores is {r:.2f}, and the sum of the first {LAGS} is {total:.2f}"
    if not n >= FEWEST_ROWS:
        return Check("correlated", measured, math.nan, False)
    first, many = two_sided(r * n**0.5), two_sided(total * (n / LAGS) ** 0.5)
    level = CHECK_ALARMS / 2 / stream.several
    found = (first < level and abs(r) >= MATERIAL_CORRELATION) or (many < level and abs(total) >= MATERIAL_SUM)
    return Check("correlated", measured, min(2 * min(first, many), 1.0), found)


def drifting(stream: Stream) -> Check:
    """Does the mean of the scores, or of their absolute values, change along the stream?

    Both series are compared over the segments of the stream, as a whole (chi-square) and for a trend (normal). The
    variance of a segment's mean is that of independent rows times `Dependence.long_run`, so that correlated scores are
    not called drifting. The size of the scores depends, besides, on the noise variance learned so far. Its error is
    part of the predictive distribution as far as it has the variance 2/dof; a kurtosis above 3 adds (kurtosis - 3)/dof,
    common to all later rows.
    """
    part, scores, sizes = stream.segments, stream.scores, stream.sizes
    n = part["rows"]
    if len(n) < FEWEST_SEGMENTS or not (scores.variance > 0 and sizes.variance > 0):
        return Check("drifting", "the stream is too short to be compared with itself", math.nan, False)
    place = np.cumsum(n) - n / 2
    score, size = part["score"] / n, USUAL_SIZE + part["v"] / n
    typical = float(n @ size / n.sum())
    own = sizes.variance * sizes.long_run * (1 + part["shared"] / n) / n
    common = typical**2 * stream.shape.excess / 4 / np.maximum(place[:, None], place)
    mean_p, mean_sd = _changes(score, np.diag(scores.variance * scores.long_run / n), place)
    size_p, size_sd = _changes(size, np.diag(own) + common, place)
    size_sd = size_sd / typical if typical > 0 else 0.0
    level = CHECK_ALARMS / 2 / stream.several
    found = (mean_p < level and mean_sd >= MATERIAL_SHIFT) or (size_p < level and size_sd >= MATERIAL_SPREAD)
    measured = f"along the stream the mean of the scores varies by {mean_sd:.2f}, and their spread by {size_sd:.0%}"
    return Check("drifting", measured, min(2 * min(mean_p, size_p), 1.0), found)


def drifting_slope(stream: Stream) -> Check:
    """Does the slope of the scores in the prediction change along the stream?

    Coefficients that drift while the share of events stays as it is change neither the mean of the scores of classes,
    nor, much, their size. The slopes over the segments are compared as the means are in `drifting`. The prediction is
    a probability p: a row tells of the slope of the log odds as much as its square from the mean, over p(1 - p).
    """
    part, scores = stream.segments, stream.scores
    n = part["rows"]
    nothing = Check("drifting", "the stream is too short to be compared with itself", math.nan, False)
    if len(n) < FEWEST_SEGMENTS or not scores.variance > 0:
        return nothing
    x, score = part["x"] / n, part["score"] / n
    spread = part["x2"] / n - x**2
    if not (spread > 1e-10 * part["x2"] / n).all():
        return nothing
    p = np.clip(part["origin"] + x, 1e-12, 1 - 1e-12)
    if not float(n @ (spread / (p * (1 - p)))) >= FEWEST_INFORMATION:
        return nothing._replace(measured="the stated log odds differ too little to compare their slopes")
    size = math.sqrt(float(n @ spread) / float(n.sum()))  # the slope is that with a std of the prediction
    slope = (part["x score"] / n - x * score) / spread * size
    own = scores.variance * scores.long_run * size**2 / (n * spread)
    p_value, sd = _changes(slope, np.diag(own), np.cumsum(n) - n / 2)
    measured = f"along the stream the slope of the scores in the prediction varies by {sd:.2f}"
    return Check("drifting", measured, p_value, p_value < CHECK_ALARMS / 2 / stream.several and sd >= MATERIAL_SHIFT)


def unequal_spread(stream: Stream) -> Check:
    """Does the spread depend on the prediction?

    Within each segment of the stream, the absolute scores are correlated with the prediction, and with what its square
    adds to it. The two correlations are averaged over the segments, so that neither a drift of the predictions nor a
    few extreme ones can decide. Together they are chi-square with 2 degrees of freedom, times at most
    `Dependence.long_run` where rows are dependent.

    Rows of unequal spread have heavy tails taken together. So where these were found already, the stream is not
    calibrated, and the question is only which of the two it is: a larger level is used.
    """
    sizes, enough = stream.sizes, stream.segments["rows"] >= 8
    part = {name: column[enough] for name, column in stream.segments.items()}
    nothing = Check("unequal spread", "the predictions do not vary enough to compare them", math.nan, False)
    n, rows = part["rows"], float(part["rows"].sum())
    if len(n) < FEWEST_SEGMENTS:
        return nothing
    with np.errstate(all="ignore"):
        straight, bent = _correlations(n, part)
    known = np.isfinite(straight)
    if n[known].sum() < rows / 2:
        return nothing
    n, straight, bent = n[known], straight[known], np.nan_to_num(bent[known])  # predictions of two values have no curve
    line, curve = float(n @ straight / n.sum()), float(n @ bent / n.sum())
    share = line**2 + curve**2
    p_value = float(special.chdtrc(2, n.sum() * share / sizes.long_run))
    relative = share**0.5 * sizes.variance**0.5 / USUAL_SIZE  # change of the spread with a std of the prediction
    level = RELABEL if tails(stream)[0].found else CHECK_ALARMS / stream.several
    found = p_value < level and relative >= MATERIAL_UNEQUAL
    measured = f"the spread varies by {relative:.0%} with the prediction"
    return Check("unequal spread", measured, p_value, found)


def tails(stream: Stream) -> tuple[Check, Check]:
    """Heavy tails, by the kurtosis (above 3 only), and skewness. A wrong spread changes neither.

    For normal scores, the transformation of Anscombe and Glynn makes the kurtosis a normal score, and the skewness is
    normal with variance 6/n.

    References
    ----------
    F. J. Anscombe and W. J. Glynn, "Distribution of the kurtosis statistic b2 for normal samples", Biometrika 70(1),
    1983.
    """
    shape = stream.shape
    heavy = f"the kurtosis of the scores is {shape.kurtosis:.3g} (3 if normal)"
    skewed = f"the skewness of the scores is {shape.skewness:.2f} (0 if normal)"
    n = shape.rows
    if not n >= FEWEST_ROWS or math.isnan(shape.kurtosis):
        return Check("heavy tails", heavy, math.nan, False), Check("skewed", skewed, math.nan, False)
    heavy_p = float(special.ndtr(-_kurtosis_score(n, shape.kurtosis)))
    skewed_p = two_sided(shape.skewness * (n / 6) ** 0.5)
    level = CHECK_ALARMS / 2 / stream.several
    return (
        Check("heavy tails", heavy, heavy_p, heavy_p < level and shape.excess >= MATERIAL_KURTOSIS),
        Check("skewed", skewed, skewed_p, skewed_p < level and abs(shape.skewness) >= MATERIAL_SKEWNESS),
    )


def two_sided(z: float) -> float:
    """Return the probability of a standard normal number at least as far from 0 as z."""
    return float(2 * special.ndtr(-abs(z)))


def _changes(values: np.ndarray, cov: np.ndarray, place: np.ndarray) -> tuple[float, float]:
    """The p-value of "these values, with this covariance, are all the same", and their standard deviation beyond it."""
    root = np.linalg.cholesky(cov)
    design = np.linalg.solve(root, np.column_stack([np.ones(len(values)), place / place.mean() - 1]))
    y = np.linalg.solve(root, values)
    level, trend = np.linalg.qr(design)[0].T @ y
    squares, k = float(y @ y - level**2), len(values) - 1
    p_value = 2 * min(float(special.chdtrc(k, max(squares, 0.0))), two_sided(float(trend)))
    beyond = max(float(values.var()) - float(np.diag(cov).mean()), 0.0)
    return min(p_value, 1.0), beyond**0.5


def _correlations(n: np.ndarray, part: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The correlation of v with x, and with what x^2 adds to x, in each segment; NaN where rounding leaves nothing."""
    x, x2, x3, x4, v, v2 = (part[name] / n for name in ("x", "x2", "x3", "x4", "v", "v2"))
    spread = v2 - v**2
    m2 = x2 - x**2
    m3 = x3 - 3 * x * x2 + 2 * x**3
    m4 = x4 - 4 * x * x3 + 6 * x**2 * x2 - 3 * x**4
    c1 = part["vx"] / n - v * x
    c2 = part["vx2"] / n - 2 * x * (part["vx"] / n) + x**2 * v - v * m2  # cov(v, (x - mean)^2)
    left = m4 - m2**2 - m3**2 / m2  # the variance of what the square adds
    m2 = np.where(m2 > 1e-10 * x2, m2, np.nan)
    left = np.where(left > 1e-10 * x4, left, np.nan)
    return c1 / np.sqrt(spread * m2), (c2 - c1 * m3 / m2) / np.sqrt(spread * left)


def _kurtosis_score(n: float, kurtosis: float) -> float:
    """The kurtosis of n normal values, as a normal score (Anscombe and Glynn)."""
    mean = 3 * (n - 1) / (n + 1)
    variance = 24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    skewness = 6 * (n**2 - 5 * n + 2) / ((n + 7) * (n + 9)) * (6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3))) ** 0.5
    a = 6 + 8 / skewness * (2 / skewness + (1 + 4 / skewness**2) ** 0.5)
    x = (kurtosis - mean) / variance**0.5
    ratio = (1 - 2 / a) / (1 + x * (2 / (a - 4)) ** 0.5)
    return float((1 - 2 / (9 * a) - np.cbrt(ratio)) / (2 / (9 * a)) ** 0.5)
