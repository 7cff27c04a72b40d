"""The Laplace covariance (R'R + Hess g)^-1, from the parts of which a posterior is made."""

from kalprox.linalg.factor import Factor
from kalprox.solvers.prox import posterior_root


def covariance(R, g, theta, *, rows=None):
    """(R'R + Hess g(theta))^-1 on the free coordinates, with zero rows and columns for the others."""
    U, free = posterior_root(R, g, theta)
    return Factor.of(U, rows, free, len(theta)).covariance()
