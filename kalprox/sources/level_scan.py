"""Finding the levels of categorical columns: a pass over these columns of all files, before any row is learned."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from kalprox.base.text import Part, as_option, parameter, worded
from kalprox.sources.arrow import from_bytes, pa
from kalprox.sources.cell_parsing import cell_labels, distinct_cells, parse_numbers
from kalprox.sources.classes import have_class
from kalprox.sources.files import STDIN, SourceError, Unreadable
from kalprox.sources.inference import Inference
from kalprox.sources.labels import number_in
from kalprox.sources.levels import in_order
from kalprox.sources.prefetch import parsers
from kalprox.sources.quarantine import Reason
from kalprox.sources.readers.base import Wanted

__all__ = ["LevelCounts", "most_frequent_first", "scan_levels"]

_MOST = 100_000  # levels of a column that are counted
_LONG = 1 << 28  # bytes of files whose scan is announced


class LevelCounts:
    """How often each level of a column occurs, counted block by block.

    Parameters
    ----------
    numbers : bool
        Whether the column holds numbers: levels that spell the same number, such as 1.1 and 1.10, are then one level.

    Attributes
    ----------
    counts : dict of str to int
        The number of counted rows with each level.

    Examples
    --------
    >>> levels = LevelCounts()
    >>> levels.add(pa.array(["UA", "AA", " UA", None]))
    >>> levels.counts
    {'UA': 2, 'AA': 1}
    """

    def __init__(self, *, numbers: bool = False) -> None:
        self.counts: dict[str, int] = {}
        self._numbers = numbers
        self._same: dict[Any, str] = {}  # the level of each number
        self._labels: dict[bytes | None, str | Reason] = {}  # of texts that have been seen

    def add(self, column: Any, counted: np.ndarray | None = None) -> None:
        """Add the cells of a pyarrow column. Where `counted` is False, the level is known, but the row not counted."""
        cells, codes = distinct_cells(column)
        times = np.bincount(codes if counted is None else codes[counted], minlength=len(cells))
        for label, n in zip(self._labels_of(cells), times.tolist(), strict=True):
            if not isinstance(label, Reason):
                level = self._same.setdefault(number_in(label) or label, label) if self._numbers else label
                self.counts[level] = self.counts.get(level, 0) + n

    def _labels_of(self, cells: Any) -> list[str | Reason]:
        if cells.type != pa.binary():
            return cell_labels(cells)
        if len(self._labels) > _MOST:
            self._labels.clear()
        texts = cells.to_pylist()
        new = [text for text in texts if text not in self._labels]
        self._labels |= zip(new, cell_labels(from_bytes(new)), strict=True)
        return [self._labels[text] for text in texts]


def most_frequent_first(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The levels in order, with the most frequent one, the first of them in a tie, moved to the front.

    >>> most_frequent_first({"UA": 3, "B6": 5, "AA": 5})
    ('AA', 'B6', 'UA')
    """
    levels = in_order(counts)
    first = max(levels, key=lambda level: counts[level], default=None)
    return tuple(sorted(levels, key=lambda level: level != first))


def scan_levels(inference: Inference, columns: Mapping[str, bool], target: str | None) -> dict[str, dict[str, int]]:
    """The levels of some columns in all rows of all files.

    Only these columns and the target are read. Standard input, which can be read only once, is stored in a temporary
    file first. A file that cannot be read to its end is left to the pass that learns, which says so.

    Parameters
    ----------
    inference : Inference
        What is known of the files, and the largest number of levels of a column; more are an error.
    columns : dict of str to bool
        The columns, and whether each of them holds numbers; see `LevelCounts`. The target may be among them.
    target : str, optional
        Rows without a usable target are not counted, although their levels are found.

    Returns
    -------
    dict of str to dict
        For each column the number of rows with each level.
    """
    if not columns:
        return {}
    classes, names = inference.classes, ", ".join(map(repr, columns))
    if STDIN in inference.files:
        inference.watch(
            f"Storing standard input in a temporary file, to find the levels of {names}. To learn rows as they arrive, "
            f"list {'the classes of the target, and ' if target in columns else ''}the levels, or hash the columns."
        )
        inference.replay.store(inference.spool, f"to find the levels of {names}")
    elif sum(file.stat().st_size for file in inference.files if file.exists()) > _LONG:
        inference.watch(f"Finding the levels of {names}.")
    found = {name: LevelCounts(numbers=numbers) for name, numbers in columns.items()}
    others = () if target is None or target in columns else (target,)
    wanted = Wanted((), (*columns, *others)) if classes else Wanted(others, tuple(columns))
    usable = have_class if classes else _usable
    for file in inference.files:
        try:
            with closing(inference.open(file, threads=parsers())) as opened:
                for raw in () if opened.empty else opened.blocks(wanted):
                    counted = None if target is None else usable(raw.table.column(target))
                    for name, levels in found.items():
                        levels.add(raw.table.column(name), counted)
                    if classes and target in found:
                        classes.check_number(str(target), found[target].counts)
                    _check(found, _MOST)
        except (Unreadable, OSError):
            continue
    _check({name: levels for name, levels in found.items() if name != target}, inference.max_levels)
    return {name: levels.counts for name, levels in found.items()}


def _usable(column: Any) -> np.ndarray:
    """Which cells are numbers that can be learned."""
    values, faults = parse_numbers(column)
    good = np.ones(len(values), bool)
    good[list(faults)] = False
    return good


def _check(found: Mapping[str, LevelCounts], allowed: int) -> None:
    """Raise SourceError where a column has more than the `allowed` levels."""
    over = {name: len(levels.counts) for name, levels in found.items() if len(levels.counts) > allowed}
    if not over:
        return
    counts = [f"column {name!r} has {'more than ' * (n > _MOST)}{min(n, _MOST):,} levels" for name, n in over.items()]
    some, most = max(over.items(), key=lambda item: item[1])
    raise SourceError(
        worded(
            "Too many levels: {}, more than the {} allowed. Leave such a column out, allow more levels with "
            "{}, or put them into bins with {}: levels that share a bin share a coefficient.",
            ", ".join(counts),
            f"{allowed:,}",
            parameter("max_levels", most),
            Part("hashed", as_option("hashed", some)),
        )
    )
