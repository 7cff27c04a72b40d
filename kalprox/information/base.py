"""Least squares in triangular form: the function ||R theta - z||^2 + rss of theta, and quantities computed from it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from kalprox.base.arrays import Array, fields_repr, is_number, namespace, pytree, static
from kalprox.base.checks import check_array, check_is
from kalprox.base.text import count
from kalprox.base.text import names as listed
from kalprox.base.tree import PickledFields
from kalprox.linalg.factor import Factor
from kalprox.linalg.rank import minimum_norm, rank, undetermined
from kalprox.linalg.triangle import product, qr, solve_triangular, square, triangle_of
from kalprox.regularizers import Regularizer
from kalprox.solvers.prox import Prox, posterior_root, prox

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_A_REGULARIZER = "a regulariser, such as kalprox.regularizers.Zero()"
_MAX = 30  # directions in a figure of its own
_LEAST = 11.0  # points of the height of a direction
_ROW = 0.23, 1.3  # inches of the height of a figure: for each direction, and for the rest
MINUS = "\N{MINUS SIGN}"
_PARTS = 3  # coefficients that are named in a direction
_PART = 0.35  # of its largest entry, below which an entry of a direction is not named
_LARGE = 1000  # coefficients up to which HTML says which are determined: it takes O(d^3)


class Counted(PickledFields):
    """Sums over rows that may have faded, and how many rows they are worth.

    Attributes
    ----------
    rows : scalar array
        The number of rows, each counted as often as it is repeated, and as much as forgetting has left of it.
    squares : scalar array
        The sum over the same rows of the square of what forgetting has left of each; equal to `rows` if nothing was
        forgotten.
    """

    rows: Array
    squares: Array

    @property
    def fading(self) -> Array:
        """squares / rows, the mean of what forgetting has left of the rows, weighted by itself; 1 without forgetting.

        Dividing all weights by this number makes their sum equal to the sum of their squares: the effective number of
        rows, rows^2 / squares.
        """
        some = self.rows > 0
        return namespace(self.rows).where(some, self.squares, 1) / namespace(self.rows).where(some, self.rows, 1)

    @property
    def effective_rows(self) -> Array:
        """The number of rows of equal weight that determine the noise variance as well: rows^2 / squares."""
        return self.rows / self.fading


class LeastSquares(Counted, ABC):
    """The function ||R theta - z||^2 + rss of theta, and quantities computed from it.

    With a vector of targets, z and theta have shape (d,) and rss has shape (). With a matrix of k targets, which share
    R, the shapes are (d, k) and (k,). Computing R, z and rss costs O(d^2), every other quantity O(d^3).

    Attributes
    ----------
    rows, squares : scalar array
        See `Counted`.
    targets : int or None
        The number of columns of y if y was a matrix, None if y was a vector.
    """

    targets: int | None

    @abstractmethod
    def triangle(self) -> Array:
        """Return the upper triangle [[R, z], [0, rho]]; the squared column norms of rho are `rss`.

        Of fewer rows than columns, the rows of zeros below them may be missing.
        """

    def compact(self) -> tuple[Array, Array, Array]:
        """Return R, z and rss; R and z have fewer than d rows where the rows of zeros below them are not held.

        Returns
        -------
        R : array of shape (m, d)
        z : array of shape (m,) or (m, k)
        rss : array of shape () or (k,)

        Examples
        --------
        >>> import kalprox as kp
        >>> info = kp.Information.from_rows(np.array([[3.0, 4.0]]), np.array([5.0]))
        >>> [a.shape for a in info.compact()], info.R.shape
        ([(1, 2), (1,), ()], (2, 2))
        """
        triangle = self.triangle()
        d = triangle.shape[-1] - (self.targets or 1)
        R, z, rss = triangle[:d, :d], triangle[:d, d:], (triangle[d:, d:] ** 2).sum(axis=0)
        return (R, z[:, 0], rss[0]) if self.targets is None else (R, z, rss)

    @property
    def R(self) -> Array:
        """The upper triangular matrix R of shape (d, d), with a nonnegative diagonal."""
        return square(self.compact()[0])

    @property
    def z(self) -> Array:
        """The right-hand side, shape (d,) or (d, k)."""
        R, z, _ = self.compact()
        missing = R.shape[1] - len(R)
        return z if missing == 0 else namespace(z).pad(z, ((0, missing), (0, 0))[: z.ndim])

    @property
    def rss(self) -> Array:
        """The residual sum of squares that no theta can reduce, shape () or (k,).

        It is the minimum of the residual sum of squares if the rank is d. If the rank is smaller, rounding moves up to
        d - rank of its terms into z; the minimum is then `residual(solve())`.
        """
        return self.compact()[2]

    @property
    def d(self) -> int:
        """The number of coefficients, including the intercept if it is one of them."""
        return int(self.triangle().shape[-1]) - (self.targets or 1)

    def precision(self) -> Array:
        """Return R'R, the inverse covariance of theta in units of the noise variance; positive semi-definite.

        Returns
        -------
        array of shape (d, d)

        Examples
        --------
        >>> import kalprox as kp
        >>> kp.Information.from_rows(np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([1.0, 3.0])).precision().round(12)
        array([[2., 2.],
               [2., 4.]])
        """
        R = self.compact()[0]
        return product(R.T, R)

    def residual(self, theta: Array) -> Array:
        """Return the weighted residual sum of squares at theta, ||R theta - z||^2 + rss, without cancellation.

        Parameters
        ----------
        theta : array of shape (d,) or (d, k)

        Returns
        -------
        array of shape () or (k,)

        Examples
        --------
        >>> import kalprox as kp
        >>> info = kp.Information.from_rows(np.array([[1.0], [2.0], [3.0]]), np.array([3.0, 5.0, 7.0]))
        >>> round(float(info.residual(np.array([2.0]))), 12)
        3.0
        """
        check_array("theta", theta)
        R, z, rss = self.compact()
        return ((product(R, theta) - z) ** 2).sum(axis=0) + rss

    def solve(self) -> Array:
        """Return the least-squares solution, or the solution of minimum norm if the rank is below d.

        If the rank is d the solution is found by back-substitution, with the accuracy of QR.

        Returns
        -------
        array of shape (d,) or (d, k)
        """
        return minimum_norm(self.R, self.rows, self.z)

    def solve_full_rank(self) -> Array:
        """Return the least-squares solution by back-substitution, in O(d^2); the rank must be known to be d.

        Returns
        -------
        array of shape (d,) or (d, k)

        Examples
        --------
        >>> import kalprox as kp
        >>> kp.Information.from_rows(np.eye(2), np.array([1.0, 3.0])).solve_full_rank()
        array([1., 3.])
        """
        return solve_triangular(self.R, self.z)

    def single_targets(self) -> list["Equations"]:
        """Return the equations of each column of y separately; an empty list if y was a vector.

        Returns
        -------
        list of Equations

        Examples
        --------
        >>> import kalprox as kp
        >>> info = kp.Information.from_rows(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> [equations.solve() for equations in info.single_targets()]
        [array([1., 3.]), array([2., 4.])]
        """
        R, z, rss = self.R, self.z, self.rss
        d = len(R)
        found = []
        for j in range(self.targets or 0):
            T = np.zeros((d + 1, d + 1), R.dtype)
            T[:d, :d], T[:d, d], T[d, d] = R, z[:, j], rss[j] ** 0.5
            found.append(Equations(T, self.rows, self.squares))
        return found

    def in_coordinates(self, P: Array) -> "Equations":
        """Return the equations of phi where R theta = P phi. NumPy only.

        Parameters
        ----------
        P : ndarray of shape (m, r)
            R has m rows.

        Returns
        -------
        Equations

        Examples
        --------
        >>> import kalprox as kp
        >>> info = kp.Information.from_rows(np.eye(2), np.array([1.0, 3.0]))
        >>> info.in_coordinates(info.R @ np.array([[1.0], [1.0]])).solve()  # theta = (phi, phi)
        array([2.])
        """
        check_array("P", P)
        if P.ndim != 2:
            raise ValueError(f"P must have shape (d, r); got shape {P.shape}.")
        _, z, rss = self.compact()
        r, k = P.shape[1], self.targets or 1
        T = np.zeros((r + k, r + k), P.dtype)
        T[:r, :r], T[:r, r:] = qr(P, z.reshape(len(z), k))
        T[r:, r:] = np.diag(np.sqrt(rss).reshape(k))
        return Equations(T, self.rows, self.squares, self.targets)

    def with_rows(self, A: Array) -> "Equations":
        """Return the equations with ||A theta||^2 added, as a Gaussian prior or a quadratic penalty adds it. O(d^3).

        Parameters
        ----------
        A : ndarray of shape (m, d)

        Returns
        -------
        Equations
            `rows` is unchanged, because a prior has no rows. Only NumPy arrays are supported.

        Examples
        --------
        >>> import kalprox as kp
        >>> info = kp.Information.from_rows(np.eye(2), np.array([1.0, 3.0]))
        >>> info.with_rows(np.eye(2)).solve()  # ridge with alpha = 1
        array([0.5, 1.5])
        """
        T = square(np.asarray(self.triangle()))
        p, d = len(T), len(T) - (self.targets or 1)
        A = np.asarray(A, T.dtype)
        if len(A) == 0:
            return Equations(T, self.rows, self.squares, self.targets)
        prior = np.zeros((max(len(A), p), p), T.dtype)
        prior[: len(A), :d] = A
        # The larger rows come first, because QR then keeps the digits of the smaller rows below them.
        stacked = np.concatenate((prior, T) if np.abs(A).max() > np.abs(T[:d, :d]).max(initial=0) else (T, prior))
        if len(A) <= d and not np.tril(A, -1).any():  # the QR of two triangles takes a sixth of the work
            T = triangle_of(stacked, triangles=True)
        else:
            T = triangle_of(np.concatenate([np.zeros_like(T), stacked]))
        return Equations(T, self.rows, self.squares, self.targets)

    def minimise(self, g: Regularizer, start: Array | None = None) -> Prox:
        """Minimise 1/2 ||R theta - z||^2 + g(theta) for a single target; see `kalprox.solvers.prox`.

        Parameters
        ----------
        g : Regularizer
        start : array of shape (d,), optional
            Where the search starts.

        Returns
        -------
        Prox
            Its `theta` is the minimiser.

        Examples
        --------
        >>> import kalprox as kp
        >>> info = kp.Information.from_rows(np.eye(2), np.array([1.0, 3.0]))
        >>> info.minimise(kp.regularizers.L1(2.0)).theta
        array([0., 1.])
        """
        check_is("g", g, Regularizer, _A_REGULARIZER)
        if start is not None:
            check_array("start", start)
        R, z, _ = self.compact()
        return prox(R, z, g, start, rows=self.rows)

    def factor(self, g: Regularizer, theta: Array) -> Factor:
        """Return a factor of (R'R + Hess g(theta))^-1 on the coordinates that g leaves free at theta. O(d^3).

        Parameters
        ----------
        g : Regularizer
        theta : array of shape (d,)

        Returns
        -------
        kalprox.linalg.factor.Factor

        Examples
        --------
        >>> import kalprox as kp
        >>> info = kp.Information.from_rows(np.eye(2), np.array([1.0, 3.0]))
        >>> info.factor(kp.regularizers.Ridge(1.0), np.zeros(2)).variances()
        array([0.5, 0.5])
        """
        check_is("g", g, Regularizer, _A_REGULARIZER)
        U, free = posterior_root(self.R, g, theta)
        return Factor.of(U, self.rows if free is None else np.asarray(self.rows), free, len(theta))

    def rank(self) -> Array:
        """Return the numerical rank of R, with its columns scaled to unit length.

        A singular value of the scaled R counts if it exceeds max(4 (10 + d), sqrt(rows)) * eps times the largest one. A
        smaller singular value may be due to rounding alone; see `kalprox.linalg.rank`.

        Returns
        -------
        int or scalar array

        Examples
        --------
        >>> import kalprox as kp
        >>> int(kp.Information.from_rows(np.ones((5, 2)), np.ones(5)).rank())
        1
        """
        return rank(self.R, self.rows)

    @cached_property
    def full_rank(self) -> bool:
        """Whether the rank is d, decided on the host."""
        return int(self.rank()) == len(self.R)

    def undetermined(self, A: Array | None = None) -> Array:
        """Return which linear combinations of theta the data do not determine; their variance is infinite.

        Parameters
        ----------
        A : array of shape (m, d), optional
            Each row a is a linear combination a'theta. The default is the identity matrix: the coefficients themselves.

        Returns
        -------
        array of bool, shape (m,)
            True if a, with its entries divided by the column norms of R, has more than sqrt(eps) of its length in the
            null space of the scaled R. All entries are False if the rank is d.

        Examples
        --------
        >>> import kalprox as kp
        >>> X = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 1.0], [3.0, 3.0, 5.0]])  # the first two columns are equal
        >>> info = kp.Information.from_rows(X, np.array([1.0, 2.0, 3.0]))
        >>> int(info.rank()), info.undetermined()
        (2, array([ True,  True, False]))
        >>> info.undetermined(np.array([[1.0, 1.0, 0.0]]))  # their sum is determined
        array([False])
        """
        R, xp = self.R, namespace(self.rows)
        A = xp.eye(R.shape[1], dtype=R.dtype) if A is None else xp.asarray(A, R.dtype)
        return undetermined(R, self.rows, A)

    def __repr__(self) -> str:
        if not is_number(self.rows):
            return fields_repr(self)
        return f"{type(self).__name__}({', '.join(self._sizes().values())})"

    def _sizes(self) -> dict[str, str]:
        """How much there is of it, in words."""
        found = {"Rows": f"{float(self.rows):,.10g} rows", "Coefficients": count(self.d, "coefficient")}
        return found if self.targets is None else found | {"Targets": count(self.targets, "target")}

    def _repr_html_(self) -> str | None:
        from kalprox.display.tables import card, facts

        if not is_number(self.rows):
            return None
        about, doubts = {name: text.split()[0] for name, text in self._sizes().items()}, []
        if self.d <= _LARGE:
            open_ends = np.flatnonzero(np.asarray(self.undetermined()))
            about["Rank"] = f"{int(self.rank()):,}"
            if len(open_ends):
                about["Not determined"] = (
                    f"{count(len(open_ends), 'coefficient')}: {listed(f'x{j}' for j in open_ends)}"
                )
                doubts = ["Not determined"]
        about["Residual sum of squares"] = ", ".join(f"{value:.6g}" for value in np.atleast_1d(self.rss)[:6])
        return card(type(self).__name__, facts(about, doubts))

    def plot(self, ax: "Axes | None" = None, *, names: Sequence[str] | None = None, top: int | None = None) -> "Axes":
        """Plot the directions of the coefficients, the one that the rows determine least first.

        The columns of X are scaled to the same length. A direction is a combination of their coefficients, such as x0 -
        x1, and the directions are uncorrelated (the right singular vectors of the scaled R). If all columns were
        uncorrelated, the information along every direction would be 1. Where it is 0.01, as along the difference of two
        columns that are nearly equal, the standard error of that combination is 10 times as large. A cross marks a
        direction that the rows do not determine at all: collinear or constant columns, or too few rows.

        As in `solve`, the model has no intercept; `info.centered().plot()` is that of the model with one. O(d^3).

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made.
        names : sequence of str, optional
            The names of the d coefficients; by default x0, x1 and so on.
        top : int, optional
            The number of directions shown; by default as many as fit, and 30 at most.

        Returns
        -------
        Axes

        Examples
        --------
        >>> import kalprox as kp
        >>> x = np.random.default_rng(0).normal(size=(200, 2))
        >>> X = np.column_stack([x, x[:, 0] + 0.01 * x[:, 1]])  # the third column is nearly equal to the first
        >>> ax = kp.Information.from_rows(X, x[:, 0]).plot(names=["dose", "age", "dose_mg"])
        >>> [label.get_text() for label in ax.get_yticklabels()][0]
        'dose − dose_mg'
        """
        return plot_directions(np.asarray(self.R, float), int(self.rank()), ax, names, top)


@pytree
class Equations(LeastSquares):
    """The function ||R theta - z||^2 + rss, stored as its triangle: a view of an `Information`."""

    held: Array
    rows: Array
    squares: Array
    targets: int | None = static(default=None)

    def triangle(self) -> Array:
        return self.held


# ---- the directions of the coefficients, and their plot ---------------------------------------------------


def directions(R: Array, rank: int) -> tuple[Array, Array]:
    """Return uncorrelated directions of the coefficients of columns that are scaled to the same length. O(d^3).

    Returns
    -------
    vectors : array of shape (d, d)
        One direction in each row, the least determined first; the last `rank` of them are determined.
    values : array of shape (d,)
        The information along each; their sum is d if no column is zero.
    """
    d, norms = len(R), np.linalg.norm(R, axis=0)
    _, singular, Vt = np.linalg.svd(R / np.where(norms > 0, norms, 1.0))
    vectors, values, unknown = Vt[::-1].copy(), singular[::-1] ** 2, d - rank
    if unknown:  # any basis of them will do: take one in which each has a column of its own
        own = scipy.linalg.qr(vectors[:unknown], mode="r", pivoting=True)[1][:unknown]
        basis = np.linalg.solve(vectors[:unknown, own], vectors[:unknown])
        vectors[:unknown] = basis / np.linalg.norm(basis, axis=1, keepdims=True)
    return vectors, values


def _label(direction: Array, names: Sequence[str]) -> str:
    """The largest parts of a direction, as a sum; an ellipsis stands for the others."""
    size = np.abs(direction)
    parts = np.flatnonzero(size >= _PART * size.max())
    parts = parts[np.argsort(-size[parts], kind="stable")][:_PARTS]
    parts = np.sort(parts) if len(parts) < _PARTS else parts
    sign = np.sign(direction[parts[0]])
    text: str = names[parts[0]]
    for j in parts[1:]:
        text += f" {'+' if direction[j] * sign > 0 else MINUS} {names[j]}"
    return text + " …" * bool((size >= _PART * size.max()).sum() > _PARTS)


def plot_directions(R: Array, rank: int, ax: "Axes | None", names: Sequence[str] | None, top: int | None) -> "Axes":
    """Plot the directions of R, the least determined first; see `LeastSquares.plot`."""
    from kalprox.display.axes import axes_for, figure_label, label_height
    from kalprox.display.plots import directions as draw

    if names is not None and len(names) != len(R):
        raise ValueError(f"names must name each of the {len(R)} coefficients; got {len(names)}.")
    if not R.any():
        raise ValueError("There is nothing to plot: the information is that of no rows. Fold rows first.")
    vectors, values = directions(R, rank)
    d, unknown, given = len(R), len(R) - rank, ax is not None
    ax = axes_for(ax, (6.4, _ROW[1] + _ROW[0] * min(top or _MAX, d)))
    fitting = min(max(int(label_height(ax, 1) / _LEAST), 3), _MAX) if given else _MAX
    n = min(d, fitting if top is None else top)
    shown = np.arange(n)
    if unknown > (few := max(n // 3, n - (d - unknown))):  # leave room for those that are determined
        shown = np.append(np.arange(few), np.arange(unknown, unknown + n - few))
    labels = [f"x{j}" for j in range(d)] if names is None else list(map(str, names))
    labels = [figure_label(name, f"column {j + 1}", 18) for j, name in enumerate(labels)]
    texts = [_label(vectors[i], labels) for i in shown]
    draw(ax, texts, values[shown], shown >= unknown)
    only = f"\n({n} of {d:,} directions; {unknown:,} are not determined)" if n < d else ""
    ax.set_xlabel(f"information, relative to uncorrelated columns{only}", loc="right")  # there is room to the left
    return ax
