"""Products of JAX arrays are in full precision without being asked: a GPU would round float32 inputs to 10 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laplace import covariance

import kalprox as kp
from kalprox.covariance import Diagonal, LowRank
from kalprox.solvers.prox import prox

D = 4
X = jnp.asarray(np.random.default_rng(0).normal(size=(8, D)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).normal(size=8), jnp.float32)
MEAN = jnp.zeros(D, jnp.float32)
GLM = kp.models.GLM("sigmoid")
FUNCTION = kp.models.Function(lambda theta, x: jnp.tanh(x @ theta))
RIDGE = kp.regularizers.Ridge(0.1)
QUADRATIC = kp.regularizers.Quadratic(np.eye(D, dtype=np.float32))


def products(jaxpr):
    """Every dot_general in a program, those in its loops and branches too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for value in jax.tree_util.tree_leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products(inner)


def assert_full(function, *args):
    found = list(products(jax.make_jaxpr(function)(*args).jaxpr))
    highest = jax.lax.Precision.HIGHEST
    assert found and all(precision == (highest, highest) for precision in found), found


@pytest.mark.parametrize("model", [kp.models.Linear(), GLM, FUNCTION], ids=["linear", "glm", "function"])
@pytest.mark.parametrize("g", [RIDGE, QUADRATIC], ids=["ridge", "quadratic"])
@pytest.mark.parametrize("v0", [0.1, Diagonal(np.full(D, 0.1, np.float32)), LowRank.start(0.1, D, 2)], ids=str)
def test_the_paper_s_recursion(model, g, v0):
    alg = kp.pipg(model, g, gamma=1.0, q=1e-4)
    assert_full(alg.step, alg.init(MEAN, v0), X[0], Y[0])


@pytest.mark.parametrize(
    "alg", [kp.ipm(GLM, gamma=1.0), kp.ipg(GLM, QUADRATIC, gamma=1.0), kp.sgd(GLM, QUADRATIC, alpha0=0.1, alpha1=0.1)]
)
def test_what_it_compares_with(alg):
    assert_full(alg.step, alg.init(MEAN, 0.1), X[0], Y[0])


@pytest.mark.slow
def test_the_proximal_filter_and_what_it_is_made_of():
    alg = kp.proximal_filter(kp.models.Linear(), RIDGE, gamma=1.0)
    state = alg.init(MEAN)
    assert_full(lambda X, Y: alg.step(state, X, Y).predict(X).mean, X, Y)
    assert_full(lambda X, Y: alg.step(state, X, Y).cov(), X, Y)
    R, z = jnp.eye(D, dtype=jnp.float32), jnp.ones(D, jnp.float32)
    for g in (RIDGE, QUADRATIC, kp.regularizers.SmoothL1(0.1, 0.5)):
        assert_full(lambda R, z, g=g: prox(R, z, g).theta, R, z)
        assert_full(lambda R, z, g=g: covariance(R, g, z), R, z)
    many = jnp.tile(X, (4, 1)), jnp.tile(Y, 4)  # enough for a Gram matrix
    assert_full(lambda X, Y: kp.Information.from_rows(X, Y).T, *many)
