"""The learner behind an estimator: its settings, its lock, whether it is fitted, and its state for pickle."""

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from kalprox.base.arrays import Array
from kalprox.base.checks import all_usable, check_positive
from kalprox.engines.partitions import predict_collection
from kalprox.estimators.frames import FrameEncoder, as_frame, check_encoded, is_raw
from kalprox.estimators.rows import Rows, checked_inputs, checked_offset, is_plain_row, plain_inputs, source_of
from kalprox.learning.belief import Belief, PenaltyTooStrong, doubt_of_clusters, doubt_of_errors
from kalprox.learning.gaps import FILLED
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.predictive import Mixture
from kalprox.structures import UnderstatedWarning

if TYPE_CHECKING:
    from kalprox.jobs.model import TableModel

_WAIT = 5.0  # seconds in which threads may finish what they are learning
_estimators: "weakref.WeakSet[Any]" = weakref.WeakSet()
_guard = threading.RLock()  # held while estimators are added, and while a process is forked
_forking = threading.Event()  # set while a process waits to be forked
_taken: list[Any] = []  # the locks that the thread which forks has taken
_busy: list[Any] = []  # the estimators whose lock it could not take


def lock_of(estimator: Any) -> Any:
    """Return a new lock for an estimator, which a thread may take again while it holds it."""
    with _guard:
        _estimators.add(estimator)
    return _Lock()


class _Lock:
    """A lock that a thread may take again while it holds it. Others wait behind a fork that waits for it."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()

    def __enter__(self) -> None:
        if _forking.is_set() and not _holds_any():  # a thread that holds another lock must go on, or the fork would
            with _guard:  # wait for it in vain
                pass
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def _holds_any() -> bool:
    """Whether this thread holds the lock of any estimator."""
    gates = [vars(estimator).get("_lock") for estimator in list(_estimators)]
    return any(isinstance(gate, _Lock) and gate.lock._is_owned() for gate in gates)


class _Lost:
    """In place of a lock: the model was half-way when the process was forked."""

    def __enter__(self) -> None:
        raise RuntimeError(
            "This process was forked while another thread was learning this model, which is half-way here. Fork when "
            "no thread learns, start processes with 'spawn', or save the model and load it in the process."
        )

    def __exit__(self, *_: object) -> None:
        """Do nothing; `__enter__` has raised."""


def _before() -> None:
    _guard.acquire()
    _forking.set()
    until = time.monotonic() + _WAIT
    for estimator in list(_estimators):
        gate = vars(estimator).get("_lock")
        if not isinstance(gate, _Lock):
            continue
        lock = gate.lock
        if lock.acquire(timeout=max(0.0, until - time.monotonic())):
            _taken.append(lock)
        else:
            _busy.append(estimator)


def _after() -> None:
    while _taken:
        _taken.pop().release()
    _busy.clear()
    _forking.clear()
    _guard.release()


def _in_child() -> None:
    for estimator in _busy:
        vars(estimator)["_lock"] = _Lost()
    _after()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)


_SHORT = 6  # entries of an array that are shown as such
_MADE_AGAIN = ("_lock", "_last_columns", "_encoders")  # what a copy has to make for itself
_NOT_SETTINGS = ("formula", "engine", "class_weight")  # parameters of the input, not of the learner


class LearnerEstimator(BaseEstimator):
    """An estimator whose fitted state is a `Learner`. Subclasses define the parameters and the public methods.

    Methods that learn hold `_lock`, and so do those that read, as long as they read what learning changes: the learner
    and its buffer. A belief does not change, and is read without the lock.
    """

    formula: str | None
    engine: Any
    missing: str
    _has_labels = False  # whether y has the labels of classes
    classes_: Array  # of a classifier
    _balanced: tuple[float, ...] = ()  # the weights of the classes that class_weight="balanced" took

    _unfitted: Learner | None = None  # a learner that has rows without a target, and has learned none yet
    _learner: Learner
    _table: "TableModel | None" = None  # how the files were read that the model was fitted to, and what they held
    _frame_kind: str | None = None  # the library of the frame that the model was fitted to
    _last_columns: tuple[Any, Any] = (None, None)  # `feature_names_in_`, and the columns of a frame with these names
    _encoders: tuple[Any, dict[tuple[str, ...], FrameEncoder]] = (None, {})  # see `_encoder`
    _given: tuple[Any, ...]  # the parameters at the last fit
    _current: Callable[[dict[str, Any]], tuple[Any, ...]]  # reads the current parameters from vars(self)

    @cached_property
    def _lock(self) -> Any:
        """The lock of this estimator, which a thread may take again while it holds it. A copy has its own."""
        return self.__dict__.setdefault("_lock", lock_of(self))  # the same one for threads that come at once

    def _checked_settings(self) -> Settings:
        """Return the current parameters as settings; raise a ValueError if they are invalid."""
        return Settings.of(**self._learner_parameters())

    def _learner_parameters(self) -> dict[str, Any]:
        """Return the parameters of `Settings.of`."""
        parameters = self.get_params(deep=False)
        return {name: value for name, value in parameters.items() if name not in _NOT_SETTINGS}

    def _settings_now(self) -> tuple[Settings, bool, bool]:
        """Return the current settings, whether the model is fitted, and whether no parameter has changed since."""
        mine = vars(self)
        fitted = "_learner" in mine
        unchanged = fitted and all(map(is_, mine["_current"](mine), mine["_given"]))
        return (mine["_learner"].settings if unchanged else self._checked_settings()), fitted, unchanged

    def _keep(self, learner: Learner) -> Self:
        """Assign the learner, the only change that a fit makes; an exception before it leaves the model unchanged."""
        self._learner, self._unfitted = learner, None
        names = [name for name in self._get_param_names() if name != "engine"]  # computed once, since it takes 0.5 ms
        self._current = itemgetter(*names)
        self._given = self._current(vars(self))
        belief = learner.belief
        if belief.message and not belief.converged and belief.predicts:  # for a warm-up, see `_warn_of_warmup`
            warnings.warn(belief.message, ConvergenceWarning, stacklevel=3)
        return self

    @property
    def _fitted(self) -> Learner:
        if "_learner" not in vars(self):  # in a hundredth of the time of the check
            check_is_fitted(self)
        return self._learner

    @property
    def _belief(self) -> Belief:
        with self._lock:
            return self._fitted.belief

    @property
    def _with_std(self) -> Belief:
        """The belief, for reading standard errors: warns if there are none, or if they are known to be too small."""
        belief = self._belief
        if belief.why_no_std:
            warnings.warn(belief.why_no_std, RuntimeWarning, stacklevel=3)
        else:
            self._warn_of_warmup(belief, stacklevel=4)
        with self._lock:
            doubt = doubt_of_errors(belief, self._fitted.gaps, self._fitted.n_rows)
        if doubt:
            warnings.warn(doubt, UnderstatedWarning, stacklevel=3)
        return belief

    def _warn_of_warmup(self, belief: Belief, stacklevel: int = 3) -> None:
        """Warn, where standard errors or intervals are read, that the rows do not determine the coefficients yet."""
        if belief.message and not belief.converged and not belief.predicts:
            warnings.warn(belief.message, ConvergenceWarning, stacklevel=stacklevel)

    def _warn_of_looks(self, belief: Belief, *, anytime: bool) -> None:
        """Warn if the intervals of coefficients are known not to cover, at one look or at any."""
        if not anytime:
            for doubt, kind in ((belief.interval_doubt, PenaltyTooStrong), (doubt_of_clusters(belief), RuntimeWarning)):
                if doubt:
                    warnings.warn(doubt, kind, stacklevel=3)
        if anytime and belief.settings.coef_cov != "clustered":
            with self._lock:
                findings = self._fitted.score.verdict().findings
            if "correlated" in findings:
                warnings.warn(
                    "anytime=True assumes independent rows, and the verdict on these is 'correlated': the intervals "
                    "exclude the truth far more often than they say. Give the clusters of the rows (clusters), such as "
                    "the day, or use coef_cov='clustered', by which each batch is a cluster.",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def _coef_names(self, belief: Belief) -> list[str]:
        """Return the names of the coefficients: those of the columns, or x0, x1 and so on; theta[0] of a function."""
        names, d = getattr(self, "feature_names_in_", None), belief.coef.shape[-1]
        columns = [f"x{j}" for j in range(d)] if names is None else list(map(str, names))
        return belief.settings.coef_names(columns, d)

    def _block_rows(self, d: int) -> int | None:
        """Return the number of rows of a block of d columns; None for those of `source_of`."""
        return None

    def _read(
        self,
        X: Any,
        read: Callable[..., Any],
        *,
        live: bool = True,
        whole: bool = False,
        sigma: Any = None,
        offset: Any = None,
        exposure: Any = None,
        time: float | None = None,
    ) -> Any:
        """Return what `read` returns for rows, given what predicts them: arrays, or predictive distributions.

        They are NaN for rows that are left out. One object predicts all rows, see `Learner.reader`, block by block
        unless they are read as a `whole`; what is given of each row, its `sigma` and its `offset`, follows by name.
        """
        X, good, added = self._inputs_and_offset(X, offset, exposure)
        n, one, dense = X.shape[0] if good is None else len(good), X.shape[0] == 1, isinstance(X, np.ndarray)
        if one and dense and live and good is None and sigma is None and added is None and time is None:
            with self._lock:  # shorter than a copy of the learner's filter would take
                return read(self._learner, X)
        if not X.shape[0]:
            return np.full((n, *self._belief.coef.shape[:-1]), np.nan)
        given = {} if added is None else {"offset": added}
        if sigma is not None:
            relative = _checked_sigma(sigma, n)
            given["sigma"] = relative if good is None else relative[good]
        how: dict[str, Any] = {"alone": one or whole, "live": live, "offsets": added is not None, "time": time}
        found, reader, start = [], None, 0
        settings = self._fitted.settings
        rows = Rows(X, np.zeros(X.shape[0]))
        for block in [rows] if whole else source_of(rows, settings, self._block_rows(X.shape[1])):
            if reader is None:
                with self._lock:
                    reader = self._fitted.reader(X if dense else block.X, given.get("sigma"), **how)
            stop = start + block.X.shape[0]
            found.append(read(reader, block.X, **{name: a[start:stop] for name, a in given.items()}))
            start = stop
        return _joined(found, good, one_dof=not settings.noise_depends_on_inputs)

    def _shown(self, values: Any, axis: int = 0) -> Any:
        """Return what was found for one target, or for several, as the attributes of the estimator have it."""
        return values

    def _class_names(self) -> list[str]:
        """Return the names of the classes; empty if the target has none."""
        return []

    def _target_names(self) -> list[str]:
        """Return the names of several targets, or of the classes."""
        return self._class_names() or [f"y{k}" for k in range(np.atleast_2d(self._belief.coef).shape[0])]

    def _is_raw(self, X: Any) -> bool:
        """Whether X is a frame with the columns of the files, or of the formula, that the model was fitted to."""
        return self._table is not None and is_raw(self._table.columns, X)

    def _inputs_and_offset(
        self, X: Any, offset: Any = None, exposure: Any = None
    ) -> tuple[Any, Array | None, Array | None]:
        """Return rows to predict as an array or a sparse matrix, which of them are good, None if all are, and offsets.

        X and the offsets, given or from the columns of a frame, are those of the good rows.
        """
        if offset is None and exposure is None and is_plain_row(self, X) and all_usable(None, X[0]):
            return X, None, None
        settings = self._fitted.settings  # raises an error if there is nothing to predict with
        if self.missing != settings.missing:
            with self._lock:  # of the parameters, this one alone is not about learning
                self._learner.configure(Settings.of(**{**settings.parameters, "missing": self.missing}))
        X = as_frame(X)
        if not self._is_raw(X):
            plain = plain_inputs(self, X)
            found, good = checked_inputs(self, X) if plain is None else (plain, None)
            added = checked_offset(self, offset, exposure, found.shape[0] if good is None else len(good))
            return found, good, added if added is None or good is None else added[good]
        added = checked_offset(self, offset, exposure, len(X))
        left_out = ("offset", "exposure") if added is not None else ()
        encoded = self._encoder("target", "weight", "cluster", "time", *left_out).encode(X)
        added = encoded.offset if added is None else added
        bad, good = check_encoded(encoded, drop=self.missing == "drop")
        if not bad:
            return encoded.X, None, added
        return encoded.X[good], good, None if added is None else added[good]

    def _lazily(self, method: str, X: Any, results: dict[str, Any], by_row: dict[str, Any], **given: Any) -> Any:
        """Return what a method returns for rows, for those of a collection, as a lazy one.

        It is a frame, or of one result its column; of an array one, or with `return_std` a pair of them.

        For the parameters see `kalprox.engines.partitions.predict_collection`.
        """
        found = predict_collection(partial(_columns, method=method, **given), self, X, results, by_row)
        if hasattr(found, "sparkSession"):
            return found
        if hasattr(found, "columns"):
            return found if len(results) > 1 else found[next(iter(results))]
        if not given.get("return_std"):
            return found if len(results) > 1 else found[:, 0]
        half = len(results) // 2
        return (found[:, 0], found[:, 1]) if half == 1 else (found[:, :half], found[:, half:])

    def _encoder(self, *left_out: str) -> FrameEncoder:
        """Return what encodes frames that need not have some of the target, the weight and the clusters. It is kept."""
        assert self._table is not None
        columns, kept = self._encoders
        if columns is not self._table.columns:
            columns, kept = self._encoders = self._table.columns, {}
        if left_out not in kept:
            kept[left_out] = FrameEncoder(columns.without(left_out))
        return kept[left_out]

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the parameters that differ from their defaults, without the entries of long arrays."""
        parameters = self.get_params(deep=False)
        shown = type(self)(**{name: _shortened(value) for name, value in parameters.items()})
        text: str = BaseEstimator.__repr__(shown, N_CHAR_MAX)
        return text

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing in FILLED
        tags.input_tags.sparse = not tags.input_tags.allow_nan  # features may be missing in dense rows only
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy: without a client, session or lock, and with a copy of the learner."""
        with self._lock:
            state = super().__getstate__() | {"engine": self.engine if isinstance(self.engine, str) else None}
            for name in ("_learner", "_unfitted"):
                if state.get(name) is not None:
                    state[name] = state[name].copy()
            if self._table is not None:
                state["_table"] = replace(self._table, learner=state["_learner"])
        return {name: value for name, value in state.items() if name not in _MADE_AGAIN}


def _columns(model: Any, X: Any, *, method: str, **given: Any) -> Array:
    """Return what a method returns for rows of X, or the pair that it returns, as the columns of an array."""
    found = getattr(model, method)(X, **given)
    return np.column_stack(found) if isinstance(found, tuple) else found.reshape(len(found), -1)


def _checked_sigma(sigma: Any, n: int) -> Array:
    """Return the relative standard deviation of each of n new rows."""
    numbers = np.asarray(sigma, np.float64)
    if numbers.shape not in ((), (n,)):
        raise ValueError(f"sigma must be a number or have shape ({n},), one number per row of X; got {numbers.shape}.")
    check_positive("sigma", numbers, strict=False)
    return np.broadcast_to(numbers, n)


def _joined(found: list[Any], good: Array | None, *, one_dof: bool) -> Any:
    """Return arrays, or predictions, of several blocks as one for all rows, NaN for those that were left out."""
    kind, first = type(found[0]), found[0]
    if len(found) == 1 and good is None:
        return first
    if isinstance(first, np.ndarray):
        return _filled(np.concatenate(found), good)
    if kind is Mixture:
        parts = zip(*(one.parts for one in found), strict=True)
        return Mixture(tuple(_joined(list(part), good, one_dof=one_dof) for part in parts), first.weights)
    shared = {name: value for name, value in first._asdict().items() if np.ndim(value) == 0}
    shared |= {"dof": first.dof} if one_dof and hasattr(first, "dof") else {}
    columns = {name: [getattr(one, name) for one in found] for name in kind._fields if name not in shared}
    return kind(**{name: _filled(np.concatenate(arrays), good) for name, arrays in columns.items()}, **shared)


def _filled(values: Array, good: Array | None) -> Array:
    """Return values of the good rows as values of all rows, NaN for the others."""
    if good is None:
        return values
    found = np.full((len(good), *values.shape[1:]), np.nan)
    found[good] = values
    return found


class _Shortened:
    """Stands for an array, and shows its shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __repr__(self) -> str:
        return f"<array of shape {self.shape}>"


def _shortened(value: Any) -> Any:
    """Return a parameter, or what is shown instead of a long array, list or tuple."""
    if not isinstance(value, (np.ndarray, list, tuple)):
        return value
    if isinstance(value, tuple) and len(value) <= _SHORT:
        return tuple(map(_shortened, value))
    shape = np.shape(value) if isinstance(value, np.ndarray) else (len(value),)
    return value if int(np.prod(shape)) <= _SHORT else _Shortened(shape)
