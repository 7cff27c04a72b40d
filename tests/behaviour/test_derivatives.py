"""Every model and regulariser, found by itself, against finite differences.

A new class needs no new test: it is made from its parameters' names, by the table SAMPLES. Only a
parameter with a name not seen before needs a line there.
"""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kalprox import models, regularizers

D = 4
RNG = np.random.default_rng(5)
SAMPLES = {
    "lam": 0.7,
    "delta": 0.9,
    "width": 1.3,
    "A": RNG.normal(size=(3, D)),
    "l1": 0.3,
    "l2": 0.6,
    "groups": np.array([0, 1, 0, -1]),
    "low": -0.3,
    "high": 1.0,
    "g": regularizers.SmoothL1(0.7, 0.9),
    "weights": np.array([0.0, 1.0, 2.0, 0.5]),
    "d": D - 1,
    ("Custom", "fn"): lambda theta: jnp.log(jnp.cosh(theta)).sum() + (theta @ theta) ** 2,
    ("Offset", "model"): models.Function(lambda theta, x: jnp.sin(theta[:3] @ x) * theta[3]),
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


def every_regulariser():
    """One of each class, and those with a parameter for each coordinate."""
    each = [sample(c) for c in concrete_classes(regularizers, regularizers.Regularizer)]
    lam, delta = np.array([0.0, 0.3, 1.1, 0.7]), np.array([0.4, 1.0, 2.0, 0.9])
    return [
        *(g for g in each if not isinstance(g, regularizers.FreeIntercept)),
        regularizers.Ridge(lam),
        regularizers.L1(lam),
        regularizers.ElasticNet(lam, delta),
        regularizers.Box(np.array([-1.0, 0.0, -np.inf, 0.2]), 2),
        regularizers.SmoothL1(0.7, delta),
        regularizers.Huber(lam, delta),
        regularizers.Weighted(regularizers.L1(lam), delta),
        regularizers.Weighted(regularizers.Box(0, 1), lam),
        regularizers.GroupL1(0.3, (0, 0, 1, -1), np.array([2.0, 0.5])),
        regularizers.Ridge(0.4).with_free_intercept(D - 1),
        regularizers.Quadratic(RNG.normal(size=(2, D - 1))).with_free_intercept(D - 1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
@pytest.mark.parametrize("g", every_regulariser(), ids=label)
def test_an_intercept_is_left_free_and_the_rest_is_as_it_was(g, xp):
    wide = g.with_free_intercept(D)
    assert wide.smooth == g.smooth
    assert isinstance(wide, regularizers.Separable) == isinstance(g, regularizers.Separable)
    with jax.enable_x64(True):
        for tail in [*POINTS, np.array([0.0, 1.0, 0.0, 0.5])]:
            theta, tail = xp.concatenate([xp.asarray([3.7]), tail]), xp.asarray(tail)
            np.testing.assert_allclose(wide.value(theta), g.value(tail), rtol=1e-14)
            for name in ("grad", "free", "terms"):
                if hasattr(g, name):
                    head, *rest = np.asarray(getattr(wide, name)(theta))
                    assert head == (name == "free")
                    np.testing.assert_allclose(rest, getattr(g, name)(tail), rtol=1e-14, err_msg=name)
            H, h = np.asarray(wide.hessian(theta)), np.asarray(g.hessian(tail))
            assert not H[0].any() and H.ndim == h.ndim
            np.testing.assert_allclose(H[1:] if h.ndim == 1 else H[1:, 1:], h, rtol=1e-14, atol=1e-15)
            if not g.smooth or getattr(g, "pieces", lambda: None)() is not None:
                for step in [0.3] if isinstance(g, regularizers.GroupL1) else [0.3, xp.linspace(0.1, 0.5, D + 1)]:
                    moved = wide.prox(theta, step)
                    assert moved[0] == theta[0]
                    expected = g.prox(tail, step if np.ndim(step) == 0 else step[1:])
                    np.testing.assert_allclose(moved[1:], expected, rtol=1e-14)
    root = g.root(D)
    if root is None:
        assert wide.root(D + 1) is None
    else:
        assert not wide.root(D + 1)[:, 0].any()
        np.testing.assert_array_equal(wide.root(D + 1)[:, 1:], root)
    if getattr(g, "pieces", lambda: None)() is not None:
        for piece, free, was in zip(wide.pieces(), regularizers.Pieces(), g.pieces(), strict=True):
            np.testing.assert_array_equal(piece, np.concatenate([[free], np.broadcast_to(was, D)]))


def test_a_free_intercept_crosses_jit_grad_and_vmap_and_refuses_another_length():
    theta = np.array([2.0, 0.5, -1.3])

    def value(lam):
        return regularizers.Ridge(lam).with_free_intercept(2).value(jnp.asarray(theta))

    expected = (theta[1:] ** 2).sum() / 2
    np.testing.assert_allclose(jax.jit(jax.grad(value))(0.3), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(value)(jnp.array([1.0, 2.0])), [expected, 2 * expected], rtol=1e-6)
    with pytest.raises(ValueError, match=r"an intercept and 2 coefficients; got shape \(4,\)"):
        regularizers.Ridge(1.0).with_free_intercept(2).value(np.ones(4))


@pytest.mark.parametrize("link", models.LINKS.values(), ids=list(models.LINKS))
def test_a_link_keeps_what_it_says_of_itself(link):
    assert models.LINKS[link.name] is link
    low, high = link.range
    u = np.linspace(-30, 30, 2001)
    h, slope = link(u)
    assert ((low <= h) & (h <= high)).all()
    near = 0.06  # how close arctan(30) and exp(-30) come to their ends
    assert h.min() < low + near if np.isfinite(low) else h.min() < -29
    assert h.max() > high - near if np.isfinite(high) else h.max() > 29
    assert link.bounded_slope == (np.abs(slope).max() <= 1)
    assert link.scale(np.zeros(3)) == 1
    if np.isinf(high):  # the size of the predictor at which the link reaches the largest target
        largest = np.array([2.0, -300.0])
        np.testing.assert_allclose(link(np.array(link.scale(largest)))[0], 300, rtol=0.01)
    else:
        assert link.scale(np.array([2.0, -300.0])) == 1


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
