"""Passes over a table that can be gone on with: what each has brought is kept, and so is the one under way.

Refinement is a function of what its passes bring back. Run again with those that were completed played back, it comes
to the same point, bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.estimators.files import information_arrays, read_information
from kalprox.estimators.nonlinear import Moments
from kalprox.information import Information
from kalprox.information.linearized import Linearized
from kalprox.sources.prefetch import ahead
from kalprox.sources.table import Block, Cursor, Table

__all__ = ["Passes", "kept_passes", "read_passes"]

Arrays = dict[str, np.ndarray]


class Passes:
    """A table as a source for `refine`. `seen(block, number)` is told of every block, `kept()` after every `every` rows
    and after each pass: then `parts` says all that is needed to go on."""

    def __init__(self, table: Table, every: int, seen: Callable[[Block, int], None], kept: Callable[[], None]) -> None:
        self.table, self.every, self._seen, self._kept = table, every, seen, kept
        self.number = 0  # of the pass under way, or to come
        self._done: list[Any] = []
        self._cursor: Cursor | None = None
        self._total: Any = None

    def sum(self, part: Callable[[Array, Array, Array], Any]) -> Any:
        """part(X, y, weights) of every block of good rows, added up; or what it was."""
        number, self.number = self.number, self.number + 1
        if number < len(self._done):
            return self._done[number]
        total, since = self._total, 0
        for block in ahead(self.table.blocks(self._cursor)):
            self._seen(block, number)
            if len(block.X):
                value = part(block.X, block.y, np.ones(len(block.X)) if block.weights is None else block.weights)
                total = value if total is None else total + value
            since += len(block.rows)
            if since >= self.every and to_arrays(total) is not None:
                self._cursor, self._total, since = block.cursor, total, 0
                self._kept()
        if to_arrays(total) is not None:
            self._done.append(total)
            self._cursor = self._total = None
            self._kept()
        return total

    def parts(self) -> tuple[dict[str, Any], Arrays]:
        """Header and arrays that `resume` takes."""
        kinds, arrays = kept_passes(self._done if self._total is None else [*self._done, self._total])
        return {"kinds": kinds, "cursor": None if self._cursor is None else self._cursor.to_json()}, arrays

    def resume(self, header: dict[str, Any], arrays: Arrays) -> None:
        totals = read_passes(header["kinds"], arrays)
        if header["cursor"] is not None:
            self._cursor, self._total = Cursor.from_json(header["cursor"]), totals.pop()
        self._done = totals


def kept_passes(totals: Sequence[Any]) -> tuple[list[str], Arrays]:
    """What passes brought, as the kind of each, and arrays."""
    kinds: list[str] = []
    arrays: Arrays = {}
    for i, total in enumerate(totals):
        kind, found = to_arrays(total) or ("", {})
        kinds.append(kind)
        arrays |= {f"pass.{i}.{name}": a for name, a in found.items()}
    return kinds, arrays


def read_passes(kinds: Sequence[str], arrays: Arrays) -> list[Any]:
    """What `kept_passes` was given."""
    totals = []
    for i, kind in enumerate(kinds):
        head = f"pass.{i}."
        totals.append(from_arrays(kind, {n.removeprefix(head): a for n, a in arrays.items() if n.startswith(head)}))
    return totals


def to_arrays(total: Any) -> tuple[str, Arrays] | None:
    """What a pass brings, as a name and arrays; None for what is not worth keeping."""
    if isinstance(total, np.ndarray) and total.dtype == np.float64:
        return "array", {"values": total}
    if isinstance(total, Moments):
        return "moments", {"rows": np.array(total.rows), "mean": total.mean, "squares": total.squares}
    if isinstance(total, Information):
        return "information", information_arrays("", total)
    if isinstance(total, Linearized):
        sums = {"rss": np.array(total.rss), "size": np.array(total.size)}
        return "linearized", sums | ({} if total.information is None else information_arrays("", total.information))
    return None


def from_arrays(kind: str, arrays: Arrays) -> Any:
    """What `to_arrays` was given."""
    if kind == "array":
        return arrays["values"]
    if kind == "moments":
        return Moments(float(arrays["rows"]), arrays["mean"], arrays["squares"])
    information = read_information("", arrays, len(arrays[".T"]) - 2, None) if ".T" in arrays else None
    if kind == "information":
        return information
    return Linearized(float(arrays["rss"]), float(arrays["size"]), information)
