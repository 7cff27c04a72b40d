"""Models h: the observations are y_k = h(theta, x_k) + noise.

A model gives its value and its Jacobian with respect to theta; it knows nothing of regularisers, covariances or
algorithms. A new link is one entry of `LINKS`; a new model is one new class in this file.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, ClassVar, Self

import numpy as np

from kalprox.base.arrays import Array, is_array, namespace, pytree, static
from kalprox.base.checks import check_array
from kalprox.base.control import call_jax
from kalprox.base.extras import require

__all__ = ["GLM", "LINKS", "Function", "Linear", "Link", "Model", "Offset"]


@dataclass(frozen=True)
class TreeLayout:
    """The structure of a pytree of arrays: how its numbers are laid out in a flat vector, leaf after leaf.

    The floating-point arrays among the leaves are the parameters. Other leaves, such as functions, strings, whole
    numbers and arrays of them, belong to the structure: every tree made from a vector has the same ones. A layout
    has no values of parameters, and can be compared and hashed.

    Examples
    --------
    >>> layout = TreeLayout.of({"weights": np.ones((2, 3)), "bias": np.zeros(2), "activation": "tanh"})
    >>> layout
    TreeLayout(8 parameters in 2 arrays)
    >>> layout.unflatten(np.arange(8.0))["weights"]
    array([[2., 3., 4.],
           [5., 6., 7.]])
    """

    treedef: Any
    shapes: tuple[tuple[int, ...] | None, ...]  # of the leaves; None for one that is not a parameter
    kept: tuple["_Kept", ...]  # the leaves that are not parameters

    @classmethod
    def of(cls, tree: Any) -> Self:
        """Return the layout of a tree; its values do not matter.

        Parameters
        ----------
        tree : pytree
            Nested dictionaries, lists, tuples or registered classes, with at least one floating-point array.

        Returns
        -------
        TreeLayout
        """
        import jax

        paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
        for path, leaf in paths:
            kind = leaf.dtype.kind if is_array(leaf) else "f" if isinstance(leaf, float) else ""
            if kind == "c" or (kind == "f" and not is_array(leaf)):
                raise TypeError(
                    f"The leaf {jax.tree_util.keystr(path)} of the parameters is {leaf!r}, and it is not clear whether "
                    "to learn it. Make it a floating-point array (jnp.asarray) if it is a parameter, and otherwise "
                    "leave it out of the tree."
                )
        leaves = [leaf for _, leaf in paths]
        shapes = tuple(tuple(leaf.shape) if _is_parameter(leaf) else None for leaf in leaves)
        if all(shape is None for shape in shapes):
            raise TypeError(f"The parameters must be a pytree with floating-point arrays as leaves; got {tree!r}.")
        return cls(treedef, shapes, tuple(_Kept(leaf) for leaf in leaves if not _is_parameter(leaf)))

    def __repr__(self) -> str:
        return f"TreeLayout({self.size:,} parameters in {len(self.shapes) - len(self.kept)} arrays)"

    @property
    def size(self) -> int:
        """The number d of parameters."""
        return sum(math.prod(shape) for shape in self.shapes if shape is not None)

    def flatten(self, tree: Any) -> Array:
        """Return the parameters of a tree as one vector: of NumPy unless a leaf is an array of JAX.

        Parameters
        ----------
        tree : pytree
            With the structure and the shapes of this layout.

        Returns
        -------
        array of shape (d,)
        """
        import jax

        leaves, treedef = jax.tree_util.tree_flatten(tree)
        shapes = tuple(tuple(leaf.shape) if _is_parameter(leaf) else None for leaf in leaves)
        if treedef != self.treedef or shapes != self.shapes:
            raise ValueError(
                f"The tree must have the structure of the model's parameters, {self.treedef} with the shapes "
                f"{_shown(self.shapes)}; got {treedef} with the shapes {_shown(shapes)}."
            )
        arrays = [leaf for leaf in leaves if _is_parameter(leaf)]
        xp = namespace(*arrays)
        dtype = np.result_type(*(a.dtype for a in arrays))
        return xp.concatenate([xp.asarray(a, dtype).reshape(-1) for a in arrays])

    def unflatten(self, theta: Array) -> Any:
        """Return the tree with the numbers of a vector. Its arrays have the dtype of the vector, whatever theirs was.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        pytree
        """
        return self.tree(self.arrays(theta))

    def arrays(self, theta: Array) -> list[Array]:
        """Return the numbers of a vector as the arrays of a tree, in their order."""
        if theta.shape != (self.size,):
            raise ValueError(f"theta must be a vector of the {self.size:,} parameters; got the shape {theta.shape}.")
        shapes = [shape for shape in self.shapes if shape is not None]
        ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
        return [theta[a:b].reshape(shape) for a, b, shape in zip([0, *ends], ends, shapes, strict=False)]

    def tree(self, arrays: Iterable[Array]) -> Any:
        """Return the tree with these arrays."""
        import jax

        given, kept = iter(arrays), iter(self.kept)
        leaves = [next(kept).leaf if shape is None else next(given) for shape in self.shapes]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


class _Kept:
    """A leaf that is not a parameter, compared by equality if it can be hashed and by identity if not."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf
        try:
            self.key = hash(leaf), leaf
        except TypeError:
            self.key = id(leaf), None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and self.key == other.key

    def __hash__(self) -> int:
        return self.key[0]


def _is_parameter(leaf: Any) -> bool:
    if not is_array(leaf):
        return False
    import jax.numpy as jnp

    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))  # of JAX, which has bfloat16


def _shown(shapes: tuple[tuple[int, ...] | None, ...]) -> str:
    return ", ".join(str(shape) for shape in shapes if shape is not None)


def _saturated(largest: float) -> float:
    """The likely size of a predictor whose link saturates: a larger one hardly changes the observations.

    Parameters
    ----------
    largest : float
        The largest absolute target.

    Returns
    -------
    float

    Examples
    --------
    >>> LINKS["tanh"].inverse_size(0.9), LINKS["softplus"].inverse_size(7.0)
    (1.0, 7.0)
    """
    return 1.0


@dataclass(frozen=True)
class Link:
    """An elementwise function of the linear predictor u = x' theta, and what the library needs to know about it.

    Calling a link returns its value and its derivative. Both must stay finite, and keep their relative accuracy, where
    the link saturates, and accept NumPy and JAX arrays.

    Parameters
    ----------
    name : str
        The name under which `GLM`, the estimator and the command line offer the link.
    function : callable
        Maps u to the pair (value, slope), elementwise.
    range : tuple of float
        The infimum and the supremum of the values. The interval is open: no finite predictor attains an end, except
        through rounding.
    bounded_slope : bool
        Whether the derivative is bounded. The proximal filter then averages the link over its belief.
    inverse_size : callable, optional
        The likely absolute size of the predictor, given the largest absolute target: the size of the link's inverse
        there. The default, 1, is for links that saturate.

    Examples
    --------
    >>> LINKS["sigmoid"](np.array(0.0))
    (np.float64(0.5), np.float64(0.25))
    >>> LINKS["sigmoid"].range, LINKS["exp"].bounded_slope, LINKS["softplus"].scale(np.array([-3.0, 2.0]))
    ((0.0, 1.0), False, 3.0)
    """

    name: str
    function: Callable[[Array], tuple[Array, Array]]
    range: tuple[float, float]
    bounded_slope: bool
    inverse_size: Callable[[float], float] = _saturated

    def __call__(self, u: Array) -> tuple[Array, Array]:
        return self.function(u)

    def scale(self, y: Array) -> float:
        """The likely size of the predictor for targets y, at least 1: the scale of a weak prior.

        Parameters
        ----------
        y : array
            The targets.

        Returns
        -------
        float
        """
        return max(1.0, float(self.inverse_size(float(np.abs(y).max()))))


class Model(ABC):
    """h(theta, x): its value, and its linearisation (value and Jacobian) at theta.

    Derive from it to write a model that JAX cannot differentiate, or not as fast as you can; otherwise use `Function`.

    Attributes
    ----------
    linear : bool
        Whether h is linear in theta, so that one pass over the rows is exact.
    bounded_slope : bool
        Whether h is a function of a linear predictor whose derivative is bounded, so that it is averaged over a belief.

    Examples
    --------
    >>> theta, X = np.array([1.0, -1.0]), np.array([[2.0, 1.0], [0.0, 0.0]])
    >>> GLM("exp").value(theta, X[1])
    np.float64(1.0)
    >>> GLM("exp").linearize(theta, X[1])
    (np.float64(1.0), array([0., 0.]))
    >>> h, D = GLM("exp").linearize_rows(theta, X)
    >>> h.round(3), D.shape
    (array([2.718, 1.   ]), (2, 2))
    """

    linear: ClassVar[bool] = False  # whether h is linear in theta, so that one pass is exact
    bounded_slope: ClassVar[bool] = False

    @abstractmethod
    def value(self, theta: Array, x: Array) -> Array:
        """h at one row.

        Parameters
        ----------
        theta : array of shape (d,)
        x : array
            One row of inputs; for `Linear` and `GLM` it has shape (d,).

        Returns
        -------
        array of shape () or (m,)
            A vector if the model has m outputs.
        """

    @abstractmethod
    def linearize(self, theta: Array, x: Array) -> tuple[Array, Array]:
        """h and its Jacobian at one row.

        Parameters
        ----------
        theta : array of shape (d,)
        x : array
            One row of inputs; for `Linear` and `GLM` it has shape (d,).

        Returns
        -------
        h : array of shape () or (m,)
        D : array of shape (d,) or (m, d)
            The derivatives of h with respect to theta.
        """

    @abstractmethod
    def linearize_rows(self, theta: Array, X: Array) -> tuple[Array, Array]:
        """h and its Jacobian at each row of a block.

        Parameters
        ----------
        theta : array of shape (d,)
        X : array of b rows

        Returns
        -------
        h : array of shape (b,) or (b, m)
        D : array of shape (b, d) or (b, m, d)
        """


class Predictor(Model):
    """h(x' theta): a function of one linear predictor per row. Costs O(d) a row."""

    @abstractmethod
    def link(self, u: Array) -> tuple[Array, Array]:
        """The link and its derivative at the predictor u, elementwise.

        Parameters
        ----------
        u : array
            The linear predictor x' theta.

        Returns
        -------
        value, slope : array
            Of the shape of u.

        Examples
        --------
        >>> GLM("softplus").link(np.array(0.0))
        (np.float64(0.6931471805599453), np.float64(0.5))
        """

    def value(self, theta: Array, x: Array) -> Array:
        return self.link(predictor(theta, x))[0]

    def linearize(self, theta: Array, x: Array) -> tuple[Array, Array]:
        h, slope = self.link(predictor(theta, x))
        return h, slope[..., None] * x

    def linearize_rows(self, theta: Array, X: Array) -> tuple[Array, Array]:
        return self.linearize(theta, X)  # the same formula: x may be a row or a block of rows


def predictor(theta: Array, x: Array) -> Array:
    """x' theta, for one row or a block of rows."""
    check_array("x", x)
    if x.ndim == 0 or x.shape[-1] != len(theta):
        raise ValueError(
            f"x must have one entry for each of the {len(theta)} parameters; got a row of shape {x.shape}."
        )
    return x @ theta


@pytree
class Linear(Predictor):
    """h = x' theta, or several such outputs.

    Parameters
    ----------
    outputs : int, optional
        The number m of outputs, as for the classes of `kalprox.likelihoods.Categorical`. theta is then the matrix of
        shape (d, m), row by row: the m coefficients of the first input, then those of the second. By default there is
        one output, which is a number.

    Examples
    --------
    >>> Linear().value(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    np.float64(11.0)
    >>> h, D = Linear(outputs=2).linearize(np.array([1.0, 0.0, 2.0, 1.0]), np.array([3.0, 4.0]))
    >>> h, D
    (array([11.,  4.]), array([[3., 0., 4., 0.],
           [0., 3., 0., 4.]]))
    """

    outputs: int | None = static(default=None)

    linear: ClassVar[bool] = True

    def __repr__(self) -> str:
        return "Linear()" if self.outputs is None else f"Linear(outputs={self.outputs})"

    def link(self, u: Array) -> tuple[Array, Array]:
        return _identity(u)

    def value(self, theta: Array, x: Array) -> Array:
        return predictor(self._matrix(theta), x)

    def linearize(self, theta: Array, x: Array) -> tuple[Array, Array]:
        f, m = predictor(self._matrix(theta), x), self.outputs
        if m is None:
            return f, x
        xp = namespace(x)
        D = x[..., None, :, None] * xp.eye(m, dtype=x.dtype).reshape((m, 1, m))
        return f, D.reshape((*x.shape[:-1], m, x.shape[-1] * m))

    def _matrix(self, theta: Array) -> Array:
        return theta if self.outputs is None else theta.reshape((-1, self.outputs))


@pytree
class Offset(Model):
    """h(theta, x) + o, where o is the last entry of the inputs, and x are those before it.

    An offset is a part of the output that is known, such as the log of the exposure of a count.

    Parameters
    ----------
    model : Model
        The model h of the other inputs.

    Examples
    --------
    >>> Offset(Linear()).value(np.array([1.0, 2.0]), np.array([3.0, 4.0, 0.5]))
    np.float64(11.5)
    >>> Offset(Linear()).linearize(np.array([1.0, 2.0]), np.array([3.0, 4.0, 0.5]))
    (np.float64(11.5), array([3., 4.]))
    """

    model: Any

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """Whether the model is linear in theta."""
        return bool(self.model.linear)

    def value(self, theta: Array, x: Array) -> Array:
        return self.model.value(theta, x[..., :-1]) + x[..., -1]

    def linearize(self, theta: Array, x: Array) -> tuple[Array, Array]:
        f, D = self.model.linearize(theta, x[:-1])
        return f + x[-1], D

    def linearize_rows(self, theta: Array, X: Array) -> tuple[Array, Array]:
        f, D = self.model.linearize_rows(theta, X[:, :-1])
        return f + X[:, -1], D


@pytree
class GLM(Predictor):
    """h = link(x' theta): a function of one linear predictor.

    Parameters
    ----------
    name : str
        The name of the link, one of `LINKS`: identity, sigmoid, tanh, softplus, exp, arctan.

    Examples
    --------
    >>> GLM("sigmoid").linearize(np.zeros(2), np.array([4.0, 8.0]))
    (np.float64(0.5), array([1., 2.]))
    """

    name: str = static()

    def __post_init__(self) -> None:
        if self.name not in LINKS:
            raise ValueError(f"link must be one of {', '.join(LINKS)}; got {self.name!r}. For any other, use Function.")

    def link(self, u: Array) -> tuple[Array, Array]:
        return LINKS[self.name](u)

    @property
    def bounded_slope(self) -> bool:  # type: ignore[override]
        """Whether the derivative of the link is bounded."""
        return LINKS[self.name].bounded_slope


@pytree
class Function(Model):
    """h = fn(theta, x) for any function, differentiated by JAX: forward for few parameters, in reverse for many.

    JAX is an extra: `pip install "kalprox[jax]"`.

    NumPy arrays are answered with NumPy arrays of the same dtype, whatever JAX's global x64 flag says. Jacobians are
    computed for so many rows at a time that those of the rows together take at most 64 MiB.

    Parameters
    ----------
    fn : callable
        A JAX function of theta, shape (d,), and one row x of any shape, to a scalar or a vector. With `params`, its
        first argument is a tree like `params` instead.
    params : pytree, optional
        The parameters, as nested dictionaries or lists of arrays, an Equinox module or a Flax NNX state: anything
        that `jax.tree_util` flattens. The floating-point arrays in it are the parameters. Other leaves, such as the
        activation function of an Equinox module, stay as they are. theta is the vector of all parameters, leaf after
        leaf. Only the structure and the shapes are kept: start from `flatten(params)`.

    Examples
    --------
    >>> decay = Function(lambda theta, x: theta[0] / (1 + theta[1] * x))
    >>> decay.linearize(np.array([2.0, 1.0]), np.array(1.0))
    (np.float64(1.0), array([ 0.5, -0.5]))

    A network whose weights are in a dictionary:

    >>> import jax.numpy as jnp
    >>> weights = {"hidden": np.array([[0.3, -0.2]]), "out": np.array([1.0])}
    >>> net = Function(lambda p, x: p["out"] @ jnp.tanh(p["hidden"] @ x), params=weights)
    >>> theta = net.flatten(weights)
    >>> theta
    array([ 0.3, -0.2,  1. ])
    >>> net.linearize(theta, np.array([1.0, 1.0]))[1].round(3)
    array([0.99, 0.99, 0.1 ])
    >>> net.unflatten(theta)["hidden"]
    array([[ 0.3, -0.2]])
    """

    fn: Callable[..., Array] = static()
    params: Any = static(default=None)

    def __post_init__(self) -> None:
        require("jax", _PURPOSE)
        if self.params is not None and not isinstance(self.params, TreeLayout):
            object.__setattr__(self, "params", TreeLayout.of(self.params))

    def flatten(self, tree: Any) -> Array:
        """Return the parameters of a tree as the vector theta; it has the dtype to which the arrays promote.

        Parameters
        ----------
        tree : pytree
            With the structure and the shapes of `params`.

        Returns
        -------
        array of shape (d,)
            An array of NumPy, unless an array of the tree is one of JAX.
        """
        return self._layout.flatten(tree)

    def unflatten(self, theta: Array) -> Any:
        """Return theta as a tree like `params`; its arrays have the library and the dtype of theta.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        pytree
        """
        return self._layout.unflatten(theta)

    @property
    def _layout(self) -> TreeLayout:
        if self.params is None:
            raise TypeError("The model has no tree of parameters: give one as Function(fn, params=tree).")
        assert isinstance(self.params, TreeLayout)
        return self.params

    @property
    def flat_fn(self) -> "_OfVector":
        """The function of theta, shape (d,), and one row x."""
        return _OfVector(self.fn, self.params)

    def value(self, theta: Array, x: Array) -> Array:
        return self.linearize(theta, x)[0] if namespace(theta, x) is np else self.flat_fn(theta, x)

    def linearize(self, theta: Array, x: Array) -> tuple[Array, Array]:
        if namespace(theta, x) is np:
            h, D = self.linearize_rows(theta, np.asarray(x)[None])
            return h[0], D[0]
        return _linearize_function(self.flat_fn, theta, x)

    def linearize_rows(self, theta: Array, X: Array) -> tuple[Array, Array]:
        if namespace(theta, X) is not np:
            rows: tuple[Array, Array] = _compiled_rows()(self.flat_fn, theta, X)
            return rows
        h, D = call_jax(partial(_compiled_rows(), self.flat_fn), theta, padded(X, theta.size))
        return h[: len(X)], D[: len(X)]


@dataclass(frozen=True)
class _OfVector:
    """A function, of a tree if there is a layout, as one of the flat vector; equal ones are compiled once."""

    fn: Callable[[Any, Array], Array]
    layout: TreeLayout | None

    def __call__(self, theta: Array, x: Array) -> Array:
        return self.of_arrays(self.arrays(theta), x)

    def arrays(self, theta: Array) -> list[Array]:
        """Return the vector as the arrays of the tree."""
        return [theta] if self.layout is None else self.layout.arrays(theta)

    def of_arrays(self, arrays: list[Array], x: Array) -> Array:
        return self.fn(arrays[0] if self.layout is None else self.layout.tree(arrays), x)


def padded_length(b: int, d: int = 1) -> int:
    """Return the number of rows to which a block of b rows is padded: one of a few, so that JAX seldom compiles again.

    It is a power of two, at least 16. With many parameters d, rows are dear, and at most a quarter of them is padding.
    """
    power = 1 << (b - 1).bit_length()
    if d <= _FEW:
        return max(16, power)
    step = max(1, power // 8)
    return -(-b // step) * step


def padded(X: Array, d: int) -> Array:
    """Return the rows of a block with copies of the last one, at which a function is defined; see `padded_length`."""
    return np.concatenate([X, np.repeat(X[-1:], padded_length(len(X), d) - len(X), axis=0)])


_PURPOSE = "kalprox.models.Function needs"  # JAX
_FEW = 1024  # parameters
_CHUNK = 64 * 2**20  # bytes of the Jacobians that are computed at a time
_FORWARD_MODE_AT_MOST = 16  # parameters: forward mode takes d passes, and allows loops in fn; reverse mode takes one


def _linearize_function(fn: _OfVector, theta: Array, x: Array) -> tuple[Array, Array]:
    import jax

    jacobian = jax.jacfwd if theta.size <= _FORWARD_MODE_AT_MOST else jax.jacrev

    def twice(parts: list[Array]) -> tuple[Array, Array]:
        h = fn.of_arrays(parts, x)
        if not hasattr(h, "shape"):
            raise TypeError(f"the function must return a number or a vector; it returned {h!r}")
        return h, h

    with _explained(theta, x):
        Ds, h = jacobian(twice, has_aux=True)(fn.arrays(theta))  # of the vector, each array would have d derivatives
        D = jax.numpy.concatenate([D.reshape((*h.shape, -1)) for D in Ds], axis=-1)
        _check_indices(fn, theta.shape, x.shape)
    return h, D


@contextmanager
def _explained(theta: Array, x: Array) -> Iterator[None]:
    """Turn the errors that a function raises as JAX traces it into errors that say what to change."""
    import jax

    arguments = f"theta of shape {theta.shape} and one row x of shape {x.shape}"
    try:
        yield
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        raise TypeError(
            "The function of the model must be written for JAX, which differentiates it: use jax.numpy instead of "
            "NumPy and math (import jax.numpy as jnp; jnp.exp instead of np.exp), and jnp.where instead of if. "
            f"JAX says: {str(error).splitlines()[0]}"
        ) from error
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"The function of the model failed for {arguments}: {str(error).rstrip('.')}. Give `start` as many entries "
            "as theta has in the function, and use as many entries of x as there are columns."
        ) from error


@lru_cache(maxsize=256)
def _check_indices(fn: _OfVector, theta_shape: tuple[int, ...], x_shape: tuple[int, ...]) -> None:
    """Raise an IndexError if the function uses an entry that theta or x does not have.

    With JAX's arrays it would silently get the last entry instead; NumPy's arrays raise the error. An index that is
    computed from x is not judged: the error must be there for two values of x.
    """
    found = None
    for x in (np.ones(x_shape), np.zeros(x_shape)):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                fn(np.ones(theta_shape), x)
            except IndexError as error:
                found = error
            except Exception:  # the function may need arrays of JAX, or other values
                return
            else:
                return
    if found is not None:
        raise found


@cache
def _compiled_rows() -> Callable[..., Any]:  # made at first use, because this module does not import JAX
    import jax

    @partial(jax.jit, static_argnums=0)
    def linearize_rows(fn: _OfVector, theta: Array, X: Array) -> tuple[Array, Array]:
        row = partial(_linearize_function, fn, theta)
        outputs = jax.eval_shape(row, jax.ShapeDtypeStruct(X.shape[1:], X.dtype))[1]
        length = max(1, _CHUNK // (outputs.size * outputs.dtype.itemsize))
        found: tuple[Array, Array] = jax.vmap(row)(X) if len(X) <= length else jax.lax.map(row, X, batch_size=length)
        return found

    return linearize_rows


def _identity(u: Array) -> tuple[Array, Array]:
    return u, namespace(u).ones_like(u)


def _sigmoid(u: Array) -> tuple[Array, Array]:
    xp = namespace(u)
    e = xp.exp(-xp.abs(u))
    return xp.where(u >= 0, 1, e) / (1 + e), e / (1 + e) ** 2


def _tanh(u: Array) -> tuple[Array, Array]:
    xp = namespace(u)
    e = xp.exp(-2 * xp.abs(u))
    return xp.tanh(u), 4 * e / (1 + e) ** 2


def _softplus(u: Array) -> tuple[Array, Array]:
    xp = namespace(u)
    return xp.maximum(u, 0) + xp.log1p(xp.exp(-xp.abs(u))), _sigmoid(u)[0]


def _exp(u: Array) -> tuple[Array, Array]:
    e = namespace(u).exp(u)
    return e, e


def _arctan(u: Array) -> tuple[Array, Array]:
    return namespace(u).arctan(u), 1 / (1 + u**2)


#: The links by their names: identity, sigmoid, tanh, softplus, exp and arctan.
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link("identity", _identity, range=(-np.inf, np.inf), bounded_slope=True, inverse_size=float),
        Link("sigmoid", _sigmoid, range=(0.0, 1.0), bounded_slope=True),
        Link("tanh", _tanh, range=(-1.0, 1.0), bounded_slope=True),
        Link("softplus", _softplus, range=(0.0, np.inf), bounded_slope=True, inverse_size=float),
        Link("exp", _exp, range=(0.0, np.inf), bounded_slope=False, inverse_size=np.log1p),
        Link("arctan", _arctan, range=(-np.pi / 2, np.pi / 2), bounded_slope=True),
    )
}
