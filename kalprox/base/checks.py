"""Checks of arguments. Each message says what was expected, what was given, and which argument to change."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, brief, eager, is_traced, masked, namespace

_ROWS_AT_ONCE = 4096  # rows checked at a time, so that the search for NaN takes little memory

# No value, no weight and no value times the root of its row's weight may be larger. The largest numbers computed are
# squares of sums of w x e over n rows, e a difference of two values, and (2 n LARGEST^2)^2 is finite for n = 1e12.
LARGEST = 1e70
_LARGEST_SQUARE = LARGEST**2


_OFTEN = ("loss", "matched_row")  # methods that are called for every row, and do nothing but arithmetic


class Speaking:
    """A class whose methods take arrays, and are too short to check them: their errors speak of the arguments.

    An AttributeError or IndexError of a public method of the library becomes a TypeError that says what was given.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            own = cls.__module__.startswith("kalprox.") and inspect.isfunction(method) and not name.startswith("_")
            if own and name not in _OFTEN and not hasattr(method, "__wrapped__"):
                setattr(cls, name, _speaking(method))


def _speaking(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except (AttributeError, IndexError) as error:
            given = ", ".join(type(one).__name__ for one in (*args, *options.values()))
            raise TypeError(
                f"{type(self).__name__}.{method.__name__} takes arrays of numbers and the objects that its docstring "
                f"names; got {given}: {error}."
            ) from error

    return call


def concrete(value: Any) -> np.ndarray | None:
    """Return `value` as a NumPy array, or None if it has no values: a JAX tracer or placeholder."""
    if is_traced(value) or (not hasattr(value, "__array__") and not isinstance(value, (int, float))):
        return None
    return np.asarray(value)


def check_positive(name: str, value: Any, *, strict: bool = True) -> None:
    """Raise a ValueError unless the value is finite and > 0 (>= 0 if `strict` is False)."""
    if isinstance(value, float) and 0 < value < np.inf:
        return  # the common case, without making an array
    numbers = concrete(value)
    if numbers is None:
        return
    good = numbers > 0 if strict else numbers >= 0
    if not np.all(good & np.isfinite(numbers)):
        bound = "> 0" if strict else ">= 0"
        raise ValueError(f"{name} must be finite and {bound}; got {brief(value)}.")


def check_fading(rho: Any) -> None:
    """Raise a ValueError unless rho is a factor by which weights fade: > 0 and at most 1."""
    check_positive("rho", rho)
    number = concrete(rho)
    if number is not None and (number > 1).any():
        raise ValueError(f"rho must be at most 1, where 1 means no forgetting; got {rho!r}.")


def check_is(name: str, value: Any, kind: type | tuple[type, ...], what: str) -> None:
    """Raise a TypeError unless the value is of a kind, which `what` says in words."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}; got {_shown(value)}.")


def check_level(level: float) -> None:
    """Raise a ValueError if no interval can have this probability."""
    if not 0 < level < 1:
        raise ValueError(f"level must be strictly between 0 and 1, such as 0.95; got {level!r}.")


def check_array(name: str, value: Any) -> None:
    """Raise a TypeError unless the value is an array of NumPy or JAX."""
    if not hasattr(value, "dtype") or not hasattr(value, "ndim"):
        raise TypeError(f"{name} must be a NumPy or JAX array; got {_shown(value)}.")


def _shown(value: Any) -> str:
    """A value as an error message shows it: with its type, and in short."""
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 and "\n" not in text else type(value).__name__


def check_vector(name: str, value: Array) -> None:
    """Raise unless the value is a finite vector of shape (d,) with a floating dtype."""
    check_array(name, value)
    if value.ndim != 1 or value.size == 0:
        raise ValueError(f"{name} must be a vector of shape (d,) with d >= 1; got shape {value.shape}.")
    check_floating(name, value)
    check_finite(name, value)


def check_floating(name: str, value: Array) -> None:
    """Raise a TypeError for integers, booleans, complex numbers and objects, which would be cast silently."""
    check_array(name, value)
    if value.dtype.kind != "f" and not np.issubdtype(value.dtype, np.floating):  # the kind of most is told at once
        raise TypeError(
            f"{name} must have a floating dtype (float32 or float64); got {value.dtype}. "
            f"Convert it first, e.g. numpy.asarray({name}, dtype=float)."
        )


def all_finite(value: Array) -> bool:
    """Whether all entries are finite; True inside `jax.jit`, where values are not known."""
    xp = namespace(value)
    if xp is np:
        return bool(np.isfinite(value).all())
    with eager():
        return is_traced(value) or bool(xp.isfinite(value).all())


def check_finite(name: str, value: Any) -> None:
    """Raise a ValueError if there is NaN or infinity; the message names the first rows that have them."""
    if is_traced(value):
        return
    if (namespace(value) is not np or np.size(value) <= _ROWS_AT_ONCE) and all_finite(value):
        return  # on a device it is checked there: a copy to the host takes longer than folding the rows
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


def all_usable(weights: Array | None, *arrays: Array) -> bool:
    """Whether all rows are certainly `usable`, in one step that needs no copies; False if it takes a closer look.

    Parameters
    ----------
    weights : array of shape (n,) or None
    *arrays : arrays of NumPy
        The values of the rows, in any shape.
    """
    total = 0.0
    for a in arrays:
        total += float(np.vdot(a, a))
    if weights is None:
        return total < _LARGEST_SQUARE  # False for NaN
    most = float(np.max(weights, initial=0.0))
    return most <= LARGEST and max(most, 1.0) * total < _LARGEST_SQUARE


def row_sizes(*arrays: Array) -> Array:
    """Return the largest absolute value of each row in all the arrays; NaN if one of its values is."""
    sizes = (np.abs(a).reshape(len(a), -1).max(axis=1, initial=0.0) for a in arrays)
    return np.maximum.reduce(list(sizes))


def usable(weights: Array | None, size: Array) -> Array:
    """Return which rows are finite and not too large to learn from, see `LARGEST`.

    Parameters
    ----------
    weights : array of shape (n,) or None
    size : array of shape (n,)
        The largest absolute value of each row; see `row_sizes`.
    """
    if weights is None:
        return size <= LARGEST
    with np.errstate(over="ignore", invalid="ignore"):
        return (weights <= LARGEST) & (size * np.sqrt(np.maximum(weights, 1.0)) <= LARGEST)


def check_usable(X: Any, y: Array, weights: Array | None = None) -> None:
    """Raise a ValueError that names a row which is not finite or too large; rows of weight 0 may hold anything.

    X may be a sparse matrix.
    """
    sparse = hasattr(X, "toarray")
    if all_usable(weights, X.data if sparse else X.ravel("K"), y.ravel("K")):
        return
    X = abs(X).max(axis=1).toarray().reshape(-1, 1) if sparse else X  # the largest entry of each row
    X, y = masked(weights, X), masked(weights, y)
    check_finite("X", X)
    check_finite("y", y)
    sizes = row_sizes(X, y)
    bad = ~usable(weights, sizes)
    if bad.any():
        row = int(np.argmax(bad))
        weight = "" if weights is None else f" and the weight {weights[row]:.6g}"
        raise ValueError(
            f"Values, weights, and values times the square root of their weight must be at most {LARGEST:g} in size, "
            f"so that sums of squares stay finite; row {row} has {sizes[row]:.6g}{weight}. Rescale the column, or "
            "divide all weights by a common factor."
        )


def check_usable_rows(X: Array, y: Array, weights: Array | None = None) -> None:
    """Raise the error of `check_usable`; for a single row of dense inputs that takes less time."""
    if len(y) == 1 and isinstance(X, np.ndarray):
        x, weight = X[0], 1.0 if weights is None else weights.item()
        total = float(np.vdot(x, x)) + (y.item() * y.item() if y.size == 1 else float(np.vdot(y, y)))
        if total * max(weight, 1.0) < _LARGEST_SQUARE and weight <= LARGEST:  # neither with NaN
            return
    check_usable(X, y, weights)


def check_same_length(X: Array, y: Array) -> None:
    """Raise a ValueError if X and y have different lengths."""
    if X.shape[:1] != y.shape[:1] or X.ndim == 0:
        raise ValueError(f"X and y must have one row per observation; got shapes {X.shape} and {y.shape}.")
