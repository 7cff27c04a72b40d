"""Predictive distributions of new observations."""

from kalprox.predictive.discrete import Amounts, Categories, Classes, Counts
from kalprox.predictive.mixture import Mixture, mixed
from kalprox.predictive.student import (
    FromMoments,
    Predictive,
    Student,
    central_interval,
    is_discrete,
    normal_scores,
    standard_quantile,
    standard_score,
)

__all__ = [
    "Amounts",
    "Categories",
    "Classes",
    "Counts",
    "FromMoments",
    "Mixture",
    "Predictive",
    "Student",
    "central_interval",
    "is_discrete",
    "mixed",
    "normal_scores",
    "standard_quantile",
    "standard_score",
]
