"""Validation of the rows given to an estimator, as scikit-learn requires it, and skipping of bad rows."""

from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST, all_usable, check_finite, row_sizes, usable
from kalprox.estimators.frames import class_of
from kalprox.estimators.plain import Rows
from kalprox.learning.gaps import FILLED
from kalprox.learning.pending import as_keys
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.sources import ArraySource, Block
from kalprox.sources.labels import labels_of
from kalprox.sources.times import time_numbers

__all__ = [
    "any_missing",
    "batch_of",
    "checked_encoded",
    "checked_inputs",
    "checked_offset",
    "checked_rows",
    "keys_of",
    "labelled",
    "with_nan",
]

# What may be done about missing features and targets.
_IMPUTE, _KEYS = ", or set missing='drop' or missing='impute'", ", set missing='drop', or give keys"
_BLOCK_BYTES = 1 << 25  # the size of a block of dense rows


def checked_rows(
    model: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    clusters: Any = None,
    offset: Any = None,
    exposure: Any = None,
    times: Any = None,
    *,
    reset: bool,
    settings: Settings,
    may_be_empty: bool = False,
    keys: Any = None,
) -> tuple[Rows, int]:
    """Return the rows and the number of skipped rows; invalid input raises scikit-learn's errors, or names bad rows.

    y may have several columns where the settings allow it. All weights may be zero only with `may_be_empty`. Values
    above `kalprox.base.checks.LARGEST` are bad, as infinity is.
    """
    may_lack = model.missing != "raise" or keys is not None
    finite = not (model.missing == "drop" or may_lack)
    how: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64}
    X, y = (with_nan(X) if model.missing in FILLED else X), (with_nan(y) if may_lack else y)
    shape: tuple[int, ...] = getattr(y, "shape", ())
    several = settings.several_targets
    if not several and len(shape) == 2 and shape[1] > 1:
        check(settings, way="targets")
    if finite:
        if (targets := _as_floats(y)) is not None:
            _check_finite("y", targets, _KEYS)  # scikit-learn does not name the rows
        how["ensure_all_finite"] = False
        X, y = validate_data(model, X, y, reset=reset, multi_output=several, y_numeric=True, **how)
    else:
        how["ensure_all_finite"] = False
        targets = {"ensure_2d": False, "dtype": np.float64, "ensure_all_finite": False}
        X, y = validate_data(model, X, y, reset=reset, validate_separately=(how, targets))
    y = np.asarray(y, np.float64)
    if not several and y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    if y.ndim > 1 + several:
        raise ValueError(f"y must have shape (n,){' or (n, k)' if several else ''}; got shape {y.shape}.")
    if len(y) != X.shape[0]:
        raise ValueError(f"X and y must have one row per observation; got {X.shape[0]} and {len(y)} rows.")
    weights = None
    if sample_weight is not None:
        given = np.asarray(sample_weight)
        if given.shape == y.shape[:1] and not given.any():
            if not may_be_empty:
                raise ValueError("sample_weight must be positive for at least one row; got zeros only.")
            weights = np.zeros(len(y))
        else:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    labels = None if clusters is None else _checked_clusters(clusters, len(y))
    added = checked_offset(model, offset, exposure, len(y))
    at = None if times is None else time_numbers(times, len(y))
    named = None if keys is None else keys_of(keys, len(y))
    return _usable_rows(model, Rows(X, y, weights, labels, added, at, named))


def checked_offset(model: Any, offset: Any, exposure: Any, n: int) -> Array | None:
    """Return what is added to the linear predictors of n rows: the offset, and the log of the exposure, or None.

    With missing="drop" it is NaN for exposures that are not positive.
    """
    total = None
    for name, given in (("offset", offset), ("exposure", exposure)):
        if given is None:
            continue
        values = _as_floats(given)
        if values is None or values.shape != (n,):
            raise ValueError(f"{name} must have shape ({n},), one number per row of X; got shape {np.shape(given)}.")
        if model.missing != "drop":
            _check_finite(name, values)
        if name == "exposure":
            bad = np.flatnonzero(~(values > 0))
            if len(bad) and model.missing != "drop":
                raise ValueError(
                    f"exposure must be positive; got {values[bad[0]]:g} in row {bad[0]}, and {len(bad)} such row(s) in "
                    "all. Correct them, or set missing='drop'."
                )
            values = np.log(np.where(values > 0, values, np.nan))
        total = values if total is None else total + values
    return total


def checked_encoded(
    model: Any,
    X: Array,
    y: Any,
    sample_weight: Any,
    clusters: Any,
    offset: Array | None = None,
    times: Array | None = None,
    keys: Any = None,
) -> tuple[Rows, int]:
    """Return rows whose X was encoded from a frame, and the number of skipped rows; see `checked_rows`."""
    targets = _as_floats(y)
    if targets is None or targets.shape[:1] != (len(X),) or targets.ndim > 2:
        raise ValueError(f"y must have shape ({len(X)},), one number per row of X; got shape {np.shape(y)}.")
    weights, labels = None, None if clusters is None else _checked_clusters(clusters, len(X))
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return _usable_rows(model, Rows(X, targets, weights, labels, offset, times, keys))


def _usable_rows(model: Any, rows: Rows) -> tuple[Rows, int]:
    """Return the good rows and the number of others; unless missing="drop" those are an error."""
    X, y, weights, _, offset, _, _ = rows
    added = () if offset is None else (offset,)
    good = None
    if not all_usable(weights, _entries(X), y, *added):
        may_lack = model.missing != "raise" or rows.keys is not None
        known = (_without_nan(X) if model.missing in FILLED else X), (_without_nan(y) if may_lack else y)
        good = usable(weights, np.maximum.reduce([_sizes(a) for a in (*known, *added)]))
    if good is None or good.all():
        return rows, 0
    if model.missing != "drop":
        _check_finite("X", known[0], "" if model.missing in FILLED else _IMPUTE)
        _check_finite("y", known[1], "" if may_lack else _KEYS)
        rows = rows._replace(X=known[0], y=known[1])
        raise ValueError(_why_too_large(model, rows, int(np.argmin(good))))
    if not good.any():
        raise ValueError(
            f"X and y must have at least one row without NaN, infinity or values above {LARGEST:g}; got none."
        )
    return rows.part(good), int((~good).sum())


def keys_of(keys: Any, n: int) -> Array:
    """Return the keys of n rows as an array of objects."""
    found = np.empty(n, object)
    found[:] = as_keys(keys, n)
    return found


def checked_inputs(model: Any, X: Any) -> tuple[Any, Array | None]:
    """Return rows to predict, and which of them are good: None if all are.

    With missing="drop" only the good rows are returned; otherwise a bad row raises a ValueError.
    """
    how: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "ensure_all_finite": False}
    X = validate_data(model, with_nan(X) if model.missing in FILLED else X, reset=False, **how)
    known = X if all_usable(None, _entries(X)) else _without_nan(X) if model.missing in FILLED else X
    if all_usable(None, _entries(known)) or (good := usable(None, _sizes(known))).all():
        return X, None
    if model.missing == "drop":
        return X[good], good
    _check_finite("X", known, "" if model.missing in FILLED else _IMPUTE)
    raise ValueError(_why_too_large(model, Rows(known, np.zeros(len(good))), int(np.argmin(good))))


def labelled(rows: Rows) -> tuple[Rows, Array | None]:
    """Return the rows that have their targets, and which they are: None if all are."""
    missing = np.isnan(rows.y if rows.y.ndim == 1 else rows.y.sum(axis=1))
    if not missing.any():
        return rows, None
    return rows.part(~missing), ~missing


def with_nan(values: Any) -> Any:
    """Return values of objects with NaN in place of None and pandas.NA."""
    if class_of(values)[0] != "pandas":
        return values
    kinds = values.dtypes if hasattr(values, "columns") else [values.dtype]
    if all(isinstance(kind, np.dtype) and kind.kind in "fiub" for kind in kinds):
        return values
    return values.astype(object).where(values.notna(), np.nan)


def _without_nan(a: Any) -> Any:
    """Return an array with 0 in place of NaN."""
    return a if scipy.sparse.issparse(a) else np.where(np.isnan(a), 0.0, a)


def any_missing(y: Any) -> bool:
    """Whether a target is NaN, None or pandas.NA; y is an array, a list or a series."""
    found = np.asarray(with_nan(y))
    return bool(np.any(found != found)) or (found.dtype == object and None in found.ravel().tolist())


def _as_floats(y: Any) -> Array | None:
    """Return targets as an array of floats, if they are numbers."""
    try:
        found = np.asarray(y)
        return found.astype(np.float64) if found.ndim in (1, 2) and found.dtype.kind in "fiubO" else None
    except (TypeError, ValueError):
        return None


def _check_finite(name: str, a: Any, missing: str = "") -> None:
    """Raise a ValueError that names the rows with NaN or infinity and says how to skip them.

    `missing` is what else may be done about missing values.
    """
    if scipy.sparse.issparse(a):
        a = _sizes(a)
    try:
        check_finite(name, a)
    except ValueError as error:
        advice = f"Remove or impute them first{missing}."
        raise ValueError(str(error).replace("Remove them first.", advice)) from None


def _entries(X: Any) -> Array:
    """Return the stored entries of rows in one dimension, without a copy if X is contiguous."""
    return X.data if scipy.sparse.issparse(X) else X.ravel("K")


def _sizes(a: Any) -> Array:
    """Return the largest absolute value of each row."""
    return abs(a).max(axis=1).toarray().ravel() if scipy.sparse.issparse(a) else row_sizes(a)


def _why_too_large(model: Any, rows: Rows, row: int) -> str:
    """Return the error message for finite rows, of which this one is too large."""
    X, y, weights, *_ = rows
    values = np.append(X[[row]].toarray() if scipy.sparse.issparse(X) else X[row], y[row])
    at = int(np.abs(values).argmax())
    names = getattr(model, "feature_names_in_", range(X.shape[1]))
    where = f"row {row}, {f'column {names[at]!r} of X' if at < X.shape[1] else 'y'}"
    limit = f"must be at most {LARGEST:g} in size, so that sums of squares stay finite"
    if weights is None or abs(values[at]) > LARGEST:
        return f"Values {limit}; got {values[at]:.6g} in {where}. Rescale the column, or leave out the row."
    return (
        f"Weights, and values times the square root of their weight, {limit}; got the weight {weights[row]:.6g} for "
        f"the value {values[at]:.6g} in {where}. Divide all weights by a common factor, or rescale the column."
    )


def _checked_clusters(clusters: Any, n: int) -> Array:
    """Return the labels of clusters, one per row, as text."""
    if np.shape(clusters) != (n,):
        raise ValueError(f"clusters must have shape ({n},), one label per row; got shape {np.shape(clusters)}.")
    labels, missing = labels_of(clusters)
    if missing.any():
        raise ValueError(f"clusters must name the cluster of every row; {int(missing.sum())} of {n} are missing.")
    return labels


def batch_of(
    rows: Rows, *, whole: bool, gaps: bool = False, keep_sparse: bool = False, block_rows: int | None = None
) -> Block | ArraySource:
    """Return rows in memory as one block if X is dense and `whole` is True, else as a source of blocks.

    X may have NaN with `gaps`, and stays sparse with `keep_sparse`.
    """
    X, y, weights, groups, offset, times, _ = rows
    if whole and isinstance(X, np.ndarray):
        return Block(X, y, weights, groups=groups, offset=offset, times=times)
    size = max(256, _BLOCK_BYTES // (8 * X.shape[1])) if block_rows is None else block_rows
    about: dict[str, Any] = {"groups": groups, "offset": offset, "times": times}
    return ArraySource(X, y, weights, block_rows=size, gaps=gaps, keep_sparse=keep_sparse, **about)
