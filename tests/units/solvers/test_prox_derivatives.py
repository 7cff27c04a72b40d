"""Derivatives of the minimiser by R, z and g: against finite differences, and how long they take to compile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kalprox.linalg.rank import minimum_norm
from kalprox.regularizers import (
    L1,
    Box,
    Cauchy,
    Custom,
    ElasticNet,
    GroupL1,
    Huber,
    Quadratic,
    Ridge,
    SmoothL1,
    Weighted,
    Zero,
)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_second_derivatives():
    with jax.enable_x64(True):

        def f(lam):
            return theta(jnp.asarray(R), jnp.asarray(Z), Ridge(lam)).sum()

        lam, h = jnp.asarray(0.7), 1e-5
        by_differences = (jax.grad(f)(lam + h) - jax.grad(f)(lam - h)) / (2 * h)
        np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(f)))(lam), by_differences, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(jax.jacfwd(jax.jacfwd(f)))(lam), by_differences, rtol=1e-6)


R4 = np.triu(RNG.normal(size=(4, 4))) + 2 * np.eye(4)
Z4 = np.array([3.0, -2.0, 0.2, 1.5])
EACH = np.array([0.9, 1.1, 0.8, 0.7])
EVERY_G = {  # some coordinates held and some free where g has kinks or bounds
    "zero": Zero(),
    "ridge": Ridge(EACH),
    "quadratic": Quadratic(RNG.normal(size=(2, 4))),
    "smooth l1": SmoothL1(0.9, 0.3 * EACH),
    "huber": Huber(0.9, 0.3),
    "cauchy": Cauchy(0.9, 0.3),
    "l1": L1(0.9),
    "elastic net": ElasticNet(EACH, 0.3),
    "group l1": GroupL1(0.9, (0, 0, 1, -1), np.array([1.0, 1.5])),
    "box": Box(-0.4, np.array([0.4, 0.4, np.inf, 5.0])),
    "weighted l1": Weighted(L1(0.9), np.array([0.0, 1.0, 1.0, 2.0])),
    "weighted box": Weighted(Box(-0.4, 0.4), np.array([0.0, 1.0, 1.0, 2.0])),
    "l1 with an intercept": L1(0.9).with_free_intercept(3),
    "custom": Custom(lambda theta: jnp.log(jnp.cosh(theta)).sum() + (theta @ theta) ** 2 / 9),
}
FAST_G = ("l1",)  # each takes seconds to compile
EVERY_G_PARAMETER = [pytest.param(name, marks=[] if name in FAST_G else pytest.mark.slow) for name in EVERY_G]


def direction(tree, seed):
    """Random numbers in the shapes of a pytree, zero where an entry is infinite or zero."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.where(jnp.isfinite(a) & (a != 0), rng.normal(size=a.shape), 0), tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_G_PARAMETER)
def test_every_g_by_r_and_z_and_its_parameters_at_once(name):
    """Forwards, backwards, by central differences, in a batch; each is traced once for any numbers."""
    traced = []

    def f(at):
        traced.append(1)
        return prox(*at).theta

    with jax.enable_x64(True):
        at = jax.tree.map(lambda a: jnp.asarray(a, float), (R4, Z4, EVERY_G[name]))
        way = direction(at, 1)
        cotangent = jnp.asarray(np.random.default_rng(2).normal(size=4))

        @jax.jit
        def slopes(at, way, cotangent):
            theta, forwards = jax.jvp(f, (at,), (way,))
            (backwards,) = jax.vjp(f, at)[1](cotangent)
            return theta, forwards, backwards

        theta, forwards, backwards = slopes(at, way, cotangent)
        count, h = len(traced), 1e-5
        moved = [jax.tree.map(lambda a, w, s=s: a + s * h * w, at, way) for s in (1, -1)]
        up, down = (slopes(one, way, cotangent)[0] for one in moved)
        assert len(traced) == count
        np.testing.assert_allclose(forwards, (up - down) / (2 * h), rtol=1e-7, atol=1e-9)
        across = sum((a * b).sum() for a, b in zip(jax.tree.leaves(backwards), jax.tree.leaves(way), strict=True))
        np.testing.assert_allclose(across, cotangent @ forwards, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(prox(*at).theta, theta, rtol=1e-12, atol=1e-14)  # traced or not
        both = jax.tree.map(lambda a, b: jnp.stack([a, b]), at, moved[0])
        batched = jax.jit(jax.vmap(slopes, (0, None, None)))(both, way, cotangent)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a[0], b, rtol=1e-9, atol=1e-12),
            batched,
            (theta, forwards, backwards),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("g", "expected"),
    [
        (L1(1.0), [0, 0, 0]),
        (ElasticNet(1.0, 0.5), [0, 0, 0]),
        (GroupL1(1.0, (0, 1, 2)), [0, 0, 0]),
        (Box(-1.0, 1.0), [0, 0, 1]),
        (Huber(0.5, 0.5), [0.5, 0.5, 0.5]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_at_a_threshold_the_derivative_is_that_of_one_side(g, expected):
    """R = I, z = (1, -1, 0): by L1 coordinates 0 and 1 are about to become free, in the box to reach a bound."""
    z = np.array([1.0, -1.0, 0.0])
    with jax.enable_x64(True):
        found = jax.jit(jax.jacrev(lambda z: prox(jnp.eye(3), z, g).theta))(jnp.asarray(z))
    np.testing.assert_allclose(found, np.diag(expected), rtol=1e-14)


@pytest.mark.slow
def test_columns_that_are_alike_and_float32_give_finite_derivatives():
    with jax.enable_x64(True):
        same = jnp.ones((3, 3))
        found = jax.jit(jax.jacrev(lambda z: prox(same, z, L1(0.1)).theta.sum()))(jnp.array([1.0, 2.0, 3.0]))
        np.testing.assert_allclose(found, np.full(3, 1 / 3), rtol=1e-12)

    @jax.jit
    @jax.grad
    def slope(lam):
        return prox(jnp.asarray(R4, lam.dtype), jnp.asarray(Z4, lam.dtype), L1(lam)).theta.sum()

    found = slope(jnp.asarray(0.9, jnp.float32))
    assert found.dtype == np.float32
    with jax.enable_x64(True):
        exact = slope(jnp.asarray(0.9))
    np.testing.assert_allclose(found, exact, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smooth l1", "cauchy", "l1", "group l1", "box"])
def test_second_derivatives_of_every_kind_of_solver(name):
    """Backwards over backwards, which needs the derivative of the derivative's own linear system."""
    with jax.enable_x64(True):
        R, z, g = jax.tree.map(lambda a: jnp.asarray(a, float), (R4, Z4, EVERY_G[name]))

        def f(s):
            return (prox(R * s, z, g).theta ** 2).sum()

        slope, h = jax.jit(jax.grad(f)), 1e-5
        by_differences = (slope(1.0 + h) - slope(1.0 - h)) / (2 * h)
        np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(f)))(1.0), by_differences, rtol=1e-7)


def test_the_gradient_of_a_batch_is_a_small_program():
    """5,700 lines, which took 12 s to compile, when the SVD behind a deficient rank was differentiated."""

    def f(lam):
        return theta(jnp.asarray(R, jnp.float32), jnp.asarray(Z, jnp.float32), Ridge(lam)).sum()

    program = jax.jit(jax.vmap(jax.grad(f))).lower(jnp.ones(4, jnp.float32))
    assert len(program.as_text().splitlines()) < 600
