"""The paper: its recursions, one of them as an estimator, and its experiments (section IV), reproduced from its text.

`pipg` has the paper's recursion line by line, and those that it compares with; `run` drives any algorithm, and returns
what it recorded along the way, to be read and drawn. `PIPGRegressor` is in
`estimator`. `ridge` and `sparse` are the two experiments on the data of `problems`, with their figures, tables and
conclusions; `claims` measures the paper's claims, with verdicts on the evidence. `page` is the page about all of these,
and `demo` that of the demonstration. `cache` keeps the results on disk.
"""

from typing import TYPE_CHECKING, Any

from kalprox.base.extras import load

if TYPE_CHECKING:
    from kalprox.paper.estimator import PIPGRegressor

__all__ = ["PIPGRegressor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kalprox.paper' has no attribute {name!r}")
    return load("kalprox.paper.estimator", "estimator", "PIPGRegressor needs").PIPGRegressor
