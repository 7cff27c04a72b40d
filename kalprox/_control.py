"""Loops, branches and compilation under one name for NumPy and JAX.

On NumPy arrays these functions are plain Python control flow; on JAX arrays they are the matching `jax.lax`
primitives, so that one formula runs eagerly on the host and compiled on a device.
"""

from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from kalprox._arrays import Array, loaded_jax, namespace

__all__ = [
    "compiled",
    "compiled_on_jax",
    "cond",
    "cond_rare",
    "fori_loop",
    "full_precision",
    "select",
    "while_loop",
    "with_jvp",
]

F = TypeVar("F", bound=Callable)


def while_loop(xp: ModuleType, cond: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """Run `while cond(state): state = body(state)`, compiled where the arrays are JAX's."""
    if xp is np:
        while cond(state):
            state = body(state)
        return state
    import jax

    return jax.lax.while_loop(cond, body, state)


def fori_loop(xp: ModuleType, n: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """Run `for i in range(n): state = body(i, state)`, compiled where the arrays are JAX's."""
    if xp is np:
        for i in range(n):
            state = body(i, state)
        return state
    import jax

    return jax.lax.fori_loop(0, n, body, state)


def cond(predicate: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Return `yes()` or `no()`, evaluating only the chosen branch; compiled where the arrays are JAX's."""
    if namespace(predicate) is np:
        return yes() if predicate else no()
    import jax

    return jax.lax.cond(predicate, yes, no)


def cond_rare(predicate: Any, rare: Callable[[], Any], usual: Callable[[], Any]) -> Any:
    """Return `rare()` where `predicate` is true, else `usual()`: `cond` for an expensive, seldom needed branch.

    Under `jax.vmap`, `jax.lax.cond` evaluates both branches for every member of the batch. This function first
    asks whether any member needs the rare branch. That question has one answer for the whole batch, so the rare
    branch is skipped where no member needs it.
    """
    if namespace(predicate) is np:
        return rare() if predicate else usual()
    return cond(_any_in_batch()(predicate), lambda: cond(predicate, rare, usual), usual)


def select(predicate: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`cond` for cheap branches. On JAX arrays both are evaluated, which compiles faster than a branch."""
    if namespace(predicate) is np:
        return yes() if predicate else no()
    import jax

    return jax.tree_util.tree_map(lambda a, b: jax.numpy.where(predicate, a, b), yes(), no())


@cache
def _any_in_batch() -> Callable:
    """The identity on a boolean; under `jax.vmap`, whether the boolean is true of any member of the batch."""
    import jax

    @jax.custom_batching.custom_vmap
    def any_in_batch(predicate: Array) -> Array:
        return predicate

    @any_in_batch.def_vmap
    def _(axis_size: int, in_batched: list[bool], predicate: Array) -> tuple[Array, bool]:
        return any_in_batch(predicate.any(axis=0) if in_batched[0] else predicate), False

    return any_in_batch


def full_precision(function: F) -> F:
    """Make `function` compute the products of JAX arrays in full precision, also while it is traced by `jax.jit`.

    By default a GPU rounds the inputs of float32 products to 10 bits, which ruins a covariance.
    """

    @wraps(function)
    def precise(*args: Any, **kwargs: Any) -> Any:
        jax = loaded_jax()
        if jax is None:
            return function(*args, **kwargs)
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return precise  # type: ignore[return-value]


def with_jvp(rule: Callable) -> Callable[[F], F]:
    """Give a function a rule for its derivative on JAX arrays: (primals, tangents) -> (value, derivative)."""

    def decorate(function: F) -> F:
        @wraps(function)
        def either(*args: Any) -> Any:
            return function(*args) if namespace(*args) is np else _custom_jvp(function, rule)(*args)

        return either  # type: ignore[return-value]

    return decorate


@cache
def _custom_jvp(function: Callable, rule: Callable) -> Callable:
    import jax

    ruled = jax.custom_jvp(function)
    ruled.defjvp(rule)
    return ruled


@cache
def compiled(function: Callable) -> Callable:
    """`jax.jit(function)` with products in full precision, made once so that later calls find it compiled."""
    import jax

    return jax.jit(full_precision(function))


def compiled_on_jax(function: F) -> F:
    """Compile `function` where any of its arguments is a JAX array; on NumPy arrays call it as it is."""

    @wraps(function)
    def either(*args: Any) -> Any:
        return function(*args) if namespace(*args) is np else compiled(function)(*args)

    return either  # type: ignore[return-value]
