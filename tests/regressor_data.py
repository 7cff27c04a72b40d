"""Rows that the tests of KalproxRegressor share."""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

X_DIABETES, Y_DIABETES = load_diabetes(return_X_y=True, scaled=False)
X_SCALED = StandardScaler().fit_transform(X_DIABETES)

LINKS = {
    "sigmoid": lambda u: 1 / (1 + np.exp(-u)),
    "tanh": np.tanh,
    "exp": np.exp,
    "softplus": lambda u: np.logaddexp(0, u),
}


def linear_data(n=120, d=4, k=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 2
    B = rng.normal(size=(d,) if k is None else (d, k))
    return X, X @ B + 3 + 0.5 * rng.normal(size=(n,) if k is None else (n, k))


def link_data(link, n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 0.5, 2.0] + [0.0, 5.0, -3.0]
    u = (X - [0.0, 5.0, -3.0]) @ [0.7, -1.0, 0.3] + 0.4
    return X, LINKS[link](u) + 0.1 * rng.normal(size=n)
