"""How the rows of a batch are learned: each is predicted, scored, and then folded."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from kalprox._arrays import Array
from kalprox.learning.belief import Belief
from kalprox.learning.innovations import Innovations
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.sources import Block, Counts
from kalprox.sources.times import in_order

__all__ = ["NOT_ASKED", "Watch", "learned"]

Watch = Callable[[Belief, Block, Belief], None]

NOT_ASKED = "the score was not asked for: set diagnose=True"
_PIECE = 64  # rows whose intervals are tracked together at least, if none was issued for a whole batch


def learned(
    settings: Settings,
    belief: Belief,
    tracking: Tracking | None,
    blocks: Iterable[Block],
    rows: int,
    made: list[Innovations] | None = None,
    *,
    in_turn: bool = False,
    issued: Innovations | None = None,
    watch: Watch | None = None,
) -> tuple[Belief, Tracking, Counts]:
    """Return the belief and the tracking after the blocks of a batch, and their counts. Every row is predicted first.

    `rows` is the number of rows learned before. If `made` is a list, every row is predicted from all rows before it,
    and the innovations are appended to the list. With `in_turn`, or if there were no rows before, no intervals were
    issued for the batch as a whole: it is tracked in pieces, as if they had come one by one, of 64 rows and, after many
    rows, of up to a 64th of them. The predictions `issued` for the rows of one block, if given, are scored in place of
    those that are possible now. `watch` is called with every piece that is learned, and the beliefs before and after
    it.
    """
    exact, at_once, counts, before = made is not None, rows > 0 and not in_turn, Counts(), rows
    errors: list[Array] = []
    times: list[Array | None] = []
    for block in blocks:
        if tracking is None:
            targets = block.y.shape[1] if block.y.ndim == 2 else None
            tracking = Tracking.none(targets, "" if settings.diagnose else NOT_ASKED, settings.likelihood)
        if settings.by_time:
            block = replace(block, times=in_order(block.times, belief.time, block.weights, first=counts.read))
        counts, start = counts + Counts.of(block), 0
        while start < len(block):
            if not (exact or settings.needs_innovations):
                after, start = belief.learn(block), len(block)
                if watch is not None:
                    watch(belief, block, after)
                belief = after
                continue
            with np.errstate(over="ignore", invalid="ignore"):  # rows too large are refused as they are learned
                stop = belief.next_piece(block, start, rows, exact=exact)
            piece = block.part(start, stop)
            after, found = belief.scored(piece, known=rows > 0, exact=exact)
            after = after.observing(piece, found, belief)
            if settings.diagnose:
                times.append(settings.counts(piece.weights))
                scored = found if issued is None else issued.part(start, stop)
                tracking = tracking.scored(settings, piece, scored, times[-1])
                tracking = tracking.watched(piece, belief, rows)
                errors.append(scored.issued if at_once else scored.standardised(piece.y))
            if made is not None:
                made.append(found)
            if watch is not None:
                watch(belief, piece, after)
            belief, start, rows = after, stop, rows + piece.count
    assert tracking is not None
    belief = belief.closed()
    if errors:
        z, start = np.concatenate(errors), 0
        known = [one for one in times if one is not None]  # all of them, or none
        all_times = np.concatenate(known) if known else None
        while start < len(z):
            some = slice(start, start + (len(z) if at_once else _tracked_together(before + start)))
            tracking = tracking.issued(z[some], None if all_times is None else all_times[some])
            start = some.stop
    return belief, tracking, counts


def _tracked_together(rows: int) -> int:
    """Return how many rows after so many others are tracked together: 64 times a power of two, at most a 64th of them.

    Pieces then end at the same rows, however a source is cut into blocks whose length is a power of two.
    """
    return _PIECE << max((rows // _PIECE**2).bit_length() - 1, 0)
