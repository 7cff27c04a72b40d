"""The paper's recursion in plain NumPy: explicit M, V and Q, nothing imported from kalprox.

Every function is written from the paper's text (or from a textbook formula), so that an error in
the library and the same error here would be two errors.
"""

import numpy as np

LINKS = {
    "identity": (lambda u: u, lambda u: 1.0),
    "sigmoid": (lambda u: 1 / (1 + np.exp(-u)), lambda u: np.exp(-u) / (1 + np.exp(-u)) ** 2),
    "tanh": (np.tanh, lambda u: 1 - np.tanh(u) ** 2),
    "softplus": (lambda u: np.log(1 + np.exp(u)), lambda u: 1 / (1 + np.exp(-u))),
    "exp": (np.exp, np.exp),
    "arctan": (np.arctan, lambda u: 1 / (1 + u * u)),
}


def zero():
    return lambda t: 0 * t, lambda t: np.zeros((len(t), len(t)))


def ridge(lam):
    return lambda t: lam * t, lambda t: lam * np.eye(len(t))


def quadratic(A):
    return lambda t: A.T @ A @ t, lambda t: A.T @ A


def smooth_l1(lam, delta):
    return (
        lambda t: lam * t / delta**2 / np.sqrt(1 + t**2 / delta**2),
        lambda t: np.diag(lam / delta**2 / (1 + t**2 / delta**2) ** 1.5),
    )


def huber(lam, delta):
    return (
        lambda t: np.where(abs(t) <= delta, lam * t / delta, lam * np.sign(t)),
        lambda t: np.diag(np.where(abs(t) <= delta, lam / delta, 0.0)),
    )


def cauchy(lam, delta):
    return (
        lambda t: lam * 2 * t / delta**2 / (1 + t**2 / delta**2),
        lambda t: np.diag(lam * (2 / delta**2) * (1 - t**2 / delta**2) / (1 + t**2 / delta**2) ** 2),
    )


def quartic(c):
    """g = c/4 (sum theta^2)^2, for Custom: a Hessian that is neither constant nor diagonal."""
    return lambda t: c * (t @ t) * t, lambda t: c * ((t @ t) * np.eye(len(t)) + 2 * np.outer(t, t))


def pipg(link, regularizer, gamma, Q, mean, V, X, y):
    """(EKFMeanPred)-(EKFCovUpdate), row after row; returns the last mean and V."""
    h, dh = LINKS[link]
    grad, hessian = regularizer
    for x, target in zip(X, y, strict=True):
        M = np.eye(len(mean)) - gamma * V @ hessian(mean)
        mean_ = mean - gamma * V @ grad(mean)
        V_ = M @ V @ M.T + Q
        d = dh(x @ mean_) * x
        s = 1 / gamma + d @ V_ @ d
        mean = mean_ + V_ @ d * (target - h(x @ mean_)) / s
        V = V_ - np.outer(V_ @ d, V_ @ d) / s
    return mean, V


def posterior(X, y, gamma, mean0, V0):
    """The Gaussian posterior of a linear model by explicit inverses."""
    P = np.linalg.inv(V0) + gamma * X.T @ X
    V = np.linalg.inv(P)
    return V @ (np.linalg.solve(V0, mean0) + gamma * X.T @ y), V


def ridge_solution(X, y, lam):
    return np.linalg.solve(X.T @ X + lam * np.eye(X.shape[1]), X.T @ y)
