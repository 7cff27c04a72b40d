"""Rows with missing features as they come: each batch is completed by what was known before it, and then learned."""

import numpy as np

from kalprox.learning.buffered import Buffered, Made
from kalprox.learning.completing import Batch, complete, in_pieces, refuse_sparse
from kalprox.learning.compose import has_moments, of_rows
from kalprox.learning.gaps import FeatureMoments, Gaps
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import FIRST_PIECE, State
from kalprox.learning.step import Call
from kalprox.sources import ArraySource, Block, Source

__all__ = ["completed_source", "learn_with_gaps"]

_AT_ONCE = Call(watch=lambda *_: None)  # which is not buffered


def learn_with_gaps(
    stream: Buffered, gaps: Gaps, batch: Batch, settings: Settings, call: Call
) -> tuple[Buffered, Gaps, Made | None]:
    """Learn a batch in which features may be missing.

    Return what has learned it, a copy of the stream if an exception might have come after some of the rows, the account
    of gaps after it, and the predictions if the call asks for them.
    """
    refuse_sparse(settings, batch.X)
    if not _keeps_moments(stream, gaps, settings) and not np.isnan(batch.X).any():
        return stream, gaps, stream.step(batch, settings, call)
    first = max(FIRST_PIECE, 2 * (batch.X.shape[1] + 1)) if call.every_row else len(batch.y)
    pieces = list(in_pieces(batch, stream.n_rows, first))
    given, made, start = stream, [], 0  # type: Buffered, list[Made], int
    for piece in pieces:
        filled, after, moved = _completed(stream, gaps, piece, settings)
        if stream is given and (len(pieces) > 1 or moved is not None):
            stream = given.copy()
        if moved is not None:
            stream.keep(moved, stream.tracking)
        is_first, stop = stream.folded is None, start + len(piece.y)
        if (found := stream.step(filled, settings, call.part(start, stop))) is not None:
            made.append(found)
        gaps, start = after, stop
        if settings.missing == "marginalize":
            gaps = _held(stream, gaps, piece, start=is_first)
            if np.isnan(piece.X).any():
                gaps = gaps.counted(stream.n_rows, relearned=stream.is_linear)
    if not call.every_row:
        return stream, gaps, None
    return stream, gaps, (np.concatenate([mean for mean, _ in made]), np.concatenate([std for _, std in made]))


def completed_source(source: Source, settings: Settings) -> tuple[Source, Gaps]:
    """Return a source in memory without gaps, completed by the moments of all its rows, and their account."""
    if not isinstance(source, ArraySource):
        check(settings, way="not in memory")
    assert isinstance(source, ArraySource)
    refuse_sparse(settings, source.X)
    completed, gaps, _ = _completed(Buffered(settings), Gaps(), source, settings)
    assert isinstance(completed, ArraySource)
    return completed, gaps


def _keeps_moments(stream: Buffered, gaps: Gaps, settings: Settings) -> bool:
    """Whether the moments of the features are kept: unless the information of rows without gaps has them."""
    if stream.folded is None:
        return not has_moments(settings) or settings.missing == "marginalize"
    return gaps.moments is not None or gaps.held is not None or not stream.is_linear


def _completed(stream: Buffered, gaps: Gaps, batch: Batch, settings: Settings) -> tuple[Batch, Gaps, State | None]:
    """Return what `complete` returns for a batch after the rows learned so far."""
    state = None if stream.folded is None else (lambda: stream.state)
    return complete(batch, gaps, settings, state, lambda block: of_rows(settings, block).belief)


def _held(stream: Buffered, gaps: Gaps, piece: Batch, *, start: bool) -> Gaps:
    """Hold a piece that was learned, and learn all rows again by better moments, if it is time.

    Models whose rows cannot be learned again at once have better moments from then on.
    """
    if not isinstance(piece, Block) or not (start or gaps.held is not None):
        return gaps
    gaps = gaps.holding(piece, start=start)
    if not gaps.is_due:
        return gaps
    moments, settings, held = gaps.moments, stream.settings, gaps.held_rows
    if gaps.rows and stream.is_linear:
        again = Buffered(settings)
        rows, account, _ = _completed(again, Gaps(), held, settings)
        assert isinstance(rows, Block)
        by_batch = settings.coef_cov == "clustered" and held.groups is None  # a batch is a cluster
        ends = np.cumsum([len(one) for one in gaps.held or ()]).tolist() if by_batch else [len(rows)]
        for begin, stop in zip([0, *ends[:-1]], ends, strict=True):
            again.step(rows.part(begin, stop), settings, _AT_ONCE)
        stream.keep(again.state, stream.tracking)
        moments = account.moments
    elif gaps.rows:
        counts = settings.counts(held.weights)
        moments = FeatureMoments.of_batch(held.X, np.ones(len(held)) if counts is None else counts, with_cov=True)
    return gaps.relearned(moments)
