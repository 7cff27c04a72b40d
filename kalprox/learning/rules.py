"""What goes with what: one table, which settings, the command line, the documentation and one test read.

A combination of settings, or of settings and a way in such as `merge`, is right or is refused by a row of `RULES`.
`python -m kalprox.learning.rules > docs/reference/what_goes_with_what.md` writes the table as a page.
"""

import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FACTS", "RULES", "WAYS", "Rule", "SettingsError", "check", "page"]

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


def check(settings: Settings, way: str = "") -> None:
    """Raise a SettingsError for the first rule about this way in that settings break; without one, about settings."""
    for rule in RULES:
        if rule.when.get("way", "") == way and (unmet := rule.unmet(settings)):
            raise SettingsError.of(rule, settings, unmet)


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

_UNIT = "two classes|several classes|other"  # likelihoods without a noise variance
_ONE_OUTPUT = "gaussian|robust|location|dispersed|two classes|other"
_FADES, _NOT_MIXED = "none|number|time|auto", "none|number|time|window|walk"
_WEIGHED = "evidence|prediction"  # penalties that alpha multiplies, by how it is chosen
_WHICH_FADE = "Use a number, or {half_life}, which multiply the weights of rows."

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
    ("likelihood", _ONE_OUTPUT): "a number, a count or two classes to predict",
    ("likelihood", "gaussian|two classes|several classes"): "{likelihood='gaussian'}, or classes",
    ("likelihood", f"gaussian|{_UNIT}"): "{likelihood='gaussian'}, counts or classes",
    ("likelihood", "gaussian|several classes"): "{likelihood='gaussian'}",
    ("likelihood", "robust|location|dispersed|two classes|other"): "a likelihood of counts, outliers or two classes",
    ("likelihood", "gaussian|robust|location|dispersed|other"): "a number or a count to predict",
    ("likelihood", f"gaussian|location|dispersed|{_UNIT}"): "a likelihood that is not robust",
    ("likelihood", "robust"): "a robust likelihood, {likelihood='huber'}, 'student' or 'contaminated'",
    ("density", "known"): "a likelihood that says its `predictive` distribution",
    ("penalty", "none|ridge|own ridge"): "{penalty='ridge'} or None",
    ("penalty", "none|ridge|own ridge|own quadratic"): "a quadratic penalty, {penalty='ridge'} or None",
    ("selection", "prediction"): "a {penalty} other than 'ridge'",
    ("selection", _WEIGHED): "a penalty with a weight, such as {penalty='ridge'}",
    ("alpha", "number"): "a number as {alpha}",
    ("noise", "learn|number"): "one noise variance, {noise='learn'} or a number",
    ("forget", "none"): "{forget=1}",
    ("forget", "none|number|time"): "a {forget} that is a number or {half_life}",
    ("forget", "none|number|time|window"): "a {forget} that is a number, {half_life} or a window",
    ("forget", _FADES): "a {forget} that is a number, 'auto' or {half_life}",
    ("forget", _NOT_MIXED): "a {forget} other than 'auto'",
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

RULES = [
    Rule(
        {"structure": "other"},
        {
            "missing": "raise|impute",
            "coef_cov": "model",
            "alpha": "number",
            "noise": "learn|number",
            "forget": "none",
        },
        "other settings need all of the information, a dense matrix",
        "Change that, or leave {structure} out.",
    ),
    Rule({"alpha": "auto"}, {"selection": _WEIGHED}, "there is no weight to choose", "Leave {alpha} out."),
    Rule(
        {"penalty": "group|box", "link": "identity|name"},
        {"likelihood": _ONE_OUTPUT},
        "the coefficients of several classes are known up to what is added to those of all classes",
        "Use {penalty='ridge'} or {penalty='l1'}.",
    ),
    Rule(
        {"likelihood": f"dispersed|{_UNIT}"},
        {"link": "identity|function"},
        "the likelihood has a link of its own",
        "Leave {link} out.",
    ),
    Rule(
        {"likelihood": f"robust|{_UNIT}"},
        {"noise": "learn"},
        "counts and classes have no noise variance, and robust likelihoods have the scale of good rows",
        "Leave {noise} out; a scale that is known is the parameter `scale` of {likelihood}.",
    ),
    Rule(
        {"weight_kind": "precision"},
        {"likelihood": f"gaussian|location|dispersed|{_UNIT}"},
        "the rows of a robust likelihood have one scale",
        "Use {weight_kind='frequency'}, or {likelihood='gaussian'}.",
    ),
    Rule(
        {"alpha": "auto"},
        {"link": "identity", "likelihood": f"gaussian|{_UNIT}"},
        "no evidence is known for other models",
        "Give a number.",
    ),
    Rule(
        {"alpha": "auto", "selection": "prediction"},
        {"likelihood": "gaussian"},
        "with that penalty it is chosen by predicting folds of rows, whose sums other models do not keep",
        "Give a number, or use {penalty='ridge'}.",
    ),
    Rule(
        {"alpha": "auto", "likelihood": _UNIT},
        {"forget": "none|number|time"},
        "it is chosen in several passes over rows with the weights that forgetting leaves them",
        "Give a number.",
    ),
    Rule(
        {"noise": "inputs"},
        {"link": "identity", "likelihood": "gaussian"},
        "the noise of other models is learned with their estimate, or there is none",
        "Use {noise='learn'}, or a number.",
    ),
    Rule({"link": "function"}, {"start": "yes"}, "nothing else says how many parameters the function has", "Give it."),
    Rule(
        {"link": "function"},
        {"standardize": "no"},
        "the theta of a function has no columns to scale",
        "Leave {standardize} out.",
    ),
    Rule(
        {"change_points": "yes"},
        {"diagnose": "yes", "link": "identity|name", "likelihood": _ONE_OUTPUT},
        "they are looked for as rows are scored, by linear models with one output",
        "Change that, or set {change_points=False}.",
    ),
    Rule(
        {"forget": "auto"},
        {"density": "known"},
        "ways to forget are weighed by the log density of what each had predicted",
        "Set the attribute, such as predictive = kalprox.predictive.Student, or give a number.",
    ),
    Rule(
        {"forget": "window|walk"},
        {"link": "identity", "likelihood": "gaussian", "coef_cov": "model", "noise": "learn|number"},
        "other models linearise each row once, and sums of scores and residuals can fade, and do nothing else",
        _WHICH_FADE,
    ),
    Rule(
        {"forget": "window|walk", "alpha": "auto"},
        {"penalty": "ridge"},
        "the folds that choose alpha for other penalties would not be forgotten with the rows",
        "Give a number for {alpha}, or forget by a number or {half_life}, which multiply the weights of rows.",
    ),
    Rule(
        {"forget": "walk"},
        {"standardize": "no"},
        "the standard deviations of the columns are not kept",
        f"Scale them first. {_WHICH_FADE}",
    ),
    Rule(
        {"missing": "marginalize"},
        {
            "link": "identity",
            "likelihood": "gaussian|two classes|several classes",
            "forget": _FADES,
            "noise": "learn|number",
        },
        "what a missing feature leaves open of a linear predictor adds to one noise variance, or lets a row count less",
        "Use {missing='impute'}.",
    ),
    # ---- ways to learn -----------------------------------------------------------------------------------
    Rule(
        {"way": "one pass", "alpha": "auto"},
        {"likelihood": "gaussian"},
        "the alpha of classes and counts is chosen from all rows, in several passes",
        "Fit the first rows, and learn later ones with the alpha that was chosen; or give a number.",
    ),
    Rule(
        {"way": "first rows", "standardize": "yes"},
        {"link": "identity", "likelihood": "gaussian"},
        "other models linearise each row once, and the standard deviations of its columns are not known beforehand",
        "Use fit, or scale the columns first.",
    ),
    Rule(
        {"way": "one pass", "structure": "other"},
        {"link": "identity", "likelihood": _ONE_OUTPUT, "penalty": "none|ridge|own ridge", "standardize": "no"},
        "the estimate is that of a linear model whose prior is the penalty",
        "Change that, leave {structure} out, or use fit, which learns rows in memory in several passes.",
    ),
    Rule(
        {"way": "no order"},
        {"forget": "none", "noise": "learn|number"},
        "what forgets, and a noise that depends on inputs, follow the rows in their order",
        "Learn them in their order, without {engine}.",
    ),
    Rule(
        {"way": "no order", "alpha": "auto"},
        {"penalty": "ridge"},
        "for other penalties alpha is chosen by cross-validation of blocks of rows in their order",
        "Give a number, or use path afterwards.",
    ),
    Rule(
        {"way": "out of order"},
        {"change_points": "no"},
        "change points are looked for in one pass over the rows in their order",
        "Leave {engine} and {shuffle} out, and for a nonlinear model set {passes=1}.",
    ),
    Rule(
        {"way": "not in memory"},
        {"missing": "raise"},
        "gaps are filled in by what is known of all rows, or of those before",
        "Leave {engine} out, and set {passes=1} for a nonlinear model; or use {missing='raise'}.",
    ),
    Rule(
        {"way": "passes"},
        {"model": "other", "forget": "none", "structure": "dense"},
        "a linear model is exact after one pass, and what forgets or has a structure learns files as a stream",
        "Set {passes=1}.",
    ),
    Rule(
        {"way": "refine"},
        {"model": "other", "forget": _NOT_MIXED},
        "it makes passes that begin at the estimate",
        "Use fit.",
    ),
    Rule(
        {"way": "merge"},
        {"forget": "none", "change_points": "no", "structure": "dense"},
        "otherwise the order of all rows matters, or their structures do not add up",
        "Fit one model to all rows.",
    ),
    Rule(
        {"way": "new features"},
        {"structure": "dense", "link": "identity|name"},
        "other models keep the features of their first row",
        "Give all features in every row.",
    ),
    # ---- kinds of rows -----------------------------------------------------------------------------------
    Rule(
        {"way": "names", "structure": "other"},
        {"likelihood": _ONE_OUTPUT},
        "a structure is that of one output",
        "Use river.multiclass.OneVsRestClassifier, which has a model for each class, or leave {structure} out.",
    ),
    Rule(
        {"way": "new names"},
        {"structure": "dense"},
        "a structure holds a number of columns that is known beforehand, and every new feature adds one",
        "Set {hash_bits=18}, or leave {structure} out.",
    ),
    Rule({"way": "numbers"}, {"likelihood": _ONE_OUTPUT}, "several classes are not numbers", "Use KalproxClassifier."),
    Rule(
        {"way": "targets"},
        {"link": "identity", "likelihood": "gaussian|several classes", "structure": "dense"},
        "other models have one output",
        "Fit one model per target.",
    ),
    Rule(
        {"way": "targets", "likelihood": "gaussian"},
        {"noise": "learn|number", "missing": "raise|impute", "change_points": "no"},
        "each of these is about one target",
        "Fit one model per target.",
    ),
    Rule(
        {"way": "offset"},
        {"link": "identity", "likelihood": "robust|location|dispersed|two classes|other"},
        "it is added to one linear predictor, and from numbers it can be subtracted",
        "With numbers, subtract it from the target.",
    ),
    Rule(
        {"way": "sparse"},
        {"missing": "raise"},
        "the empty entries of a sparse matrix are zeros",
        "Use X.toarray(), or {missing='raise'}.",
    ),
    Rule({"way": "formula"}, {"missing": "raise"}, "its terms need all cells", "Leave {missing} out."),
    Rule(
        {"way": "times"},
        {"forget": "time"},
        "times have no effect otherwise",
        "Leave it out, or use {half_life}.",
    ),
    Rule(
        {"way": "outliers"},
        {"likelihood": "robust", "forget": _NOT_MIXED},
        "one robust model flags the rows",
        "Change that, or leave {quarantine_outliers} out.",
    ),
    # ---- readings ----------------------------------------------------------------------------------------
    Rule(
        {"way": "conformal"},
        {"likelihood": "gaussian|robust|location|dispersed|other"},
        "classes have probabilities and no intervals",
        "Leave {method} out.",
    ),
    Rule(
        {"way": "anytime"},
        {"link": "identity", "likelihood": "gaussian", "structure": "dense", "forget": "none"},
        "the guarantee is for linear models of all rows, which are learned exactly",
        "Use {anytime=False}.",
    ),
    Rule(
        {"way": "minimax"},
        {
            "link": "identity",
            "likelihood": "gaussian",
            "structure": "dense",
            "forget": _NOT_MIXED,
            "penalty": "none|ridge|own ridge|own quadratic",
        },
        "no such forecaster is known for other models",
        "Predict with {minimax=False}.",
    ),
    Rule(
        {"way": "path"},
        {"forget": _NOT_MIXED, "structure": "dense", "selection": _WEIGHED},
        "the path is that of one model, for each weight of its penalty",
        "Fit once for each alpha instead.",
    ),
    Rule({"way": "path of rows"}, {"model": "other"}, "a linear model knows all about its rows", "Leave X and y out."),
    Rule(
        {"way": "path without rows"},
        {"model": "exact"},
        "the loss of other models is linearised elsewhere for each alpha",
        "Give X and y, the rows that it was fitted to.",
    ),
    Rule(
        {"way": "evidence"},
        {"link": "identity", "likelihood": "gaussian", "structure": "dense", "forget": "none|number|time|window"},
        "it is known for rows of linear models that are only weighted",
        "Compare predictions instead, with the score.",
    ),
]


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


_PAGE = """# What goes with what

All settings go together, and with all ways to learn and to read, but for the rows of this table, which is the one that
the estimators and [the command line](cli.md) check: what breaks a row is refused, with what to change.

| What | needs | because |
|---|---|---|
"""


def page() -> str:
    """Return the content of docs/reference/what_goes_with_what.md."""

    def in_code(name: str, value: Any) -> str:
        return f"`{in_python(name, value)}`"

    text = _PAGE
    for rule in RULES:
        about = _about(rule, [_words(name, words) for name, words in rule.when.items() if name != "way"])
        needs = _joined([_words(name, words) for name, words in rule.needs.items()], "; ")
        cells = (_spelled(parts, in_code) for parts in (about, needs, list(_parsed(rule.why))))
        text += f"| {' | '.join(cells)} |\n"
    return text


if __name__ == "__main__":
    print(page(), end="")
