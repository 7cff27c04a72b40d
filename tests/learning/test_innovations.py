"""Innovations: every row predicted from all rows before it, in blocks as one by one."""

import numpy as np
import pytest
from data import linear

from kalprox import KalproxRegressor
from kalprox.regularizers import Quadratic
from kalprox.sources import Block

N, FIRST, D = 110, 30, 4
SETTINGS = {
    "none": {"penalty": None},
    "ridge": {"alpha": 5.0},
    "heavy ridge": {"alpha": 5e3},
    "quadratic": {"penalty": Quadratic(np.triu(np.ones((D, D))))},
    "no intercept": {"alpha": 5.0, "fit_intercept": False},
    "noise": {"alpha": 5.0, "noise": 0.5},
    "forget": {"penalty": None, "forget": 0.97},
    "forget noise": {"penalty": None, "forget": 0.97, "noise": 0.5},
}


def rows(kind="", n=N, d=D):
    X, y = linear(n, d)
    rng = np.random.default_rng(1)
    if kind == "far":
        X = X + 1e8
        y = y + 1e8
    if kind == "targets":
        y = np.column_stack([y, 1e3 * rng.normal(size=n) + X[:, 0], np.abs(y)])
    if kind in ("frequency", "precision"):
        weights = rng.integers(0, 4, size=n) + 0.0 if kind == "frequency" else rng.gamma(2, size=n)
        weights[50] = 0
        return X, y, weights
    return X, y, None


def of_a_block(X, y, w, **settings):
    """The innovations of the rows after the first, as one block."""
    some = None if w is None else w[:FIRST]
    belief = KalproxRegressor(diagnose=False, **settings).fit(X[:FIRST], y[:FIRST], some)._belief
    block = Block(X[FIRST:], y[FIRST:], None if w is None else w[FIRST:])
    return belief.innovations(block, belief.learn(block), exact=True)


def one_by_one(X, y, w, **settings):
    """Mean, std and dof for each row after the first, by a fit to the rows before it."""
    found = []
    for i in range(FIRST, len(y)):
        some = None if w is None else w[:i]
        model = KalproxRegressor(diagnose=False, **settings).fit(X[:i], y[:i], some)
        sigma = w[i] ** -0.5 if settings.get("weights") == "precision" and w[i] else None
        mean, std = model.predict(X[i : i + 1], return_std=True, sigma=sigma)
        found.append((mean[0], std[0], np.broadcast_to(model.noise_dof_, mean[0].shape)))
    return map(np.stack, zip(*found, strict=True))


def check(found, expected, counted, rtol=1e-11):
    for ours, theirs in zip((found.mean, found.std, found.dof), expected, strict=True):
        np.testing.assert_allclose(ours[counted], theirs[counted], rtol=rtol)


@pytest.mark.parametrize("kind", ["", "far", "targets", "frequency", "precision"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_block_gives_the_innovations_of_its_rows_one_by_one(name, kind):
    X, y, weights = rows(kind)
    settings = SETTINGS[name] | ({"weights": kind} if weights is not None else {})
    counted = slice(None) if weights is None else weights[FIRST:] > 0
    rtol = 1e-7 if kind == "far" else 1e-11  # at 1e8 the inputs themselves, less their mean, are known to 1e-8
    check(of_a_block(X, y, weights, **settings), one_by_one(X, y, weights, **settings), counted, rtol)
