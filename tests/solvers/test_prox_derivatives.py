"""Derivatives of the minimiser by R, z and g: against finite differences, and how long they take to compile."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kalprox.linalg.rank import minimum_norm
from kalprox.regularizers import Quadratic, Ridge, SmoothL1, Weighted, Zero
from kalprox.solvers.prox import prox

RNG = np.random.default_rng(0)
R = np.triu(RNG.normal(size=(3, 3))) + 2 * np.eye(3)
Z = RNG.normal(size=3)
A = RNG.normal(size=(2, 3))
W = np.array([0.0, 1.0, 2.0])


def theta(R, z, g):
    return prox(jnp.asarray(R), jnp.asarray(z), g).theta


CASES = {
    "ridge by lam": (lambda lam: theta(R, Z, Ridge(lam)), np.array(0.7)),
    "ridge by its weight, from zero": (
        lambda lam: theta(R, Z, Ridge(lam)),
        np.array(0.0),
    ),
    "ridge by lam per coordinate": (lambda lam: theta(R, Z, Ridge(lam)), W + 0.1),
    "weighted ridge by its weights": (
        lambda w: theta(R, Z, Weighted(Ridge(0.7), w)),
        W + 0.1,
    ),
    "quadratic by A": (lambda A: theta(R, Z, Quadratic(A)), A),
    "by z": (lambda z: theta(R, z, Ridge(0.7)), Z),
    "by two targets": (lambda z: theta(R, z, Ridge(0.7)), np.stack([Z, Z[::-1]], axis=1)),
    "by R": (lambda R: theta(R, Z, Ridge(0.7)), R),
    "by R without g": (lambda R: theta(R, Z, Zero()), R),
    "by R with more rows than columns": (
        lambda R: theta(R, np.append(Z, 1.0), Ridge(0.7)),
        np.concatenate([R, [[1.0, 2.0, 3.0]]]),
    ),
    "by R with fewer rows than columns": (lambda R: theta(R, Z[:2], Ridge(0.7)), R[:2]),
    "least squares by R": (lambda R: minimum_norm(R, None, jnp.asarray(Z)), R),
    "least squares by z": (lambda z: minimum_norm(jnp.asarray(R), None, z), Z),
}


def central(f, x, h=1e-5):
    steps = h * np.eye(x.size).reshape(x.size, *x.shape)
    columns = [(np.asarray(f(jnp.asarray(x + e))) - np.asarray(f(jnp.asarray(x - e)))) / (2 * h) for e in steps]
    return np.stack(columns, axis=-1).reshape(*columns[0].shape, *x.shape)


FAST = ("ridge by lam", "by R")  # compiling one takes 5 s; the others are for `make test-all`
EVERY_CASE = [pytest.param(case, marks=[] if case in FAST else pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize("case", EVERY_CASE)
def test_forwards_backwards_and_by_differences(case):
    f, x = CASES[case]
    with jax.enable_x64(True):
        x = jnp.asarray(x)
        f = jax.jit(f)
        forwards, backwards = jax.jit(jax.jacfwd(f))(x), jax.jit(jax.jacrev(f))(x)
        np.testing.assert_allclose(forwards, backwards, rtol=1e-12, atol=1e-14)
        if "zero" in case:  # there is no ridge below zero: from one side
            slope = (np.asarray(f(x + 1e-7)) - np.asarray(f(x))) / 1e-7
            np.testing.assert_allclose(forwards, slope, rtol=1e-5)
        else:
            np.testing.assert_allclose(forwards, central(f, np.asarray(x)), rtol=1e-7, atol=1e-9)
        batched = jax.jit(jax.vmap(jax.jacrev(f)))(jnp.stack([x, x]))
        np.testing.assert_allclose(batched[1], backwards, rtol=1e-12, atol=1e-14)


def test_where_the_rank_is_deficient():
    """By z the derivative is the pseudo-inverse, alone and in a batch with problems of full rank."""
    same = R.copy()
    same[:, 2] = same[:, 0] - same[:, 1]
    both = np.stack([same, R])
    with jax.enable_x64(True):
        for f in (lambda R, z: theta(R, z, Zero()), lambda R, z: minimum_norm(jnp.linalg.qr(R, mode="r"), None, z)):
            found = jax.jit(jax.vmap(jax.jacrev(f, 1)))(jnp.asarray(both), jnp.stack([Z, Z]))
            for i in range(2):
                inverse = np.linalg.pinv(both[i], rcond=1e-10)
                np.testing.assert_allclose(found[i] @ found[i].T, inverse @ inverse.T, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            jax.jacrev(lambda z: theta(jnp.asarray(same), z, Zero()))(jnp.asarray(Z)),
            np.linalg.pinv(same, rcond=1e-10),
            rtol=1e-10,
            atol=1e-12,
        )


def test_second_derivatives():
    with jax.enable_x64(True):

        def f(lam):
            return theta(jnp.asarray(R), jnp.asarray(Z), Ridge(lam)).sum()

        lam, h = jnp.asarray(0.7), 1e-5
        by_differences = (jax.grad(f)(lam + h) - jax.grad(f)(lam - h)) / (2 * h)
        np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(f)))(lam), by_differences, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(jax.jacfwd(jax.jacfwd(f)))(lam), by_differences, rtol=1e-6)


def test_smooth_g_forwards():
    with jax.enable_x64(True):

        def f(lam):
            return theta(jnp.asarray(R), jnp.asarray(Z), SmoothL1(lam, 0.3))

        np.testing.assert_allclose(jax.jacfwd(f)(jnp.asarray(0.7)), central(f, np.array(0.7)), rtol=1e-6, atol=1e-8)


def test_the_gradient_of_a_batch_compiles_in_seconds():
    """12 s and 5,700 lines when the SVD behind a deficient rank was differentiated; under 2 s on a free machine now."""

    def f(lam):
        return theta(jnp.asarray(R, jnp.float32), jnp.asarray(Z, jnp.float32), Ridge(lam)).sum()

    start = time.process_time()
    program = jax.jit(jax.vmap(jax.grad(f))).lower(jnp.ones(4, jnp.float32))
    program.compile()
    assert time.process_time() - start < 5
    assert len(program.as_text().splitlines()) < 600
