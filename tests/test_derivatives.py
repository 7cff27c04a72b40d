"""Every model and regulariser, found by itself, against finite differences.

A new class needs no new test: it is made from its parameters' names, by the table SAMPLES. Only a
parameter with a name not seen before needs a line there.
"""

import dataclasses
import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from kalprox import models, regularizers

D = 4
RNG = np.random.default_rng(5)
SAMPLES = {
    "lam": 0.7,
    "delta": 0.9,
    "A": RNG.normal(size=(3, D)),
    "l1": 0.3,
    "l2": 0.6,
    "groups": np.array([0, 1, 0, -1]),
    "low": -0.3,
    "high": 1.0,
    "g": regularizers.SmoothL1(0.7, 0.9),
    "weights": np.array([0.0, 1.0, 2.0, 0.5]),
    ("Custom", "fn"): lambda theta: jnp.log(jnp.cosh(theta)).sum() + (theta @ theta) ** 2,
    ("Function", "fn"): lambda theta, x: jnp.exp(-(theta[0] ** 2) * x[0]) * jnp.sin(theta @ x),
}
POINTS = [np.array([0.5, -1.3, 0.2, 2.0]), np.array([-0.01, 0.0, 1.1, -0.4])]


def concrete_classes(module, base):
    found = [getattr(module, name) for name in module.__all__]
    return [c for c in found if inspect.isclass(c) and issubclass(c, base) and not inspect.isabstract(c)]


def sample(cls):
    names = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    missing = [n for n in names if n not in SAMPLES and (cls.__name__, n) not in SAMPLES]
    assert not missing, f"{cls.__name__}: add a sample value for {missing} to SAMPLES"
    return cls(**{n: SAMPLES.get((cls.__name__, n), SAMPLES.get(n)) for n in names})


def every_model():
    plain = [c for c in concrete_classes(models, models.Model) if c is not models.GLM]
    vector = models.Function(lambda theta, x: jnp.stack([theta @ x, jnp.tanh(theta[0] * x[1]), theta[3] ** 2]))
    return [*map(sample, plain), *map(models.GLM, models.LINKS), vector]


def label(thing):
    return f"{type(thing).__name__}{getattr(thing, 'name', '')}"


SMOOTH = [c for c in concrete_classes(regularizers, regularizers.Regularizer) if getattr(c, "smooth", True)]


def central(f, theta, h=6e-6):
    """Central differences; the error is near h^2 + eps/h, below 1e-9 here."""
    steps = h * np.eye(len(theta))
    return np.stack([(np.asarray(f(theta + e)) - np.asarray(f(theta - e))) / (2 * h) for e in steps], axis=-1)


@pytest.mark.parametrize("theta", POINTS, ids=["a", "b"])
@pytest.mark.parametrize("h", every_model(), ids=label)
def test_model_linearisation(h, theta):
    X = RNG.normal(size=(3, D))
    for x in X:
        value, J = h.linearize(theta, x)
        np.testing.assert_allclose(value, h.value(theta, x), rtol=1e-14)
        np.testing.assert_allclose(J, central(lambda t, x=x: h.value(t, x), theta), rtol=1e-7, atol=1e-8)
    values, Js = h.linearize_rows(theta, X)
    for i, x in enumerate(X):
        value, J = h.linearize(theta, x)
        np.testing.assert_allclose(values[i], value, rtol=1e-13)
        np.testing.assert_allclose(Js[i], J, rtol=1e-13)


@pytest.mark.parametrize("theta", POINTS, ids=["a", "b"])
@pytest.mark.parametrize("cls", SMOOTH, ids=lambda c: c.__name__)
def test_regulariser_gradient_and_hessian(cls, theta):
    g = sample(cls)
    np.testing.assert_allclose(g.grad(theta), central(g.value, theta), rtol=1e-7, atol=1e-8)
    H = g.hessian(theta)
    assert H.shape in {(D,), (D, D)}
    np.testing.assert_allclose(np.diag(H) if H.ndim == 1 else H, central(g.grad, theta), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("cls", SMOOTH, ids=lambda c: c.__name__)
def test_a_root_is_a_root(cls):
    g = sample(cls)
    root = g.root(D)
    if root is not None:
        for theta in POINTS:
            np.testing.assert_allclose(np.sum((root @ theta) ** 2) / 2, g.value(theta), rtol=1e-13)


@pytest.mark.parametrize("cls", [c for c in SMOOTH if issubclass(c, regularizers.Separable)], ids=lambda c: c.__name__)
def test_a_separable_regulariser_is_the_sum_of_its_terms_and_has_a_diagonal_hessian(cls):
    g = sample(cls)
    np.testing.assert_allclose(g.terms(POINTS[0]).sum(), g.value(POINTS[0]), rtol=1e-14)
    assert g.hessian(POINTS[0]).shape == (D,)


@pytest.mark.parametrize("name", models.LINKS)
def test_links_in_numpy_and_jax_agree(name):
    u = np.linspace(-6, 6, 41).astype(np.float32)
    for a, b in zip(models.LINKS[name](u), models.LINKS[name](jnp.asarray(u)), strict=True):
        assert a.dtype == b.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=2e-6)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "softplus", "arctan"])
def test_saturated_links_stay_finite(name):
    u = np.array([-1e4, -800.0, -40.0, 0.0, 40.0, 800.0, 1e4])
    h, slope = models.LINKS[name](u)
    assert np.isfinite(h).all() and np.isfinite(slope).all() and (slope >= 0).all()
    if name == "sigmoid":
        assert h[0] == 0 and h[-1] == 1 and slope[0] == slope[-1] == 0
        np.testing.assert_allclose(slope[[2, 4]], np.exp(-40), rtol=1e-15)  # relative accuracy in both tails


def test_smooth_l1_has_no_cancellation_near_zero_and_the_l1_norm_far_away():
    g = regularizers.SmoothL1(2.0, 0.1)
    np.testing.assert_allclose(g.value(np.array([1e-9])), 2.0 * 1e-16 / 2, rtol=1e-12)
    np.testing.assert_allclose(g.value(np.array([1e7])), 2.0 * 1e8, rtol=1e-7)
