"""Networks for the estimators: fully connected ones, and the scale of the prior of any other."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from kalprox.base.arrays import Array

__all__ = ["GAINS", "Dense", "DenseStart", "Scalar", "prior_stds"]

#: The standard deviation of the weights of a layer, times the root of the number of its inputs, by its activation.
GAINS = {"relu": math.sqrt(2.0), "tanh": 1.0}


@dataclass(frozen=True)
class DenseStart:
    """The first weights and biases of a fully connected network, normal with the variance 1 / inputs of their layer.

    Before relu the variance is twice as large, so that the outputs of every layer have the size of its inputs.

    Examples
    --------
    >>> [[W.shape, b.shape] for W, b in DenseStart((8,), "tanh")(0, 3, 2)]
    [[(8, 3), (8,)], [(2, 8), (2,)]]
    """

    hidden: tuple[int, ...]
    activation: str

    def __call__(self, seed: int, inputs: int, outputs: int) -> list[list[Array]]:
        rng, sizes = np.random.default_rng(seed), (inputs, *self.hidden, outputs)
        gains = [GAINS[self.activation]] * len(self.hidden) + [1.0]
        return [
            [gain / math.sqrt(before) * rng.normal(size=shape) for shape in ((after, before), (after,))]
            for gain, (before, after) in zip(gains, pairwise(sizes), strict=True)
        ]


@dataclass(frozen=True)
class Dense:
    """The outputs of a fully connected network for one row.

    Examples
    --------
    >>> Dense("tanh")(DenseStart((8,), "tanh")(0, 3, 2), np.zeros(3)).shape
    (2,)
    """

    activation: str

    def __call__(self, weights: list[list[Array]], x: Array) -> Array:
        import jax

        bend = {"relu": jax.nn.relu, "tanh": jax.numpy.tanh}[self.activation]
        for W, b in weights[:-1]:
            x = bend(W @ x + b)
        W, b = weights[-1]
        return W @ x + b


@dataclass(frozen=True)
class Scalar:
    """A network of one output as a number instead of a vector."""

    apply: Any

    def __call__(self, weights: Any, x: Array) -> Array:
        return self.apply(weights, x).reshape(())


def prior_stds(tree: Any) -> Any:
    """Return the scale of the prior of each array of a tree of first weights: the root mean square of its entries.

    An array of zeros, such as biases often are, has the smallest scale of the others.

    Parameters
    ----------
    tree : pytree
        Its floating-point arrays are the weights.

    Returns
    -------
    pytree
        Of the same structure, with constant arrays.

    Examples
    --------
    >>> prior_stds({"bias": np.zeros(2), "weights": np.array([[3.0, -4.0]])})
    {'bias': array([3.53553391, 3.53553391]), 'weights': array([[3.53553391, 3.53553391]])}
    """
    import jax

    leaves, treedef = jax.tree_util.tree_flatten(tree)
    arrays = {i: np.asarray(a, float) for i, a in enumerate(leaves) if getattr(a, "dtype", np.dtype(int)).kind in "fV"}
    sizes = {i: float(np.sqrt(np.mean(a**2))) for i, a in arrays.items()}
    least = min((size for size in sizes.values() if size > 0), default=1.0)
    for i, size in sizes.items():
        leaves[i] = np.full(arrays[i].shape, size or least)
    return jax.tree_util.tree_unflatten(treedef, leaves)
