"""Regularisers g: penalties on theta.

Each regulariser gives its value, gradient and Hessian. The Hessian is returned as its diagonal, shape (d,), where it is
diagonal, and as a matrix, shape (d, d), otherwise. A regulariser that is not smooth reports at which coordinates it is
smooth (`free`); its gradient and Hessian hold there. A regulariser knows nothing of models, covariances or
algorithms. A new regulariser is one class in this package, listed in `__all__`, where the tests find it.
"""

from kalprox.regularizers.base import FreeIntercept, Pieces, Regularizer, Separable, SeparableFreeIntercept
from kalprox.regularizers.kinked import L1, MCP, Box, ElasticNet, GroupL1, Kinked, Weighted
from kalprox.regularizers.smooth import Cauchy, Custom, Huber, Quadratic, Ridge, SmoothL1, Zero

__all__ = [
    "L1",
    "MCP",
    "Box",
    "Cauchy",
    "Custom",
    "ElasticNet",
    "FreeIntercept",
    "GroupL1",
    "Huber",
    "Kinked",
    "Pieces",
    "Quadratic",
    "Regularizer",
    "Ridge",
    "Separable",
    "SeparableFreeIntercept",
    "SmoothL1",
    "Weighted",
    "Zero",
]
