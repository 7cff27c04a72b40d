"""Sparse rows in an information with a structure: no row is ever made dense on all columns."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_finite
from kalprox.large.block_diagonal import BlockDiagonal
from kalprox.large.block_diagonal import squares as squares_of
from kalprox.large.low_rank import PlusLowRank, Truncated, combined, inner_root, largest

__all__ = ["Weighed", "fold_sparse"]

Structured = Any  # kalprox.large.information.Structured, which imports this file

_ROWS = 64  # that are made dense together on the columns that they touch, at least


class Weighed(NamedTuple):
    """Rows, which may be sparse, and what each of them has besides."""

    D: Any
    targets: Array
    weights: Array
    counts: Array
    squares: Array


def fold_sparse(
    info: Structured, rows: Weighed, longest: int, keep: Callable[[Structured, Truncated], Structured]
) -> Structured:
    """Return an information of NumPy arrays with a block of sparse rows; see `Structured.fold`.

    Rows are dense on the columns that a piece of them touches, and nowhere else, unless the structure has dense blocks
    on its diagonal. A diagonal takes O(number of entries); directions have all columns, O(d rank^2) for a piece.

    Parameters
    ----------
    info : Structured
    rows : Weighed
    longest : int
        The number of rows of a piece; at least 64 are taken.
    keep : callable
        Returns an information with a precision that was truncated.
    """
    pieces, blocks = _pieces(rows, max(_ROWS, longest)), bool(info.precision.base.layout.groups)
    if not info.rank and not blocks:
        return _on_the_diagonal(info, pieces)
    for piece in pieces:
        info = info.fold(piece.D.toarray(), *piece[1:]) if blocks else _with_directions(info, piece, keep)
    return info


def _pieces(rows: Weighed, longest: int) -> Iterator[Weighed]:
    """Yield the rows of positive weight, `longest` at a time."""
    used = np.flatnonzero(rows.weights > 0)
    for start in range(0, len(used), longest):
        some = used[start : start + longest]
        piece = Weighed(*(a[some] for a in rows))
        check_finite("D", piece.D.data)
        check_finite("targets", piece.targets)
        yield piece


def _touched(D: Any) -> tuple[Array, Array]:
    """Return the columns of a sparse matrix in CSR format that have entries, and these columns as an array."""
    columns, at = np.unique(D.indices, return_inverse=True)
    dense = np.zeros((D.shape[0], len(columns)))
    np.add.at(dense, (np.repeat(np.arange(D.shape[0]), np.diff(D.indptr)), at), D.data)  # entries may occur twice
    return columns, dense


def _on_the_diagonal(info: Structured, pieces: Iterable[Weighed]) -> Structured:
    """Fold pieces into an information whose precision is diagonal. O(d), and the number of entries of the rows."""
    p, mean, whole = info.precision.base.p.copy(), info.mean.copy(), info
    p0 = np.broadcast_to(info.prior_precision, (info.d,))
    for piece in pieces:
        columns, D = _touched(piece.D)
        info = replace(
            info,
            precision=PlusLowRank.of(BlockDiagonal(p[columns]), np.zeros((0, len(columns)))),
            mean=mean[columns],
            prior_mean=whole.prior_mean[columns],
            prior_precision=p0[columns],
        ).fold(D, *piece[1:])
        p[columns], mean[columns] = info.precision.base.p, info.mean
    precision = PlusLowRank.of(BlockDiagonal(p), np.zeros((0, whole.d)))
    prior = {"prior_mean": whole.prior_mean, "prior_precision": whole.prior_precision}
    return replace(info, precision=precision, mean=mean, **prior)


def _with_directions(
    info: Structured, piece: Weighed, keep: Callable[[Structured, Truncated], Structured]
) -> Structured:
    """Fold a piece into an information whose precision is diagonal, but for directions, of which `rank` stay."""
    P = info.precision
    columns, D = _touched(piece.D)
    root, p, k = np.sqrt(piece.weights), P.base.p[columns], len(P.W)
    D = root[:, None] * D
    e, solved = root * (piece.targets - piece.D @ info.mean), D / p
    gram = np.empty((k + len(e), k + len(e)))
    gram[:k, :k], gram[k:, k:] = P.gram, D @ solved.T
    gram[k:, :k] = solved @ P.W[:, columns].T
    gram[:k, k:] = gram[k:, :k].T
    C = inner_root(gram)
    c = C.T @ (C[:, k:] @ e)
    mean = info.mean + P.base.solve(c[:k] @ P.W)
    mean[columns] += (c[k:] @ D) / p
    added = np.zeros(info.d)
    added[columns] = squares_of(D)
    info = replace(
        info,
        mean=mean,
        rows=info.rows + piece.counts.sum(),
        squares=info.squares + piece.squares.sum(),
        rss=info.rss_with(e @ c[k:], piece.counts.sum()),
        traces=info.traces + np.array([info.trace(added), 0.0]),
    )
    if len(gram) <= info.rank:
        W = np.zeros((len(gram), info.d))
        W[:k], W[k:, columns] = P.W, D
        return replace(info, precision=PlusLowRank(P.base, W, gram), used=len(gram))

    def mixed(U: Array) -> Array:
        found = combined(U[:, :k], P.W)
        found[:, columns] += U[:, k:] @ D
        return found

    return keep(info, largest(P.base, gram, info.rank, squares_of(P.W) + added, mixed, P.W))
