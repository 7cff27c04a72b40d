"""What goes with what: one table, which settings, the command line, the documentation and one test read.

A combination of settings, or of settings and a way in such as `merge`, is right or is refused by a row of `RULES`.
`python -m kalprox.learning.rules > docs/reference/what_goes_with_what.md` writes the table as a page.
"""

from typing import Any

from kalprox.learning.rule import (
    FADES,
    NOT_MIXED,
    ONE_OUTPUT,
    UNIT,
    WEIGHED,
    Rule,
    Settings,
    SettingsError,
    in_python,
    row,
)

__all__ = ["RULES", "check", "page"]

_WHICH_FADE = "Use a number, or {half_life}, which multiply the weights of rows."

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
    Rule({"alpha": "auto"}, {"selection": WEIGHED}, "there is no weight to choose", "Leave {alpha} out."),
    Rule(
        {"penalty": "group|box", "link": "identity|name"},
        {"likelihood": ONE_OUTPUT},
        "the coefficients of several classes are known up to what is added to those of all classes",
        "Use {penalty='ridge'} or {penalty='l1'}.",
    ),
    Rule(
        {"likelihood": f"dispersed|{UNIT}"},
        {"link": "identity|function"},
        "the likelihood has a link of its own",
        "Leave {link} out.",
    ),
    Rule(
        {"likelihood": f"robust|{UNIT}"},
        {"noise": "learn"},
        "counts and classes have no noise variance, and robust likelihoods have the scale of good rows",
        "Leave {noise} out; a scale that is known is the parameter `scale` of {likelihood}.",
    ),
    Rule(
        {"weight_kind": "precision"},
        {"likelihood": f"gaussian|location|dispersed|{UNIT}"},
        "the rows of a robust likelihood have one scale",
        "Use {weight_kind='frequency'}, or {likelihood='gaussian'}.",
    ),
    Rule(
        {"alpha": "auto"},
        {"link": "identity", "likelihood": f"gaussian|{UNIT}"},
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
        {"alpha": "auto", "likelihood": UNIT},
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
        {"diagnose": "yes", "link": "identity|name", "likelihood": ONE_OUTPUT},
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
            "forget": FADES,
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
        {"link": "identity", "likelihood": ONE_OUTPUT, "penalty": "none|ridge|own ridge", "standardize": "no"},
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
        {"model": "other", "forget": NOT_MIXED},
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
        {"likelihood": ONE_OUTPUT},
        "a structure is that of one output",
        "Use river.multiclass.OneVsRestClassifier, which has a model for each class, or leave {structure} out.",
    ),
    Rule(
        {"way": "new names"},
        {"structure": "dense"},
        "a structure holds a number of columns that is known beforehand, and every new feature adds one",
        "Set {hash_bits=18}, or leave {structure} out.",
    ),
    Rule({"way": "numbers"}, {"likelihood": ONE_OUTPUT}, "several classes are not numbers", "Use KalproxClassifier."),
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
        {"likelihood": "robust", "forget": NOT_MIXED},
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
            "forget": NOT_MIXED,
            "penalty": "none|ridge|own ridge|own quadratic",
        },
        "no such forecaster is known for other models",
        "Predict with {minimax=False}.",
    ),
    Rule(
        {"way": "path"},
        {"forget": NOT_MIXED, "structure": "dense", "selection": WEIGHED},
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

    def in_code(name: str, value: Any) -> str:
        return f"`{in_python(name, value)}`"

    rows = "".join(f"| {' | '.join(row(rule, in_code))} |\n" for rule in RULES)
    return _PAGE + rows


if __name__ == "__main__":
    print(page(), end="")
