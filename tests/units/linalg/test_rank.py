"""One rule for rank: whatever is asked of a triangle, the same directions count as determined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laplace import covariance

from kalprox.linalg.factor import Factor
from kalprox.linalg.rank import (
    maybe_singular,
    minimum_norm,
    rank,
    solve_and_factor,
    undetermined,
)
from kalprox.linalg.rank import tolerance as tolerance_of
from kalprox.regularizers import L1, Box, Ridge, Zero
from kalprox.solvers.prox import prox

EPS = np.finfo(float).eps


def two_columns(gap, rows, scale=1.0):
    """The triangle of `rows` rows with two columns of unit variance, `gap` apart; the second in other units."""
    return np.sqrt(rows) * np.array([[1.0, 1.0], [0.0, gap]]) * np.array([1.0, scale])


def test_the_tolerance_is_the_documented_one():
    for d in (1, 5, 300):
        assert tolerance_of(d, None, float) == 4 * (10 + d) * EPS
        for rows in (0, 10, 1e4, 1e6, 1e7, 1e12):
            expected = max(4 * (10 + d), np.sqrt(min(rows, 1e7))) * EPS
            assert tolerance_of(d, rows, float) == pytest.approx(expected, rel=1e-14)
            assert tolerance_of(d, jnp.float32(rows), np.float32) == pytest.approx(expected * 2.0**29, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 2.0**-30, 2.0**30])
@pytest.mark.parametrize(
    ("rows", "gap", "full"),
    [
        (None, 20 * EPS, False),
        (None, 200 * EPS, True),
        (1e3, 20 * EPS, False),
        (1e3, 200 * EPS, True),
        (1e6, 200 * EPS, False),  # as far apart as a million roundings put two copies of a column
        (1e6, 5e3 * EPS, True),
        (1e9, 5e3 * EPS, False),
        (1e9, 2e4 * EPS, True),
    ],
)
def test_every_reading_follows_the_rule(rows, gap, full, scale):
    R = two_columns(gap, 1e4, scale)
    z = np.sqrt(1e4) * np.array([1.0, 0.3 * gap])
    zero = np.zeros(2)
    with jax.enable_x64(True):
        for xp in (np, jnp):
            R_, z_ = xp.asarray(R), xp.asarray(z)
            assert rank(R_, rows) == (2 if full else 1)
            assert (undetermined(R_, rows, xp.eye(2)) == (not full)).all()
            assert bool(maybe_singular(R_, rows)) or full
            V = np.asarray(covariance(R_, Zero(), xp.asarray(zero), rows=rows))
            assert np.isfinite(V).all() == full
            np.testing.assert_allclose(V, Factor.of(R_, rows).covariance(), rtol=1e-6)
            if not full:
                assert V[0, 0] == V[1, 1] == np.inf and V[0, 1] == -np.inf
            found = prox(R_, z_, Zero(), rows=rows)
            theta = np.asarray(found.theta)
            np.testing.assert_allclose(theta, minimum_norm(R_, rows, z_), rtol=1e-6)
            if full:
                np.testing.assert_allclose(theta * [1, scale], [0.7, 0.3], rtol=1e-6)
            else:  # the shortest theta with theta_0 + scale theta_1 = 1
                assert theta @ [1, scale] == pytest.approx(1, rel=1e-12)
                assert np.linalg.norm(theta) == pytest.approx((1 + scale**2) ** -0.5, rel=1e-12)
            assert found.converged
            assert np.isfinite(np.asarray(covariance(R_, Ridge(1.0), xp.asarray(zero), rows=rows))).all()
    assert full or maybe_singular(R, rows)
    for g in (L1(0.0), Box(-np.inf, np.inf)):
        assert np.array_equal(covariance(R, g, np.ones(2), rows=rows), covariance(R, Zero(), zero, rows=rows))
        assert np.abs(prox(R, z, g, rows=rows).theta * [1, scale]).max() < 2


def test_no_small_pivot_hides_a_deficient_rank():
    """Kahan's triangle of 90 columns: singular to working precision, with a smallest pivot of 0.5 %."""
    d, c = 90, 0.6
    R = np.diag((1 - c**2) ** (np.arange(d) / 2 * 0.27)) @ (np.eye(d) - c * np.triu(np.ones((d, d)), 1))
    R /= np.linalg.norm(R, axis=0)
    s = np.linalg.svd(R, compute_uv=False)
    assert s[-1] < 1e-15 * s[0] and np.diagonal(R).min() > 1e-3
    assert rank(R) == d - 1 and maybe_singular(R) and np.isinf(covariance(R, Zero(), np.zeros(d))).any()
    theta = prox(R, R @ np.ones(d), Zero()).theta
    np.testing.assert_allclose(theta, np.linalg.lstsq(R, R @ np.ones(d), rcond=1e-12)[0], atol=1e-11)


@pytest.mark.slow
def test_several_targets_are_solved_together():
    rng = np.random.default_rng(0)
    R, Z = rng.normal(size=(5, 4)), rng.normal(size=(5, 3))
    R[:, 3] = R[:, 0] - R[:, 1]
    with jax.enable_x64(True):
        for g in (Zero(), Ridge(0.3)):
            alone = [prox(R, Z[:, j], g) for j in range(3)]
            for xp in (np, jnp):
                together = prox(xp.asarray(R), xp.asarray(Z), g)
                assert together.theta.shape == together.free.shape == (4, 3) and together.converged.shape == (3,)
                np.testing.assert_allclose(together.theta.T, [one.theta for one in alone], rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="quadratic"):
        prox(R, Z, L1(1.0))


@pytest.mark.slow
@pytest.mark.parametrize("deficient", [False, True])
def test_the_factor_is_that_of_the_pseudo_inverse(deficient):
    rng = np.random.default_rng(1)
    R = np.triu(rng.normal(size=(5, 5))) + 3 * np.eye(5)
    if deficient:
        R = np.linalg.qr(R @ np.diag([1, 1, 1, 1, 0]) @ (np.eye(5) + np.triu(np.ones((5, 5)), 1)), mode="r")
    pinv = np.linalg.pinv(R, rcond=1e-10)
    with jax.enable_x64(True):
        for xp in (np, jnp):
            for z in (rng.normal(size=5), rng.normal(size=(5, 2))):
                theta, P = solve_and_factor(xp.asarray(R), None, xp.asarray(z))
                np.testing.assert_allclose(P @ P.T, pinv @ pinv.T, atol=1e-12)
                np.testing.assert_allclose(theta, pinv @ z, atol=1e-12)
