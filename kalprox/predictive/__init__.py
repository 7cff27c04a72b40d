"""Predictive distributions of new observations."""

from kalprox.predictive.base import Predictive
from kalprox.predictive.discrete import Categories, Classes, Counts
from kalprox.predictive.student import Student, standard_quantile, standard_score

__all__ = ["Categories", "Classes", "Counts", "Predictive", "Student", "standard_quantile", "standard_score"]
