"""Columns that a formula makes of a table: a pass over all rows finds what the terms need; formulaic evaluates them."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.base.checks import LARGEST
from kalprox.sources.arrow import is_number, plain
from kalprox.sources.cells import Cells, impossible, parse_days, parse_labels, parse_levels, parsed_labels, why_bad
from kalprox.sources.cells import shown as cell_shown
from kalprox.sources.columns import TableColumns
from kalprox.sources.files import STDIN, SourceError
from kalprox.sources.formula_syntax import (
    Factor,
    Parsed,
    context,
    formula_error,
    load_formulaic,
    marked,
    marked_names,
    parse_factor,
    parse_formula,
    scan_of,
    transform_state,
    unmarked,
)
from kalprox.sources.inference import FeatureKinds, FirstRows, Inference, count_levels, infer_features, scan_levels
from kalprox.sources.labels import LevelIndex, in_order
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.readers.base import Wanted
from kalprox.sources.table import Table

_MOST = 1_000_000  # columns of X


@dataclass(frozen=True)
class FormulaColumns(TableColumns):
    """The target, weight, clusters and terms of a formula. It is used where `kalprox.sources.columns.Columns` is.

    Every column of X is a feature of its own. A row with a level that is not listed is a bad row: the columns of levels
    are differences from a reference, whose zeros it would have. The intercept of the formula is no column of X.

    Parameters
    ----------
    target : str, optional
        The left-hand side: a column, or an expression such as log(y). Of classes, it is a column.
    numeric, booleans, dates : tuple of str
        The columns of the right-hand side that are numbers; those of them that are true or false; those that are dates.
    unseen : {"reject"}
        What becomes of a level that is not listed: a bad row.
    weight, cluster, classes, offset, exposure, low, high, time, time_is_date
        See `TableColumns`.
    terms : tuple of tuple of str
        The terms, each as a list of factors; see `kalprox.sources.formula_syntax`.
    intercept : bool
        Whether the formula has an intercept. The levels of a factor then have a reference.
    levels : dict of str to tuple of str
        The columns whose cells are levels, with their levels. The first level is the reference, unless a contrast
        names another one.
    state : dict of str to dict
        For each expression such as center(x) or bs(x, df=5) the mean of all rows, the knots, and so on; see
        `kalprox.sources.formula_syntax`.
    """

    _: KW_ONLY
    terms: tuple[tuple[str, ...], ...]
    intercept: bool = True
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    state: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        terms, levels = tuple(map(tuple, self.terms)), {name: tuple(known) for name, known in self.levels.items()}
        self._set(terms=terms, levels=levels)
        if self.unseen != "reject":
            raise SourceError.worded(
                "{unseen} must be 'reject' with a formula: the zeros of an unknown level would be those of the "
                "reference."
            )
        if not self.terms or not all(self.terms) or not all(self.levels.values()):
            raise formula_error("must have at least one term besides the intercept, and levels for each factor.")
        there = {*self.numeric, *self.dates}
        for factor in self._factors:
            described = there >= set(factor.numbers) and self.levels.keys() >= set(factor.levels)
            if not described or not {factor.lookup} <= {*there, *self.levels, None}:
                raise formula_error(f"must have columns that are described; got {factor.text!r}.")
            if factor.reference is not None and factor.reference not in self.levels[factor.levels[0]]:
                known = ", ".join(map(repr, self.levels[factor.levels[0]][:20]))
                raise formula_error(
                    f"must not have {factor.text!r}: the reference {factor.reference!r} is no level of column "
                    f"{factor.levels[0]!r}, whose levels are {known}."
                )
        stateful = {text for factor in self._factors for text in factor.stateful}
        if stateful != set(self.state):
            raise formula_error(f"must have the state of {', '.join(sorted(stateful)) or 'nothing'}.")
        widths = (np.prod([len(self.levels.get(name, "1")) for name in self._names(term)]) for term in self.terms)
        if sum(widths) > _MOST:
            raise formula_error(f"must not make more than {_MOST:,} columns; leave out interactions of levels.")
        self._check_different([*there, *self.levels])

    @cached_property
    def _factors(self) -> list[Factor]:
        return [parse_factor(text) for term in self.terms for text in term]

    def _names(self, term: tuple[str, ...]) -> list[str]:
        """The columns that a term uses."""
        return list(dict.fromkeys(name for text in term for name in parse_factor(text).columns))

    @property
    def in_several_terms(self) -> list[str]:
        """The columns that more than one term uses: no term of theirs changes alone."""
        used = Counter(name for term in self.terms for name in self._names(term))
        return [name for name, terms in used.items() if terms > 1]

    @cached_property
    def left(self) -> tuple[str, ...]:
        """The columns that the target uses."""
        if self.target is None:
            return ()
        factor = parse_factor(self.target)
        expression = self.classes and factor.lookup is None  # which has no classes
        if expression or factor.levels or factor.stateful or factor.is_literal:
            raise formula_error(f"must have numbers on its left-hand side; got {self.target!r}.")
        return factor.numbers or (str(factor.lookup),)

    @property
    def formula(self) -> str:
        """The formula, with all terms written out."""
        terms = ["1" if self.intercept else "0", *(":".join(term) for term in self.terms)]
        return f"{self.target or ''} ~ {' + '.join(terms)}".strip()

    @cached_property
    def names(self) -> list[str]:
        """The names of the columns of X, as formulaic gives them, such as "C(carrier)[T.UA]"."""
        return [unmarked(name) for name in self._spec.column_names[self.intercept :]]

    @property
    def groups(self) -> list[int]:
        """For each column of X the number of its term."""
        columns = [columns for _, _, columns in self._spec.structure[self.intercept :] if columns]
        return [i for i, names in enumerate(columns) for _ in names]

    @property
    def texts(self) -> tuple[str, ...]:
        """The features whose cells are levels."""
        return tuple(self.levels)

    def _encoded_target(self, cells: Cells) -> np.ndarray:
        if self.classes:
            return super()._encoded_target(cells)
        assert self.target is not None
        y = factor_matrix(self.target, number_frame(cells, self.left, (), ()))[:, 0]
        _refuse_values(cells, y[:, None], [self.target], [list(self.left)])
        for at in np.flatnonzero(impossible(y, self.low, self.high)).tolist():
            value = cell_shown(cells.table.column(self.left[0]), at)
            cells.refuse_value(Cell(at, self.target, Reason.IMPOSSIBLE, value))
        return y

    def _encoded_features(self, cells: Cells) -> Any:
        """X. A term that is not finite makes a bad row."""
        pandas = load_formulaic("pandas")
        frame = number_frame(cells, self.numeric, self.booleans, self.dates)
        for name, levels in self.levels.items():
            codes = cells.parsed(name, partial(parse_levels, known=self._level_indices[name]))
            frame[name] = pandas.Categorical.from_codes(np.maximum(codes, 0), categories=list(levels))
        X = np.ascontiguousarray(_evaluate(self._spec, frame, cells.table.num_rows)[:, self.intercept :])
        _refuse_values(cells, X, self.names, self._columns_of_names)
        return X

    @cached_property
    def _level_indices(self) -> dict[str, LevelIndex]:
        return {name: LevelIndex({level: i for i, level in enumerate(levels)}) for name, levels in self.levels.items()}

    @cached_property
    def _columns_of_names(self) -> list[list[str]]:
        """For each column of X the columns of the table that its term uses."""
        structure = zip(self.terms, self._spec.structure[self.intercept :], strict=True)
        return [self._names(term) for term, (_, _, columns) in structure for _ in columns]

    @cached_property
    def _spec(self) -> Any:
        """formulaic's description of the columns of X: from the kinds of columns and their levels, not from rows."""
        pandas = load_formulaic("pandas")
        frame: dict[str, Any] = {name: np.array([1.0, 2.0, 3.0]) for name in (*self.numeric, *self.dates)}
        for name, levels in self.levels.items():
            frame[name] = pandas.Categorical.from_codes([0, 0, 0], categories=list(levels))
        terms = ([("1",)] if self.intercept else []) + list(self.terms)
        known = {_state_key(text): transform_state(text, state) for text, state in self.state.items()}
        return _model_matrix(_formula(terms), frame, known).model_spec


def number_frame(cells: Cells, numbers: Iterable[str], booleans: Sequence[str], dates: Iterable[str]) -> dict[str, Any]:
    """Some columns of a table as numbers, of which those of `booleans` may be true or false, and some as days."""
    frame = {name: cells.numbers(name, booleans=name in booleans) for name in numbers}
    return frame | {name: cells.parsed(name, parse_days) for name in dates}


def factor_matrix(text: str, frame: Mapping[str, np.ndarray]) -> np.ndarray:
    """A single expression of numbers, checked before, as an array of shape (n, 1)."""
    factor = parse_factor(text)
    names = factor.numbers or (str(factor.lookup),)
    formula = _formula([(text,)])
    return _evaluate(formula, {name: frame[name] for name in names}, len(frame[names[0]]))


def _state_key(text: str) -> str:
    """The name under which formulaic keeps the state of an expression."""
    code = load_formulaic("formulaic.utils.code")
    return str(code.format_expr(code.sanitize_variable_names(marked(text), {}, {})))


def _formula(terms: list[tuple[str, ...]]) -> Any:
    """The terms as a formula of formulaic's, without its parser."""
    types = load_formulaic("formulaic.parser.types")
    made = []
    for term in terms:
        factors = []
        for text in term:
            factor = parse_factor(text)
            how = "literal" if factor.is_literal else "lookup" if factor.lookup is not None else "python"
            factors.append(types.Factor(factor.lookup or marked(text), eval_method=how))
        made.append(types.Term(factors))
    return load_formulaic().SimpleFormula(made, _ordering="none")


def _model_matrix(formula: Any, frame: Mapping[str, Any], state: dict[str, Any] | None = None) -> Any:
    """The model matrix of a formula or of a description, without a look at the variables of the caller."""
    pandas, errors = load_formulaic("pandas"), load_formulaic("formulaic.errors")
    options = {} if state is None else {"transform_state": state}
    try:
        with np.errstate(all="ignore"):
            return formula.get_model_matrix(
                pandas.DataFrame(marked_names(frame)), context=context(), na_action="ignore", output="numpy", **options
            )
    except (errors.FormulaicError, ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError) as error:
        said = re.sub(r"\s+", " ", str(error))[:300]
        raise formula_error(f"must have terms that can be evaluated; formulaic says: {said}") from error


def _evaluate(spec: Any, frame: Mapping[str, Any], n: int) -> np.ndarray:
    if n == 0:
        width = len(spec.column_names) if hasattr(spec, "column_names") else 1
        return np.empty((0, width))
    return np.array(_model_matrix(spec, frame), np.float64)


def _refuse_values(cells: Cells, values: np.ndarray, names: list[str], columns: list[list[str]]) -> None:
    """Add a bad cell for the first value of each row that is not finite or too large."""
    wrong = ~(np.abs(values) <= LARGEST)
    for at in np.flatnonzero(wrong.any(axis=1)).tolist():
        j = int(np.argmax(wrong[at]))
        value = cell_shown(cells.table.column(columns[j][0]), at) if columns[j] else ""
        outside = "bs(" in names[j] and np.isnan(values[at, j])
        cells.refuse_value(Cell(at, names[j], Reason.OUTSIDE if outside else why_bad(values[at, j]), value))


Blocks = Callable[["_Scan"], Iterable[np.ndarray]]


def infer_formula(files: Sequence[Path], formula: str, **known: Any) -> FormulaColumns:
    """The columns of a formula over files.

    The kinds of columns are inferred from the first rows. Levels, and the state of center() and scale(), are those of
    all good rows, found in a pass over all files; it is left out where the formula needs none of them.

    Parameters
    ----------
    files : sequence of Path
    formula : str
        Such as "arr_delay ~ dep_delay + C(carrier) + distance:hour", in the syntax of formulaic.
    **known
        What is known of the columns, and how files are read; see `kalprox.sources.inference.Inference`. With classes
        the left-hand side of the formula is a column.
    """
    parsed, inference = _with_target(formula), Inference(files=files, **known)
    first = inference.first_rows(_left(parsed), _right(parsed))

    def blocks(scan: "_Scan") -> Iterable[np.ndarray]:
        if STDIN in files:
            inference.watch(f"Storing standard input in a temporary file, to find {scan.needs}.")
            inference.replay.store(inference.spool, f"to find {scan.needs}")
        skip, samples = inference.skip_unreadable, inference.samples
        table = Table(files, scan, skip_unreadable=skip, samples=samples, **inference.settings())
        return (block.X for block in table.blocks())

    found: tuple[str, ...] = ()
    if inference.classes is not None:
        target = _class_column(parsed)
        numbers = {target: is_number(plain(first.table.column(target)).type)}
        levels = scan_levels(inference, {} if inference.classes.listed else numbers, target)
        found = inference.classes.arranged(target, levels.get(target, {}))
    return _columns(first, parsed, inference, blocks, found)


def infer_formula_of_table(formula: str, table: Any, **known: Any) -> FormulaColumns:
    """The columns of a formula over a pyarrow table; its text is text, also where it spells numbers.

    For what may be known of the columns see `kalprox.sources.inference.Inference`.
    """
    parsed, inference = _with_target(formula), Inference(**known)

    def blocks(scan: "_Scan") -> Iterable[np.ndarray]:
        encoded = scan.encode(table)
        good = np.ones(table.num_rows, bool)
        good[[cell.at for cell in encoded.bad]] = False
        return [encoded.X[good]]

    found: tuple[str, ...] = ()
    if inference.classes is not None:
        column = table.column(target := _class_column(parsed))
        counts: dict[str, int] = {}
        count_levels(counts, column, numbers=is_number(plain(column).type))
        found = inference.classes.arranged(target, counts)
    return _columns(FirstRows("data", table, text_may_be_number=False), parsed, inference, blocks, found)


def _with_target(formula: str) -> Parsed:
    """The parts of a formula; raise SourceError if it has no left-hand side."""
    parsed = parse_formula(formula)
    if parsed.target is None:
        raise formula_error(f"must have a target, such as 'y ~ x'; got {formula!r}.")
    return parsed


def formula_names(formula: str) -> list[str]:
    """The names of the columns that a formula uses.

    >>> formula_names("log(y) ~ x + C(g):`dep delay`")
    ['y', 'x', 'g', 'dep delay']
    """
    parsed = parse_formula(formula)
    return list(dict.fromkeys([*_left(parsed), *_right(parsed)]))


def _left(parsed: Parsed) -> list[str]:
    factor = None if parsed.target is None else parse_factor(parsed.target)
    return [] if factor is None else list(factor.numbers or ((factor.lookup,) if factor.lookup else ()))


def _class_column(parsed: Parsed) -> str:
    """The target, if it is a column, which may hold classes."""
    factor = parse_factor(str(parsed.target))
    if factor.lookup is None:
        raise formula_error(f"must have a column of classes on its left-hand side; got {parsed.target!r}.")
    return factor.lookup


def _right(parsed: Parsed) -> list[str]:
    return list(dict.fromkeys(name for term in parsed.terms for text in term for name in parse_factor(text).columns))


def _columns(
    first: FirstRows, parsed: Parsed, inference: Inference, blocks: Blocks, classes: tuple[str, ...]
) -> FormulaColumns:
    """The columns of a formula, given the first rows and what returns the blocks of a scan."""
    left, given = _left(parsed), inference.levels
    factors = [parse_factor(text) for term in parsed.terms for text in term]
    as_levels = {name: given.get(name) for factor in factors for name in factor.levels} | given
    dates = [name for name in inference.dates if name not in as_levels]
    kinds = infer_features(inference, first, _right(parsed), as_levels, dates, left)
    for factor in factors:
        for name in factor.numbers:
            if name in kinds.levels:
                as_what = "levels" if name in as_levels else "text"
                raise SourceError(
                    f"{first.file}: formula must not have {factor.text!r}: column {name!r} is used as {as_what}, and "
                    "cannot be used as numbers."
                )
    stateful = {text: inner for factor in factors for text, inner in factor.stateful.items()}
    levels = {name: known or () for name, known in kinds.levels.items()}
    open_levels = [name for name, known in levels.items() if not known]
    state: dict[str, dict[str, Any]] = {}
    if open_levels or stateful:
        scan = _Scan(left, kinds, open_levels, stateful, classes=inference.classes is not None)
        scans = [scan_of(text) for text in stateful]
        found: list[set[int]] = [set() for _ in open_levels]
        good = 0
        for X in blocks(scan):
            good += len(X)
            for values_of, values in zip(scans, X.T, strict=False):
                values_of.add(values)
            for seen, codes in zip(found, X.T[len(stateful) :], strict=True):
                seen.update(np.unique(codes).astype(int).tolist())
            scan.check(inference.max_levels)
        for name, seen in zip(open_levels, found, strict=True):  # of good rows
            levels[name] = in_order(level for level, code in scan.levels[name].items() if code in seen)
        if any(not known for known in levels.values()) or any(values_of.count < 2 for values_of in scans):
            raise SourceError(
                f"{first.file}: there are too few good rows, {good:,}, to find {scan.needs}. A row is bad if one of "
                f"its cells is missing, not finite, or a number above {LARGEST:g} in size."
            )
        state = {text: values_of.state(text) for text, values_of in zip(stateful, scans, strict=True)}
    return FormulaColumns(
        parsed.target,
        terms=parsed.terms,
        intercept=parsed.intercept,
        levels=levels,
        state=state,
        classes=classes,
        **kinds.fields,
    )


class _Scan(TableColumns):
    """What a table reads to find levels and moments: as columns of X the expressions inside of center() and the like,
    and then the numbers of levels, in the order in which they came."""

    def __init__(
        self, left: list[str], kinds: FeatureKinds, levels: list[str], stateful: Mapping[str, str], *, classes: bool
    ) -> None:
        numeric = (*([] if classes else left), *kinds.fields["numeric"])
        super().__init__(**kinds.fields | {"numeric": numeric})
        self.labels = left if classes else []
        self.inner = dict(stateful)
        self.levels: dict[str, dict[str, int]] = {name: {} for name in levels}

    @property
    def names(self) -> list[str]:
        """The expressions and the columns of levels."""
        return [*self.inner, *self.levels]

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of levels."""
        return tuple(self.levels)

    @property
    def needs(self) -> str:
        """What is looked for, in words."""
        return ", ".join(
            [*(f"the levels of {name!r}" for name in self.levels), *(f"what {x} needs" for x in self.inner)]
        )

    @property
    def wanted(self) -> Wanted:
        """The columns that are read: all that the model will need, so that its bad rows are not counted."""
        wanted = super().wanted
        return replace(wanted, labels=(*wanted.labels, *self.labels))

    def _encoded_features(self, cells: Cells) -> np.ndarray:
        frame = number_frame(cells, self.numeric, self.booleans, self.dates)
        for name in self.labels:
            cells.parsed(name, parse_labels)
        X = np.empty((cells.table.num_rows, len(self.names)))
        for j, inner in enumerate(self.inner.values()):
            X[:, j] = factor_matrix(inner, frame)[:, 0]
        for j, name in enumerate(self.levels, len(self.inner)):
            known = self.levels[name]
            X[:, j] = cells.parsed(name, partial(parsed_labels, value_of=partial(_number_of, known), nothing=-1))
        for at in np.flatnonzero(~np.isfinite(X).all(axis=1)).tolist():
            cells.refuse_value(Cell(at, "", Reason.NOT_FINITE, ""))
        return X

    def check(self, max_levels: int) -> None:
        """Raise SourceError where a column has more levels than allowed."""
        for name, known in self.levels.items():
            if len(known) > max_levels:
                raise SourceError.worded(
                    "Column {} has more than the {} levels allowed. Leave it out of the formula, or allow more "
                    "with {max_levels}.",
                    repr(name),
                    f"{max_levels:,}",
                )


def _number_of(known: dict[str, int], level: str) -> int:
    """The number of a level, which is added if it is new."""
    return known.setdefault(level, len(known))
