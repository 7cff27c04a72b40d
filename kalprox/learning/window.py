"""A window of the last rows, whose information is a sum and never a difference."""

from dataclasses import replace

import numpy as np

from kalprox.base.tree import Saved, Sizes, expect, leaf, state
from kalprox.information import Information, merge
from kalprox.sources import Block
from kalprox.sources.weighting import counts_of

__all__ = ["WindowRows"]

_CHUNK = 64  # rows, or as many as columns, that are left out of the window one by one


@state
class WindowRows:
    """The rows of a window in two stacks: an old one, from whose start rows are left out, and a new one at its end.

    The old stack is cut into chunks, and has the information of the chunks after each of them; the new one has that of
    all its rows. The information of the window is the sum of what is left of the first chunk, of the chunks after it,
    and of the new rows. When the old stack is used up, the new one takes its place. Nothing is ever subtracted, so that
    no digits are lost however long the stream is, as they would be by downdating. A row is folded three times or so,
    and the sum takes O(d^3); besides the rows of the window, there are as many numbers in the old stack.

    Attributes
    ----------
    size : int
        The number of rows of a full window.
    kind : str
        What the weights mean, one of `kalprox.sources.weighting.WEIGHT_KINDS`.
    old, new : tuple of Block
        The chunks of the two stacks.
    rest : tuple of Information
        For each chunk of the old stack, the information of the chunks after it.
    added : Information
        That of the new stack.
    skipped : int
        The number of rows of the first old chunk that have left the window.
    """

    size: int
    kind: str
    old: tuple[Block, ...]
    rest: tuple[Information, ...] = leaf(given=True)
    new: tuple[Block, ...]
    added: Information
    skipped: int = 0

    def _check_restored(self, _: Sizes) -> None:
        """Raise a ValueError if there are too many rows."""
        expect(0 <= len(self) <= self.size)
        expect(self.skipped < len(self.old[0]) if self.old else self.skipped == 0)

    @classmethod
    def empty(cls, size: int, kind: str, d: int, targets: int | None) -> "WindowRows":
        """Return a window without rows."""
        return cls(size, kind, (), (), (), _zero(d, targets))

    def __len__(self) -> int:
        return sum(map(len, (*self.old, *self.new))) - self.skipped

    def after(self, block: Block) -> "WindowRows":
        """Return the window after a block of rows; rows of weight 0 are no rows."""
        rows = Block(block.X, block.y, block.weights)
        rows = rows if rows.weights is None else rows.at(rows.weights > 0)
        if not len(rows):
            return self
        if len(rows) >= self.size:
            start = self.empty(self.size, self.kind, self.added.d, self._targets)
            return start._with(rows.part(len(rows) - self.size, len(rows)))
        found = self._with(rows)
        extra = len(found) - self.size
        return found if extra <= 0 else found._without(extra)

    @classmethod
    def restored(cls, saved: Saved, name: str, sizes: Sizes) -> "WindowRows":
        """Return the window that was saved under `name`, whose sums of chunks are made again."""
        found = saved.tree(cls, name, sizes, rest=())
        return replace(found, rest=found._rest(found.old))

    @property
    def _targets(self) -> int | None:
        return self.added.targets

    def _with(self, rows: Block) -> "WindowRows":
        rows = replace(rows, X=np.array(rows.X), y=np.array(rows.y))
        added, new, length = self._folded(self.added, rows), list(self.new), max(_CHUNK, rows.X.shape[1])
        if new and len(new[-1]) < length:
            rows = Block.joined([new.pop(), rows])
        new += [rows.part(i, i + length) for i in range(0, len(rows), length)]
        return replace(self, new=tuple(new), added=added)

    def _without(self, rows: int) -> "WindowRows":
        """Return the window without its oldest rows."""
        found, skipped = self, self.skipped + rows
        while skipped:
            if not found.old:
                found = found._turned()
            if skipped < len(found.old[0]):
                break
            skipped -= len(found.old[0])
            found = replace(found, old=found.old[1:], rest=found.rest[1:])
        return replace(found, skipped=skipped)

    def _turned(self) -> "WindowRows":
        """Return the window with its new rows as the old ones."""
        zero = _zero(self.added.d, self._targets)
        return replace(self, old=self.new, rest=self._rest(self.new), new=(), added=zero)

    def _rest(self, chunks: tuple[Block, ...]) -> tuple[Information, ...]:
        rest = [_zero(self.added.d, self._targets)]
        for chunk in chunks[:0:-1]:
            rest.append(merge(self._folded(_zero(self.added.d, self._targets), chunk), rest[-1]))
        return tuple(rest[::-1][: len(chunks)])

    def _folded(self, info: Information, rows: Block) -> Information:
        return info.fold(rows.X, rows.y, rows.weights, counts_of(rows.weights, self.kind))

    @property
    def information(self) -> Information:
        """The information of the rows of the window. O(c d^2 + d^3), for chunks of c rows."""
        if not self.old:
            return self.added
        first = self.old[0].part(self.skipped, len(self.old[0]))
        return merge(merge(self._folded(_zero(self.added.d, self._targets), first), self.rest[0]), self.added)


def _zero(d: int, targets: int | None) -> Information:
    zero = Information.zero(d, targets)
    return replace(zero, T=zero.T[:1])  # the triangle has no more rows than were learned
