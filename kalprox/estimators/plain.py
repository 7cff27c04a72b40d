"""Rows that plainly pass scikit-learn's checks, as arrays: these checks take ten times as long as learning a row.

Whatever is unusual, such as text, missing values or ragged lists, is left to those checks, so that its errors and
warnings are theirs. Other names of columns are left to the one that is about names.
"""

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import _check_feature_names

from kalprox.base.arrays import Array
from kalprox.base.checks import all_usable
from kalprox.estimators.frames import class_of, column_names, frame_kind, same_columns

__all__ = ["FLOAT64", "Rows", "is_plain_row", "plain_inputs", "plain_rows"]

FLOAT64 = np.dtype(np.float64)  # comparing two dtypes is twice as fast as comparing a dtype with a type
_FEW_ROWS = 64  # of a frame, which take no time to convert
_NO_FRAMES = (np.ndarray, list, tuple)
_NUMBERS = frozenset(map(np.dtype, "efdbhilqBHILQ"))  # those whose values float64 holds, or rounds as scikit-learn does


class Rows(NamedTuple):
    """The rows of a batch: X (dense or CSR), y, weights, offsets and times in float64, labels of clusters, and keys."""

    X: Any
    y: Array
    weights: Array | None = None
    groups: Array | None = None
    offset: Array | None = None
    times: Array | None = None
    keys: Array | None = None

    def part(self, which: Array) -> "Rows":
        """Return some of the rows, by a mask."""
        return Rows(*(None if a is None else a[which] for a in self))

    def copied(self) -> "Rows":
        """Return rows that do not change with the arrays of the caller."""
        return Rows(*(None if a is None else a.copy() for a in self))


def is_plain_row(model: Any, X: Any) -> bool:
    """Whether X is one row in float64 that needs no conversion, and no check but of its values.

    The columns of the model then have no names, it was not fitted to files, and nothing may be missing or left out.
    """
    if type(X) is not np.ndarray or "_learner" not in vars(model):
        return False
    if X.shape != (1, model.n_features_in_) or X.dtype != FLOAT64 or model._learner.settings.missing != "raise":
        return False
    if model.missing != "raise" or model._table is not None:
        return False
    return "feature_names_in_" not in vars(model)


def plain_inputs(model: Any, X: Any) -> Array | None:
    """Return X as an array of float64 with the columns that the model was fitted to; None if it must be checked."""
    found = _plain_inputs(model, X)
    if found is None or not all_usable(None, found.ravel("K")):
        return None
    if not _has_known_names(model, X):
        _check_feature_names(model, X, reset=False)
    return found


def _plain_inputs(model: Any, X: Any) -> Array | None:
    """Return what `plain_inputs` returns, whatever the names are, and be the values NaN, infinite or too large."""
    found = _plain(X)
    if found is None or found.ndim != 2 or not found.shape[0] or found.shape[1] != model.n_features_in_:
        return None
    return found


def plain_rows(model: Any, X: Any, y: Any, sample_weight: Any, *, several: bool, look: bool = True) -> Rows | None:
    """Return X, y and weights as arrays of float64; None if they must be checked.

    Parameters
    ----------
    model : LearnerEstimator
        A fitted one.
    X, y, sample_weight : Any
        As they were given.
    several : bool
        Whether y may have several columns.
    look : bool
        If False, and there are no weights, the values may be NaN, infinite or too large.
    """
    inputs = _plain_inputs(model, X)
    targets = None if inputs is None else _plain(y)
    if inputs is None or targets is None or targets.shape[:1] != inputs.shape[:1]:
        return None
    if targets.ndim != 1 and not (several and targets.ndim == 2 and targets.shape[1]):
        return None
    weights, known = None, _has_known_names(model, X)
    if sample_weight is not None:
        weights = _plain(sample_weight)
        if weights is None or weights.shape != inputs.shape[:1] or not (weights.min() >= 0 and weights.max() > 0):
            return None
    look = look or weights is not None or not known
    if look and not all_usable(weights, inputs.ravel("K"), targets.ravel("K")):
        return None
    if not known:
        _check_feature_names(model, X, reset=False)
    return Rows(inputs, targets, weights)


def _plain(a: Any) -> Array | None:
    """Return numbers in an array, list, tuple, series or frame as an array of float64; None if they must be checked."""
    if type(a) is not np.ndarray:
        try:
            a = np.asarray(a) if type(a) in (list, tuple) else _from_library(a)
        except Exception:  # whatever it is, the checks will say so
            return None
        if a is None:
            return None
    if a.dtype == FLOAT64:
        return a
    return a.astype(np.float64) if a.dtype in _NUMBERS else None


def _from_library(a: Any) -> Array | None:
    """Return the numbers of a series or a frame of pandas, polars or pyarrow, if they have a common type."""
    match class_of(a):
        case "pandas", "Series":
            return a.to_numpy() if a.dtype in _NUMBERS else None
        case "pandas", "DataFrame":
            return _from_pandas(a)
        case "polars", "Series":
            return a.to_numpy()
        case "polars", "DataFrame":
            return np.asarray(a.rows()) if len(a) == 1 else a.to_numpy()
        case "pyarrow", "Table":
            parts = [batch.to_tensor().to_numpy() for batch in a.to_batches()]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
    return None


def _from_pandas(frame: Any) -> Array | None:
    """Return the numbers of a frame of pandas, if all columns are numbers of NumPy."""
    found = frame.to_numpy() if len(frame) <= _FEW_ROWS else None
    if found is not None and not found.flags.writeable and found.shape[1] > 1:
        return found  # lent by the frame, so that it is its one array; `dtypes` would take ten times as long to say so
    if not _NUMBERS.issuperset(frame.dtypes):
        return None
    return frame.to_numpy() if found is None else found


def _has_known_names(model: Any, X: Any) -> bool:
    """Whether the columns of X have the names that the model was fitted to, or no names if it knows none.

    If not, scikit-learn says so; its check of the names takes as long as learning several rows.
    """
    names = vars(model).get("feature_names_in_")
    kind = None if type(X) in _NO_FRAMES else frame_kind(X)
    if kind is None:
        return names is None
    columns = X.schema if kind == "pyarrow" else X.columns
    if names is None:
        return kind == "pandas" and columns.dtype in _NUMBERS
    known, last = model._last_columns
    if known is names and same_columns(columns, last):
        return True
    found = column_names(X)
    if found != names.tolist() or set(map(type, found)) != {str}:
        return False
    model._last_columns = names, columns
    return True
