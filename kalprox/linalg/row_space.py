"""Fewer rows than columns: d coefficients in the coordinates of the r < d directions that the rows span.

With scales s and an orthonormal basis B of shape (d, r), theta = s (B phi + e) with e orthogonal to B. The basis is
chosen such that rows R meet phi alone, R theta = P phi, so that the rows say nothing about e. A penalty ||theta / s||^2
is the sum of ||phi||^2 and ||e||^2: e stays at zero, and its variance in units of the noise is that of the prior, 1.
Without a penalty nothing determines e. Everything else is a problem of r coefficients with the rows P. O(m^2 d).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from kalprox.base.arrays import Array
from kalprox.linalg.factor import Factor, with_infinities
from kalprox.linalg.fold import cholesky, smallest_square
from kalprox.linalg.rank import tolerance
from kalprox.linalg.triangle import column_norms, lapack, qr_factors, solve_triangular

_FEWEST, _LARGEST_SHARE = 64, 0.75  # columns, and directions relative to columns, where the row space pays
_CANCELS = 0.5  # the share of a squared length below which what is left of it is computed anew


@dataclass(frozen=True, eq=False)
class RowSpace:
    """The directions that rows span, and what a penalty with a diagonal Hessian does along them and beyond.

    Attributes
    ----------
    scale : array of shape (d,)
        s.
    rows : array of shape (m, r)
        P: the rows in the coordinates phi.
    curvature : array of shape (r,)
        The Hessian of the penalty in the coordinates phi, a diagonal of zeros and ones.
    determined : bool
        Whether a penalty determines e, with the variance 1.
    """

    scale: np.ndarray
    rows: np.ndarray
    curvature: np.ndarray
    span: "_Span"  # of the coordinates `met`
    determined: bool
    free: np.ndarray  # (d,), whether a coordinate is not penalised; these come first in phi
    met: np.ndarray  # (d,), whether a coordinate is penalised and not zero in every row

    @classmethod
    def of(cls, R: np.ndarray, h: np.ndarray, weight: Any) -> "RowSpace | None":
        """Return the space of rows R, shape (m, d) and of this total weight, under 1/2 theta' diag(h) theta.

        None where it is not much smaller than d, or where the rule of `kalprox.linalg.rank` might find the penalty too
        weak to determine anything. Without a penalty it is the space of the singular vectors that count by that rule.
        """
        free = h == 0
        if free.all():
            return cls._unpenalised(R, weight) if _pays(*R.shape) else None
        if not _worth(R, h, weight):
            return None
        scale, met = np.where(free, 1.0, h) ** -0.5, ~free & R.any(axis=0)
        some = np.flatnonzero(met)
        columns = slice(some[0], some[-1] + 1) if some.size and some[-1] - some[0] < some.size else some
        f, A = int(free.sum()), R[:, columns] * scale[columns]  # a slice of R is not copied
        span = _Span.of(A)
        rows = np.zeros((len(R), f + len(span.U)), R.dtype)
        rows[:, :f], rows[A.any(axis=1), f:] = R[:, free], span.U.T
        curvature = np.repeat([0.0, 1.0], (f, len(span.U)))
        return cls(scale, rows, curvature, span, determined=True, free=free, met=met)

    @classmethod
    def _unpenalised(cls, R: np.ndarray, weight: Any) -> "RowSpace":
        norms = column_norms(R)
        scale = 1 / np.where(norms > 0, norms, 1)
        U, s, Vt = scipy.linalg.svd(R * scale, full_matrices=False, check_finite=False)
        counts = s > tolerance(R.shape[1], weight, R.dtype) * s.max(initial=0)
        span = _Span(Vt[counts], np.eye(counts.sum()), Vt[counts].T)
        none = np.zeros(len(norms), bool)
        return cls(scale, (U * s)[:, counts], np.zeros(counts.sum()), span, False, free=none, met=~none)

    @cached_property
    def basis(self) -> np.ndarray:
        """B, of shape (d, r) with orthonormal columns."""
        f, Q = int(self.free.sum()), self.span.basis
        if self.met.all():
            return Q
        basis = np.zeros((len(self.scale), f + Q.shape[1]), Q.dtype)
        basis[self.free, :f], basis[self.met, f:] = np.eye(f), Q
        return basis

    def inputs(self, D: np.ndarray) -> np.ndarray:
        """Return rows D in the coordinates phi, without their part beyond. O(d r) per row."""
        return np.asarray((D * self.scale) @ self.basis)

    def theta(self, phi: np.ndarray) -> np.ndarray:
        """Return the theta that the penalty prefers, or that of least norm, among those with these coordinates."""
        if self.determined:
            f, theta = int(self.free.sum()), np.zeros((len(self.scale), *phi.shape[1:]), self.rows.dtype)
            theta[self.free], theta[self.met] = phi[:f], self.span.combination(phi[f:])
            return np.asarray((theta.T * self.scale).T)
        if phi.size == 0:
            return np.zeros((len(self.scale), *phi.shape[1:]))
        Q, C = qr_factors(self.basis / self.scale[:, None])  # C'Q' theta = phi
        return np.asarray(Q @ solve_triangular(C, phi, transposed=True))

    def beyond(self, a: np.ndarray, phi: np.ndarray) -> np.ndarray:
        """Return the squared length of the part of each row of a, with coordinates phi, that is orthogonal to B."""
        total = np.einsum("ij,ij->i", a, a)
        left: np.ndarray = total - np.einsum("ij,ij->i", phi, phi)
        few = np.flatnonzero(left < _CANCELS * total)
        left[few] = ((a[few] - phi[few] @ self.basis.T) ** 2).sum(axis=1)
        return left

    def unit_beyond(self) -> np.ndarray:
        """Return the squared length of the part of each unit vector that is orthogonal to B, shape (d,)."""
        left: np.ndarray = 1 - np.einsum("ij,ij->i", self.basis, self.basis)
        few = np.flatnonzero(left < _CANCELS)  # at most 2 r of them: the squares of B sum to r
        parts = -self.basis[few] @ self.basis.T
        parts[np.arange(len(few)), few] += 1
        left[few] = (parts**2).sum(axis=1)
        return left


@dataclass(frozen=True, eq=False)
class _Span:
    """The span of rows A = U'Q', with orthonormal columns Q: by the Gram matrix A A' where it keeps the digits.

    Rows of zeros are left out.
    """

    A: np.ndarray
    U: np.ndarray  # an upper triangle
    Q: np.ndarray | None  # None as long as A'U^-1 will do

    @classmethod
    def of(cls, A: np.ndarray) -> "_Span":
        A = A[A.any(axis=1)]
        if len(A) == 0:
            return cls(A, np.zeros((0, 0)), A.T)
        with np.errstate(all="ignore"):
            G = lapack("syrk", A.dtype)(1.0, A.T, trans=1)
            U = cholesky(G) if (G.diagonal() >= smallest_square(G.dtype)).all() else None
        return cls(A, U, None) if U is not None else cls(A, *qr_factors(A.T)[::-1])

    @cached_property
    def basis(self) -> np.ndarray:
        return np.asarray(solve_triangular(self.U, self.A, transposed=True).T if self.Q is None else self.Q)

    def combination(self, phi: np.ndarray) -> np.ndarray:
        """Return Q phi."""
        return np.asarray(self.Q @ phi if self.Q is not None else self.A.T @ solve_triangular(self.U, phi))


def _worth(R: np.ndarray, h: np.ndarray, weight: Any) -> bool:
    """Whether the row space of rows R has much fewer than d directions, and the penalty surely determines the others.

    The smallest singular value of the rows above the penalty, with columns of length one, is at least the smallest
    share of the penalty in a column, and the largest at most sqrt(d).
    """
    (m, d), free = R.shape, h == 0
    if not _pays(m + int(free.sum()), d):
        return False
    share = h / (h + np.einsum("ij,ij->j", R, R))
    return bool(share.min(where=~free, initial=1.0) > tolerance(d, weight, R.dtype) ** 2 * d)


def _pays(r: int, d: int) -> bool:
    return d >= _FEWEST and r <= _LARGEST_SHARE * d


def surely_determined(R: np.ndarray, h: np.ndarray, weight: Any) -> bool:
    """Whether rows R and the penalty surely determine all coefficients, seen without a factorisation.

    At most one coefficient is not penalised, and the rows that meet it meet no other one, as those of an intercept.
    """
    free = h == 0
    if free.sum() > 1 or not _worth(R, h, weight):
        return False
    met = R[:, free].any(axis=1)
    return not free.any() or (bool(met.any()) and not R[met][:, ~free].any())


@dataclass(frozen=True, eq=False)
class WideFactor:
    """A factor of the covariance of d coefficients of which fewer rows were learned; it is read as a `Factor` is.

    The covariance is S (B C B' + v (I - B B')) S, with S = diag(s), the covariance C of phi, and the variance v of what
    is beyond the rows: 1, or infinite without a penalty. It takes O(r d) numbers.

    Attributes
    ----------
    inner : Factor
        The factor of C.
    space : RowSpace
    """

    inner: Factor
    space: RowSpace

    free = None  # every coordinate is

    @property
    def d(self) -> int:
        return len(self.space.scale)

    @property
    def L(self) -> Array:
        """The root as one matrix, in O(d^2 r): (d, r) without a penalty, else S (I + B (L - I) B') of shape (d, d)."""
        B, L = self.space.basis, self.inner.L
        if not self.space.determined:
            return self.space.scale[:, None] * (B @ L)
        if len(L) != L.shape[1]:
            return self.space.scale[:, None] * np.hstack([B @ L, np.eye(self.d) - B @ B.T])
        root = B @ (L - np.eye(len(L))) @ B.T
        root.flat[:: self.d + 1] += 1
        root *= self.space.scale[:, None]
        return root

    def faded(self, R: np.ndarray, fading: Any) -> "WideFactor":
        return replace(self, inner=self.inner.faded(self.space.rows, fading))

    @property
    def proper(self) -> bool:
        return self.space.determined and self.inner.proper

    def leverage(self, D: np.ndarray) -> Array:
        """Return x' C x for each row x of D, in O(d r) per row."""
        a, phi = D * self.space.scale, self.space.inputs(D)
        leverage, beyond = self.inner.leverage(phi), self.space.beyond(a, phi)
        if self.space.determined:
            return leverage + beyond
        return np.where(beyond > np.finfo(D.dtype).eps * (a**2).sum(axis=1), np.inf, leverage)

    def whitened(self, R: np.ndarray) -> Array:
        """Return rows whose squared norms are the leverages of rows R that are in the space."""
        return self.inner.whitened(self.space.inputs(R))

    def undetermined(self, D: np.ndarray) -> Array:
        return np.isinf(self.leverage(D))

    @property
    def n_undetermined(self) -> int:
        return self.inner.n_undetermined if self.space.determined else self.d - len(self.space.curvature)

    def along_null(self, D: np.ndarray) -> Array:
        phi = self.space.inputs(D)
        return self.inner.along_null(phi) if self.space.determined else D * self.space.scale - phi @ self.space.basis.T

    def variances(self) -> Array:
        inner, beyond = self.inner.leverage(self.space.basis), self.space.unit_beyond()
        if self.space.determined:
            return self.space.scale**2 * (inner + beyond)
        return np.where(beyond > np.finfo(inner.dtype).eps, np.inf, self.space.scale**2 * inner)

    def covariance(self) -> Array:
        """Return the covariance as one matrix, in O(d^2 r), with infinities as in `Factor.covariance`."""
        B, L = self.space.basis, self.inner.L
        root, beyond = B @ L, np.eye(self.d) - B @ B.T
        C = root @ root.T
        if self.space.determined:
            C += beyond
            null = B @ self.inner.null
            beyond = null @ null.T
        C = self.space.scale[:, None] * C * self.space.scale
        return C if self.proper else with_infinities(C, beyond)

    @property
    def normals(self) -> int:
        return self.inner.normals + self.d

    def draws(self, normals: np.ndarray) -> Array:
        B, inner = self.space.basis, normals[:, : self.inner.normals]
        rest = normals[:, self.inner.normals :]
        return (self.inner.draws(inner) @ B.T + (rest - (rest @ B) @ B.T)) * self.space.scale
