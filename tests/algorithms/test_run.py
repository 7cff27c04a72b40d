"""kp.run: the hand-written loop, recording, passes, compilation, memory."""

import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data import behind_link

import kalprox as kp
from kalprox import models, regularizers
from kalprox.algorithms.run import _PIECE, _pieces


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


@pytest.mark.parametrize("record_every", [1, 7, 1000, _PIECE - 1, _PIECE, _PIECE + 1, 20_000, 10**9])
def test_recording_does_not_change_the_run_and_records_where_it_says(record_every):
    n = 2 * _PIECE + 123
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


@pytest.mark.parametrize("n", [1, 5, _PIECE - 1, _PIECE, _PIECE + 1, 40_000])
@pytest.mark.parametrize("record_every", [3, 5000, 30_000])
def test_pieces_cover_every_row_once_and_stop_at_recorded_rows(n, record_every):
    every = min(record_every, _PIECE)
    length = every * (_PIECE // every)
    pieces = list(_pieces(n, length, record_every, 1))
    assert [row for a, b in pieces for row in range(a, b)] == list(range(n))
    assert all(b - a <= length for a, b in pieces)
    stops = {b for _, b in pieces}
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
    n = 3 * _PIECE + 5
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
    for n in (_PIECE, 20 * _PIECE):
        X, y = np.ones((n, 20)), np.ones(n)
        kp.run(alg, start, X, y, record_every=10_000)
        tracemalloc.start()
        kp.run(alg, start, X, y, record_every=10_000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # tracemalloc sees NumPy's arrays: twenty times the rows leave a few records more, no copy of X
    assert peaks[1] < peaks[0] + 100_000


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
    X, y, _ = behind_link("identity", n=3 * _PIECE, d=3)
    X = 30 * X
    X[: 2 * _PIECE] = 0
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


def test_importing_kalprox_imports_nothing_heavy():
    code = (
        "import sys, kalprox as kp; from kalprox import regularizers, models; "
        "import numpy as np; kp.models.GLM('tanh').linearize(np.ones(2), np.ones(2)); "
        "heavy = {'jax', 'matplotlib', 'pyarrow', 'dask', 'click', 'rich', 'sklearn'} & set(sys.modules); "
        "assert not heavy, heavy; import kalprox.algorithms.baselines, kalprox.algorithms.run as module; "
        "assert module.run is kp.run and callable(kp.pipg), (kp.pipg, kp.run); assert 'sgd' in dir(kp)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_classes_with_the_same_fields_are_never_taken_for_one_another():
    """JAX keeps compiled code by the structure of its arguments: SmoothL1 and Cauchy must not share one."""
    from kalprox._arrays import pytree

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
