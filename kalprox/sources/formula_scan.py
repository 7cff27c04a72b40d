"""Making columns of a formula: a pass over all rows finds the levels, and the means and spreads that terms need."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kalprox.sources.cell_parsing import Faults, cell_labels, distinct_cells, parse_labels, separated
from kalprox.sources.cell_types import is_number, plain
from kalprox.sources.classes import TargetClasses
from kalprox.sources.columns import SPOOL
from kalprox.sources.encoding import BadCells, CellNotes
from kalprox.sources.files import STDIN, SourceError
from kalprox.sources.files import stdin as standard_input
from kalprox.sources.formula import FormulaColumns, factor_matrix, number_frame
from kalprox.sources.formula_functions import scan_of
from kalprox.sources.formula_syntax import Parsed, parse_factor, parse_formula
from kalprox.sources.inference import FeatureKinds, FirstRows, first_rows, holds_dates, infer_features
from kalprox.sources.level_scan import LevelCounts, scan_levels
from kalprox.sources.levels import in_order
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Cell, Wanted
from kalprox.sources.table import Table
from kalprox.sources.table_columns import TableColumns

__all__ = ["formula_names", "infer_formula", "infer_formula_of_table"]

Blocks = Callable[["_Scan"], Iterable[np.ndarray]]


def infer_formula(
    files: Sequence[Path],
    formula: str,
    *,
    categorical: Mapping[str, Sequence[str] | None] | None = None,
    dates: Sequence[str] = (),
    weight: str | None = None,
    cluster: str | None = None,
    rows: int = 10_000,
    max_levels: int = 1000,
    skip_unreadable: bool = False,
    samples: bool = True,
    spool: int = SPOOL,
    watch: Callable[[str], None] = lambda text: None,
    classes: TargetClasses | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    low: float | None = None,
    high: float | None = None,
    time: str | None = None,
    **options: Any,
) -> FormulaColumns:
    """The columns of a formula over files.

    The kinds of columns are inferred from the first rows. Levels, and the state of center() and scale(), are those of
    all good rows, found in a pass over all files; it is left out where the formula needs none of them.

    Parameters
    ----------
    files : sequence of Path
    formula : str
        Such as "arr_delay ~ dep_delay + C(carrier) + distance:hour", in the syntax of formulaic.
    categorical : dict of str to levels, optional
        Columns whose cells are levels, and the levels that are given.
    dates, weight, cluster, rows, max_levels, skip_unreadable, samples, spool, watch, classes, offset, exposure, low,
    high, time
        See `Columns.infer`. With classes the left-hand side of the formula is a column.
    **options
        How files are read; see `kalprox.sources.readers.reader`.
    """
    parsed = parse_formula(formula)
    if parsed.target is None:
        raise SourceError(f"formula must have a target, such as 'y ~ x'; got {formula!r}.")
    if STDIN in files:
        options["stdin"] = standard_input(options.get("stdin"))
    roles = _Roles(weight, cluster, offset, exposure, time)
    needed = [*_left(parsed), *(name for name in roles if name is not None)]
    names = list(dict.fromkeys([*needed, *_right(parsed)]))
    first = first_rows(files, names, needed, rows, options, skip_unreadable=skip_unreadable)
    first = replace(first, samples=samples)

    def blocks(scan: "_Scan") -> Iterable[np.ndarray]:
        if STDIN in files:
            watch(f"Storing standard input in a temporary file, to find {scan.needs}.")
            options["stdin"].store(spool, f"to find {scan.needs}")
        table = Table(files, scan, skip_unreadable=skip_unreadable, samples=samples, **options)
        return (block.X for block in table.blocks())

    found: tuple[str, ...] = ()
    if classes is not None:
        target = _class_column(parsed)
        numbers = {} if classes.listed else {target: is_number(plain(first.table.column(target)).type)}
        levels = scan_levels(files, numbers, target, 0, options, spool=spool, watch=watch, classes=classes)
        found = classes.arranged(target, levels.get(target, {}))
    columns = _columns(first, parsed, categorical or {}, dates, roles, max_levels, blocks, found)
    return replace(columns, low=low, high=high)


def infer_formula_of_table(
    formula: str,
    table: Any,
    *,
    weight: str | None = None,
    cluster: str | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    time: str | None = None,
    max_levels: int = 1000,
    classes: TargetClasses | None = None,
) -> FormulaColumns:
    """The columns of a formula over a pyarrow table; its text is text, also where it spells numbers."""
    parsed, first = parse_formula(formula), FirstRows("data", table, text_may_be_number=False)
    if parsed.target is None:
        raise SourceError(f"formula must have a target, such as 'y ~ x'; got {formula!r}.")

    def blocks(scan: "_Scan") -> Iterable[np.ndarray]:
        encoded = scan.encode(table)
        good = np.ones(table.num_rows, bool)
        good[[cell.at for cell in encoded.bad]] = False
        return [encoded.X[good]]

    found: tuple[str, ...] = ()
    if classes is not None:
        column = table.column(target := _class_column(parsed))
        counts = LevelCounts(numbers=is_number(plain(column).type))
        counts.add(column)
        found = classes.arranged(target, counts.counts)
    roles = _Roles(weight, cluster, offset, exposure, time)
    return _columns(first, parsed, {}, (), roles, max_levels, blocks, found)


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
        raise SourceError(f"formula must have a column of classes on its left-hand side; got {parsed.target!r}.")
    return factor.lookup


def _right(parsed: Parsed) -> list[str]:
    return list(dict.fromkeys(name for term in parsed.terms for text in term for name in parse_factor(text).columns))


def _columns(
    first: FirstRows,
    parsed: Parsed,
    given: Mapping[str, Sequence[str] | None],
    dates: Sequence[str],
    roles: "_Roles",
    max_levels: int,
    blocks: Blocks,
    classes: tuple[str, ...],
) -> FormulaColumns:
    """The columns of a formula, given the first rows and what returns the blocks of a scan."""
    factors = [parse_factor(text) for term in parsed.terms for text in term]
    as_levels = {name: given.get(name) for factor in factors for name in factor.levels} | dict(given)
    dates = [name for name in dates if name not in as_levels]
    time_is_date = roles.time is not None and holds_dates(first, roles.time)
    no_numbers = None, roles.cluster, roles.time if time_is_date else None
    left, numbers = _left(parsed), [name for name in roles if name not in no_numbers]
    numbers = numbers if classes else [*left, *numbers]
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
        scan = _Scan(left, roles, kinds, open_levels, stateful, classes=bool(classes), time_is_date=time_is_date)
        scans = [scan_of(text) for text in stateful]
        found: list[set[int]] = [set() for _ in open_levels]
        for X in blocks(scan):
            for values_of, values in zip(scans, X.T, strict=False):
                values_of.add(values)
            for seen, codes in zip(found, X.T[len(stateful) :], strict=True):
                seen.update(np.unique(codes).astype(int).tolist())
            scan.check(max_levels)
        for name, seen in zip(open_levels, found, strict=True):  # of good rows
            levels[name] = in_order(level for level, code in scan.levels[name].items() if code in seen)
        if any(not known for known in levels.values()) or any(values_of.count < 2 for values_of in scans):
            raise SourceError(f"{first.file}: there are too few good rows to find {scan.needs}.")
        state = {text: values_of.state(text) for text, values_of in zip(stateful, scans, strict=True)}
    return FormulaColumns(
        parsed.terms,
        parsed.intercept,
        parsed.target,
        numeric=kinds.numeric,
        booleans=kinds.booleans,
        dates=kinds.dates,
        levels=levels,
        state=state,
        classes=classes,
        time_is_date=time_is_date,
        **roles._asdict(),
    )


class _Roles(NamedTuple):
    """The columns of the weights, the clusters, the offset, the exposure and the times."""

    weight: str | None = None
    cluster: str | None = None
    offset: str | None = None
    exposure: str | None = None
    time: str | None = None


class _Scan(TableColumns):
    """What a table reads to find levels and moments: as columns of X the expressions inside of center() and the like,
    and then the numbers of levels, in the order in which they came."""

    def __init__(
        self,
        left: list[str],
        roles: _Roles,
        kinds: FeatureKinds,
        levels: list[str],
        stateful: Mapping[str, str],
        *,
        classes: bool,
        time_is_date: bool,
    ) -> None:
        self.weight, self.cluster, self.offset, self.exposure, self.time = roles
        self.time_is_date, self.booleans, self.dates = time_is_date, kinds.booleans, kinds.dates
        self.numbers = [*([] if classes else left), *kinds.numeric]
        self.labels = left if classes else []
        self.inner = dict(stateful)
        self.levels: dict[str, dict[str, int]] = {name: {} for name in levels}

    @property
    def names(self) -> list[str]:
        """The expressions and the columns of levels."""
        return [*self.inner, *self.levels]

    @property
    def needs(self) -> str:
        """What is looked for, in words."""
        return ", ".join(
            [*(f"the levels of {name!r}" for name in self.levels), *(f"what {x} needs" for x in self.inner)]
        )

    @property
    def wanted(self) -> Wanted:
        """The columns that are read: all that the model will need, so that its bad rows are not counted."""
        numbers = (name for name in self.numbers if name not in self.booleans)
        wanted = self._wanted(numbers, (*self.levels, *self.booleans))
        return replace(wanted, labels=(*wanted.labels, *self.labels))

    def _encoded_features(self, table: Any, bad: BadCells, notes: CellNotes) -> np.ndarray:
        frame = number_frame(table, self.numbers, self.booleans, self.dates, bad, notes)
        for name in self.labels:
            bad.note(name, parse_labels(table.column(name))[1])
        X = np.empty((table.num_rows, len(self.names)))
        for j, inner in enumerate(self.inner.values()):
            X[:, j] = factor_matrix(inner, frame)[:, 0]
        for j, name in enumerate(self.levels, len(self.inner)):
            X[:, j], faults = self._codes(name, table.column(name))
            bad.note(name, faults)
        for at in np.flatnonzero(~np.isfinite(X).all(axis=1)).tolist():
            bad.cells.setdefault(at, Cell(at, "", Reason.NOT_FINITE, ""))
        return X

    def _codes(self, name: str, column: Any) -> tuple[np.ndarray, Faults]:
        """The number of each cell's level, and the bad cells."""
        cells, codes = distinct_cells(column)
        known, labels = self.levels[name], cell_labels(cells)
        numbers = [x if isinstance(x, Reason) else known.setdefault(x, len(known)) for x in labels]
        return separated(numbers, codes, -1)

    def check(self, max_levels: int) -> None:
        """Raise SourceError where a column has more levels than allowed."""
        for name, known in self.levels.items():
            if len(known) > max_levels:
                raise SourceError(
                    f"Column {name!r} has more than the {max_levels:,} levels allowed. Leave it out of the formula, or "
                    f"allow more with max_levels."
                )
