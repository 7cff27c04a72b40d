"""Targets that are missing, or come later than their rows: `learn_late`, and the rows that wait for it."""

import numbers
import warnings
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.checks import check_finite
from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.checks import labelled
from kalprox.estimators.plain import Rows
from kalprox.learning.innovations import Innovations
from kalprox.learning.learner import Learner
from kalprox.learning.pending import Key, PendingRow, PendingRows, as_keys
from kalprox.learning.settings import Settings
from kalprox.learning.step import Call
from kalprox.sources import Block
from kalprox.sources.base import concatenated
from kalprox.sources.times import in_order

__all__ = ["MAX_PENDING", "Late"]

MAX_PENDING = 100_000  # rows that are held by default until their target comes


class _Held(NamedTuple):
    """The number of rows of a batch without a target, and those with a key."""

    n: int
    rows: list[tuple[Key, PendingRow]]


class Late(LearnerEstimator):
    """Rows without a target are predicted, and learned when their target comes."""

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
    def n_rows_pending_(self) -> int:
        """The number of rows that wait for their target; see `learn_late`."""
        learner = vars(self).get("_learner") or self._unfitted
        return 0 if learner is None or learner.pending is None else len(learner.pending)

    @property
    def n_rows_dropped_(self) -> int:
        """The number of rows that were dropped before their target came; see `max_pending` of `partial_fit`."""
        learner = vars(self).get("_learner") or self._unfitted
        return 0 if learner is None or learner.pending is None else learner.pending.n_dropped

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

    def _labelled_rows(self, rows: Rows) -> tuple[Rows, int]:
        """Return the rows of a fit that have their target, and the number of others."""
        if self.missing == "raise":
            return rows, 0
        found, known = labelled(rows)
        if known is not None and not known.any():
            raise ValueError(f"y has no target: all {len(known)} are missing. Nothing can be learned.")
        return found, 0 if known is None else int((~known).sum())

    def _to_hold(self, learner: Learner, rows: Rows, settings: Settings) -> tuple[Rows, _Held]:
        """Return the rows of a batch that have their target, and the others, to be held once these are learned."""
        pending = learner.pending or PendingRows(MAX_PENDING)
        if rows.keys is not None:
            pending.check_new(rows.keys)
        found, known = labelled(rows) if self.missing != "raise" or rows.keys is not None else (rows, None)
        if known is None or rows.keys is None:
            return found, _Held(0 if known is None else int((~known).sum()), [])
        waiting = rows.part(~known)
        if settings.by_time:
            in_order(waiting.times)  # raises an error if there are none
        X, sparse = waiting.X, scipy.sparse.issparse(waiting.X)
        if sparse and settings.structure is None:
            X, sparse = X.toarray(), False
        n = X.shape[0]
        issued = _issued(learner, X, waiting.offset) if settings.diagnose else [()] * n
        held = []
        for i, key in enumerate(rows.keys[~known]):
            weight = 1.0 if waiting.weights is None else float(waiting.weights[i])
            group = None if waiting.groups is None else str(waiting.groups[i])
            offset = None if waiting.offset is None else float(waiting.offset[i])
            time = None if waiting.times is None else float(waiting.times[i])
            if weight > 0:
                held.append((key, PendingRow(X[[i]] if sparse else X[i], weight, group, time, offset, issued[i])))
        return found, _Held(n, held)

    def _hold(self, learner: Learner, held: _Held, max_pending: int) -> None:
        """Hold rows without a target, at most `max_pending` of them, and count them."""
        if not (isinstance(max_pending, numbers.Integral) and max_pending >= 1):
            raise ValueError(f"max_pending must be a whole number >= 1; got {max_pending!r}.")
        if not held.n:
            return
        learner.gaps = replace(learner.gaps, unlabelled=learner.gaps.unlabelled + held.n)
        if held.rows:
            learner.pending = learner.pending or PendingRows(max_pending)
            learner.pending.capacity = max_pending
            for key, row in held.rows:
                learner.pending.add(key, row)

    def _warn_of_unseen(self, learner: Learner) -> None:
        """Warn if a column had no value in any row of a fit."""
        moments = learner.gaps.moments
        if moments is None or not len(moments.unseen):
            return
        names = self._coef_names(learner.belief)
        columns = ", ".join(repr(names[j]) for j in moments.unseen[:5]) + (", ..." if len(moments.unseen) > 5 else "")
        warnings.warn(
            f"Column(s) {columns} had no value in any row, and nothing was learned about them. Leave them out.",
            RuntimeWarning,
            stacklevel=3,
        )


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
