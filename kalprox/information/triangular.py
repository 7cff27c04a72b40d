"""The information monoid: all that rows say about theta, in one triangle that adds.

For rows x_k with targets y_k and weights w_k, in units of the noise,

    sum_k w_k (y_k - x_k' theta)^2  =  ||R theta - z||^2 + rss,      R upper triangular.

What is stored is the triangle T of B = sqrt(w) [1 | X - c | Y - m], with T'T = B'B and c, m fixed
by the first rows: R, z and rss, with or without an intercept, are views of it. Information adds:
a stream is a left fold, several machines are a tree of merges, forgetting scales, a sliding window
subtracts. No information at all is a legal start.

How triangles are added, subtracted and read is `triangle.py`'s.
"""

from types import ModuleType
from typing import Any

import numpy as np

from kalprox._arrays import Array, alike, asarray_like, is_traced, namespace, pytree, register_pytrees, static
from kalprox._checks import check_finite, check_floating, check_positive, concrete
from kalprox.information.base import Equations, LeastSquares
from kalprox.linalg.downdate import downdate
from kalprox.linalg.fold import fold_jax, fold_numpy
from kalprox.linalg.triangle import product, triangle_of
from kalprox.sources import Block

__all__ = ["Information", "NotContained", "merge"]


class NotContained(ValueError):
    """What was to be subtracted is not in the information, or too little would be left to be accurate."""


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
    def from_block(cls, block: Block) -> "Information":
        """The information of a block of a source."""
        return cls.from_rows(block.X, block.y, block.weights)

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
        R = triangle_of(xp.concatenate([xp.zeros((d, d), zero.T.dtype), root.astype(zero.T.dtype)]))
        z = product(R, mean.astype(R.dtype).reshape(d, -1))  # consistent with R, so that rss is 0
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
                T, shift = fold_numpy(self.T.astype(dtype), self.shift.astype(dtype), X, Y, weights)
            rows = self.rows + (len(X) if weights is None else weights.sum(dtype=np.float64))
            if not np.isfinite(T).all():
                check_finite("X", X)
                check_finite("y", y)
                largest = np.maximum(np.abs(X).max(axis=1), np.abs(Y).max(axis=1)).argmax()
                raise ValueError(
                    f"the rows' norms are too large for {dtype}, row {largest} the largest of them: scale the columns "
                    "down first."
                )
        else:
            register_pytrees()
            w = xp.ones(len(X), dtype) if weights is None else xp.asarray(weights, dtype)
            if not is_traced(X, Y, w):
                for name, rows_ in (("X", X), ("y", Y)):
                    check_finite(name, rows_ if weights is None else xp.where(w[:, None] > 0, rows_, 0))
            T, shift, rows = (xp.asarray(a, dtype) for a in (self.T, self.shift, self.rows))
            T, shift, rows = fold_jax(T, shift, rows, xp.asarray(X, dtype), xp.asarray(Y, dtype), w)
        return Information(T, shift, rows, self.targets)

    def forget(self, rho: Any) -> "Information":
        """All of it worth rho times as many rows, 0 < rho <= 1: sqrt(rho) T."""
        check_positive("rho", rho)
        number = concrete(rho)
        if number is not None and (number > 1).any():
            raise ValueError(f"rho must be at most 1 (which forgets nothing); got {rho!r}.")
        xp = namespace(self.T, rho)
        rho = asarray_like(rho, self.T)
        (rows,) = alike(rho, self.rows)
        return Information(xp.sqrt(rho) * self.T, self.shift, rho * rows, self.targets)

    def subtract(self, other: "Information") -> "Information":
        """This information without `other`: rows deleted, or the oldest block of a window. O(d^3).

        Refused with `NotContained` when less than half of the digits would be left, or when `other`
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
        T = downdate(np.asarray(self.T), np.asarray(S), np.asarray(self.rows))
        if isinstance(T, str):
            raise NotContained(T)
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
        row = self.T[:1, 1:] + self.T[0, 0] * self.shift[None]
        return triangle_of(namespace(row).concatenate([self.T[1:, 1:], row]))

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

    def __add__(self, other: "Information") -> "Information":
        return merge(self, other)


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
    T = triangle_of(xp.concatenate([_recenter(Ta, ca - shift), _recenter(Tb, cb - shift)]), triangles=True)
    if xp is not np:
        T = xp.where(Tb.any(), xp.where(Ta.any(), T, Tb), Ta)
    rows_a, rows_b = alike(T, a.rows, b.rows)
    return Information(T, shift, rows_a + rows_b, a.targets)


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


def _recenter(T: Array, change: Array) -> Array:
    """T for rows whose shift is less by `change`: only the row of the means moves."""
    xp = namespace(T)
    top = T[:1] + T[0, 0] * xp.concatenate([xp.zeros(1, T.dtype), change])[None]
    return xp.concatenate([top, T[1:]])
