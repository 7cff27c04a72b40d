"""Parameters of likelihoods that a stream learns: the scale of good rows, the dispersion of counts."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import kalprox as kp
from kalprox.likelihoods import Contaminated, Huber, NegativeBinomial, Student

LINEAR, ZERO = kp.models.Linear(), kp.regularizers.Zero()
ROBUST = [Huber(), Student(), Contaminated()]
TRUTH = np.array([1.0, 2.0, -1.0, 0.5])


def name(likelihood):
    return type(likelihood).__name__


def rows(n, seed=0, lying=slice(0), size=10.0):
    """Inputs and targets; those of the rows that lie are too large by about `size`."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    y = X @ TRUTH + rng.normal(size=n)
    y[lying] += size * (1 + 0.1 * rng.normal(size=n))[lying]
    return X, y


def counts(n, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    rate = np.exp(X @ [0.7, 0.4, -0.3, 0.0])
    return X, rng.negative_binomial(2, 2 / (2 + rate)).astype(float)


def stream(X, y, likelihood, length=100, g=ZERO, **options):
    alg = kp.proximal_filter(LINEAR, g, **{"gamma": None, "likelihood": likelihood, **options})
    state = alg.init(np.zeros(X.shape[1]))
    for start in range(0, len(y), length):
        state = alg.step(state, X[start : start + length], y[start : start + length])
    return state


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [*ROBUST, NegativeBinomial()], ids=name)
@pytest.mark.parametrize("seed", range(2))
def test_a_shuffled_stream_ends_near_the_batch_with_its_parameter(likelihood, seed):
    n = 3000
    lying = np.random.default_rng(seed).choice(n, n // 20, replace=False)
    X, y = counts(n, seed) if not likelihood.majorizes else rows(n, seed, lying)
    batch = kp.refine(LINEAR, ZERO, (X, y), np.zeros(4), likelihood=likelihood)
    state, std = stream(X, y, likelihood, 60), np.sqrt(np.diag(batch.cov))
    assert np.abs((state.mean - batch.mean) / std).max() < 0.1
    np.testing.assert_allclose(np.sqrt(state.var()), std, rtol=0.06)
    parameter = str(likelihood.parameter)
    assert getattr(state.likelihood, parameter) == pytest.approx(getattr(batch.likelihood, parameter), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Huber(), NegativeBinomial()], ids=name)
def test_the_parameter_hardly_depends_on_the_batches(likelihood):
    X, y = counts(2500) if not likelihood.majorizes else rows(2500, 0, slice(None, None, 20))
    found = [stream(X, y, likelihood, length) for length in (25, 125, 500)]
    std = np.sqrt(found[0].var())
    values = [float(getattr(state.likelihood, str(likelihood.parameter))) for state in found]
    assert np.ptp(values) < 0.005 * values[0]
    assert max(np.abs((state.mean - found[0].mean) / std).max() for state in found) < 0.1


def test_rows_one_at_a_time_are_learned_as_in_blocks():
    X, y = rows(1300, 1, slice(None, None, 20))
    block = stream(X, y, Huber(), 1000)  # single rows after the warm-up
    alg = kp.proximal_filter(LINEAR, ZERO, gamma=None, likelihood=Huber())
    state = stream(X[:1000], y[:1000], Huber(), 1000)
    for k in range(1000, 1300):
        state = alg.step(state, X[k : k + 1], y[k : k + 1])
    np.testing.assert_allclose(state.likelihood.scale, block.likelihood.scale, rtol=1e-3)
    assert np.abs((state.mean - block.mean) / np.sqrt(block.var())).max() < 0.05
    assert state.outliers == pytest.approx(block.outliers, abs=2)


def bursts(n, share, length=50, seed=0):
    """Rows that lie in bursts."""
    starts = np.random.default_rng(seed).choice(n // length, round(share * n / length), replace=False)
    return np.concatenate([np.arange(length) + length * s for s in starts])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "size"), [("anywhere", 10.0), ("first", 1e3), ("bursts", 10.0), ("bursts", 1e3), ("sorted", 10.0)]
)
def test_contaminated_streams_leave_out_rows_that_lie(where, size):
    n, rng = 2000, np.random.default_rng(5)
    lying = {
        "anywhere": rng.choice(n, n // 5, replace=False),
        "first": np.arange(300),
        "bursts": bursts(n, 0.2),
        "sorted": np.arange(n - n // 5, n),
    }[where]
    good = np.setdiff1d(np.arange(n), lying)
    X, y = rows(n, 6, lying, size)
    state, clean = stream(X, y, Contaminated()), stream(X[good], y[good], Contaminated())
    np.testing.assert_allclose(state.mean, clean.mean, atol=0.3 / len(good) ** 0.5)
    assert state.outliers >= len(lying) * 0.99
    assert state.outliers - len(lying) <= stats.binom.ppf(0.9999, len(good), 1e-3)


@pytest.mark.parametrize("likelihood", [Huber(), pytest.param(Student(), marks=pytest.mark.slow)], ids=name)
def test_bursts_do_not_move_slopes_by_much(likelihood):
    X, y = rows(3000, 7, bursts(3000, 0.05), 1000.0)
    clean = stream(*rows(3000, 7), likelihood)
    state = stream(X, y, likelihood)
    assert np.sqrt(state.var())[1:].max() < 1.5 * np.sqrt(clean.var())[1:].max()
    assert np.abs(state.mean - TRUTH)[1:].max() < 4.5 * np.sqrt(state.var())[1:].max()


@pytest.mark.parametrize("likelihood", ROBUST, ids=name)
def test_good_rows_are_flagged_at_the_stated_rate_at_most(likelihood):
    X, y = rows(4000, 8)
    state = stream(X, y, likelihood, 500)
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], 4000, 1e-3)
    assert state.outliers <= high
    if np.isinf(likelihood.error_dof):
        assert state.outliers >= low


@pytest.mark.parametrize("likelihood", ROBUST, ids=name)
def test_a_stream_without_a_warm_up_neither_rejects_everything_nor_inflates_the_scale(likelihood):
    X, y = rows(2000, 9)
    for v0 in (None, 100.0):
        alg = kp.proximal_filter(LINEAR, ZERO, gamma=None, likelihood=likelihood, warmup=0)
        state = alg.init(np.zeros(4), v0)
        for start in range(0, 2000, 50):
            state = alg.step(state, X[start : start + 50], y[start : start + 50])
        batch = kp.refine(LINEAR, ZERO, (X, y), np.zeros(4), likelihood=likelihood)
        assert state.likelihood.scale == pytest.approx(batch.likelihood.scale, rel=0.1)
        assert np.abs((state.mean - batch.mean) / np.sqrt(np.diag(batch.cov))).max() < 1


def test_forgetting_follows_a_scale_that_changes():
    X, y = rows(3000, 10)
    y[1500:] = X[1500:] @ TRUTH + 3 * (y - X @ TRUTH)[1500:]
    faded, kept = (stream(X, y, Huber(), 50, forget=forget) for forget in (0.995, 1.0))
    assert 2.5 < faded.likelihood.scale < 3.5 and kept.likelihood.scale < 2.5
    assert faded.outliers < 10


@pytest.mark.slow
def test_a_stream_that_rejects_its_rows_says_so():
    X, y = rows(3000, 11)
    y[1000:] += 100.0  # everything changes after the warm-up
    with pytest.warns(RuntimeWarning, match=r"4\d% of the rows so far are outliers"):
        stream(X, y, Contaminated())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream(X, y, Contaminated(), forget=0.99)


def test_the_scale_in_the_middle_of_a_warm_up_is_that_of_its_rows():
    X, y = rows(300, 12, slice(None, None, 10))
    state = stream(X, y, Huber(), 300)
    batch = kp.refine(LINEAR, ZERO, (X, y), np.zeros(4), likelihood=Huber(), tol=1e-6)
    assert state.held is not None and state.held.settled and state.converged
    np.testing.assert_allclose(state.likelihood.scale, batch.likelihood.scale, rtol=1e-4)
    first = stream(X[:20], y[:20], Huber(), 5)  # before the first check, reading refines the rows
    few = kp.refine(LINEAR, ZERO, (X[:20], y[:20]), np.zeros(4), likelihood=Huber(), tol=1e-6)
    np.testing.assert_allclose(first.likelihood.scale, few.likelihood.scale, rtol=1e-4)
    assert first.outliers == few.sums[-2]


@pytest.mark.slow  # XLA compiles for half a minute
def test_a_step_after_the_warm_up_can_be_compiled():
    X, y = rows(1500, 13)
    alg = kp.proximal_filter(LINEAR, ZERO, gamma=None, likelihood=Huber())
    state = stream(X[:1400], y[:1400], Huber())
    plain = alg.step(state, X[1400:], y[1400:])
    with jax.enable_x64(True):
        compiled = jax.jit(alg.step)(jax.tree.map(jnp.asarray, state), jnp.asarray(X[1400:]), jnp.asarray(y[1400:]))
        np.testing.assert_allclose(compiled.mean, plain.mean, atol=0.01 * float(np.sqrt(plain.var()).max()))
        np.testing.assert_allclose(compiled.likelihood.scale, plain.likelihood.scale, rtol=1e-3)


@pytest.mark.parametrize("algorithm", ["refine", "proximal_filter", "pipg", "ipm", "sgd"])
@pytest.mark.parametrize("given", [kp.likelihoods.Bernoulli, "bernouli", 3], ids=str)
def test_something_else_than_a_likelihood_is_refused(algorithm, given):
    calls = {
        "refine": lambda: kp.refine(LINEAR, ZERO, rows(20), np.zeros(4), likelihood=given),
        "proximal_filter": lambda: kp.proximal_filter(LINEAR, ZERO, likelihood=given),
        "pipg": lambda: kp.pipg(LINEAR, ZERO, gamma=1.0, likelihood=given),
        "ipm": lambda: kp.ipm(LINEAR, gamma=1.0, likelihood=given),
        "sgd": lambda: kp.sgd(LINEAR, ZERO, alpha0=1.0, alpha1=1.0, likelihood=given),
    }
    hint = r"Give an object: Bernoulli\(\)" if isinstance(given, type) else ""
    with pytest.raises(ValueError, match=f"likelihood must be one of gaussian, .*or a Likelihood; got .*{hint}"):
        calls[algorithm]()


def test_a_recursion_that_cannot_learn_a_parameter_asks_for_it():
    with pytest.raises(ValueError, match=r"must have a scale here, as in Huber\(scale=1.0\)"):
        kp.ipm(LINEAR, gamma=1.0, likelihood="huber")
    with pytest.raises(ValueError, match=r"as in NegativeBinomial\(dispersion=1.0\)"):
        kp.pipg(LINEAR, ZERO, gamma=1.0, likelihood=NegativeBinomial())
    with pytest.raises(ValueError, match="weight_kind must be 'frequency'"):
        kp.refine(LINEAR, ZERO, rows(20), np.zeros(4), likelihood="huber", weight_kind="precision")


def test_a_robust_recursion_has_the_variance_of_its_scale():
    X, y = rows(400, 14)
    for scale in (1.0, 3.0):
        alg = kp.ipm(LINEAR, gamma=1.0, likelihood=Huber(threshold=50.0, scale=scale))
        state = kp.run(alg, alg.init(np.zeros(4), 1e4), X, scale * y).state
        least_squares = np.linalg.lstsq(X, scale * y, rcond=None)[0]
        np.testing.assert_allclose(state.mean, least_squares, atol=1e-3 * scale)
        np.testing.assert_allclose(state.var(), scale**2 * np.diag(np.linalg.inv(X.T @ X)), rtol=1e-3)
        np.testing.assert_allclose(alg.predict(state, X[0]).std, scale, rtol=0.02)
