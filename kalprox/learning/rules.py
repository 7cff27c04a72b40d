"""What goes with what: one table, which settings, the command line, the documentation and one test read.

A combination of settings, or of settings and a way in such as `merge`, is right or is refused by a row of `RULES`.
`python -m kalprox.learning.rules > docs/reference/what_goes_with_what.md` writes the table as a page.
"""

import re

from kalprox.base.text import Text
from kalprox.learning.rule import Rule, Settings, SettingsError, row

__all__ = ["RULES", "check", "page"]

# A rule is a sentence: what it is about, what that needs, why, and what to do instead. Its first two parts are words of
# `kalprox.learning.rule.FACTS` by their names; "way" is a name of `WAYS` there, and words in capitals are `GROUPS`. The
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
way=passes needs model=other, forget=none, structure=dense, because a linear model is exact after one pass, and what
    forgets or has a structure learns files as a stream. Set {passes=1}.
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
