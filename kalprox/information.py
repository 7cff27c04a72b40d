"""The information monoid: all that rows say about theta, in one triangle that adds.

For rows x_k with targets y_k and weights w_k, in units of the noise,

    sum_k w_k (y_k - x_k' theta)^2  =  ||R theta - z||^2 + rss,      R upper triangular.

What is stored is the triangle T of B = sqrt(w) [1 | X - c | Y - m], with T'T = B'B and c, m fixed
by the first rows: R, z and rss, with or without an intercept, are views of it. Information adds:
a stream is a left fold, several machines are a tree of merges, forgetting scales, a sliding window
subtracts. No information at all is a legal start.

Rows are folded by QR, or as their Gram matrix where that keeps the digits (`_fold_numpy`). NumPy
arrays go to LAPACK, JAX arrays stay on their device; the two `_fold_*` kernels are where they differ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import scipy.linalg

from kalprox._arrays import Array, is_traced, namespace, pytree, register_pytrees, static
from kalprox._checks import check_finite, check_floating, check_positive, concrete

__all__ = ["Equations", "Information", "LeastSquares", "NotContained", "merge"]


class NotContained(ValueError):
    """What was to be subtracted is not in the information, or too little would be left to be accurate."""


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

    def precision(self) -> Array:
        """R'R: the inverse covariance of theta, in units of the noise. Positive semi-definite."""
        R = self.R
        return _product(R.T, R)

    def residual(self, theta: Array) -> Array:
        """The weighted residual sum of squares at theta: ||R theta - z||^2 + rss, without cancellation."""
        R, z, rss = _split(self.triangle(), self.targets)
        return ((_product(R, theta) - z) ** 2).sum(axis=0) + rss

    def solve(self) -> Array:
        """The least-squares theta; the one of minimum norm where rank < d.

        Where the data determine every direction this is back-substitution, with QR's accuracy.
        """
        R, z, _ = _split(self.triangle(), self.targets)
        tol = _rank_tolerance(R, self.rows)
        return _cond(_surely_full_rank(R, tol), _back_substitute, _minimum_norm, R, tol, z)

    def rank(self) -> Array:
        """How many directions of theta the data determine, decided on columns scaled to length one.

        A singular value of the scaled R counts when it is above max(d, sqrt(rows)) * eps times the
        largest. Below that it may be rounding alone: each row folded adds about eps, at random.
        """
        R = self.R
        tol = _rank_tolerance(R, self.rows)
        return _cond(_surely_full_rank(R, tol), lambda R, tol: namespace(R).asarray(R.shape[1]), _rank, R, tol)

    def undetermined(self, A: Array | None = None) -> Array:
        """Of which combinations a'theta, a the rows of A (m, d), the data say nothing: their variance is infinite.

        Without A, of which coefficients. That is where a, with entries divided by the column norms of R,
        has more than sqrt(eps) of its length in the null space of the scaled R. Nowhere if rank = d.
        """
        R, xp = self.R, namespace(self.rows)
        A = xp.eye(R.shape[1], dtype=R.dtype) if A is None else xp.asarray(A, R.dtype)
        tol = _rank_tolerance(R, self.rows)
        return _cond(_surely_full_rank(R, tol), lambda R, tol, A: xp.zeros(len(A), bool), _undetermined, R, tol, A)

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


@pytree
class Information(LeastSquares):
    """What rows (X, y) say about theta, in units of the noise. A pytree; nothing in it changes.

    As a `LeastSquares` it is the one without an intercept; `with_intercept()` and `centered()` are
    the others. All three are exact views of the same triangle: the shift costs nothing and keeps
    the digits of features far from zero.

    In float32, T stops taking in single rows after about 1e7 of them: fold blocks.

    >>> info = Information.from_rows(np.array([[1.0], [2.0], [3.0]]), np.array([3.0, 5.0, 7.0]))
    >>> bool(np.allclose(info.solve(), 34 / 14)), float(info.rows)
    (True, 3.0)
    >>> info.with_intercept().solve().round(12)
    array([1., 2.])
    """

    T: Array  # (1 + d + k, 1 + d + k), diagonal >= 0
    shift: Array  # (d + k,), subtracted from [X | Y]; free, and zero, until the first row comes (T[0, 0] = 0)
    rows: Array  # total weight; exact for integer weights
    targets: int | None = static(default=None)

    @classmethod
    def zero(cls, d: int, targets: int | None = None, *, dtype: Any = np.float64, xp: ModuleType = np) -> "Information":
        """No information about d coefficients: the identity of `merge`, and a legal start."""
        if xp is not np:
            register_pytrees()
        p = d + (targets or 1)
        rows = xp.zeros((), np.float64 if xp is np else dtype)
        return cls(xp.zeros((1 + p, 1 + p), dtype), xp.zeros(p, dtype), rows, targets)

    @classmethod
    def from_rows(cls, X: Array, y: Array, weights: Array | None = None) -> "Information":
        """The information of rows X (n, d) with targets y (n,) or (n, k) and weights (n,)."""
        _check_rows(X, y, weights)
        targets = y.shape[1] if y.ndim == 2 else None
        return cls.zero(X.shape[1], targets, dtype=X.dtype, xp=namespace(X, y, weights)).fold(X, y, weights)

    @classmethod
    def from_prior(cls, mean: Array, root: Array) -> "Information":
        """The prior ||root (theta - mean)||^2, in units of the noise: worth no rows, and rss 0.

        `mean` has shape (d,), or (d, k) for a matrix of targets; `root` any (m, d), such as
        eye(d) / sqrt(gamma * v0). An intercept gets no prior.
        """
        xp = namespace(mean, root)
        d = mean.shape[0]
        for name, value in (("mean", mean), ("root", root)):
            check_floating(name, value)
            check_finite(name, value)
        if mean.ndim not in (1, 2) or root.ndim != 2 or root.shape[1] != d:
            raise ValueError(
                f"mean must have shape (d,) or (d, k), and root (m, d); got {mean.shape} and {root.shape}."
            )
        zero = cls.zero(d, mean.shape[1] if mean.ndim == 2 else None, dtype=_dtype(xp, mean, root), xp=xp)
        R = _triangle_of(xp.concatenate([xp.zeros((d, d), zero.T.dtype), root.astype(zero.T.dtype)]))
        z = _product(R, mean.astype(R.dtype).reshape(d, -1))  # consistent with R, so that rss is 0
        below = xp.concatenate([xp.concatenate([R, z], axis=1), zero.T[1 + d :, 1:]])
        return cls(xp.pad(below, ((1, 0), (1, 0))), zero.shift, zero.rows, zero.targets)

    @property
    def d(self) -> int:
        """The number of coefficients, the intercept not counted."""
        return self.T.shape[-1] - 1 - (self.targets or 1)

    def fold(self, X: Array, y: Array, weights: Array | None = None) -> "Information":
        """This information and that of a block of rows: the step of a stream. Exact, to rounding.

        X is (b, d) with any b, y (b,) or (b, k), weights (b,), finite and >= 0: a weight is a number
        of repetitions, so weight 2 is the row twice and weight 0 is no row, whatever it holds.
        Costs O(b d^2): about 1.5 times X'X where the columns are far from collinear and b is many
        times d, some four times otherwise. Bad rows raise, and are named.
        """
        _check_rows(X, y, weights)
        expected = (self.d,), () if self.targets is None else (self.targets,)
        if (X.shape[1:], y.shape[1:]) != expected:
            raise ValueError(
                f"rows of X and y must have the shapes {expected[0]} and {expected[1]} of this information; "
                f"got {X.shape[1:]} and {y.shape[1:]}."
            )
        xp = namespace(self.T, X, y, weights)
        dtype = _dtype(xp, self.T, X, y)
        if xp is np and weights is not None and not weights.all():
            X, y, weights = (a[weights > 0] for a in (X, y, weights))  # bit for bit as if they never came
        if len(X) == 0:
            return self
        Y = y.reshape(len(X), -1)
        if xp is np:
            with np.errstate(all="ignore"):  # whatever is not finite is found below, and named
                T, shift = _fold_numpy(self.T.astype(dtype), self.shift.astype(dtype), X, Y, weights)
                squares = (T**2).sum()
            rows = self.rows + (len(X) if weights is None else weights.sum(dtype=np.float64))
            if not np.isfinite(squares):
                check_finite("X", X)
                check_finite("y", y)
                largest = np.maximum(np.abs(X).max(axis=1), np.abs(Y).max(axis=1)).argmax()
                raise ValueError(
                    f"X or y is too large to be squared in {dtype}, row {largest} the largest of them: scale the "
                    "columns down first."
                )
        else:
            register_pytrees()
            w = xp.ones(len(X), dtype) if weights is None else xp.asarray(weights, dtype)
            if not is_traced(X, Y, w):
                seen = np.asarray(w) > 0
                check_finite("X", np.where(seen[:, None], np.asarray(X), 0))
                check_finite("y", np.where(seen[:, None], np.asarray(Y), 0))
            state = (xp.asarray(a, dtype) for a in (self.T, self.shift, self.rows))
            T, shift, rows = _compiled_fold()(*state, xp.asarray(X, dtype), xp.asarray(Y, dtype), w)
        return Information(T, shift, rows, self.targets)

    def forget(self, rho: Any) -> "Information":
        """All of it worth rho times as many rows, 0 < rho <= 1: sqrt(rho) T."""
        check_positive("rho", rho)
        number = concrete(rho)
        if number is not None and (number > 1).any():
            raise ValueError(f"rho must be at most 1 (which forgets nothing); got {rho!r}.")
        xp = namespace(self.T, rho)
        rho = xp.asarray(rho, self.T.dtype)
        return Information(xp.sqrt(rho) * self.T, self.shift, rho * self.rows, self.targets)

    def subtract(self, other: "Information") -> "Information":
        """This information without `other`: rows deleted, or the oldest block of a window. O(d^3).

        With q = T^-T S' for the triangle S of `other`, and U'U = I - q q', the answer is U T. If the least
        eigenvalue of I - q q', the share that stays in the direction that loses most, is delta, the
        answer's relative error is of order eps / delta, which no method can better from T and S.
        Refused with `NotContained` when that leaves less than half of the digits, or when `other`
        says something in a direction where this says nothing. Rows that were never folded in but
        are no more informative than those that were cannot be told apart, and are subtracted.

        Raises, so it cannot be traced; JAX arrays are brought to the host and back.
        """
        _check_alike(self, other)
        if is_traced(self.T, other.T):
            raise TypeError("subtract decides on values, so jax.jit and jax.vmap cannot trace it: call it outside.")
        if not other.T.any():
            return self
        rows = self.rows - other.rows
        if rows <= 0:
            raise NotContained(
                f"other must be worth fewer rows than this; got {other.rows:g} of {self.rows:g}. "
                "To delete every row, start again from Information.zero or from_prior."
            )
        xp = namespace(self.T, other.T)
        S = other.T if other.T[0, 0] == 0 else _recenter(other.T, other.shift - self.shift)
        T = _downdate(np.asarray(self.T), np.asarray(S))
        return Information(xp.asarray(T), self.shift, xp.asarray(rows, self.rows.dtype), self.targets)

    @property
    def x_mean(self) -> Array:
        """The weighted mean of the rows of X, shape (d,); zero before the first row."""
        return self._means()[: self.d]

    @property
    def y_mean(self) -> Array:
        """The weighted mean of y, shape () or (k,); zero before the first row."""
        means = self._means()[self.d :]
        return means[0] if self.targets is None else means

    def _means(self) -> Array:
        xp, t = namespace(self.T), self.T[0, 0]
        return self.shift + self.T[0, 1:] / xp.where(t > 0, t, 1)

    def triangle(self) -> Array:
        """The triangle without an intercept: the centred one, and the means' row folded in. O(d^2)."""
        row = _recenter(self.T, self.shift)[:1, 1:]
        return _triangle_of(namespace(row).concatenate([self.T[1:, 1:], row]))

    def centered(self) -> Equations:
        """The equations of theta when the intercept is free: min over it is already taken.

        The intercept is then y_mean - x_mean' theta, and the variance of a prediction at x, in units
        of the noise, 1 / rows + (x - x_mean)' (R'R)^-1 (x - x_mean). Features around 1e8 keep their
        digits here: no mean is in it.
        """
        return Equations(self.T[1:, 1:], self.rows, self.targets)

    def with_intercept(self) -> Equations:
        """The equations of (intercept, theta), d + 1 coefficients: R = [[t, t x_mean'], [0, R_c]].

        Its lower block is `centered()`, so back-substitution finds theta first, to the same digits.
        """
        return Equations(_recenter(self.T, self.shift), self.rows, self.targets)


def merge(first: Information, *others: Information) -> Information:
    """The information of all of them together, as a balanced tree in the order given. O(d^3) each.

    The same as folding all their rows into one, to rounding; zero information is the identity, bit
    for bit. The first to have rows says the shift.
    """
    level = [first, *others]
    for other in others:
        _check_alike(first, other)
    while len(level) > 1:
        pairs = [_merge(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) // 2 * 2 :]
    return level[0]


def _merge(a: Information, b: Information) -> Information:
    xp = namespace(a.T, b.T)
    dtype = _dtype(xp, a.T, b.T)
    if xp is np:
        if not b.T.any():
            return a
        if not a.T.any():
            return b
    Ta, Tb = xp.asarray(a.T, dtype), xp.asarray(b.T, dtype)
    ca, cb = xp.asarray(a.shift, dtype), xp.asarray(b.shift, dtype)
    shift = xp.where(Ta[0, 0] > 0, ca, cb)
    T = _triangle_of(xp.concatenate([_recenter(Ta, ca - shift), _recenter(Tb, cb - shift)]), triangles=True)
    if xp is not np:
        T = xp.where(Tb.any(), xp.where(Ta.any(), T, Tb), Ta)
    rows = a.rows + b.rows if xp is np else xp.asarray(a.rows, dtype) + xp.asarray(b.rows, dtype)
    return Information(T, shift, rows, a.targets)


def _check_rows(X: Array, y: Array, weights: Array | None) -> None:
    if X.ndim != 2 or y.ndim not in (1, 2) or X.shape[0] != y.shape[0]:
        raise ValueError(f"X must have shape (n, d) and y (n,) or (n, k); got shapes {X.shape} and {y.shape}.")
    check_floating("X", X)
    check_floating("y", y)
    if weights is not None:
        if weights.shape != X.shape[:1]:
            raise ValueError(f"weights must have one number per row, shape {X.shape[:1]}; got shape {weights.shape}.")
        check_floating("weights", weights)
        check_finite("weights", weights)
        numbers = concrete(weights)
        if numbers is not None and (numbers < 0).any():
            raise ValueError(f"weights must be >= 0; got {numbers.min():g} in row {numbers.argmin()}.")


def _check_alike(a: Information, b: Information) -> None:
    if (a.d, a.targets) != (b.d, b.targets):
        raise ValueError(
            f"both must be about the same coefficients and targets; got d = {a.d}, targets = {a.targets} "
            f"and d = {b.d}, targets = {b.targets}."
        )


def _dtype(xp: ModuleType, *arrays: Array) -> Any:
    """The dtype to compute in: float32 where all are, else float64 where JAX's flag lets it."""
    dtype = np.result_type(np.float32, *(a.dtype for a in arrays))
    dtype = np.dtype(np.float64) if dtype.itemsize > 8 else dtype
    if xp is np:
        return dtype
    import jax

    return jax.dtypes.canonicalize_dtype(dtype)


def _product(A: Array, B: Array) -> Array:
    """A @ B by SciPy's BLAS, whose thread pool the fold uses, or in full precision by JAX.

    A GPU rounds the inputs of a float32 product to fewer bits unless it is told not to.
    """
    xp = namespace(A, B)
    if xp is not np:
        return xp.matmul(A, B, precision="highest")
    return _lapack("gemm", np.result_type(A, B))(1.0, A, B.reshape(len(B), -1)).reshape(A.shape[:1] + B.shape[1:])


def _split(triangle: Array, targets: int | None) -> tuple[Array, Array, Array]:
    """R, z and rss of [[R, z], [0, rho]]."""
    d = triangle.shape[-1] - (targets or 1)
    z, rss = triangle[:d, d:], (triangle[d:, d:] ** 2).sum(axis=0)
    return (triangle[:d, :d], z[:, 0], rss[0]) if targets is None else (triangle[:d, :d], z, rss)


def _recenter(T: Array, change: Array) -> Array:
    """T for rows whose shift is less by `change`: only the row of the means moves."""
    xp = namespace(T)
    top = T[:1] + T[0, 0] * xp.concatenate([xp.zeros(1, T.dtype), change])[None]
    return xp.concatenate([top, T[1:]])


def _nonnegative(T: Array) -> Array:
    """T with the signs of its rows such that the diagonal is >= 0: the triangle is then unique."""
    xp = namespace(T)
    return T * xp.where(xp.diagonal(T) < 0, -1, 1).astype(T.dtype)[:, None]


def _triangle_of(stacked: Array, triangles: bool = False) -> Array:
    """The R of QR of [T; B], T a square upper triangle, B any rows (or, if `triangles`, a triangle too)."""
    xp, p = namespace(stacked), stacked.shape[1]
    if xp is not np:
        return _nonnegative(xp.linalg.qr(stacked, mode="r"))
    return _nonnegative(_append(stacked[:p], stacked[p:], triangles))


# ---- the NumPy kernel: LAPACK and BLAS, SciPy's throughout -----------------------------------------

_CHUNK = 512  # rows at a time: long enough for BLAS, short enough for the cache
_FIRST_GRAM, _LONGEST_GRAM = 1024, 16384  # rows in one Gram matrix: doubled while it does, so that failure is cheap
_FAR = 16  # mean^2 / variance beyond which a column is shifted


@cache
def _lapack(name: str, dtype: Any) -> Callable:
    """SciPy's routine for the dtype: float32 or float64. Looking it up costs as much as a short fold."""
    find = scipy.linalg.get_blas_funcs if name in ("gemm", "syrk") else scipy.linalg.get_lapack_funcs
    return find(name, dtype=dtype)


def _least_pivot(dtype: Any) -> float:
    """How collinear scaled columns may be for their Gram matrix: 0.01 in float64, 0.14 in float32.

    A pivot of the equilibrated Cholesky factor is the sine of the angle between a column and those
    before it. The Gram matrix loses a factor pivot^-2 where QR loses pivot^-1, so that at eps^(1/8)
    three quarters of the digits remain: 12 in float64.
    """
    return float(np.finfo(dtype).eps ** 0.125)


def _keeps_digits(U: Array) -> Array:
    """Whether the Cholesky factor U of an equilibrated Gram matrix G is accurate enough to be kept.

    Each pivot is looked at, and the size of G^-1, for there are triangles without a small pivot that
    are close to singular all the same: O(d^2) by LAPACK's estimate of its norm. False for NaN.
    """
    least = _least_pivot(U.dtype)
    if namespace(U) is np:
        inverse = 1 / max(_lapack("pocon", U.dtype)(U, 1.0)[0], np.finfo(U.dtype).tiny)
    else:
        inverse = _inverse_norm(U) ** 2
    return (U.diagonal().min() >= least) & (inverse <= len(U) / least**2)


def _fold_numpy(
    T: np.ndarray, shift: np.ndarray, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """T and the shift with rows X, Y folded in: Gram where it keeps the digits, else QR by tpqrt."""
    if T[0, 0] == 0:
        shift = _first_shift(X[:_CHUNK], Y[:_CHUNK], None if weights is None else weights[:_CHUNK], T.dtype)
    n, p, d = len(X), len(T), X.shape[1]
    root_w = None if weights is None else np.sqrt(weights).astype(T.dtype)[:, None]
    as_they_are = root_w is None and not shift[:d].any() and X.flags.c_contiguous and X.dtype == T.dtype
    B = np.empty((min(n, _CHUNK), p), T.dtype)
    syrk = _lapack("syrk", T.dtype)

    def rows(i: int, j: int) -> np.ndarray:
        b = B[: j - i]
        b[:, 0] = 1
        np.subtract(X[i:j], shift[:d], out=b[:, 1 : 1 + d], casting="same_kind")
        np.subtract(Y[i:j], shift[d:], out=b[:, 1 + d :], casting="same_kind")
        return b if root_w is None else np.multiply(b, root_w[i:j], out=b)

    start, length = 0, max(_FIRST_GRAM, 2 * p)
    while start < n:
        stop = n if n - start < 2 * length else start + length
        chunks = [(i, min(i + _CHUNK, stop)) for i in range(start, stop, _CHUNK)]
        factor = None
        if _gram_may_do(T, stop - start):
            if as_they_are:
                G = _gram_as_they_are(X[start:stop], Y[start:stop] - shift[d:])
            else:
                G = np.zeros((p, p), T.dtype, order="F")
                for i, j in chunks:
                    G = syrk(1.0, rows(i, j).T, beta=1.0, c=G, overwrite_c=1)
            if T.any():
                G = syrk(1.0, T, trans=1, beta=1.0, c=G, overwrite_c=1)
            factor = _cholesky(G)
        if factor is None:
            for i, j in chunks:
                T = _append(T, rows(i, j))
            factor = _nonnegative(T)
        T, start, length = factor, stop, min(2 * length, max(_LONGEST_GRAM, 16 * p))
    return T, shift


def _first_shift(X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None, dtype: Any) -> np.ndarray:
    """The mean of the first rows where it is far from zero on the scale of their spread, else zero.

    Only there does it pay: near zero, X is better left as it is, unrounded and not copied. The mean
    is taken about the first row, so that a constant column's is exact.
    """
    rows = np.concatenate([X, Y], axis=1, dtype=dtype)
    mean = rows[0] + np.average(rows - rows[0], axis=0, weights=weights)
    spread = np.average((rows - mean) ** 2, axis=0, weights=weights)
    return np.where(mean**2 > _FAR * spread, mean, 0).astype(dtype)


def _gram_as_they_are(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The upper half of [1 | X | Y]'[1 | X | Y], X read where it lies."""
    d, k = X.shape[1], Y.shape[1]
    syrk, gemm = _lapack("syrk", X.dtype), _lapack("gemm", X.dtype)
    E = np.concatenate([np.ones((len(Y), 1)), Y], axis=1, dtype=X.dtype)
    XX, EX, G = (np.zeros(shape, X.dtype, order="F") for shape in ((d, d), (1 + k, d), (1 + d + k, 1 + d + k)))
    for i in range(0, len(X), 2 * _CHUNK):
        x, e = X[i : i + 2 * _CHUNK].T, E[i : i + 2 * _CHUNK].T
        XX = syrk(1.0, x, beta=1.0, c=XX, overwrite_c=1)
        EX = gemm(1.0, e, x, trans_b=1, beta=1.0, c=EX, overwrite_c=1)
    EE = syrk(1.0, E.T)
    G[1 : 1 + d, 1 : 1 + d] = XX
    G[0, 1 : 1 + d], G[1 : 1 + d, 1 + d :] = EX[0], EX[1:].T
    G[0, 0], G[0, 1 + d :], G[1 + d :, 1 + d :] = EE[0, 0], EE[0, 1:], EE[1:, 1:]
    return G


def _gram_may_do(T: np.ndarray, b: int) -> bool:
    """Whether a Gram matrix of b more rows is worth a try: enough rows, and T itself not collinear."""
    if b < 2 * len(T):
        return False
    if T[0, 0] ** 2 < b / 2:  # too few rows to tell
        return True
    norms = np.sqrt(np.einsum("ij,ij->j", T, T))
    return bool((np.diagonal(T) >= _least_pivot(T.dtype) * norms).all())


def _cholesky(G: np.ndarray) -> np.ndarray | None:
    """The triangle of the Gram matrix G, given as its upper half; None where that costs digits.

    A column that is zero has no part in it: it stays zero, exactly.
    """
    scale = np.sqrt(np.diagonal(G))
    empty = scale == 0
    scale = np.where(empty, 1, scale)
    G /= scale
    G /= scale[:, None]
    G[empty, empty] = 1
    U, failed = _lapack("potrf", G.dtype)(G, lower=0, clean=1, overwrite_a=1)
    if failed or not _keeps_digits(U):
        return None
    U[empty, empty] = 0
    U *= scale
    return U


def _append(T: np.ndarray, B: np.ndarray, triangle: bool = False) -> np.ndarray:
    """The R of QR of [T; B], by LAPACK's tpqrt; B is a triangle too, or has any number of rows."""
    p = len(T)
    panel = min(p, 16 if p < 128 else 32)  # columns that are applied together; measured
    return _lapack("tpqrt", T.dtype)(p if triangle else 0, panel, T, B)[0]


def _downdate(T: np.ndarray, S: np.ndarray) -> np.ndarray:
    """The triangle of T'T - S'S, or NotContained. Columns that depend on others in T follow them."""
    eps, p = np.finfo(T.dtype).eps, len(T)
    scale = np.sqrt((T**2).sum(axis=0))
    if (S[:, scale == 0] != 0).any():
        raise NotContained("other says something about a column that is zero in every row of this.")
    scale = np.where(scale == 0, 1, scale)
    R, order = scipy.linalg.qr(T / scale, mode="r", pivoting=True)
    r = int((np.abs(np.diagonal(R)) > p * eps * abs(R[0, 0])).sum())  # R[0, 0] = 1 or -1
    S = (S / scale)[:, order]
    dependent = scipy.linalg.solve_triangular(R[:r, :r], R[:r, r:])
    if (np.abs(S[:, r:] - _product(S[:, :r], dependent)) > np.sqrt(eps) * (1 + np.abs(dependent).sum(axis=0))).any():
        raise NotContained("other says something in a direction where this says nothing.")
    q = scipy.linalg.solve_triangular(R[:r, :r], S[:, :r].T, trans=1)
    U, failed = _lapack("potrf", T.dtype)(np.eye(r, dtype=T.dtype) - _product(q, q.T), lower=0, clean=1)
    # the sum of the inverse eigenvalues of I - q q', so at least 1 / delta and at most r / delta
    if failed or not eps * (_lapack("trtri", T.dtype)(U)[0] ** 2).sum() < np.sqrt(eps):
        raise NotContained(
            "other is not contained in this, or nearly all that this says in some direction comes from it: "
            "what is left would have less than half of its digits. Fold the rows that stay from the start instead."
        )
    left = np.zeros((2 * p, p), T.dtype)
    left[p : p + r, order] = _product(U, R[:r]) * scale[order]
    return _triangle_of(left)


# ---- the JAX kernel --------------------------------------------------------------------------------


@cache
def _compiled_fold() -> Callable:
    import jax

    return jax.jit(_fold_jax)


def _fold_jax(T: Array, shift: Array, rows: Array, X: Array, Y: Array, w: Array) -> tuple[Array, Array, Array]:
    """T, shift and rows with X, Y folded in; a row of weight 0 is masked, whatever it holds."""
    import jax
    import jax.numpy as jnp

    B = jnp.concatenate([X, Y], axis=1)
    B = jnp.where(w[:, None] > 0, B, 0)
    total, first = w.sum(), B[jnp.argmax(w > 0)]
    share = (w / jnp.where(total > 0, total, 1))[:, None]
    mean = first + (share * (B - first[None])).sum(axis=0)
    spread = (share * (B - mean[None]) ** 2).sum(axis=0)
    far = (T[0, 0] == 0) & (mean**2 > _FAR * spread)  # as in _first_shift; without rows, mean is 0
    shift = jnp.where(far, mean, shift)
    B = jnp.sqrt(w)[:, None] * jnp.concatenate([jnp.ones_like(w)[:, None], B - shift[None]], axis=1)

    def qr(T: Array, B: Array) -> Array:
        return _triangle_of(jnp.concatenate([T, B]))

    if len(B) < 2 * len(T):
        return qr(T, B), shift, rows + total
    G = _product(T.T, T) + _product(B.T, B)
    scale = jnp.sqrt(jnp.diagonal(G))
    empty = scale == 0
    scale = jnp.where(empty, 1, scale)
    unit = jnp.diag(empty.astype(T.dtype))
    U = jnp.linalg.cholesky(G / scale[:, None] / scale[None] + unit, upper=True)
    T = jax.lax.cond(_keeps_digits(U), lambda T, B: (U - unit) * scale[None], qr, T, B)
    return T, shift, rows + total


# ---- reading: rank, and minimum norm where it is short ---------------------------------------------


def _cond(pred: Array, yes: Callable, no: Callable, *arrays: Array) -> Array:
    if namespace(*arrays) is np:
        return yes(*arrays) if pred else no(*arrays)
    import jax

    return jax.lax.cond(pred, yes, no, *arrays)


def _solve_triangular(R: Array, b: Array) -> Array:
    if namespace(R) is np:
        return scipy.linalg.solve_triangular(R, b, check_finite=False)
    import jax

    return jax.scipy.linalg.solve_triangular(R, b)


def _inverse_norm(R: Array) -> Array:
    """||R^-1||_F; infinite, or NaN, where R has a zero on its diagonal."""
    xp = namespace(R)
    if xp is not np:
        inverse = _solve_triangular(R, xp.eye(len(R), dtype=R.dtype))
    elif R.diagonal().all():
        inverse = _lapack("trtri", R.dtype)(R)[0]
    else:
        return np.inf
    return xp.sqrt((inverse**2).sum())


def _scaled(R: Array) -> tuple[Array, Array]:
    """R with columns of length one (or zero), and the lengths it was divided by."""
    xp = namespace(R)
    norms = xp.sqrt((R**2).sum(axis=0))
    scale = xp.where(norms > 0, norms, 1)
    return R / scale[None], scale


def _rank_tolerance(R: Array, rows: Array) -> Array:
    """The least ratio of singular values that counts; see `LeastSquares.rank`.

    Copies of a column, folded row by row, were told apart by 15 eps after 1,000 rows and 45 eps
    after 20,000. Blocks do better, and weights may be large, so the number of rows is capped.
    """
    xp = namespace(R)
    folded = xp.sqrt(xp.clip(xp.asarray(rows, R.dtype), R.shape[1] ** 2, 1e7))
    return folded * xp.asarray(xp.finfo(R.dtype).eps, R.dtype)


def _surely_full_rank(R: Array, tol: Array) -> Array:
    """A bound that settles the common case without singular values: s_min >= 1 / ||R^-1||_F."""
    R, _ = _scaled(R)
    return tol * namespace(R).sqrt((R**2).sum()) < 1 / _inverse_norm(R)  # False for NaN


def _singular(R: Array, tol: Array) -> tuple[Array, ...]:
    """SVD of the scaled R, the scale, and which singular values count."""
    xp = namespace(R)
    scaled, scale = _scaled(R)
    U, s, Vt = scipy.linalg.svd(scaled) if xp is np else xp.linalg.svd(scaled)
    return U, s, Vt, scale, s > tol * s[0]


def _rank(R: Array, tol: Array) -> Array:
    return _singular(R, tol)[-1].sum()


def _undetermined(R: Array, tol: Array, A: Array) -> Array:
    xp = namespace(R)
    _, _, Vt, scale, counts = _singular(R, tol)
    A = A / scale[None]
    along = xp.where(counts[None], 0, _product(A, Vt.T))
    return (along**2).sum(axis=1) > xp.finfo(R.dtype).eps * (A**2).sum(axis=1)


def _back_substitute(R: Array, tol: Array, z: Array) -> Array:
    return _solve_triangular(R, z)


def _minimum_norm(R: Array, tol: Array, z: Array) -> Array:
    """A solution on scaled columns, less its part in the null space of R.

    That part is found in the basis N = V2 / scale rather than by a projector, so that R N is zero to
    rounding column by column: a projector's error would be that of the largest coefficient.
    """
    xp = namespace(R, z)
    U, s, Vt, scale, counts = _singular(R, tol)
    Z = z.reshape(len(z), -1)
    theta = _product(Vt.T, _product(U.T, Z) * xp.where(counts, 1 / xp.where(counts, s, 1), 0)[:, None]) / scale[:, None]
    # The last rows of Vt span the null space: in reverse they come first, and QR of the rest, masked, is zero.
    null = xp.where(counts, 0, 1).astype(R.dtype)[::-1]
    N = (Vt / scale[None]).T[:, ::-1] * null[None]
    Q, C = scipy.linalg.qr(N) if xp is np else xp.linalg.qr(N)
    part = _solve_triangular(C + xp.diag(1 - null), _product(Q.T, theta) * null[:, None])
    theta = theta - _product(N, part)
    full = counts.all()
    safe = xp.where(full, R, xp.eye(len(R), dtype=R.dtype))  # rank = d after all: keep QR's accuracy
    return xp.where(full, _solve_triangular(safe, z), theta.reshape(z.shape))
