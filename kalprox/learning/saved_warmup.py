"""What a file holds of the rows that a filter has not learned for good, and how it is restored and checked."""

from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox.algorithms.proximal_filter import ProximalState
from kalprox.algorithms.warmup import ExtrapolatingRows, HeldRows
from kalprox.learning.design import Design
from kalprox.learning.saved import Saved, expect
from kalprox.learning.settings import Settings

__all__ = ["restored_rows", "saved_rows"]


def saved_rows(state: ProximalState) -> dict[str, Any]:
    """Return the rows that a state has not learned for good: those of a warm-up, and those that extrapolate."""
    held, found = state.held, {}  # type: HeldRows | None, dict[str, Any]
    if held is not None and held.rows:
        names = ("X", "y", "weights", *(("times",) if held.times else ()))
        found["held"] = {name: np.concatenate(getattr(held, name)) for name in names}
        found["held"] |= {"start": held.start, "origin": held.origin}
    if state.extrapolating is not None:
        found["extrapolating"] = state.extrapolating
    if held is not None and held.settled:
        found["settled"] = True
    return found | {"next_look": None if held is None else held.next_look}


def restored_rows(
    settings: Settings, design: Design, d: int, estimate: Array, saved: Saved
) -> tuple[HeldRows | None, ExtrapolatingRows | None]:
    """Return the rows that `saved_rows` was given, of d features, beside an estimate."""
    held = None
    if saved["next_look"] is not None:
        X, y, weights = (((saved[f"held.{n}"],) if "held" in saved else ()) for n in ("X", "y", "weights"))
        for rows in zip(X, y, weights, strict=True):
            _expect_rows(design, d, *rows)
        start, origin = (np.asarray(saved.arrays.get(f"held.{n}", estimate)) for n in ("start", "origin"))
        expect(start.shape == origin.shape == estimate.shape)
        settled = saved.header.get("settled", False)
        expect(isinstance(settled, bool))
        times = (saved["held.times"],) if "held.times" in saved else ()
        expect(bool(times) is (settings.by_time and bool(X)))
        expect(all(one.shape == targets.shape[:1] for one, targets in zip(times, y, strict=False)))
        look = saved.count("next_look")
        held = HeldRows(X, y, weights, start, origin, next_look=look, times=times, settled=settled)
    far = saved.value(ExtrapolatingRows, "extrapolating") if "extrapolating" in saved else None
    if far is not None:
        _expect_rows(design, d, far.X, far.y, far.weights, far.counts, far.squares)
    return held, far


def _expect_rows(design: Design, d: int, X: Array, y: Array, *counts: Array) -> None:
    """Raise a ValueError unless these are rows of the inputs of d features, their targets, and weights or counts."""
    expect(X.ndim == 2 and X.shape[1] == d + design.first + design.row_offsets and y.shape[:1] == X.shape[:1])
    expect(y.shape[1:] == (() if design.outputs is None else (design.outputs,)))
    expect(all(a.shape == y.shape[:1] and (a >= 0).all() for a in counts))
