"""The proximal filter with a structure: equal to the dense one where it is exact, and a proximal step elsewhere."""

import pickle
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kalprox as kp
from kalprox.large import filter as structured_step
from kalprox.large.information import with_room
from kalprox.regularizers import L1, Box, Ridge, SmoothL1, Zero
from kalprox.structures import Blocks, LastLayer, LowRank, UnderstatedWarning


def data(n=300, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X, theta = rng.normal(size=(n, d)), rng.normal(size=d)
    return X, X @ theta + 0.5 * rng.normal(size=n), theta


def through(alg, state, X, y, block=40, **more):
    for i in range(0, len(X), block):
        state = alg.step(state, X[i : i + block], y[i : i + block], **{k: v[i : i + block] for k, v in more.items()})
    return state


EXACT = [LowRank(6), Blocks([6]), LastLayer(2, rank=6)]


@pytest.mark.parametrize("structure", EXACT, ids=repr)
@pytest.mark.parametrize("g", [Zero(), Ridge(3.0), L1(20.0), Box(-0.5, 0.5), SmoothL1(20.0, 0.1)], ids=repr)
def test_linear_models_are_those_of_the_dense_filter(structure, g):
    X, y, _ = data()
    both = []
    for s in ("dense", structure):
        alg = kp.proximal_filter(kp.models.Linear(), g, gamma=4.0, forget=0.99, structure=s)
        both.append(through(alg, alg.init(np.full(6, 0.1), 2.0), X, y))
    one, other = both
    np.testing.assert_allclose(other.mean, one.mean, rtol=1e-8, atol=1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnderstatedWarning)
        np.testing.assert_allclose(other.var(), one.var(), rtol=1e-7, atol=1e-14)
        np.testing.assert_allclose(other.cov(), one.cov(), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(other.predict(X).std, one.predict(X).std, rtol=1e-9)
    np.testing.assert_allclose(other.interval(X, 0.9), one.interval(X, 0.9), rtol=1e-8)
    assert float(other.rows) == pytest.approx(float(one.rows))


def test_a_ridge_is_a_prior():
    X, y, _ = data()
    dense = kp.proximal_filter(kp.models.Linear(), Ridge(3.0), gamma=4.0)
    alg = kp.proximal_filter(kp.models.Linear(), Ridge(3.0), gamma=4.0, structure=LowRank(6))
    found, expected = through(alg, alg.init(np.ones(6)), X, y), through(dense, dense.init(np.ones(6)), X, y)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)
    np.testing.assert_allclose(found.var(), expected.var(), rtol=1e-8)


def test_the_learned_noise_is_that_of_the_evidence():
    X, y, _ = data()
    alg = kp.proximal_filter(kp.models.Linear(), Zero(), gamma=None, structure=LowRank(6))
    state = through(alg, alg.init(np.zeros(6), 4.0), X, y)
    S = np.eye(len(y)) + 4.0 * X @ X.T
    assert float(state.noise.variance) == pytest.approx(y @ np.linalg.solve(S, y) / len(y))
    assert float(state.noise.dof) == len(y)


def test_forgetting_by_time_is_that_of_the_dense_filter():
    X, y, _ = data()
    times = np.sort(np.random.default_rng(1).uniform(0, 30, len(y)))
    both = []
    for s in ("dense", LowRank(6)):
        alg = kp.proximal_filter(kp.models.Linear(), Zero(), gamma=4.0, forget=kp.forgetting.ByTime(5.0), structure=s)
        both.append(through(alg, alg.init(np.zeros(6), 2.0), X, y, times=times))
    np.testing.assert_allclose(both[1].mean, both[0].mean, rtol=1e-8)
    np.testing.assert_allclose(both[1].var(), both[0].var(), rtol=1e-7)


@pytest.mark.parametrize("xp", [np, pytest.param(jnp, marks=pytest.mark.slow)], ids=["numpy", "jax"])
def test_the_step_of_a_nonlinear_block_is_proximal(xp):
    """Its end is a stationary point of the loss of the block plus 1/2 ||theta - m||_P^2."""
    rng = np.random.default_rng(0)
    X, m0 = rng.normal(size=(8, 5)), 0.3 * rng.normal(size=5)
    y = np.tanh(X @ rng.normal(size=5)) + 0.1 * rng.normal(size=8)
    with jax.enable_x64(True):
        model, likelihood = kp.models.GLM("tanh"), kp.likelihoods.Gaussian()
        info = LowRank(2).start(xp.asarray(m0), xp.asarray(3.0)).fold(xp.asarray(0.3 * X), xp.asarray(y))
        info = with_room(info, 8)
        block = kp.sources.Block(xp.asarray(X), xp.asarray(y), xp.ones(8))
        theta = xp.asarray(m0 + 0.5)
        for _ in range(20):  # a step that is good enough stops early: repeat it from where it ended
            new, found, good = structured_step.proximal_step(info, Zero(), model, likelihood, theta, block, 8, 0.01, xp)
            moved, theta = float(abs(found - theta).max()), found
        theta, pulled = np.asarray(theta), np.asarray(info.apply(theta - info.mean))
    h = np.tanh(X @ theta)
    gradient = pulled - X.T @ ((1 - h**2) * (y - h))
    assert good
    assert moved < 1e-8
    assert np.abs(gradient).max() < 1e-6
    np.testing.assert_allclose(new.mean, theta, atol=1e-7)


def test_a_nonlinear_stream_ends_near_the_minimiser():
    rng = np.random.default_rng(2)
    X, theta = rng.normal(size=(1500, 6)), rng.normal(size=6)
    y = 1 / (1 + np.exp(-X @ theta)) + 0.1 * rng.normal(size=1500)
    model = kp.models.GLM("sigmoid")
    alg = kp.proximal_filter(model, Zero(), gamma=100.0, structure=LowRank(6))
    state = through(alg, alg.init(np.zeros(6), 4.0), X, y, block=100)
    best = kp.refine(model, Ridge(1 / 400.0), (X, y), np.zeros(6), gamma=100.0)
    errors = (state.mean - best.mean) / np.sqrt(best.cov.diagonal())
    assert np.abs(errors).max() < 1.5
    np.testing.assert_allclose(np.sqrt(state.posterior.var()), np.sqrt(best.cov.diagonal()), rtol=0.1)


@pytest.mark.parametrize("likelihood", [kp.likelihoods.Bernoulli(), kp.likelihoods.Poisson()], ids=repr)
def test_other_likelihoods_end_near_the_minimiser(likelihood):
    rng = np.random.default_rng(3)
    X, theta = rng.normal(size=(1500, 4)), np.array([0.5, -0.5, 0.3, 0.0])
    u = X @ theta
    bernoulli = isinstance(likelihood, kp.likelihoods.Bernoulli)
    y = (rng.uniform(size=1500) < 1 / (1 + np.exp(-u))).astype(float) if bernoulli else rng.poisson(np.exp(u)) * 1.0
    alg = kp.proximal_filter(kp.models.Linear(), Zero(), likelihood=likelihood, structure=LowRank(4))
    state = through(alg, alg.init(np.zeros(4), 1.0), X, y, block=100)
    best = kp.refine(kp.models.Linear(), Ridge(1.0), (X, y), np.zeros(4), likelihood=likelihood)
    errors = (state.mean - best.mean) / np.sqrt(best.cov.diagonal())
    assert np.abs(errors).max() < 0.5
    np.testing.assert_allclose(np.sqrt(state.posterior.var()), np.sqrt(best.cov.diagonal()), rtol=0.1)


def test_the_scale_of_a_robust_likelihood_is_learned():
    X, y, theta = data(n=1000)
    y[::20] += 30
    alg = kp.proximal_filter(
        kp.models.Linear(), Zero(), gamma=None, likelihood=kp.likelihoods.Huber(), structure=LowRank(6)
    )
    state = through(alg, alg.init(np.zeros(6), 4.0), X, y)
    assert 0.4 < state.likelihood.scale < 0.7
    assert np.abs(state.mean - theta).max() < 0.15
    assert 40 <= state.outliers <= 70


def test_several_classes():
    rng = np.random.default_rng(4)
    X, theta = rng.normal(size=(600, 3)), rng.normal(size=(3, 3))
    labels = (X @ theta + rng.gumbel(size=(600, 3))).argmax(axis=1)
    y = np.eye(3)[labels]
    model, likelihood = kp.models.Linear(outputs=3), kp.likelihoods.Categorical()
    both = []
    for s in ("dense", LowRank(9)):
        alg = kp.proximal_filter(model, Zero(), likelihood=likelihood, structure=s)
        both.append(through(alg, alg.init(np.zeros(9), 1.0), X, y, block=100).predict(X).mean)
    assert np.abs(both[0] - both[1]).mean() < 0.02


def test_a_run_is_scored():
    X, y, _ = data(n=1500)
    alg = kp.proximal_filter(kp.models.Linear(), Zero(), gamma=None, structure=LowRank(3))
    out = kp.run(alg, alg.init(np.zeros(6), 1.0), X, y, record_every=100, calibrate=True)
    assert out.trace.var.shape == (15, 6)
    assert out.calibration.verdict().word == "calibrated"


def test_only_what_is_understated_warns_and_once():
    X, y, _ = data(d=6)
    alg = kp.proximal_filter(kp.models.Linear(), Zero(), gamma=4.0, structure="diagonal")
    state = through(alg, alg.init(np.zeros(6), 1.0), X, y)
    state.predict(X)
    with pytest.warns(UnderstatedWarning, match=r"too small: of \d\d% of the precision"):
        state.var()
    state.var()  # a second warning would be an error
    state.cov()
    exact = kp.proximal_filter(kp.models.Linear(), Zero(), gamma=4.0, structure=LowRank(6))
    through(exact, exact.init(np.zeros(6), 1.0), X, y).var()


def test_single_precision_that_does_not_suffice_warns():
    X, y, _ = (a.astype(np.float32) for a in data())
    alg = kp.proximal_filter(kp.models.Linear(), Zero(), structure=LowRank(6))
    with pytest.warns(RuntimeWarning, match="float32 has too few digits"):
        alg.step(alg.init(np.zeros(6, np.float32), 1e6), X, y)


def test_a_state_can_be_pickled_and_goes_on():
    X, y, _ = data()
    alg = kp.proximal_filter(kp.models.Linear(), Zero(), structure=LowRank(3))
    state = through(alg, alg.init(np.zeros(6), 1.0), X, y)
    again = pickle.loads(pickle.dumps(state))
    np.testing.assert_array_equal(alg.step(again, X, y).mean, alg.step(state, X, y).mean)


@pytest.mark.slow
def test_a_step_ends_near_the_minimiser():
    """The distance, in the metric of the belief, for rows that bend; without a limit it would be ten times as large."""
    rng, model, likelihood = np.random.default_rng(0), kp.models.GLM("tanh"), kp.likelihoods.Gaussian()
    far = []
    for _ in range(100):
        X, m0 = rng.normal(size=(8, 5)), 0.3 * rng.normal(size=5)
        y = np.tanh(X @ rng.normal(size=5)) + 0.1 * rng.normal(size=8)
        info, block = with_room(LowRank(2).start(m0, 0.3), 8), kp.sources.Block(X, y, np.ones(8))
        ends = []
        for unit, times in ((0.01, 1), (0.0, 20), (1e3, 1)):  # as it is, to the end, and one step
            theta = m0
            for _ in range(times):
                new, theta, _ = structured_step.proximal_step(info, Zero(), model, likelihood, theta, block, 8, unit)
            ends.append((new, theta))
        metric, end = ends[1]
        far.append([float((t - end) @ metric.apply(t - end)) / 0.01 / 8 for _, t in (ends[0], ends[2])])
    as_it_is, one_step = np.median(far, axis=0)
    assert as_it_is < 0.02
    assert one_step > 10 * as_it_is


@pytest.mark.slow
def test_jax_arrays_compile_a_step_once_and_trace():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(320, 4)).astype(np.float32)
    y = np.tanh(X @ np.ones(4, np.float32)).astype(np.float32)
    alg = kp.proximal_filter(kp.models.GLM("tanh"), Zero(), gamma=10.0, structure=LowRank(2))
    state = traced = alg.init(jnp.zeros(4), 1.0)
    sizes, traces = [], []

    @jax.jit
    def step(state, X, y):
        traces.append(len(traces))
        return alg.step(state, X, y)

    program = structured_step.compiled(structured_step._learn_pieces, "rows", "n", "loops")
    for i in range(0, 320, 64):
        rows = jnp.asarray(X[i : i + 64]), jnp.asarray(y[i : i + 64])
        state, traced = alg.step(state, *rows), step(traced, *rows)
        sizes.append(program._cache_size())
    assert len(set(sizes)) == 1
    assert len(traces) == 1
    numpy = alg.init(np.zeros(4, np.float32), 1.0)
    for i in range(0, 320, 64):
        numpy = alg.step(numpy, X[i : i + 64], y[i : i + 64])
    np.testing.assert_allclose(state.mean, numpy.mean, atol=2e-4)
    settled = replace(numpy, data=with_room(numpy.data, 100))  # which truncates, as the step of JAX arrays does
    np.testing.assert_allclose(state.posterior.var(), settled.posterior.var(), rtol=2e-3)
    np.testing.assert_allclose(traced.mean, state.mean, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("forget", [1.0, 0.99])
@pytest.mark.parametrize("structure", ["diagonal", LowRank(2), Blocks([2, 4]), LastLayer(2, rank=2)], ids=repr)
def test_predictions_can_be_traced(structure, forget):
    X, y, _ = data(n=80)
    alg = kp.proximal_filter(kp.models.GLM("tanh"), Zero(), gamma=4.0, forget=forget, structure=structure)
    state = alg.step(alg.init(jnp.zeros(6), 1.0), jnp.asarray(X, jnp.float32), jnp.asarray(np.tanh(y), jnp.float32))
    new = jnp.asarray(X[:20], jnp.float32)
    found = jax.jit(lambda state, X: (state.predict(X).mean, state.predict(X).std))(state, new)
    expected = state.predict(new)
    np.testing.assert_allclose(found[0], expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], expected.std, rtol=1e-4)


@pytest.mark.parametrize("xp", [np, pytest.param(jnp, marks=pytest.mark.slow)], ids=["numpy", "jax"])
def test_a_block_without_a_value_is_rejected(xp):
    model = kp.models.Function(lambda theta, x: jnp.log(theta[0] * x))
    alg = kp.proximal_filter(model, Zero(), structure="diagonal")
    state = alg.init(xp.ones(1, np.float32), 1.0)
    X, y = xp.asarray([1.0, -1.0, 2.0], np.float32), xp.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"no finite value or derivative at the current estimate in row\(s\) 1 "):
        alg.step(state, X, y)
    assert float(alg.step(state, X, y, weights=xp.asarray([1.0, 0.0, 1.0], np.float32)).rows) == 2


def test_what_is_refused():
    X, y, _ = data()
    linear = kp.models.Linear()
    with pytest.raises(ValueError, match="needs a prior: give v0"):
        kp.proximal_filter(linear, L1(1.0), structure="diagonal").init(np.zeros(6))
    with pytest.raises(ValueError, match="v0 must be a number or have shape"):
        kp.proximal_filter(linear, Zero(), structure="diagonal").init(np.zeros(6), np.eye(6))
    with pytest.raises(ValueError, match="structure must be"):
        kp.proximal_filter(linear, Zero(), structure="sparse")
    alg = kp.proximal_filter(linear, kp.regularizers.Custom(lambda t: (t**4).sum()), structure="diagonal")
    with pytest.raises(TypeError, match="no proximal step in a structured metric"):
        alg.step(alg.init(np.zeros(6), 1.0), X, y).mean  # noqa: B018
    wide = kp.proximal_filter(linear, Zero(), structure="diagonal").init(np.zeros(6000), 1.0)
    with pytest.raises(ValueError, match="would have 36,000,000 entries"):
        wide.cov()


@pytest.mark.parametrize(
    ("name", "message"), [("X", "X must be finite"), ("y", "y must be finite"), ("weights", "weights must be")]
)
def test_bad_rows_of_jax_arrays_are_named_after_the_step_has_found_them(name, message):
    """The program that learns the rows looks at them: tanh(inf) is a finite number."""
    model = kp.models.Function(lambda theta, x: jnp.tanh(theta @ x))
    alg = kp.proximal_filter(model, Zero(), gamma=10.0, structure=LowRank(2))
    state = alg.init(jnp.ones(3), 1.0)
    rng = np.random.default_rng(0)
    rows = {"X": rng.normal(size=(20, 3)), "y": rng.normal(size=20), "weights": np.ones(20)}
    rows[name][4] = -1.0 if name == "weights" else np.inf
    with pytest.raises(ValueError, match=message):
        alg.step(state, *(jnp.asarray(a, jnp.float32) for a in rows.values()))
    rows["weights"][4] = 0.0  # a row that does not count may hold anything
    found = alg.step(state, *(jnp.asarray(a, jnp.float32) for a in rows.values()))
    assert np.isfinite(found.mean).all() and float(found.rows) == 19
