"""Covariance structures: how V is stored, one file for each. A structure implements its own algebra."""

from kalprox.covariance.base import Covariance
from kalprox.covariance.dense import Dense
from kalprox.covariance.diagonal import Diagonal
from kalprox.covariance.low_rank import LowRank
from kalprox.covariance.square_root import SquareRoot

__all__ = ["Covariance", "Dense", "Diagonal", "LowRank", "SquareRoot"]
