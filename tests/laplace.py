"""The Laplace covariance (R'R + Hess g)^-1, from the parts of which a posterior is made."""

from kalprox.linalg.factor import Factor
from kalprox.noise import effective_dof
from kalprox.solvers.prox import posterior_root


def covariance(R, g, theta, *, rows=None):
    """(R'R + Hess g(theta))^-1 on the free coordinates, with zero rows and columns for the others."""
    return factor(R, g, theta, rows).covariance()


def dof(R, g, theta, *, rows=None):
    """trace((R'R + Hess g(theta))^-1 R'R) on the free coordinates."""
    return effective_dof(R, g, theta, factor(R, g, theta, rows))


def factor(R, g, theta, rows):
    U, free = posterior_root(R, g, theta)
    return Factor.of(U, rows, free, len(theta))
