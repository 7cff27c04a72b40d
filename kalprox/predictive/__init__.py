"""Predictive distributions of new observations."""

from kalprox.predictive.base import FromMoments, Predictive
from kalprox.predictive.discrete import Categories, Classes, Counts
from kalprox.predictive.mixture import Mixture, mixed
from kalprox.predictive.student import Student, standard_quantile, standard_score

__all__ = [
    "Categories",
    "Classes",
    "Counts",
    "FromMoments",
    "Mixture",
    "Predictive",
    "Student",
    "mixed",
    "standard_quantile",
    "standard_score",
]
