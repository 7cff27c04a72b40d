"""Forgetting: weights, counts and squares of faded rows, for any blocks."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kalprox.information import Information, merge
from kalprox.sources.weighting import faded

RHO = 0.9


def folded(X, y, weights, cuts, precision):
    info = Information.zero(X.shape[1])
    for i, j in itertools.pairwise([0, *cuts, len(y)]):
        w = weights[i:j]
        *rows, left = faded(w, RHO, (w > 0).astype(float) if precision else None)
        info = info.forget(left).fold(X[i:j], y[i:j], *rows)
    return info


@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [10, 30], list(range(1, 40))], ids=len)
def test_the_squares_are_those_of_the_fading_factors_for_any_blocks(cuts):
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(40, 2)), rng.normal(size=40), np.tile([1.0, 2.0, 0.0, 3.0], 10)
    repeated = np.repeat(np.arange(40), weights.astype(int))
    f = RHO ** np.arange(len(repeated))[::-1]  # every repetition is a row of its own
    info = folded(X, y, weights, cuts, precision=False)
    np.testing.assert_allclose([info.rows, info.squares, info.T[0, 0] ** 2], [f.sum(), (f**2).sum(), f.sum()])

    some = np.flatnonzero(weights)
    f = RHO ** np.arange(len(some))[::-1]  # every row of positive weight is one row
    info = folded(X, y, weights, cuts, precision=True)
    total = (f * weights[some]).sum()
    np.testing.assert_allclose([info.rows, info.squares, info.T[0, 0] ** 2], [f.sum(), (f**2).sum(), total])
    A = X[some].T @ (X[some] * (f * weights[some])[:, None])
    np.testing.assert_allclose(info.precision(), A, rtol=1e-10)
    assert float(info.effective_rows) == pytest.approx(f.sum() ** 2 / (f**2).sum(), rel=1e-12)


def test_counts_and_squares_add_fade_and_are_taken_away():
    rng = np.random.default_rng(1)
    X, y, w = rng.normal(size=(30, 3)), rng.normal(size=30), rng.uniform(0.1, 9, 30)
    w[4] = 0
    counts = np.ones(30)
    precise, plain = (Information.from_rows(X, y, w, c) for c in (counts, None))
    np.testing.assert_array_equal(precise.T, plain.T)
    assert float(precise.rows) == float(precise.squares) == 29  # a row of weight 0 is no row
    assert float(plain.rows) == float(plain.squares) == pytest.approx(w.sum())
    assert float(Information.zero(3).fading) == 1
    half = precise.forget(0.5)
    np.testing.assert_allclose([half.rows, half.squares, half.fading], [14.5, 7.25, 0.5])
    both = merge(half, precise)
    np.testing.assert_allclose([both.rows, both.squares], [43.5, 36.25])
    left = both.subtract(half)
    np.testing.assert_allclose([left.rows, left.squares], [29, 29])


@pytest.mark.slow
def test_jax_counts_the_same_and_compiles_once():
    rng = np.random.default_rng(2)
    X, y, weights = rng.normal(size=(4, 24, 2)), rng.normal(size=(4, 24)), np.tile([1.0, 2.5, 0.0, 0.5], 6)
    traces = []

    @jax.jit
    @jax.vmap
    def learned(X, y, w):
        traces.append(1)
        *rows, left = faded(w, RHO, (w > 0).astype(w.dtype))
        info = Information.from_rows(X, y, w, (w > 0).astype(w.dtype)).forget(left).fold(X, y, *rows)
        return info.rows, info.squares, info.T

    with jax.enable_x64(True):
        for w in (weights, weights[::-1].copy()):
            found = learned(jnp.asarray(X), jnp.asarray(y), jnp.tile(w, (4, 1)))
            for i in range(4):
                *rows, left = faded(w, RHO, (w > 0).astype(float))
                info = Information.from_rows(X[i], y[i], w, (w > 0).astype(float)).forget(left).fold(X[i], y[i], *rows)
                for ours, theirs in zip(found, (info.rows, info.squares, info.T), strict=True):
                    np.testing.assert_allclose(ours[i], theirs, rtol=1e-11, atol=1e-14)
    assert len(traces) == 1
