"""What goes with what: one table, which settings, the command line, the documentation and one test read.

A combination of settings, or of settings and a way in such as `merge`, is right or is refused by a row of `RULES`.
`python -m kalprox.learning.rules > docs/reference/what_goes_with_what.md` writes the table as a page.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kalprox.base.text import Part, Text, parameter, worded

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


# A rule is a sentence: what it is about, what that needs, why, and what to do instead. Its first two parts are words of
# `FACTS` by their names; "way" is a name of `WAYS` there, and words in capitals are `GROUPS`. The
# rows of a rule after the first are indented, and those of comments begin with two dashes.
_TABLE = """
structure=other needs missing=raise|impute, coef_cov=model, alpha=number, noise=learn|number, forget=none, because
    other settings need all of the information, a dense matrix. Change that, or leave {structure} out.
alpha=auto needs selection=WEIGHED, because there is no weight to choose. Leave {alpha} out.
penalty=group|box, link=identity|name needs likelihood=ONE OUTPUT, because the coefficients of several classes are
    known up to what is added to those of all classes. Use {penalty='ridge'} or {penalty='l1'}.
likelihood=dispersed|UNIT needs link=identity|function, because the likelihood has a link of its own. Leave {link}
    out.
likelihood=robust|UNIT needs noise=learn, because counts and classes have no noise variance, and robust likelihoods
    have the scale of good rows. Leave {noise} out; a scale that is known is the parameter `scale` of {likelihood}.
weight_kind=precision needs likelihood=gaussian|location|dispersed|UNIT, because the rows of a robust likelihood have
    one scale. Use {weight_kind='frequency'}, or {likelihood='gaussian'}.
alpha=auto needs link=identity, likelihood=gaussian|UNIT, because no evidence is known for other models. Give a
    number.
alpha=auto, selection=prediction needs likelihood=gaussian, because with that penalty it is chosen by predicting folds
    of rows, whose sums other models do not keep. Give a number, or use {penalty='ridge'}.
alpha=auto, likelihood=UNIT needs forget=none|number|time, because it is chosen in several passes over rows with the
    weights that forgetting leaves them. Give a number.
noise=inputs needs link=identity, likelihood=gaussian, because the noise of other models is learned with their
    estimate, or there is none. Use {noise='learn'}, or a number.
link=function needs start=yes, because nothing else says how many parameters the function has. Give it.
link=function needs standardize=no, because the theta of a function has no columns to scale. Leave {standardize} out.
change_points=yes needs diagnose=yes, link=identity|name, likelihood=ONE OUTPUT, because they are looked for as rows
    are scored, by linear models with one output. Change that, or set {change_points=False}.
forget=auto needs density=known, because ways to forget are weighed by the log density of what each had predicted. Set
    the attribute, such as predictive = kalprox.predictive.Student, or give a number.
forget=window|walk needs link=identity, likelihood=gaussian, coef_cov=model, noise=learn|number, because other models
    linearise each row once, and sums of scores and residuals can fade, and do nothing else. Use a number, or
    {half_life}, which multiply the weights of rows.
forget=window|walk, alpha=auto needs penalty=ridge, because the folds that choose alpha for other penalties would not
    be forgotten with the rows. Give a number for {alpha}, or forget by a number or {half_life}, which multiply
    the weights of rows.
forget=walk needs standardize=no, because the standard deviations of the columns are not kept. Scale them first. Use a
    number, or {half_life}, which multiply the weights of rows.
missing=marginalize needs link=identity, likelihood=gaussian|two classes|several classes, forget=FADES,
    noise=learn|number, because what a missing feature leaves open of a linear predictor adds to one noise variance,
    or lets a row count less. Use {missing='impute'}.
-- ways to learn
way=one pass, alpha=auto needs likelihood=gaussian, because the alpha of classes and counts is chosen from all rows,
    in several passes. Fit the first rows, and learn later ones with the alpha that was chosen; or give a number.
way=first rows, standardize=yes needs link=identity, likelihood=gaussian, because other models linearise each row
    once, and the standard deviations of its columns are not known beforehand. Use fit, or scale the columns first.
way=one pass, structure=other needs link=identity, likelihood=ONE OUTPUT, penalty=none|ridge|own ridge,
    standardize=no, because the estimate is that of a linear model whose prior is the penalty. Change that, leave
    {structure} out, or use fit, which learns rows in memory in several passes.
way=no order needs forget=none, noise=learn|number, because what forgets, and a noise that depends on inputs, follow
    the rows in their order. Learn them in their order, without {engine}.
way=no order, alpha=auto needs penalty=ridge, because for other penalties alpha is chosen by cross-validation of
    blocks of rows in their order. Give a number, or use path afterwards.
way=out of order needs change_points=no, because change points are looked for in one pass over the rows in their
    order. Leave {engine} and {shuffle} out, and for a nonlinear model set {passes=1}.
way=not in memory needs missing=raise, because gaps are filled in by what is known of all rows, or of those before.
    Leave {engine} out, and set {passes=1} for a nonlinear model; or use {missing='raise'}.
way=passes needs model=other, forget=none, because a linear model is exact after one pass, and what forgets learns
    files as a stream. Set {passes=1}.
way=refine needs model=other, forget=NOT MIXED, because it makes passes that begin at the estimate. Use fit.
way=merge needs forget=none, change_points=no, structure=dense, because otherwise the order of all rows matters, or
    their structures do not add up. Fit one model to all rows.
way=new features needs structure=dense, link=identity|name, because other models keep the features of their first row.
    Give all features in every row.
-- kinds of rows
way=names, structure=other needs likelihood=ONE OUTPUT, because a structure is that of one output. Use
    river.multiclass.OneVsRestClassifier, which has a model for each class, or leave {structure} out.
way=new names needs structure=dense, because a structure holds a number of columns that is known beforehand, and every
    new feature adds one. Set {hash_bits=18}, or leave {structure} out.
way=numbers needs likelihood=ONE OUTPUT, because several classes are not numbers. Use KalproxClassifier.
way=targets needs link=identity, likelihood=gaussian|several classes, structure=dense, because other models have one
    output. Fit one model per target.
way=targets, likelihood=gaussian needs noise=learn|number, missing=raise|impute, change_points=no, because each of
    these is about one target. Fit one model per target.
way=offset needs link=identity, likelihood=robust|location|dispersed|two classes|other, because it is added to one
    linear predictor, and from numbers it can be subtracted. With numbers, subtract it from the target.
way=sparse needs missing=raise, because the empty entries of a sparse matrix are zeros. Use X.toarray(), or
    {missing='raise'}.
way=formula needs missing=raise, because its terms need all cells. Leave {missing} out.
way=times needs forget=time, because times have no effect otherwise. Leave it out, or use
    {half_life}.
way=outliers needs likelihood=robust, forget=NOT MIXED, because one robust model flags the rows. Change that, or leave
    {quarantine_outliers} out.
-- readings
way=conformal needs likelihood=gaussian|robust|location|dispersed|other, because classes have probabilities and no
    intervals. Leave {method} out.
way=anytime needs link=identity, likelihood=gaussian, structure=dense, forget=none, because the guarantee is for
    linear models of all rows, which are learned exactly. Use {anytime=False}.
way=minimax needs link=identity, likelihood=gaussian, structure=dense, forget=NOT MIXED, penalty=none|ridge|own
    ridge|own quadratic, because no such forecaster is known for other models. Predict with {minimax=False}.
way=path needs forget=NOT MIXED, structure=dense, selection=WEIGHED, because the path is that of one model, for each
    weight of its penalty. Fit once for each alpha instead.
way=path of rows needs model=other, because a linear model knows all about its rows. Leave X and y out.
way=path without rows needs model=exact, because the loss of other models is linearised elsewhere for each alpha. Give
    X and y, the rows that it was fitted to.
way=evidence needs link=identity, likelihood=gaussian, structure=dense, forget=none|number|time|window, because it is
    known for rows of linear models that are only weighted. Compare predictions instead, with the score.
"""
RULES = [Rule.of(text) for text in re.split(r"\n(?! )", _TABLE.strip()) if not text.startswith("--")]


def check(settings: Settings, way: str = "") -> None:
    """Raise a SettingsError for the first rule about this way in that settings break; without one, about settings."""
    for rule in RULES:
        if rule.when.get("way", "") == way and (unmet := rule.unmet(settings)):
            raise SettingsError.of(rule, settings, unmet)


_PAGE = """# What goes with what

All settings go together, and with all ways to learn and to read, but for the rows of this table, which is the one that
the estimators and [the command line](cli.md) check: what breaks a row is refused, with what to change.

| What | needs | because |
|---|---|---|
"""


def page() -> str:
    """Return the content of docs/reference/what_goes_with_what.md."""

    def in_code(text: Text) -> str:
        return "".join(python if python == option else f"`{python}`" for python, option in text.parts)

    return _PAGE + "".join(f"| {' | '.join(map(in_code, row(rule)))} |\n" for rule in RULES)


if __name__ == "__main__":
    print(page(), end="")
