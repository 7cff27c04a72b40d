"""One step: how the rows of a batch are learned. Each is predicted, scored, and then folded."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.learning.innovations import Innovations
from kalprox.learning.settings import Settings
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking
from kalprox.sources import Block, Counts
from kalprox.sources.times import in_order

__all__ = ["NOT_ASKED", "PLAIN", "TRACKED_TOGETHER", "Call", "Watch", "step"]

Watch = Callable[[State, Block, State, Innovations | None], None]

NOT_ASKED = "the score was not asked for: set diagnose=True"
TRACKED_TOGETHER = 64  # rows whose intervals are tracked together at least, if none was issued for a whole batch


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
        Called with every piece that is learned, in the order of the rows, the states before and after it, and its
        predictions, if they were scored.
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
                call.watch(one.before, piece, one.after, scored)
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
