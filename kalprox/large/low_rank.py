"""A precision matrix B + W'W: block-diagonal plus a few directions, solved by Woodbury's identity; its inverse."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array, namespace, pytree
from kalprox.base.checks import concrete
from kalprox.base.tree import leaf
from kalprox.large.block_diagonal import BlockDiagonal, squares
from kalprox.linalg.triangle import lapack, product, solve_triangular

_LARGEST = 5000  # coordinates up to which a covariance is made as one matrix


@pytree
class PlusLowRank:
    """P = B + W'W with a block-diagonal B and the directions W, one per row. O(d k) numbers.

    Parameters
    ----------
    base : BlockDiagonal
    W : array of shape (k, d)
        The directions. Rows of zeros mean nothing.
    gram : array of shape (k, k)
        W B^-1 W'.
    """

    base: BlockDiagonal
    W: Array = leaf("w,p", values="moderate")
    gram: Array = leaf("w,w", values="moderate")

    @classmethod
    def of(cls, base: BlockDiagonal, W: Array) -> "PlusLowRank":
        """Return B + W'W. O(d k^2)."""
        return cls(base, W, cross(W, base.solve(W)))

    @property
    def d(self) -> int:
        return int(self.base.p.shape[0])

    @property
    def rounding(self) -> Array:
        """The rounding error of W'W along its largest direction in the metric of B, which loses as many digits.

        Where it is not small, means and variances along other directions have lost their digits: use float64.
        """
        eps = float(np.finfo(np.dtype(self.gram.dtype)).eps)
        return eps * namespace(self.gram).max(self.gram.diagonal(), initial=0)

    @cached_property
    def _root(self) -> Array:
        """C^-1 with C C' = I + W B^-1 W'."""
        return inner_root(self.gram)

    @cached_property
    def _inner(self) -> Array:
        """(I + W B^-1 W')^-1."""
        return self._root.T @ self._root

    def apply(self, x: Array) -> Array:
        """Return P x for a vector, or for each row of a matrix."""
        return self.base.apply(x) + combined(self.coordinates(x), self.W)

    def quadratic(self, x: Array) -> Array:
        """Return x'P x for a vector, which reads W once."""
        return (x * self.base.apply(x)).sum() + (self.coordinates(x) ** 2).sum()

    def coordinates(self, x: Array) -> Array:
        """Return W x for a vector, or for each row of a matrix: shape (k,) or (n, k)."""
        return product(self.W, x) if x.ndim == 1 else cross(x, self.W)

    def inner(self, t: Array) -> Array:
        """Return (I + W B^-1 W')^-1 t for a vector t, or for each row of a matrix."""
        return (t @ self._inner).astype(t.dtype)

    def solve(self, x: Array) -> Array:
        """Return P^-1 x for a vector, or for each row of a matrix. O(d k) per row."""
        t = self.inner(self.coordinates(self.base.solve(x)))
        return self.base.solve(x - combined(t, self.W))

    def leverage(self, D: Array) -> Array:
        """Return x'P^-1 x for each row x of D, shape (n,).

        It is the sum of |L^-1 (x - W't)|^2 and |t|^2, with t = (I + W B^-1 W')^-1 W B^-1 x and B = L L': a difference
        of two numbers would lose its digits where the prior is vague.
        """
        if scipy.sparse.issparse(D):
            return self._sparse_leverage(D)
        t = self.inner(self.coordinates(self.base.solve(D)))
        rest = self.base.whiten(D - combined(t, self.W))
        return _row_squares(rest) + _row_squares(t)

    def _sparse_leverage(self, D: Any) -> Array:
        """`leverage` of sparse rows, which stay sparse, by P^-1 = B^-1 - F'F."""
        if self.base.layout.groups:
            return self.leverage(D.toarray())
        found: Array = D.multiply(D) @ self.base.inverse_diagonal()
        return np.maximum(found - ((D @ self._removed().T) ** 2).sum(axis=1), 0.0)

    def whitened(self, D: Array) -> Array:
        """Return rows whose products with each other are D P^-1 D', shape (n, d + k)."""
        t = self.inner(self.coordinates(self.base.solve(D)))
        rest = self.base.whiten(D - combined(t, self.W))
        return namespace(D).concatenate([rest, t], axis=1)

    @property
    def normals(self) -> int:
        """The number of standard normal numbers that a draw takes."""
        return self.d + len(self.W)

    def draws(self, normals: Array) -> Array:
        """Return draws from N(0, P^-1), one for each row of standard normal numbers, shape (n, d)."""
        e = self.base.unwhiten(normals[:, : self.d])
        t = self.inner(normals[:, self.d :] - self.coordinates(e))
        return e + self.base.solve(combined(t, self.W))  # P^-1 (L e + W'f) for rows (e, f), with B = L L'

    def variances(self) -> Array:
        """Return the diagonal of P^-1, shape (d,). O(d k^2).

        Where the directions say nearly all there is to know, the difference to B^-1 has lost its digits. That can be so
        for k coordinates at most, since the shares of the directions sum to k or less: these are done by `leverage`.
        """
        v = self.base.inverse_diagonal() - (self._removed() ** 2).sum(axis=0)
        units = self._best_known(v)
        return _with_values(v, units, self.leverage(units))

    def sandwich_variances(self, h: Array) -> Array:
        """Return the diagonal of P^-1 diag(h) P^-1, shape (d,). O(d k^2)."""
        F = self._removed()
        hF = F * h[None]
        v = self.base.sandwich_diagonal(h) - 2 * (F * self.base.solve(hF)).sum(axis=0)
        v = v + (combined(cross(hF, F), F) * F).sum(axis=0)
        units = self._best_known(self.base.inverse_diagonal() - (F**2).sum(axis=0))
        return _with_values(v, units, (self.solve(units) ** 2 * h[None]).sum(axis=1))

    def _best_known(self, variances: Array) -> Array:
        """Return unit vectors, one per row, of the k coordinates to whose precision the directions add most."""
        xp = namespace(self.W)
        best = xp.argsort(variances / self.base.inverse_diagonal())[: len(self.W)]
        return (best[:, None] == xp.arange(self.d)[None]).astype(self.W.dtype)

    def _removed(self) -> Array:
        """F of shape (k, d) with P^-1 = B^-1 - F'F."""
        return combined(self._root.astype(self.W.dtype), self.base.solve(self.W))

    def restricted(self, free: Array) -> "PlusLowRank":
        """Return P on the free coordinates, and the identity on the others."""
        return PlusLowRank.of(self.base.restricted(free), self.W * free.astype(self.W.dtype)[None])

    def with_base(self, base: BlockDiagonal) -> "PlusLowRank":
        """Return the matrix with the same directions and another base. O(d k^2)."""
        return PlusLowRank.of(base, self.W)


@dataclass(frozen=True, eq=False)
class StructuredFactor:
    """The covariance of theta in units of the noise, read as a `kalprox.linalg.factor.Factor` is.

    With P on the free coordinates it is P^-1, or c P^-1 + (1 - c) P^-1 diag(h) P^-1 if forgetting has faded the rows: h
    is the part of P that no row has a share in, and c the `fading` of the rows.

    Attributes
    ----------
    precision : PlusLowRank
        P, with the identity on the coordinates that are held.
    held : array of bool, shape (d,), or None
        The coordinates that a kink or a bound of g holds; None where there are none.
    fading : scalar
    kept : array of shape (d,)
        h; it is used where `fading` is not 1.
    """

    precision: PlusLowRank
    held: Any = None
    fading: Any = 1.0
    kept: Any = None

    proper: ClassVar[bool] = True
    n_undetermined: ClassVar[int] = 0

    @property
    def d(self) -> int:
        return self.precision.d

    @property
    def _fades(self) -> bool:
        fading = concrete(self.fading)  # of a program that is traced it is not known
        return fading is None or bool((fading != 1).any())

    def leverage(self, D: Array) -> Array:
        """Return x'C x for each row x of D, with the covariance C, shape (n,)."""
        D = self._masked(D)
        if not self._fades:
            return self.precision.leverage(D)
        return (self.whitened(D) ** 2).sum(axis=1)

    def whitened(self, D: Array) -> Array:
        """Return rows whose products with each other are D C D'."""
        D, P, xp = self._masked(D), self.precision, namespace(D)
        if not self._fades:
            return P.whitened(D)
        c, v = self._shares, P.solve(D)
        return xp.concatenate([c[0] * P.whitened(D), c[1] * v * xp.sqrt(self.kept)[None]], axis=1)

    @property
    def _shares(self) -> tuple[Array, Array]:
        xp, dtype = namespace(self.precision.W), self.precision.W.dtype
        c = xp.asarray(self.fading, dtype)
        return xp.sqrt(c), xp.sqrt(1 - c)

    def variances(self) -> Array:
        """Return the diagonal of the covariance, shape (d,)."""
        v = self.precision.variances()
        if self._fades:
            a, b = self._shares
            v = a**2 * v + b**2 * self.precision.sandwich_variances(self._masked(self.kept))
        return self._masked(v)

    def covariance(self) -> Array:
        """Return the covariance as a matrix, shape (d, d), for up to 5,000 parameters."""
        if self.d > _LARGEST:
            raise ValueError(
                f"The covariance of {self.d:,} parameters as a matrix would have {self.d**2:,} entries; it is made for "
                f"up to {_LARGEST:,}. Use var(), predict() or draws of the posterior, which need no matrix."
            )
        root = self.whitened(namespace(self.precision.W).eye(self.d, dtype=self.precision.W.dtype))
        return root @ root.T

    @property
    def normals(self) -> int:
        """The number of independent standard normal numbers that a draw takes."""
        return self.precision.normals + self.d * self._fades

    def draws(self, normals: Array) -> Array:
        """Return a draw of theta about its mean for each row of `normals` standard normal numbers, shape (n, d)."""
        P, n = self.precision, self.precision.normals
        drawn = P.draws(normals[:, :n])
        if self._fades:
            a, b = self._shares
            root = namespace(self.kept).sqrt(self._masked(self.kept))
            drawn = a * drawn + b * P.solve(normals[:, n:] * root[None])
        return self._masked(drawn)

    def _masked(self, values: Array) -> Array:
        """Return values, of which those of the held coordinates are zero."""
        if self.held is None:
            return values
        if scipy.sparse.issparse(values):
            return values @ scipy.sparse.diags((~np.asarray(self.held)).astype(float))
        return namespace(values).where(self.held if values.ndim == 1 else self.held[None], 0, values)


class Truncated(NamedTuple):
    """B + W'W with fewer directions, and how much of it was dropped.

    Attributes
    ----------
    matrix : PlusLowRank
    dropped : array of shape (d,)
        What of the diagonal of W'W has moved to the base.
    share : scalar array
        How much of that the base does not know: the share of the sum of squares of what has moved, in the metric of
        the base, that does not fit its structure.
    """

    matrix: PlusLowRank
    dropped: Array
    share: Array


def truncated(matrix: PlusLowRank, rank: int) -> Truncated:
    """Keep the `rank` largest directions of W in the metric B^-1; of the others, B keeps what fits its structure.

    Every diagonal entry of P stays as it is, so that only correlations are lost. O(d k rank).

    Parameters
    ----------
    matrix : PlusLowRank
        Of k > rank directions.
    rank : int

    Returns
    -------
    Truncated
        Its W has `rank` rows.
    """
    base, W, xp = matrix.base, matrix.W, namespace(matrix.W)
    if rank == 0:
        dropped, gram = squares(W), matrix.gram
        share = _beyond(xp, base.square_within(W, dropped), (gram**2).sum())
        return Truncated(PlusLowRank(base.plus_rows(W, dropped), W[:0], gram[:0, :0]), dropped, share)
    return largest(base, matrix.gram, rank, squares(W), lambda U: combined(U, W), W)


def largest(
    base: BlockDiagonal, gram: Array, rank: int, squared: Array, mixed: Callable[[Array], Array], W: Array
) -> Truncated:
    """Do what `truncated` does for rank > 0, given what it needs of the directions.

    Parameters
    ----------
    base : BlockDiagonal
    gram : array of shape (k, k)
        The products of the directions in the metric of the base.
    rank : int
    squared : array of shape (d,)
        The sums of the squares of the columns of the directions.
    mixed : callable
        Takes an array U of shape (m, k) and returns combinations of the directions, shape (m, d).
    W : array of shape (k, d)
        The directions, of which only the columns of dense blocks of the base are read.
    """
    xp = namespace(gram)
    values, vectors = xp.linalg.eigh(gram)
    eps = float(np.finfo(np.dtype(gram.dtype)).eps)
    rest = xp.maximum(values[:-rank], 0)
    lost = rest.sum() > len(values) * eps * xp.maximum(values, 0).sum()
    kept = mixed(vectors[:, -rank:].T)
    dropped = xp.where(lost, xp.maximum(squared - squares(kept), 0), 0)
    mix = xp.where(lost, vectors[:, :-rank].T, 0)  # rounding is not added to the base
    share = _beyond(xp, base.square_within(W, dropped, mix), (rest**2).sum())
    return Truncated(PlusLowRank.of(base.plus_rows(W, dropped, mix), kept), dropped, share)


def _beyond(xp: ModuleType, within: Array, total: Array) -> Array:
    """Return the share of a sum of squares that is not within the structure."""
    return xp.where(total > 0, xp.clip(1 - within / xp.where(total > 0, total, 1), 0, 1), 0)


def inner_root(gram: Array) -> Array:
    """Return C^-1 with C C' = I + gram.

    The rounding error of the products is added to the diagonal: in float32, directions that say 10^7 times as much as
    the base would otherwise leave a matrix that is not positive definite.
    """
    xp = namespace(gram)
    rounding = 2 * float(np.finfo(np.dtype(gram.dtype)).eps) * gram.trace()
    if xp is np:
        gram = gram.astype(float)
    one = xp.eye(len(gram), dtype=gram.dtype)
    return solve_triangular(xp.linalg.cholesky(gram + (1 + rounding) * one).T, one, transposed=True)


def _with_values(v: Array, units: Array, values: Array) -> Array:
    """Return v with these values at the coordinates of the unit vectors."""
    return v + combined(values - units @ v, units) if len(units) else v


def cross(A: Array, B: Array) -> Array:
    """Return A B', for rows A and B, without a copy of either."""
    if namespace(A, B) is not np:
        return product(A, B.T)
    dtype = np.result_type(A, B)
    if not len(A) or not len(B):
        return np.zeros((len(A), len(B)), dtype)
    return lapack("gemm", dtype)(1.0, A.T, B.T, trans_a=True)


def combined(U: Array, W: Array) -> Array:
    """Return U W, combinations of the rows W, for a vector or a matrix U, without a copy of W."""
    if namespace(U, W) is not np:
        return product(U, W)
    if U.ndim == 1:
        return U @ W
    dtype = np.result_type(U, W)
    if not len(W) or not len(U):
        return np.zeros((len(U), W.shape[1]), dtype)
    return lapack("gemm", dtype)(1.0, W.T, U, trans_b=True).T


def _row_squares(A: Array) -> Array:
    return np.einsum("ij,ij->i", A, A) if namespace(A) is np else (A**2).sum(axis=1)
