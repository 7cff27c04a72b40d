"""Models of many parameters: structures of a precision matrix, and neural networks.

What is below imports this package only where a structure is given. The objects of `kalprox.structures` make their
`information` here, whose precision matrix is `block_diagonal` plus `low_rank`. `filter` is the proximal filter of a
structure, and `refinement` makes passes over rows that can be read again; `state` is what a learner holds, and `rows`
how it learns classes, counts and outliers. `net` defines KalproxNetRegressor and KalproxNetClassifier.
"""

from typing import TYPE_CHECKING, Any

from kalprox.base.extras import load

if TYPE_CHECKING:
    from kalprox.large.net import KalproxNetClassifier, KalproxNetRegressor

__all__ = ["KalproxNetClassifier", "KalproxNetRegressor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kalprox.large' has no attribute {name!r}")
    return getattr(load("kalprox.large.net", "estimator", f"{name} needs"), name)
