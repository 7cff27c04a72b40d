"""kp.run: the hand-written loop, recording, passes, compilation, memory."""

import math
import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data import behind_link
from scipy import stats

import kalprox as kp
from kalprox import models, regularizers
from kalprox.calibration import FALSE_ALARMS
from kalprox.paper import run as run_module
from kalprox.paper.run import PIECE, pieces


def algorithm(gamma=1.0):
    return kp.pipg(models.GLM("tanh"), regularizers.SmoothL1(0.01, 0.3), gamma=gamma)


def test_equals_a_loop_over_steps():
    X, y, _ = behind_link("tanh", n=57)
    alg = algorithm()
    state = first = alg.init(np.zeros(6), 1.0)
    means, variances = [], []
    for x, target in zip(X, y, strict=True):
        state = alg.step(state, x, target)
        means.append(state.mean)
        variances.append(state.var())
    out = kp.run(alg, first, X, y, record_every=10, record=lambda state: state.mean.sum())
    assert out.trace.rows.tolist() == [10, 20, 30, 40, 50, 57]
    at = out.trace.rows - 1
    np.testing.assert_allclose(out.trace.mean, np.array(means)[at], rtol=1e-11)
    np.testing.assert_allclose(out.trace.var, np.array(variances)[at], rtol=1e-11)
    np.testing.assert_allclose(out.trace.extra, np.array(means)[at].sum(axis=1), rtol=1e-10)
    np.testing.assert_allclose(out.state.cov(), state.cov(), rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("record_every", [1, 7, 1000, PIECE - 1, PIECE, PIECE + 1, 20_000, 10**9])
def test_recording_does_not_change_the_run_and_records_where_it_says(record_every):
    n = 2 * PIECE + 123
    X, y, _ = behind_link("identity", n=n, d=2)
    alg = kp.sgd(models.Linear(), regularizers.Zero(), alpha0=0.1, alpha1=0.01)
    start = alg.init(np.zeros(2))
    every_row = kp.run(alg, start, X, y, record_every=1)
    out = kp.run(alg, start, X, y, record_every=record_every, passes=2)
    one_pass = [*range(record_every, n, record_every), n]
    assert out.trace.rows.tolist() == one_pass + [n + r for r in one_pass]
    first = out.trace.rows <= n
    np.testing.assert_array_equal(out.trace.mean[first], every_row.trace.mean[out.trace.rows[first] - 1])
    assert out.state.rows == 2 * n


@pytest.mark.parametrize("n", [1, 5, PIECE - 1, PIECE, PIECE + 1, 40_000])
@pytest.mark.parametrize("record_every", [3, 5000, 30_000])
def test_pieces_cover_every_row_once_and_stop_at_recorded_rows(n, record_every):
    every = min(record_every, PIECE)
    length = every * (PIECE // every)
    cut = list(pieces(n, length, record_every, 1))
    assert [row for a, b in cut for row in range(a, b)] == list(range(n))
    assert all(b - a <= length for a, b in cut)
    stops = {b for _, b in cut}
    assert stops >= set(range(max(record_every, length), n, max(record_every, length)))


def test_nothing_is_traced_again_for_other_rows_or_other_numbers():
    traces = 0

    def fn(theta, x):
        nonlocal traces
        traces += 1
        return jnp.tanh(theta @ x)

    h = models.Function(fn)
    X, y, _ = behind_link("tanh", n=900)
    for n, gamma, lam, q in [(900, 1.0, 0.01, 0.0), (899, 2.0, 0.02, 1e-3), (1, 0.5, 0.0, 0.1), (450, 1.0, 0.3, 0.0)]:
        alg = kp.pipg(h, regularizers.SmoothL1(lam, 0.7), gamma=gamma, q=q)
        kp.run(alg, alg.init(np.zeros(6), 1.0), X[:n], y[:n])
        if n == 900:
            after_first = traces
    assert after_first > 0
    assert traces == after_first


def test_jax_arrays_stay_jax_arrays_and_are_cut_without_compiling_again():
    n = 3 * PIECE + 5
    X, y, _ = behind_link("identity", n=n, d=2)
    alg = kp.sgd(models.Linear(), regularizers.Zero(), alpha0=0.1, alpha1=0.01)
    host = kp.run(alg, alg.init(np.zeros(2)), X, y)
    with jax.enable_x64(True):
        out = kp.run(alg, alg.init(jnp.zeros(2)), jnp.asarray(X), jnp.asarray(y))
        assert isinstance(out.state.mean, jax.Array)
    np.testing.assert_array_equal(out.trace.mean, host.trace.mean)


def test_float64_whatever_the_global_flag_says_and_the_flag_is_untouched():
    assert not jax.config.jax_enable_x64
    X, y, _ = behind_link("identity", n=100)
    alg = kp.ipm(models.Linear(), gamma=1.0)
    out = kp.run(alg, alg.init(np.zeros(6), 1.0), X.astype(np.float32), y)
    assert out.state.mean.dtype == out.trace.var.dtype == np.float64
    out = kp.run(alg, alg.init(np.zeros(6, np.float32), 1.0), X, y)
    assert out.state.mean.dtype == out.trace.var.dtype == np.float32
    assert not jax.config.jax_enable_x64


def test_memory_does_not_grow_with_the_rows():
    alg = kp.sgd(models.Linear(), regularizers.Zero(), alpha0=1e-3, alpha1=0.0)
    start = alg.init(np.zeros(20))
    peaks = []
    for n in (PIECE, 20 * PIECE):
        X, y = np.ones((n, 20)), np.ones(n)
        kp.run(alg, start, X, y, record_every=10_000)
        tracemalloc.start()
        kp.run(alg, start, X, y, record_every=10_000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # tracemalloc sees NumPy's arrays: twenty times the rows leave a few records more, no copy of X
    assert peaks[1] < peaks[0] + 100_000


@pytest.mark.slow
def test_long_rows_are_handed_over_a_few_at_a_time():
    d = 200_000
    X = np.ones((45, d), np.float32)  # 36 MB; 8192 such rows would be 6.6 GB
    alg = kp.sgd(models.Linear(), regularizers.Zero(), alpha0=1e-6, alpha1=0.0)
    state = alg.init(np.zeros(d, np.float32))
    tracemalloc.start()
    out = kp.run(alg, state, X, np.ones(45, np.float32), record_every=50)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * (1 << 26) and out.trace.rows.tolist() == [45] and out.state.rows == 45


def test_divergence_is_said_and_nothing_is_lost():
    X, y, _ = behind_link("identity", n=3 * PIECE, d=3)
    X = 30 * X
    X[: 2 * PIECE] = 0
    alg = kp.sgd(models.Linear(), regularizers.Zero(), alpha0=1.0, alpha1=0.0)
    with pytest.raises(FloatingPointError, match=r"after rows 16000 to .*Lower gamma \(or alpha0\)") as failure:
        kp.run(alg, alg.init(np.ones(3)), X, y)
    np.testing.assert_array_equal(failure.value.run.state.mean, np.ones(3))
    assert failure.value.run.trace.rows.tolist() == [1000 * k for k in range(1, 17)]


def test_the_progress_bar_counts_every_row(capsys):
    X, y, _ = behind_link("identity", n=2000, d=2)
    alg = kp.ipm(models.Linear(), gamma=1.0)
    quiet = kp.run(alg, alg.init(np.zeros(2), 1.0), X, y)
    shown = kp.run(alg, alg.init(np.zeros(2), 1.0), X, y, progress=True)
    assert "2000/2000" in capsys.readouterr().err
    np.testing.assert_array_equal(quiet.state.mean, shown.state.mean)


@pytest.mark.slow
@pytest.mark.integration
def test_importing_kalprox_imports_nothing_heavy():
    code = (
        "import sys, kalprox as kp; from kalprox import regularizers, models; "
        "import numpy as np; kp.models.GLM('tanh').linearize(np.ones(2), np.ones(2)); "
        "heavy = {'jax', 'matplotlib', 'pyarrow', 'dask', 'click', 'rich', 'sklearn'} & set(sys.modules); "
        "assert not heavy, heavy; import kalprox.paper.pipg, kalprox.paper.run as module; "
        "assert module.run is kp.run and callable(kp.pipg), (kp.pipg, kp.run); assert 'sgd' in dir(kp)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_classes_with_the_same_fields_are_never_taken_for_one_another():
    """JAX keeps compiled code by the structure of its arguments: SmoothL1 and Cauchy must not share one."""
    from kalprox.base.arrays import pytree

    def make(k):
        @pytree
        class Scaled:
            lam: float

            def times(self):
                return k * self.lam

        return Scaled

    compiled = jax.jit(lambda g: g.times())
    classes = [make(k) for k in range(200)]
    assert jax.tree.structure(classes[0](1.0)) != jax.tree.structure(classes[1](1.0))
    assert [float(compiled(cls(1.0))) for cls in classes] == list(range(200))


def gaussian_rows(n=3000, d=4, gamma=4.0, seed=0):
    rng = np.random.default_rng(seed)
    theta, X = rng.normal(size=d), rng.normal(size=(n, d))
    return X, X @ theta + rng.normal(size=n) / gamma**0.5


def test_calibration_of_ipm_is_that_of_a_hand_written_kalman_filter():
    X, y = gaussian_rows(n=1234)
    mean, V, gamma, squares, log_score = np.zeros(4), np.eye(4), 4.0, 0.0, 0.0
    for x, target in zip(X, y, strict=True):
        s, e = 1 / gamma + x @ V @ x, target - x @ mean
        squares, log_score = squares + e**2 / s, log_score - (e**2 / s + np.log(2 * np.pi * s)) / 2
        mean, V = mean + V @ x * e / s, V - np.outer(V @ x, V @ x) / s
    alg = kp.ipm(models.Linear(), gamma=gamma)
    out = kp.run(alg, alg.init(np.zeros(4), 1.0), X, y, record_every=100, calibrate=True)
    assert out.calibration.verdict().word == "calibrated"
    assert out.calibration.rows == 1234 and out.calibration.undetermined == 0
    np.testing.assert_allclose(out.calibration.nis, squares / 1234, rtol=1e-10)
    np.testing.assert_allclose(out.calibration.log_score, log_score, rtol=1e-10)
    np.testing.assert_allclose(out.state.mean, mean, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("record_every", [1, 700, 10_000])
def test_calibration_does_not_depend_on_what_is_recorded_nor_change_the_run(record_every):
    X, y = gaussian_rows(n=PIECE + 77)
    alg = kp.ipm(models.Linear(), gamma=4.0)
    state = alg.init(np.zeros(4), 1.0)
    plain = kp.run(alg, state, X, y, record_every=record_every)
    out = kp.run(alg, state, X, y, record_every=record_every, calibrate=True)
    assert plain.calibration is None
    np.testing.assert_array_equal(out.state.mean, plain.state.mean)
    np.testing.assert_array_equal(out.trace.mean, plain.trace.mean)
    reference = kp.run(alg, state, X, y, calibrate=True).calibration
    assert out.calibration.rows == len(y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), out.calibration, reference)


def test_the_papers_own_intervals_are_over_confident_with_a_regulariser_and_right_without():
    """Design fact 2: V counts the curvature of g twice, and the mean settles at the minimiser with n g."""
    X, y = gaussian_rows(d=20, gamma=1.0)
    found = {}
    for lam in (0.0, 0.3):
        alg = kp.pipg(models.Linear(), regularizers.Ridge(lam), gamma=1.0)
        found[lam] = kp.run(alg, alg.init(np.zeros(20), 1.0), X, y, calibrate=True).calibration.verdict()
    assert found[0.0].word == "calibrated" and found[0.3].word == "over-confident"
    assert found[0.3].nis > 1.5 and found[0.3].coverage < 0.9


@pytest.mark.slow
def test_calibration_of_several_outputs_of_rows_of_any_shape_and_in_jax_arrays():
    rng = np.random.default_rng(1)
    X, theta = rng.normal(size=(900, 3, 2)), np.array([1.0, -0.5])
    y = X @ theta + 0.5 * rng.normal(size=(900, 3))
    alg = kp.ipm(models.Function(lambda theta, x: x @ theta), gamma=4.0)
    out = kp.run(alg, alg.init(np.zeros(2), 1.0), X, y, calibrate=True)
    assert out.calibration.rows == 2700
    state, squares = alg.init(np.zeros(2), 1.0), 0.0
    for x, target in zip(X[:50], y[:50], strict=True):
        predicted = alg.predict(state, x, block=False)
        squares += (((target - predicted.mean) / predicted.std) ** 2).sum()
        state = alg.step(state, x, target)
    first = kp.run(alg, alg.init(np.zeros(2), 1.0), X[:50], y[:50], calibrate=True).calibration
    np.testing.assert_allclose(first.squares, squares, rtol=1e-10)
    with jax.enable_x64(True):
        on_device = kp.run(alg, alg.init(jnp.zeros(2), 1.0), jnp.asarray(X), jnp.asarray(y), calibrate=True)
    np.testing.assert_allclose(on_device.calibration.squares, out.calibration.squares, rtol=1e-10)


@pytest.mark.slow
def test_calibration_compiles_once_for_all_rows_and_numbers_and_maps_over_gamma():
    traces = 0

    def fn(theta, x):
        nonlocal traces
        traces += 1
        return theta @ x

    X, y = gaussian_rows()
    h = models.Function(fn)
    counts = []
    for n, gamma in [(900, 1.0), (899, 2.0), (1, 0.5), (450, 4.0)]:
        alg = kp.ipm(h, gamma=gamma)
        kp.run(alg, alg.init(np.zeros(4), 1.0), X[:n], y[:n], calibrate=True)
        counts.append(traces)
    assert len(set(counts)) == 1

    def nis(gamma):
        alg = kp.ipm(models.Linear(), gamma=gamma)
        return kp.run(alg, alg.init(jnp.zeros(4), 1.0), X, y, calibrate=True).calibration.nis

    with jax.enable_x64(True):
        swept = jax.vmap(nis)(jnp.array([1.0, 4.0, 16.0]))
    np.testing.assert_allclose(swept, [0.25, 1.0, 4.0], rtol=0.1)  # NIS is in proportion to gamma, to the prior's part


@pytest.mark.parametrize(
    "alg",
    [
        kp.ipg(models.Linear(), regularizers.Zero(), gamma=1.0),
        kp.sgd(models.Linear(), regularizers.Zero(), alpha0=0.1, alpha1=0.0),
    ],
    ids=["ipg", "sgd"],
)
def test_calibration_of_an_estimate_without_a_covariance_is_refused(alg):
    with pytest.raises(ValueError, match=r"states its uncertainty: proximal_filter, pipg or ipm. ipg and sgd have"):
        kp.run(alg, alg.init(np.zeros(2)), np.ones((3, 2)), np.ones(3), calibrate=True)
    predicted = alg.predict(alg.init(np.array([1.0, 2.0])), np.ones((3, 2)))
    np.testing.assert_array_equal(predicted.mean, [3.0, 3.0, 3.0])
    assert np.isposinf(predicted.std).all()


def test_calibration_of_rows_that_have_been_learned_is_refused():
    alg = kp.ipm(models.Linear(), gamma=1.0)
    with pytest.raises(ValueError, match="calibrate=True needs passes=1"):
        kp.run(alg, alg.init(np.zeros(2), 1.0), np.ones((3, 2)), np.ones(3), calibrate=True, passes=2)


def test_the_proximal_filter_predicts_through_its_algorithm():
    X, y = gaussian_rows(n=200)
    alg = kp.proximal_filter(models.Linear(), regularizers.Ridge(1.0), gamma=None)
    state = alg.step(alg.init(np.zeros(4), None), X, y)
    for a, b in zip(alg.predict(state, X), state.predict(X), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(("together", "d"), [(5, 6), (2, 7), (1, 8), (0, 9)])
def test_members_of_a_batch_run_in_groups_that_fit_the_cache(monkeypatch, together, d):
    """All at once took 1.6 times as long as one by one at d = 100 on a CPU; on other devices all run at once."""
    gammas = jnp.linspace(0.1, 0.5, 5, dtype=jnp.float32)
    rng = np.random.default_rng(0)
    X, y = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((20, d), (20,)))
    monkeypatch.setattr(run_module, "_CACHE", together * 4 * (d * d + d))  # bytes of a mean and a covariance

    def one(gamma):
        alg = kp.pipg(kp.models.Linear(), kp.regularizers.Ridge(0.1), gamma=gamma)
        return kp.run(alg, alg.init(jnp.zeros(d, jnp.float32), 1.0), X, y).state.mean

    def products(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield equation.outvars[0].aval.shape
            for value in jax.tree.leaves(equation.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from products(inner)

    found = {shape for shape in products(jax.make_jaxpr(jax.vmap(one))(gammas).jaxpr) if shape[-2:] == (d, d)}
    if jax.default_backend() == "cpu":
        assert max(math.prod(shape) // d**2 for shape in found) == max(together, 1)
    alone = jnp.stack([one(gamma) for gamma in gammas])
    np.testing.assert_allclose(jax.vmap(one)(gammas), alone, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ClassCalibration", "CountCalibration", "CategoryCalibration"])
def test_classes_and_counts_are_judged_by_the_calibration_of_their_likelihood(name):
    alarms = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3000, 3))
        f = X @ [0.6, -0.4, 0.2]
        likelihood, y = {
            "ClassCalibration": (kp.likelihoods.Bernoulli(), (rng.random(3000) < 1 / (1 + np.exp(-f))) + 0.0),
            "CountCalibration": (kp.likelihoods.Poisson(), rng.poisson(np.exp(f)) + 0.0),
            "CategoryCalibration": (
                kp.likelihoods.Categorical(),
                np.eye(3)[np.argmax(X + rng.gumbel(size=X.shape), axis=1)],
            ),
        }[name]
        model = kp.models.Linear(outputs=3) if y.ndim == 2 else kp.models.Linear()
        alg = kp.proximal_filter(model, kp.regularizers.Ridge(1.0), likelihood=likelihood)
        start = alg.init(np.zeros(9 if y.ndim == 2 else 3), None)
        found = kp.run(alg, start, X, y, record_every=100, calibrate=True).calibration
        assert type(found).__name__ == name and found.rows > 1000 and found.rows + found.undetermined == 3000
        alarms += found.verdict().word != "calibrated"
    assert alarms <= stats.binom.ppf(0.999, 4, FALSE_ALARMS)
