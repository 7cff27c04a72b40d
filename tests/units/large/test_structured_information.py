"""Structured information against dense formulas: exact where each structure is, and never with less precision."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kalprox.large import information as structured
from kalprox.large.information import noise_of_predictions, piece_rows, rss_with, with_room
from kalprox.large.prox import minimise
from kalprox.regularizers import L1, Box, ElasticNet, GroupL1, Quadratic, Ridge, SmoothL1, Weighted, Zero
from kalprox.solvers.prox import prox
from kalprox.structures import Blocks, Dense, Diagonal, LastLayer, LowRank, structure_of

D = 7


def rows(n=60, d=D, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=n), rng.uniform(0.5, 2, n), rng.normal(size=d), rng.uniform(1, 3, d)


def dense(X, y, w, m0, p0):
    """The precision, the mean, and the smallest sum of squares of rows and prior."""
    P = np.diag(np.broadcast_to(p0, m0.shape)) + X.T @ (w[:, None] * X)
    m = np.linalg.solve(P, p0 * m0 + X.T @ (w * y))
    return P, m, (w * (y - X @ m) ** 2).sum() + (p0 * (m - m0) ** 2).sum()


def agrees(info, P, m, rss, X, tol=1e-9):
    V = np.linalg.inv(P)
    np.testing.assert_allclose(info.mean, m, rtol=tol, atol=tol)
    np.testing.assert_allclose(info.apply(np.eye(len(m))), P, rtol=tol, atol=tol * P.max())
    np.testing.assert_allclose(info.solve(X), X @ V, rtol=tol, atol=tol)
    np.testing.assert_allclose(info.variances(), V.diagonal(), rtol=1e3 * tol)
    np.testing.assert_allclose(info.leverage(X), np.einsum("ij,jk,ik->i", X, V, X), rtol=1e3 * tol)
    assert float(info.rss) == pytest.approx(rss, rel=tol)


@pytest.mark.parametrize(
    "structure", [LowRank(7), LowRank(20), Blocks([7]), LastLayer(3, rank=7), LastLayer([0, 2, 5], rank=7)]
)
def test_structures_are_exact_where_all_directions_have_a_place(structure):
    X, y, w, m0, p0 = rows()
    start = structure.start(m0, p0)
    agrees(start.fold(X, y, w), *dense(X, y, w, m0, p0), X)
    one = start
    for i in range(len(X)):
        one = one.fold(X[i : i + 1], y[i : i + 1], w[i : i + 1])
    agrees(one, *dense(X, y, w, m0, p0), X)
    assert float(one.rows) == pytest.approx(w.sum()) and float(one.squares) == pytest.approx(w.sum())


@pytest.mark.parametrize("structure", [Diagonal(), LowRank(1), LastLayer(1, rank=1), Blocks([1])])
def test_one_parameter(structure):
    X, y, w, m0, p0 = rows(d=1)
    agrees(structure.start(m0, p0).fold(X, y, w), *dense(X, y, w, m0, p0), X)


def test_the_mean_of_a_block_is_exact_for_the_precision_before_it():
    X, y, w, m0, p0 = rows(n=piece_rows(0))
    _, m, rss = dense(X, y, w, m0, p0)
    for structure in (Diagonal(), LowRank(2), Blocks([3, 4]), LastLayer(3, rank=2)):
        info = structure.start(m0, p0).fold(X, y, w)
        np.testing.assert_allclose(info.mean, m, rtol=1e-10)
        assert float(info.rss) == pytest.approx(rss)


def test_blocks_are_exact_for_rows_that_meet_one_block_each():
    X, y, w, m0, p0 = rows()
    X[::2, :3], X[1::2, 3:] = 0, 0
    info = Blocks([3, 4]).start(m0, p0).fold(X, y, w)
    agrees(info, *dense(X, y, w, m0, p0), X)
    assert float(info.dropped) < 1e-12


def test_diagonal_is_exact_for_orthogonal_rows():
    X, y, w, m0, p0 = rows()
    X = np.where(np.arange(D) == (np.arange(len(X)) % D)[:, None], X, 0)
    info = Diagonal().start(m0, p0).fold(X, y, w)
    agrees(info, *dense(X, y, w, m0, p0), X)
    assert float(info.dropped) < 1e-12


@pytest.mark.parametrize("structure", [Diagonal(), LowRank(2), Blocks([3, 4]), LastLayer(3, rank=2)])
def test_every_entry_that_a_structure_keeps_is_that_of_all_rows(structure):
    X, y, w, m0, p0 = rows(n=200)
    info = structure.start(m0, p0).fold(X, y, w)
    P = dense(X, y, w, m0, p0)[0]
    mine = info.apply(np.eye(D))
    np.testing.assert_allclose(mine.diagonal(), P.diagonal(), rtol=1e-10)
    if isinstance(structure, Blocks):
        np.testing.assert_allclose(mine[3:, 3:], P[3:, 3:], rtol=1e-9, atol=1e-9)
    if isinstance(structure, LastLayer):
        np.testing.assert_allclose(mine[4:, 4:], P[4:, 4:], rtol=1e-9, atol=1e-9)
    assert np.linalg.eigvalsh(mine).min() > 0.9 * p0.min()
    assert 0 < float(info.dropped) <= 1


def test_nothing_is_dropped_where_the_rank_is_enough():
    X, y, w, m0, p0 = rows(n=300)
    few = X[:, :3] @ np.random.default_rng(1).normal(size=(3, D))
    info = LowRank(3).start(m0, p0).fold(few, y, w)
    assert float(info.dropped) == 0
    agrees(info, *dense(few, y, w, m0, p0), X)


@pytest.mark.parametrize("structure", [LowRank(7), Blocks([7]), LastLayer(3, rank=7)])
def test_forgetting_fades_the_rows_and_not_the_prior(structure):
    X, y, w, m0, p0 = rows()
    info = structure.start(m0, p0).fold(X[:40], y[:40], w[:40]).forget(0.3).fold(X[40:], y[40:], w[40:])
    v = w * np.where(np.arange(len(w)) < 40, 0.3, 1)
    agrees(info, *dense(X, y, v, m0, p0), X)
    assert float(info.rows) == pytest.approx(v.sum())
    assert float(info.squares) == pytest.approx((w[:40] * 0.09).sum() + w[40:].sum())
    for _ in range(200):
        info = info.forget(0.5)
    np.testing.assert_allclose(info.mean, m0, rtol=1e-12)
    np.testing.assert_allclose(info.variances(), 1 / p0, rtol=1e-9)


@pytest.mark.parametrize("structure", [Diagonal(), LowRank(2), Blocks([3, 4]), LastLayer(3, rank=2)])
def test_draws_reproduce_the_covariance(structure):
    X, y, w, m0, p0 = rows()
    info = structure.start(m0, p0).fold(X, y, w)
    V = np.linalg.inv(info.apply(np.eye(D)))
    drawn = info.precision.draws(np.eye(info.precision.normals))  # each column of the root: exact
    np.testing.assert_allclose(drawn.T @ drawn, V, rtol=1e-9, atol=1e-12)
    white = info.factor(Zero(), info.mean).whitened(X)
    np.testing.assert_allclose(white @ white.T, X @ V @ X.T, rtol=1e-9, atol=1e-12)


PENALTIES = [
    Ridge(2.0),
    L1(6.0),
    ElasticNet(5.0, 3.0),
    Box(-0.1, 0.15),
    GroupL1(4.0, [0, 0, 1, 1, 1, -1, 2]),
    Weighted(L1(6.0), np.array([0.0, 1, 2, 1, 0.5, 1, 1])),
    SmoothL1(5.0, 0.1),
    Quadratic(np.random.default_rng(3).normal(size=(3, D))),
    L1(6.0).with_free_intercept(D - 1),
]


@pytest.mark.parametrize("structure", [Diagonal(), LowRank(2), Blocks([3, 4]), LastLayer(3, rank=2)], ids=repr)
@pytest.mark.parametrize("g", PENALTIES, ids=lambda g: type(g).__name__)
def test_the_proximal_step_is_that_of_the_dense_metric(g, structure):
    X, y, w, m0, p0 = rows()
    info = structure.start(m0, p0).fold(X, y, w)
    P = info.apply(np.eye(D))
    R = np.linalg.cholesky((P + P.T) / 2).T
    found, expected = minimise(info.precision, info.mean, g), prox(R, R @ info.mean, g)
    assert found.converged and found.residual < 1e-11
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(found.free, expected.free)
    V = np.zeros((D, D))
    free = np.flatnonzero(np.asarray(expected.free))
    H = g.hessian(found.theta)
    H = np.diag(H) if H.ndim == 1 else H
    if isinstance(g, GroupL1) and info.precision.base.dense:
        H = np.diag(H.diagonal())  # what dense blocks keep of it
    V[np.ix_(free, free)] = np.linalg.inv((P + H)[np.ix_(free, free)])
    factor = info.factor(g, found.theta)
    np.testing.assert_allclose(factor.variances(), V.diagonal(), rtol=1e-7, atol=1e-14)
    np.testing.assert_allclose(factor.leverage(X), np.einsum("ij,jk,ik->i", X, V, X), rtol=1e-7, atol=1e-14)
    np.testing.assert_allclose(factor.covariance(), V, rtol=1e-6, atol=1e-10)
    drawn = factor.draws(np.eye(factor.normals))
    np.testing.assert_allclose(drawn.T @ drawn, V, rtol=1e-6, atol=1e-10)


def test_the_covariance_after_forgetting_is_that_of_faded_rows():
    X, y, _w, m0, p0 = rows()
    share = 0.9 ** np.arange(len(X))[::-1]
    info = LowRank(D).start(m0, p0).fold(X, y, share, share, share**2)
    P = dense(X, y, share, m0, p0)[0]
    c, V = (share**2).sum() / share.sum(), np.linalg.inv(P)
    C = V @ (c * (P - np.diag(p0)) + np.diag(p0)) @ V
    factor = info.factor(Zero(), info.mean)
    np.testing.assert_allclose(factor.covariance(), C, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(factor.variances(), C.diagonal(), rtol=1e-8)
    np.testing.assert_allclose(factor.leverage(X), np.einsum("ij,jk,ik->i", X, C, X), rtol=1e-8)
    drawn = factor.draws(np.eye(factor.normals))
    np.testing.assert_allclose(drawn.T @ drawn, C, rtol=1e-8, atol=1e-12)


def test_single_precision_keeps_its_digits():
    X, y, w, m0, _p0 = rows(n=500)
    P, m, _ = dense(X, y, w, m0, 0.1)
    V, narrow = np.linalg.inv(P), [a.astype(np.float32) for a in (X, y, w)]
    info = LowRank(D).start(m0.astype(np.float32), np.float32(0.1)).fold(*narrow)
    assert info.mean.dtype == np.float32
    assert info.precision.rounding < 1e-2
    assert (np.abs(info.mean - m) / np.sqrt(V.diagonal())).max() < info.precision.rounding
    np.testing.assert_allclose(info.leverage(narrow[0]), np.einsum("ij,jk,ik->i", X, V, X), rtol=1e-4)


def test_a_prior_too_vague_for_single_precision_is_seen():
    X, y, w, m0, _ = (a.astype(np.float32) for a in rows(n=500))
    info = LowRank(D).start(m0, np.float32(1e-5)).fold(100 * X, y, w)
    assert info.precision.rounding > 1
    assert np.isfinite(info.mean).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "structure",
    [
        LowRank(2),
        pytest.param(LastLayer(3, rank=2), marks=pytest.mark.slow),
        pytest.param(Diagonal(), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_jax_arrays_give_the_same_and_compile_once(structure):
    X, y, w, m0, p0 = rows(n=40)
    with jax.enable_x64(True):
        mine, theirs = structure.start(m0, p0), structure.start(jnp.asarray(m0), jnp.asarray(p0))
        before = None
        for i in range(0, 40, 4):
            mine = with_room(mine.fold(X[i : i + 4], y[i : i + 4], w[i : i + 4]), 100)  # truncates, as on JAX arrays
            theirs = theirs.fold(*(jnp.asarray(a[i : i + 4]) for a in (X, y, w)))
            count = _compiled_append()._cache_size()
            assert before in (None, count)
            before = count
        np.testing.assert_allclose(theirs.mean, mine.mean, rtol=1e-9)
        np.testing.assert_allclose(theirs.leverage(jnp.asarray(X)), mine.leverage(X), rtol=1e-9)
        np.testing.assert_allclose(theirs.variances(), mine.variances(), rtol=1e-9)
        assert float(theirs.rss) == pytest.approx(float(mine.rss))
        assert float(theirs.dropped) == pytest.approx(float(mine.dropped))


def _compiled_append():
    from kalprox.base.control import compiled

    return compiled(structured.append.__wrapped__)


@pytest.mark.slow
def test_rows_on_jax_arrays_are_truncated_in_the_step_that_learns_them():
    X, y, w, m0, p0 = rows(n=388)
    with jax.enable_x64(True):
        on_jax, plain = LowRank(2).start(jnp.asarray(m0), jnp.asarray(p0)), LowRank(2).start(m0, p0)
        for start, stop in ((0, 64), (64, 68), (68, 132)):  # a piece of 64 rows, a few, and a piece again
            part = [a[start:stop] for a in (X, y, w)]
            on_jax, plain = on_jax.fold(*map(jnp.asarray, part)), with_room(plain.fold(*part), 388)
            assert len(on_jax.precision.W) == 2
            np.testing.assert_allclose(on_jax.mean, plain.mean, rtol=1e-9)
            np.testing.assert_allclose(on_jax.variances(), plain.variances(), rtol=1e-9)
            assert float(on_jax.dropped) == pytest.approx(float(plain.dropped))
        folded = jax.jit(lambda info, *part: info.fold(*part))(on_jax, *map(jnp.asarray, (X[:4], y[:4], w[:4])))
        assert folded.precision.W.shape == on_jax.precision.W.shape  # as a loop that is traced needs it
        np.testing.assert_allclose(folded.mean, plain.fold(X[:4], y[:4], w[:4]).mean, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("on_jax", [False, True])
def test_a_quadratic_form_is_that_of_the_matrix(on_jax):
    X, y, w, m0, p0 = rows(n=30)
    with jax.enable_x64(True):
        asarray = jnp.asarray if on_jax else np.asarray
        info = LowRank(3).start(asarray(m0), asarray(p0)).fold(*(asarray(a) for a in (X, y, w)))
        x = asarray(np.random.default_rng(0).normal(size=len(m0)))
        assert float(info.quadratic(x)) == pytest.approx(float(x @ info.apply(x)), rel=1e-12)


def test_a_row_of_weight_zero_may_hold_anything():
    X, y, w, m0, p0 = rows(n=10)
    X[3], w[3] = np.nan, 0
    keep = np.arange(10) != 3
    found = LowRank(3).start(m0, p0).fold(X, y, w)
    np.testing.assert_allclose(found.mean, LowRank(3).start(m0, p0).fold(X[keep], y[keep], w[keep]).mean, rtol=1e-10)


def test_informations_can_be_pickled():
    X, y, w, m0, p0 = rows()
    info = LastLayer(3, rank=2).start(m0, p0).fold(X, y, w)
    again = pickle.loads(pickle.dumps(info))
    np.testing.assert_array_equal(again.fold(X, y, w).mean, info.fold(X, y, w).mean)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LowRank(0), "rank must be a whole number"),
        (lambda: LowRank(2.5), "rank must be a whole number"),
        (lambda: Blocks([]), "sizes must be a list"),
        (lambda: Blocks([2, 0]), "sizes must be a list"),
        (lambda: Blocks([2, 2]).start(np.zeros(5), 1.0), "must add up to the number of parameters, 5; got 4"),
        (lambda: LastLayer(0), "last must be the number"),
        (lambda: LastLayer([1, 1]), "last must be the number"),
        (lambda: LastLayer(9).start(np.zeros(5), 1.0), "last must fit the number of parameters, 5"),
        (lambda: LastLayer([7]).start(np.zeros(5), 1.0), "last must fit the number of parameters, 5"),
        (lambda: structure_of("low-rank"), "structure must be 'dense', 'diagonal', 'low_rank', or one of"),
        (lambda: Diagonal().start(np.zeros(5), 0.0), "precision must be finite and > 0"),
        (lambda: Diagonal().start(np.zeros(5), np.ones(4)), "precision must be a number or have shape"),
        (lambda: Diagonal().start(np.zeros(2), 1.0).fold(np.ones((1, 3)), np.ones(1)), "D must have shape"),
        (lambda: Diagonal().start(np.zeros(2), 1.0).fold(np.full((1, 2), np.nan), np.ones(1)), "D must be finite"),
        (lambda: Diagonal().start(np.zeros(2), 1.0).forget(1.5), "rho must be at most 1"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_dense_structure_is_another_information():
    with pytest.raises(TypeError, match=r"kalprox.Information"):
        Dense().start(np.zeros(2), 1.0)


@pytest.mark.parametrize("lengths", [[1] * 12, [5, 7], [3, 1, 8]])
def test_late_errors_weigh_more_once_correlations_were_dropped(lengths):
    squares, n = np.arange(1.0, 13.0) ** 2, 0
    rss = plain = 0.0
    for b in lengths:
        more = squares[n : n + b].sum()
        rss, plain = rss_with(rss, n, 0.5, more, b), rss_with(plain, n, 0.0, more, b)
        n += b
    assert plain == squares.sum()
    ends = np.cumsum([0, *lengths]) / n
    means = [squares[i : i + b].mean() for i, b in zip((ends * n).astype(int), lengths, strict=False)]
    assert rss / n == pytest.approx(np.diff(ends**8) @ means, rel=1e-12)
    dof = [noise_of_predictions(1.0, 128, 0.0, dropped).dof for dropped in (0.0, 0.5)]
    assert dof == [128, 30]  # 15 / 64 of them: (sum of weights)^2 / sum of their squares
