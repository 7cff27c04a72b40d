"""What fixed work costs, counted and not timed: compilations, passes over the rows, operations, bytes."""

import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import kalprox as kp
from kalprox import Information, KalproxRegressor
from kalprox.base import memory
from kalprox.solvers.prox import prox


def rows(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + rng.normal(size=n)


def peak(function):
    """Bytes that NumPy and Python held at most during a call, besides those before it."""
    function()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Counted:
    """Rows as a source that counts how often it is gone over."""

    def __init__(self, X, y):
        self.rows, self.passes = kp.sources.ArraySource(X, y), 0

    def fold(self, part):
        self.passes += 1
        return self.rows.fold(part)


# ---- passes ----------------------------------------------------------------------------------------


def test_a_linear_model_takes_one_pass_and_everything_after_it_none():
    X, y = rows(2000, 4)
    source = Counted(X, y)
    model = KalproxRegressor(penalty="l1", alpha=5.0).fit_source(source, 4)
    model.path(), model.coef_std_, model.predict_interval(X), model.sample(3, 0)
    assert source.passes == 1


@pytest.mark.parametrize(("size", "most"), [(1.0, 12), (3.0, 16)])
def test_a_sigmoid_is_refined_in_a_few_passes(size, most):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 10))
    y = 1 / (1 + np.exp(-X @ (size * rng.normal(size=10)))) + 0.3 * rng.normal(size=5000)
    source = Counted(X, y)
    out = kp.refine(kp.models.GLM("sigmoid"), kp.regularizers.Ridge(0.1), source, np.zeros(10))
    assert out.converged and source.passes == out.passes <= most


def test_newtons_method_takes_the_steps_of_newton_and_one_pass_that_sees_the_end():
    X, f = rows(20_000, 5)
    y = (np.random.default_rng(1).random(len(f)) < 1 / (1 + np.exp(-f))).astype(float)
    theta, steps = np.zeros(5), 0
    while True:
        p = 1 / (1 + np.exp(-X @ theta))
        step = np.linalg.solve(X.T @ (X * (p * (1 - p))[:, None]) + np.eye(5), X.T @ (y - p) - theta)
        theta, steps = theta + step, steps + 1
        if np.linalg.norm(step) <= 1e-12 * np.linalg.norm(theta):
            break
    source = Counted(X, y)
    bernoulli = kp.likelihoods.Bernoulli()
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Ridge(1.0), source, np.zeros(5), likelihood=bernoulli)
    assert fit.converged and source.passes == fit.passes <= steps + 1
    np.testing.assert_allclose(fit.mean, theta, rtol=1e-11)


@pytest.mark.parametrize("size", [1.0, 100.0, 1e6])
def test_counts_of_any_size_are_refined_in_a_few_passes(size):
    X, f = rows(5000, 4)
    y = np.random.default_rng(1).poisson(size * np.exp(f / 2)).astype(float)
    source, X = Counted(np.column_stack([np.ones(5000), X]), y), np.column_stack([np.ones(5000), X])
    how = {"likelihood": kp.likelihoods.Poisson()}
    fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), source, np.zeros(5), **how)
    assert fit.converged and source.passes == fit.passes <= 9
    np.testing.assert_allclose(X.T @ (y - np.exp(X @ fit.mean)), 0, atol=1e-9 * np.abs(X.T @ y).max())
    again = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), source, fit.mean, **how)  # a good start is kept
    assert again.passes <= 2


# ---- calls -----------------------------------------------------------------------------------------


def test_a_batch_of_few_columns_does_not_ask_for_the_memory_of_the_machine(monkeypatch):
    X, y = rows(64, 6)
    model = KalproxRegressor(penalty="ridge").fit(X, y)
    monkeypatch.setattr(memory, "memory_of_machine", lambda: pytest.fail("it is read from a file"))
    model.partial_fit(X, y).fit(X, y)


ONE_ROW = {  # two for each lock, which a fork may take before threads that learn, and three to make a block
    "gaussian": (KalproxRegressor, {}, "predict", 42),
    "l1": (KalproxRegressor, {"penalty": "l1"}, "predict", 42),
    "poisson": (KalproxRegressor, {"likelihood": "poisson"}, "predict", 79),
    "bernoulli": (kp.KalproxClassifier, {}, "predict_proba", 87),
}
FILTER_MADE = 2100  # calls, after 1% more rows, if the zeros of a penalty are held in between


@pytest.mark.parametrize("kind", ONE_ROW)
def test_a_row_takes_few_calls_of_python(kind):
    make, settings, predict, most = ONE_ROW[kind]
    X, y = rows(4200, 6)
    y = y if make is KalproxRegressor and not settings.get("likelihood") else (y > 0).astype(float)
    model, calls = make(**settings).fit(X[:4000], y[:4000]), []

    def count(frame, event, argument):
        calls[-1] += event == "call"

    for i in range(4000, 4100):
        calls.append(0)
        sys.setprofile(count)
        try:
            getattr(model, predict)(X[i : i + 1])
            model.partial_fit(X[i : i + 1], y[i : i + 1])
        finally:
            sys.setprofile(None)
    later = calls[50:]  # when the filter is made, and no fold is near
    assert np.median(later) <= most
    assert sum(one > 2 * most for one in later) <= (kind == "l1") and max(later) <= FILTER_MADE


# ---- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fold_holds_triangles_and_one_chunk_however_many_rows(d, weighted):
    p, chunk = d + 2, 512
    found = []
    for n in (20_000, 80_000):
        X, y = rows(n, d)
        w = np.ones(n) if weighted else None
        # Beside the chunk and a dozen triangles: y, weights and their roots, which are vectors.
        vectors = 8 * n * (5 if weighted else 3)
        found.append(peak(lambda X=X, y=y, w=w: Information.from_rows(X, y, w)) - vectors)
    assert max(found) < 8 * (12 * p * p + 2 * chunk * p) + 200_000, found


@pytest.mark.slow
def test_a_stream_s_estimator_does_not_grow():
    X, y = rows(40_000, 20)
    model = KalproxRegressor(penalty="ridge")

    def stream(n):
        for i in range(0, n, 1000):
            model.partial_fit(X[i : i + 1000], y[i : i + 1000])

    stream(40_000)  # so that all that follow fill the buffer of rows
    short, long = peak(lambda: stream(40_000)), peak(lambda: [stream(40_000) for _ in range(3)])
    assert long < short + 50_000


@pytest.mark.slow
def test_predictions_of_sparse_rows_are_made_in_blocks():
    X = scipy.sparse.random(200_000, 300, 0.01, format="csr", random_state=0)
    model = KalproxRegressor(penalty="ridge").fit(X, np.asarray(X.sum(axis=1)).ravel())
    assert peak(lambda: model.predict(X, return_std=True)) < X.shape[0] * 300 * 8 / 4


# ---- operations, as XLA counts them ---------------------------------------------------------------


def compiled(alg, d):
    state = alg.init(jnp.zeros(d, jnp.float32), 0.1)
    return jax.jit(alg.step).lower(state, jnp.ones(d, jnp.float32), jnp.float32(1)).compile()


def growth(make, counted):
    """The power of d with which a count grows, between d = 64 and d = 256."""
    small, large = (counted(compiled(make(), d)) for d in (64, 256))
    return np.log(large / small) / np.log(4)


GLM = kp.models.GLM("sigmoid")
UPDATE = lambda: kp.ipm(GLM, gamma=1.0)  # noqa: E731
LITERAL = lambda: kp.pipg(GLM, kp.regularizers.SmoothL1(0.1, 0.5), gamma=0.1, q=1e-4)  # noqa: E731


@pytest.mark.slow
@pytest.mark.parametrize(("make", "power"), [(UPDATE, 2.0), (LITERAL, 3.0)], ids=["update", "literal"])
def test_operations_of_a_row_grow_as_they_should(make, power):
    assert growth(make, lambda program: program.cost_analysis()["flops"]) < power + 0.1


@pytest.mark.parametrize("make", [UPDATE, LITERAL], ids=["update", "literal"])
def test_a_row_needs_a_few_matrices_of_memory(make):
    d = 128
    used = compiled(make(), d).memory_analysis()
    assert used.temp_size_in_bytes + used.output_size_in_bytes < 8 * 4 * d * d


def test_the_literal_row_has_two_products_of_matrices():
    d = 100
    flops = compiled(LITERAL(), d).cost_analysis()["flops"]
    assert 4 * d**3 <= flops < 4 * d**3 * 1.1 + 40 * d**2


# ---- compilations ----------------------------------------------------------------------------------


def test_nothing_compiles_twice():
    found = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: found.append(event) if event.endswith("backend_compile_duration") else None
    )
    X, y = rows(3000, 3)
    alg = kp.pipg(GLM, kp.regularizers.Ridge(0.1), gamma=0.1)
    kp.run(alg, alg.init(np.zeros(3), 0.1), X, y)
    before = len(found)
    for n, gamma, lam in ((2999, 0.2, 0.1), (17, 0.1, 0.3), (3000, 0.3, 0.01)):
        other = kp.pipg(GLM, kp.regularizers.Ridge(lam), gamma=gamma)
        kp.run(other, other.init(np.zeros(3), 0.2), X[:n], y[:n])
    assert before > 0 and len(found) == before


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [kp.likelihoods.Poisson(), kp.likelihoods.Bernoulli()], ids=repr)
def test_matching_is_a_short_program(likelihood):
    """Newton's method for the mode, unrolled, was 5,000 to 7,000 lines, which took two minutes to compile."""
    numbers = jnp.ones(16), jnp.zeros(16), jnp.ones(16)
    program = jax.jit(likelihood.matched).lower(*numbers)
    assert program.as_text().count("\n") < 500
    found = program.compile()(*numbers)
    expected = likelihood.matched(*(np.asarray(a, float) for a in numbers))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    slope = jax.grad(lambda f: likelihood.matched(numbers[0], f, numbers[2])[0].sum())(numbers[1])
    step = (likelihood.matched(*(np.array([a]) for a in (1.0, 1e-5, 1.0)))[0] - expected[0][0])[0] / 1e-5
    np.testing.assert_allclose(slope, step, rtol=1e-3)


@pytest.mark.slow
def test_jax_arrays_outside_jit_compile_once():
    """Branches of a sum of information and of its reading too, which JAX would compile anew at each call."""
    found = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: found.append(event) if event.endswith("backend_compile_duration") else None
    )
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(0.1), gamma=1.0)

    def read(seed):
        X, y = (jnp.asarray(a, jnp.float32) for a in rows(40, 3, seed))
        state = alg.step(alg.init(jnp.zeros(3, jnp.float32), 1.0), X, y)
        return state.mean, state.var()

    read(0)
    before = len(found)
    read(1), read(2)
    assert before > 0 and len(found) == before


# ---- batches ---------------------------------------------------------------------------------------


def primitives(jaxpr, chosen=False):
    """The names of a program's operations, and whether each is inside a branch of a `cond` for a true condition."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name, chosen
        leaves = jax.tree.leaves(equation.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr"))
        inner = [getattr(value, "jaxpr", value) for value in leaves]
        for i, part in enumerate(part for part in inner if hasattr(part, "eqns")):
            yield from primitives(part, chosen or (equation.primitive.name == "cond" and i > 0))


@pytest.mark.slow
def test_a_fleet_looks_for_singular_values_only_where_one_of_it_is_in_doubt():
    """On a GPU that is 4 ms a filter at d = 50 against 6 us: batched, a `cond` works out both of its branches."""
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(0.1), gamma=1.0)

    def one(X, y):
        state = alg.step(alg.init(jnp.zeros(3)), X, y)
        return state.mean, state.var()

    X, y = (np.stack(a) for a in zip(*(rows(40, 3, seed) for seed in range(5)), strict=True))
    with jax.enable_x64(True):
        program = list(primitives(jax.make_jaxpr(jax.vmap(one))(X, y).jaxpr))
        single = jax.jit(one)
        batched, alone = jax.jit(jax.vmap(one))(X, y), [single(jnp.asarray(X[i]), jnp.asarray(y[i])) for i in range(5)]
    assert ("svd", True) in program and ("svd", False) not in program and ("eigh", False) not in program
    assert ("qr", True) in program and ("qr", False) not in program  # three quarters of the time at d = 50
    for i in range(2):
        np.testing.assert_allclose(batched[i], jnp.stack([a[i] for a in alone]), rtol=1e-12)


@pytest.mark.slow
def test_a_fleet_of_which_one_is_in_doubt_is_right_about_all():
    """Among five, one with a column that is another's copy: solved by its singular values, the others by their own."""
    X, y = (np.stack(a) for a in zip(*(rows(40, 3, seed) for seed in range(5)), strict=True))
    X[2, :, 1] = 2 * X[2, :, 0]

    def one(X, y):
        info = Information.from_rows(X, y)
        return info.solve(), info.rank()

    with jax.enable_x64(True):
        theta, rank = jax.vmap(one)(jnp.asarray(X), jnp.asarray(y))
    assert rank.tolist() == [3, 3, 2, 3, 3]
    for i in range(5):
        np.testing.assert_allclose(theta[i], np.linalg.lstsq(X[i], y[i], rcond=None)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_choice_that_is_rarely_made_has_gradients():
    """Backwards too, as `lax.cond` has: of the estimate by lam, and by y, in a batch and alone."""
    X, y = (np.stack(a) for a in zip(*(rows(40, 3, seed) for seed in range(2)), strict=True))

    def by_lam(lam, X, y):
        return prox(Information.from_rows(X, y).R, jnp.ones(3), kp.regularizers.Ridge(lam)).theta.sum()

    def by_y(y, X):
        return Information.from_rows(X, y).solve().sum()

    with jax.enable_x64(True):
        X, y, lam = jnp.asarray(X), jnp.asarray(y), jnp.asarray(0.5)
        for function, rest in ((by_lam, (lam, X, y)), (by_y, (y, X))):
            axes = (None if rest[0] is lam else 0, *[0] * (len(rest) - 1))
            batched = jax.jit(jax.vmap(jax.grad(function), axes))(*rest)
            forwards = jax.jit(jax.vmap(jax.jacfwd(function), axes))(*rest)
            gradient = jax.jit(jax.grad(function))
            alone = jnp.stack(
                [gradient(*(a if k is None else a[i] for a, k in zip(rest, axes, strict=True))) for i in range(2)]
            )
            np.testing.assert_allclose(batched, forwards, rtol=1e-9)
            np.testing.assert_allclose(batched, alone, rtol=1e-9)
        step = 1e-6
        numeric = (by_lam(lam + step, X[0], y[0]) - by_lam(lam - step, X[0], y[0])) / (2 * step)
        np.testing.assert_allclose(jax.jit(jax.grad(by_lam))(lam, X[0], y[0]), numeric, rtol=1e-6)
