"""The Laplace covariance (R'R + Hess g)^-1, from the parts of which a posterior is made."""

import numpy as np

from kalprox.base.arrays import namespace
from kalprox.linalg.factor import Factor
from kalprox.solvers.prox import posterior_root


def covariance(R, g, theta, *, rows=None):
    """(R'R + Hess g(theta))^-1 on the free coordinates, with zero rows and columns for the others."""
    U = posterior_root(R, g, theta)
    if g.smooth and namespace(R, g, theta) is not np:
        return Factor.of(U, rows).covariance()
    free = np.flatnonzero(g.free(np.asarray(theta)))
    V, some = np.zeros(U.shape), np.ix_(free, free)
    V[some] = Factor.of(np.asarray(U)[some], rows).covariance() if len(free) else 0.0
    return V
