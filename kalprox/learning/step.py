"""One step: how the rows of a batch are learned. Each is predicted, scored, and then folded.

Single rows and short batches wait in a buffer, and are folded together.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable
from kalprox.base.tree import Saved, Sizes, expect, released
from kalprox.learning.compose import recent_rows, restored, started, under
from kalprox.learning.exact import Exact
from kalprox.learning.innovations import Innovations
from kalprox.learning.live_rows import TRACKED_TOGETHER, LiveRows
from kalprox.learning.row_buffer import Made, RowBuffer
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import Core, State
from kalprox.learning.tracking import Quantiles, Tracking
from kalprox.noise import Noise
from kalprox.sources import ArraySource, Block, Counts
from kalprox.sources.weighting import in_order

__all__ = ["NOT_ASKED", "PLAIN", "TRACKED_TOGETHER", "Buffered", "Call", "Made", "Watch", "step"]

Watch = Callable[[State, Block, State, Innovations | None, Tracking], None]

NOT_ASKED = "the score was not asked for: set diagnose=True"


class Call(NamedTuple):
    """What a call that brings rows asks for.

    Attributes
    ----------
    every_row : bool
        Whether each row is to be predicted from all rows before it, and the predictions are returned.
    in_turn : bool
        Whether the rows come one after the other, as those of a file, and are read in blocks of any size: no intervals
        were issued for the block as a whole. It is not buffered, so that a learner that was saved and restored goes on
        bit for bit, its score included.
    issued : Innovations or None
        The predictions that were issued for the rows when they came, if their targets have come later.
    watch : function or None
        Called with every piece that is learned, in the order of the rows, the states before and after it, its
        predictions, if they were scored, and the tracking after it.
    """

    every_row: bool = False
    in_turn: bool = False
    issued: Innovations | None = None
    watch: Watch | None = None

    def part(self, start: int, stop: int) -> "Call":
        """Return the call for some of its rows."""
        return self if self.issued is None else self._replace(issued=self.issued.part(start, stop))


PLAIN = Call()


def step(
    settings: Settings,
    state: State,
    tracking: Tracking | None,
    blocks: Iterable[Block],
    rows: int,
    call: Call = PLAIN,
) -> tuple[State, Tracking, Counts, list[Innovations]]:
    """Return the state and the tracking after the blocks of a batch, their counts, and the predictions of every row.

    There are predictions only if the call asks for them. `rows` is the number of rows learned before. If the rows come
    in turn, or there were none before, the batch is tracked in pieces, as if they had come one by one, of 64 rows and,
    after many rows, of up to a 64th of them.
    """
    made: list[Innovations] = []
    at_once, counts, before = rows > 0 and not call.in_turn, Counts(), rows
    errors: list[Array] = []
    times: list[Array | None] = []
    for block in blocks:
        if tracking is None:
            targets = block.y.shape[1] if block.y.ndim == 2 else None
            tracking = Tracking.none(targets, "" if settings.diagnose else NOT_ASKED, settings.likelihood)
        if settings.by_time:
            block = replace(block, times=in_order(block.times, state.core.time, block.weights, first=counts.read))
        counts = counts + Counts.of(block)
        learned = 0
        for one in state.steps(block, rows, every_row=call.every_row):
            piece, found, scored = one.piece, one.found, None
            if settings.diagnose and found is not None:
                stop = learned + len(piece)
                times.append(settings.counts(piece.weights))
                scored = found if call.issued is None else call.issued.part(learned, stop)
                tracking = tracking.scored(settings, piece, scored, times[-1])
                tracking = tracking.watched(piece, one.before.belief, rows)
                errors.append(scored.issued if at_once else scored.standardised(piece.y))
            if call.every_row and found is not None:
                made.append(found)
            if call.watch is not None:
                call.watch(one.before, piece, one.after, scored, tracking)
            state = one.after
            learned += len(piece)
            rows += piece.count
            del one, piece, found, scored  # the next piece does not come on top of them
    assert tracking is not None
    state = state.closed()
    if errors:
        z = np.concatenate(errors)
        known = [one for one in times if one is not None]  # all of them, or none
        together = np.full(len(z), len(z)) if at_once else _tracked_together(before, len(z))
        tracking = tracking.issued(z, together, np.concatenate(known) if known else None)
    return state, tracking, counts, made


def _tracked_together(before: int, n: int) -> Array:
    """Return with how many others each of n rows is tracked that come after `before` rows and were not a batch.

    They are 64 rows times a power of two, at most a 64th of the rows before. So they end at the same rows, however a
    source is cut into blocks whose length is a power of two.
    """
    together, start = np.empty(n), 0
    while start < n:
        length = TRACKED_TOGETHER << max(((before + start) // TRACKED_TOGETHER**2).bit_length() - 1, 0)
        stop = min(start + length, n)
        together[start:stop] = stop - start
        start = stop
    return together


class Buffered:
    """A state and its tracking, and the rows since the last fold. Only this class knows of these rows.

    Reading folds them into a copy, so that it does not change the state: a stream gives the same bits whether or not it
    is read, or saved and resumed, on the way. An exception leaves everything unchanged.

    Parameters
    ----------
    settings : Settings

    Attributes
    ----------
    settings : Settings
        The current settings.
    n_rows : int
        The number of rows learned, of positive weight.
    folded : State or None
        The state without the rows since the last fold; None before the first row.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.n_rows = settings, 0
        self.folded: State | None = None
        self._tracking = Tracking.none(likelihood=settings.likelihood)  # without the recent rows
        self._rows: LiveRows | None = None  # made when it is first needed
        self._buffer: RowBuffer | None = None  # of the recent rows; its memory is kept for later ones

    # ---- learning --------------------------------------------------------------------------------------

    def step(self, batch: Block | ArraySource, settings: Settings, call: Call = PLAIN) -> Made | None:
        """Learn a batch without gaps under these settings, and return its predictions if the call asks for them."""
        if call.every_row:
            assert isinstance(batch, Block)
            return self._predicted(batch, settings)
        if call is PLAIN and settings is self.settings and isinstance(batch, Block):
            recent = self._recent if self._rows is None else self._rows
            if recent is not None and recent.waits(batch):
                self._append(batch)
                return None
        self._fold(batch, settings, call)
        return None

    def _predicted(self, batch: Block, settings: Settings) -> Made:
        """Learn a batch of which every row is predicted from all rows before it."""
        recent = self._recent
        short = recent is not None and len(batch.y) <= recent.most_predicted
        if settings is self.settings and short and self._follows(batch):
            return self._append(batch, predict=True)
        if settings.by_time:
            batch = replace(batch, times=in_order(batch.times, self._time, batch.weights))
        made: list[Made] = []
        new = self.copy()  # takes this one's place when all rows have been learned
        for piece in new._pieces(batch, settings):
            if len(piece) == 1 and new._follows(piece):
                made.append(new._append(piece, predict=True))
            else:
                made += new._fold(piece, settings, Call(every_row=True, in_turn=True))
        self.__dict__ = new.__dict__
        return np.concatenate([mean for mean, _ in made]), np.concatenate([std for _, std in made])

    def _pieces(self, batch: Block, settings: Settings) -> Iterator[Block]:
        """Yield a batch whose rows are predicted one by one in the pieces in which it is learned the fastest.

        If only single rows can be predicted exactly, a filter of single rows takes a hundredth of the time of the
        state. It needs a row to start from.
        """
        start = int(self.folded is None and len(batch) > 1 and batch.groups is None)
        if start:
            yield batch.part(0, start)
        single = self._recent is not None and self._recent.are_alone
        if not single or self.settings is not settings or not settings.buffers_rows:
            yield batch.part(start, len(batch))
            return
        check_usable(batch.X, batch.y, batch.weights)
        yield from (batch.part(i, i + 1) for i in range(start, len(batch)))

    def _fold(self, batch: Block | ArraySource, settings: Settings, call: Call) -> list[Made]:
        """Learn a batch after the rows of the buffer."""
        if not call.every_row and batch.weights is not None and not batch.weights.any():
            self.configure(settings)  # rows of weight 0 are no rows
            return []
        blocks: Iterable[Block] = [batch] if isinstance(batch, Block) else batch
        if self.folded is None:
            check(settings, way="one pass")
            state, tracking = started(settings, blocks), None
        else:
            state, tracking = self.after_rows()
            state = state if settings is self.settings else under(state, settings)
        before = state
        if not isinstance(batch, Block) and state.core.whole_batches:
            blocks = batch.blocks_in_order(whole=True)
        state, tracking, counts, made = step(settings, state, tracking, blocks, self.n_rows, call)
        state = state.settled(batch, before)
        self.settings = settings
        self.keep(state, tracking)
        self.n_rows += counts.good
        return [(one.mean, one.std) for one in made]

    def configure(self, settings: Settings) -> None:
        """Replace the settings, under which the rows learned so far are also interpreted from now on."""
        if self.folded is not None and settings is not self.settings and settings.changed(self.settings):
            state, tracking = self.after_rows()
            self.keep(under(state, settings), tracking)
        self.settings = settings

    # ---- the buffer ------------------------------------------------------------------------------------

    @property
    def _recent(self) -> "LiveRows | None":
        """The rows since the last fold; None if the state is not one of rows that are folded together."""
        if self._rows is None and self.folded is not None:
            self._rows = recent_rows(self.settings, self.folded, self._tracking, self.n_rows, self._buffer)
            self._buffer = self._buffer if self._rows is None else self._rows.buffer
        return self._rows

    def _follows(self, batch: Block) -> bool:
        """Whether a filter predicts and learns a batch. Rows that fill the buffer are folded: none may follow them."""
        if self._recent is not None and self._recent.are_full:
            self.keep(*self.after_rows())
        recent = self._recent
        return recent is not None and recent.waits(batch) and recent.following() is not None

    def _append(self, batch: Block, *, predict: bool = False) -> Made:
        """Learn a batch that waits; if `predict`, return its predictions."""
        recent, length = self._rows, len(batch.y)
        assert recent is not None
        crosses = length > 1 and recent.crosses_cut(batch)
        if recent.are_full or crosses:
            self.keep(*self.after_rows())
            if crosses:
                assert self.folded is not None
                self.folded = self.folded.with_core(_with_new_scorer)
            recent = self._recent
            assert recent is not None
        made: Made = recent.append(batch, predict=predict)
        self.n_rows += length
        if recent.folds_when_full and recent.are_full:
            self.keep(*self.after_rows())
        return made

    def after_rows(self) -> tuple[State, Tracking]:
        """Return the state and the tracking after the rows of the buffer have been folded."""
        assert self.folded is not None
        return (self._rows.scored()[0], self._rows.tracked()) if self._rows else (self.folded, self._tracking)

    def keep(self, state: State, tracking: Tracking, *, fresh: bool = False) -> None:
        """Assign a new state and tracking, which include all rows; if `fresh`, of other rows than before."""
        self.folded, self._tracking, self._rows = state, tracking, None
        if fresh:
            self._buffer = None
        elif self._buffer is not None:
            self._buffer.clear()

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state after all rows."""
        assert self.folded is not None, "nothing has been learned yet"
        return self._rows.after if self._rows else self.folded

    @property
    def tracking(self) -> Tracking:
        """The score and the quantiles after all rows."""
        return self._rows.tracked() if self._rows else self._tracking

    @property
    def quantiles(self) -> Quantiles:
        """The tracked quantiles of conformal intervals after all rows."""
        return self._rows.quantiles() if self._rows else self._tracking.quantiles

    @property
    def noise(self) -> Noise:
        """The noise variance used in predictions, and its degrees of freedom."""
        row_filter = None if self._rows is None else self._rows.followed()
        return self.state.belief.noise if row_filter is None else Noise(*map(np.asarray, row_filter.noise()))

    @property
    def structure_doubt(self) -> str:
        """What a structure drops, as of the last fold, in a sentence; empty if that is nothing."""
        return "" if self.folded is None or self.settings.structure is None else self.folded.belief.std_doubt

    @property
    def is_linear(self) -> bool:
        """Whether the information of the rows has the moments of their features."""
        return self.folded is not None and self.folded.core.linear_information is not None

    @property
    def _time(self) -> float | None:
        """The time of the last row, if rows are forgotten by time."""
        if self._rows and self._rows.buffer.time is not None:
            return self._rows.buffer.time
        return None if self.folded is None else self.folded.core.time

    def live(self, X: Any, *, alone: bool = True, offsets: bool = False) -> Any:
        """Return the row-by-row filter, if there is one; a prediction of one row then costs O(d^2).

        It predicts batches of any size, so that all predictions between two folds come from the same estimate. The
        argument `offsets` is whether the rows have them. If that is wrong there is no filter, and the state says so.
        """
        if isinstance(X, np.ndarray) is (self.settings.structure is not None):
            return None  # a filter of a structure is one of sparse rows, and the others are of dense ones
        recent, single = self._rows, alone and X.shape[0] == 1
        if recent is None and (single or not self.is_linear):
            recent = self._recent
        if recent is None or recent.how.offsets is not offsets:
            return None
        return recent.following() if single else recent.followed()

    # ---- saving ----------------------------------------------------------------------------------------

    @property
    def n_held(self) -> int:
        """The number of rows that are held as they came."""
        recent = 0 if self._rows is None else len(self._rows)
        detector = self._tracking.detector
        recent += 0 if detector is None else len(detector.held)
        return recent + (0 if self.folded is None else self.folded.core.n_held)

    def release_rows(self) -> None:
        """Fold the rows that are held; raise a ValueError during a warm-up, which cannot do without its rows."""
        state, tracking = self.after_rows()
        self.keep(state.without_rows(), released(tracking), fresh=True)

    def saved(self) -> dict[str, Any]:
        """Return the state as values that can be saved; see `kalprox.base.tree`."""
        if self._rows and not self._rows.buffer:  # a filter is all that is left of these rows
            self.keep(*self.after_rows())
        assert self.folded is not None
        waiting = {"waiting": self._rows.buffer.saved()} if self._rows else {}
        return {"sizes": self.folded.core.sizes, "belief": self.folded, "tracking": self._tracking, **waiting}

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, sizes: Sizes) -> "Buffered":
        """Return what `saved` returned these values of."""
        new = cls(settings)
        new.folded = state = restored(settings, saved, "belief", sizes)
        new._tracking = Tracking.restored(settings, saved, "tracking", sizes)
        new.n_rows = saved.count("n_rows")
        if "waiting" in saved:
            columns = state.core.sizes["o"]
            new._buffer = RowBuffer.restored(sizes["d"] or 0, columns, saved)
            before = new.n_rows - new._buffer.n
            new._rows = recent_rows(settings, state, new._tracking, before, new._buffer)
            expect(new._rows is not None)
        return new

    def copy(self) -> "Buffered":
        """Return an independent copy."""
        new = object.__new__(Buffered)
        new.__dict__ |= self.__dict__
        new._rows = None if self._rows is None else self._rows.copy()
        new._buffer = None if new._rows is None else new._rows.buffer
        return new


def _with_new_scorer(core: Core) -> Core:
    """Return the state with an estimate of all its rows in place of the one that predicted the last of them."""
    assert isinstance(core, Exact)
    return replace(core, scorer=None)
