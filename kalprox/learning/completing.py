"""Rows with missing features: how a batch of them is completed before it is learned, and predicted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.learning.belief import Belief
from kalprox.learning.gaps import Completed, FeatureMoments, Gaps
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import State, left_after
from kalprox.predictive import Predictive
from kalprox.sources import ArraySource, Block

__all__ = ["Batch", "GapReader", "complete", "in_pieces", "moments_of", "refuse_sparse"]

Batch = Block | ArraySource

_FEWEST = 32  # rows that are completed together
_SAMPLE = 1 << 14  # rows of a first batch from which its coefficients are learned beforehand
_ROUNDS = 3
_LARGEST = 1e8  # variance of a row, in units of the noise
_LOGISTIC = np.pi / 8  # the logistic function averaged over a variance v is about that of f / sqrt(1 + pi v / 8)


def refuse_sparse(settings: Settings, X: Any) -> None:
    """Raise a ValueError for a sparse X whose features may be missing."""
    if hasattr(X, "toarray"):
        check(settings, way="sparse")


def in_pieces(batch: Batch, rows: int, first: int) -> Iterator[Batch]:
    """Yield a batch in pieces, each of which may be completed by what was known before it.

    A piece has at most as many rows as came before, `rows` before the batch; the first rows of all are `first`.
    """
    n, start = len(batch.y), 0
    while start < n:
        stop = start + (max(_FEWEST, rows + start) if rows + start else first)
        yield batch if start == 0 and stop >= n else _part(batch, start, stop)
        start = stop


def _part(batch: Batch, start: int, stop: int) -> Batch:
    if isinstance(batch, Block):
        return batch.part(start, stop)
    rows = slice(start, stop)
    about = {name: getattr(batch, name) for name in ("weights", "groups", "offset", "times")}
    about = {name: None if a is None else a[rows] for name, a in about.items()}
    return ArraySource(batch.X[rows], batch.y[rows], block_rows=batch.block_rows, gaps=True, **about)


def _changed(batch: Batch, X: Array, weights: Array | None, noise: Array | None) -> Batch:
    missing = np.isnan(batch.X)
    if isinstance(batch, Block):
        return replace(batch, X=X, weights=weights, noise=noise, missing=missing)
    about = {name: getattr(batch, name) for name in ("block_rows", "groups", "offset", "times")}
    return ArraySource(X, batch.y, weights, noise=noise, missing=missing, **about)


def complete(
    batch: Batch,
    gaps: Gaps,
    settings: Settings,
    state: Callable[[], State] | None,
    fitted: Callable[[Block], Belief],
) -> tuple[Batch, Gaps, State | None]:
    """Return a batch without gaps, the account of gaps after it, and the state if it had to be changed.

    Parameters
    ----------
    batch : Block or ArraySource
    gaps : Gaps
    settings : Settings
    state : callable or None
        Returns the state before the batch; None if it is the first one.
    fitted : callable
        Returns the belief of some rows alone.
    """
    X, with_cov, moved = batch.X, settings.missing == "marginalize", None
    any_gap = bool(np.isnan(X).any())
    weights = np.ones(len(X)) if (counts := settings.counts(batch.weights)) is None else counts
    moments, known = gaps.moments, None if state is None or not any_gap else state()
    if moments is None:
        moments = FeatureMoments.of_batch(X, weights, with_cov=with_cov) if state is None else None
        moments = moments or moments_of(state(), gaps, settings)  # type: ignore[misc]
    moments = _matching(moments, with_cov=with_cov)
    unseen = moments.unseen
    if state is not None and len(unseen):
        moments = moments.with_first_values(X, weights)
        new = unseen[~np.isnan(X[:, unseen]).all(axis=0)]
        if len(new):
            known = state() if known is None else known
            known = moved = known.with_origin(new, moments.mean[new])
    if not any_gap:
        left = 1.0 if state is None else _left(settings, batch, state)
        after = moments if state is None else moments.after(X, Completed(X), weights, left)
        return batch, gaps.after(X, weights, after), moved
    exact = known is None and settings.is_exact
    if not (exact or (known is not None and known.core.linear_information is not None)):
        _check_seen(X, moments)
    if with_cov and settings.is_exact and np.ndim(batch.y) == 2:
        check(settings, way="targets")
    coef = variance = None
    if with_cov:
        if known is None:
            coef, variance = _beforehand(batch, moments, weights, settings, fitted)
        else:
            coef, variance = known.belief.coef, float(np.asarray(known.belief.noise.variance))
    done = moments.completed(X, coef, weights)
    left = 1.0 if state is None else _left(settings, batch, state)
    after = moments if state is None else moments.after(X, done, weights, left)
    learned_weights, noise = batch.weights, None
    if done.open is not None and settings.is_exact:
        noise = _noise(done.open, variance)
    elif done.open is not None:
        open_ = done.open if done.open.ndim == 1 else np.trace(done.open, axis1=1, axis2=2) / done.open.shape[1]
        learned_weights = (1.0 if batch.weights is None else batch.weights) / (1 + _LOGISTIC * open_)
    return _changed(batch, done.X, learned_weights, noise), gaps.after(X, weights, after), moved


def _left(settings: Settings, batch: Batch, state: Callable[[], State]) -> float:
    """Return what forgetting leaves of the rows before a batch."""
    return left_after(settings, batch, state().core.time if settings.by_time else None)


def moments_of(state: State, gaps: Gaps, settings: Settings) -> FeatureMoments:
    """Return the moments of the features: those of the account, or of the information of rows without gaps."""
    with_cov = settings.missing == "marginalize"
    if gaps.moments is not None:
        return _matching(gaps.moments, with_cov=with_cov)
    if (information := state.core.linear_information) is not None:
        return FeatureMoments.of_information(information, with_cov=with_cov)
    raise ValueError(
        f"missing={settings.missing!r} needs the means of the features, and this model has learned rows without "
        "keeping them. Set missing before the first rows: use fit."
    )


def _matching(moments: FeatureMoments, *, with_cov: bool) -> FeatureMoments:
    if with_cov and moments.cov is None:
        raise ValueError(
            "missing cannot change from 'impute' to 'marginalize' after rows with gaps: the covariance of the features "
            "was not kept. Use fit."
        )
    return moments if with_cov else replace(moments, cov=None)


def _check_seen(X: Array, moments: FeatureMoments) -> None:
    """Raise a ValueError if a feature is missing that has had no value yet."""
    missing = moments.unseen[np.isnan(X[:, moments.unseen]).any(axis=0)]
    if len(missing):
        columns = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise ValueError(
            f"Nothing can stand for column(s) {columns} of X (counted from 0), which had no value so far: this model "
            "cannot learn before they have. Begin with rows that have a value of every column, or leave the columns "
            "out."
        )


def _noise(left_open: Array, variance: float | None) -> Array | None:
    """Return the variance of rows in units of the noise; None if the noise is not known, or nothing is left open."""
    if variance is None or not 0 < variance < np.inf:
        return None
    return np.minimum(1 + left_open / variance, _LARGEST) if left_open.any() else None


def _beforehand(
    batch: Any, moments: FeatureMoments, weights: Array, settings: Settings, fitted: Callable[[Block], Belief]
) -> tuple[Array, float | None]:
    """Return coefficients and the noise variance of a first batch, by which its rows count less.

    They are those of up to 16,384 of its rows, evenly spaced, first as if nothing were left open.
    """
    rows = np.flatnonzero(weights > 0)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE)).astype(int))] if len(rows) else rows
    X, y = batch.X[rows], batch.y[rows]
    names = ("weights", "groups", "offset", "times")
    parts: dict[str, Any] = {name: None if (a := getattr(batch, name)) is None else a[rows] for name in names}
    done = moments.completed(X)
    belief = fitted(Block(done.X, y, **parts))
    if not settings.is_exact:
        return belief.coef, None
    variance = float(np.asarray(belief.noise.variance))
    for _ in range(_ROUNDS):
        if not 0 < variance < np.inf:
            break
        done = moments.completed(X, belief.coef)
        assert done.open is not None
        if settings.noise_var is None:
            dof = max(float(np.asarray(belief.noise.dof)), 1.0)
            variance = _variance((y - belief.mean(done.X)) ** 2, done.open, weights[rows], dof)
        belief = fitted(Block(done.X, y, noise=_noise(done.open, variance), **parts))
    return belief.coef, variance


def _variance(squares: Array, left_open: Array, weights: Array, dof: float) -> float:
    """Return the noise variance v at which the sum of w r^2 / (v + open) is the degrees of freedom."""
    high = float(weights @ squares) / dof
    low = 1e-4 * high
    for _ in range(40):
        middle = (low * high) ** 0.5
        if weights @ (squares / (middle + left_open)) > dof:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True, eq=False)
class GapReader:
    """What predicts rows with missing features: a belief, and the moments by which they are completed."""

    belief: Belief
    moments: FeatureMoments

    @classmethod
    def of(cls, state: State, gaps: Gaps, settings: Settings) -> "GapReader":
        """Return what predicts rows as they are known in a state."""
        return cls(state.belief, moments_of(state, gaps, settings))

    def _completed(self, X: Array) -> tuple[Array, dict[str, Array]]:
        coef = self.belief.coef if self.moments.cov is not None else None
        done = self.moments.completed(X, coef)
        return done.X, {} if done.open is None else {"left_open": done.open}

    def predict(self, X: Array, sigma: Any = None, offset: Array | None = None) -> Predictive:
        """Return the predictive distribution; see `Belief.predict`."""
        X, left_open = self._completed(X)
        return self.belief.predict(X, sigma, offset, **left_open)

    def mean(self, X: Array) -> Array:
        """Return the predictive means; see `Belief.mean`."""
        if self.belief.settings.likelihood.location:
            return self.belief.mean(self.moments.completed(X).X)
        return self.predict(X).mean

    def log_odds(self, X: Array, offset: Array | None = None) -> Array:
        """Return the log odds of classes; see `Belief.log_odds`."""
        X, left_open = self._completed(X)
        return self.belief.log_odds(X, offset, **left_open)

    def probability_std(self, X: Array, offset: Array | None = None) -> Array:
        """Return the standard deviations of the probabilities of classes; see `Belief.probability_std`."""
        X, left_open = self._completed(X)
        return self.belief.probability_std(X, offset, **left_open)

    def minimax(self, X: Array) -> Array:
        """Return the predictions of the minimax forecaster for completed rows; see `Belief.minimax`."""
        return self.belief.minimax(self.moments.completed(X).X)
