"""A rule of what goes with what, and how it is said in the words of Python, of the command line or of a page.

The rules themselves are the table in `kalprox.learning.rules`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kalprox.base.text import Part, Text, parameter, worded

__all__ = ["FACTS", "Rule", "SettingsError", "is_one_of", "row"]

Settings = Any  # of `kalprox.learning.settings`, which are checked by these rules


@dataclass(frozen=True)
class Rule:
    """Where all of `when` holds, all of `needs` must.

    Both are words of `FACTS` by their names, several separated by bars; "way" is a name of `WAYS`. `why` completes
    "because ...", and `use` says what to do instead, with parameters as in `kalprox.base.text.worded`.
    """

    when: Mapping[str, str]
    needs: Mapping[str, str]
    why: str
    use: str

    @classmethod
    def of(cls, text: str) -> "Rule":
        """Return a rule in the notation of the table.

        >>> Rule.of("way=merge, alpha=auto needs forget=none, because order matters. Use fit.")
        Rule(when={'way': 'merge', 'alpha': 'auto'}, needs={'forget': 'none'}, why='order matters', use='Use fit.')
        """
        when, _, rest = " ".join(text.split()).partition(" needs ")
        needs, _, rest = rest.partition(", because ")
        why, _, use = rest.partition(". ")
        return cls(_named(when), _named(needs), why, use)

    def unmet(self, settings: Settings) -> list[str]:
        """Return the names of the facts that are needed and are not so; none if the rule is about other settings."""
        if not all(is_one_of(settings, name, words) for name, words in self.when.items() if name != "way"):
            return []
        return [name for name, words in self.needs.items() if not is_one_of(settings, name, words)]


def _named(text: str) -> dict[str, str]:
    """Return words by the names of their facts, with the words that groups stand for."""
    found = {}
    for item in text.split(", "):
        name, _, words = item.partition("=")
        found[name] = "|".join(GROUPS.get(word, word) for word in words.split("|"))
    return found


class SettingsError(ValueError):
    """Settings that do not go together, or not with a way in."""

    rule: Rule

    @classmethod
    def of(cls, rule: Rule, settings: Settings, unmet: list[str]) -> "SettingsError":
        """Return the error of a rule of which these facts are not met."""
        about = _about(rule, [_value(settings, name) for name in rule.when if not _is_usual(settings, name)])
        needs = _joined([_words(name, rule.needs[name]) for name in unmet])
        got = _joined([_value(settings, name) for name in unmet])
        first, *others = about.parts
        if first.python.startswith("a target"):  # and no parameter
            first = Part(f"A{first.python[1:]}", f"A{first.python[1:]}")
        parts = [first, *others, " needs ", needs, ", because ", _told(rule.why), "; got ", got, ". ", _told(rule.use)]
        error = cls(Text.of(*parts))
        error.rule = rule
        return error


def _flag(name: str) -> Callable[[Settings], str]:
    return lambda settings: "yes" if getattr(settings, name) else "no"


FACTS: dict[str, Callable[[Settings], str]] = {  # what rules are about, in one word each
    "model": lambda s: "exact" if s.is_exact else "other",
    "link": lambda s: "function" if s.function is not None else "identity" if s.link == "identity" else "name",
    "likelihood": lambda s: s.likelihood.family,
    "density": lambda s: "other" if s.likelihood.predictive is None else "known",
    "penalty": lambda s: s.penalty.name,
    "selection": lambda s: s.penalty.selection or "none",
    "alpha": lambda s: "auto" if s.alpha == "auto" else "number",
    "noise": lambda s: "inputs" if s.noise_depends_on_inputs else "learn" if s.noise_var is None else "number",
    "forget": lambda s: s.forgetting.name,
    "coef_cov": lambda s: s.coef_cov,
    "weight_kind": lambda s: s.weight_kind,
    "missing": lambda s: s.missing if s.fills_gaps else "raise",
    "change_points": _flag("change_points"),
    "diagnose": _flag("diagnose"),
    "standardize": _flag("standardize"),
    "structure": lambda s: "dense" if s.structure is None else "other",
    "start": lambda s: "no" if s.start is None else "yes",
}

WAYS = {  # besides `fit`, with which everything goes that settings allow
    "one pass": "Learning rows in one pass",
    "first rows": "Beginning to learn rows in one pass",
    "no order": "A source without an order of rows (an engine)",
    "out of order": "A fit in several passes, shuffled or on an engine",
    "not in memory": "A source of rows that are not in memory (several passes over files, or an engine)",
    "passes": "More than one pass over files, or refine,",
    "refine": "refine",
    "merge": "merge",
    "new features": "A row with new features",
    "names": "A model of features by name",
    "new names": "A model of features by name without {hash_bits}",
    "numbers": "KalproxRegressor",
    "targets": "A target of several columns",
    "offset": "An offset, or an exposure,",
    "sparse": "A sparse X",
    "formula": "A formula",
    "times": "A time",
    "outliers": "{quarantine_outliers=True}",
    "conformal": "{method='conformal'}",
    "anytime": "{anytime=True}",
    "minimax": "{minimax=True}",
    "path": "path",
    "path of rows": "path with X and y",
    "path without rows": "path without X and y",
    "evidence": "log_evidence_",
}

GROUPS = {  # of words that several rules use
    "UNIT": "two classes|several classes|other",  # likelihoods without a noise variance
    "ONE OUTPUT": "gaussian|robust|location|dispersed|two classes|other",
    "FADES": "none|number|time|auto",
    "NOT MIXED": "none|number|time|window|walk",
    "WEIGHED": "evidence|prediction",  # penalties that alpha multiplies, by how it is chosen
}

# What words mean, where it is not {name='word'}.
_SAID = {
    ("change_points", "yes"): "{change_points=True}",
    ("standardize", "yes"): "{standardize=True}",
    ("structure", "other"): "a {structure}",
    ("link", "function"): "a {function}",
    ("likelihood", "dispersed|two classes|several classes|other"): "counts or classes",
    ("likelihood", "two classes|several classes|other"): "counts or classes",
    ("likelihood", "robust|two classes|several classes|other"): "a robust likelihood, counts or classes",
    ("forget", "window|walk"): "a window or a random walk",
    ("forget", "walk"): "a random walk",
    ("model", "exact"): "a linear model with {likelihood='gaussian'} and {structure=None}",
    ("model", "other"): "a model that several passes improve",
    ("link", "identity|name"): "a {link} by its name",
    ("link", "identity|function"): "{link='identity'}, or a function",
    ("likelihood", GROUPS["ONE OUTPUT"]): "a number, a count or two classes to predict",
    ("likelihood", "gaussian|two classes|several classes"): "{likelihood='gaussian'}, or classes",
    ("likelihood", f"gaussian|{GROUPS['UNIT']}"): "{likelihood='gaussian'}, counts or classes",
    ("likelihood", "gaussian|several classes"): "{likelihood='gaussian'}",
    ("likelihood", "robust|location|dispersed|two classes|other"): "a likelihood of counts, outliers or two classes",
    ("likelihood", "gaussian|robust|location|dispersed|other"): "a number or a count to predict",
    ("likelihood", f"gaussian|location|dispersed|{GROUPS['UNIT']}"): "a likelihood that is not robust",
    (
        "likelihood",
        "robust",
    ): "a robust likelihood, {likelihood='huber'}, {'student'|student} or {'contaminated'|contaminated}",
    ("density", "known"): "a likelihood that says its `predictive` distribution",
    ("penalty", "none|ridge|own ridge"): "{penalty='ridge'} or {None|none}",
    ("penalty", "none|ridge|own ridge|own quadratic"): "a quadratic penalty, {penalty='ridge'} or {None|none}",
    ("selection", "prediction"): "a {penalty} other than 'ridge'",
    ("selection", GROUPS["WEIGHED"]): "a penalty with a weight, such as {penalty='ridge'}",
    ("alpha", "number"): "a number as {alpha}",
    ("noise", "learn|number"): "one noise variance, {noise='learn'} or a number",
    ("forget", "none"): "{forget=1}",
    ("forget", "none|number|time"): "a {forget} that is a number or {half_life}",
    ("forget", "none|number|time|window"): "a {forget} that is a number, {half_life} or a window",
    ("forget", GROUPS["FADES"]): "a {forget} that is a number, 'auto' or {half_life}",
    ("forget", GROUPS["NOT MIXED"]): "a {forget} other than 'auto'",
    ("forget", "time"): "{half_life}",
    ("missing", "raise|impute"): "{missing='raise'} or {missing='impute'}",
    ("change_points", "no"): "{change_points=False}",
    ("diagnose", "yes"): "{diagnose=True}",
    ("standardize", "no"): "{standardize=False}",
    ("structure", "dense"): "{structure=None}",
    ("start", "yes"): "{start}, the first theta of shape (d,)",
}
_GOT = {  # what words that came mean, where it is not the parameter as it was given
    ("model", "exact"): "one that is exact after one pass",
    ("model", "other"): "one that is linearised",
    ("likelihood", "two classes"): "a target of two classes",
    ("likelihood", "several classes"): "a target of several classes",
}
_HALF_LIFE = "{forget=ByTime(half_life)|--forget time,half_life=NUMBER}"  # what {half_life} is in the texts of rules
_ABOUT = {"density": "likelihood", "selection": "penalty"}  # the parameters that some facts are about


def is_one_of(settings: Settings, name: str, words: str) -> bool:
    return FACTS[name](settings) in words.split("|")


def _is_usual(settings: Settings, name: str) -> bool:
    """Whether a fact goes without saying."""
    return name == "way" or FACTS[name](settings) in ("identity", "gaussian")


def _told(text: str) -> Text:
    return worded(text.replace("{half_life}", _HALF_LIFE))


def _words(name: str, words: str) -> Text:
    """Return what is needed: the words of a fact."""
    told = _SAID.get((name, words))
    return _told(told) if told is not None else _joined([parameter(name, word) for word in words.split("|")], " or ")


def _value(settings: Settings, name: str) -> str | Part:
    """Return what settings are: a parameter as it was given, or a word."""
    word, about = FACTS[name](settings), _ABOUT.get(name, name)
    if (name, word) in _GOT:
        return _GOT[name, word]
    return parameter(about, settings.coef_cov if name == "coef_cov" else settings.parameters[about])


def _about(rule: Rule, settings: list[Any]) -> Text:
    """Return what a rule is about: the way in, and settings."""
    way = [_told(WAYS[rule.when["way"]])] if "way" in rule.when else []
    return _joined([*way, *settings], " with ")


def _joined(items: list[Any], by: str = " and ") -> Text:
    parts = [part for item in items for part in (by, item)]
    return Text.of(*parts[1:])


def row(rule: Rule) -> tuple[Text, Text, Text]:
    """Return what a rule is about, what that needs, and why."""
    about = _about(rule, [_words(name, words) for name, words in rule.when.items() if name != "way"])
    needs = _joined([_words(name, words) for name, words in rule.needs.items()], "; ")
    return about, needs, _told(rule.why)
