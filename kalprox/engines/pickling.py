"""Parts on their way to a worker: a model that JAX compiles arrives there once, and stays.

JAX knows a function that it has compiled by its identity, and each task unpickles anew. So such a model travels as
bytes, which the worker knows again in the next task and in the next pass.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from kalprox.models import GLM, Linear, Model

__all__ = ["Shipper", "is_traced", "unpacked"]


@dataclass(frozen=True)
class _Shipped:
    pickled: bytes


class Shipper:
    """Packs parts with `dumps`, which should know lambdas: each model once."""

    def __init__(self, dumps: Callable[[Any], bytes]) -> None:
        self._dumps = dumps
        self._known: list[tuple[Model, _Shipped]] = []

    def packed(self, part: Any) -> Any:
        if isinstance(part, partial):
            arguments = {name: self.packed(value) for name, value in part.keywords.items()}
            return partial(part.func, *map(self.packed, part.args), **arguments)
        if not is_traced(part):
            return part
        for model, shipped in self._known:
            if model is part:
                return shipped
        shipped = _Shipped(self._dumps(part))
        self._known = [*self._known[-7:], (part, shipped)]
        return shipped


def unpacked(part: Any) -> Any:
    """The part that was packed; its model is the one that came in an earlier task."""
    if isinstance(part, partial):
        arguments = {name: unpacked(value) for name, value in part.keywords.items()}
        return partial(part.func, *map(unpacked, part.args), **arguments)
    return _model(part.pickled) if isinstance(part, _Shipped) else part


def is_traced(part: Any) -> bool:
    """Whether this is a model that JAX compiles at its first use, or may be."""
    return isinstance(part, Model) and not isinstance(part, GLM | Linear)


@lru_cache(maxsize=16)
def _model(pickled: bytes) -> Any:
    return pickle.loads(pickled)
