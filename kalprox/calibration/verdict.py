"""The verdict on a stream of predictions: calibrated, or what is wrong, and the one thing to change."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scipy import special

from kalprox.base.text import Text, count, worded
from kalprox.calibration.checks import CHECK_ALARMS, Check

FEWEST_ROWS = 30  # from this number on, a std wrong by a factor of two is detected with probability 0.99
FEWEST_EVENTS = 50.0  # the sum of p (1 - p) from which on odds wrong by a factor of two are detected so surely

_DRIFT = "The rows at the end do not follow the model of those at the beginning."
_FOLLOW = (
    'let the model follow them, with {forget="auto"}; where it does already, give what changes along the stream as a '
    "column, such as the season."
)
_LAST = "A model that forgets describes the last rows: if they are not in the order of time, let it forget nothing."
_IN_TIME = {"drifting": f"{_DRIFT} L{_FOLLOW[1:]} {_LAST}"}  # of rows that are said to be in the order of time
_NUMBERS = {
    "calibrated": "The stated std is reliable.",
    "drifting": f"{_DRIFT} If they are not in the order of time, they are sorted in some way: shuffle them,"
    "{| with --shuffle 1,} and let the model forget nothing, since it would describe the last rows alone. If they are, "
    f"{_FOLLOW}",
    "correlated": "Successive errors are correlated: the std of the coefficients is reliable only with "
    '{coef_cov="clustered"|--clusters COLUMN}.',
    "nonlinear": "The predictions are too high in some places and too low in others: the target is not a straight line "
    "in the inputs. Add the square or product that is named, or splines of columns.",
    "unequal spread": "The size of the errors depends on the prediction: the std is too small in some places and too "
    'large in others. Use {noise="inputs"}.',
    "heavy tails": "A few errors are much larger than a normal distribution would have them. Use intervals that do not "
    'assume one, {method="conformal"|predict --interval conformal}; where {likelihood="gaussian"}, also '
    '{likelihood="student"}, by which such rows do not move the estimate either.',
    "skewed": "Errors to one side are larger than those to the other. Use intervals that do not assume a normal "
    'distribution: {method="conformal"|predict --interval conformal}.',
    "over-confident": 'The stated std is too small. {Use noise="learn"; where it|Leave --noise out; where the noise} '
    "is learned, look for what the model leaves out, such as a missing input, or a linearisation far from the "
    "solution.",
    "under-confident": 'The stated std is too large. {Use noise="learn", or give a smaller noise variance|Leave '
    "--noise out, or give a smaller one}.",
    "informative missingness": "Features are missing in rows whose targets are not as their other features predict: "
    "missingness depends on the target given the features, or the model is not linear where they are missing. Filling "
    "in such gaps, or leaving out such rows, biases the coefficients. Use multiple imputation with the target among "
    'its predictors, or add a column that tells why values are missing. With {missing="impute"} it may be that gaps '
    'depend on other features: try {missing="marginalize"}.',
    "exact": "Every prediction was right to the last digit: the rows have no noise, and no std can be judged by them. "
    "Look whether the target is constant, or copied from a column.",
    "too few rows to say": f"At least {FEWEST_ROWS} scored predictions are needed; with fewer, a std off by a factor "
    "of two could go unnoticed.",
}
_CHANGE = '; if the rows are in the order of time, let the model follow a change, with {forget="auto"}.'
_COUNTS = {
    "calibrated": "The stated means and intervals of the counts are reliable.",
    "biased": "The counts are larger, or smaller, than predicted on average. Give the exposure of each row if it "
    f"differs{_CHANGE}",
    "unequal spread": "How much the counts vary about their means changes with the mean otherwise than stated. Use "
    '{likelihood="negative-binomial"}, whose variance grows with the square of the mean, or '
    '{likelihood="quasi-poisson"}, whose variance is a multiple of it.',
    "over-confident": 'The counts vary more than stated. Use {likelihood="quasi-poisson"} or '
    '{likelihood="negative-binomial"}, which allow for over-dispersion; where one of them is used, look for a missing '
    "input, or a larger dispersion.",
    "under-confident": 'The counts vary less than stated. Use {likelihood="poisson"}, or a smaller dispersion.',
    "too few rows to say": f"At least {FEWEST_ROWS} scored predictions are needed, and as many events predicted in "
    "all; with fewer, a std off by a factor of two could go unnoticed.",
}
_CLASSES = {
    "calibrated": "The stated probabilities are reliable.",
    "biased": "The event comes more often, or more rarely, than stated on average. Fit an intercept, and give "
    f"classes no weights, which change probabilities{_CHANGE}",
    "over-confident": "The probabilities are too extreme: what is stated as nearly certain is less so. Use "
    '{alpha="auto"} in fit, a larger {alpha} or fewer columns, and look for rows that come several times.',
    "under-confident": "The probabilities are not extreme enough: what happens can be told better than stated. Use "
    '{alpha="auto"} in fit, or a smaller {alpha}.',
    "nonlinear": "The probabilities are too high in some places and too low in others. The log odds are not a "
    "straight line in the inputs: add squares, products or splines of columns.",
    "too few rows to say": f"The sum of p (1 - p) over the scored rows must be at least {FEWEST_EVENTS:g}, about as "
    "many as there are rows of the rarer outcome; with less, odds wrong by a factor of two could go unnoticed.",
}
_TOLD = {"numbers": _NUMBERS, "counts": _NUMBERS | _COUNTS, "classes": _NUMBERS | _CLASSES}
ADVICE = {kind: {word: worded(text) for word, text in words.items()} for kind, words in _TOLD.items()}

_SHOWN = 5  # change points that a text names


class ChangePoint(NamedTuple):
    """A change of the stream: rows before `start` no longer say what comes next.

    Attributes
    ----------
    row : int
        The number of rows learned when it was found.
    start : int
        The number of the first row, counted from 1, that most probably follows the change.
    probability : float
        The probability, at that time, that there was a change since the last one.
    time, start_time : float or None
        The times of these two rows, if rows have times.
    """

    row: int
    start: int
    probability: float
    time: float | None = None
    start_time: float | None = None


class Changes(NamedTuple):
    """The change points that were found in a stream; `str(changes)` names the last of them.

    Attributes
    ----------
    points : tuple of ChangePoint
        In the order in which they were found. Of a long stream the last ones.
    found : int
        How many were found in all.
    probability : float
        The probability that there was a change since the last one, or since the first rows, that is not reported yet.
    kind : {"coefficients", "residuals", ""}
        What was watched: a regression for each run, which finds a change of any coefficient and of the noise; or the
        residuals of an earlier estimate, which show a change of their level or spread. Empty if nothing was yet.

    Examples
    --------
    >>> changes = Changes((ChangePoint(1004, 1001, 0.998),), 1, 0.001, "coefficients")
    >>> print(changes)
    1 change point was found: from row 1,001 on (found after row 1,004).
    >>> print(Changes((), 0, 0.02, "residuals"))
    No change point was found.
    """

    points: tuple[ChangePoint, ...]
    found: int
    probability: float
    kind: str

    def __str__(self) -> str:
        if not self.found:
            return "No change point was found." if self.kind else "Too few rows were learned to look for change points."
        shown = self.points[-_SHOWN:]
        where = ", ".join(f"from row {point.start:,} on (found after row {point.row:,})" for point in shown)
        last = f", the last {len(shown):,} of them" if self.found > len(shown) else ""
        return f"{count(self.found, 'change point')} {'was' if self.found == 1 else 'were'} found{last}: {where}."


def advice(kind: str, word: str, *, in_time: bool = False) -> str:
    """Return what a word means for "numbers", "counts" or "classes", and what to change; empty for other words.

    `in_time` says that the rows are known to be in the order of time: only such rows may be forgotten.

    >>> advice("classes", "under-confident").split(". ")[1]
    'Use alpha="auto" in fit, or a smaller alpha.'
    """
    return worded(_IN_TIME[word]) if in_time and word in _IN_TIME else ADVICE[kind].get(word, "")


LEVELS = (0.5, 0.8, 0.95)  # of the central intervals whose coverage is counted
BINS = 20  # of the PIT histogram
SPREAD_ALARMS = 0.01  # the largest probability that the spread of a calibrated stream is called wrong
FALSE_ALARMS = SPREAD_ALARMS + 5 * CHECK_ALARMS  # the largest probability of any other word for a calibrated stream
MATERIAL = 0.05  # a relative error of the std below this is called calibrated, however many rows there are

Range = tuple[float, float]


class Verdict(NamedTuple):
    """A word for the calibration of a stream, and the numbers behind it; `str(verdict)` adds advice.

    Attributes
    ----------
    word : str
        "calibrated"; or the first of what was found: "drifting", "correlated", "nonlinear", "unequal spread", "heavy
        tails", "skewed", "over-confident", "under-confident", of counts and classes also "biased", of rows with gaps
        also "informative missingness", which comes second after "drifting" and else first; or "exact", "too few
        rows to say", or "not judged".
    rows : float
        The number of rows judged.
    worth : float
        The number of rows, each predicted on its own, that would be as informative. It is smaller than `rows` where
        blocks of rows were predicted from one noise variance learned with few degrees of freedom.
    undetermined : float
        The number of rows not judged, because no finite predictive distribution was stated, or because the target is
        not one of the counts or classes that were predicted, such as a share or a rate.
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
    coverages : tuple of float
        The shares of rows inside their central intervals, for each of `LEVELS`.
    coverages_bounds : tuple of tuple of float
        The ranges of `coverages` that count as calibrated.
    checks : tuple of Check
        What was looked for besides the spread, with p-values.
    findings : tuple of str
        All that was found, the most important first; the first is the word.
    reason : str
        Why no rows were judged, if `word` is "not judged".
    kind : str
        What was predicted: "numbers", "counts" or "classes".
    measured : str
        What was measured, in words, where it is not `nis` and `coverages`.
    in_time : bool
        Whether the rows are known to be in the order of time. If not, the advice asks for it.
    whose : str
        Which of several targets or classes it is about, in words; empty if there is one, or if it is about all.
    predictive : type or None
        The kind of predictive distribution, whose own `advice` comes before that of the kind of observations.
    """

    word: str
    rows: float
    worth: float
    undetermined: float
    nis: float
    nis_bounds: Range
    coverage: float
    coverage_bounds: Range
    shape_p_value: float
    coverages: tuple[float, ...] = ()
    coverages_bounds: tuple[Range, ...] = ()
    checks: tuple[Check, ...] = ()
    findings: tuple[str, ...] = ()
    reason: str = ""
    kind: str = "numbers"
    measured: str = ""
    in_time: bool = False
    whose: str = ""
    predictive: Any = None

    @classmethod
    def not_judged(cls, reason: str) -> "Verdict":
        """The verdict on a model of which no predictions could be scored.

        Parameters
        ----------
        reason : str
            Why, as the end of a sentence that begins with "because".

        Examples
        --------
        >>> print(Verdict.not_judged("all rows were learned at once"))
        not judged, because all rows were learned at once.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a text; got {type(reason).__name__}.")
        (nis, coverage), nan = expected_ranges(0), math.nan
        return cls("not judged", 0.0, 0.0, 0.0, nan, nis, nan, coverage, nan, reason=reason.rstrip("."))

    def with_check(self, check: Check | None) -> "Verdict":
        """Return the verdict with one more check, of what is worse than all but a drift."""
        if check is None:
            return self
        if not isinstance(check, Check):
            raise TypeError(f"check must be a Check, or None; got {type(check).__name__}.")
        place = int(self.findings[:1] == ("drifting",))
        findings = (*self.findings[:place], *[check.word] * check.found, *self.findings[place:])
        return self._replace(word=[*findings, self.word][0], checks=(*self.checks, check), findings=findings)

    @property
    def importance(self) -> tuple[int, float]:
        """The smaller, the more important: by the word, and then by how far the errors are from what was stated.

        Of probabilities, a wrong level and a wrong spread entail each other: the one that is more certain comes first.
        """
        if self.kind == "classes" and self.word in (*_SPREADS, "biased"):
            p_value = min(check.p_value for check in self.checks if check.found and check.word == self.word)
            return _ORDER.index(_SPREADS[0]), p_value
        return _ORDER.index(self.word), -abs(math.log(self.nis)) if self.nis > 0 else 0.0

    @property
    def advice(self) -> str:
        """What the word means, and what to change; empty if nothing was judged."""
        own: Mapping[str, str] = getattr(self.predictive, "advice", dict)()
        return own.get(self.word) or advice(self.kind, self.word, in_time=self.in_time)

    @property
    def why_undetermined(self) -> str:
        """Why rows were not judged, as the end of a sentence about them."""
        if self.kind == "numbers":
            return "had no finite std, or one that is hardly known, and were not judged"
        whole = "whole" if self.kind == "counts" else "0 or 1"
        return f"were not judged: too little was known when they came, or the target is not {whole}"

    def __repr__(self) -> str:
        return f"Verdict({self.word!r}, rows={self.rows:.10g}, nis={self.nis:.3g}, coverage={self.coverage:.3g})"

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Text:
        """What `str` returns, with the parameters that `kalprox.base.text.in_options` says in options."""
        if self.word == "not judged":
            return Text.of(f"not judged, because {self.reason}.")
        advice = self.advice
        if self.word == "calibrated" and self.undetermined > self.rows / 2 and self.kind == "numbers":
            total = self.rows + self.undetermined
            advice = (
                f"But only {self.rows:,.10g} of {total:,.10g} rows could be judged, because the std of the others is "
                "not finite, or hardly known: look for enormous values, or for more columns than the rows determine."
            )
        text: list[str] = [Text.of(f"{self.word}: ", advice)]
        whose = f" of {self.whose}" if self.whose else ""
        if self.measured:
            text.append(f"Over {self.rows:,.10g} rows {self.measured}.")
        elif self.rows > 0 and self.word != "exact":
            (a, b), fewer = self.nis_bounds, f" (as informative as {self.worth:,.0f})"
            text.append(
                f"Over {self.rows:,.10g} rows{'' if self.worth > 0.9 * self.rows else fewer} the errors{whose} are "
                f"{self.nis**0.5:.3g} times as large as stated (NIS {self.nis:.3g}, expected {a:.2f} to {b:.2f}), and "
                f"intervals of {_listed(f'{level:.0%}' for level in LEVELS)} cover "
                f"{_listed(f'{share:.1%}' for share in self.coverages)} (expected "
                f"{_listed(f'{low:.1%} to {high:.1%}' for low, high in self.coverages_bounds)})."
            )
        found = [check.measured for check in self.checks if check.found and check.measured not in self.measured]
        text += [f"{measured[0].upper()}{measured[1:]}." for measured in found]
        if more := self.findings[1:]:
            text.append(f"Also: {', '.join(more)}.")
        if self.word == "calibrated" and self.shape_p_value < SPREAD_ALARMS and self.kind != "classes":
            text.append(
                "The spread is right but the shape is not (the PIT histogram is not uniform, "
                f"p = {self.shape_p_value:.1g}): look for bias, skewness or outliers."
            )
        if self.undetermined > 0:
            text.append(f"{self.undetermined:,.10g} more rows {self.why_undetermined}.")
        return Text.of(text[0], *(f" {more}" for more in text[1:]))


def _listed(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}"


def spread_word(nis: float, nis_bounds: Range, coverage: float = 0.5, coverage_bounds: Range = (0.0, 1.0)) -> str:
    """Return the word for a spread outside of these ranges; empty if it is inside of them."""
    if nis > nis_bounds[1] or coverage < coverage_bounds[0]:
        return "over-confident"
    return "under-confident" if nis < nis_bounds[0] or coverage > coverage_bounds[1] else ""


def expected_ranges(n: float, material: float = MATERIAL, several: int = 1) -> tuple[Range, Range]:
    """The ranges of NIS and of the 95% coverage of n independent calibrated rows, but for `SPREAD_ALARMS`.

    n NIS is chi-square with n degrees of freedom, and the number of covered rows is binomial. Neither range is narrower
    than what a std wrong by `material` leads to.
    """
    if n <= 0:
        return (0.0, math.inf), (0.0, 1.0)
    tail = TAIL / several
    low, high = 2 * special.gammaincinv(n / 2, tail) / n, 2 * special.gammainccinv(n / 2, tail) / n
    nis = float(min(low, (1 - material) ** 2)), float(max(high, (1 + material) ** 2))
    return nis, coverage_range(n, LEVELS[-1], material, several)


def coverage_range(n: float, level: float, material: float = MATERIAL, several: int = 1) -> Range:
    """The range of the coverage of intervals of this level; see `expected_ranges`."""
    if n <= 0:
        return 0.0, 1.0
    trials, z, tail = max(round(min(n, _MANY)), 1), special.ndtri((1 + level) / 2), TAIL / several
    few, many = (_binomial_quantile(p, trials, level) / trials for p in (tail, 1 - tail))
    wide, narrow = (2 * special.ndtr(z * f) - 1 for f in (1 + material, 1 - material))
    return float(min(few, narrow)), float(max(many, wide))


_ORDER = (  # of the words, the most important first
    "drifting",
    "informative missingness",
    "correlated",
    "nonlinear",
    "unequal spread",
    "over-confident",
    "heavy tails",
    "skewed",
    "under-confident",
    "biased",
    "exact",
    "too few rows to say",
    "calibrated",
)
_SPREADS = ("over-confident", "under-confident")
TAIL = SPREAD_ALARMS / 4  # two tests, two sides
_MANY = 1e9  # rows, beyond which `MATERIAL` alone decides; quantiles of larger binomials take long, or overflow


def _binomial_quantile(p: float, n: int, level: float) -> float:
    """The smallest k with P(at most k of n rows are covered) >= p. (scipy.stats has it, and takes 0.5 s to import.)"""
    k = math.ceil(special.bdtrik(p, n, level))
    return float(k - 1 if k > 0 and special.bdtr(k - 1, n, level) >= p else k)
