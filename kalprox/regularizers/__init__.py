"""Regularisers g: what is preferred of theta, before any data.

Each gives its value, gradient and Hessian; the Hessian as its diagonal, shape (d,), where it is
diagonal, and as a matrix, shape (d, d), where it is not. Those that are not smooth say where they
are (`free`), and give gradient and Hessian there. A regulariser knows nothing of models,
covariances or algorithms; a new one is one new class here, and the tests find it.
"""

from kalprox.regularizers.base import Pieces, Regularizer, Separable
from kalprox.regularizers.kinked import L1, Box, ElasticNet, GroupL1, Kinked, Weighted
from kalprox.regularizers.smooth import Cauchy, Custom, Huber, Quadratic, Ridge, SmoothL1, Zero

__all__ = [
    "L1",
    "Box",
    "Cauchy",
    "Custom",
    "ElasticNet",
    "GroupL1",
    "Huber",
    "Kinked",
    "Pieces",
    "Quadratic",
    "Regularizer",
    "Ridge",
    "Separable",
    "SmoothL1",
    "Weighted",
    "Zero",
]
