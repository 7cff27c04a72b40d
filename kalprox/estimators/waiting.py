"""Rows of short batches, and what was predicted of them, until there are enough to be folded in together."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kalprox._arrays import Array

__all__ = ["Predicted", "Waiting"]

Predicted = tuple[Any, Any, Any, int]  # mean, std and dof, of y's shape or one for all; and of how many rows, or 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """The first n rows of some arrays. Longer ones share the arrays: rows are written once, and never changed."""

    parts: tuple[Array, ...]  # X (capacity, d); y, mean, std, dof (capacity,) or (capacity, k); together (capacity,)
    n: int = 0
    written: list[int] = field(default_factory=lambda: [0])  # [how many rows of the arrays are taken], shared

    @classmethod
    def none(cls, d: int, targets: int | None) -> "Waiting":
        of_y = (0,) if targets is None else (0, targets)
        return cls(tuple(map(np.empty, ((0, d), of_y, of_y, of_y, of_y, (0,)))))

    def __len__(self) -> int:
        return self.n

    def fits(self, X: Array, y: Array) -> bool:
        """Whether these rows have the shapes of those that wait."""
        return X.shape[1:] == self.parts[0].shape[1:] and y.shape[1:] == self.parts[1].shape[1:]

    def followed_by(self, *rows: Any) -> "Waiting":
        """These rows, and then those: X, y, mean, std, dof, together. O(rows), on average."""
        n, parts, written = self.n + len(rows[0]), self.parts, self.written
        if written[0] != self.n or n > len(parts[0]):  # another one has written there, or there is no room
            parts = tuple(np.concatenate([a[: self.n], np.empty((n, *a.shape[1:]))]) for a in parts)
            written = [0]
        for a, new in zip(parts, rows, strict=True):
            a[self.n : n] = new
        written[0] = n
        return Waiting(parts, n, written)

    @property
    def rows(self) -> tuple[Array, Array, None]:
        """X, y and no weights: one block."""
        X, y, *_ = self.all
        return X, y, None

    @property
    def all(self) -> tuple[Array, ...]:
        return tuple(a[: self.n] for a in self.parts)
