"""Validation of the rows given to an estimator, as scikit-learn requires it, and skipping of bad rows."""

from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.validation import _check_sample_weight, validate_data

from kalprox._arrays import Array
from kalprox.sources import ArraySource, Block

__all__ = ["batch_of", "checked_rows"]

_BLOCK_BYTES = 1 << 25  # the size of a block of dense rows if block_size="auto"

Rows = tuple[Any, Array, Array | None]  # X (dense or CSR), y and weights, float64


def checked_rows(
    model: Any, X: Any, y: Any, sample_weight: Any, *, reset: bool, linear: bool, may_be_empty: bool = False
) -> tuple[Rows, int]:
    """Return the rows in float64 and the number of skipped rows; invalid input raises scikit-learn's errors.

    All weights may be zero only with `may_be_empty`.
    """
    if not reset and sample_weight is None and _need_no_checks(model, X, y, linear):
        return (X, y, None), 0
    finite = model.on_bad_rows == "raise"
    how: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64}
    if finite:
        X, y = validate_data(model, X, y, reset=reset, multi_output=linear, y_numeric=True, **how)
    else:
        how["ensure_all_finite"] = False
        targets = {"ensure_2d": False, "dtype": np.float64, "ensure_all_finite": False}
        X, y = validate_data(model, X, y, reset=reset, validate_separately=(how, targets))
    y = np.asarray(y, np.float64)
    if y.ndim > 1 + linear:
        raise ValueError(f"y must have shape (n,){' or (n, k)' if linear else ''}; got shape {y.shape}.")
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
    if finite:
        return (X, y, weights), 0
    good = np.isfinite(y.reshape(len(y), -1)).all(axis=1)
    if scipy.sparse.issparse(X):
        of_entry = np.repeat(np.arange(len(y)), np.diff(X.indptr))
        good[of_entry[~np.isfinite(X.data)]] = False
    else:
        good &= np.isfinite(X).all(axis=1)
    if not good.any():
        raise ValueError("X and y must have at least one row without NaN or infinity; got none.")
    return (X[good], y[good], None if weights is None else weights[good]), int((~good).sum())


def _need_no_checks(model: Any, X: Any, y: Any, linear: bool) -> bool:
    """Whether X and y are arrays that pass scikit-learn's checks, which take as long as learning the rows.

    For a linear model NaN and infinity need no check here: the fold finds them and names the rows.
    """
    return (
        type(X) is type(y) is np.ndarray
        and X.dtype == y.dtype == np.float64
        and X.ndim == 2
        and X.shape[1] == model.n_features_in_
        and y.shape == X.shape[:1] != (0,)
        and not hasattr(model, "feature_names_in_")
        and ((linear and model.on_bad_rows == "raise") or (_finite(X) and _finite(y)))
    )


def _finite(a: Array) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):  # if the sum overflows, the full checks are run
        return bool(np.isfinite(a.sum()))


def batch_of(rows: Rows, block_size: int | str, *, whole: bool) -> Block | ArraySource:
    """Return rows in memory as one block if X is dense and `whole` is True, else as a source of blocks."""
    X, y, weights = rows
    if whole and isinstance(X, np.ndarray):
        return Block(X, y, weights)
    size = max(256, _BLOCK_BYTES // (8 * X.shape[1])) if isinstance(block_size, str) else block_size
    return ArraySource(X, y, weights, block_rows=size)
