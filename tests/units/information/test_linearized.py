"""What the linearisation of a block leaves out, against the Hessian by hand."""

import numpy as np
import pytest

from kalprox.information.linearized import curvature_left_out, linearize
from kalprox.likelihoods import Gaussian
from kalprox.models import GLM
from kalprox.sources import Block


@pytest.mark.parametrize("weighted", [False, True])
def test_the_linearisation_and_what_it_leaves_out_are_the_hessian(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    X, theta = rng.standard_normal((200, 4)), rng.standard_normal(4)
    w = rng.integers(0, 3, 200).astype(float) if weighted else np.ones(200)
    X[w == 0] = np.nan
    y = rng.standard_normal(200)
    block = Block(X, y, w if weighted else None)
    E = curvature_left_out(GLM("sigmoid"), Gaussian(), theta, block)
    information = linearize(GLM("sigmoid"), Gaussian(), theta, block).information
    assert information is not None
    X = np.where(w[:, None] > 0, X, 0)
    f = 1 / (1 + np.exp(-X @ theta))
    slope = f * (1 - f)
    second = slope**2 - (y - f) * slope * (1 - 2 * f)
    np.testing.assert_allclose(information.precision() + E, X.T @ ((w * second)[:, None] * X), atol=1e-8)
