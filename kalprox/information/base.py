"""What can be read off information: the function ||R theta - z||^2 + rss of theta."""

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np

from kalprox._arrays import Array, namespace, pytree, static
from kalprox.linalg.factor import Factor
from kalprox.linalg.rank import inverse, minimum_norm, rank, undetermined
from kalprox.linalg.triangle import product, solve_triangular, triangle_of
from kalprox.regularizers import Regularizer
from kalprox.solvers.prox import Prox, posterior_root, prox

__all__ = ["Equations", "LeastSquares"]


class LeastSquares(ABC):
    """The function ||R theta - z||^2 + rss of theta, and what can be read off it.

    With a vector of targets, z and theta have shape (d,) and rss (); with a matrix of k targets,
    which share R, they have shapes (d, k) and (k,). Each reading takes O(d^2) for R, z and rss, and
    O(d^3) for the rest.
    """

    rows: Array  # total weight: the number of rows it is worth
    targets: int | None  # number of columns of y where it was a matrix, None where it was a vector

    @abstractmethod
    def triangle(self) -> Array:
        """The upper triangle [[R, z], [0, rho]], with the column norms of rho squared the rss."""

    @property
    def R(self) -> Array:
        """The upper triangle R, diagonal >= 0, shape (d, d)."""
        return _split(self.triangle(), self.targets)[0]

    @property
    def z(self) -> Array:
        """The right-hand side, shape (d,) or (d, k)."""
        return _split(self.triangle(), self.targets)[1]

    @property
    def rss(self) -> Array:
        """What no theta explains, shape () or (k,): the least residual sum of squares where rank = d.

        Where rank < d that is `residual(solve())`, up to d - rank of whose terms rounding has moved into z.
        """
        return _split(self.triangle(), self.targets)[2]

    @property
    def d(self) -> int:
        """The number of coefficients, an intercept included where it is one of them."""
        return self.R.shape[-1]

    def precision(self) -> Array:
        """R'R: the inverse covariance of theta, in units of the noise. Positive semi-definite."""
        R = self.R
        return product(R.T, R)

    def residual(self, theta: Array) -> Array:
        """The weighted residual sum of squares at theta: ||R theta - z||^2 + rss, without cancellation."""
        R, z, rss = _split(self.triangle(), self.targets)
        return ((product(R, theta) - z) ** 2).sum(axis=0) + rss

    def solve(self) -> Array:
        """The least-squares theta; the one of minimum norm where rank < d.

        Where the data determine every direction this is back-substitution, with QR's accuracy.
        """
        R, z, _ = _split(self.triangle(), self.targets)
        return minimum_norm(R, self.rows, z)

    def solve_full_rank(self) -> Array:
        """The least-squares theta by back-substitution, where the rank is known to be d. O(d^2)."""
        R, z, _ = _split(self.triangle(), self.targets)
        return solve_triangular(R, z)

    def single_targets(self) -> list["Equations"]:
        """The equations of each target alone, where there is a matrix of them."""
        R, z, rss = self.R, self.z, self.rss
        d = len(R)
        found = []
        for j in range(self.targets or 0):
            T = np.zeros((d + 1, d + 1), R.dtype)
            T[:d, :d], T[:d, d], T[d, d] = R, z[:, j], rss[j] ** 0.5
            found.append(Equations(T, self.rows))
        return found

    def with_rows(self, A: Array) -> "Equations":
        """The equations with ||A theta||^2 more, A of shape (m, d): a quadratic prior as rows of data. O(d^3).

        The rows count in no number of rows. NumPy only.
        """
        T = np.asarray(self.triangle())
        p, d = len(T), len(T) - (self.targets or 1)
        A = np.asarray(A, T.dtype)
        if len(A) == 0:
            return Equations(T, self.rows, self.targets)
        prior = np.zeros((max(len(A), p), p), T.dtype)
        prior[: len(A), :d] = A
        # The larger rows come first: below them, QR keeps the digits of the smaller.
        stacked = np.concatenate((prior, T) if np.abs(A).max() > np.abs(T[:d, :d]).max(initial=0) else (T, prior))
        if len(A) <= d and not np.tril(A, -1).any():  # both are triangles: a sixth of the work
            return Equations(triangle_of(stacked, triangles=True), self.rows, self.targets)
        return Equations(triangle_of(np.concatenate([np.zeros_like(T), stacked])), self.rows, self.targets)

    def minimise(self, g: Regularizer, start: Array | None = None) -> Prox:
        """The minimiser of 1/2 ||R theta - z||^2 + g(theta) for a single target; see `kalprox.solvers.prox`."""
        return prox(self.R, self.z, g, start, rows=self.rows)

    def factor(self, g: Regularizer, theta: Array) -> Factor:
        """A factor of (R'R + Hess g(theta))^-1 on the coordinates that g leaves free at theta. O(d^3)."""
        R, rows = self.R, self.rows
        if namespace(R, theta, g) is not np and g.smooth:
            return Factor.of(posterior_root(R, g, theta, rows=rows), rows)
        R, rows, theta = np.asarray(R), np.asarray(rows), np.asarray(theta)
        free = np.flatnonzero(g.free(theta))
        return Factor.of(posterior_root(R, g, theta, rows=rows)[np.ix_(free, free)], rows, free, len(R))

    def rank(self) -> Array:
        """How many directions of theta the data determine, decided on columns scaled to length one.

        A singular value of the scaled R counts when it is above max(4 (10 + d), sqrt(rows)) * eps times the
        largest. Below that it may be rounding alone: see `kalprox.linalg.rank`.
        """
        return rank(self.R, self.rows)

    @cached_property
    def full_rank(self) -> bool:
        """Whether the rank is d, on the host."""
        return inverse(self.R, self.rows) is not None or int(self.rank()) == self.R.shape[1]

    def undetermined(self, A: Array | None = None) -> Array:
        """Of which combinations a'theta, a the rows of A (m, d), the data say nothing: their variance is infinite.

        Without A, of which coefficients. That is where a, with entries divided by the column norms of R,
        has more than sqrt(eps) of its length in the null space of the scaled R. Nowhere if rank = d.
        """
        R, xp = self.R, namespace(self.rows)
        A = xp.eye(R.shape[1], dtype=R.dtype) if A is None else xp.asarray(A, R.dtype)
        return undetermined(R, self.rows, A)

    def logdet(self) -> Array:
        """log det R'R, and -inf where rank < d."""
        diagonal, xp = self.R.diagonal(), namespace(self.rows)
        full = (self.rank() == len(diagonal)) & (diagonal > 0).all()
        return xp.where(full, 2 * xp.log(xp.where(full, diagonal, 1)).sum(), -xp.inf)


@pytree
class Equations(LeastSquares):
    """||R theta - z||^2 + rss, held as its triangle: a view of `Information`, with a choice of intercept."""

    held: Array
    rows: Array
    targets: int | None = static(default=None)

    def triangle(self) -> Array:
        return self.held


def _split(triangle: Array, targets: int | None) -> tuple[Array, Array, Array]:
    """R, z and rss of [[R, z], [0, rho]]."""
    d = triangle.shape[-1] - (targets or 1)
    z, rss = triangle[:d, d:], (triangle[d:, d:] ** 2).sum(axis=0)
    return (triangle[:d, :d], z[:, 0], rss[0]) if targets is None else (triangle[:d, :d], z, rss)
