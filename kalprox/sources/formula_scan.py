"""Making columns of a formula: a pass over all rows finds the levels, and the means and spreads that terms need."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kalprox.base.checks import LARGEST
from kalprox.base.text import worded
from kalprox.sources.arrow import is_number, plain
from kalprox.sources.cells import Cells, Faults, cell_labels, distinct_cells, parse_labels, separated
from kalprox.sources.files import STDIN, SourceError
from kalprox.sources.formula import FormulaColumns, factor_matrix, number_frame
from kalprox.sources.formula_functions import formula_error, scan_of
from kalprox.sources.formula_syntax import Parsed, parse_factor, parse_formula
from kalprox.sources.inference import (
    FeatureKinds,
    FirstRows,
    Inference,
    count_levels,
    holds_dates,
    infer_features,
    scan_levels,
)
from kalprox.sources.labels import in_order
from kalprox.sources.quarantine import Cell, Reason
from kalprox.sources.readers.base import Wanted
from kalprox.sources.table import Table
from kalprox.sources.table_columns import TableColumns

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
    time_is_date = holds_dates(first, inference.time)
    numbers = inference.numbers(left, time_is_date=time_is_date)
    kinds = infer_features(first, numbers, _right(parsed), as_levels, dates, left)
    for factor in factors:
        for name in factor.numbers:
            if name in kinds.levels:
                as_what = "levels" if name in as_levels else "text"
                raise SourceError(
                    f"{first.file}: formula must not have {factor.text!r}: column {name!r} is used as {as_what}, and "
                    "cannot be used as numbers."
                )
    stateful = {text: inner for factor in factors for text, inner in factor.stateful.items()}
    open_levels = [name for name in kinds.levels if not given.get(name)]
    levels = {name: tuple(given[name] or ()) if given.get(name) else () for name in kinds.levels}
    state: dict[str, dict[str, Any]] = {}
    if open_levels or stateful:
        scan = _Scan(left, inference, kinds, open_levels, stateful, time_is_date=time_is_date)
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
        numeric=kinds.numeric,
        booleans=kinds.booleans,
        dates=kinds.dates,
        levels=levels,
        state=state,
        classes=classes,
        time_is_date=time_is_date,
        **inference.roles(),
    )


class _Scan(TableColumns):
    """What a table reads to find levels and moments: as columns of X the expressions inside of center() and the like,
    and then the numbers of levels, in the order in which they came."""

    def __init__(
        self,
        left: list[str],
        inference: Inference,
        kinds: FeatureKinds,
        levels: list[str],
        stateful: Mapping[str, str],
        *,
        time_is_date: bool,
    ) -> None:
        numeric = (*(() if inference.classes else left), *kinds.numeric)
        about: dict[str, Any] = {"numeric": numeric, "booleans": kinds.booleans, "dates": kinds.dates}
        super().__init__(**inference.roles(), **about, time_is_date=time_is_date)
        self.labels = left if inference.classes else []
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
            X[:, j] = cells.parsed(name, partial(_codes, known=self.levels[name]))
        for at in np.flatnonzero(~np.isfinite(X).all(axis=1)).tolist():
            cells.refuse_value(Cell(at, "", Reason.NOT_FINITE, ""))
        return X

    def check(self, max_levels: int) -> None:
        """Raise SourceError where a column has more levels than allowed."""
        for name, known in self.levels.items():
            if len(known) > max_levels:
                raise SourceError(
                    worded(
                        "Column {} has more than the {} levels allowed. Leave it out of the formula, or allow more "
                        "with {max_levels}.",
                        repr(name),
                        f"{max_levels:,}",
                    )
                )


def _codes(column: Any, known: dict[str, int]) -> tuple[np.ndarray, Faults]:
    """The number of each cell's level, to which new levels are added, and the bad cells."""
    cells, codes = distinct_cells(column)
    numbers = [x if isinstance(x, Reason) else known.setdefault(x, len(known)) for x in cell_labels(cells)]
    return separated(numbers, codes, -1)
