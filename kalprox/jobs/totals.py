"""Save and load the totals of passes over a source, for checkpoints."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kalprox.base.tree import Saved, expect, flatten
from kalprox.information import Information
from kalprox.information.linearized import Linearized
from kalprox.learning.sandwich import Sandwich
from kalprox.learning.targets import Seen
from kalprox.model_file import Parts
from kalprox.sources import Counts, Folded

__all__ = ["can_be_saved", "load_totals", "rebuilt_totals", "save_totals"]

_KINDS = {kind.__name__: kind for kind in (Seen, Information, Linearized, Sandwich)}


def can_be_saved(total: Any) -> bool:
    """Whether the total of a pass can be saved: a float64 array, or one of the types that fits sum up."""
    return type(total).__name__ in _KINDS or (isinstance(total, np.ndarray) and total.dtype == np.float64)


def save_totals(passes: Sequence[Folded[Any]]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the totals and counts of passes as a header and arrays."""
    header: dict[str, Any] = {"kinds": [type(one.total).__name__ for one in passes]}
    arrays: dict[str, np.ndarray] = {}
    for i, one in enumerate(passes):
        flatten(f"pass.{i}", one.total, header, arrays)
        flatten(f"counts.{i}", one.counts, header, arrays)
    return header, arrays


def load_totals(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Folded[Any]]:
    """Return the totals and counts that `save_totals` was given; raise a ValueError for others."""
    saved = Saved(header, arrays)
    found = []
    for i, kind in enumerate(header["kinds"]):
        found.append(Folded(_total(saved, kind, f"pass.{i}"), saved.tree(Counts, f"counts.{i}", {})))
    return found


def rebuilt_totals(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
    """Return the parts of a checkpoint with the totals that were loaded from it; see `kalprox.model_file.write`."""
    passes, own = save_totals(load_totals(header["passes"], arrays))
    return {**header, "passes": {**header["passes"], **passes}}, own


def _total(saved: Saved, kind: str, name: str) -> Any:
    if kind in _KINDS:
        return saved.tree(_KINDS[kind], name, {})
    expect(kind == np.ndarray.__name__ and isinstance(saved[name], np.ndarray))
    return saved[name]
