"""Pickling parts for workers, so that a model that JAX compiles is compiled once per worker.

JAX caches compiled functions by the identity of the function, and every task unpickles its part anew. A model that
JAX compiles is therefore sent as bytes; the worker keeps the model that it unpickled for the same bytes in an earlier
task or pass.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from kalprox.models import GLM, Linear, Model, Offset

__all__ = ["ModelPickler", "is_traced", "unpacked"]


@dataclass(frozen=True)
class _PickledModel:
    pickled: bytes


class ModelPickler:
    """Replaces the models in a part by their pickles. The same model gives the same bytes in every pass.

    Parameters
    ----------
    dumps : callable
        Pickles a model; `cloudpickle.dumps` also pickles lambdas.
    """

    def __init__(self, dumps: Callable[[Any], bytes]) -> None:
        self._dumps = dumps
        self._recent: list[tuple[Model, _PickledModel]] = []

    def packed(self, part: Any) -> Any:
        """The part with every model that JAX compiles pickled, also in the arguments of a `functools.partial`."""
        if isinstance(part, partial):
            arguments = {name: self.packed(value) for name, value in part.keywords.items()}
            return partial(part.func, *map(self.packed, part.args), **arguments)
        if not is_traced(part):
            return part
        for model, pickled in self._recent:
            if model is part:
                return pickled
        pickled = _PickledModel(self._dumps(part))
        self._recent = [*self._recent[-7:], (part, pickled)]
        return pickled


def unpacked(part: Any) -> Any:
    """The part that was packed; models with the same pickle are the same object in all tasks of a process."""
    if isinstance(part, partial):
        arguments = {name: unpacked(value) for name, value in part.keywords.items()}
        return partial(part.func, *map(unpacked, part.args), **arguments)
    return _model(part.pickled) if isinstance(part, _PickledModel) else part


def is_traced(part: Any) -> bool:
    """Whether `part` is a model that JAX compiles at its first use."""
    part = part.model if isinstance(part, Offset) else part
    return isinstance(part, Model) and not isinstance(part, GLM | Linear)


@lru_cache(maxsize=16)
def _model(pickled: bytes) -> Any:
    return pickle.loads(pickled)
