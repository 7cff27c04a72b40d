"""The headline of a model: what became of the rows, and everything that makes the numbers doubtful, in a few lines."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from kalprox.base.text import Text, code, count, in_options, names, printable, worded
from kalprox.calibration import Verdict
from kalprox.learning.belief import Belief
from kalprox.learning.doubts import doubt_of_errors, doubt_of_merge
from kalprox.learning.facts import about_changes
from kalprox.learning.learner import Learner
from kalprox.learning.targets import accepts_any
from kalprox.models import LINKS
from kalprox.sources.notes import NO_NOTES, Notes

__all__ = ["Headline", "Line", "RowCounts", "headline", "refusals", "verdict_of"]

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
