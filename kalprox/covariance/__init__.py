"""Covariance structures: how V is held, one file each. A structure knows its own algebra."""

from kalprox.covariance.base import Covariance
from kalprox.covariance.dense import Dense
from kalprox.covariance.diagonal import Diagonal
from kalprox.covariance.low_rank import LowRank

__all__ = ["Covariance", "Dense", "Diagonal", "LowRank"]
