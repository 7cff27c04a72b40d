"""Rows of short batches, until there are enough of them to be folded in together."""

from dataclasses import dataclass, field

import numpy as np

from kalprox._arrays import Array

__all__ = ["Waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The first n rows of two arrays. Longer ones share the arrays: rows are written once, and never changed."""

    X: Array  # (capacity, d)
    y: Array  # (capacity,) or (capacity, k)
    n: int = 0
    written: list[int] = field(default_factory=lambda: [0])  # [how many rows of the arrays are taken], shared

    @classmethod
    def none(cls, d: int, targets: int | None) -> "Waiting":
        return cls(np.empty((0, d)), np.empty((0,) if targets is None else (0, targets)))

    def __len__(self) -> int:
        return self.n

    def followed_by(self, X: Array, y: Array) -> "Waiting":
        """These rows and then those. O(rows of X), on average."""
        n = self.n + len(y)
        A, b, written = self.X, self.y, self.written
        if written[0] != self.n or n > len(b):  # another one has written there, or there is no room
            A, b = (np.concatenate([a[: self.n], np.empty((n, *a.shape[1:]))]) for a in (A, b))
            written = [0]
        A[self.n : n], b[self.n : n], written[0] = X, y, n
        return Waiting(A, b, n, written)

    @property
    def rows(self) -> tuple[Array, Array, None]:
        """As one block."""
        return self.X[: self.n], self.y[: self.n], None
