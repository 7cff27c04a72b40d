"""Columns that a formula makes of a table: the terms are evaluated by the library formulaic, block by block."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from kalprox.base.checks import LARGEST
from kalprox.base.text import worded
from kalprox.sources.cells import Cells, impossible, parse_days, parse_levels, why_bad
from kalprox.sources.cells import shown as cell_shown
from kalprox.sources.files import SourceError
from kalprox.sources.formula_functions import context, formula_error, load_formulaic, transform_state
from kalprox.sources.formula_syntax import Factor, marked, marked_names, parse_factor, unmarked
from kalprox.sources.labels import LevelIndex
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.table_columns import TableColumns

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
        `kalprox.sources.formula_functions`.
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
            raise SourceError(
                worded(
                    "{unseen} must be 'reject' with a formula: the zeros of an unknown level would be those of the "
                    "reference."
                )
            )
        if not self.terms or not all(self.terms) or not all(self.levels.values()):
            raise formula_error("must have at least one term besides the intercept, and levels for each factor.")
        there = {*self.numeric, *self.dates}
        for factor in self._factors:
            used = {*factor.numbers, *(() if factor.lookup is None else (factor.lookup,))}
            if not used <= there | (set(self.levels) if factor.lookup else set()) or not set(factor.levels) <= set(
                self.levels
            ):
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
