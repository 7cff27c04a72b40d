"""Streams, and dense oracles of the kinds of forgetting that use nothing of kalprox."""

import numpy as np


def stream(n=240, d=3, seed=0, far=0.0):
    """Rows whose coefficients walk, and their times, which are not regular."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + far
    theta = 1 + np.cumsum(0.1 * rng.normal(size=(n, d)), axis=0)
    y = (X * theta).sum(axis=1) + rng.normal(size=n) + 2
    return X, y, np.cumsum(rng.exponential(size=n))


def least_squares(X, y, weights, alpha=0.0, intercept=True):
    """The estimate of weighted least squares with a ridge penalty: the intercept, if any, first."""
    Z = np.column_stack([np.ones(len(y)), X]) if intercept else X
    H = alpha * np.eye(Z.shape[1])
    H[0, 0] = 0.0 if intercept else alpha
    return np.linalg.solve(Z.T @ (weights[:, None] * Z) + H, Z.T @ (weights * y))


def walking_information(X, y, Q, intercept=True):
    """A and b of A theta = b, and y'W y, by generalised least squares: rows before the last miss its steps."""
    Z = np.column_stack([np.ones(len(y)), X]) if intercept else X
    missed = np.arange(len(y) - 1.0, -1, -1)
    W = np.linalg.inv(np.eye(len(y)) + (Z * Q) @ Z.T * np.minimum.outer(missed, missed))
    return Z.T @ W @ Z, Z.T @ W @ y, y @ W @ y


def kalman(m, V, X, y, Q, noise):
    """The Kalman filter in covariance form: the mean and variance of each prediction, and the last mean and V."""
    predicted = []
    for x, target in zip(np.column_stack([np.ones(len(y)), X]), y, strict=True):
        V = V + np.diag(Q)
        s = x @ V @ x + noise
        predicted.append((x @ m, s))
        gain = V @ x / s
        m, V = m + gain * (target - x @ m), V - np.outer(gain, x @ V)
    return np.array(predicted), m, V
