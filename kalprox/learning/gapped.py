"""Rows with missing features: each batch is completed by what was known before it, and then learned, or predicted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.learning.belief import Belief
from kalprox.learning.compose import has_moments, of_rows
from kalprox.learning.gaps import Completed, FeatureMoments, Gaps
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import FIRST_PIECE, State, left_after
from kalprox.learning.step import Buffered, Call, Made
from kalprox.predictive import Predictive
from kalprox.sources import ArraySource, Block, Source

_AT_ONCE = Call(watch=lambda *_: None)  # which is not buffered
_FEWEST = 32  # rows that are completed together
_SAMPLE = 1 << 14  # rows of a first batch from which its coefficients are learned beforehand
_ROUNDS = 3
_LARGEST = 1e8  # variance of a row, in units of the noise
_LOGISTIC = np.pi / 8  # the logistic function averaged over a variance v is about that of f / sqrt(1 + pi v / 8)


# ---- learning ------------------------------------------------------------------------------------------


def learn_with_gaps(
    stream: Buffered, gaps: Gaps, batch: Block | ArraySource, settings: Settings, call: Call
) -> tuple[Buffered, Gaps, Made | None]:
    """Learn a batch in which features may be missing.

    Return what has learned it, a copy of the stream if an exception might have come after some of the rows, the account
    of gaps after it, and the predictions if the call asks for them.
    """
    _refuse_sparse(settings, batch.X)
    if not _keeps_moments(stream, gaps, settings) and not np.isnan(batch.X).any():
        return stream, gaps, stream.step(batch, settings, call)
    block = batch if isinstance(batch, Block) else batch.rows
    first = max(FIRST_PIECE, 2 * (block.X.shape[1] + 1)) if call.every_row else len(block)
    pieces = list(_in_pieces(block, stream.n_rows, first))
    if len(pieces) > 1 or (gaps.moments is not None and len(gaps.moments.unseen)):
        stream = stream.copy()
    made, start = [], 0  # type: list[Made], int
    for piece in pieces:
        is_first, stop = stream.folded is None, start + len(piece)
        filled, gaps = _completed(stream, gaps, piece, settings)
        learned = filled if isinstance(batch, Block) else _source(filled, batch.block_rows)
        if (found := stream.step(learned, settings, call.part(start, stop))) is not None:
            made.append(found)
        start = stop
        if settings.missing == "marginalize":
            gaps = _held(stream, gaps, piece, start=is_first)
            if np.isnan(piece.X).any():
                gaps = gaps.counted(stream.n_rows, relearned=stream.is_linear)
    together = [np.concatenate(parts) for parts in zip(*made, strict=True)]
    return stream, gaps, (together[0], together[1]) if call.every_row else None


def completed_source(source: Source, settings: Settings) -> tuple[Source, Gaps]:
    """Return a source in memory without gaps, completed by the moments of all its rows, and their account."""
    if not isinstance(source, ArraySource):
        check(settings, way="not in memory")
    assert isinstance(source, ArraySource)
    _refuse_sparse(settings, source.X)
    completed, gaps = _completed(Buffered(settings), Gaps(), source.rows, settings)
    return _source(completed, source.block_rows), gaps


def _refuse_sparse(settings: Settings, X: Any) -> None:
    """Raise a ValueError for a sparse X whose features may be missing."""
    if hasattr(X, "toarray"):
        check(settings, way="sparse")


def _source(rows: Block, block_rows: int) -> ArraySource:
    about = {name: getattr(rows, name) for name in ("weights", "groups", "offset", "times", "noise", "missing")}
    return ArraySource(rows.X, rows.y, block_rows=block_rows, **about)


def _keeps_moments(stream: Buffered, gaps: Gaps, settings: Settings) -> bool:
    """Whether the moments of the features are kept: unless the information of rows without gaps has them."""
    if stream.folded is None:
        return not has_moments(settings) or settings.missing == "marginalize"
    return gaps.moments is not None or gaps.held is not None or not stream.is_linear


def _in_pieces(block: Block, rows: int, first: int) -> Iterator[Block]:
    """Yield a block in pieces, each of which may be completed by what was known before it.

    A piece has at most as many rows as came before, `rows` before the block; the first rows of all are `first`.
    """
    start = 0
    while start < len(block):
        stop = start + (max(_FEWEST, rows + start) if rows + start else first)
        yield block.part(start, stop)
        start = stop


def _held(stream: Buffered, gaps: Gaps, piece: Block, *, start: bool) -> Gaps:
    """Hold a piece that was learned, and learn all rows again by better moments, if it is time.

    Models whose rows cannot be learned again at once have better moments from then on.
    """
    gaps = gaps.holding(piece, start=start)
    if not gaps.is_due:
        return gaps
    moments, settings = gaps.moments, stream.settings
    if gaps.rows and not start:  # the first rows were completed by the moments of all of them
        held = gaps.held or ()
        rows = Block.joined(held)
        if not stream.is_linear:
            return gaps.relearned(FeatureMoments.of_batch(rows.X, settings.counts_of(rows), with_cov=True))
        again = Buffered(settings)
        rows, account = _completed(again, Gaps(), rows, settings)
        by_batch = settings.coef_cov == "clustered" and rows.groups is None  # a batch is a cluster
        ends = np.cumsum([len(one) for one in held]).tolist() if by_batch else [len(rows)]
        for begin, stop in zip([0, *ends[:-1]], ends, strict=True):
            again.step(rows.part(begin, stop), settings, _AT_ONCE)
        stream.keep(again.state, stream.tracking)
        moments = account.moments
    return gaps.relearned(moments)


# ---- completing ----------------------------------------------------------------------------------------


def _completed(stream: Buffered, gaps: Gaps, block: Block, settings: Settings) -> tuple[Block, Gaps]:
    """Return a block without gaps, and the account after it; features may get their first values in the stream."""
    X, weights, first, left = block.X, settings.counts_of(block), stream.folded is None, 1.0
    if first:
        moments = FeatureMoments.of_batch(X, weights, with_cov=settings.missing == "marginalize")
    else:
        moments = _moments_of(gaps, settings, lambda: stream.state)
        left = left_after(settings, block, stream.state.core.time if settings.by_time else None)
        if len(unseen := moments.unseen):
            moments = moments.with_first_values(X, weights)
            if len(new := unseen[~np.isnan(X[:, unseen]).all(axis=0)]):
                stream.keep(stream.state.with_origin(new, moments.mean[new]), stream.tracking)
    done = Completed(X)
    if np.isnan(X).any():
        block, done = _filled(stream, block, moments, weights, settings)
    return block, gaps.after(X, weights, moments if first else moments.after(X, done, weights, left))


def _filled(
    stream: Buffered, block: Block, moments: FeatureMoments, weights: Array, settings: Settings
) -> tuple[Block, Completed]:
    """Return a block in which missing features are completed, and by what; its rows count less by what is left open."""
    first, coef, variance = stream.folded is None, None, None
    if not (settings.is_exact if first else stream.is_linear):
        _check_seen(block.X, moments)
    if settings.missing == "marginalize":
        if settings.is_exact and np.ndim(block.y) == 2:
            check(settings, way="targets")
        if first:
            coef, variance = _beforehand(block, moments, weights, settings)
        else:
            belief = stream.state.belief
            coef, variance = belief.coef, float(np.asarray(belief.noise.variance))
    done = moments.completed(block.X, coef, weights)
    filled = replace(block, X=done.X, missing=np.isnan(block.X))
    if done.open is None:
        return filled, done
    if settings.is_exact:
        return replace(filled, noise=_noise(done.open, variance)), done
    left_open = done.open if done.open.ndim == 1 else np.trace(done.open, axis1=1, axis2=2) / done.open.shape[1]
    weights = (1.0 if block.weights is None else block.weights) / (1 + _LOGISTIC * left_open)
    return replace(filled, weights=weights), done


def _moments_of(gaps: Gaps, settings: Settings, state: Callable[[], State]) -> FeatureMoments:
    """Return the moments of the features: those of the account, or of the information of rows without gaps.

    Parameters
    ----------
    gaps : Gaps
    settings : Settings
    state : function
        Returns the state after the rows; called where the account has no moments.
    """
    with_cov, moments = settings.missing == "marginalize", gaps.moments
    if moments is None:
        information = state().core.linear_information
        if information is None:
            raise ValueError(
                f"missing={settings.missing!r} needs the means of the features, and this model has learned rows "
                "without keeping them. Set missing before the first rows: use fit."
            )
        return FeatureMoments.of_information(information, with_cov=with_cov)
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
    block: Block, moments: FeatureMoments, weights: Array, settings: Settings
) -> tuple[Array, float | None]:
    """Return coefficients and the noise variance of a first block, by which its rows count less.

    They are those of up to 16,384 of its rows, evenly spaced, first as if nothing were left open.
    """
    rows = np.flatnonzero(weights > 0)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE)).astype(int))] if len(rows) else rows
    some, weights = block.at(rows), weights[rows]
    done = moments.completed(some.X)
    belief = of_rows(settings, replace(some, X=done.X)).belief
    if not settings.is_exact:
        return belief.coef, None
    variance = float(np.asarray(belief.noise.variance))
    for _ in range(_ROUNDS):
        if not 0 < variance < np.inf:
            break
        done = moments.completed(some.X, belief.coef)
        assert done.open is not None
        if settings.noise_var is None:
            dof = max(float(np.asarray(belief.noise.dof)), 1.0)
            variance = _variance((some.y - belief.mean(done.X)) ** 2, done.open, weights, dof)
        belief = of_rows(settings, replace(some, X=done.X, noise=_noise(done.open, variance))).belief
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


# ---- predicting ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GapReader:
    """What predicts rows with missing features: a belief, and the moments by which they are completed."""

    belief: Belief
    moments: FeatureMoments

    @classmethod
    def of(cls, state: State, gaps: Gaps, settings: Settings) -> "GapReader":
        """Return what predicts rows as they are known in a state."""
        return cls(state.belief, _moments_of(gaps, settings, lambda: state))

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
