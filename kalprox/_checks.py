"""Errors at the edge: what was expected, what came, which argument to change."""

from typing import Any

import numpy as np

from kalprox._arrays import Array, eager, is_traced, namespace

_ROWS_AT_ONCE = 4096  # so that looking for NaN takes no memory to speak of


def concrete(value: Any) -> np.ndarray | None:
    """`value` as numbers that can be looked at, or None: a tracer, or a placeholder of JAX's."""
    if is_traced(value) or (not hasattr(value, "__array__") and not isinstance(value, (int, float))):
        return None
    return np.asarray(value)


def check_positive(name: str, value: Any, *, strict: bool = True) -> None:
    """Refuse a parameter that is not finite and > 0 (or >= 0, where not `strict`)."""
    if isinstance(value, float) and 0 < value < np.inf:
        return  # as nearly always: no array for it
    numbers = concrete(value)
    if numbers is None:
        return
    good = numbers > 0 if strict else numbers >= 0
    if not np.all(good & np.isfinite(numbers)):
        bound = "> 0" if strict else ">= 0"
        raise ValueError(f"{name} must be finite and {bound}; got {value!r}.")


def check_vector(name: str, value: Array) -> None:
    """Refuse anything but a finite, floating vector of shape (d,)."""
    if value.ndim != 1 or value.size == 0:
        raise ValueError(f"{name} must be a vector of shape (d,) with d >= 1; got shape {value.shape}.")
    check_floating(name, value)
    check_finite(name, value)


def check_floating(name: str, value: Array) -> None:
    """Refuse integers, booleans, complex numbers, objects: they would be rounded or cast in silence."""
    if not np.issubdtype(value.dtype, np.floating):
        raise TypeError(
            f"{name} must have a floating dtype (float32 or float64); got {value.dtype}. "
            f"Convert it first, e.g. numpy.asarray({name}, dtype=float)."
        )


def check_finite(name: str, value: Any) -> None:
    """Refuse NaN and infinity, naming the first rows that have them."""
    if is_traced(value):
        return
    if (xp := namespace(value)) is not np:  # tested where they are: a copy to the host takes longer than folding them
        with eager():
            if bool(xp.isfinite(value).all()):
                return
    numbers = concrete(value)
    if numbers is None:
        return
    numbers = np.atleast_1d(numbers)
    bad = [
        start + np.unique(np.nonzero(~np.isfinite(piece))[0])
        for start in range(0, len(numbers), _ROWS_AT_ONCE)
        if not np.isfinite(piece := numbers[start : start + _ROWS_AT_ONCE]).all()
    ]
    if bad:
        rows = np.concatenate(bad)
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise ValueError(
            f"{name} must be finite; got NaN or infinity in {len(rows)} row(s): {shown}. Remove them first."
        )


def check_same_length(X: Array, y: Array) -> None:
    """Refuse inputs and targets of different lengths."""
    if X.shape[:1] != y.shape[:1] or X.ndim == 0:
        raise ValueError(f"X and y must have one row per observation; got shapes {X.shape} and {y.shape}.")
