"""What each word of a verdict means for numbers, counts and classes, and what to change."""

from kalprox.base.text import worded

__all__ = ["ADVICE", "FEWEST_EVENTS", "FEWEST_ROWS", "advice"]

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


def advice(kind: str, word: str, *, in_time: bool = False) -> str:
    """Return what a word means for "numbers", "counts" or "classes", and what to change; empty for other words.

    `in_time` says that the rows are known to be in the order of time: only such rows may be forgotten.

    >>> advice("classes", "under-confident").split(". ")[1]
    'Use alpha="auto" in fit, or a smaller alpha.'
    """
    return worded(_IN_TIME[word]) if in_time and word in _IN_TIME else ADVICE[kind].get(word, "")
