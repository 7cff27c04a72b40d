"""What is said of a fitted model: facts in words and numbers, and a headline of all that makes the numbers doubtful."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from kalprox.base.text import Text, code, count, in_options, names, printable, worded
from kalprox.calibration import Verdict
from kalprox.learning.belief import Belief, doubt_of_errors, doubt_of_merge, equal_clusters
from kalprox.learning.learner import Learner
from kalprox.learning.mixed import MixedBelief
from kalprox.learning.targets import accepts_any
from kalprox.models import LINKS
from kalprox.sources.quarantine import NO_NOTES, Notes

_LEAST_SHOWN = 0.01  # the smallest weight of a way to forget that is shown
_FEW = 20  # clusters, below which it matters that they are unequal
# The findings of a verdict with which more change points are false.
_MORE_FALSE_ALARMS = "correlated", "skewed", "unequal spread"


def facts_of(
    learner: Learner,
    columns: int,
    numbers: Mapping[str, Any],
    *,
    target: str,
    rejected: int,
    cluster: str | None = None,
    classes: Sequence[str] = (),
) -> dict[str, str]:
    """Return the facts about a model, without those that say nothing.

    Parameters
    ----------
    learner : Learner
    columns : int
        The number of coefficients of each target, without the intercept.
    numbers : mapping
        Of the fit, such as R2, by their names.
    target, cluster : str
        The names of the columns of the target and of the clusters.
    rejected : int
        The number of rows that were rejected.
    classes : sequence of str
        The names of the classes, if the target has classes.
    """
    belief = learner.belief
    converged = "converged" if belief.converged else f"not converged{': ' * bool(belief.message)}{belief.message}"
    facts = {
        "target": target,
        "rows learned": f"{learner.n_rows:,}",
        "rows rejected": f"{rejected:,}",
        "columns" if learner.settings.function is None else "parameters": f"{columns:,}"
        + ", and an intercept" * belief.design.intercept,
        **_about_likelihood(belief, classes),
        "penalty": about_penalty(belief),
        **about_forgetting(belief),
        **about_noise(belief),
        "standard errors": _about_errors(belief, cluster),
        **{name: numbers_in_words(value) for name, value in numbers.items()},
        "passes": f"{belief.n_passes:,}, {converged}",
        "change points": about_changes(learner),
    }
    return {name: value for name, value in facts.items() if value}


def about_penalty(belief: Belief) -> str:
    """The penalty and its weight, in words."""
    penalty = belief.settings.penalty
    if not penalty.has_weight:
        return penalty.describe()
    auto = "auto -> " if belief.settings.chooses_alpha else ""
    return f"{penalty.describe()}, alpha = {auto}{numbers_in_words(np.asarray(belief.facts.alpha))}"


def about_forgetting(belief: Belief) -> dict[str, str]:
    """How rows are forgotten, in words; nothing if they are not."""
    kind = belief.settings.forgetting
    if not kind.forgets:
        return {}
    return {"forget": _weights(belief) if isinstance(belief, MixedBelief) else kind.describe()}


def _about_likelihood(belief: Belief, classes: Sequence[str]) -> dict[str, str]:
    """The link or, if it is not Gaussian, the likelihood in words, and the `classes` of the target."""
    settings = belief.settings
    if settings.likelihood.quadratic:
        if settings.function is not None:
            return {"function": getattr(settings.function, "__name__", "of one's own")}
        return {"link": settings.link}
    facts = {"likelihood": str(settings.parameters["likelihood"])}
    if classes:
        facts["classes"] = ", ".join(classes) + (f"; the coefficients are about {classes[1]}" * (len(classes) == 2))
    return facts


def about_noise(belief: Belief) -> dict[str, str]:
    """The standard deviation of the noise, and whether it was learned, in words; nothing if there is no noise."""
    likelihood = belief.settings.likelihood
    if not likelihood.learns_noise:
        return {}
    name = likelihood.noise_name
    variances, dofs = np.atleast_1d(belief.noise.variance), np.atleast_1d(belief.noise.dof)
    if np.isnan(variances).all():
        return {name: "unknown: there are no degrees of freedom left to learn it"}
    how = "given" if np.isinf(dofs).all() else f"learned, {float(dofs[0]):,.6g} degrees of freedom"
    return {name: f"{', '.join(f'{v**0.5:.4g}' for v in variances)} ({how})"}


def _weights(belief: MixedBelief) -> str:
    """The weights of the ways to forget, the largest first, and how many rows they remember."""
    parts, memory = [], np.atleast_1d(belief.memory)
    for w in belief.weights.reshape(len(belief.members), -1).T:
        order = [k for k in np.argsort(-w, kind="stable") if w[k] >= _LEAST_SHOWN]
        parts.append(", ".join(f"{belief.names[k]} {w[k]:.0%}" for k in order))
    rows = " and ".join(f"{m:,.0f}" for m in memory)
    return f"auto: {'; '.join(parts)}. The coefficients rest on about {rows} rows"


def about_changes(learner: Learner) -> str:
    """The change points that were found, in words; nothing if they were not asked for."""
    if learner.settings.change_points is None:
        return ""
    score = learner.score
    if score.changes is None:
        return f"not looked for, because {score.not_judged or 'no row was scored'}"
    findings = score.verdict().findings
    unlike = [] if "drifting" in findings else [word for word in findings if word in _MORE_FALSE_ALARMS]
    if not score.changes.found or not unlike:
        return str(score.changes).rstrip(".")
    found = " and ".join(f"'{word}'" for word in unlike)
    return f"{score.changes} Some may be none: the verdict on the errors is {found}, and false alarms are more frequent"


def _about_errors(belief: Belief, cluster: str | None) -> str:
    """What the standard errors of the coefficients assume, in words; `cluster` names the column of the clusters."""
    kind, sandwich = belief.settings.coef_cov, belief.sandwich
    if kind == "model":
        return f"model (independent rows{' with equal noise' * belief.settings.likelihood.quadratic})"
    if kind == "robust":
        return "robust (the variance of the noise may differ from row to row)"
    clusters = 0 if sandwich is None else round(sandwich.count)
    by = "" if cluster is None else f" of {cluster}"
    text = f"clustered (rows may depend on each other within each of {clusters:,} clusters{by}"
    worth = equal_clusters(belief)
    return text + (
        f"; for one coefficient they are worth {worth:.2g} equal ones)" if worth < min(clusters / 2, _FEW) else ")"
    )


def numbers_in_words(value: Any) -> str:
    """A number with six significant digits, or several; "" if none is defined."""
    values = np.atleast_1d(value).astype(float)
    if np.isnan(values).all():
        return ""
    return ", ".join("-" if np.isnan(v) else f"{v:,.6g}" for v in values)


_MANY = 0.1  # a larger share of rows that were refused is a doubt
_REASONS = 3  # reasons that are named
_WIDTH, _INDENT = 80, 12


class RowCounts(Protocol):
    """What is known of the rows that were read; see `kalprox.jobs.record.DataQuality`."""

    @property
    def read(self) -> int: ...
    @property
    def bad(self) -> int: ...
    @property
    def counted(self) -> Sequence[tuple[str, str, int]]: ...
    @property
    def notes(self) -> Notes: ...
    @property
    def outliers(self) -> int | None: ...


class Line(NamedTuple):
    """A line of a headline.

    Attributes
    ----------
    label : str
        What the line is about, in one word.
    text : str
        Names of columns are between backticks.
    doubt : bool
        Whether it makes the numbers of the model or of its predictions doubtful. The text then says what to change.
    """

    label: str
    text: str
    doubt: bool = False

    @property
    def plain(self) -> str:
        """The text with names in quotes."""
        return printable(self.text.replace("`", "'").replace("* *", "**"))


class Headline(NamedTuple):
    """The lines that reports, summaries and commands begin with; `str(headline)` is a text of 80 columns."""

    lines: tuple[Line, ...]

    @property
    def doubts(self) -> tuple[Line, ...]:
        """The lines that make the numbers doubtful."""
        return tuple(line for line in self.lines if line.doubt)

    def with_options(self) -> "Headline":
        """Return the headline with the options of the command line in place of the parameters of the estimator."""
        return Headline(tuple(line._replace(text=in_options(line.text)) for line in self.lines))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the lines in JSON types."""
        return [{"label": line.label, "text": line.plain, "doubt": line.doubt} for line in self.lines]

    def __str__(self) -> str:
        return "\n".join(map(_wrapped, self.lines))


def headline(
    learner: Learner,
    columns: Sequence[str],
    rows: RowCounts | None = None,
    predicted: RowCounts | None = None,
    *,
    in_time: bool = False,
) -> Headline:
    """Return the headline of a model or of its predictions.

    Parameters
    ----------
    learner : Learner
    columns : sequence of str
        The names of the columns of X.
    rows : RowCounts, optional
        The rows that were read to fit the model, if it was fitted to files.
    predicted : RowCounts, optional
        The rows that were predicted with it.
    in_time : bool
        Whether the rows are known to be in the order of time; those of a model that forgets are.

    Returns
    -------
    Headline

    Examples
    --------
    >>> from kalprox.learning.settings import Settings
    >>> from kalprox.sources import Block
    >>> learner = Learner(Settings.of(penalty=None))
    >>> learner.learn(Block(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]), np.array([3.0, 5.0, 7.5])))
    >>> print(headline(learner, ["dose", "batch"]))
    Rows        3 learned.
    ! Columns   'batch' is constant, and its coefficient undetermined: leave it out.
    ! Verdict   too few rows to say: At least 30 scored predictions are needed; with
                fewer, a std off by a factor of two could go unnoticed. 3 rows had
                no finite std, or one that is hardly known, and were not judged:
                look for enormous values, or for columns that the rows do not
                determine.
    """
    belief = learner.belief
    lines = _rows(learner, rows) if predicted is None else _predicted(learner, rows, predicted)
    about = (*_missingness(learner, columns), *_columns(belief, columns, learner.n_rows), *_estimate(learner))
    about = (*about, *_changes(learner))
    return Headline((*lines, *about, _verdict(learner, columns, in_time)))


def _rows(learner: Learner, rows: RowCounts | None) -> Iterator[Line]:
    if rows is None or not rows.read:
        rejected = f", {learner.n_rejected:,} refused" if learner.n_rejected else ""
        yield Line("Rows", f"{learner.n_rows:,} learned{rejected}.")
        yield from _gaps(learner)
        return
    yield _counts(rows, f"{learner.n_rows:,} learned")
    if rows.outliers is not None:
        verb = "is" if rows.outliers == 1 else "are"
        flagged = f"{count(rows.outliers, 'row')} {verb} flagged, learned with less weight"
        yield Line("Outliers", f"{flagged}, and written to the quarantine file.")
    yield from _cells(
        learner, rows.notes, 'Refuse such rows with {unseen="reject"}, or fit to rows that have all levels.'
    )


def _how(learner: Learner) -> str:
    return "marginalised" if learner.settings.missing == "marginalize" else "imputed"


def _gaps(learner: Learner) -> Iterator[Line]:
    """What is missing of the rows of a model that was not fitted to files."""
    gaps, pending = learner.gaps, learner.pending
    if gaps.rows:
        missing = 0 if gaps.cells is None else int(gaps.cells.sum())
        cells = f"{count(missing, 'feature')} in {count(gaps.rows, 'row')}"
        yield Line("Missing", f"{cells} {_how(learner)}.")
    if gaps.unlabelled:
        text = f"{count(gaps.unlabelled, 'row')} came without a target"
        if pending is not None:
            text += f"; {len(pending):,} still wait for it"
            text += f", and {pending.n_dropped:,} were dropped before it came" if pending.n_dropped else ""
        yield Line("Targets", f"{text}.", bool(pending is not None and pending.n_dropped))


def _missingness(learner: Learner, columns: Sequence[str]) -> Iterator[Line]:
    """What is assumed of missing features, and whether the rows contradict it."""
    if not learner.gaps.rows:
        return
    assumed = (
        "The gaps are taken to be independent of the target, given the features"
        if learner.settings.missing == "marginalize"
        else "The gaps are taken to be independent of the target and of all features (missing completely at random)"
    )
    informative = learner.stream.tracking.informative
    if informative is None:
        yield Line("Missing", f"{assumed}. That was not tested: too few rows with gaps were scored.", True)
    elif informative.found:
        measured = informative.measured(code(columns[informative.column]))
        yield Line("Missing", f"{assumed}, and are not: {measured}.", True)
    else:
        yield Line("Missing", f"{assumed}; the errors of the rows do not contradict it.")


def _predicted(learner: Learner, rows: RowCounts | None, predicted: RowCounts) -> Iterator[Line]:
    yield _counts(predicted, f"{predicted.read - predicted.bad:,} predicted")
    advice = 'The predictions ignore them. Refuse such rows with {unseen="reject"}, or fit to rows that have them.'
    fitted = NO_NOTES if rows is None else Notes(units=rows.notes.units)  # in other units, predictions are wrong
    yield from _cells(learner, fitted + predicted.notes, advice)
    yield from (line._replace(label="Model") for line in _rows(learner, rows) if line.doubt or line.label == "Rows")


def refusals(rows: RowCounts) -> str:
    """Return how many rows were refused, and for what, in words."""
    found = rows.counted
    why = [f"{f'{code(column)} ' if column else ''}{reason} ({n:,})" for column, reason, n in found[:_REASONS]]
    why += [f"{len(found) - _REASONS:,} more reasons"] if len(found) > _REASONS else []
    return f"{rows.bad:,} refused ({100 * _share_refused(rows):.3g}%): {', '.join(why)}."


def _share_refused(rows: RowCounts) -> float:
    return rows.bad / max(rows.read, 1)


def _counts(rows: RowCounts, used: str) -> Line:
    if not rows.bad:
        return Line("Rows", f"{rows.read:,} read, {used}, none refused.")
    text, many = f"{rows.read:,} read, {used}, {refusals(rows)}", _share_refused(rows) > _MANY
    if many:
        text += " The others may differ from them: correct these cells, or leave out the column"
        unseen = any("unseen level" in reason for _, reason, _ in rows.counted)
        levels = ', list all levels beforehand, or, without a formula, use {unseen="zero"}.'
        text = worded("{}" + (levels if unseen else "."), text)
    return Line("Rows", text, many)


def _cells(learner: Learner, notes: Notes, advice: str) -> Iterator[Line]:
    if notes.unknown and not notes.unknown_levels:
        yield Line("Levels", "all known.")
    unknown, doubts = set(Notes(notes.unknown).texts()), set(Notes(rounded=notes.rounded, units=notes.units).texts())
    for text in notes.texts():
        shown = text.replace("`", "'").replace("**", "* *")  # values of cells are not marked up
        shown = shown.replace("which were filled in", f"which were {_how(learner)}")
        if text in unknown:
            yield Line("Levels", worded("{} " + advice, shown), True)
        else:
            yield Line("Cells", shown, text in doubts)


def _columns(belief: Belief, columns: Sequence[str], n_rows: int) -> Iterator[Line]:
    named = np.array(columns, object)
    std = belief.facts.column_std
    if belief.settings.function is not None:  # whose parameters have no columns
        if not (determined := belief.determined(penalised=True)).all():
            unknown = np.array(belief.settings.coef_names(columns, len(determined)), object)[~determined]
            text = f"The rows do not determine {names(unknown)}: leave out what the function does not use."
            yield Line("Parameters", text, True)
        return
    determined, undetermined = (  # for all classes, if there are several
        belief.determined(penalised).reshape(-1, len(named)).all(axis=0) for penalised in (False, True)
    )
    undetermined = ~undetermined
    many = belief.settings.structure is not None  # columns, of which some are always 0
    constant = np.zeros(len(named), bool) if std is None or many else std == 0
    if constant.any():
        verb, it = ("is", "it") if constant.sum() == 1 else ("are", "them")
        without = ", and its coefficient undetermined" if (constant & undetermined).any() else ""
        without = without.replace("its coefficient", "their coefficients") if constant.sum() > 1 else without
        text = f"{names(named[constant])} {verb} constant{without}: leave {it} out."
        yield Line("Columns", text, bool((constant & undetermined).any()))
    if n := int(belief.exact_zeros.sum()):
        verb = "is" if n == 1 else "are"
        yield Line("Columns", f"{n:,} of {count(belief.coef.size, 'coefficient')} {verb} exactly 0, by the penalty.")
    if (several := ~determined & ~constant).any():
        whose = f"{names(named[several])} are collinear with other columns"
        if several.all() and n_rows <= len(named):
            whose = f"There are {count(len(named), 'column')} and {count(n_rows, 'row')}"
        if (undetermined & several).any():
            advice = '{}: coefficients are undetermined. Leave columns out, or use {penalty="ridge"}.'
            yield Line("Columns", worded(advice, whose), True)
        else:
            yield Line("Columns", f"{whose}: the penalty alone tells their effects apart.")


def _estimate(learner: Learner) -> Iterator[Line]:
    """What concerns the coefficients, their standard errors, the noise and the choice of alpha."""
    belief, settings = learner.belief, learner.settings
    if (outside := belief.facts.targets_outside) > 0:
        low, high = LINKS[settings.link].range
        text = f"{outside:,.10g} lie outside {low:.4g} to {high:.4g}, the range of the link {settings.link!r}"
        any_allowed = accepts_any(settings)
        text += ". Scale the target, or choose another link." if any_allowed else ", as noise may have it."
        yield Line("Targets", text, any_allowed)
    if not belief.converged or (not belief.predicts and belief.message):
        found = belief.message or worded("The coefficients may still change. Increase {max_passes}.")
        yield Line("Fit", worded("not converged: {}", found), True)
    if belief.facts.alpha_limit is not None:
        yield Line("Penalty", _AT_LIMIT[belief.facts.alpha_limit])
    for label, doubt in (
        ("Noise", belief.noise.reason),
        ("Errors", belief.why_no_std or doubt_of_errors(belief, learner.gaps, learner.n_rows)),
        ("Intervals", belief.interval_doubt),
        ("Merge", doubt_of_merge(belief.merge_distance) if belief.merge_distance else ""),
    ):
        if doubt:
            yield Line(label, doubt, True)


_AT_LIMIT = {
    np.inf: worded("{alpha='auto'}: the larger alpha, the better. The columns explain no more than noise would."),
    0.0: worded("{alpha='auto'}: the smaller alpha, the better. {penalty=None} does as well."),
}


def _changes(learner: Learner) -> Iterator[Line]:
    """What was found of change points, if they were asked for."""
    if learner.settings.change_points is None:
        return
    changes = learner.score.changes
    stays = changes is not None and changes.found > 0 and not learner.settings.forgets
    advice = ' The rows before still count: let the model forget them, with {forget="auto"}.' if stays else ""
    yield Line("Changes", worded("{}." + advice, about_changes(learner)), stays or changes is None)


def verdict_of(learner: Learner, *, in_time: bool = False) -> Verdict:
    """Return the verdict on the score; the rows of a model that forgets or looks for changes are in time order."""
    settings = learner.settings
    in_time = in_time or settings.forgets or settings.change_points is not None
    return learner.score.verdict()._replace(in_time=in_time)


def _verdict(learner: Learner, columns: Sequence[str], in_time: bool) -> Line:
    verdict = verdict_of(learner, in_time=in_time)
    if not verdict.rows > 0 and not verdict.undetermined > 0:
        why = verdict.reason or "no row was predicted before it was learned"
        return Line("Verdict", f"not judged, because {why}.", True)
    advice = verdict.advice
    if learner.belief.std_doubt:
        advice = _of_structures(verdict) or advice
    parts = [f"{verdict.word}: ", advice]
    names_of = {f"x{j}": code(name) for j, name in enumerate(columns)}
    for check in verdict.checks:
        if check.found and check.word == verdict.word == "nonlinear":
            shown = re.sub(r"\bx\d+\b", lambda found: names_of.get(found[0], found[0]), check.measured)
            parts.append(f" {shown[0].upper()}{shown[1:]}.")
    if verdict.findings[1:]:
        parts.append(f" Also: {', '.join(verdict.findings[1:])}.")
    mostly = verdict.undetermined > verdict.rows
    if verdict.worth >= 1:
        found = f"95% intervals cover {verdict.coverage:.1%}" if verdict.kind != "classes" else verdict.measured
        whose = f" of {verdict.whose}" if verdict.whose else ""
        judged = (
            f" Judged on {count(round(verdict.rows), 'row')}{whose}, each predicted before it was learned: {found}."
        )
        parts.append(judged)
    if mostly:
        look = ": look for enormous values, or for columns that the rows do not determine"
        look = look if verdict.kind == "numbers" else ""
        parts.append(f" {count(round(verdict.undetermined), 'row')} {verdict.why_undetermined}{look}.")
    return Line("Verdict", Text.of(*parts), verdict.word != "calibrated" or mostly)


def _of_structures(verdict: Verdict) -> str:
    """Return what a word means where a structure drops correlations, if that is something else; else empty."""
    if verdict.word == "drifting":
        return (
            "The rows at the end do not follow the estimate from those before. Where columns go together or change "
            "slowly, a structure that drops correlations makes it so. Use one of a higher rank, or shuffle rows that "
            "are not in the order of time."
        )
    if verdict.word != "over-confident":
        return ""
    advice = "The stated std is too small, as a structure that drops correlations may make it. Use one of a higher rank"
    correct = ', or intervals that correct themselves, {method="conformal"|predict --interval conformal}'
    return worded(f"{advice}{correct if verdict.kind == 'numbers' else ''}.")


def _wrapped(line: Line) -> str:
    label = f"{'! ' if line.doubt else ''}{line.label}"
    first, rest = f"{label:<{_INDENT}}", " " * _INDENT
    wrap = textwrap.TextWrapper(_WIDTH, break_on_hyphens=False, initial_indent=first, subsequent_indent=rest)
    return wrap.fill(" ".join(line.plain.split()))
