"""The truth of a scenario from the textbook, in plain NumPy: nothing of kalprox is imported.

A fit minimises sum_i w_i loss(y_i, f_i) + g(coef), f = intercept + X coef + offset, with loss 1/2 (y - f)^2 for numbers
and -log p(y | f) for counts and classes, and w what forgetting has left of the row times how often it counts.
`residual` is how far an estimate is from a minimum: zero where the gradient of the losses is one of -g.
"""

from typing import Any

import numpy as np

__all__ = ["covariance", "design", "information", "residual", "shape", "share_of_rows", "weights"]

HALF_LIFE, FORGET, WINDOW = 40.0, 0.99, 60


def weights(labels: dict[str, str], about: dict[str, np.ndarray], n: int) -> np.ndarray:
    """What each row counts for, after the last of them."""
    age = np.arange(n - 1, -1, -1)
    left = {
        "by row": FORGET**age,
        "by time": 2.0 ** (-age / HALF_LIFE),
        "window": (age < WINDOW).astype(float),
    }.get(labels.get("forget", ""), np.ones(n))
    return left * about.get("sample_weight", np.ones(n))


def mean_and_slope(target: str, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the target and its derivative by f: links are canonical."""
    if target in ("count", "dispersed count"):
        return np.exp(f), np.exp(f)
    if target == "two classes":
        p = 1 / (1 + np.exp(-f))
        return p, p * (1 - p)
    return f, np.ones_like(f)


def penalty(labels: dict[str, str], coef: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The smallest and the largest slope of g at each coefficient, equal where it is smooth; and its curvature."""
    kind, zero = labels.get("penalty", "ridge"), np.zeros_like(coef)
    if kind == "none":
        return zero, zero, zero
    if kind == "ridge":
        return 2 * coef, 2 * coef, zero + 2
    if kind == "smooth l1":
        root = np.sqrt(1 + coef**2 / 0.01)
        return 200 * coef / root, 200 * coef / root, 200 / root**3
    if kind == "box":
        return np.where(coef <= 0, -np.inf, 0), np.where(coef >= 0.5, np.inf, 0), zero
    l1, l2 = (3.0, 0.0) if kind == "l1" else (1.5, 1.5)
    low = np.where(coef > 0, l1, -l1) + l2 * coef
    high = np.where(coef < 0, -l1, l1) + l2 * coef
    return low, high, zero + l2


def residual(labels: dict[str, str], X: Any, y: Any, about: Any, coef: Any, intercept: Any) -> float:
    """The largest violation of the optimality conditions, relative to the sum of the sizes of the terms."""
    w, scale = weights(labels, about, len(y)), np.ones(X.shape[1])
    if labels.get("standardize") == "yes" and labels.get("penalty", "ridge") not in ("none", "box"):
        centre = np.average(X, axis=0, weights=w) * (labels.get("intercept", "yes") == "yes")
        scale = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=w))
    worst = 0.0
    targets = np.eye(3)[y] if labels.get("target") == "three classes" else np.asarray(y, float).reshape(len(y), -1)
    f = np.column_stack([X @ c + b for c, b in zip(np.atleast_2d(coef), np.atleast_1d(intercept), strict=True)])
    f = f + about.get("offset", np.zeros(len(y)))[:, None]
    if labels.get("target") == "three classes":
        mean = np.exp(f - f.max(axis=1, keepdims=True))
        mean = mean / mean.sum(axis=1, keepdims=True)
    else:
        mean = mean_and_slope(labels.get("target", "number"), f)[0]
    for j, c in enumerate(np.atleast_2d(coef)):
        error = w * (targets[:, j] - mean[:, j])
        pull = X.T @ error / scale
        size = np.abs(X / scale).T @ np.abs(error) + 1
        low, high, _ = penalty(labels, c * scale)
        if labels.get("penalty") == "group":
            worst = max(worst, _group_residual(pull, c * scale, size))
        else:
            worst = max(worst, (np.maximum(np.maximum(low - pull, pull - high), 0) / size).max())
        if labels.get("intercept", "yes") == "yes":
            worst = max(worst, abs(error.sum()) / (np.abs(error).sum() + 1))
    return float(worst)


def _group_residual(pull: np.ndarray, coef: np.ndarray, size: np.ndarray) -> float:
    worst = 0.0
    for group in ([0, 1], [2]):
        level, norm = 3.0 * len(group) ** 0.5, np.linalg.norm(coef[group])
        if norm == 0:
            worst = max(worst, (np.linalg.norm(pull[group]) - level) / size[group].max())
        else:
            worst = max(worst, np.abs(pull[group] - level * coef[group] / norm).max() / size[group].max())
    return worst


def design(labels: dict[str, str], X: np.ndarray) -> np.ndarray:
    """The rows with a column of ones before them, if there is an intercept."""
    return np.column_stack([np.ones(len(X)), X]) if labels.get("intercept", "yes") == "yes" else X


def information(labels: dict[str, str], X: np.ndarray, about: dict[str, np.ndarray]) -> np.ndarray:
    """The Hessian of the sum of squares of a number and of its ridge, with the intercept first."""
    A = design(labels, X)
    free = A.shape[1] - X.shape[1]
    curvature = penalty(labels, np.zeros(X.shape[1]))[2]
    return A.T @ (A * weights(labels, about, len(X))[:, None]) + np.diag(np.concatenate([np.zeros(free), curvature]))


def share_of_rows(labels: dict[str, str], n: int) -> float:
    """By how much less uncertain rows that fade are than their weights say, sum w^2 / sum w: their noise does not grow.

    The rows are then worth (sum w)^2 / sum w^2 rows. A window has whole rows.
    """
    w = weights(labels, {}, n)
    return float((w**2).sum() / w.sum())


def shape(labels: dict[str, str], X: np.ndarray, about: dict[str, np.ndarray]) -> np.ndarray:
    """The covariance of the intercept and the coefficients of a number, by the noise variance: H^-1 S H^-1, where S is
    what the noise of rows and the ridge, a prior, add to H."""
    whole, rows = information(labels, X, about), information(labels | {"penalty": "none"}, X, about)
    inverse = np.linalg.inv(whole)
    return inverse @ (share_of_rows(labels, len(X)) * rows + (whole - rows)) @ inverse


def covariance(labels: dict[str, str], X: Any, y: Any, about: Any, coef: Any, intercept: Any) -> np.ndarray:
    """The covariance of the coefficients of a smooth penalty by explicit inverses: (H + Hess g)^-1, times the noise."""
    w, target = weights(labels, about, len(y)), labels.get("target", "number")
    A = design(labels, X)
    first = A.shape[1] - X.shape[1]
    mean, slope = mean_and_slope(target, X @ coef + intercept + about.get("offset", 0.0))
    hessian = A.T @ (A * (w * slope)[:, None])
    curvature = np.concatenate([np.zeros(first), penalty(labels, coef)[2]])
    inverse = np.linalg.inv(hessian + np.diag(curvature))
    if target == "count" or target == "two classes":
        return inverse[first:, first:]
    rows = float(len(y)) if labels.get("weights") == "precision" else w.sum()
    freedom = rows - np.trace(inverse @ hessian)
    squares = (w * (y - mean) ** 2 / slope).sum()
    noise = 0.5 if labels.get("noise") == "given" else squares / freedom
    return noise * inverse[first:, first:]
