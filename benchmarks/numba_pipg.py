"""The paper's recursion in numba, eqs. (EKFMeanPred) to (EKFCovUpdate), with matrix products by BLAS.

h is a sigmoid or linear. g has a diagonal Hessian: lam * sum(sqrt(1 + theta^2/delta^2) - 1), or ridge if delta = 0.
"""

import numpy as np
from numba import njit

__all__ = ["agreement", "recursion"]


@njit
def recursion(X, y, gamma, q, lam, delta, v0, sigmoid):  # numba infers the types
    """Return the mean after all rows, starting from N(0, v0 I)."""
    n, d = X.shape
    theta, V = np.zeros(d), v0 * np.eye(d)
    M = np.empty((d, d))
    for k in range(n):
        x = X[k]
        if delta > 0:
            u = theta / delta
            root = np.sqrt(1 + u**2)
            grad, H = lam / delta * u / root, lam / delta**2 / root**3
        else:
            grad, H = lam * theta, np.full(d, lam)
        for i in range(d):
            for j in range(d):
                M[i, j] = (1.0 if i == j else 0.0) - gamma * V[i, j] * H[j]
        theta = theta - gamma * np.dot(V, grad)
        V = np.dot(np.dot(M, V), M.T)
        for i in range(d):
            V[i, i] += q
        s = np.dot(x, theta)
        h, slope = s, 1.0
        if sigmoid:
            h = 1 / (1 + np.exp(-s))
            slope = h * (1 - h)
        D = slope * x
        VD = np.dot(V, D)
        gain = VD / (1 / gamma + np.dot(D, VD))
        theta = theta + gain * (y[k] - h)
        for i in range(d):
            for j in range(d):
                V[i, j] -= gain[i] * VD[j]
    return theta


def agreement() -> float:
    """Return the relative distance between this recursion and kalprox.pipg on 5,000 rows of the sigmoid problem.

    Both start from v0 = 1. From the paper's v0 = 100 the recursion amplifies rounding errors by 1e15 within 2,000 rows:
    two runs of kalprox.pipg whose starts differ by 1e-15 are then as far apart.
    """
    import kalprox as kp
    from kalprox.paper import problems

    rows = problems.sparse(5000, 50, 1.0, 0)
    alg = kp.pipg(kp.models.GLM("sigmoid"), kp.regularizers.SmoothL1(1e-5, 0.1), gamma=1.0, q=1e-4)
    theirs = kp.run(alg, alg.init(np.zeros(50), 1.0), rows.X, rows.y).state.mean
    ours = recursion(np.ascontiguousarray(rows.X), rows.y, 1.0, 1e-4, 1e-5, 0.1, 1.0, True)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
