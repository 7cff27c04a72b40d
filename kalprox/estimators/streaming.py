"""Learning of streams: `partial_fit`, `prequential`, `merge`, and `learn_late` for targets that come later."""

from dataclasses import replace
from typing import Any, Self

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.checks import all_usable, check_finite, check_is
from kalprox.base.memory import check_matrix
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.frames import as_frame, check_encoded, frame_kind
from kalprox.estimators.rows import (
    FLOAT64,
    Given,
    Rows,
    as_floats,
    checked_given,
    checked_offset,
    checked_rows,
    is_plain_row,
    keys_of,
    labelled,
    plain_rows,
    source_of,
)
from kalprox.learning.innovations import Innovations
from kalprox.learning.learner import Learner
from kalprox.learning.pending import Key, PendingRow, PendingRows, as_keys
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings, same
from kalprox.learning.step import Call, Made
from kalprox.sources import ArraySource, Block
from kalprox.sources.base import concatenated
from kalprox.sources.weighting import in_order, time_numbers

_MAX_PENDING = 100_000  # rows that are held by default until their target comes
_SHORT = 64  # rows of a batch that a nonlinear model takes as one block, which it may learn row by row
_Held = list[tuple[Key, PendingRow]]


class Streaming(LearnerEstimator):
    """The methods that learn rows in addition to those learned before. Rows without a target wait until it comes."""

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
        max_pending: int = _MAX_PENDING,
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
            given = Given(sample_weight, clusters, offset, exposure, times, keys)
            check_offset(settings, given)
            _check_max_pending(max_pending)
            learner = self._learner if fitted else self._unfitted or Learner(settings)
            X, linear = as_frame(X), settings.is_exact
            may_lack = self.missing != "raise" or keys is not None
            reset, look = not fitted and self._unfitted is None, not linear or may_lack
            rows, rejected, of_frame = self._rows_of(X, y, given, settings=settings, reset=reset, look=look)
            unlabelled: int = 0
            held: _Held = []
            if may_lack:
                rows, unlabelled, held = self._to_hold(learner, rows, settings)
            try:
                if len(rows.y):
                    rows = rows if linear else rows.copied()  # a nonlinear learner holds them until its warm-up ends
                    whole = linear or len(rows.y) <= min(_SHORT, self._block_rows(rows.X.shape[1]) or _SHORT)
                    learner.learn(self._batch(rows, settings, whole=whole, before=learner.n_rows), settings)
            except ValueError:
                if of_frame is None:  # there may be a better error
                    checked_rows(self, X, y, given._replace(keys=None), settings=settings, reset=reset)
                    if fitted and linear:
                        _check_targets(learner, rows.y)
                raise
            self._hold(learner, unlabelled, held, max_pending)
            learner.n_rejected += rejected
            self._note(rows, rejected, of_frame)
            if not fitted:
                self._frame_kind = frame_kind(X)
            if may_lack and not learner.is_fitted:
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
        learner = self._learner
        if not learner.settings.is_exact:  # which looks at values, and copies what it holds
            if not all_usable(weights, X[0], y):
                return False
            X, y, weights = X.copy(), y.copy(), None if weights is None else weights.copy()
        try:
            learner.learn(Block(X, y, weights, 1))
        except ValueError:  # nothing was learned, and the checks have a better error
            return False
        return True

    def _rows_of(
        self, X: Any, y: Any, given: Given, *, settings: Settings, reset: bool, look: bool = True
    ) -> tuple[Rows, int, dict[str, Any] | None]:
        """Return the good rows of X, the number of bad ones and, of a frame, what the record of the files says of it.

        Rows that are not plain go through `checked_rows`, as all do with `reset`, which forgets the columns of before.
        With `look` the values of plain rows are looked at, too.
        """
        if not reset and self._is_raw(X):
            return self._rows_of_frame(X, y, given)
        if not reset and "_learner" in vars(self) and given.clusters is None and given.keys is None:
            rows = plain_rows(self, X, y, given.weights, several=settings.several_targets, look=look)
            if rows is not None:
                added = checked_offset(self, given.offset, given.exposure, len(rows.y))
                at = None if given.times is None else time_numbers(given.times, len(rows.y))
                if added is None or np.isfinite(added).all():
                    return rows._replace(offset=added, times=at), 0, None
        return *checked_rows(self, X, y, given, settings=settings, reset=reset), None

    def _rows_of_frame(self, X: Any, y: Any, given: Given) -> tuple[Rows, int, dict[str, Any]]:
        """Return the good rows of a frame with the columns of the files that the model was fitted to.

        Also the number of bad rows, and what the record of the files says about these. What is given of the rows takes
        the place of what the frame has.
        """
        n = len(X)
        times = None if given.times is None else time_numbers(given.times, n)
        offset = checked_offset(self, given.offset, given.exposure, n)
        keys = None if given.keys is None else keys_of(given.keys, n)
        own = {"target": y, "weight": given.weights, "cluster": given.clusters, "time": times}
        own |= {"offset": offset, "exposure": offset}
        encoded = self._encoder(*(name for name, value in own.items() if value is not None)).encode(X)
        bad, good = check_encoded(encoded, drop=self.missing == "drop")
        if not good.any():
            raise ValueError(f"There is no good row to learn from, of {n} row(s).")
        given = given._replace(offset=offset, exposure=None, times=times, keys=keys)
        y, given = of_good_rows(encoded, y, given, good)
        rows, skipped = checked_given(self, encoded.X[good], y, given)
        about = {"read": n, "bad": bad, "groups": rows.groups, "notes": encoded.notes}
        return self._weighted_by_class(rows), len(bad) + skipped, about

    def _weighted_by_class(self, rows: Rows) -> Rows:
        """Return the rows of a frame, each also with the weight of its class."""
        return rows

    def _note(self, rows: Rows, rejected: int, of_frame: dict[str, Any] | None = None) -> None:
        """Add rows that were learned to the record of the files or the frame that the model was fitted to."""
        if self._table is None:
            return
        X = rows.X.toarray() if hasattr(rows.X, "toarray") else rows.X
        about = {"read": len(rows.y) + rejected} if of_frame is None else of_frame
        block = Block(X, rows.y, rows.weights, **about)
        self._table = self._table.with_rows(block, rejected - len(block.bad))

    def _batch(self, rows: Rows, settings: Settings, *, whole: bool, before: int = 0) -> Block | ArraySource:
        """Return rows as a batch, after so many others; raise a ValueError if they need too much memory."""
        d = rows.X.shape[1]
        if settings.structure is None and settings.function is None:
            check_matrix(before + len(rows.y), d)
        if whole and isinstance(rows.X, np.ndarray):
            return rows.block()
        return source_of(rows, settings, self._block_rows(d))

    def prequential(
        self,
        X: Any,
        y: Any = None,
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
            Unless missing="raise", a row without a target, NaN, is predicted and not learned. May be left out if X is a
            frame that has the target of the formula or of the files.
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
            given = Given(sample_weight, offset=offset, exposure=exposure, times=times)
            check_offset(settings, given)
            X = as_frame(X)
            rows, rejected, of_frame = self._rows_of(X, y, given, settings=settings, reset=not fitted)
            rows = rows if settings.is_exact else rows.copied()
            learner = self._learner if fitted else Learner(settings)
            batch = rows.block()
            learned, known = labelled(rows)
            if known is None:
                found = learner.learn(batch, settings, Call(every_row=True))
                assert found is not None
            else:
                learner, found = _predicted_in_turn(learner, batch, known, settings)
                learner.gaps = replace(learner.gaps, unlabelled=learner.gaps.unlabelled + int((~known).sum()))
            learner.n_rejected += rejected
            self._note(learned, rejected, of_frame)
            if unchanged:
                self._learner = learner
            else:
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
        check_is("other", other, Streaming, f"a fitted {type(self).__name__}")
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

    def learn_late(self, keys: Any, y: Any) -> Self:
        """Learn rows that came without their target, which has come now.

        A row is learned as if it came now: it is as recent as its target, also to a model that forgets. Its score in
        `diagnostics_` is that of the prediction that was possible when the row came, from the rows learned before its
        batch.

        Parameters
        ----------
        keys : array-like of shape (n,)
            Those that were given to `partial_fit` with the rows. An unknown key raises an error, and nothing is
            learned.
        y : array-like of shape (n,), or (n, k)
            The targets.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> model = KalproxRegressor()
        >>> X, y = np.array([[1.0], [2.0], [3.0]]), np.array([3.0, np.nan, 7.0])
        >>> model = model.partial_fit(X, y, keys=["a", "b", "c"])
        >>> model.n_rows_seen_, model.n_rows_pending_
        (2, 1)
        >>> model = model.learn_late(["b"], [5.0])
        >>> model.n_rows_seen_, model.n_rows_pending_, model.coef_.round(8)
        (3, 0, array([2.]))
        """
        with self._lock:
            settings, fitted, unchanged = self._settings_now()
            learner = self._learner if fitted else self._unfitted
            pending = None if learner is None else learner.pending
            if learner is None or pending is None:
                raise ValueError(
                    "No row waits for its target: give partial_fit the keys of the rows, and NaN for targets that are "
                    "not known yet."
                )
            names = as_keys(keys, len(y))
            pending.check_known(names)
            rows = [pending[name] for name in names]
            targets, factor = self._late_targets(y, settings)
            if not rows:
                return self
            weights = np.array([row.weight for row in rows]) * factor
            block = Block(
                concatenated([row.X for row in rows]),
                targets,
                None if (weights == 1).all() else weights,
                groups=None if rows[0].group is None else np.array([row.group for row in rows]),
                offset=None if rows[0].offset is None else np.array([row.offset for row in rows], float),
                times=_latest(learner, rows) if settings.by_time else None,
            )
            learner.learn(block, settings, Call(in_turn=True, issued=_innovations(rows, targets)))
            for name in names:
                assert learner.pending is not None
                learner.pending.take(name)
            return self if unchanged else self._keep(learner)

    def _late_targets(self, y: Any, settings: Settings) -> tuple[Array, Array | float]:
        """Return targets as floats, and what the weights are multiplied by; raise a ValueError if one is missing."""
        targets = np.asarray(y, np.float64)
        if targets.ndim > 1 + settings.several_targets:
            raise ValueError(f"y must have shape (n,){' or (n, k)' * settings.several_targets}; got {targets.shape}.")
        check_finite("y", targets)
        return targets, 1.0

    @property
    def n_rows_seen_(self) -> int:
        """The number of rows learned, not counting rows of weight 0."""
        return self._fitted.n_rows

    @property
    def n_rows_rejected_(self) -> int:
        """The number of rows skipped because of NaN, infinity or values that are too large; see `missing`."""
        return self._fitted.n_rejected

    @property
    def n_rows_pending_(self) -> int:
        """The number of rows that wait for their target; see `learn_late`."""
        return len(self._pending)

    @property
    def n_rows_dropped_(self) -> int:
        """The number of rows that were dropped before their target came; see `max_pending` of `partial_fit`."""
        return self._pending.n_dropped

    @property
    def _pending(self) -> PendingRows:
        learner = vars(self).get("_learner") or self._unfitted
        found = None if learner is None else learner.pending
        return PendingRows(_MAX_PENDING) if found is None else found

    @property
    def n_rows_unlabelled_(self) -> int:
        """The number of rows that came without a target, and were not learned when they came."""
        learner = vars(self).get("_learner") or self._unfitted
        return 0 if learner is None else learner.gaps.unlabelled

    @property
    def n_rows_with_gaps_(self) -> int:
        """The number of rows that were learned without some of their features; see `missing`."""
        return self._fitted.gaps.rows

    # ---- rows without a target -------------------------------------------------------------------------

    def _to_hold(self, learner: Learner, rows: Rows, settings: Settings) -> tuple[Rows, int, _Held]:
        """Return the rows of a batch that have their target, the number of others, and those of them that have a key.

        These are to be held once the first are learned.
        """
        pending = learner.pending or PendingRows(_MAX_PENDING)
        if rows.keys is not None:
            pending.check_new(rows.keys)
        found, known = labelled(rows)
        if known is None or rows.keys is None:
            return found, len(rows.y) - len(found.y), []
        waiting = rows.part(~known)
        if settings.by_time:
            in_order(waiting.times)  # raises an error if there are none
        X, sparse = waiting.X, scipy.sparse.issparse(waiting.X)
        if sparse and settings.structure is None:
            X, sparse = X.toarray(), False
        n = X.shape[0]
        issued = _issued(learner, X, waiting.offset) if settings.diagnose else [()] * n
        about = (waiting.weights, waiting.groups, waiting.times, waiting.offset)
        columns = [[None] * n if values is None else values.tolist() for values in about]
        held = []
        for i, (key, weight, group, time, offset) in enumerate(zip(rows.keys[~known], *columns, strict=True)):
            if weight is None or weight > 0:
                x = X[[i]] if sparse else X[i]
                held.append((key, PendingRow(x, 1.0 if weight is None else weight, group, time, offset, issued[i])))
        return found, n, held

    def _hold(self, learner: Learner, unlabelled: int, held: _Held, max_pending: int) -> None:
        """Count rows without a target, and hold those that have a key, at most `max_pending` of them."""
        if unlabelled:
            learner.gaps = replace(learner.gaps, unlabelled=learner.gaps.unlabelled + unlabelled)
        if held:
            if learner.pending is None:  # one that is empty knows how many rows were dropped
                learner.pending = PendingRows(max_pending)
            learner.pending.capacity = max_pending
            for key, row in held:
                learner.pending.add(key, row)


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


def of_good_rows(encoded: Block, y: Any, given: Given, good: Array) -> tuple[Array, Given]:
    """Return the targets of the good rows of a frame, and what else is known of them.

    What is given takes the place of what the frame has; an offset is added to the exposure that a frame has.
    """
    n = len(good)
    if y is not None and (as_floats(y) is None or np.shape(y)[:1] != (n,)):
        raise ValueError(f"y must have shape ({n},), one number per row of X; got shape {np.shape(y)}.")
    own = {"weights": encoded.weights, "clusters": encoded.groups, "offset": encoded.offset, "times": encoded.times}
    found = {}
    for name, value in given._asdict().items():
        value = own.get(name) if value is None else value
        if value is not None and np.shape(value)[:1] != (n,):
            shown = "sample_weight" if name == "weights" else name
            raise ValueError(f"{shown} must have shape ({n},), one per row of X; got shape {np.shape(value)}.")
        found[name] = None if value is None else np.asarray(value)[good]
    if given.offset is not None and encoded.offset is not None:
        found["offset"] = found["offset"] + encoded.offset[good]
    targets = encoded.y if y is None else as_floats(y)
    assert targets is not None
    return targets[good], Given(**found)


def check_offset(settings: Settings, given: Given) -> None:
    """Raise a ValueError if rows are given an offset or an exposure, and cannot have them."""
    if given.offset is not None or given.exposure is not None:
        check(settings, way="offset")


def _check_max_pending(max_pending: Any) -> None:
    """Raise a ValueError unless this is a number of rows."""
    if not (isinstance(max_pending, (int, np.integer)) and max_pending >= 1):
        raise ValueError(f"max_pending must be a whole number >= 1; got {max_pending!r}.")


def _predicted_in_turn(learner: Learner, batch: Block, known: Array, settings: Settings) -> tuple[Learner, Made]:
    """Return a learner that has also learned the rows whose targets are `known`, and predictions of all rows.

    Each row is predicted from all that were learned before it.
    """
    learner, call = learner.copy(), Call(every_row=True)
    mean, std = np.full(batch.y.shape, np.nan), np.full(batch.y.shape, np.inf)
    ends = [*(np.flatnonzero(np.diff(known)) + 1).tolist(), len(batch)]
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        part = batch.part(start, stop)
        if known[start]:
            made = learner.learn(part, settings, call)
            assert made is not None
            mean[start:stop], std[start:stop] = made
        elif learner.is_fitted:
            step = len(part) if learner.belief.predicts else 1  # a filter of single rows predicts in a warm-up, too
            for i in range(start, stop, step):
                some = batch.part(i, i + step)
                row_filter = learner.stream.live(some.X, offsets=some.offset is not None)
                if row_filter is not None or learner.belief.predicts:
                    found = learner.predict(some.X, offset=some.offset)
                    mean[i : i + step], std[i : i + step] = found.mean, found.std
    return learner, (mean, std)


def _latest(learner: Learner, rows: list[PendingRow]) -> Array:
    """Return the latest time that is known, that of the last row, for each of these rows."""
    times = [row.time for row in rows] + ([learner.belief.time] if learner.is_fitted else [])
    return np.full(len(rows), max(time for time in times if time is not None))


def _issued(learner: Learner, X: Array, offset: Array | None) -> list[tuple[float, ...]]:
    """Return the predictions of rows as they are possible now: means, scales and degrees of freedom of the targets."""
    if not learner.is_fitted or not learner.belief.predicts:
        return [()] * X.shape[0]
    found = learner.predict(X, offset=offset, alone=False)
    mean = np.reshape(found.mean, (X.shape[0], -1))
    std, dof = (
        np.reshape(np.broadcast_to(a, np.shape(found.mean)), mean.shape)
        for a in (found.std, getattr(found, "dof", np.inf))
    )
    return [tuple(row) for row in np.hstack([mean, std, dof]).tolist()]


def _innovations(rows: list[PendingRow], y: Array) -> Innovations:
    """Return the innovations of rows by the predictions that were issued for them."""
    k = 1 if y.ndim == 1 else y.shape[1]
    unknown = (*[np.nan] * k, *[np.inf] * (2 * k))
    made = np.array([row.issued if len(row.issued) == 3 * k else unknown for row in rows]).reshape(len(rows), 3, k)
    mean, std, dof = (made[:, i].reshape(y.shape) for i in range(3))
    found = Innovations(mean, std, dof, np.ones_like(mean), mean, 1)
    return found._replace(issued=found.standardised(y))
