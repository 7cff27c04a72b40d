"""Networks as estimators: they learn in one pass, know how sure they are, and keep scikit-learn's contract."""

import pickle

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris

import kalprox as kp
from kalprox import KalproxNetClassifier, KalproxNetRegressor
from kalprox.large.net import Dense, DenseStart, prior_stds


def test_a_first_batch_of_few_rows_warns():
    X, y = waves(40)
    with pytest.warns(UserWarning, match=r"has 5 row\(s\) only: .*Give some hundred rows first"):
        KalproxNetRegressor(hidden=(2,)).partial_fit(X[:5], y[:5])
    with pytest.warns(UserWarning, match=r"has 1 row\(s\) only"):
        KalproxNetClassifier(hidden=(2,)).partial_fit(X[:1], y[:1] > 0, classes=[False, True])
    KalproxNetRegressor(hidden=(2,)).fit(X[:20], y[:20]).partial_fit(X[20:21], y[20:21])


def waves(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


@pytest.mark.slow
def test_a_regressor_learns_a_curve_and_its_noise():
    X, y = waves(1280)
    model = KalproxNetRegressor(hidden=(8,)).fit(X, y)
    new, target = waves(1000, seed=1)
    mean, std = model.predict(new, return_std=True)
    low, high = model.predict_interval(new, 0.9)
    assert ((mean - target) ** 2).mean() < 2 * 0.1**2  # the noise is half of it, at least
    assert 0.86 < ((low <= target) & (target <= high)).mean() < 0.94
    assert 0.1 * 0.9 < std.mean() < 0.1 * 1.3 and 0.01 / 1.3 < model.noise_var_ < 0.01 * 1.5
    assert model.n_rows_seen_ == 1280


def test_the_parts_in_which_rows_come_hardly_matter():
    """Where a network is linearised depends on the parts; a tenth of the noise, of 0.1, is more than that changes."""
    X, y = waves(512)
    whole, parts = (KalproxNetRegressor(hidden=(8,)).partial_fit(X, y) for _ in range(2))
    more_X, more_y = waves(512, seed=2)
    whole.partial_fit(more_X, more_y)
    for start in range(0, 512, 64):
        parts.partial_fit(more_X[start : start + 64], more_y[start : start + 64])
    np.testing.assert_allclose(whole.predict(X), parts.predict(X), atol=0.01)


def test_fit_is_one_pass_over_the_rows_in_a_random_order():
    X, y = waves(160)
    order = np.random.RandomState(0).permutation(160)
    model = KalproxNetRegressor(hidden=(8,)).fit(X, y)
    same = KalproxNetRegressor(hidden=(8,)).partial_fit(X[order], y[order])
    for a, b in zip(model.predict(X, return_std=True), same.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    twice = KalproxNetRegressor(hidden=(8,)).fit(X[:80], y[:80]).fit(X, y)
    np.testing.assert_array_equal(twice.predict(X), model.predict(X))


def test_the_prior_is_that_of_the_first_values():
    X, y = waves(80)
    model = KalproxNetRegressor(hidden=(8,), prior_std=0.5).partial_fit(X, y)
    state = model._state
    start = DenseStart((8,), "tanh")(int(np.random.RandomState(0).randint(2**31)), 1, 1)
    theta = state.problem.model.flatten(start)
    np.testing.assert_array_equal(state.data.prior_mean, theta)
    rms = [np.sqrt((a**2).mean()) for pair in start for a in pair]
    sizes = [a.size for pair in start for a in pair]
    precision = 1 / (0.5 * np.repeat(rms, sizes)) ** 2
    ratio = state.data.prior_precision / precision
    np.testing.assert_allclose(ratio, ratio[0])  # the first noise variance
    assert 0.01 <= ratio[0] <= 1


def test_a_classifier_learns_classes_and_averages_probabilities():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = KalproxNetClassifier(hidden=(10,)).fit(X, names)
    assert model.score(X, names) > 0.93 and list(model.classes_) == ["setosa", "versicolor", "virginica"]
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    two = KalproxNetClassifier(hidden=(10,)).fit(X[:100], names[:100])
    assert two.score(X[:100], names[:100]) > 0.97
    assert two.predict_proba(X[:5]).shape == (5, 2)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), p)


@pytest.mark.slow
def test_a_network_of_ones_own_and_every_structure():
    X, y = load_diabetes(return_X_y=True)

    def init(seed, inputs, outputs):
        rng = np.random.default_rng(seed)
        return {"in": rng.normal(size=(5, inputs)) / inputs**0.5, "out": np.zeros(5), "size": 5}

    def apply(weights, x):
        return weights["out"] @ jnp.tanh(weights["in"] @ x)

    for structure in ("diagonal", kp.structures.LowRank(5), kp.structures.LastLayer(5, rank=5)):
        model = KalproxNetRegressor(network=(init, apply), structure=structure).fit(X, y)
        assert 0.35 < model.score(X, y) < 0.7 and model.params_["size"] == 5  # a linear fit has 0.52
    assert clone(model).network[0] is init


@pytest.mark.slow
def test_a_module_of_equinox():
    X, y = load_diabetes(return_X_y=True)

    def init(seed, inputs, outputs):
        return equinox.nn.MLP(inputs, "scalar", 8, 1, activation=jnp.tanh, key=jax.random.key(seed))

    model = KalproxNetRegressor(network=(init, lambda module, x: module(x)), structure="diagonal").fit(X, y)
    assert model.score(X, y) > 0.45 and isinstance(model.params_, equinox.nn.MLP)
    layers = [equinox.nn.Linear(4, 1, key=jax.random.key(0)), equinox.nn.Dropout(0.5)]
    with pytest.raises(TypeError, match=r"layers\[1\]\.p of the parameters is 0\.5, and it is not clear whether"):
        kp.models.Function(lambda module, x: module(x), params=equinox.nn.Sequential(layers))


@pytest.mark.slow
def test_float32_rows_stay_float32():
    X, y = waves(160)
    model = KalproxNetRegressor(hidden=(8,)).fit(X.astype(np.float32), y)
    narrow = model.predict(X.astype(np.float32), return_std=True)
    assert narrow[0].dtype == np.float32
    wide = KalproxNetRegressor(hidden=(8,)).fit(X, y).predict(X, return_std=True)
    assert (abs(narrow[0] - wide[0]) < 0.5 * wide[1]).all()  # steps are halved where rounding decides that they fail
    np.testing.assert_allclose(narrow[1], wide[1], rtol=0.2)


def test_networks_and_prior_scales():
    weights = DenseStart((400,), "relu")(0, 100, 1)
    np.testing.assert_allclose([W.std() * W.shape[1] ** 0.5 for W, _ in weights], [2**0.5, 1], rtol=0.15)
    assert Dense("relu")(weights, np.ones(100)).shape == (1,)
    scales = prior_stds({"a": np.array([3.0, 4.0]), "n": 3, "z": np.zeros(2)})
    np.testing.assert_allclose(scales["z"], np.full(2, 12.5**0.5))
    assert scales["n"] == 3


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hidden": (0,)}, "hidden must be"),
        ({"activation": "cos"}, "activation must be one of relu, tanh"),
        ({"prior_std": -1.0}, "prior_std must be"),
        ({"network": jnp.tanh}, "pair of functions"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        KalproxNetRegressor(**parameters).fit(*waves(20))


def test_classes_are_those_of_the_first_call():
    X, y = load_iris(return_X_y=True)
    model = KalproxNetClassifier(hidden=(10,))
    with pytest.raises(ValueError, match="first call of partial_fit"):
        model.partial_fit(X, y)
    model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="not among the classes, '7'"):
        model.partial_fit(X, np.where(y == 2, 7, y))
    with pytest.raises(ValueError, match="those of the first call"):
        model.partial_fit(X, y, classes=[0, 1])
