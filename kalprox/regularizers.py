"""Regularisers g: what is preferred of theta, before any data.

Each gives its value, gradient and Hessian; the Hessian as its diagonal, shape (d,), where it is
diagonal, and as a matrix, shape (d, d), where it is not. Those that are not smooth say where they
are (`free`), and give gradient and Hessian there. A regulariser knows nothing of models,
covariances or algorithms; a new one is one new class here, and the tests find it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kalprox._arrays import Array, namespace, pytree, static
from kalprox._checks import check_positive, concrete

__all__ = [
    "L1",
    "Box",
    "Cauchy",
    "Custom",
    "ElasticNet",
    "GroupL1",
    "Huber",
    "Kinked",
    "Pieces",
    "Quadratic",
    "Regularizer",
    "Ridge",
    "Separable",
    "SmoothL1",
    "Weighted",
    "Zero",
]


class Regularizer(ABC):
    """g(theta), twice differentiable at its `free` coordinates, which are all of them where it is smooth."""

    smooth: ClassVar[bool] = True

    @abstractmethod
    def value(self, theta: Array) -> Array:
        """g(theta), a scalar."""

    @abstractmethod
    def grad(self, theta: Array) -> Array:
        """The gradient, shape (d,); of meaning at the free coordinates."""

    @abstractmethod
    def hessian(self, theta: Array) -> Array:
        """The Hessian: shape (d,) where it is diagonal, else (d, d); of meaning at the free coordinates."""

    def root(self, d: int) -> Array | None:
        """The A with g = 1/2 ||A theta||^2, shape (m, d); None where g is not quadratic."""
        return None

    def free(self, theta: Array) -> Array:
        """Which coordinates are at no kink and no bound of g, shape (d,): there g is smooth."""
        return namespace(theta).ones(theta.shape, bool)


class Pieces(NamedTuple):
    """phi(t) = l1 |t| + l2/2 t^2 on [low, high], infinite outside: one kink at most, and two bounds.

    All four are scalars or have one entry per coordinate. Everything the L1 norm, the elastic net,
    the box and any weighting of them need is a formula in these.
    """

    l1: Any = 0.0
    l2: Any = 0.0
    low: Any = -np.inf
    high: Any = np.inf

    def slopes(self, theta: Array) -> tuple[Array, Array]:
        """The derivatives of l1 |t| + indicator from the left and from the right: the ends of its
        subdifferential. Infinite at a bound, where one cannot go on."""
        xp = namespace(theta, self)
        left = xp.where(theta > 0, self.l1, -self.l1)
        right = xp.where(theta < 0, -self.l1, self.l1)
        return xp.where(theta <= self.low, -np.inf, left), xp.where(theta >= self.high, np.inf, right)

    def prox(self, v: Array, step: Any) -> Array:
        """argmin over t of 1/2 (t - v)^2 + step * phi(t): soft threshold, shrink, clip."""
        xp = namespace(v, self)
        soft = v - xp.clip(v, -step * self.l1, step * self.l1)
        return xp.clip(soft / (1 + step * self.l2), self.low, self.high)

    def weighted(self, w: Array) -> "Pieces":
        """The pieces of w_i phi(theta_i); where w_i = 0 the bounds go too."""
        xp = namespace(w, self)
        low, high = xp.where(w > 0, self.low, -np.inf), xp.where(w > 0, self.high, np.inf)
        return Pieces(w * self.l1, w * self.l2, low, high)


class Separable(Regularizer):
    """g(theta) = sum_i phi(theta_i): everything about it is elementwise, its Hessian diagonal."""

    @abstractmethod
    def terms(self, theta: Array) -> Array:
        """phi(theta_i), shape (d,)."""

    def value(self, theta: Array) -> Array:
        return self.terms(theta).sum()

    def pieces(self) -> Pieces | None:
        """phi as `Pieces`; None where it is not of that form."""
        return None

    def free(self, theta: Array) -> Array:
        pieces = self.pieces()
        if pieces is None:
            return super().free(theta)
        left, right = pieces.slopes(theta)
        return left == right

    def prox(self, v: Array, step: Any = 1.0) -> Array:
        """argmin over t of 1/2 ||t - v||^2 + sum_i step_i phi(t_i); step is a scalar or one per coordinate."""
        pieces = self.pieces()
        if pieces is None:
            raise TypeError(f"{type(self).__name__} has no prox in closed form; use kalprox.prox.prox.")
        return pieces.prox(v, step)


@pytree
class Zero(Separable):
    """g = 0: no preference."""

    def terms(self, theta: Array) -> Array:
        return namespace(theta).zeros_like(theta)

    def grad(self, theta: Array) -> Array:
        return namespace(theta).zeros_like(theta)

    def hessian(self, theta: Array) -> Array:
        return namespace(theta).zeros_like(theta)

    def root(self, d: int) -> Array:
        return np.zeros((0, d))

    def pieces(self) -> Pieces:
        return Pieces()


@pytree
class Ridge(Separable):
    """g = lam/2 ||theta||^2.

    >>> Ridge(3.0).value(np.array([1.0, 1.0]))
    np.float64(3.0)
    """

    lam: Any

    def __post_init__(self) -> None:
        check_positive("lam", self.lam, strict=False)

    def terms(self, theta: Array) -> Array:
        return self.lam / 2 * theta**2

    def grad(self, theta: Array) -> Array:
        return self.lam * theta

    def hessian(self, theta: Array) -> Array:
        return self.lam * namespace(theta).ones_like(theta)

    def root(self, d: int) -> Array:
        return namespace(self.lam).diag(per_coordinate(self.lam, d, "lam") ** 0.5)

    def pieces(self) -> Pieces:
        return Pieces(l2=self.lam)


@pytree
class Quadratic(Regularizer):
    """g = 1/2 ||A theta||^2 for any (m, d) matrix A: the paper's eq. (quad)."""

    A: Any

    def __post_init__(self) -> None:
        if hasattr(self.A, "ndim") and self.A.ndim < 2:  # more than two: a batch under jax.vmap
            raise ValueError(f"A must be a matrix of shape (m, d); got shape {self.A.shape}.")

    def value(self, theta: Array) -> Array:
        return ((self.A @ theta) ** 2).sum() / 2

    def grad(self, theta: Array) -> Array:
        return self.A.T @ (self.A @ theta)

    def hessian(self, theta: Array) -> Array:
        return self.A.T @ self.A

    def root(self, d: int) -> Array:
        if self.A.shape[1] != d:
            raise ValueError(f"A must have one column per parameter: expected (m, {d}), got {self.A.shape}.")
        return self.A


class _Smoothed(Separable):
    """lam * sum_i phi(theta_i / delta): a weight and a width, both positive."""

    lam: Any
    delta: Any

    def __post_init__(self) -> None:
        check_positive("lam", self.lam, strict=False)
        check_positive("delta", self.delta)


@pytree
class SmoothL1(_Smoothed):
    """g = lam * sum_i (sqrt(1 + theta_i^2 / delta^2) - 1): the paper's sparse experiment.

    Near zero it is lam/2 (theta/delta)^2, far away lam |theta| / delta: the L1 norm, with weight
    lam / delta, as delta goes to zero.
    """

    lam: Any
    delta: Any

    def terms(self, theta: Array) -> Array:
        t2 = (theta / self.delta) ** 2
        return self.lam * t2 / (1 + namespace(theta).sqrt(1 + t2))  # without cancellation near 0

    def grad(self, theta: Array) -> Array:
        t = theta / self.delta
        return self.lam / self.delta * t / namespace(theta).sqrt(1 + t**2)

    def hessian(self, theta: Array) -> Array:
        return self.lam / self.delta**2 * (1 + (theta / self.delta) ** 2) ** -1.5


@pytree
class Huber(_Smoothed):
    """g = lam * sum_i (theta_i^2 / (2 delta) where |theta_i| <= delta, else |theta_i| - delta/2).

    Its second derivative jumps at |theta_i| = delta; there it is the value inside.
    """

    lam: Any
    delta: Any

    def terms(self, theta: Array) -> Array:
        xp = namespace(theta)
        size = xp.abs(theta)
        return self.lam * xp.where(size <= self.delta, theta**2 / (2 * self.delta), size - self.delta / 2)

    def grad(self, theta: Array) -> Array:
        return self.lam * namespace(theta).clip(theta / self.delta, -1, 1)

    def hessian(self, theta: Array) -> Array:
        xp = namespace(theta)
        return self.lam / self.delta * (xp.abs(theta) <= self.delta).astype(theta.dtype)


@pytree
class Cauchy(_Smoothed):
    """g = lam * sum_i log(1 + theta_i^2 / delta^2): the log-sum penalty, closer to counting nonzeros
    than L1 is. Not convex: beyond |theta_i| = delta its curvature is negative.
    """

    lam: Any
    delta: Any

    def terms(self, theta: Array) -> Array:
        return self.lam * namespace(theta).log1p((theta / self.delta) ** 2)

    def grad(self, theta: Array) -> Array:
        return 2 * self.lam * theta / (self.delta**2 + theta**2)

    def hessian(self, theta: Array) -> Array:
        return 2 * self.lam * (self.delta**2 - theta**2) / (self.delta**2 + theta**2) ** 2


@pytree
class Custom(Regularizer):
    """g = fn(theta), any twice differentiable JAX function to a scalar; its Hessian is dense.

    Given a NumPy array, it answers in NumPy arrays of the same dtype, whatever JAX's global x64
    flag says.
    """

    fn: Callable[[Array], Array] = static()

    def value(self, theta: Array) -> Array:
        return _apply(self.fn, 0, theta)

    def grad(self, theta: Array) -> Array:
        return _apply(self.fn, 1, theta)

    def hessian(self, theta: Array) -> Array:
        return _apply(self.fn, 2, theta)


class Kinked(Separable):
    """Not smooth, and made of `Pieces`: only the proximal filter and `prox` take these.

    Gradient and Hessian hold where the coordinate is free: at no kink, strictly inside its bounds.
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

    >>> L1(1.0).prox(np.array([3.0, -0.5]), 2.0)
    array([1., 0.])
    """

    lam: Any

    def __post_init__(self) -> None:
        check_positive("lam", self.lam, strict=False)

    def pieces(self) -> Pieces:
        return Pieces(l1=self.lam)


@pytree
class ElasticNet(Kinked):
    """g = l1 ||theta||_1 + l2/2 ||theta||^2. Free where theta_i is not zero."""

    l1: Any
    l2: Any

    def __post_init__(self) -> None:
        check_positive("l1", self.l1, strict=False)
        check_positive("l2", self.l2, strict=False)

    def pieces(self) -> Pieces:
        return Pieces(l1=self.l1, l2=self.l2)


@pytree
class Box(Kinked):
    """g = 0 where low <= theta <= high, else infinite; each a scalar or one per coordinate, infinity
    allowed. Box(0, inf) is non-negativity. Free strictly inside.

    >>> Box(0.0, np.inf).prox(np.array([-1.0, 2.0]))
    array([0., 2.])
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        low, high = concrete(self.low), concrete(self.high)
        if low is not None and high is not None and not np.all((low <= high) & (low < np.inf) & (high > -np.inf)):
            raise ValueError(f"low must be <= high, and both leave a finite value; got {self.low!r} and {self.high!r}.")

    def pieces(self) -> Pieces:
        return Pieces(low=self.low, high=self.high)


@pytree
class Weighted(Separable):
    """sum_i weights_i phi(theta_i) for any separable g: weight 0 leaves that coordinate free.

    >>> Weighted(Ridge(2.0), np.array([0.0, 1.0])).value(np.array([5.0, 1.0]))  # an intercept, unpenalised
    np.float64(1.0)
    """

    g: Any
    weights: Any

    def __post_init__(self) -> None:
        check_positive("weights", self.weights, strict=False)
        if isinstance(self.g, Regularizer) and not isinstance(self.g, Separable):
            raise TypeError(
                f"g must be separable, a sum over coordinates, to be weighted; got {type(self.g).__name__}. "
                "GroupL1 takes weights of its own; Quadratic(A) is weighted through A."
            )

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        return self.g.smooth

    def terms(self, theta: Array) -> Array:
        xp = namespace(theta, self.weights)
        return self.weights * xp.where(self.weights > 0, self.g.terms(theta), 0)  # outside a box 0 * inf is 0

    def grad(self, theta: Array) -> Array:
        return self.weights * self.g.grad(theta)

    def hessian(self, theta: Array) -> Array:
        return self.weights * self.g.hessian(theta)

    def root(self, d: int) -> Array | None:
        A = self.g.root(d)  # diagonal, or without rows
        return None if A is None else A * per_coordinate(self.weights, d, "weights")[None] ** 0.5

    def pieces(self) -> Pieces | None:
        pieces = self.g.pieces()
        return None if pieces is None else pieces.weighted(self.weights)


@pytree
class GroupL1(Regularizer):
    """g = lam * sum_g w_g ||theta_g||_2: a group is zero as a whole, or free as a whole.

    `groups` has one integer label per coordinate, -1 for none: such a coordinate is not penalised.
    The default w_g = sqrt(size of g) lets groups of different sizes enter at the same strength;
    `weights` (one per label, from 0) replaces it.

    >>> GroupL1(1.0, [0, 0, 0, 0, -1]).value(np.ones(5))
    np.float64(4.0)
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

    def _members(self, theta: Array) -> Array:
        """Membership, shape (labels, d), of theta's dtype."""
        labels = np.asarray(self.groups)
        if labels.shape != theta.shape[-1:]:
            raise ValueError(f"groups must have one label per coordinate ({theta.shape[-1]}); got {labels.size}.")
        xp = namespace(theta)
        return xp.asarray(labels == np.arange(labels.max(initial=-1) + 1)[:, None], theta.dtype)

    def _norms(self, theta: Array) -> tuple[Array, Array, Array]:
        """Membership, lam * w_g and ||theta_g||, for every label."""
        members = self._members(theta)
        xp = namespace(theta)
        w = xp.sqrt(members.sum(1)) if self.weights is None else xp.asarray(self.weights, theta.dtype)
        if w.shape != members.shape[:1]:
            raise ValueError(f"weights must have one entry per label: expected {len(members)}, got shape {w.shape}.")
        size = xp.abs(theta).max(initial=0)  # squares of very small or large entries stay in range
        size = xp.where(size > 0, size, 1)
        return members, self.lam * w, size * xp.sqrt(members @ (theta / size) ** 2)

    def value(self, theta: Array) -> Array:
        _, w, norms = self._norms(theta)
        return (w * norms).sum()

    def free(self, theta: Array) -> Array:
        members, w, norms = self._norms(theta)
        return members.T @ ((w > 0) & (norms == 0)).astype(theta.dtype) == 0

    def grad(self, theta: Array) -> Array:
        members, w, norms = self._norms(theta)
        return theta * (members.T @ (w * _inverse(norms)))

    def hessian(self, theta: Array) -> Array:
        xp = namespace(theta)
        members, w, norms = self._norms(theta)
        inverse = members.T @ _inverse(norms)
        u = members * (theta * inverse)[None]  # unit vectors, one row per group
        curvature = w * _inverse(norms)
        return xp.diag(members.T @ curvature) - u.T @ (curvature[:, None] * u)

    def prox(self, v: Array, step: Any = 1.0) -> Array:
        """argmin over t of 1/2 ||t - v||^2 + step * g(t); the step is a scalar: one per coordinate would
        have no closed form. Shrinks the norm of each group by step * lam * w_g, to zero at least."""
        xp = namespace(v)
        members, w, norms = self._norms(v)
        shrink = xp.maximum(1 - step * w * _inverse(norms), 0)
        return v * (members.T @ (shrink - 1) + 1)


def _inverse(norms: Array) -> Array:
    """1 / norms, and 0 where a norm is 0: such a group is not free, and adds nothing."""
    xp = namespace(norms)
    return xp.where(norms > 0, 1 / xp.where(norms > 0, norms, 1), 0)


def per_coordinate(value: Any, d: int, name: str) -> Array:
    """A scalar or a vector of d entries, as a vector of d entries."""
    xp = namespace(value)
    if np.shape(value) not in ((), (d,)):
        raise ValueError(f"{name} must be a scalar or have one entry per parameter ({d}); got shape {np.shape(value)}.")
    return xp.broadcast_to(xp.asarray(value), (d,))


@cache
def _derivatives(fn: Callable[[Array], Array]) -> tuple[Callable, Callable, Callable]:
    import jax

    return jax.jit(fn), jax.jit(jax.grad(fn)), jax.jit(jax.hessian(fn))


def _apply(fn: Callable[[Array], Array], order: int, theta: Array) -> Array:
    """fn or its first or second derivative, in the array library and dtype of theta."""
    import jax

    function = _derivatives(fn)[order]
    if namespace(theta) is not np:
        return function(theta)
    with jax.enable_x64(theta.dtype == np.float64):
        return np.asarray(function(theta))
