"""A block-diagonal precision matrix: a diagonal, with dense blocks on some groups of coordinates."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree, static
from kalprox.base.tree import leaf
from kalprox.linalg.triangle import product


@dataclass(frozen=True)
class Layout:
    """Which coordinates have a dense block together; the others have a diagonal.

    Parameters
    ----------
    groups : tuple of tuple of int
        The coordinates of each dense block.
    """

    groups: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, groups: Iterable[Iterable[int]]) -> "Layout":
        """Return the layout of these groups; a group of one coordinate needs no block."""
        return cls(tuple(g for g in (tuple(int(i) for i in group) for group in groups) if len(g) > 1))

    @cached_property
    def index(self) -> tuple[np.ndarray, ...]:
        """The coordinates of the blocks, one array of shape (n, s) for the n blocks of each size s."""
        sizes = sorted({len(group) for group in self.groups})
        return tuple(np.array([group for group in self.groups if len(group) == s]) for s in sizes)

    @cached_property
    def _hash(self) -> int:
        return hash(self.groups)

    def __hash__(self) -> int:
        return self._hash


@pytree
class BlockDiagonal:
    """A positive definite matrix B: a diagonal, except for dense blocks on groups of coordinates.

    Parameters
    ----------
    p : array of shape (d,)
        The diagonal; 1 for the coordinates of dense blocks.
    dense : tuple of arrays of shape (n, s, s)
        The n blocks of each size s, in the order of the layout.
    layout : Layout
    """

    p: Array = leaf("p", sign="positive", values="moderate")
    dense: tuple[Array, ...] = leaf(values="moderate", default=())
    layout: Layout = static(default=Layout())

    @classmethod
    def diagonal(cls, p: Array, layout: Layout) -> "BlockDiagonal":
        """Return the diagonal matrix diag(p), in which the blocks of a layout are diagonal too."""
        xp = namespace(p)
        dense = tuple(p[index][..., None] * xp.eye(index.shape[1], dtype=p.dtype)[None] for index in layout.index)
        return cls(_put(p, layout, [xp.ones(index.shape, p.dtype) for index in layout.index]), dense, layout)

    @cached_property
    def _roots(self) -> tuple[Array, ...]:
        """L^-1 for each dense block L L'."""
        xp = namespace(self.p)
        return tuple(xp.linalg.inv(xp.linalg.cholesky(A)) for A in self.dense)

    def _blocks(self, *stacks: tuple[Array, ...]) -> Iterator[tuple[Any, ...]]:
        return zip(self.layout.index, *stacks, strict=True)

    def _times(self, x: Array, p: Array, stacks: tuple[Array, ...], *, transposed: bool = False) -> Array:
        """Return the products of diag(p) and of stacks of dense blocks with a vector, or with each row of a matrix."""
        found = [_turned(A, x[..., i], transposed=transposed) for i, A in self._blocks(stacks)]
        return _put(x * (p if x.ndim == 1 else p[None]), self.layout, found)

    def solve(self, x: Array) -> Array:
        """Return B^-1 x for a vector, or for each row of a matrix."""
        found = [_turned(Li, _turned(Li, x[..., i]), transposed=True) for i, Li in self._blocks(self._roots)]
        return _put(x / (self.p if x.ndim == 1 else self.p[None]), self.layout, found)

    def apply(self, x: Array) -> Array:
        """Return B x for a vector, or for each row of a matrix."""
        return self._times(x, self.p, self.dense)

    def whiten(self, x: Array) -> Array:
        """Return L^-1 x for a vector, or for each row of a matrix, with B = L L'."""
        return self._times(x, self._root_of_inverse, self._roots)

    def unwhiten(self, x: Array) -> Array:
        """Return L^-T x for a vector, or for each row of a matrix, with B = L L'."""
        return self._times(x, self._root_of_inverse, self._roots, transposed=True)

    @property
    def _root_of_inverse(self) -> Array:
        return namespace(self.p).sqrt(1 / self.p)

    def _with(self, p: Array, dense: Iterable[Array]) -> "BlockDiagonal":
        """Return a matrix of the same layout with another diagonal and other dense blocks."""
        return replace(self, p=_put(p, self.layout, [self.p[i] for i in self.layout.index]), dense=tuple(dense))

    def plus_rows(self, V: Array, squared: Array | None = None, mix: Array | None = None) -> "BlockDiagonal":
        """Return B plus those entries of V'V that are in its blocks or on its diagonal.

        Parameters
        ----------
        V : array of shape (k, d)
        squared : array of shape (d,), optional
            The diagonal of V'V, if it is known.
        mix : array of shape (m, k), optional
            The rows to add are mix V instead, and `squared` is their diagonal.
        """
        dense = (A + _gram_stack(rows) for A, rows in zip(self.dense, self._parts(V, mix), strict=True))
        return self._with(self.p + (squares(V) if squared is None else squared), dense)

    def _parts(self, V: Array, mix: Array | None) -> list[Array]:
        """Return the columns of V, or of mix V, of the dense blocks, each of shape (m, n, s)."""
        rows = [V[:, i].reshape(len(V), -1) for i in self.layout.index]
        rows = rows if mix is None else [product(mix, columns) for columns in rows]
        return [columns.reshape((-1, *i.shape)) for columns, i in zip(rows, self.layout.index, strict=True)]

    def square_within(self, V: Array, squared: Array, mix: Array | None = None) -> Array:
        """Return the sum of the squares of those entries of V'V that `plus_rows` adds, in the metric of B."""
        xp = namespace(self.p)
        single = _put(squared / self.p, self.layout, [xp.zeros(i.shape, self.p.dtype) for i in self.layout.index])
        total = (single**2).sum()
        for Li, rows in zip(self._roots, self._parts(V, mix), strict=True):
            turned = xp.moveaxis(_turned(Li, rows), 1, 0)
            total = total + ((turned @ xp.swapaxes(turned, 1, 2)) ** 2).sum()
        return total

    def plus_diagonal(self, h: Array) -> "BlockDiagonal":
        """Return B + diag(h)."""
        return self._with(self.p + h, (A + _diagonals(h[i]) for i, A in self._blocks(self.dense)))

    def scaled(self, rho: Any) -> "BlockDiagonal":
        """Return rho B."""
        return self._with(rho * self.p, (rho * A for A in self.dense))

    def plus(self, other: "BlockDiagonal") -> "BlockDiagonal":
        """Return the sum with another matrix of the same layout."""
        return self._with(self.p + other.p, (a + b for a, b in zip(self.dense, other.dense, strict=True)))

    def restricted(self, free: Array) -> "BlockDiagonal":
        """Return B on the free coordinates, and the identity on the others."""
        xp, f = namespace(self.p), free.astype(self.p.dtype)
        dense = (A * f[i][:, :, None] * f[i][:, None, :] + _diagonals(1 - f[i]) for i, A in self._blocks(self.dense))
        return self._with(xp.where(free, self.p, 1), dense)

    def inverse_diagonal(self) -> Array:
        """Return the diagonal of B^-1, shape (d,)."""
        return _put(1 / self.p, self.layout, [(Li**2).sum(axis=1) for Li in self._roots])

    def sandwich_diagonal(self, h: Array) -> Array:
        """Return the diagonal of B^-1 diag(h) B^-1, shape (d,)."""
        xp = namespace(self.p)
        found = []
        for i, Li in self._blocks(self._roots):
            inverse = xp.swapaxes(Li, 1, 2) @ Li
            found.append((inverse**2 * h[i][:, None, :]).sum(axis=2))
        return _put(h / self.p**2, self.layout, found)


def squares(V: Array) -> Array:
    """Return the diagonal of V'V, shape (d,)."""
    return np.einsum("kd,kd->d", V, V) if namespace(V) is np else (V**2).sum(axis=0)


def _put(x: Array, layout: Layout, found: list[Array]) -> Array:
    """Return x with the entries of the blocks replaced."""
    on_host = namespace(x) is np
    x = x.copy() if on_host and found else x
    for index, values in zip(layout.index, found, strict=True):
        if on_host:
            x[..., index] = values
        else:
            x = x.at[..., index].set(values)
    return x


def _turned(A: Array, x: Array, *, transposed: bool = False) -> Array:
    """Return A x, or A'x, for each block A of a stack (n, s, s) and its part of the rows x, (..., n, s)."""
    if len(A) == 1:  # one large block, by a matrix product
        rows = x[..., 0, :]
        M = A[0] if transposed else A[0].T
        return (rows @ M if rows.ndim == 1 else product(rows, M))[..., None, :]
    xp = namespace(A)
    return xp.einsum("nji,...nj->...ni" if transposed else "nij,...nj->...ni", A, x)


def _gram_stack(V: Array) -> Array:
    """Return V'V for each block of columns, (n, s, s), of V of shape (k, n, s)."""
    xp = namespace(V)
    columns = xp.moveaxis(V, 1, 0)
    return xp.swapaxes(columns, 1, 2) @ columns


def _diagonals(h: Array) -> Array:
    """Return diagonal matrices, shape (n, s, s), with the entries h, shape (n, s)."""
    return h[..., None] * namespace(h).eye(h.shape[-1], dtype=h.dtype)[None]
