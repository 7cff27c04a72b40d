"""Merging the totals of partitions as a binary tree whose shape depends on the partitions' indices alone."""

from kalprox.engines.base import PartialFold

__all__ = ["Tree", "add"]


def add(left: PartialFold, right: PartialFold) -> PartialFold:
    """The sum of two folds, in this order. Adding a fold without good rows changes no bit of the total."""
    total = right.total if left.total is None else left.total if right.total is None else left.total + right.total
    return PartialFold(total, left.summaries | right.summaries)


class Tree:
    """Takes the folds of partitions in any order, and merges two neighbours as soon as both are there.

    Partition i is merged with partition i ^ 1, their sum with the sum of the next two, and so on. The shape of the
    tree depends on the indices alone, so the total is the same bit for bit whichever partition finishes first. A
    subtree of 2^k partitions that starts at a multiple of 2^k may be merged elsewhere first.

    >>> tree = Tree()
    >>> for index in (2, 0, 1):
    ...     tree.put(index, PartialFold(10 ** index))
    >>> tree.result().total
    111
    """

    def __init__(self) -> None:
        self._unmerged: dict[tuple[int, int], PartialFold] = {}

    def put(self, index: int, folded: PartialFold, level: int = 0) -> None:
        """Add the fold of 2^level partitions: those numbered index * 2^level and up."""
        while (other := self._unmerged.pop((level, index ^ 1), None)) is not None:
            folded = add(other, folded) if index & 1 else add(folded, other)
            level, index = level + 1, index >> 1
        self._unmerged[level, index] = folded

    def result(self) -> PartialFold:
        """The fold of all partitions; a subtree without a neighbour moves up a level unchanged."""
        while len(self._unmerged) > 1:
            level, index = min(self._unmerged)
            self.put(index >> 1, self._unmerged.pop((level, index)), level + 1)
        return next(iter(self._unmerged.values()), PartialFold(None))
