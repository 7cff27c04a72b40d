"""Every likelihood, found by itself: its derivatives, NumPy against JAX, and its predictive distribution."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kalprox import likelihoods
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise

FOUND = [getattr(likelihoods, name) for name in likelihoods.__all__]
EVERY = [c for c in FOUND if issubclass(c, Likelihood) and not inspect.isabstract(c) and not c.interacts]
Y, F = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.3, -1.2, 2.0, 0.0])  # targets that every likelihood allows


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_the_expansion_is_the_slope_of_the_loss_and_a_positive_curvature(cls):
    likelihood, h = cls(), 1e-5
    slope, curvature = likelihood.expand(Y, F)
    expected = (likelihood.loss(Y, F + h) - likelihood.loss(Y, F - h)) / (2 * h)
    np.testing.assert_allclose(slope, expected, rtol=1e-8, atol=1e-9)
    assert curvature.shape == F.shape and (curvature > 0).all()
    if likelihood.quadratic:
        second = (likelihood.loss(Y, F + 1) - 2 * likelihood.loss(Y, F) + likelihood.loss(Y, F - 1)) / 1
        np.testing.assert_allclose(curvature, second, rtol=1e-12)


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_numpy_and_jax_agree(cls):
    likelihood = cls()
    with jax.enable_x64(True):
        for name in ("loss", "expand"):
            ours, jaxs = (getattr(likelihood, name)(xp.asarray(Y), xp.asarray(F)) for xp in (np, jnp))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-15), ours, jaxs)


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_a_prediction_is_a_distribution(cls):
    predicted = cls().predict(F, np.full(4, 0.1), Noise.known(1.0))
    assert predicted.mean.shape == predicted.std.shape == F.shape and (predicted.std > 0).all()
    for p in (0.1, 0.5, 0.9):
        assert (predicted.cdf(predicted.quantile(p)) >= p - 1e-12).all()
    assert (predicted.quantile(0.1) <= predicted.quantile(0.9)).all()
    assert np.isfinite(predicted.log_prob(Y)).all()
