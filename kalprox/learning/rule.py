"""A rule of what goes with what, and how it is said in the words of Python, of the command line or of a page.

The rules themselves are the table in `kalprox.learning.rules`.
"""

import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "FACTS",
    "FADES",
    "NOT_MIXED",
    "ONE_OUTPUT",
    "UNIT",
    "WAYS",
    "WEIGHED",
    "Rule",
    "SettingsError",
    "in_python",
    "is_one_of",
    "row",
]

Settings = Any  # of `kalprox.learning.settings`, which are checked by these rules
Spell = Callable[[str, Any], str]  # of a parameter and its value, or of a parameter alone if that is ...


@dataclass(frozen=True)
class Rule:
    """Where all of `when` holds, all of `needs` must.

    Both are words of `FACTS` by their names, several separated by bars; "way" is a name of `WAYS`. `why` completes
    "because ...", and `use` says what to do instead. In both, braces enclose a parameter, with a value or without.
    """

    when: Mapping[str, str]
    needs: Mapping[str, str]
    why: str
    use: str

    def unmet(self, settings: Settings) -> list[str]:
        """Return the names of the facts that are needed and are not so; none if the rule is about other settings."""
        if not all(is_one_of(settings, name, words) for name, words in self.when.items() if name != "way"):
            return []
        return [name for name, words in self.needs.items() if not is_one_of(settings, name, words)]


class SettingsError(ValueError):
    """Settings that do not go together, or not with a way in."""

    rule: Rule
    _parts: list[Any]

    @classmethod
    def of(cls, rule: Rule, settings: Settings, unmet: list[str]) -> "SettingsError":
        """Return the error of a rule of which these facts are not met."""
        given = [[_value(settings, name)] for name in rule.when if not _is_usual(settings, name)]
        parts = [*_about(rule, given), " needs ", *_joined([_words(name, rule.needs[name]) for name in unmet])]
        parts += [*_parsed(f", because {rule.why}; got "), *_joined([[_value(settings, name)] for name in unmet])]
        parts += [". ", *_parsed(rule.use)]
        parts[0] = "A target" + parts[0][8:] if parts[0][:8] == "a target" else parts[0]
        error = cls(_spelled(parts, in_python))
        error.rule, error._parts = rule, parts
        return error

    def said(self, spell: Spell) -> str:
        """Return the message with parameters spelled in another way, such as that of the command line."""
        return _spelled(self._parts, spell)


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

# Words that several rules use.
UNIT = "two classes|several classes|other"  # likelihoods without a noise variance
ONE_OUTPUT = "gaussian|robust|location|dispersed|two classes|other"
FADES, NOT_MIXED = "none|number|time|auto", "none|number|time|window|walk"
WEIGHED = "evidence|prediction"  # penalties that alpha multiplies, by how it is chosen

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
    ("likelihood", ONE_OUTPUT): "a number, a count or two classes to predict",
    ("likelihood", "gaussian|two classes|several classes"): "{likelihood='gaussian'}, or classes",
    ("likelihood", f"gaussian|{UNIT}"): "{likelihood='gaussian'}, counts or classes",
    ("likelihood", "gaussian|several classes"): "{likelihood='gaussian'}",
    ("likelihood", "robust|location|dispersed|two classes|other"): "a likelihood of counts, outliers or two classes",
    ("likelihood", "gaussian|robust|location|dispersed|other"): "a number or a count to predict",
    ("likelihood", f"gaussian|location|dispersed|{UNIT}"): "a likelihood that is not robust",
    ("likelihood", "robust"): "a robust likelihood, {likelihood='huber'}, 'student' or 'contaminated'",
    ("density", "known"): "a likelihood that says its `predictive` distribution",
    ("penalty", "none|ridge|own ridge"): "{penalty='ridge'} or None",
    ("penalty", "none|ridge|own ridge|own quadratic"): "a quadratic penalty, {penalty='ridge'} or None",
    ("selection", "prediction"): "a {penalty} other than 'ridge'",
    ("selection", WEIGHED): "a penalty with a weight, such as {penalty='ridge'}",
    ("alpha", "number"): "a number as {alpha}",
    ("noise", "learn|number"): "one noise variance, {noise='learn'} or a number",
    ("forget", "none"): "{forget=1}",
    ("forget", "none|number|time"): "a {forget} that is a number or {half_life}",
    ("forget", "none|number|time|window"): "a {forget} that is a number, {half_life} or a window",
    ("forget", FADES): "a {forget} that is a number, 'auto' or {half_life}",
    ("forget", NOT_MIXED): "a {forget} other than 'auto'",
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
_ABOUT = {"density": "likelihood", "selection": "penalty"}  # the parameters that some facts are about


def in_python(name: str, value: Any) -> str:
    """Return how Python says a parameter with its value."""
    if value is ...:
        return "forget=ByTime(half_life)" if name == "half_life" else name
    return f"{name}={value!r}"


def is_one_of(settings: Settings, name: str, words: str) -> bool:
    return FACTS[name](settings) in words.split("|")


def _is_usual(settings: Settings, name: str) -> bool:
    """Whether a fact goes without saying."""
    return name == "way" or FACTS[name](settings) in ("identity", "gaussian")


def _parsed(text: str) -> Iterator[Any]:
    """Yield the parts of a text: pairs of a parameter and its value, and what is between them."""
    for i, part in enumerate(re.split(r"\{(.*?)\}", text)):
        name, _, value = part.partition("=")
        yield part if i % 2 == 0 else (name, literal_eval(value) if value else ...)


def _spelled(parts: list[Any], spell: Spell) -> str:
    return "".join(part if isinstance(part, str) else spell(*part) for part in parts)


def _words(name: str, words: str) -> list[Any]:
    """Return what is needed: the words of a fact."""
    said = _SAID.get((name, words))
    return list(_parsed(said)) if said is not None else _joined([[(name, word)] for word in words.split("|")], " or ")


def _value(settings: Settings, name: str) -> Any:
    """Return what settings are: a parameter as it was given, or a word."""
    word, parameter = FACTS[name](settings), _ABOUT.get(name, name)
    if (name, word) in _GOT:
        return _GOT[name, word]
    return parameter, settings.coef_cov if name == "coef_cov" else settings.parameters[parameter]


def _about(rule: Rule, settings: list[list[Any]]) -> list[Any]:
    """Return what a rule is about: the way in, and settings."""
    way = [list(_parsed(WAYS[rule.when["way"]]))] if "way" in rule.when else []
    return _joined([*way, *settings], " with ")


def _joined(items: list[list[Any]], by: str = " and ") -> list[Any]:
    found: list[Any] = []
    for item in items:
        found += [by, *item] if found else item
    return found


def row(rule: Rule, spell: Spell) -> tuple[str, str, str]:
    """Return what a rule is about, what that needs, and why."""
    about = _about(rule, [_words(name, words) for name, words in rule.when.items() if name != "way"])
    needs = _joined([_words(name, words) for name, words in rule.needs.items()], "; ")
    return _spelled(about, spell), _spelled(needs, spell), _spelled(list(_parsed(rule.why)), spell)
