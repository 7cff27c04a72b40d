"""Columns that a formula makes of a table: the terms are evaluated by the library formulaic, block by block."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.checks import LARGEST
from kalprox.sources.cell_parsing import parse_booleans, parse_days, parse_labels, parse_levels, parse_numbers, why_bad
from kalprox.sources.cell_parsing import shown as cell_shown
from kalprox.sources.classes import encode_classes
from kalprox.sources.encoding import (
    BadCells,
    CellNotes,
    Encoded,
    encode_offset,
    encode_times,
    impossible,
    parse_weights,
    too_heavy,
)
from kalprox.sources.files import SourceError
from kalprox.sources.formula_syntax import (
    FUNCTIONS,
    Factor,
    load_formulaic,
    marked,
    marked_names,
    parse_factor,
    unmarked,
)
from kalprox.sources.levels import LevelIndex
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Cell, Wanted

__all__ = ["FormulaColumns", "factor_matrix"]

_MOST = 1_000_000  # columns of X


@dataclass(frozen=True)
class FormulaColumns:
    """The target, weight, clusters and terms of a formula. It is used where `kalprox.sources.columns.Columns` is.

    Every column of X is a feature of its own. A row with a level that is not listed is a bad row: the columns of levels
    are differences from a reference, whose zeros it would have. The intercept of the formula is no column of X.

    Parameters
    ----------
    terms : tuple of tuple of str
        The terms, each as a list of factors; see `kalprox.sources.formula_syntax`.
    intercept : bool
        Whether the formula has an intercept. The levels of a factor then have a reference.
    target : str, optional
        The left-hand side: a column, or an expression such as log(y).
    weight, cluster : str, optional
        See `Columns`.
    numeric, booleans, dates : tuple of str
        The columns of the right-hand side that are numbers; those of them that are true or false; those that are dates.
    levels : dict of str to tuple of str
        The columns whose cells are levels, with their levels. The first level is the reference, unless a contrast
        names another one.
    classes : tuple of str
        The classes of the target, if its cells are classes; the left-hand side is then a column.
    offset, exposure, low, high, time, time_is_date
        See `Columns`.
    state : dict of str to dict of str to float
        For each expression such as center(x) the mean, and for scale(x) the std, of all rows.
    unseen : {"reject"}
        What becomes of a level that is not listed: a bad row.
    """

    terms: tuple[tuple[str, ...], ...]
    intercept: bool = True
    target: str | None = None
    weight: str | None = None
    cluster: str | None = None
    numeric: tuple[str, ...] = ()
    booleans: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    state: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unseen: str = "reject"
    classes: tuple[str, ...] = ()
    offset: str | None = None
    exposure: str | None = None
    low: float | None = None
    high: float | None = None
    time: str | None = None
    time_is_date: bool = False

    # What the columns of a table have, and those of a formula do not: each column of X is a number.
    categorical: Mapping[str, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    hashed: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    shared: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    references: Mapping[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    drop_first: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("terms", tuple(tuple(term) for term in self.terms))
        for name in ("numeric", "booleans", "dates", "classes"):
            put(name, tuple(getattr(self, name)))
        put("levels", {name: tuple(levels) for name, levels in self.levels.items()})
        if self.unseen != "reject":
            raise SourceError(
                "unseen must be 'reject' with a formula: the zeros of an unknown level would be those of the reference."
            )
        if not self.terms or not all(self.terms) or not all(self.levels.values()):
            raise SourceError("formula must have at least one term besides the intercept, and levels for each factor.")
        there = {*self.numeric, *self.dates}
        for factor in self._factors:
            used = {*factor.numbers, *(() if factor.lookup is None else (factor.lookup,))}
            if not used <= there | (set(self.levels) if factor.lookup else set()) or not set(factor.levels) <= set(
                self.levels
            ):
                raise SourceError(f"formula must have columns that are described; got {factor.text!r}.")
            if factor.reference is not None and factor.reference not in self.levels[factor.levels[0]]:
                known = ", ".join(map(repr, self.levels[factor.levels[0]][:20]))
                raise SourceError(
                    f"formula must not have {factor.text!r}: the reference {factor.reference!r} is no level of column "
                    f"{factor.levels[0]!r}, whose levels are {known}."
                )
            if not set(factor.stateful) <= set(self.state):
                raise SourceError(f"formula must have the state of {factor.text!r}.")
        widths = (np.prod([len(self.levels.get(name, "1")) for name in self._names(term)]) for term in self.terms)
        if sum(widths) > _MOST:
            raise SourceError(f"formula must not make more than {_MOST:,} columns; leave out interactions of levels.")
        given = self.weight, self.cluster, self.offset, self.exposure, self.time
        own = [*(name for name in given if name is not None), *self.target_columns]
        if len(set(own)) < len(own) or {*own} & {*there, *self.levels}:
            raise SourceError(
                "The target, the weight, offset, exposure, the times, the clusters and the terms must have different "
                "columns."
            )

    @cached_property
    def _factors(self) -> list[Factor]:
        return [parse_factor(text) for term in self.terms for text in term]

    def _names(self, term: tuple[str, ...]) -> list[str]:
        """The columns that a term uses."""
        factors = [parse_factor(text) for text in term]
        names = [name for f in factors for name in (*f.numbers, *f.levels, *((f.lookup,) if f.lookup else ()))]
        return list(dict.fromkeys(names))

    @property
    def in_several_terms(self) -> list[str]:
        """The columns that more than one term uses: no term of theirs changes alone."""
        used = Counter(name for term in self.terms for name in self._names(term))
        return [name for name, terms in used.items() if terms > 1]

    @cached_property
    def target_columns(self) -> tuple[str, ...]:
        """The columns that the target uses."""
        if self.target is None:
            return ()
        factor = parse_factor(self.target)
        expression = self.classes and factor.lookup is None  # which has no classes
        if expression or factor.levels or factor.stateful or factor.is_literal:
            raise SourceError(f"formula must have numbers on its left-hand side; got {self.target!r}.")
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
    def features(self) -> tuple[str, ...]:
        """The names of the columns of X."""
        return tuple(self.names)

    @property
    def row_size(self) -> int:
        """The number of numbers that a row of X takes."""
        return len(self.names)

    @property
    def groups(self) -> list[int]:
        """For each column of X the number of its term."""
        columns = [columns for _, _, columns in self._spec.structure[self.intercept :] if columns]
        return [i for i, names in enumerate(columns) for _ in names]

    @property
    def wanted(self) -> Wanted:
        """The columns that are read from a file."""
        numbers = tuple(name for name in (self.weight, self.offset, self.exposure) if name is not None)
        numbers += tuple(name for name in self.numeric if name not in self.booleans)
        labels = () if self.cluster is None else (self.cluster,)
        texts, dates = (*self.levels, *self.booleans), self.dates
        if self.time is not None:
            numbers, dates = (numbers, (*dates, self.time)) if self.time_is_date else ((*numbers, self.time), dates)
        if self.classes:
            return Wanted(numbers, (*texts, *self.target_columns), dates, labels)
        return Wanted((*self.target_columns, *numbers), texts, dates, labels)

    def to_json(self) -> dict[str, Any]:
        """The columns as a dictionary of JSON's types."""
        hidden = ("categorical", "hashed", "shared", "references", "drop_first")
        optional = ("classes", "offset", "exposure", "time", "time_is_date")  # left out, as in older files
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in hidden and (value or name not in optional)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FormulaColumns":
        """The columns that `to_json` was called on. Raise SourceError where a formula is not allowed."""
        return cls(**data)

    def __reduce__(self) -> tuple[Any, ...]:
        return FormulaColumns.from_json, (self.to_json(),)

    def encode(self, table: Any) -> Encoded:
        """Encode the rows of a table; see `Columns.encode`. A term that is not finite makes a bad row."""
        frame, bad, notes = self.parse(table)
        offset = encode_offset(table, self.offset, self.exposure, bad, notes)
        times = encode_times(table, self.time, self.time_is_date, bad)
        cells = {cell.at: cell for cell in bad.in_order()}
        n = table.num_rows
        y = w = groups = None
        if self.target is not None and self.classes:
            y = frame[self.target_columns[0]]
        elif self.target is not None:
            y = factor_matrix(self.target, frame)[:, 0]
            _note_values(cells, table, y[:, None], [self.target], [list(self.target_columns)])
            for at in np.flatnonzero(impossible(y, self.low, self.high)).tolist():
                value = cell_shown(table.column(self.target_columns[0]), at)
                cells.setdefault(at, Cell(at, self.target, Reason.IMPOSSIBLE, value))
        if self.weight is not None:
            w = frame.pop(self.weight)
        if self.cluster is not None:
            groups = frame.pop(self.cluster)
        X = _evaluate(self._spec, {name: frame[name] for name in self._right}, n)
        X = np.ascontiguousarray(X[:, self.intercept :])
        _note_values(cells, table, X, self.names, self._columns_of_names)
        if w is not None and self.weight is not None:
            faults = too_heavy(w, *((X,) if y is None else (X, y)))
            for at in [] if faults is None else faults.at.tolist():
                why, value = faults.why[0], cell_shown(table.column(self.weight), at)  # type: ignore[union-attr]
                cells.setdefault(at, Cell(at, self.weight, why, value))
        return Encoded(X, y, w, groups, [cells[at] for at in sorted(cells)], notes.notes(), offset, times)

    def parse(self, table: Any) -> tuple[dict[str, Any], BadCells, CellNotes]:
        """The cells of a table as numbers, levels, classes and labels by column, the bad cells, and notes."""
        pandas = load_formulaic("pandas")
        bad, notes, frame = BadCells(table), CellNotes(table), {}
        for name in self.target_columns if self.classes else ():
            frame[name], faults = encode_classes(table.column(name), self.classes)
            bad.note(name, faults)
        for name in self.numeric if self.classes else (*self.target_columns, *self.numeric):
            frame[name], faults = (parse_booleans if name in self.booleans else parse_numbers)(table.column(name))
            bad.note(name, faults)
            notes.note_rounded(name, frame[name])
        if self.weight is not None:
            frame[self.weight], faults = parse_weights(table.column(self.weight))
            bad.note(self.weight, faults)
            notes.note_rounded(self.weight, frame[self.weight])
        if self.cluster is not None:
            frame[self.cluster], faults = parse_labels(table.column(self.cluster))
            bad.note(self.cluster, faults)
        for name in self.dates:
            frame[name], faults = parse_days(table.column(name))
            bad.note(name, faults)
        for name, levels in self.levels.items():
            codes, faults = parse_levels(table.column(name), self._level_indices[name])
            bad.note(name, faults)
            frame[name] = pandas.Categorical.from_codes(np.maximum(codes, 0), categories=list(levels))
        return frame, bad, notes

    @property
    def _right(self) -> tuple[str, ...]:
        return (*self.numeric, *self.dates, *self.levels)

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
        spec = _model_matrix(_formula(terms), frame).model_spec
        for text, state in self.state.items():
            found = spec.transform_state.get(_state_key(text))
            if found is None:
                raise SourceError(f"formula must have the expressions of its state; got {text!r}.")
            found["center"], found["scale"] = state["mean"], state.get("std")
        return spec


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


_CONTEXT = {name: getattr(np, name) for name in FUNCTIONS}


def _model_matrix(formula: Any, frame: Mapping[str, Any]) -> Any:
    """The model matrix of a formula or of a description, without a look at the variables of the caller."""
    pandas, errors = load_formulaic("pandas"), load_formulaic("formulaic.errors")
    try:
        with np.errstate(all="ignore"):
            return formula.get_model_matrix(
                pandas.DataFrame(marked_names(frame)), context=_CONTEXT, na_action="ignore", output="numpy"
            )
    except (errors.FormulaicError, ValueError, TypeError, KeyError, SyntaxError) as error:
        said = re.sub(r"\s+", " ", str(error))[:300]
        raise SourceError(f"formula must have terms that can be evaluated; formulaic says: {said}") from error


def _evaluate(spec: Any, frame: Mapping[str, Any], n: int) -> np.ndarray:
    if n == 0:
        width = len(spec.column_names) if hasattr(spec, "column_names") else 1
        return np.empty((0, width))
    return np.array(_model_matrix(spec, frame), np.float64)


def _note_values(
    cells: dict[int, Cell], table: Any, values: np.ndarray, names: list[str], columns: list[list[str]]
) -> None:
    """Add a bad cell for the first value of each row that is not finite or too large."""
    wrong = ~(np.abs(values) <= LARGEST)
    for at in np.flatnonzero(wrong.any(axis=1)).tolist():
        if at not in cells:
            j = int(np.argmax(wrong[at]))
            value = cell_shown(table.column(columns[j][0]), at) if columns[j] else ""
            cells[at] = Cell(at, names[j], why_bad(values[at, j]), value)
