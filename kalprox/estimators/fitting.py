"""Learning of rows: `fit`, `fit_source`, `partial_fit`, `prequential` and `merge`."""

import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import all_usable, check_is
from kalprox.base.memory import check_matrix
from kalprox.engines.collections import is_collection, partition_collection
from kalprox.estimators.checks import (
    any_missing,
    batch_of,
    checked_encoded,
    checked_offset,
    checked_rows,
    keys_of,
    labelled,
)
from kalprox.estimators.frames import check_encoded, frame_kind, is_raw
from kalprox.estimators.late import MAX_PENDING, Late
from kalprox.estimators.plain import FLOAT64, Rows, is_plain_row, plain_rows
from kalprox.learning.learner import Learner
from kalprox.learning.rules import check
from kalprox.learning.sandwich import NEEDS_GROUPS
from kalprox.learning.settings import Settings, same
from kalprox.learning.step import Call
from kalprox.sources import ArraySource, Block, Source
from kalprox.sources.quarantine import Quarantine
from kalprox.sources.times import time_numbers

__all__ = ["Fitting"]


class Fitting(Late):
    """The methods that learn rows: from arrays, sources or collections, or those of another model."""

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        clusters: Any = None,
        offset: Any = None,
        exposure: Any = None,
        times: Any = None,
    ) -> Self:
        """Fit the model to these rows, discarding everything learned before.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        y : array-like of shape (n,), or (n, k) for a linear model; the name of the target column for a Spark frame
        sample_weight : array-like of shape (n,), optional
            The weights of the rows; see `weight_kind`. A row of weight 0 is ignored.
        clusters : array-like of shape (n,), optional
            The cluster of each row, a number or a text, for clustered standard errors; see `coef_cov`. The name of a
            column for a Spark frame.
        offset : array-like of shape (n,), optional
            What is added to the linear predictor of each row, for likelihoods other than "gaussian". Then every row
            has one, those to predict included. The name of a column for a Spark frame.
        exposure : array-like of shape (n,), optional
            The time, or the number at risk, in which each count was made: its log is added to the linear predictor. The
            name of a column for a Spark frame.
        times : array-like of shape (n,), or one time, optional
            The time of each row, or of all rows: numbers or dates, none before that of an earlier row. Required with
            forget=ByTime(half_life), and for no other kind of forgetting.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> model = KalproxRegressor(penalty=None).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
        >>> model.coef_.round(8), round(float(model.intercept_), 8)
        (array([2.]), 1.0)
        """
        with self._lock:
            settings = self._checked_settings()
            _has_offset(settings, offset, exposure)
            if self.engine is not None or is_collection(X):
                if times is not None:
                    raise ValueError("times need rows in memory, in their order, and engine=None; or kalprox fit.")
                return self._fit_on_engine(X, y, (sample_weight, clusters, offset, exposure), settings)
            about = sample_weight, clusters, offset, exposure, times
            rows, rejected = checked_rows(self, X, y, *about, reset=True, settings=settings)
            rows, unlabelled = self._labelled_rows(rows)
            how = self._how_to_learn(settings, rows)
            batch = batch_of(rows, whole=False, **how)
            assert isinstance(batch, ArraySource)
            learner = Learner(settings)
            learner.fit(batch)
            _warn_of_unused_parameters(learner)
            self._warn_of_unseen(learner)
            learner.n_rejected, learner.gaps = rejected, replace(learner.gaps, unlabelled=unlabelled)
            self._table, self._frame_kind = None, frame_kind(X)
            return self._keep(learner)

    def refine(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        clusters: Any = None,
        offset: Any = None,
        exposure: Any = None,
        times: Any = None,
    ) -> Self:
        """Refine a fitted model by passes over all rows, which begin at its estimate.

        The result is that of `fit`. A stream or a merge of streams ends close to the minimiser, so that two or three
        passes are enough. The prequential score is kept. For models that `fit` learns in several passes.

        Parameters
        ----------
        X, y, sample_weight, clusters, offset, exposure, times
            All rows that the model has learned; see `fit`.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2))
        >>> y = rng.poisson(np.exp(X @ [0.5, -0.2])).astype(float)
        >>> model = KalproxRegressor(likelihood="poisson").partial_fit(X, y).refine(X, y)
        >>> whole = KalproxRegressor(likelihood="poisson").fit(X, y)
        >>> bool(np.allclose(model.coef_, whole.coef_, rtol=1e-9)), model.n_passes_ < whole.n_passes_
        (True, True)
        """
        with self._lock:
            settings = self._checked_settings()
            batch, rejected, unlabelled = self._rows_again(
                X, y, (sample_weight, clusters, offset, exposure, times), settings
            )
            learner = self._fitted.copy()
            learner.configure(settings)
            learner.fit(batch, refine=True)
            learner.n_rejected, learner.gaps = rejected, replace(learner.gaps, unlabelled=unlabelled)
            return self._keep(learner)

    def _rows_again(self, X: Any, y: Any, about: tuple[Any, ...], settings: Settings) -> tuple[ArraySource, int, int]:
        """Return rows that a fitted model has learned, and how many of them are bad or have no target.

        `about` are the weights, clusters, offsets, exposures and times of the rows.
        """
        self._fitted  # noqa: B018  # raises an error if there is no model
        rows, rejected = checked_rows(self, X, y, *about, reset=False, settings=settings)
        rows, unlabelled = self._labelled_rows(rows)
        how = self._how_to_learn(settings, rows)
        batch = batch_of(rows, whole=False, **how)
        assert isinstance(batch, ArraySource)
        return batch, rejected, unlabelled

    def fit_source(self, source: Source, d: int) -> Self:
        """Fit the model to the rows of a source, which need not be in memory.

        A linear model takes one pass, a nonlinear one makes passes until it converges.

        Parameters
        ----------
        source : kalprox.sources.Source
        d : int
            The number of columns of X.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> source = ArraySource(X, X @ [1.0, 2.0], None, block_rows=2)
        >>> KalproxRegressor(penalty=None).fit_source(source, 2).coef_.round(8)
        array([1., 2.])
        """
        with self._lock:
            learner = Learner(self._checked_settings())
            if not hasattr(source, "fold"):
                raise TypeError(
                    "source must have a method fold, such as a kalprox.sources.ArraySource; got "
                    f"{type(source).__name__}. To fit arrays or frames, use fit."
                )
            learner.fit(source)
            self.n_features_in_, self._table = d, None
            return self._keep(learner)

    def _fit_on_engine(self, X: Any, y: Any, about: tuple[Any, Any, Any, Any], settings: Settings) -> Self:
        """Fit on an engine; the sums are those of one machine, up to rounding.

        `about` are the weights, clusters, offsets and exposures of the rows.
        """
        from kalprox import engines

        weights, *others = about
        if self.missing != "raise" and not is_collection(y) and any_missing(y):
            raise ValueError("Targets are missing, which needs engine=None: leave out these rows, or the engine.")
        if others[0] is None and settings.coef_cov == "clustered":
            raise ValueError(NEEDS_GROUPS)
        partitions, names, d = partition_collection(X, y, weights, None, *others, labels=self._has_labels)
        quarantine = Quarantine(max_bad="100%" if self.missing == "drop" else None)
        with engines.open(self.engine or engines.engine_of(X)) as engine:
            source = engines.EngineSource(engine, partitions, quarantine=quarantine, groups=others[0])
            self._fit_partitions(source, d)
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    _has_labels = False  # whether y has the labels of classes

    def _fit_partitions(self, source: Source, d: int) -> None:
        """Fit to the rows of partitions on an engine, which have d features."""
        self.fit_source(source, d)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        clusters: Any = None,
        offset: Any = None,
        exposure: Any = None,
        times: Any = None,
        keys: Any = None,
        max_pending: int = MAX_PENDING,
    ) -> Self:
        """Learn these rows in addition to those learned before.

        A bad row raises an error, unless missing="drop": none of the rows is then learned, and the model is unchanged.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            A model that was fitted to files also takes a frame of pandas, polars or pyarrow with the columns of those
            files, as `predict` does.
        y : array-like of shape (n,), or (n, k) for a linear model
            May be left out if X is such a frame: the target, the weights and the clusters are then its columns.
        sample_weight : array-like of shape (n,), optional
            The weights of the rows; see `weight_kind`. If every weight is 0, nothing is learned.
        clusters : array-like of shape (n,), optional
            The cluster of each row, a number or a text, for clustered standard errors; see `coef_cov`. A cluster may
            continue in later batches. With coef_cov="clustered", a batch without clusters is a cluster.
        offset, exposure : array-like of shape (n,), optional
            See `fit`.
        times : array-like of shape (n,), or one time for the batch, optional
            See `fit`. None may be before that of the last row learned.
        keys : array-like of shape (n,), optional
            A text or a whole number that names each row. Rows without a target (NaN in y) are held by their keys until
            `learn_late` has it.
        max_pending : int
            The largest number of rows that are held. Then the oldest is dropped, and counted in `n_rows_dropped_`.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> model = KalproxRegressor(penalty=None)
        >>> for x, y in [(1.0, 3.0), (2.0, 5.0), (3.0, 7.0)]:
        ...     model = model.partial_fit([[x]], [y])
        >>> model.coef_.round(8), model.n_rows_seen_
        (array([2.]), 3)
        """
        with self._lock:
            settings, fitted, unchanged = self._settings_now()
            plain = clusters is None and offset is None and exposure is None and times is None and keys is None
            if unchanged and plain and self._learns_row(X, y, sample_weight):
                return self
            if not fitted and self.formula is not None:
                raise ValueError(
                    "A model of a formula begins with fit, which finds the levels of its terms in a frame."
                )
            has_offset = _has_offset(settings, offset, exposure)
            if self._table is not None and is_raw(self._table.columns, X):
                self._learn_frame(X, y, sample_weight, clusters, (offset, exposure), times, settings, keys, max_pending)
                return self if unchanged else self._keep(self._learner)
            linear, several, rows, rejected = settings.is_exact, settings.several_targets, None, 0
            about = sample_weight, clusters, offset, exposure, times
            may_lack = self.missing != "raise"
            if fitted and clusters is None and keys is None:
                look = not linear or may_lack  # else the learner looks at the values
                rows = plain_rows(self, X, y, sample_weight, several=several, look=look)
                rows = self._with_offset(rows, offset, exposure) if has_offset and rows is not None else rows
                if rows is not None and times is not None:
                    rows = rows._replace(times=time_numbers(times, len(rows.y)))
            if rows is None:
                rows, rejected = self._checked(X, y, about, fitted or self._unfitted is not None, settings, keys)
            learner = self._learner if fitted else self._unfitted or Learner(settings)
            held = None
            if may_lack or keys is not None:
                rows, held = self._to_hold(learner, rows, settings)
            try:
                if len(rows.y):
                    rows = rows if linear else rows.copied()  # a nonlinear learner holds them until its warm-up ends
                    whole = linear or len(rows.y) == 1
                    how = self._how_to_learn(settings, rows, learner.n_rows)
                    learner.learn(batch_of(rows, whole=whole, **how), settings)
            except ValueError:
                self._checked(X, y, about, fitted or self._unfitted is not None, settings)  # or a better error
                if fitted and linear:
                    _check_targets(learner, rows.y)
                raise
            if held is not None:
                self._hold(learner, held, max_pending)
            learner.n_rejected += rejected
            if self._table is not None:
                X = rows.X.toarray() if hasattr(rows.X, "toarray") else rows.X
                self._table = self._table.with_rows(Block(X, rows.y, rows.weights, len(rows.y) + rejected), rejected)
            if not fitted:
                self._frame_kind = frame_kind(X)
            if held is not None and not learner.is_fitted:
                self._unfitted = learner
            return self if unchanged or not learner.is_fitted else self._keep(learner)

    def _learns_row(self, X: Any, y: Any, weights: Any) -> bool:
        """Learn a row that needs no conversion and no check but those of the learner; return whether it was learned.

        A row that is not learned here goes the way of all other rows, with all checks, which takes three times as long.
        """
        if not (is_plain_row(self, X) and _is_plain_number(y)):
            return False
        if weights is not None and not (_is_plain_number(weights) and weights[0] > 0):
            return False
        if not (self._learner.settings.is_exact or all_usable(weights, X[0], y)):
            return False
        exact = self._learner.settings.is_exact  # which copies what it holds
        try:
            row = (X, y, weights) if exact else (a if a is None else a.copy() for a in (X, y, weights))
            self._learner.learn(Block(*row))
        except ValueError:  # nothing was learned, and the checks have a better error
            return False
        return True

    def _with_offset(self, rows: Rows, offset: Any, exposure: Any) -> Rows | None:
        """Return plain rows with their offsets; None if some of these are bad."""
        added = checked_offset(self, offset, exposure, len(rows.y))
        return rows._replace(offset=added) if added is None or np.isfinite(added).all() else None

    def _how_to_learn(self, settings: Settings, rows: Rows, before: int = 0) -> dict[str, Any]:
        """Return how a batch is made of rows, after so many others; raise a ValueError if they need too much memory."""
        if settings.structure is None and settings.function is None:
            check_matrix(before + len(rows.y), rows.X.shape[1])
        size = self._block_rows(rows.X.shape[1])
        return {"gaps": settings.fills_gaps, "keep_sparse": settings.structure is not None, "block_rows": size}

    def _checked(
        self, X: Any, y: Any, about: tuple[Any, ...], known: bool, settings: Settings, keys: Any = None
    ) -> tuple[Rows, int]:
        return checked_rows(self, X, y, *about, reset=not known, settings=settings, may_be_empty=True, keys=keys)

    def _learn_frame(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        clusters: Any,
        added: tuple[Any, Any],
        times: Any,
        settings: Settings,
        keys: Any,
        max_pending: int,
    ) -> None:
        """Learn the rows of a frame with the columns of the files that the model was fitted to.

        `added` are the offset and the exposure, if they are given, and not columns of the frame.
        """
        assert self._table is not None
        times = None if times is None else time_numbers(times, len(X))
        given = {"target": y, "weight": sample_weight, "cluster": clusters, "time": times}
        left_out = [name for name, value in given.items() if value is not None]
        offset = checked_offset(self, *added, len(X))
        encoded = self._encoder(*left_out, *(("offset", "exposure") if offset is not None else ())).encode(X)
        offset = encoded.offset if offset is None else offset
        bad, good = check_encoded(encoded, drop=self.missing == "drop"), np.ones(len(encoded.X), bool)
        good[[row.row - 1 for row in bad]] = False
        if not good.any():
            raise ValueError(f"There is no good row to learn from, of {len(good)} row(s).")
        own = zip((encoded.y, encoded.weights, encoded.groups, encoded.times), given.values(), strict=True)
        rest = [mine if value is None else value for mine, value in own]
        for name, value in zip(("y", "sample_weight", "clusters", "times"), rest, strict=True):
            if value is not None and np.shape(value)[:1] != (len(good),):
                raise ValueError(
                    f"{name} must have shape ({len(good)},), one per row of X; got shape {np.shape(value)}."
                )
        rest = [None if value is None else np.asarray(value)[good] for value in rest]
        rest.insert(3, None if offset is None else offset[good])
        rest.append(None if keys is None else keys_of(keys, len(good))[good])
        rows, rejected = checked_encoded(self, encoded.X[good], *rest)
        learner = self._learner
        rows, held = self._to_hold(learner, rows, settings)
        if len(rows.y):
            size, gaps = self._block_rows(rows.X.shape[1]), settings.fills_gaps
            learner.learn(batch_of(rows, whole=settings.is_exact, gaps=gaps, block_rows=size), settings)
        self._hold(learner, held, max_pending)
        learner.n_rejected += len(bad) + rejected
        block = Block(rows.X, rows.y, rows.weights, len(good), bad, groups=rows.groups, notes=encoded.notes)
        self._table = self._table.with_rows(block, rejected)

    def prequential(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        times: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
    ) -> tuple[Array, Array]:
        """Learn these rows, and return the predictions of each row that were made before it was learned.

        Each row is predicted from all rows before it, exactly as if the rows came one by one. A linear model with
        penalty None or "ridge" and without forgetting takes a few microseconds per row; otherwise each row is learned
        in a step of its own, which takes a millisecond or more. Only gaps (`missing`) are completed for several rows
        at a time, from the rows before these.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,), or (n, k) for a linear model
            Unless missing="raise", a row without a target, NaN, is predicted and not learned.
        sample_weight : array-like of shape (n,), optional
        times : array-like of shape (n,), or one time, optional
            See `fit`. Each row is predicted at its own time.
        offset, exposure : array-like of shape (n,), optional
            See `fit`.

        Returns
        -------
        mean : array of shape (n,) or (n, k)
            NaN if nothing was known: before the first row, and during the warm-up of a nonlinear model, unless its link
            is "identity" and its rows are learned one by one.
        std : array of the same shape
            The scale of the predictive distribution, as in `predict`; infinite if the row could not be predicted.

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> X, y = np.arange(5.0)[:, None], np.array([1.0, 3.1, 4.9, 7.0, 9.1])
        >>> mean, std = KalproxRegressor(penalty=None).prequential(X, y)
        >>> mean.round(2), std.round(2)
        (array([ nan, 1.  , 5.2 , 6.9 , 8.95]), array([ inf,  inf,  nan, 0.22, 0.15]))
        """
        with self._lock:
            settings, fitted, unchanged = self._settings_now()
            linear, several, rows, rejected = settings.is_exact, settings.several_targets, None, 0
            has_offset = _has_offset(settings, offset, exposure)
            if fitted:
                rows = plain_rows(self, X, y, sample_weight, several=several)
                rows = self._with_offset(rows, offset, exposure) if has_offset and rows is not None else rows
                if rows is not None and times is not None:
                    rows = rows._replace(times=time_numbers(times, len(rows.y)))
            if rows is None:
                about = {"times": times, "reset": not fitted, "settings": settings}
                about |= {"offset": offset, "exposure": exposure}
                rows, rejected = checked_rows(self, X, y, sample_weight, **about)
            rows = rows if linear else rows.copied()
            learner = self._learner if fitted else Learner(settings)
            known = None if self.missing == "raise" else labelled(rows)[1]
            X = rows.X.toarray() if hasattr(rows.X, "toarray") else rows.X
            batch = Block(X, rows.y, rows.weights, times=rows.times, offset=rows.offset)
            if known is None:
                found = learner.learn(batch, settings, Call(every_row=True))
                assert found is not None
            else:
                found = learner.prequential(batch, known, settings)
                learner.gaps = replace(learner.gaps, unlabelled=learner.gaps.unlabelled + int((~known).sum()))
                batch = Block(batch.X[known], batch.y[known])  # what the record of a table has of them
            learner.n_rejected += rejected
            if self._table is not None:
                self._table = self._table.with_rows(replace(batch, read=len(batch) + rejected), rejected)
            if not unchanged:
                self._keep(learner)
            return found

    def merge(self, other: Self, *, allow_overlap: bool = False) -> Self:
        """Add the rows that `other` has learned to this model. O(d^3).

        It is exact for linear models with the Gaussian likelihood. Others linearised their rows at their own
        estimates: a warning says by about how many standard errors the merged estimate is off, and `refine` makes it
        exact. A prior or penalty counts once.

        Parameters
        ----------
        other : KalproxRegressor
            A model fitted with the same settings to the same features.
        allow_overlap : bool
            Whether the models may have rows in common, which then count twice. By default a ValueError is raised if
            both have learned the same rows, in whatever order and batches, or if one of them was merged from a model
            of the same rows as the other. Other rows in common are not noticed.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> y = X @ [1.0, 2.0]
        >>> parts = [KalproxRegressor().fit(X[rows], y[rows]) for rows in (slice(0, 3), slice(3, 6))]
        >>> bool(np.allclose(parts[0].merge(parts[1]).coef_, KalproxRegressor().fit(X, y).coef_))
        True
        """
        check_is("other", other, Fitting, f"a fitted {type(self).__name__}")
        with other._lock:
            theirs = other._fitted.copy()  # so that no thread ever waits for two locks
        with self._lock:
            names = [getattr(model, "feature_names_in_", None) for model in (self, other)]
            if not same(*names):
                raise ValueError(f"merge needs the same features in the same order; got {names[0]} and {names[1]}.")
            table = None if self._table is None else self._table.with_record_of(other._as_table(theirs))
            self._fitted.merge(theirs, allow_overlap=allow_overlap)
            self._table = table
        return self


def _check_targets(learner: Learner, y: Array) -> None:
    """Raise a ValueError if y has another number of targets than the rows learned before."""
    known, given = learner.belief.coef.shape[:-1], y.shape[1:]
    if given != known:
        shapes = ["(n,)" if not one else f"(n, {one[0]})" for one in (known, given)]
        raise ValueError(
            f"y must have shape {shapes[0]}, as in the rows learned before; got shape {shapes[1]}. To learn another "
            "number of targets, use `fit`, or another model."
        )


def _is_plain_number(a: Any) -> bool:
    """Whether this is an array of one number that needs no conversion."""
    return type(a) is np.ndarray and a.shape == (1,) and a.dtype == FLOAT64


def _has_offset(settings: Settings, offset: Any, exposure: Any) -> bool:
    """Whether rows have an offset; raise a ValueError if they cannot."""
    if offset is None and exposure is None:
        return False
    check(settings, way="offset")
    return True


def _warn_of_unused_parameters(learner: Learner) -> None:
    """Warn if no row depends on some parameters of a function, as where `start` has more entries than it uses."""
    if learner.settings.function is None:
        return
    determined = learner.belief.determined(penalised=True)
    if not determined.all():
        named = learner.settings.coef_names((), len(determined))
        names = ", ".join(name for name, one in zip(named, determined, strict=True) if not one)
        warnings.warn(
            f"The rows do not determine {names} of the function: its std is infinite. "
            "Give `start` as many entries as the function uses, or rows that depend on all of them, or set a penalty.",
            RuntimeWarning,
            stacklevel=3,
        )
