"""The information monoid: all that rows say about theta, in a form that adds."""

from kalprox.information.triangular import Equations, Information, LeastSquares, NotContained, merge

__all__ = ["Equations", "Information", "LeastSquares", "NotContained", "merge"]
