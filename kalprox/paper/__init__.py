"""The paper: its recursion as an estimator, and its experiments (section IV), reproduced from its text.

`PIPGRegressor` is in `estimator`. `ridge` and `sparse` compute the two experiments on the data of `problems`, with the
public functions of the library; `ridge_report` and `sparse_report` have their figures, tables and conclusions. `claims`
lists the paper's claims, with evidence from `claim_measurements` and the verdicts of `claim_verdicts`. `page` and
`demo` are the pages. `cache` keeps the results on disk; `workers` compute them.
"""

from typing import TYPE_CHECKING, Any

from kalprox._extras import load

if TYPE_CHECKING:
    from kalprox.paper.estimator import PIPGRegressor

__all__ = ["PIPGRegressor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kalprox.paper' has no attribute {name!r}")
    return load("kalprox.paper.estimator", "estimator", "PIPGRegressor needs").PIPGRegressor
