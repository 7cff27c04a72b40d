"""Names of earlier versions: using one is an error that says what stands in its place."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

__all__ = ["Renamed", "says_new_names"]

F = TypeVar("F", bound=Callable[..., Any])

NEW = {  # parameters that are gone, and what to write
    "l1_ratio": "penalty=kalprox.penalties.ElasticNet(l1_ratio)",
    "delta": "penalty=kalprox.penalties.SmoothL1(delta)",
    "bounds": "penalty=kalprox.penalties.Box(low, high)",
    "groups": "clusters, and for a penalty penalty=kalprox.penalties.Group(labels)",
    "cluster": "clusters",
    "weights": "weight_kind",
    "on_bad_rows": "missing='drop'",
    "missing_targets": "missing='drop'",
    "targets": "likelihood=kalprox.likelihoods.Gaussian(targets)",
    "max_pending": "max_pending of partial_fit, beside keys",
    "block_size": "nothing: blocks have 32 MiB",
    "method": "nothing for 'exact', and kalprox.paper.PIPGRegressor for 'paper'",
    "v0": "kalprox.paper.PIPGRegressor(v0=...)",
    "q": "kalprox.paper.PIPGRegressor(q=...)",
}


def says_new_names(method: F) -> F:
    """Return a method that refuses parameters of earlier versions, with what stands in their place.

    Of a class it is the constructor.
    """
    if isinstance(method, type):
        method.__init__ = says_new_names(method.__init__)  # type: ignore[misc]
        return method
    known = inspect.signature(method).parameters

    @wraps(method)
    def checked(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in known and name in NEW:
                raise TypeError(f"{name} is gone since kalprox 0.3; in its place stands {NEW[name]}.")
        return method(*args, **given)

    return checked  # type: ignore[return-value]


class Renamed:
    """An attribute of earlier versions. Reading it raises an AttributeError that says what stands in its place."""

    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        raise AttributeError(f"{self.name} is gone since kalprox 0.3; in its place stands {self.new}.")
