"""Information: the sufficient statistics of least squares, which add over rows, blocks and machines."""

from kalprox.information.base import Equations, LeastSquares
from kalprox.information.triangular import Information, NotContained, merge

__all__ = ["Equations", "Information", "LeastSquares", "NotContained", "merge"]
