"""Errors at the estimator's edge: its settings, and the rows it is given."""

import numbers
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from sklearn.utils.validation import _check_sample_weight, validate_data

from kalprox._arrays import Array
from kalprox._checks import check_positive
from kalprox.estimators.penalties import Penalty
from kalprox.models import LINKS
from kalprox.sources import Block, Folded, fold_blocks

if TYPE_CHECKING:
    from kalprox.estimators.regressor import KalproxRegressor

__all__ = ["Blocks", "Rows", "check_rows", "check_settings", "is_linear", "same"]

Rows = tuple[Any, Array, Array | None]  # X (dense or CSR), y and weights, float64

_BLOCK_BYTES = 1 << 25  # of dense rows at a time, where block_size="auto"


def is_linear(model: "KalproxRegressor") -> bool:
    """Whether everything about it can be read off the information, exactly."""
    return model.method == "exact" and isinstance(model.link, str) and model.link == "identity"


def check_settings(model: "KalproxRegressor") -> Penalty:
    """Refuse settings that mean nothing; the penalty, which has checks of its own."""
    for name, allowed in (("method", ("exact", "paper")), ("on_bad_rows", ("raise", "skip"))):
        if (value := getattr(model, name)) not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}.")
    if not (callable(model.link) or (isinstance(model.link, str) and model.link in LINKS)):
        raise ValueError(f"link must be one of {', '.join(LINKS)}, or a function fn(theta, x); got {model.link!r}.")
    if isinstance(model.noise, str):
        if model.noise != "learn":
            raise ValueError(f"noise must be 'learn' or the noise variance; got {model.noise!r}.")
    else:
        check_positive("noise", model.noise)
    size = model.block_size
    if size != "auto" and not (isinstance(size, numbers.Integral) and size >= 1):
        raise ValueError(f"block_size must be 'auto' or a whole number >= 1; got {size!r}.")
    if not 0 < model.forget <= 1:
        raise ValueError(f"forget must lie in (0, 1], where 1 forgets nothing; got {model.forget!r}.")
    penalty = Penalty(model.penalty, model.alpha, model.l1_ratio, model.delta, model.groups, model.bounds)
    if not is_linear(model):
        if penalty.alpha == "auto":
            raise ValueError("alpha='auto' needs link='identity' and method='exact'; give a number.")
        if callable(model.link) and model.start is None:
            raise ValueError("start must be given where link is a function: the first theta, shape (d,).")
        if callable(model.link) and model.standardize:
            raise ValueError("standardize must be False where link is a function, whose theta has no columns.")
        if model.method == "paper" and isinstance(model.noise, str):
            raise ValueError("method='paper' needs the noise variance: give noise a number.")
        if model.method == "paper" and model.forget != 1:
            raise ValueError(f"method='paper' does not forget: let theta drift with q; got forget={model.forget!r}.")
    return penalty


def check_rows(model: "KalproxRegressor", X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Rows, int]:
    """The rows as float64, and how many were skipped; bad ones raise, by scikit-learn's own checks."""
    if not reset and sample_weight is None and _need_no_checks(model, X, y):
        return (X, y, None), 0
    linear, finite = is_linear(model), model.on_bad_rows == "raise"
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
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weights.any():
            raise ValueError("sample_weight must be positive for at least one row; got zeros only.")
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


def _need_no_checks(model: "KalproxRegressor", X: Any, y: Any) -> bool:
    """Whether X and y are arrays in which scikit-learn's checks, which take as long as learning them, find nothing.

    NaN and infinity come out in the information of a linear model, which refuses and names them.
    """
    return (
        type(X) is type(y) is np.ndarray
        and X.dtype == y.dtype == np.float64
        and X.ndim == 2
        and X.shape[1] == model.n_features_in_
        and y.shape == X.shape[:1] != (0,)
        and not hasattr(model, "feature_names_in_")
        and ((is_linear(model) and model.on_bad_rows == "raise") or (_finite(X) and _finite(y)))
    )


def _finite(a: Array) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):  # a sum too large sends it to the checks that look closer
        return bool(np.isfinite(a.sum()))


class Blocks:
    """Rows in memory, X dense or CSR, as a source of dense blocks, made one at a time."""

    def __init__(self, model: "KalproxRegressor", X: Any, y: Any = None, weights: Any = None) -> None:
        size = model.block_size
        self.size: int = max(256, _BLOCK_BYTES // (8 * X.shape[1])) if isinstance(size, str) else size
        self.rows = X, y, weights

    def __iter__(self) -> Iterator[tuple[Array, Any, Any]]:
        X, *others = self.rows
        for i in range(0, X.shape[0], self.size):
            B = X[i : i + self.size]
            dense = B.toarray() if scipy.sparse.issparse(B) else B
            yield dense, *(None if a is None else a[i : i + self.size] for a in others)

    def fold(self, part: Callable[[Block], Any]) -> Folded:
        """One pass; see `kalprox.sources.Source`."""
        return fold_blocks((Block(*rows) for rows in self), part)


def same(a: Any, b: Any) -> bool:
    """Whether two settings are equal: numbers, names, arrays, or regularisers with equal fields."""
    if type(a) is type(b) and hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or bool(np.array_equal(a, b))
