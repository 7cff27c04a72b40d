"""prox: the exact minimiser of 1/2 ||R t - z||^2 + g(t), by optimality, by other solvers, by closed forms."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laplace import covariance
from scipy.optimize import lsq_linear
from sklearn.linear_model import ElasticNet as SklearnElasticNet
from sklearn.linear_model import Lasso

from kalprox.base.arrays import register_pytrees
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
from kalprox.solvers.prox import posterior_root, prox


def rows(seed=0, n=60, d=8):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)))
    truth = rng.normal(size=d) * (rng.random(d) < 0.6)
    return X, X @ truth + rng.normal(size=n)


def triangle(X, y):
    T = np.linalg.qr(np.column_stack([X, y]), mode="r")
    d = X.shape[1]
    return T[:d, :d].copy(), T[:d, d].copy()


def _problems():
    X, y = rows()
    rng = np.random.default_rng(7)
    near, same = X.copy(), X.copy()
    near[:, 3] = X[:, 0] + 1e-6 * X[:, 3]
    same[:, 5] = X[:, 1] - 2 * X[:, 2]
    empty = X.copy()
    empty[:, 4] = 0
    return {
        "plain": triangle(X, y),
        "one": triangle(X[:, :1], y),
        "badly scaled": triangle(X * 10.0 ** np.array([-8, 8, 0, -4, 4, 2, -6, 6]), y),
        "small": tuple(1e-9 * part for part in triangle(X, y)),
        "large": tuple(1e9 * part for part in triangle(X, y)),
        "collinear": triangle(near, y),
        "deficient": triangle(same, y),
        "empty column": triangle(empty, y),
        "wide": (rng.normal(size=(3, 8)), rng.normal(size=3)),
        "no rows": (np.zeros((0, 8)), np.zeros(0)),
        "no signal": (triangle(X, y)[0], np.zeros(8)),
    }


PROBLEMS = _problems()


def norms(R):
    c = np.sqrt((R**2).sum(0))
    return np.where(c > 0, c, 1)


def regularizers(R, z):
    """Each at a strength that matters for this problem."""
    d = R.shape[1]
    c = norms(R)
    peak = np.abs(R.T @ z / c).max(initial=0) + 1e-3
    typical = np.median(c)
    free_first = np.r_[0.0, np.ones(d - 1)]
    labels = [-1] + [(j - 1) // 3 for j in range(1, d)]
    return {
        "zero": Zero(),
        "ridge": Ridge(0.3 * typical**2),
        "quadratic": Quadratic(typical * np.diff(np.eye(d), axis=0)),
        "weighted ridge": Weighted(Ridge(0.3 * typical**2), free_first),
        "smooth l1": SmoothL1(0.1 * peak**2, 0.1 * peak / typical),
        "narrow smooth l1": SmoothL1(0.1 * peak**2 * 1e-4, 0.1 * peak / typical * 1e-4),
        "huber": Huber(0.1 * peak * typical, 0.1 * peak / typical),
        "weighted huber": Weighted(Huber(0.1 * peak * typical, 0.1 * peak / typical), free_first),
        "cauchy": Cauchy(0.1 * peak**2, 0.3 * peak / typical),
        "custom": Custom(lambda t: 0.1 * (t**4 + t**2).sum() + 0.1 * ((t[1:] - t[:-1]) ** 2).sum()),
        "l1": L1(0.2 * peak * typical),
        "weak l1": L1(1e-6 * peak * typical),
        "l1 per column": Weighted(L1(0.2 * peak), c * free_first),
        "elastic net": ElasticNet(0.2 * peak * typical, 0.1 * typical**2),
        "box": Box(-0.1 * peak / c, 0.2 * peak / c),
        "non-negative": Box(0.0, np.inf),
        "weighted box": Weighted(Box(0.0, 0.1 * peak / typical), free_first),
        "group": GroupL1(0.1 * peak * typical, labels),
        "weighted group": GroupL1(0.1 * peak * typical, labels, np.arange(max(labels) + 1.0)),
    }


NAMES = sorted(regularizers(*PROBLEMS["plain"]))


def violation(R, z, g, t):
    """Distance of -R'(R t - z) from the subdifferential of g at t, relative to ||R_j|| (||z|| + ||R t||) and
    g's own size: written from the definitions, with nothing of kalprox but its parameters."""
    w = np.ones(len(t))
    if isinstance(g, Weighted):
        g, w = g.g, g.weights
    gradient = R.T @ (R @ t - z)
    size = norms(R) * (np.linalg.norm(z) + np.linalg.norm(R @ t))
    if isinstance(g, GroupL1):
        labels = np.array(g.groups)
        far, scale = np.abs(gradient), size.copy()
        for label in range(labels.max() + 1):
            block = labels == label
            weight = g.lam * (np.sqrt(block.sum()) if g.weights is None else g.weights[label])
            norm = np.linalg.norm(t[block])
            if norm == 0:
                far[block] = max(np.linalg.norm(gradient[block]) - weight, 0)
            else:
                far[block] = np.linalg.norm(gradient[block] + weight * t[block] / norm)
            scale[block] = np.linalg.norm(size[block]) + weight
    elif isinstance(g, Box):
        low = np.where(w > 0, g.low, -np.inf)
        high = np.where(w > 0, g.high, np.inf)
        assert (t >= low).all() and (t <= high).all()
        far = np.abs(gradient)
        far = np.where(t == low, np.maximum(-gradient, 0), far)
        far = np.where(t == high, np.maximum(gradient, 0), far)
        far = np.where(low == high, 0, far)
        scale = size
    elif isinstance(g, (L1, ElasticNet)):
        l1, l2 = (g.lam, 0.0) if isinstance(g, L1) else (g.l1, g.l2)
        gradient = gradient + w * l2 * t
        far = np.where(t == 0, np.maximum(np.abs(gradient) - w * l1, 0), np.abs(gradient + w * l1 * np.sign(t)))
        scale = size + w * l1 + w * l2 * np.abs(t)
    else:
        slope = np.zeros_like(t) if isinstance(g, Zero) else w * g.grad(t)
        bent = np.zeros_like(t) if isinstance(g, Zero) else np.atleast_1d(g.hessian(t))
        bent = np.abs(bent) @ np.abs(t) if bent.ndim == 2 else w * np.abs(bent * t)
        far, scale = np.abs(gradient + slope), size + np.abs(slope) + bent
    return (far / np.maximum(scale, 1e-100)).max()  # with z = 0 the answer is 0, and any multiple of 1e-100 is


def rounding(R, z, t):
    """1e-12, or what d terms that cancel leave: columns 1e-6 apart have coefficients near 1e6 where nothing
    penalises them, and lose as many digits of R t. Never above the 1e-9 that is promised."""
    lost = (norms(R) * np.abs(t)).sum() / max(np.linalg.norm(z) + np.linalg.norm(R @ t), 1e-100)
    return np.clip(4 * (10 + len(t)) * np.finfo(float).eps * lost, 1e-12, 1e-9)


@pytest.mark.parametrize(
    ("problem", "name"),
    [(p, n) for p in PROBLEMS for n in NAMES if PROBLEMS[p][0].shape[1] > 1 or "group" not in n],  # groups need columns
)
def test_is_optimal(problem, name):
    R, z = PROBLEMS[problem]
    g = regularizers(R, z)[name]
    out = prox(R, z, g)
    assert out.converged
    assert violation(R, z, g, out.theta) < rounding(R, z, out.theta)
    assert out.residual < rounding(R, z, out.theta)
    assert np.array_equal(out.free, g.free(out.theta))
    # from a wrong start, the same objective
    rng = np.random.default_rng(1)
    again = prox(R, z, g, out.theta + rng.normal(size=len(out.theta)) * (1 + np.abs(out.theta)))
    assert violation(R, z, g, again.theta) < rounding(R, z, again.theta)
    if name != "cauchy":  # not convex: a stationary point, not always the same
        value, other = (((R @ t - z) ** 2).sum() / 2 + g.value(t) for t in (out.theta, again.theta))
        assert abs(value - other) <= 1e-12 * (z @ z + abs(value)) + 1e-30


def test_violation_can_fail():
    R, z = PROBLEMS["plain"]
    for g in regularizers(R, z).values():
        t = prox(R, z, g).theta
        moved = np.where(t == 0, 0, t * (1 + 1e-6))
        if isinstance(g, Box):
            moved = np.clip(moved, g.low, g.high)
        if not isinstance(g, Weighted):
            assert violation(R, z, g, moved) > 1e-9


def test_warm_start_is_kept():
    R, z = PROBLEMS["plain"]
    for g in regularizers(R, z).values():
        first = prox(R, z, g)
        again = prox(R, z, g, first.theta)
        assert again.iterations <= 1
        np.testing.assert_allclose(again.theta, first.theta, rtol=1e-11, atol=1e-13)


# -- against other solvers ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strength", [0.5, 0.1, 0.01])
def test_l1_and_elastic_net_are_scikit_learns(seed, strength):
    X, y = rows(seed, 80, 12)
    n = len(y)
    R, z = triangle(X, y)
    lam = strength * np.abs(X.T @ y).max()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its duality gap cannot reach a tolerance this tight
        lasso = Lasso(alpha=lam / n, fit_intercept=False, tol=1e-16, max_iter=100_000).fit(X, y)
        net = SklearnElasticNet(
            alpha=(lam + 2.0) / n, l1_ratio=lam / (lam + 2.0), fit_intercept=False, tol=1e-16, max_iter=100_000
        ).fit(X, y)
    for ours, theirs in ((L1(lam), lasso), (ElasticNet(lam, 2.0), net)):
        theta = prox(R, z, ours).theta
        np.testing.assert_allclose(theta, theirs.coef_, rtol=1e-8, atol=1e-10)
        assert np.array_equal(theta == 0, theirs.coef_ == 0)


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.5, 0.1, 0.01])
def test_group_is_skglms(strength):
    skglm = pytest.importorskip("skglm")
    X, y = rows(3, 80, 12)
    n = len(y)
    R, z = triangle(X, y)
    labels = np.arange(12) // 3
    lam = strength * max(np.linalg.norm(X[:, labels == k].T @ y) for k in range(4)) / np.sqrt(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = skglm.GroupLasso(
            groups=3, alpha=lam * np.sqrt(3) / n, weights=np.ones(4), fit_intercept=False, tol=1e-14, max_iter=1000
        ).fit(np.asfortranarray(X), y)
    theta = prox(R, z, GroupL1(lam, labels)).theta
    np.testing.assert_allclose(theta, theirs.coef_, rtol=1e-7, atol=1e-9)
    assert np.array_equal(theta == 0, theirs.coef_ == 0)


@pytest.mark.parametrize("seed", range(4))
def test_box_is_scipys(seed):
    X, y = rows(seed)
    low, high = np.linspace(-0.5, 0.1, 8), np.linspace(0.2, 3, 8)
    high[3], low[5] = np.inf, -np.inf
    theirs = lsq_linear(X, y, (low, high), method="bvls", tol=1e-15).x
    theta = prox(*triangle(X, y), Box(low, high)).theta
    np.testing.assert_allclose(theta, theirs, rtol=1e-10, atol=1e-12)
    assert np.array_equal((theta == low) | (theta == high), (theirs <= low) | (theirs >= high))


def test_quadratic_is_the_closed_form():
    X, y = rows()
    R, z = triangle(X, y)
    A = np.random.default_rng(3).normal(size=(5, 8))
    w = np.arange(8.0)
    for g, H in (
        (Ridge(2.5), 2.5 * np.eye(8)),
        (Quadratic(A), A.T @ A),
        (Weighted(Ridge(2.0), w), np.diag(2 * w)),
        (Zero(), np.zeros((8, 8))),
    ):
        np.testing.assert_allclose(prox(R, z, g).theta, np.linalg.solve(X.T @ X + H, X.T @ y), rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(covariance(R, g, np.zeros(8)), np.linalg.inv(X.T @ X + H), rtol=1e-10, atol=1e-14)


def test_a_root_is_not_squared():
    """A's columns are 1e-9 apart: A'A is singular to rounding, and A'A is all that Hess g says."""
    A = np.array([[1.0, 1.0], [0.0, 1e-9]])
    exact = 1e18 * np.array([[1.0 + 1e-18, -1.0], [-1.0, 1.0]])
    for R, g in ((np.zeros((1, 2)), Quadratic(A)), (A, Zero())):
        np.testing.assert_allclose(covariance(R, g, np.zeros(2)), exact, rtol=1e-14)
        np.testing.assert_allclose(np.abs(posterior_root(R, g, np.zeros(2))[0]), A, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("problem", ["deficient", "wide", "empty column", "no rows"])
def test_undetermined_is_of_minimum_norm(problem):
    R, z = PROBLEMS[problem]
    theirs = np.linalg.lstsq(R, z, rcond=1e-12)[0] if len(R) else np.zeros(8)
    np.testing.assert_allclose(prox(R, z, Zero()).theta, theirs, rtol=1e-10, atol=1e-12)


def test_smooth_against_extended_precision():
    X, y = rows()
    R, z = triangle(X, y)
    extended = np.longdouble
    for g in (SmoothL1(3.0, 0.2), Huber(3.0, 0.2), Weighted(SmoothL1(3.0, 0.2), np.arange(8.0))):
        theta = prox(R, z, g).theta
        # Newton corrections with the gradient in extended precision: what is left is the error of theta
        t, Rx, zx = theta.astype(extended), R.astype(extended), z.astype(extended)
        for _ in range(3):
            gradient = Rx.T @ (Rx @ t - zx) + g.grad(t)
            t = t - np.linalg.solve(R.T @ R + np.diag(g.hessian(theta)), gradient.astype(float))
        assert np.abs(theta - t).max() <= 1e-14 * np.abs(t).max() * np.linalg.cond(R)


# -- exactness ---------------------------------------------------------------------------------------


def test_limits():
    X, y = rows()
    R, z = triangle(X, y)
    least = np.linalg.solve(R, z)
    for g in (L1(0.0), ElasticNet(0.0, 0.0), Box(-np.inf, np.inf), GroupL1(0.0, np.arange(8) // 2), SmoothL1(0.0, 1.0)):
        np.testing.assert_allclose(prox(R, z, g).theta, least, rtol=1e-11)
    peak = np.abs(R.T @ z).max()
    assert (prox(R, z, L1(peak * (1 + 1e-12))).theta == 0).all()
    assert (prox(R, z, L1(peak * (1 - 1e-9))).theta != 0).sum() == 1
    np.testing.assert_allclose(
        prox(R, z, GroupL1(7.0, np.arange(8))).theta, prox(R, z, L1(7.0)).theta, rtol=1e-11, atol=1e-14
    )
    fixed = np.linspace(-1, 1, 8)
    assert np.array_equal(prox(R, z, Box(fixed, fixed)).theta, fixed)


def test_weight_zero_leaves_the_intercept_free():
    X, y = rows()
    X = np.column_stack([np.ones(len(y)), X + 3])
    w = np.r_[0.0, np.ones(8)]
    centred = X[:, 1:] - X[:, 1:].mean(0)
    for g in (L1(20.0), Ridge(20.0), ElasticNet(20.0, 3.0), Box(-0.1, 0.1), SmoothL1(2.0, 0.1)):
        theta = prox(*triangle(X, y), Weighted(g, w)).theta
        other = prox(*triangle(centred, y - y.mean()), g).theta
        np.testing.assert_allclose(theta[1:], other, rtol=1e-10, atol=1e-13)
        assert abs(theta[0] - (y.mean() - X[:, 1:].mean(0) @ other)) < 1e-11
        assert np.array_equal(theta[1:] == 0, other == 0)


@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_units_do_not_matter(factor):
    X, y = rows()
    s = factor ** np.linspace(-1, 1, 8)
    for make in (
        lambda s: Weighted(L1(15.0), s),
        lambda s: Box(-0.2 / s, 0.3 / s),
        lambda s: Weighted(Ridge(4.0), s**2),
    ):
        plain = prox(*triangle(X, y), make(np.ones(8)))
        scaled = prox(*triangle(X * s, y), make(s))
        np.testing.assert_allclose(scaled.theta * s, plain.theta, rtol=1e-11, atol=1e-14)
        assert np.array_equal(scaled.free, plain.free)


def test_groups_that_nearly_cancel():
    """Two columns 1e-5 apart in different groups, weakly penalised: descent alone takes hundreds of rounds."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        R, z = rng.normal(size=(10, 8)), rng.normal(size=10)
        R[:, -1] = R[:, 0] + 1e-5 * R[:, 1]
        g = GroupL1(1e-6 * np.abs(R.T @ z).max(), rng.integers(-1, 3, 8))
        out = prox(R, z, g)
        assert out.iterations <= 10
        assert violation(R, z, g, out.theta) < rounding(R, z, out.theta)


# -- covariance --------------------------------------------------------------------------------------


def test_covariance_on_the_active_set():
    X, y = rows()
    R, z = triangle(X, y)
    for g in (L1(20.0), ElasticNet(20.0, 3.0), Box(-0.1, 0.4), GroupL1(12.0, np.arange(8) // 2)):
        theta, free, *_ = prox(R, z, g)
        assert 0 < free.sum() < 8
        V, (U, numbers) = covariance(R, g, theta), posterior_root(R, g, theta)
        assert not V[~free].any() and not V[:, ~free].any()
        h = g.hessian(theta)
        H = np.diag(h) if h.ndim == 1 else h
        explicit = X[:, free].T @ X[:, free] + H[np.ix_(free, free)]
        np.testing.assert_allclose(V[np.ix_(free, free)], np.linalg.inv(explicit), rtol=1e-10, atol=1e-15)
        np.testing.assert_allclose(U.T @ U, explicit, rtol=1e-11, atol=1e-11)
        assert np.array_equal(U, np.triu(U)) and np.array_equal(numbers, np.flatnonzero(free))
        if isinstance(g, (L1, Box)):  # the regression on these columns alone
            alone = covariance(triangle(X[:, free], y)[0], Zero(), np.zeros(free.sum()))
            np.testing.assert_allclose(V[np.ix_(free, free)], alone, rtol=1e-10, atol=1e-15)


def test_covariance_of_smooth_g():
    X, y = rows()
    R, z = triangle(X, y)
    dense = Custom(lambda t: (t**4).sum() + (t[0] * t[1]) ** 2)
    for g in (SmoothL1(3.0, 0.2), Huber(3.0, 0.2), Cauchy(0.5, 0.3), dense):
        theta = prox(R, z, g).theta
        h = g.hessian(theta)
        explicit = X.T @ X + (np.diag(h) if h.ndim == 1 else h)
        np.testing.assert_allclose(covariance(R, g, theta), np.linalg.inv(explicit), rtol=1e-9, atol=1e-13)
        U, _ = posterior_root(R, g, theta)
        np.testing.assert_allclose(U.T @ U, explicit, rtol=1e-10, atol=1e-10)
        assert np.array_equal(U, np.triu(U))


def test_undetermined_directions_have_infinite_variance():
    X, y = rows()
    X[:, 5] = X[:, 1] - 2 * X[:, 2]
    X[:, 6] = 0
    s = 10.0 ** np.array([-8, 8, 0, -4, 4, 2, -6, 6])
    for scale in (np.ones(8), s):
        R, z = triangle(X * scale, y)
        theta = prox(R, z, Zero()).theta
        V = covariance(R, Zero(), theta)
        assert np.array_equal(np.isinf(np.diag(V)), np.isin(np.arange(8), [1, 2, 5, 6]))
        known = np.array([0, 3, 4, 7])  # what does not touch the undetermined: as if one of them were left out
        others = [0, 1, 2, 3, 4, 7]
        alone = np.linalg.inv(X[:, others].T @ X[:, others]) / np.outer(scale[others], scale[others])
        picked = [others.index(k) for k in known]
        np.testing.assert_allclose(V[np.ix_(known, known)], alone[np.ix_(picked, picked)], rtol=1e-9)
        assert V[1, 5] == -np.inf and V[2, 5] == np.inf  # x5 = x1 - 2 x2: more of 5 is less of 1, more of 2
    assert np.isfinite(covariance(R, Ridge(1e-3), theta)).all()
    assert np.isinf(np.diag(covariance(np.zeros((0, 8)), Zero(), np.zeros(8)))).all()


# -- arrays ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["zero", "smooth l1", "l1", "group"] + [pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_jax_is_numpy(name):
    for problem in ("plain", "deficient", "badly scaled"):
        R, z = PROBLEMS[problem]
        g = regularizers(R, z)[name]
        expected = prox(R, z, g)
        with jax.enable_x64(True):
            out = prox(jnp.asarray(R), jnp.asarray(z), g)
            assert isinstance(out.theta, jax.Array) and out.theta.dtype == jnp.float64
            assert violation(R, z, g, np.asarray(out.theta)) < 1e-11
            # the curvature is flattest in units of the columns: there rounding is cond(R) / eps at most
            np.testing.assert_allclose(out.theta * norms(R), expected.theta * norms(R), rtol=1e-9, atol=1e-11)
            V = np.asarray(covariance(jnp.asarray(R), g, jnp.asarray(expected.theta)))
            here = covariance(R, g, expected.theta)
            finite = np.isfinite(here)
            assert np.array_equal(V[~finite], here[~finite])
            np.testing.assert_allclose(
                (V * np.outer(norms(R), norms(R)))[finite],
                (here * np.outer(norms(R), norms(R)))[finite],
                rtol=1e-9,
                atol=1e-11,
            )


def test_every_kind_of_g_has_its_own_structure():
    """JAX finds compiled programs by it: equal ones ran, now and then, Huber's program on SmoothL1's numbers."""
    register_pytrees()
    kinds = [Ridge(1.0), SmoothL1(1.0, 1.0), Huber(1.0, 1.0), Cauchy(1.0, 1.0)]
    kinds += [Weighted(g, np.ones(2)) for g in kinds] + [Custom(np.sum), Custom(np.prod)]
    structures = [jax.tree.structure(g) for g in kinds]
    assert all(a != b for i, a in enumerate(structures) for b in structures[:i])
    assert jax.tree.structure(Huber(2.0, 3.0)) == structures[2]  # numbers do not make a kind


@pytest.mark.slow
def test_compiled_and_batched():
    R, z = PROBLEMS["plain"]
    lams = np.array([0.1, 1.0, 10.0])
    with jax.enable_x64(True):
        for make in (Ridge, lambda lam: SmoothL1(lam, 0.2), lambda lam: Cauchy(lam, 0.3)):
            expected = np.array([prox(R, z, make(lam)).theta for lam in lams])
            batched = jax.jit(jax.vmap(lambda lam, make=make: prox(jnp.asarray(R), jnp.asarray(z), make(lam))))
            out = batched(jnp.asarray(lams))
            np.testing.assert_allclose(out.theta, expected, rtol=1e-10, atol=1e-13)
            assert out.converged.all()
        V = jax.jit(jax.vmap(lambda lam, t: covariance(jnp.asarray(R), SmoothL1(lam, 0.2), t)))
        here = [covariance(R, SmoothL1(lam, 0.2), t) for lam, t in zip(lams, expected, strict=True)]
        np.testing.assert_allclose(V(jnp.asarray(lams), jnp.asarray(expected)), here, rtol=1e-10, atol=1e-14)


@pytest.mark.slow
def test_float32_is_float64_to_its_own_rounding():
    R, z = PROBLEMS["plain"]
    for g in (Ridge(2.0), SmoothL1(3.0, 0.2), L1(15.0)):
        expected = prox(R, z, g).theta
        for as_array in (np.asarray, jnp.asarray):
            out = prox(as_array(R, dtype=np.float32), as_array(z, dtype=np.float32), g)
            assert out.theta.dtype == np.float32 and out.converged
            bound = 20 * np.finfo(np.float32).eps * np.linalg.cond(R) * np.abs(expected).max()
            assert np.abs(np.asarray(out.theta, float) - expected).max() < bound


def test_refusals():
    R, z = PROBLEMS["plain"]
    with pytest.raises(TypeError, match="cannot be traced"):
        jax.jit(lambda R, z: covariance(R, L1(1.0), z))(jnp.asarray(R), jnp.asarray(z))
    with pytest.raises(ValueError, match="z"):
        prox(R, z[:-1], L1(1.0))
    with pytest.raises(ValueError, match="start"):
        prox(R, z, L1(1.0), z[:-1])
    with pytest.raises(TypeError, match="floating"):
        prox(R.astype(int), z, L1(1.0))
    with pytest.raises(ValueError, match="NaN"):
        prox(R * np.nan, z, L1(1.0))
    with pytest.raises(ValueError, match="one entry per parameter"):
        prox(R, z, Weighted(L1(1.0), np.ones(3)))
    with pytest.raises(ValueError, match="groups"):
        prox(R, z, GroupL1(1.0, [0, 1]))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_problems(data):
    seed = data.draw(st.integers(0, 2**32 - 1))
    d = data.draw(st.integers(1, 10))
    m = data.draw(st.integers(0, 12))
    spread = data.draw(st.floats(0, 7))
    lam = 10.0 ** data.draw(st.floats(-6, 2))
    rng = np.random.default_rng(seed)
    R = rng.normal(size=(m, d)) * 10.0 ** rng.uniform(-spread, spread, d)
    if d > 2 and data.draw(st.booleans()):
        R[:, -1] = R[:, 0] + data.draw(st.sampled_from([0.0, 1e-9, 1e-5, 1e-2])) * R[:, 1]
    z = rng.normal(size=m)
    c = norms(R)
    g = data.draw(
        st.sampled_from([
            L1(lam), Weighted(L1(lam), c), ElasticNet(lam, lam / 3), Box(-lam, lam), Box(-lam / c, lam / c),
            Box(0.0, np.inf), GroupL1(lam, rng.integers(-1, 3, d)), Huber(lam, 0.1), SmoothL1(lam, 0.1),
            Weighted(SmoothL1(lam, 0.1 / np.median(c)), rng.random(d)), Ridge(lam), Zero(),
        ])
    )  # fmt: skip
    out = prox(R, z, g, rng.normal(size=d))
    # Rounding theta to doubles alone moves R theta by eps * sum ||R_i theta_i||: below that no vector goes.
    lost = (c * np.abs(out.theta)).sum() / max(np.linalg.norm(z) + np.linalg.norm(R @ out.theta), 1e-100)
    bound = 1e-9 + np.finfo(float).eps * lost
    assert out.residual < bound
    assert violation(R, z, g, out.theta) < bound


@pytest.mark.slow
def test_random_problems_that_are_not_convex():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        d, m = rng.integers(1, 11), rng.integers(0, 13)
        R = rng.normal(size=(m, d)) * 10.0 ** rng.uniform(-2, 2, d)
        if d > 2 and seed % 2:
            R[:, -1] = R[:, 0] + rng.choice([0.0, 1e-9, 1e-5, 1e-2]) * R[:, 1]
        z, c = rng.normal(size=m), norms(R)
        lam, delta = 10.0 ** rng.uniform(-4, 1), 10.0 ** rng.uniform(-2, 1)
        g = Cauchy(lam, delta) if seed % 3 else Weighted(Cauchy(lam, delta / np.median(c)), rng.random(d))
        start = rng.normal(size=d)
        out = prox(R, z, g, start)
        assert violation(R, z, g, out.theta) < rounding(R, z, out.theta)
        value, before = (((R @ t - z) ** 2).sum() / 2 + g.value(t) for t in (out.theta, start))
        assert value <= before
