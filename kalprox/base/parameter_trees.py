"""Parameters that are trees of arrays, such as the weights of a network, and the flat vector theta of their numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array, is_array, namespace

__all__ = ["TreeLayout"]


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
