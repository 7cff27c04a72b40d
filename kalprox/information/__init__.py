"""The information monoid: all that rows say about theta, in a form that adds."""

from kalprox.information.base import Equations, LeastSquares
from kalprox.information.triangular import Information, NotContained, merge

__all__ = ["Equations", "Information", "LeastSquares", "NotContained", "merge"]
