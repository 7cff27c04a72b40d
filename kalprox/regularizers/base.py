"""The interface of every regulariser, of a separable one, and the wrapper that adds an unpenalised intercept."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree, static
from kalprox.base.checks import Speaking


class Pieces(NamedTuple):
    """phi(t) = l1 |t| + l2/2 t^2 on [low, high], infinite outside: at most one kink, and two bounds.

    Each of the four is a scalar or has one entry per coordinate. All formulas of the L1 norm, the elastic net, the box
    and their weighted versions follow from these four numbers.

    Parameters
    ----------
    l1, l2 : float or array
        The weights of |t| and of t^2 / 2.
    low, high : float or array
        The bounds; infinite where there is none.

    Examples
    --------
    >>> pieces = Pieces(l1=1.0, high=2.0)
    >>> pieces.prox(np.array([-0.5, 2.5, 9.0]), 1.0)
    array([0. , 1.5, 2. ])
    >>> pieces.slopes(np.array([0.0, 1.0, 2.0]))
    (array([-1.,  1.,  1.]), array([ 1.,  1., inf]))
    >>> pieces.weighted(np.array([0.0, 3.0])).l1
    array([0., 3.])
    >>> pieces.each(2).high
    array([2., 2.])
    """

    l1: Any = 0.0
    l2: Any = 0.0
    low: Any = -np.inf
    high: Any = np.inf

    def each(self, d: int) -> "Pieces":
        """The pieces with one entry for each of d coordinates.

        Parameters
        ----------
        d : int

        Returns
        -------
        Pieces
        """
        return Pieces(*(per_coordinate(value, d, name) for name, value in self._asdict().items()))

    def slopes(self, theta: Array) -> tuple[Array, Array]:
        """The left and right derivatives of l1 |t| + indicator: the ends of its subdifferential.

        They are infinite on the far side of a bound.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        left, right : array of shape (d,)
        """
        xp = namespace(theta, self)
        left = xp.where(theta > 0, self.l1, -self.l1)
        right = xp.where(theta < 0, -self.l1, self.l1)
        return xp.where(theta <= self.low, -np.inf, left), xp.where(theta >= self.high, np.inf, right)

    def prox(self, v: Array, step: Any) -> Array:
        """argmin over t of 1/2 (t - v)^2 + step * phi(t): soft threshold, shrink, clip.

        Parameters
        ----------
        v : array of shape (d,)
        step : float or array of shape (d,)

        Returns
        -------
        array of shape (d,)
        """
        xp = namespace(v, self)
        soft = v - xp.clip(v, -step * self.l1, step * self.l1)
        return xp.clip(soft / (1 + step * self.l2), self.low, self.high)

    def weighted(self, w: Array) -> "Pieces":
        """The pieces of w_i phi(theta_i); where w_i = 0 the bounds are removed too.

        Parameters
        ----------
        w : array of shape (d,)
            The weights, at least 0.

        Returns
        -------
        Pieces
        """
        xp = namespace(w, self)
        low, high = xp.where(w > 0, self.low, -np.inf), xp.where(w > 0, self.high, np.inf)
        return Pieces(w * self.l1, w * self.l2, low, high)


class Regularizer(Speaking, ABC):
    """g(theta), twice differentiable at its `free` coordinates, which are all coordinates where g is smooth.

    Derive from it to write a regulariser of your own: `value`, `grad` and `hessian` are enough for a smooth one.

    Attributes
    ----------
    smooth : bool
        Whether g is twice differentiable everywhere. The algorithms of the paper need it; the proximal filter does not.
    quadratic : bool
        Whether g has a `root`.
    separable : bool
        Whether g is a sum over the coordinates, so that its Hessian is diagonal.
    is_zero : bool
        Whether g is 0 everywhere.
    only_bounds : bool
        Whether g only sets bounds, in the units of the coordinates.

    Examples
    --------
    >>> from kalprox.regularizers import Box, L1, Ridge
    >>> theta = np.array([1.0, 0.0, -2.0])
    >>> g = Ridge(2.0)
    >>> g.value(theta), g.grad(theta), g.hessian(theta)
    (np.float64(5.0), array([ 2.,  0., -4.]), array([2., 2., 2.]))
    >>> round(np.linalg.norm(g.root(3) @ theta) ** 2 / 2, 12)  # again g
    np.float64(5.0)
    >>> L1(1.0).free(theta), Box(0.0, 1.0).held(np.array([1.0, 0.5]))
    (array([ True, False,  True]), array([1., 0.]))
    >>> L1(1.0).with_free_intercept(2).value(theta)  # the first coordinate is not penalised
    np.float64(2.0)
    >>> g.pieces().l2, g.groups_of(3), g.tangent(theta) is g
    (2.0, None, True)
    """

    smooth: ClassVar[bool] = True
    quadratic: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    is_zero: ClassVar[bool] = False
    only_bounds: ClassVar[bool] = False

    @abstractmethod
    def value(self, theta: Array) -> Array:
        """g(theta), a scalar.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        scalar array
        """

    @abstractmethod
    def grad(self, theta: Array) -> Array:
        """The gradient of g.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        array of shape (d,)
            Meaningful at the free coordinates.
        """

    @abstractmethod
    def hessian(self, theta: Array) -> Array:
        """The Hessian of g.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        array of shape (d,) or (d, d)
            A vector stands for a diagonal matrix. Meaningful at the free coordinates.
        """

    def root(self, d: int) -> Array | None:
        """The matrix A with g = 1/2 ||A theta||^2.

        Parameters
        ----------
        d : int
            The number of coordinates.

        Returns
        -------
        array of shape (m, d), or None
            None where g is not quadratic.
        """
        return None

    def pieces(self) -> Pieces | None:
        """The function phi with g = sum_i phi(theta_i), as `Pieces`.

        Returns
        -------
        Pieces or None
            None where g is not of that form.
        """
        return None

    def groups_of(self, d: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The groups of coordinates with g = sum_j w_j ||theta_j||, a sum over groups j of norms.

        Parameters
        ----------
        d : int
            The number of coordinates.

        Returns
        -------
        (labels, weights) or None
            The number of the group of each coordinate, -1 for one that is in none, shape (d,), and w_j, one for each
            group; None where g is not of that form.
        """
        return None

    def tangent(self, theta: Array) -> "Regularizer":
        """A regulariser that touches g at theta, lies nowhere below it, and can be minimised exactly.

        A g with kinks that is not convex, and consists of no `pieces`, is minimised by a sequence of such problems,
        each at the minimiser of the one before. It must have the kinks of g, and its slopes at theta.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        Regularizer
            This one, if it can be minimised itself.
        """
        return self

    def free(self, theta: Array) -> Array:
        """Which coordinates are at no kink and no bound of g: there g is smooth.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        array of bool, shape (d,)
        """
        return namespace(theta).ones(theta.shape, bool)

    def held(self, theta: Array) -> Array:
        """The values at which the coordinates that are not free are held.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        array of shape (d,)
            Zero for the free coordinates.
        """
        return namespace(theta).zeros_like(theta)

    def with_free_intercept(self, d: int, intercepts: int = 1) -> "Regularizer":
        """The same g on the last d coordinates; those before, one intercept or several, are not penalised.

        Parameters
        ----------
        d : int
            The number of penalised coordinates.
        intercepts : int
            The number of coordinates before them.

        Returns
        -------
        Regularizer
        """
        return FreeIntercept(self, d, intercepts)


@pytree
class FreeIntercept(Regularizer):
    """g on the last d coordinates; those before, one intercept or several, are not penalised.

    Parameters
    ----------
    g : Regularizer
        The regulariser of d coordinates.
    d : int
        The number of penalised coordinates.
    intercepts : int
        The number of coordinates before them.

    Examples
    --------
    >>> from kalprox.regularizers import Quadratic
    >>> Quadratic(np.array([[1.0, -1.0]])).with_free_intercept(2).grad(np.array([5.0, 3.0, 1.0]))
    array([ 0.,  2., -2.])
    """

    g: Any
    d: int = static()
    intercepts: int = static(default=1)

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        return bool(self.g.smooth)

    def value(self, theta: Array) -> Array:
        return self.g.value(self._tail(theta))

    def grad(self, theta: Array) -> Array:
        return self._prepend(0, self.g.grad(self._tail(theta)))

    def hessian(self, theta: Array) -> Array:
        H = self.g.hessian(self._tail(theta))
        n = self.intercepts
        return self._prepend(0, H) if H.ndim == 1 else namespace(H).pad(H, ((n, 0), (n, 0)))

    def root(self, d: int) -> Array | None:
        A = self.g.root(d - self.intercepts)
        if A is None:
            return None
        xp = namespace(A)
        return xp.concatenate([xp.zeros((len(A), self.intercepts), A.dtype), A], axis=1)

    def tangent(self, theta: Array) -> Regularizer:
        h = self.g.tangent(self._tail(theta))
        return self if h is self.g else h.with_free_intercept(self.d, self.intercepts)

    def free(self, theta: Array) -> Array:
        return self._prepend(True, self.g.free(self._tail(theta)))

    def held(self, theta: Array) -> Array:
        return self._prepend(0, self.g.held(self._tail(theta)))

    def _prepend(self, value: Any, tail: Array) -> Array:
        """The values of all coordinates, with the same value for each intercept, in the library and dtype of `tail`."""
        xp = namespace(tail)
        return xp.concatenate([xp.full(self.intercepts, value, tail.dtype), tail])

    def _tail(self, theta: Array) -> Array:
        if theta.shape != (self.d + self.intercepts,):
            first = "an intercept" if self.intercepts == 1 else f"{self.intercepts} intercepts"
            raise ValueError(f"theta must be {first} and {self.d} coefficients; got shape {theta.shape}.")
        return theta[self.intercepts :]


class Separable(Regularizer):
    """g(theta) = sum_i phi(theta_i): all operations are elementwise, and the Hessian is diagonal.

    Examples
    --------
    >>> from kalprox.regularizers import L1
    >>> g = L1(2.0)
    >>> g.terms(np.array([3.0, -1.0])), g.value(np.array([3.0, -1.0]))
    (array([6., 2.]), np.float64(8.0))
    >>> g.prox(np.array([3.0, -1.0])), g.pieces().l1
    (array([1., 0.]), 2.0)
    """

    separable: ClassVar[bool] = True

    @abstractmethod
    def terms(self, theta: Array) -> Array:
        """The terms phi(theta_i) of the sum.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        array of shape (d,)
        """

    def value(self, theta: Array) -> Array:
        return self.terms(theta).sum()

    def free(self, theta: Array) -> Array:
        pieces = self.pieces()
        if pieces is None:
            return super().free(theta)
        left, right = pieces.slopes(theta)
        return left == right

    def held(self, theta: Array) -> Array:
        pieces = self.pieces()
        if pieces is None:
            return super().held(theta)
        xp = namespace(theta, pieces)
        return xp.where(theta <= pieces.low, pieces.low, xp.where(theta >= pieces.high, pieces.high, 0.0 * theta))

    def prox(self, v: Array, step: Any = 1.0) -> Array:
        """argmin over t of 1/2 ||t - v||^2 + sum_i step_i phi(t_i).

        Parameters
        ----------
        v : array of shape (d,)
        step : float or array of shape (d,)
            A scalar, or one per coordinate.

        Returns
        -------
        array of shape (d,)
        """
        pieces = self.pieces()
        if pieces is None:
            raise TypeError(f"{type(self).__name__} has no prox in closed form; use kalprox.solvers.prox.")
        return pieces.prox(v, step)

    def with_free_intercept(self, d: int, intercepts: int = 1) -> "Separable":
        return SeparableFreeIntercept(self, d, intercepts)


@pytree
class SeparableFreeIntercept(FreeIntercept, Separable):
    """`FreeIntercept` of a separable g, which is separable too.

    Parameters
    ----------
    g : Separable
        The regulariser of d coordinates.
    d : int
        The number of penalised coordinates.
    intercepts : int
        The number of coordinates before them.

    Examples
    --------
    >>> from kalprox.regularizers import L1
    >>> L1(1.0).with_free_intercept(2).prox(np.array([5.0, 3.0, 0.5]))
    array([5., 2., 0.])
    """

    def terms(self, theta: Array) -> Array:
        return self._prepend(0, self.g.terms(self._tail(theta)))

    def pieces(self) -> Pieces | None:
        pieces = self.g.pieces()
        if pieces is None:
            return None
        return Pieces(*(after_intercepts(a, b, self.d, self.intercepts) for a, b in zip(Pieces(), pieces, strict=True)))

    def prox(self, v: Array, step: Any = 1.0) -> Array:
        n = self.intercepts
        step = step if np.ndim(step) == 0 else step[n:]
        return namespace(v, step, self.g).concatenate([v[:n], self.g.prox(self._tail(v), step)])


def per_coordinate(value: Any, d: int, name: str) -> Array:
    """A scalar or a vector of d entries, as a vector of d entries."""
    if type(value) is float:
        return np.full(d, value)
    xp, shape = namespace(value), np.shape(value)
    if shape not in ((), (d,)):
        raise ValueError(f"{name} must be a scalar or have one entry per parameter ({d}); got shape {np.shape(value)}.")
    return xp.asarray(value) if shape else xp.broadcast_to(xp.asarray(value), (d,))


def after_intercepts(first: float, value: Any, d: int, intercepts: int) -> Array:
    """A parameter of d coordinates, a scalar or a vector, as one of these and of intercepts before them."""
    if value is first:
        return value
    xp, values = namespace(value), per_coordinate(value, d, "a parameter of a penalty")
    dtype = xp.result_type(values, np.float32)  # of integers that of floats
    return xp.concatenate([xp.full(intercepts, first, dtype), values.astype(dtype)])
