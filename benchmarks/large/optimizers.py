"""Networks trained by optax in one pass over the rows, with the best of five learning rates."""

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["RATES", "one_pass"]

RATES = {"AdamW": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), "SGD": (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)}


def one_pass(
    name: str, rate: float, loss: Callable[..., Any], start: Any, X: np.ndarray, y: np.ndarray, batch: int
) -> tuple[list[Any], Callable[..., Any]]:
    """Return the parameters before each batch and after the last, and the compiled step.

    `loss(params, X, y)` is the mean loss of a batch.
    """
    import jax
    import optax

    optimizer = {"AdamW": optax.adamw, "SGD": optax.sgd}[name](rate)

    @jax.jit
    def step(params: Any, state: Any, X: Any, y: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss)(params, X, y), state, params)
        return optax.apply_updates(params, updates), state

    params, state = start, optimizer.init(start)
    passed = [params]
    for begin in range(0, len(y) - batch + 1, batch):
        params, state = step(params, state, X[begin : begin + batch], y[begin : begin + batch])
        passed.append(params)
    return passed, step
