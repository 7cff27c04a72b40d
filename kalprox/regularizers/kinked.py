"""Regularisers with kinks or bounds, and a wrapper that weighs the coordinates of any separable one."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array, brief, namespace, pytree, static
from kalprox.base.checks import check_positive, concrete
from kalprox.regularizers.base import Pieces, Regularizer, Separable, after_intercepts, per_coordinate


class Kinked(Separable):
    """A regulariser that is not smooth and consists of `Pieces`; for the proximal filter and `prox` only.

    Gradient and Hessian hold where the coordinate is free: at no kink, and strictly inside its bounds.

    Examples
    --------
    >>> g = L1(2.0)  # which is one
    >>> g.smooth, g.free(np.array([0.0, 3.0])), g.grad(np.array([0.0, 3.0]))
    (False, array([False,  True]), array([0., 2.]))
    """

    smooth: ClassVar[bool] = False

    @abstractmethod
    def pieces(self) -> Pieces: ...

    def terms(self, theta: Array) -> Array:
        l1, l2, low, high = self.pieces()
        xp = namespace(theta, l1, l2, low, high)
        inside = (theta >= low) & (theta <= high)
        return xp.where(inside, l1 * xp.abs(theta) + l2 / 2 * theta**2, np.inf)

    def grad(self, theta: Array) -> Array:
        l1, l2, _, _ = self.pieces()
        return l1 * namespace(theta).sign(theta) + l2 * theta

    def hessian(self, theta: Array) -> Array:
        return self.pieces().l2 * namespace(theta).ones_like(theta)


@pytree
class L1(Kinked):
    """g = lam ||theta||_1: the lasso. Free where theta_i is not zero.

    Parameters
    ----------
    lam : float or array
        The weight, a scalar or one per coordinate.

    Examples
    --------
    >>> L1(1.0).prox(np.array([3.0, -0.5]), 2.0)
    array([1., 0.])
    """

    lam: Any

    def __post_init__(self) -> None:
        check_positive("lam", self.lam, strict=False)

    def pieces(self) -> Pieces:
        return Pieces(l1=self.lam)

    def with_free_intercept(self, d: int, intercepts: int = 1) -> "L1":
        return L1(after_intercepts(0.0, self.lam, d, intercepts))


@pytree
class ElasticNet(Kinked):
    """g = l1 ||theta||_1 + l2/2 ||theta||^2. Free where theta_i is not zero.

    Parameters
    ----------
    l1, l2 : float or array
        The weights of the two norms, each a scalar or one per coordinate.

    Examples
    --------
    >>> ElasticNet(1.0, 1.0).prox(np.array([3.0, -0.5]))
    array([1., 0.])
    """

    l1: Any
    l2: Any

    def __post_init__(self) -> None:
        check_positive("l1", self.l1, strict=False)
        check_positive("l2", self.l2, strict=False)

    def pieces(self) -> Pieces:
        return Pieces(l1=self.l1, l2=self.l2)

    def with_free_intercept(self, d: int, intercepts: int = 1) -> "ElasticNet":
        return ElasticNet(*(after_intercepts(0.0, value, d, intercepts) for value in (self.l1, self.l2)))


@pytree
class MCP(Separable):
    """g = lam * sum_i (|theta_i| - theta_i^2 / (2 width)) where |theta_i| <= width, else lam * width / 2 for each.

    The minimax concave penalty [1]_: at zero it is the L1 norm, and a coordinate beyond the width is not shrunk at all.
    It is not convex, so that there may be several local minima. The one that solvers return is reached from zero by a
    sequence of weighted L1 problems, each of which touches g from above [2]_: the first is the lasso. It depends on the
    data alone, and not on the order in which rows came.

    Parameters
    ----------
    lam : float or array
        The weight, a scalar or one per coordinate.
    width : float or array
        From which size on a coordinate is not shrunk, a scalar or one per coordinate. The larger, the closer to L1.

    References
    ----------
    .. [1] C.-H. Zhang, "Nearly unbiased variable selection under minimax concave penalty", Annals of Statistics 38,
       2010.
    .. [2] H. Zou and R. Li, "One-step sparse estimates in nonconcave penalized likelihood models", Annals of Statistics
       36, 2008.

    Examples
    --------
    >>> g = MCP(1.0, 2.0)
    >>> g.prox(np.array([0.5, 1.5, 3.0])), g.value(np.array([1.0, 5.0]))
    (array([0., 1., 3.]), np.float64(1.75))
    >>> g.tangent(np.array([0.0, 1.0, 3.0]))
    L1(lam=[1, 0.5, 0])
    """

    smooth: ClassVar[bool] = False

    lam: Any
    width: Any

    def __post_init__(self) -> None:
        check_positive("lam", self.lam, strict=False)
        check_positive("width", self.width)

    def terms(self, theta: Array) -> Array:
        size = namespace(theta).minimum(abs(theta), self.width)
        return self.lam * (size - size**2 / (2 * self.width))

    def _slope(self, theta: Array) -> Array:
        """The derivative of a term by the size of its coordinate."""
        return self.lam * namespace(theta).maximum(1 - abs(theta) / self.width, 0)

    def grad(self, theta: Array) -> Array:
        return self._slope(theta) * namespace(theta).sign(theta)

    def hessian(self, theta: Array) -> Array:
        return namespace(theta).where(abs(theta) < self.width, -self.lam / self.width, 0.0 * theta)

    def free(self, theta: Array) -> Array:
        return (theta != 0) | (namespace(self.lam, theta).asarray(self.lam) == 0)

    def tangent(self, theta: Array) -> L1:
        return L1(self._slope(theta))

    def prox(self, v: Array, step: Any = 1.0) -> Array:
        xp, pull = namespace(v, step), step * self.lam
        shrunk = xp.sign(v) * xp.maximum(abs(v) - pull, 0) / xp.maximum(1 - pull / self.width, 1e-300)
        inner = xp.where(pull < self.width, shrunk, 0.0)  # else each term is concave, and minimised at one of its ends
        beyond = abs(v) > xp.maximum(self.width, (pull * self.width) ** 0.5)
        return xp.where(beyond, v, inner)


@pytree
class Box(Kinked):
    """g = 0 where low <= theta <= high, else infinite. Free strictly inside.

    Parameters
    ----------
    low, high : float or array
        The bounds, each a scalar or one per coordinate; infinity is allowed. Box(0, inf) is non-negativity.

    Examples
    --------
    >>> Box(0.0, np.inf).prox(np.array([-1.0, 2.0]))
    array([0., 2.])
    """

    low: Any
    high: Any
    only_bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        low, high = concrete(self.low), concrete(self.high)
        if low is not None and high is not None and not np.all((low <= high) & (low < np.inf) & (high > -np.inf)):
            raise ValueError(
                f"low must be <= high, and both must leave a finite value; got {brief(self.low)} and "
                f"{brief(self.high)}."
            )

    def pieces(self) -> Pieces:
        return Pieces(low=self.low, high=self.high)

    def with_free_intercept(self, d: int, intercepts: int = 1) -> "Box":
        low = after_intercepts(-np.inf, self.low, d, intercepts)
        return Box(low, after_intercepts(np.inf, self.high, d, intercepts))


@pytree
class Weighted(Separable):
    """g = sum_i weights_i phi(theta_i) for any separable regulariser sum_i phi(theta_i).

    Parameters
    ----------
    g : Separable
        The regulariser to weigh.
    weights : array
        One weight >= 0 per coordinate; 0 leaves the coordinate free.

    Examples
    --------
    >>> from kalprox.regularizers import Ridge
    >>> Weighted(Ridge(2.0), np.array([0.0, 1.0])).value(np.array([5.0, 1.0]))  # the first is not penalised
    np.float64(1.0)
    """

    g: Any
    weights: Any

    def __post_init__(self) -> None:
        check_positive("weights", self.weights, strict=False)
        if isinstance(self.g, Regularizer) and not self.g.separable:
            raise TypeError(
                f"g must be separable, a sum over coordinates, to be weighted; got {type(self.g).__name__}. "
                "GroupL1 takes weights of its own; Quadratic(A) is weighted through A."
            )

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        return bool(self.g.smooth)

    @property
    def quadratic(self) -> bool:  # type: ignore[override]
        return bool(self.g.quadratic)

    def terms(self, theta: Array) -> Array:
        xp = namespace(theta, self.weights)
        return self.weights * xp.where(self.weights > 0, self.g.terms(theta), 0)  # where 0 * inf, outside a box, is 0

    def grad(self, theta: Array) -> Array:
        return self.weights * self.g.grad(theta)

    def hessian(self, theta: Array) -> Array:
        return self.weights * self.g.hessian(theta)

    def root(self, d: int) -> Array | None:
        A = self.g.root(d)  # diagonal, or without any rows
        return None if A is None else A * per_coordinate(self.weights, d, "weights")[None] ** 0.5

    def pieces(self) -> Pieces | None:
        pieces = self.g.pieces()
        return None if pieces is None else pieces.weighted(self.weights)

    def tangent(self, theta: Array) -> Regularizer:
        h = self.g.tangent(theta)
        return self if h is self.g else Weighted(h, self.weights)

    def free(self, theta: Array) -> Array:
        return self.g.free(theta) | (namespace(self.weights, theta).asarray(self.weights) == 0)


@pytree
class GroupL1(Regularizer):
    """g = lam * sum_g w_g ||theta_g||_2: all coordinates of a group are zero, or all are free.

    Parameters
    ----------
    lam : float
        The weight.
    groups : sequence of int
        One label per coordinate; -1 for a coordinate that is not penalised.
    weights : array, optional
        w_g, one for each label from 0 on. The default sqrt(size of g) treats groups of different sizes alike.

    Examples
    --------
    >>> g = GroupL1(1.0, [0, 0, 0, 0, -1])
    >>> g.value(np.ones(5)), g.norms(np.ones(5))[2]
    (np.float64(4.0), array([2.]))
    >>> g.prox(np.ones(5), 0.5), g.groups_of(5)
    (array([0.5, 0.5, 0.5, 0.5, 1. ]), (array([ 0,  0,  0,  0, -1]), array([2.])))
    """

    smooth: ClassVar[bool] = False

    lam: Any
    groups: Sequence[int] = static()
    weights: Any = None

    def __post_init__(self) -> None:
        check_positive("lam", self.lam, strict=False)
        if self.weights is not None:
            check_positive("weights", self.weights, strict=False)
        labels = np.asarray(self.groups)
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < -1:
            raise ValueError(f"groups must have one integer label >= -1 per coordinate; got {self.groups!r}.")
        object.__setattr__(self, "groups", tuple(labels.tolist()))  # hashable: part of the type to JAX

    def _labels(self, d: int) -> tuple[np.ndarray, int]:
        """The label of each coordinate, and how many there are."""
        labels = np.asarray(self.groups)
        if labels.shape != (d,):
            raise ValueError(f"groups must have one label per coordinate ({d}); got {labels.size}.")
        n = int(labels.max(initial=-1)) + 1
        if self.weights is not None and np.shape(self.weights) != (n,):
            raise ValueError(
                f"weights must have one entry per label: expected {n}, got shape {np.shape(self.weights)}."
            )
        return labels, n

    def norms(self, theta: Array) -> tuple[Array, Array, Array]:
        """The groups of the coordinates, their weights and their norms.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        members : array of shape (labels, d)
            1 where a coordinate has the label, else 0.
        weights : array of shape (labels,)
            lam * w_g.
        norms : array of shape (labels,)
            ||theta_g||.
        """
        xp, (labels, n) = namespace(theta), self._labels(theta.shape[-1])
        members = xp.asarray(labels == np.arange(n)[:, None], theta.dtype)
        w = xp.sqrt(members.sum(1)) if self.weights is None else xp.asarray(self.weights, theta.dtype)
        size = xp.abs(theta).max(initial=0)  # scaled by it, the squares neither overflow nor underflow
        size = xp.where(size > 0, size, 1)
        squares = members @ (theta / size) ** 2
        some = squares > 0  # the root has no derivative at zero: without the detour JAX would return NaN there
        return members, self.lam * w, size * xp.where(some, xp.sqrt(xp.where(some, squares, 1)), 0)

    def groups_of(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        labels, n = self._labels(d)  # without a matrix of members, which may be large
        sizes = np.bincount(labels[labels >= 0], minlength=n)
        w = np.sqrt(sizes) if self.weights is None else np.asarray(self.weights, float)
        return labels, float(self.lam) * w

    def value(self, theta: Array) -> Array:
        _, w, norms = self.norms(theta)
        return (w * norms).sum()

    def free(self, theta: Array) -> Array:
        members, w, norms = self.norms(theta)
        return members.T @ ((w > 0) & (norms == 0)).astype(theta.dtype) == 0

    def grad(self, theta: Array) -> Array:
        members, w, norms = self.norms(theta)
        return theta * (members.T @ (w * _inverse(norms)))

    def hessian(self, theta: Array) -> Array:
        xp = namespace(theta)
        members, w, norms = self.norms(theta)
        inverse = members.T @ _inverse(norms)
        u = members * (theta * inverse)[None]  # unit vectors, one row per group
        curvature = w * _inverse(norms)
        return xp.diag(members.T @ curvature) - u.T @ (curvature[:, None] * u)

    def prox(self, v: Array, step: Any = 1.0) -> Array:
        """argmin over t of 1/2 ||t - v||^2 + step * g(t): shrinks the norm of each group by step * lam * w_g.

        Parameters
        ----------
        v : array of shape (d,)
        step : float
            A scalar: with one step per coordinate there is no closed form.

        Returns
        -------
        array of shape (d,)
        """
        xp = namespace(v)
        members, w, norms = self.norms(v)
        shrink = xp.maximum(1 - step * w * _inverse(norms), 0)
        return v * (members.T @ (shrink - 1) + 1)

    def with_free_intercept(self, d: int, intercepts: int = 1) -> "GroupL1":
        return GroupL1(self.lam, (*[-1] * intercepts, *self.groups), self.weights)


def _inverse(norms: Array) -> Array:
    """1 / norms, and 0 where a norm is 0: such a group is not free, and contributes nothing."""
    xp = namespace(norms)
    return xp.where(norms > 0, 1 / xp.where(norms > 0, norms, 1), 0)
