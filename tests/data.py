"""Rows that many tests share, made from a seed."""

import numpy as np
import oracle


def linear(n, d, seed=0, noise=1.0):
    """X (n, d) of standard normals, y = X theta + noise: X and y."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + noise * rng.normal(size=n)


def behind_link(link, n=500, d=6, seed=0, noise=0.3):
    """Rows of unit length on average behind a link: X, y and the true theta."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) / np.sqrt(d)
    theta = rng.normal(size=d)
    return X, oracle.LINKS[link][0](X @ theta) + noise * rng.normal(size=n), theta
