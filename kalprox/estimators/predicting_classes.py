"""Predictions of a classifier: probabilities averaged over the posterior, classes and log odds."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.engines.collections import is_collection, predict_collection
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.checks import batch_of
from kalprox.estimators.class_source import block_rows
from kalprox.estimators.plain import Rows
from kalprox.sources.times import time_numbers
from kalprox.structures import UnderstatedWarning

__all__ = ["PredictingClasses", "of_both"]


class PredictingClasses(LearnerEstimator):
    """The methods that predict the classes of new rows."""

    classes_: Array

    def predict(self, X: Any, *, time: Any = None, offset: Any = None) -> Any:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        time : float or date, optional
            See `predict_proba`.
        offset : array-like of shape (n,), optional
            See `predict_proba`.

        Returns
        -------
        array of shape (n,)
            For a Dask collection a lazy array or series; for a Spark frame that frame with a column "class".

        Examples
        --------
        >>> from kalprox import KalproxClassifier
        >>> KalproxClassifier().fit([[0.0], [1.0], [2.0]], [0, 0, 1]).predict([[-1.0], [5.0]])
        array([0, 1])
        """
        if _is_lazy(X):
            how = partial(_predicted_classes, time=time)
            found = predict_collection(how, self, X, {"class": self.classes_.dtype}, {"offset": offset})
            return (
                found
                if hasattr(found, "sparkSession")
                else found["class"]
                if hasattr(found, "columns")
                else found[:, 0]
            )
        found = self.predict_proba(X, time=time, offset=offset)
        if np.isnan(found).any():
            bad = np.flatnonzero(np.isnan(found).any(axis=1))
            raise ValueError(
                f"{len(bad)} row(s) of X are bad and have no class, the first is row {bad[0]}. Leave them out, or use "
                "predict_proba, which returns NaN for them."
            )
        labels: Array = self.classes_[found.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any, return_std: bool = False, *, time: Any = None, offset: Any = None) -> Any:
        """Return the probabilities of the classes, averaged over the posterior.

        The posterior is taken as normal, which makes the probabilities of a class with fewer than ten rows or so too
        large on average: twice as large with a single row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        return_std : bool
            Whether to return the standard deviations of the probabilities too: how far the rows seen leave them open.
        time : float or date, optional
            With forget=ByTime(half_life), the time at which the rows are predicted, not before that of the last row
            learned, which is the default: what is known has faded until then.
        offset : array-like of shape (n,), optional
            Those of the rows to predict, if the model was fitted to rows that have them. For a collection of Dask it is
            such a collection, and for a Spark frame the name of a column.

        Returns
        -------
        proba : array of shape (n, m)
            NaN for bad rows with missing="drop".
        std : array of shape (n, m), only with return_std

        For a Dask array these are lazy arrays. For a Dask frame, and for a Spark frame, they are columns p_NAME, and
        std_NAME, of one frame.

        Examples
        --------
        >>> from kalprox import KalproxClassifier
        >>> model = KalproxClassifier().fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1])
        >>> proba, std = model.predict_proba([[1.5], [100.0]], return_std=True)
        >>> proba.round(2), std.round(2)
        (array([[0.5, 0.5],
               [0.2, 0.8]]), array([[0.21, 0.21],
               [0.4 , 0.4 ]]))
        """
        if _is_lazy(X):
            names = [f"{what}_{label}" for what in ("p", "std")[: 1 + return_std] for label in self.classes_]
            how = partial(_probabilities, return_std=return_std, time=time)
            found = predict_collection(how, self, X, dict.fromkeys(names, float), {"offset": offset})
            m = len(self.classes_)
            return (found[:, :m], found[:, m:]) if return_std and not hasattr(found, "columns") else found
        at = None if time is None else float(time_numbers(time, 1)[0])
        about: dict[str, Any] = {"time": at, "offset": offset}
        proba = self._by_rows(
            X, lambda reader, rows, **more: reader.predict(rows, **more).mean, live=at is None, **about
        )
        if proba.ndim == 1:
            proba = of_both(proba)
        if not return_std:
            return proba
        if doubt := self._fitted.structure_doubt:
            warnings.warn(doubt, UnderstatedWarning, stacklevel=2)
        std = self._by_rows(X, lambda reader, rows, **more: reader.probability_std(rows, **more), **about)
        return proba, std if std.ndim == 2 else np.column_stack([std, std])

    def predict_log_proba(self, X: Any, *, offset: Any = None) -> Array:
        """Return the logarithms of `predict_proba`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
        offset : array-like of shape (n,), optional
            See `predict_proba`.

        Returns
        -------
        array of shape (n, m)

        Examples
        --------
        >>> from kalprox import KalproxClassifier
        >>> KalproxClassifier().fit([[0.0], [1.0], [2.0]], [0, 0, 1]).predict_log_proba([[0.5]]).shape
        (1, 2)
        """
        with np.errstate(divide="ignore"):
            found: Array = np.log(self.predict_proba(X, offset=offset))
        return found

    def decision_function(self, X: Any, *, offset: Any = None) -> Array:
        """Return the log odds of the second class, or for several classes their log probabilities less the mean.

        They are those of `predict_proba`, averaged over the posterior, and order rows and classes in the same way.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
        offset : array-like of shape (n,), optional
            See `predict_proba`.

        Returns
        -------
        array of shape (n,) for two classes, or (n, m)

        Examples
        --------
        >>> from kalprox import KalproxClassifier
        >>> KalproxClassifier().fit([[0.0], [1.0], [2.0]], [0, 0, 1]).decision_function([[0.0], [9.0]]).shape
        (2,)
        """
        return self._by_rows(X, lambda reader, rows, **more: reader.log_odds(rows, **more), offset=offset)

    def _by_rows(
        self,
        X: Any,
        function: Callable[..., Array],
        *,
        live: bool = False,
        time: float | None = None,
        offset: Any = None,
    ) -> Array:
        """Return a function of the belief and rows, block by block; NaN for rows that were skipped.

        With `live` it is one of what predicts rows, the belief or a filter of single rows; see `Learner.reader`. The
        belief is that at the `time`, if one is given.
        """
        if _is_lazy(X):
            raise TypeError(
                f"X must be an array, a sparse matrix or a frame in memory; got {type(X).__name__}. Use predict_proba, "
                "or compute it first."
            )
        X, good, offset = self._inputs_and_offset(X, offset)
        alone = X.shape[0] == 1 and isinstance(X, np.ndarray)
        with self._lock:
            if live and alone and good is None and offset is None:
                return function(self._learner, X)
            reader = self._fitted.reader(X, alone=alone, live=live, offsets=offset is not None, time=time)
        shape = () if len(self.classes_) == 2 else (len(self.classes_),)
        found = np.full((X.shape[0] if good is None else len(good), *shape), np.nan)
        if X.shape[0]:
            rows = Rows(X, np.zeros(X.shape[0]), offset=offset)
            values = []
            how = {"gaps": self._may_have_gaps(X), "keep_sparse": self._fitted.settings.structure is not None}
            size = self._block_rows(X.shape[1])
            for block in batch_of(rows, whole=False, block_rows=size, **how):  # type: ignore[union-attr]
                values.append(function(reader, block.X, **({} if offset is None else {"offset": block.offset})))
            found[slice(None) if good is None else good] = np.concatenate(values)
        return found

    def _block_rows(self, d: int) -> int | None:
        """Return the number of rows of a block: the Jacobian of m classes has m^2 d numbers for each row."""
        return None if len(self.classes_) == 2 else block_rows(d, len(self.classes_))


def _is_lazy(X: Any) -> bool:
    return type(X) is not np.ndarray and is_collection(X)


def _predicted_classes(model: Any, X: Any, **given: Any) -> Array:
    """Return the most probable classes as a column."""
    found: Array = model.predict(X, **given)[:, None]
    return found


def _probabilities(model: Any, X: Any, *, return_std: bool, **given: Any) -> Array:
    """Return the probabilities and, with return_std, their standard deviations as the columns of an array."""
    found = model.predict_proba(X, return_std, **given)
    return np.hstack(found) if return_std else found


def of_both(p: Array) -> Array:
    """Return the probabilities of both classes, shape (n, 2), for those of the second one."""
    both = np.empty((len(p), 2))
    both[:, 0], both[:, 1] = 1 - p, p
    return both
