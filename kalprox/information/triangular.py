"""The information monoid: the sufficient statistics of least squares in one triangular matrix.

For rows x_k with targets y_k and weights w_k, in units of the noise variance,

    sum_k w_k (y_k - x_k' theta)^2  =  ||R theta - z||^2 + rss,      R upper triangular.

The class stores the triangle T of B = sqrt(w) [1 | X - c | Y - m], with T'T = B'B. c and m follow the
means of columns that lie far from zero for their spread. R, z and rss, with or without an intercept, are views of T.
Information adds: a stream is a left fold, several machines are a
tree of merges, forgetting multiplies T by a number, and a sliding window subtracts its oldest block. The zero element
is a valid start.

The linear algebra is in `kalprox.linalg`: `fold` and `triangle` add triangles, `fold.downdate` subtracts them.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from kalprox.base.arrays import (
    Array,
    alike,
    asarray_like,
    available_dtype,
    certainly,
    is_traced,
    masked,
    namespace,
    pytree,
)
from kalprox.base.checks import all_finite, check_array, check_fading, check_finite, check_floating, check_is, concrete
from kalprox.base.control import compiled, cond_rare
from kalprox.base.tree import Sizes, expect, leaf
from kalprox.information.base import Equations, LeastSquares
from kalprox.linalg.fold import downdate, fold, joined_triangle
from kalprox.linalg.triangle import product, recenter, square, stacked_triangle, triangle_of
from kalprox.sources import Block


class NotContained(ValueError):
    """Raised by `Information.subtract` if the difference is not an information, or would be inaccurate."""


@pytree
class Information(LeastSquares):
    """The information of rows (X, y) about the coefficients of a linear model, in units of the noise variance.

    An `Information` is an immutable JAX pytree of O(d^2) numbers, however many rows it sums up; of n < d rows in NumPy
    arrays it holds O(n d) numbers. Its own attributes and
    methods (`R`, `z`, `solve` and so on) belong to the model without intercept; `with_intercept()` and `centered()`
    return those of the model with an intercept. All three are exact views of the same triangle: rows are stored
    relative to a shift, which costs nothing and keeps the digits of features far from zero.

    Make one with `zero`, `from_rows`, `from_block` or `from_prior`; add two with `merge` or `+`.

    Parameters
    ----------
    T : array of shape (1 + d + k, 1 + d + k), or (m, 1 + d + k) with 1 <= m <= d + k
        The upper triangle of the weighted rows [1 | X - c | Y - m], with a nonnegative diagonal. Of m rows, fewer than
        columns, NumPy arrays need not hold the rows of zeros below.
    shift : array of shape (d + k,)
        (c, m), subtracted from [X | Y]. It follows the means of columns that lie far from zero for their spread.
    rows : scalar array
        The number of rows, from which degrees of freedom are counted: the sum of the weights, which are repetitions,
        unless `fold` is given other counts. It is exact if the counts are whole numbers. The sum of the weights is
        T[0, 0]^2.
    squares : scalar array
        The sum over rows of the squared factors that forgetting has left of them; equal to `rows` if nothing was
        forgotten.
    targets : int or None
        The number k of columns of y if y is a matrix, None if y is a vector.
    lost : array of shape (1 + d + k, 1 + d + k), or None
        The account of `subtract`: the triangle of all that was held whenever something was subtracted, whose rounding
        error is still in T. None if nothing was.

    Notes
    -----
    In float32, single rows are lost to rounding after about 1e7 of them: fold them in blocks.

    Examples
    --------
    >>> info = Information.from_rows(np.array([[1.0], [2.0], [3.0]]), np.array([3.0, 5.0, 7.0]))
    >>> bool(np.allclose(info.solve(), 34 / 14)), float(info.rows)
    (True, 3.0)
    >>> info.with_intercept().solve().round(12)
    array([1., 2.])
    """

    T: Array = leaf(values="moderate")
    shift: Array = leaf("c", values="moderate")
    rows: Array = leaf("", sign="nonnegative", values="moderate")
    squares: Array = leaf("", sign="nonnegative", values="moderate")
    targets: int | None = leaf(default=None, static=True)
    lost: Array | None = leaf("1+c,1+c", values="moderate", default=None)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless this can be the information about the inputs and targets of a file."""
        p = len(self.shift)
        expect(self.targets != 0 and ("d" not in sizes or p == (sizes["d"] or 0) + (self.targets or 1)))
        expect(self.T.ndim == 2 and 1 <= len(self.T) <= 1 + p == self.T.shape[1])
        expect(not np.tril(self.T, -1).any() and (np.diagonal(self.T) >= 0).all())

    @classmethod
    def zero(cls, d: int, targets: int | None = None, *, dtype: Any = np.float64, xp: ModuleType = np) -> "Information":
        """Return the information of no rows: the identity element of `merge`.

        Parameters
        ----------
        d : int
            The number of coefficients, not counting an intercept.
        targets : int, optional
            The number of columns of y if y is a matrix.
        dtype : dtype, optional
        xp : module
            `numpy` or `jax.numpy`.

        Returns
        -------
        Information

        Examples
        --------
        >>> float(Information.zero(3).rows)
        0.0
        """
        check_is("xp", xp, ModuleType, "numpy or jax.numpy")
        p = d + (targets or 1)
        rows = xp.zeros((), np.float64 if xp is np else dtype)
        return cls(xp.zeros((1 + p, 1 + p), dtype), xp.zeros(p, dtype), rows, rows, targets)

    @classmethod
    def from_rows(
        cls, X: Array, y: Array, weights: Array | None = None, counts: Array | None = None, squares: Array | None = None
    ) -> "Information":
        """Return the information of rows.

        Parameters
        ----------
        X : array of shape (n, d)
        y : array of shape (n,) or (n, k)
        weights : array of shape (n,), optional
            The weights of the rows, finite and >= 0.
        counts, squares : array of shape (n,), optional
            What each row adds to `rows` and to `squares`; see `fold`.

        Returns
        -------
        Information

        Examples
        --------
        >>> X, y = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 3.0, 5.0])
        >>> Information.from_rows(X, y).solve().round(12)
        array([1., 2.])
        """
        _check_rows(X, y, weights)
        targets = y.shape[1] if y.ndim == 2 else None
        return cls.zero(X.shape[1], targets, dtype=X.dtype, xp=namespace(X, y, weights)).fold(
            X, y, weights, counts, squares
        )

    @classmethod
    def from_block(cls, block: Block) -> "Information":
        """Return the information of a `kalprox.sources.Block`.

        Parameters
        ----------
        block : kalprox.sources.Block

        Returns
        -------
        Information

        Examples
        --------
        >>> float(Information.from_block(Block(np.eye(2), np.ones(2))).rows)
        2.0
        """
        check_is("block", block, Block, "a Block of rows")
        return cls.from_rows(block.X, block.y, block.weights, block.counts, block.squares)

    @classmethod
    def from_prior(cls, mean: Array, root: Array) -> "Information":
        """Return the information of a Gaussian prior, ||root (theta - mean)||^2 in units of the noise variance.

        Its `rows`, `squares` and `rss` are 0. An intercept has no prior.

        Parameters
        ----------
        mean : array of shape (d,), or (d, k) for a matrix of targets
            The prior mean.
        root : array of shape (m, d)
            A square root of the prior precision: root'root is the precision in units of the noise variance. For the
            prior covariance v0 I and the noise precision gamma it is eye(d) / sqrt(gamma * v0).

        Returns
        -------
        Information

        Examples
        --------
        >>> prior = Information.from_prior(np.array([1.0]), np.array([[3.0]]))
        >>> data = Information.from_rows(np.array([[1.0]]), np.array([2.0]))
        >>> merge(prior, data).solve()  # (9 * 1 + 1 * 2) / (9 + 1)
        array([1.1])
        """
        xp = namespace(mean, root)
        for name, value in (("mean", mean), ("root", root)):
            check_floating(name, value)
            check_finite(name, value)
        d = mean.shape[0] if mean.ndim else 0
        if mean.ndim not in (1, 2) or root.ndim != 2 or root.shape[1] != d:
            raise ValueError(
                f"mean must have shape (d,) or (d, k), and root (m, d); got {mean.shape} and {root.shape}."
            )
        zero = cls.zero(d, mean.shape[1] if mean.ndim == 2 else None, dtype=_dtype(xp, mean, root), xp=xp)
        R = triangle_of(xp.concatenate([xp.zeros((d, d), zero.T.dtype), root.astype(zero.T.dtype)]))
        z = product(R, mean.astype(R.dtype).reshape(d, -1))  # consistent with R, so that rss is 0
        below = xp.concatenate([xp.concatenate([R, z], axis=1), zero.T[1 + d :, 1:]])
        return cls(xp.pad(below, ((1, 0), (1, 0))), zero.shift, zero.rows, zero.squares, zero.targets)

    @property
    def d(self) -> int:
        """The number of coefficients, not counting an intercept."""
        return int(self.T.shape[-1]) - 1 - (self.targets or 1)

    def fold(
        self,
        X: Array,
        y: Array,
        weights: Array | None = None,
        counts: Array | None = None,
        squares: Array | None = None,
        *,
        visit: Callable[[int, int], None] | None = None,
    ) -> "Information":
        """Return the sum of this information and that of a block of rows; exact up to rounding.

        The cost is O(b d^2): about 1.5 times that of X'X if the columns are far from collinear and b is many times d,
        about four times that of X'X otherwise.

        Parameters
        ----------
        X : array of shape (b, d)
        y : array of shape (b,) or (b, k)
        weights : array of shape (b,), optional
            The weights of the rows, finite and >= 0. A row of weight 0 is ignored, even if it contains NaN.
        counts : array of shape (b,), optional
            What each row adds to `rows`. The default is its weight: a row of weight 2 counts as two equal rows. Ones
            make the weights precisions, 1 / sigma_i^2 up to a common factor: a row of weight 2 then counts as one row
            of half the noise variance.
        squares : array of shape (b,), optional
            What each row adds to `squares`. The default is its count; other values are needed if forgetting has faded
            the rows, see `kalprox.sources.weighting.faded`.
        visit : function, optional
            Called with the ends (i, j) of every piece of the rows before it is folded, and perhaps again. The piece is
            then in the cache, so that other work on its rows is faster here than before or after.

        Returns
        -------
        Information

        Raises
        ------
        ValueError
            If the shapes do not fit, or a row is not finite. The message names the rows.

        Examples
        --------
        >>> info = Information.zero(1)
        >>> for x, y in [(1.0, 3.0), (2.0, 5.0), (3.0, 7.0)]:
        ...     info = info.fold(np.array([[x]]), np.array([y]))
        >>> info.with_intercept().solve().round(12)
        array([1., 2.])
        """
        _check_rows(X, y, weights)
        expected = (self.d,), () if self.targets is None else (self.targets,)
        if (X.shape[1:], y.shape[1:]) != expected:
            raise ValueError(
                f"rows of X and y must have the shapes {expected[0]} and {expected[1]} of this information; "
                f"got {X.shape[1:]} and {y.shape[1:]}."
            )
        dtype = _dtype(namespace(self.T, X, y, weights), self.T, X, y)
        Y = y.reshape(len(X), self.T.shape[1] - 1 - self.d)
        T, shift = fold(self.T, self.shift, X, Y, weights, dtype, visit)
        if not all_finite(T):
            for name, values in (("X", X), ("y", Y)):
                check_finite(name, masked(weights, values))
            largest = np.maximum(*(np.abs(np.asarray(masked(weights, a))).max(axis=1) for a in (X, Y))).argmax()
            raise ValueError(
                f"The norms of the rows are too large for {dtype}; row {largest} has the largest entry. Scale the "
                "columns down first."
            )
        counts = weights if counts is None else counts
        rows, before = alike(T, self.rows, self.squares)
        more = _total(X, weights, counts)
        squares = before + (more if squares is None else _total(X, weights, squares))
        lost = _moved(self.lost, self.shift, shift)
        return Information(T, shift, rows + more, squares, self.targets, lost)

    def forget(self, rho: Any) -> "Information":
        """Return this information with the weight of every row multiplied by rho. O(d^2).

        Parameters
        ----------
        rho : float
            The factor, 0 < rho <= 1.

        Returns
        -------
        Information

        Examples
        --------
        >>> info = Information.from_rows(np.array([[1.0], [2.0]]), np.array([3.0, 5.0]))
        >>> float(info.forget(0.5).rows)
        1.0
        """
        check_fading(rho)
        xp = namespace(self.T, rho)
        rho = asarray_like(rho, self.T)
        rows, squares = alike(rho, self.rows, self.squares)
        root = xp.sqrt(rho)
        lost = None if self.lost is None else root * self.lost
        return Information(root * self.T, self.shift, rho * rows, rho**2 * squares, self.targets, lost)

    def subtract(self, other: "Information") -> "Information":
        """Return this information without `other`: delete rows, or the oldest block of a sliding window. O(d^3).

        JAX arrays are computed on the host, so that `subtract` cannot be traced.

        Parameters
        ----------
        other : Information
            The information of rows that were folded in before. Rows that were never folded in are not detected if they
            are no more informative than those that were: they are subtracted all the same.

        Returns
        -------
        Information

        Raises
        ------
        NotContained
            If fewer than half of the digits would remain, counting what earlier calls of `subtract` lost, or `other`
            determines a direction of theta that this information does not determine.

        Examples
        --------
        >>> old = Information.from_rows(np.array([[1.0], [2.0], [4.0]]), np.array([9.0, 7.0, 8.0]))
        >>> new = Information.from_rows(np.array([[1.0], [2.0], [3.0]]), np.array([3.0, 5.0, 8.0]))
        >>> bool(np.allclose((old + new).subtract(old).solve(), new.solve()))
        True
        """
        _check_alike(self, other)
        if is_traced(self.T, other.T):
            raise TypeError("subtract depends on values, so jax.jit and jax.vmap cannot trace it: call it outside.")
        if not other.T.any():
            return self
        rows, squares = self.rows - other.rows, self.squares - other.squares
        if rows <= 0:
            raise NotContained(
                f"other must have fewer rows than this information; got {other.rows:g} of {self.rows:g}. "
                "To delete every row, start again from Information.zero or from_prior."
            )
        xp = namespace(self.T, other.T)
        T, S = square(self.T), np.asarray(square(_moved(other.T, other.shift, self.shift)))
        lost = np.asarray(_pooled(T, self.lost, _moved(other.lost, other.shift, self.shift)))
        T = downdate(np.asarray(T), S, np.asarray(self.rows), lost)
        if isinstance(T, str):
            raise NotContained(T)
        rows, squares = (xp.asarray(count, self.rows.dtype) for count in (rows, squares))
        return Information(xp.asarray(T), self.shift, rows, squares, self.targets, xp.asarray(lost))

    @property
    def x_mean(self) -> Array:
        """The weighted mean of the rows of X, shape (d,); zero before the first row."""
        return self.means()[0][: self.d]

    @property
    def y_mean(self) -> Array:
        """The weighted mean of y, shape () or (k,); zero before the first row."""
        means = self.means()[0][self.d :]
        return means[0] if self.targets is None else means

    def means(self) -> tuple[Array, Array]:
        """Return the weighted means of the columns of [X | y], and what rounding left of them.

        Their sum is the mean with the digits of the triangle: means of 1e12 are rounded by 1e-4.

        Returns
        -------
        mean, rest : array of shape (d + k,)

        Examples
        --------
        >>> Information.from_rows(np.array([[1.0], [2.0]]), np.array([3.0, 5.0])).means()
        (array([1.5, 4. ]), array([0., 0.]))
        """
        xp, t = namespace(self.T), self.T[0, 0]
        shift, more = self.shift, self.T[0, 1:] / xp.where(t > 0, t, 1)
        mean = shift + more
        part = mean - shift
        return mean, (shift - (mean - part)) + (more - part)  # Knuth's exact error of a sum

    def about_means(self) -> "Information":
        """Return the same information with the means as its shift, which may have been the values of a row. O(d^2).

        Returns
        -------
        Information

        Examples
        --------
        >>> Information.from_rows(np.array([[1.0], [2.0]]), np.array([3.0, 5.0])).about_means().shift
        array([1.5, 4. ])
        """
        means = self.means()[0]
        T, lost = (_moved(a, self.shift, means) for a in (self.T, self.lost))
        return Information(T, means, self.rows, self.squares, self.targets, lost)

    def with_origin(self, columns: Array, values: Array) -> "Information":
        """Return the information with other values of columns of X that have been constant in all rows. O(d).

        A constant takes no row of the triangle: it is in the shift alone, and may be changed afterwards.

        Parameters
        ----------
        columns : array of int
        values : array of float

        Returns
        -------
        Information

        Examples
        --------
        >>> info = Information.from_rows(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([3.0, 5.0]))
        >>> info.with_origin(np.array([1]), np.array([7.0])).x_mean
        array([1.5, 7. ])
        """
        columns = np.asarray(columns)
        if columns.dtype.kind not in "iu" or (columns.size and not ((columns >= 0) & (columns < self.d)).all()):
            raise ValueError(f"columns must be numbers of columns, from 0 to {self.d - 1}; got {columns!r}.")
        if np.any(self.T[:, 1 + columns]):
            raise ValueError("columns must have been constant, and equal to the shift, in all rows.")
        shift = np.array(self.shift)
        shift[columns] = values
        return Information(self.T, shift, self.rows, self.squares, self.targets, self.lost)

    def with_features(self, more: int, at: int | None = None) -> "Information":
        """Return the information of the same rows with more columns of X, which are 0 in all of them. Exact; O(d^2).

        Parameters
        ----------
        more : int
            The number of columns.
        at : int, optional
            The position of the first of them; after the last column by default.

        Returns
        -------
        Information

        Examples
        --------
        >>> info = Information.from_rows(np.array([[1.0], [2.0]]), np.array([3.0, 5.0])).with_features(1)
        >>> info.fold(np.array([[0.0, 1.0]]), np.array([7.0])).solve().round(12)
        array([2.6, 7. ])
        """
        xp, at = namespace(self.T), self.d if at is None else at

        def wider(T: Array) -> Array:
            T = xp.concatenate([T[:, : 1 + at], xp.zeros((len(T), more), T.dtype), T[:, 1 + at :]], axis=1)
            if len(T) <= 1 + at:
                return T
            return xp.concatenate([T[: 1 + at], xp.zeros((more, T.shape[1]), T.dtype), T[1 + at :]])

        shift = xp.concatenate([self.shift[:at], xp.zeros(more, self.shift.dtype), self.shift[at:]])
        lost = None if self.lost is None else wider(self.lost)
        return Information(wider(self.T), shift, self.rows, self.squares, self.targets, lost)

    def triangle(self) -> Array:
        """Return the triangle [[R, z], [0, rho]] of the model without intercept. O(d^2).

        Returns
        -------
        array of shape (d + k, d + k), or with fewer rows

        Examples
        --------
        >>> abs(Information.from_rows(np.eye(2), np.array([1.0, 3.0])).triangle().round(12))
        array([[1., 0., 1.],
               [0., 1., 3.]])
        """
        row = self.T[:1, 1:] + self.T[0, 0] * self.shift[None]
        return stacked_triangle(self.T[1:, 1:], row)

    def centered(self) -> Equations:
        """Return the equations of theta with the intercept minimised out.

        The intercept is then y_mean - x_mean' theta, and the variance of a prediction at x in units of the noise
        variance is 1 / T[0, 0]^2 + (x - x_mean)' (R'R)^-1 (x - x_mean). The equations contain no means, so features
        around 1e8 keep their digits.

        Returns
        -------
        Equations

        Examples
        --------
        >>> info = Information.from_rows(np.array([[1.0], [2.0], [3.0]]), np.array([3.0, 5.0, 7.0]))
        >>> info.centered().solve().round(12)
        array([2.])
        """
        return Equations(self.T[1:, 1:], self.rows, self.squares, self.targets)

    def with_intercept(self) -> Equations:
        """Return the equations of the d + 1 coefficients (intercept, theta): R = [[t, t x_mean'], [0, R_c]].

        The lower block is `centered()`, so that back-substitution finds theta first, with the same digits.

        Returns
        -------
        Equations
        """
        return Equations(recenter(self.T, self.shift), self.rows, self.squares, self.targets)

    def __add__(self, other: "Information") -> "Information":
        return merge(self, other)


def merge(first: Information, *others: Information) -> Information:
    """Add information: the result is that of all rows together, up to rounding.

    The arguments are merged in the given order as a balanced binary tree, O(d^3) per merge. `Information.zero` is the
    identity element, bit for bit. The shift of each merge is that of the side with the larger weight.

    Parameters
    ----------
    first, *others : Information
        About the same number of coefficients and targets.

    Returns
    -------
    Information

    Examples
    --------
    >>> X, y = np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([3.0, 5.0, 7.0, 9.0])
    >>> whole = merge(Information.from_rows(X[:2], y[:2]), Information.from_rows(X[2:], y[2:]))
    >>> float(whole.rows), whole.with_intercept().solve().round(12)
    (4.0, array([1., 2.]))
    """
    level = [first, *others]
    for other in others or [first]:
        _check_alike(first, other)
    while len(level) > 1:
        pairs = [_merge(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) // 2 * 2 :]
    return level[0]


def _merge(a: Information, b: Information) -> Information:
    if certainly(b.T == 0):
        return a
    if certainly(a.T == 0):
        return b
    xp = namespace(a.T, b.T)
    dtype = _dtype(xp, a.T, b.T)
    Ta, Tb = (xp.asarray(T if xp is np else square(T), dtype) for T in (a.T, b.T))
    ca, cb = xp.asarray(a.shift, dtype), xp.asarray(b.shift, dtype)
    shift = xp.where(Ta[0, 0] >= Tb[0, 0], ca, cb)
    if xp is np:
        T = stacked_triangle(recenter(Ta, ca - shift), recenter(Tb, cb - shift), triangles=True)
    else:
        T = compiled(_sum, "targets")(recenter(Ta, ca - shift), recenter(Tb, cb - shift), targets=a.targets or 1)
    rows, more, squares, more_squares = alike(T, a.rows, b.rows, a.squares, b.squares)
    lost = _pooled(_moved(a.lost, ca, shift), _moved(b.lost, cb, shift))
    return Information(T, shift, rows + more, squares + more_squares, a.targets, lost)


def _sum(T: Array, S: Array, targets: int) -> Array:
    """Return the triangle of the rows of two; zero information is the identity, bit for bit, and costs nothing."""
    return cond_rare(
        T.any() & S.any(),
        lambda: joined_triangle(T, S, targets, triangles=True),
        lambda: namespace(T, S).where(S.any(), S, T),
    )


def _moved(T: Array | None, shift: Array, to: Array) -> Array | None:
    """Return a triangle of rows less `shift` as one of rows less `to`; a prior, which has no rows, is left as it is."""
    if T is None or shift is to:
        return T
    return recenter(T, namespace(T).where(T[0, 0] > 0, shift - to, 0))


def _pooled(*triangles: Array | None) -> Array | None:
    """Return the triangle of all rows of those that are not None; None if all are."""
    first, *others = [T for T in triangles if T is not None] or [None]
    for other in others:
        first = stacked_triangle(first, other, triangles=True)
    return first


def _check_rows(X: Array, y: Array, weights: Array | None) -> None:
    check_array("X", X)
    check_array("y", y)
    if X.ndim != 2 or y.ndim not in (1, 2) or X.shape[0] != y.shape[0]:
        raise ValueError(f"X must have shape (n, d) and y (n,) or (n, k); got shapes {X.shape} and {y.shape}.")
    check_floating("X", X)
    check_floating("y", y)
    if weights is not None:
        check_array("weights", weights)
        if weights.shape != X.shape[:1]:
            raise ValueError(f"weights must have one number per row, shape {X.shape[:1]}; got shape {weights.shape}.")
        check_floating("weights", weights)
        check_finite("weights", weights)
        numbers = concrete(weights)
        if numbers is not None and (numbers < 0).any():
            raise ValueError(f"weights must be >= 0; got {numbers.min():g} in row {numbers.argmin()}.")


def _total(X: Array, weights: Array | None, counts: Array | None) -> Any:
    """Return the sum of the counts of the rows of positive weight."""
    if counts is None:
        return len(X)
    check_array("counts", counts)
    return masked(weights, counts).sum(dtype=np.float64 if namespace(counts) is np else None)


def _check_alike(a: Information, b: Information) -> None:
    for info in (a, b):
        check_is("What is added or subtracted", info, Information, "an Information")
    if (a.d, a.targets) != (b.d, b.targets):
        raise ValueError(
            f"Both must have the same number of coefficients and targets; got d = {a.d}, targets = {a.targets} "
            f"and d = {b.d}, targets = {b.targets}."
        )


def _dtype(xp: ModuleType, *arrays: Array) -> Any:
    """Return the dtype to compute in: float32 if all arrays are, else float64 if JAX's x64 flag allows it."""
    dtype = np.result_type(np.float32, *(a.dtype for a in arrays))
    return available_dtype(xp, np.dtype(np.float64) if dtype.itemsize > 8 else dtype)
