"""The rows given to an estimator: as arrays, checked as scikit-learn requires it, and without those that are bad.

The checks of scikit-learn take ten times as long as learning a row. So rows that plainly pass them are taken as they
are (`is_plain_row`, `plain_rows`). Whatever is unusual, such as text, missing values or ragged lists, is left to those
checks (`checked_rows`), so that its errors and warnings are theirs. Other names of columns are left to the one that is
about names.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.utils.validation import _check_feature_names, _check_sample_weight, column_or_1d, validate_data

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST, all_usable, check_finite, row_sizes, usable
from kalprox.estimators.frames import NO_FRAMES, class_of, column_names, frame_kind, same_columns
from kalprox.learning.gaps import FILLED
from kalprox.learning.pending import as_keys
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.sources import ArraySource, Block
from kalprox.sources.labels import labels_of
from kalprox.sources.weighting import time_numbers

FLOAT64 = np.dtype(np.float64)  # comparing two dtypes is twice as fast as comparing a dtype with a type
_FEW_ROWS = 64  # of a frame, which take no time to convert
_NUMBERS = frozenset(map(np.dtype, "efdbhilqBHILQ"))  # those whose values float64 holds, or rounds as scikit-learn does
# What may be done about missing features and targets.
_IMPUTE, _KEYS = ", or set missing='drop' or missing='impute'", ", set missing='drop', or give keys"
_BLOCK_BYTES = 1 << 25  # the size of a block of dense rows


class Given(NamedTuple):
    """What is given of rows besides X and y: arrays or, for a fit of a formula, names of columns."""

    weights: Any = None
    clusters: Any = None
    offset: Any = None
    exposure: Any = None
    times: Any = None
    keys: Any = None


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

    def block(self) -> Block:
        """Return the rows as one block, with a dense X."""
        X = self.X.toarray() if scipy.sparse.issparse(self.X) else self.X
        return Block(X, self.y, self.weights, groups=self.groups, offset=self.offset, times=self.times)


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


def plain_inputs(model: Any, X: Any, *, look: bool = True) -> Array | None:
    """Return X as an array of float64 with the columns that the model was fitted to; None if it must be checked.

    Without `look` the values of columns with the names of the model may be NaN, infinite or too large.
    """
    found = _plain(X)
    if found is None or found.ndim != 2 or not found.shape[0] or found.shape[1] != model.n_features_in_:
        return None
    known = _has_known_names(model, X)
    if (look or not known) and not all_usable(None, found.ravel("K")):
        return None
    if not known:
        _check_feature_names(model, X, reset=False)
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
    targets = _plain(y)
    if targets is None or not (targets.ndim == 1 or (several and targets.ndim == 2 and targets.shape[1])):
        return None
    inputs = plain_inputs(model, X, look=False)
    if inputs is None or len(inputs) != len(targets):
        return None
    weights = None
    if sample_weight is not None:
        weights = _plain(sample_weight)
        if weights is None or weights.shape != inputs.shape[:1] or not (weights.min() >= 0 and weights.max() > 0):
            return None
    if (look or weights is not None) and not all_usable(weights, inputs.ravel("K"), targets.ravel("K")):
        return None
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
    kind = None if type(X) in NO_FRAMES else frame_kind(X)
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


# ---- checks ----------------------------------------------------------------------------------------


def checked_rows(model: Any, X: Any, y: Any, given: Given, *, reset: bool, settings: Settings) -> tuple[Rows, int]:
    """Return the rows and the number of skipped rows; invalid input raises scikit-learn's errors, or names bad rows.

    y may have several columns where the settings allow it. Values above `kalprox.base.checks.LARGEST` are bad, as
    infinity is.
    """
    may_lack = model.missing != "raise" or given.keys is not None
    how: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "ensure_all_finite": False}
    X, y = (with_nan(X) if model.missing in FILLED else X), (with_nan(y) if may_lack else y)
    shape: tuple[int, ...] = getattr(y, "shape", ())
    several = settings.several_targets
    if not several and len(shape) == 2 and shape[1] > 1:
        check(settings, way="targets")
    if may_lack:
        targets = {"ensure_2d": False, "dtype": np.float64, "ensure_all_finite": False}
        X, y = _validated(model, X, y, reset=reset, validate_separately=(how, targets))
    else:
        if (numbers := as_floats(y)) is not None:
            _check_finite("y", numbers, _KEYS)  # scikit-learn does not name the rows
        X, y = _validated(model, X, y, reset=reset, multi_output=several, y_numeric=True, **how)
    y = np.asarray(y, np.float64)
    if not several and y.ndim == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    if y.ndim > 1 + several:
        raise ValueError(f"y must have shape (n,){' or (n, k)' if several else ''}; got shape {y.shape}.")
    if len(y) != X.shape[0]:
        raise ValueError(f"X and y must have one row per observation; got {X.shape[0]} and {len(y)} rows.")
    return checked_given(model, X, y, given)


def checked_given(model: Any, X: Any, y: Array, given: Given) -> tuple[Rows, int]:
    """Return rows with what is given of them, and the number of skipped rows; see `checked_rows`."""
    weights, n = None, len(y)
    if given.weights is not None:
        numbers = np.asarray(given.weights)
        zeros = numbers.shape == (n,) and not numbers.any()  # which scikit-learn refuses
        how: dict[str, Any] = {"dtype": np.float64, "ensure_non_negative": True}
        weights = np.zeros(n) if zeros else _check_sample_weight(given.weights, X, **how)
    labels = None if given.clusters is None else _checked_clusters(given.clusters, n)
    added = checked_offset(model, given.offset, given.exposure, n)
    at = None if given.times is None else time_numbers(given.times, n)
    rows = Rows(X, y, weights, labels, added, at, None if given.keys is None else keys_of(given.keys, n))
    good = _good_rows(model, rows)
    if good is None:
        return rows, 0
    if not good.any():
        raise ValueError(
            f"X and y must have at least one row without NaN, infinity or values above {LARGEST:g}; got none."
        )
    return rows.part(good), int((~good).sum())


def _good_rows(model: Any, rows: Rows) -> Array | None:
    """Return which rows are good; None if all are. Unless missing="drop", a bad row raises a ValueError."""
    added = () if rows.offset is None else (rows.offset,)
    if all_usable(rows.weights, _entries(rows.X), rows.y, *added):
        return None
    fills, may_lack = model.missing in FILLED, model.missing != "raise" or rows.keys is not None
    X, y = (_without_nan(rows.X) if fills else rows.X), (_without_nan(rows.y) if may_lack else rows.y)
    good = usable(rows.weights, np.maximum.reduce([_sizes(a) for a in (X, y, *added)]))
    if good.all():
        return None
    if model.missing != "drop":
        _check_finite("X", X, "" if fills else _IMPUTE)
        _check_finite("y", y, "" if may_lack else _KEYS)
        raise ValueError(_why_too_large(model, rows._replace(X=X, y=y), int(np.argmin(good))))
    return good


def checked_offset(model: Any, offset: Any, exposure: Any, n: int) -> Array | None:
    """Return what is added to the linear predictors of n rows: the offset, and the log of the exposure, or None.

    With missing="drop" it is NaN for exposures that are not positive.
    """
    total = None
    for name, given in (("offset", offset), ("exposure", exposure)):
        if given is None:
            continue
        values = as_floats(given)
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


def keys_of(keys: Any, n: int) -> Array:
    """Return the keys of n rows as an array of objects."""
    found = np.empty(n, object)
    found[:] = as_keys(keys, n)
    return found


def _validated(model: Any, X: Any, y: Any = "no_validation", **how: Any) -> Any:
    """Return what `validate_data` does; a column of a frame that does not hold numbers is an error with its name."""
    try:
        return validate_data(model, X, y, **how)
    except (TypeError, ValueError) as error:
        if frame_kind(X) not in ("pandas", "polars"):
            raise
        names = None if how.get("reset") else vars(model).get("feature_names_in_")
        if names is not None and column_names(X) != names.tolist():
            raise
        others = [name for name in column_names(X) if as_floats(X[name].to_numpy()) is None]
        if not others:
            raise
        raise ValueError(
            f"X must hold numbers; column {others[0]!r} holds {X[others[0]].dtype}. Make numbers of it, or leave it "
            "out. A formula, as in 'y ~ x + C(g)', reads text, levels and dates."
        ) from error


def checked_inputs(model: Any, X: Any) -> tuple[Any, Array | None]:
    """Return rows to predict, and which of them are good: None if all are.

    With missing="drop" only the good rows are returned; otherwise a bad row raises a ValueError.
    """
    how: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "ensure_all_finite": False}
    X = _validated(model, with_nan(X) if model.missing in FILLED else X, reset=False, **how)
    good = _good_rows(model, Rows(X, np.zeros(X.shape[0])))
    return (X, None) if good is None else (X[good], good)


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


def as_floats(y: Any) -> Array | None:
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


def source_of(rows: Rows, settings: Settings, block_rows: int | None = None) -> ArraySource:
    """Return rows in memory as a source of blocks: of a sparse X sparse ones, if there is a structure."""
    X, y, weights, groups, offset, times, _ = rows
    size = max(256, _BLOCK_BYTES // (8 * X.shape[1])) if block_rows is None else block_rows
    how: dict[str, Any] = {"gaps": settings.fills_gaps, "keep_sparse": settings.structure is not None}
    return ArraySource(X, y, weights, block_rows=size, groups=groups, offset=offset, times=times, **how)
