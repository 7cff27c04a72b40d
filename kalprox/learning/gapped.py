"""Rows with missing features as they come: each batch is completed by what was known before it, and then learned."""

import numpy as np

from kalprox.learning.buffered import Buffered, Made
from kalprox.learning.completing import Batch, GapReader, complete, in_pieces, moments_of, refuse_sparse
from kalprox.learning.compose import has_moments, of_rows
from kalprox.learning.gaps import FeatureMoments, Gaps
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import FIRST_PIECE, State
from kalprox.learning.step import PLAIN, Call
from kalprox.sources import ArraySource, Block, Source

__all__ = ["Gapped", "completed_source"]


class Gapped:
    """What learns rows without gaps, and an account of the gaps of its rows. What is wrapped knows nothing of gaps.

    Parameters
    ----------
    settings : Settings

    Attributes
    ----------
    inner : Buffered
    gaps : Gaps
    """

    def __init__(self, settings: Settings) -> None:
        self.inner, self.gaps = Buffered(settings), Gaps()

    def step(self, batch: Batch, settings: Settings, call: Call = PLAIN) -> Made | None:
        """Learn a batch under these settings, and return its predictions if the call asks for them."""
        if not settings.fills_gaps:
            return self.inner.step(batch, settings, call)
        refuse_sparse(settings, batch.X)
        if not self._keeps_moments(settings) and not np.isnan(batch.X).any():
            return self.inner.step(batch, settings, call)
        first = max(FIRST_PIECE, 2 * (batch.X.shape[1] + 1)) if call.every_row else len(batch.y)
        pieces = list(in_pieces(batch, self.inner.n_rows, first))
        new, made, start = self, [], 0  # type: Gapped, list[Made], int
        for piece in pieces:
            filled, gaps, moved = new._completed(piece, settings)
            if new is self and (len(pieces) > 1 or moved is not None):
                new = self.copy()  # takes this one's place when all rows have been learned
            if moved is not None:
                new.inner.keep(moved, new.inner.tracking)
            is_first, stop = new.inner.folded is None, start + len(piece.y)
            if (found := new.inner.step(filled, settings, call.part(start, stop))) is not None:
                made.append(found)
            new.gaps, start = gaps, stop
            if settings.missing == "marginalize":
                new._hold(piece, start=is_first)
                if np.isnan(piece.X).any():
                    relearned = new._is_linear
                    new.gaps = new.gaps.counted(new.inner.n_rows, relearned=relearned)
        self.__dict__ = new.__dict__
        if not call.every_row:
            return None
        return np.concatenate([mean for mean, _ in made]), np.concatenate([std for _, std in made])

    def _keeps_moments(self, settings: Settings) -> bool:
        """Whether the moments of the features are kept: unless the information of rows without gaps has them."""
        state, gaps = self.inner.folded, self.gaps
        if state is None:
            return not has_moments(settings) or settings.missing == "marginalize"
        return gaps.moments is not None or gaps.held is not None or not self._is_linear

    @property
    def _is_linear(self) -> bool:
        """Whether the information of the rows has the moments of their features."""
        return self.inner.folded is not None and self.inner.folded.core.linear_information is not None

    def _completed(self, batch: Batch, settings: Settings) -> tuple[Batch, Gaps, State | None]:
        """Return what `complete` returns for a batch after the rows learned so far."""
        state = None if self.inner.folded is None else (lambda: self.inner.state)
        return complete(batch, self.gaps, settings, state, lambda block: of_rows(settings, block).belief)

    def _hold(self, piece: Batch, *, start: bool) -> None:
        """Hold a piece that was learned, and learn all rows again by better moments, if it is time.

        Models whose rows cannot be learned again at once have better moments from then on.
        """
        if not isinstance(piece, Block) or not (start or self.gaps.held is not None):
            return
        self.gaps = self.gaps.holding(piece, start=start)
        if not self.gaps.is_due:
            return
        moments, settings, held = self.gaps.moments, self.inner.settings, self.gaps.held_rows
        if self.gaps.rows and self._is_linear:
            again = Gapped(settings)
            rows, gaps, _ = again._completed(held, settings)
            assert isinstance(rows, Block)
            by_batch = settings.coef_cov == "clustered" and held.groups is None  # a batch is a cluster
            ends = np.cumsum([len(one) for one in self.gaps.held or ()]).tolist() if by_batch else [len(rows)]
            for begin, stop in zip([0, *ends[:-1]], ends, strict=True):
                again.inner.step(rows.part(begin, stop), settings, _AT_ONCE)
            self.inner.keep(again.inner.state, self.inner.tracking)
            moments = gaps.moments
        elif self.gaps.rows:
            counts = settings.counts(held.weights)
            moments = FeatureMoments.of_batch(held.X, np.ones(len(held)) if counts is None else counts, with_cov=True)
        self.gaps = self.gaps.relearned(moments)

    # ---- reading ---------------------------------------------------------------------------------------

    def reader(self, time: float | None = None) -> GapReader:
        """Return what predicts rows of which features are missing, at a later time if one is given."""
        state = self.inner.state if time is None else self.inner.state.with_core(lambda core: core.ahead(time))
        return GapReader(state.belief, moments_of(state, self.gaps, self.inner.settings))

    def moments(self) -> FeatureMoments:
        """Return the moments of the features of all rows."""
        return moments_of(self.inner.state, self.gaps, self.inner.settings)

    def copy(self) -> "Gapped":
        """Return an independent copy."""
        new = object.__new__(Gapped)
        new.inner, new.gaps = self.inner.copy(), self.gaps
        return new


_AT_ONCE = Call(watch=lambda *_: None)  # which is not buffered


def completed_source(source: Source, settings: Settings) -> tuple[Source, Gaps]:
    """Return a source in memory without gaps, completed by the moments of all its rows, and their account."""
    if not isinstance(source, ArraySource):
        check(settings, way="not in memory")
    assert isinstance(source, ArraySource)
    refuse_sparse(settings, source.X)
    completed, gaps, _ = Gapped(settings)._completed(source, settings)
    assert isinstance(completed, ArraySource)
    return completed, gaps
