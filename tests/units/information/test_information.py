"""The information monoid: it adds, it keeps QR's digits, and it refuses rather than return nonsense."""

import itertools
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_linear as reference
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from kalprox.information import Information, NotContained, merge
from kalprox.linalg import fold

EPS = np.finfo(float).eps


@st.composite
def problems(draw, min_rows=1):
    """Rows of any number, conditioning, column scale 1e-8 to 1e8, and weights (0 to 3, or none)."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d, n = draw(st.integers(1, 8)), draw(st.integers(min_rows, 120))
    X = rng.standard_normal((n, d)) + draw(st.sampled_from([0.0, 1.0, 30.0]))
    if d > 1:
        X[:, -1] = X[:, 0] + draw(st.sampled_from([1.0, 1e-2, 1e-4])) * X[:, -1]
    X *= 10.0 ** rng.integers(-8, 9, d)
    y = X @ rng.standard_normal(d) / np.abs(X).max() + rng.standard_normal(n)
    weights = draw(st.sampled_from([None, "some"])) and rng.integers(0, 4, n).astype(float)
    return X, y, weights, rng


def stream(X, y, weights=None, cuts=None, start=None):
    """Fold the blocks between cuts, one by one; row by row without cuts."""
    info = start or Information.zero(X.shape[1], None if y.ndim == 1 else y.shape[1], dtype=X.dtype)
    edges = range(len(X) + 1) if cuts is None else [0, *cuts, len(X)]
    for i, j in itertools.pairwise(edges):
        info = info.fold(X[i:j], y[i:j], None if weights is None else weights[i:j])
    return info


def assert_same(a, b, rtol=1e-9):
    """Same precision, and same estimate in the metric of the data, with and without intercept.

    Columns are scaled to length one; the estimate is compared through R theta, that is, in units of
    its own standard deviation (the square root of the precision), where it is determined.
    """
    assert float(a.rows) == pytest.approx(float(b.rows), rel=rtol)
    for u, v in ((a, b), (a.centered(), b.centered()), (a.with_intercept(), b.with_intercept())):
        P, Q = (np.asarray(m.precision(), float) for m in (u, v))
        scale = np.sqrt(np.maximum(np.diagonal(Q), np.finfo(float).tiny))
        np.testing.assert_allclose(P / scale / scale[:, None], Q / scale / scale[:, None], rtol=0, atol=rtol)
        length = np.sqrt(np.asarray(v.residual(np.zeros_like(v.z))))  # of y
        length = np.where(length > 0, length, 1)
        moments = [(np.asarray(m.R.T @ m.z).T / scale).T / length for m in (u, v)]
        np.testing.assert_allclose(*moments, rtol=0, atol=rtol)
        least = [np.asarray(m.residual(m.solve())) / length**2 for m in (u, v)]
        np.testing.assert_allclose(*least, rtol=rtol, atol=rtol * 1e-3)


def assert_same_answer(a, b, rtol=1e-9):
    """Same mean and same covariance of determined coefficients, columns scaled to length one."""
    for u, v in ((a, b), (a.centered(), b.centered())):
        if v.rank() < v.R.shape[1] or u.rank() < u.R.shape[1]:
            continue
        scale = np.sqrt((v.R**2).sum(axis=0))
        roots = [scipy.linalg.solve_triangular(m.R / scale, np.eye(len(scale))) for m in (u, v)]
        if np.linalg.norm(roots[1]) > 1e5:  # rounding of the rows themselves is then above rtol
            continue
        cov, expected = (root @ root.T for root in roots)
        np.testing.assert_allclose(cov, expected, rtol=0, atol=rtol * np.abs(expected).max())
        theta, expected = u.solve() * scale, v.solve() * scale
        error = np.sqrt(np.diagonal(cov) * v.rss / v.rows)  # the standard error: what a coefficient of zero is worth
        np.testing.assert_allclose(theta, expected, rtol=0, atol=rtol * (np.abs(expected) + error).max())


@pytest.mark.slow
@given(problems(), st.data())
@settings(max_examples=60, deadline=None)
def test_stream_is_batch_is_any_chunking_permutation_and_tree(problem, data):
    X, y, weights, rng = problem
    batch = Information.from_rows(X, y, weights)
    assert (np.diagonal(batch.T) >= 0).all()
    assert not np.tril(batch.T, -1).any()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(X)), max_size=5)))
    order = rng.permutation(len(X))
    blocks = [
        Information.from_rows(X[i:j], y[i:j], None if weights is None else weights[i:j])
        for i, j in itertools.pairwise([0, *cuts, len(X)])
    ]
    left = blocks[0]
    for block in blocks[1:]:
        left = merge(left, block)
    for other in (
        stream(X, y, weights),
        stream(X, y, weights, cuts),
        Information.from_rows(X[order], y[order], None if weights is None else weights[order]),
        merge(*blocks),
        merge(*blocks[::-1]),
        left,
    ):
        assert_same(other, batch)
        assert_same_answer(other, batch)


@given(problems())
@settings(max_examples=40, deadline=None)
def test_weights_are_repetitions(problem):
    X, y, _, rng = problem
    weights = rng.integers(0, 4, len(X))
    weighted = Information.from_rows(X, y, weights.astype(float))
    repeated = Information.from_rows(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert weighted.rows == weights.sum()
    assert_same(weighted, repeated)
    seen = weights > 0
    without = Information.from_rows(X[seen], y[seen], weights[seen].astype(float))
    assert_bits(weighted, without)


def assert_bits(a, b):
    for field in ("T", "shift", "rows"):
        np.testing.assert_array_equal(np.asarray(getattr(a, field)), np.asarray(getattr(b, field)))


@given(problems())
@settings(max_examples=30, deadline=None)
def test_zero_is_the_identity_bit_for_bit(problem):
    X, y, weights, _ = problem
    info, zero = Information.from_rows(X, y, weights), Information.zero(X.shape[1])
    assert_bits(merge(zero, info), info)
    assert_bits(merge(info, zero), info)
    assert_bits(merge(zero, zero, info, zero), info)
    assert_bits(info.fold(X[:0], y[:0]), info)
    assert_bits(info.fold(X[:1], y[:1], np.zeros(1)), info)
    assert_bits(info.subtract(zero), info)


@given(problems())
@settings(max_examples=30, deadline=None)
def test_views_are_what_they_say(problem):
    X, y, weights, rng = problem
    info = Information.from_rows(X, y, weights)
    w = np.ones(len(X)) if weights is None else weights
    theta = rng.standard_normal(X.shape[1]) / np.abs(X).max(axis=0)
    direct = (w * (y - X @ theta) ** 2).sum()
    scale = (w * (np.abs(y) + np.abs(X) @ np.abs(theta)) ** 2).sum()
    assert info.residual(theta) == pytest.approx(direct, abs=1e-12 * scale)
    b = 0.7
    direct = (w * (y - b - X @ theta) ** 2).sum()
    scale = (w * (1 + np.abs(y) + np.abs(X) @ np.abs(theta)) ** 2).sum()
    assert info.with_intercept().residual(np.array([b, *theta])) == pytest.approx(direct, abs=1e-12 * scale)
    free = direct - w.sum() * (b - info.y_mean + info.x_mean @ theta) ** 2  # b at its best
    assert info.centered().residual(theta) == pytest.approx(free, abs=1e-12 * scale)
    if w.any():
        largest = np.abs(X).max(axis=0)
        np.testing.assert_allclose(info.x_mean / largest, w @ X / w.sum() / largest, rtol=0, atol=1e-13)
        assert info.y_mean == pytest.approx(w @ y / w.sum(), abs=1e-13 * np.abs(y).max())


def test_many_targets_share_one_factor():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((3000, 4)), rng.standard_normal((3000, 3))
    together = Information.from_rows(X, Y)
    apart = [Information.from_rows(X, Y[:, j]) for j in range(3)]
    np.testing.assert_allclose(together.solve(), np.stack([a.solve() for a in apart], axis=1), atol=1e-14)
    np.testing.assert_allclose(together.rss, [a.rss for a in apart], rtol=1e-12)
    np.testing.assert_allclose(together.y_mean, Y.mean(axis=0), atol=1e-14)
    theta = rng.standard_normal((4, 3))
    np.testing.assert_allclose(together.residual(theta), ((Y - X @ theta) ** 2).sum(axis=0), rtol=1e-12)
    assert_same(stream(X[:50], Y[:50]), Information.from_rows(X[:50], Y[:50]))


def test_a_prior_is_worth_no_rows():
    rng = np.random.default_rng(1)
    mean, root = rng.standard_normal(3), rng.standard_normal((5, 3))
    prior = Information.from_prior(mean, root)
    assert prior.rows == 0 and prior.rss == 0
    np.testing.assert_allclose(prior.solve(), mean, rtol=1e-13)
    np.testing.assert_allclose(prior.precision(), root.T @ root, rtol=1e-13)
    X, y = 50 + rng.standard_normal((40, 3)), rng.standard_normal(40)
    expected = np.linalg.solve(X.T @ X + root.T @ root, X.T @ y + root.T @ root @ mean)
    for posterior in (prior.fold(X, y), merge(prior, Information.from_rows(X, y)), stream(X, y, start=prior)):
        assert posterior.rows == 40
        np.testing.assert_allclose(posterior.solve(), expected, rtol=1e-10)
    assert_same(merge(Information.from_rows(X, y), prior), prior.fold(X, y))
    Xc = X - X.mean(axis=0)  # the intercept has no prior
    expected = np.linalg.solve(Xc.T @ Xc + root.T @ root, Xc.T @ y + root.T @ root @ mean)
    np.testing.assert_allclose(prior.fold(X, y).with_intercept().solve()[1:], expected, rtol=1e-10)


def test_forgetting_is_a_weight():
    rng = np.random.default_rng(2)
    X, y, rho = rng.standard_normal((60, 3)), rng.standard_normal(60), 0.9
    info = Information.zero(3)
    for i in range(0, 60, 10):
        info = info.forget(rho).fold(X[i : i + 10], y[i : i + 10])
    age = 5 - np.arange(60) // 10
    assert_same(info, Information.from_rows(X, y, rho**age), rtol=1e-13)
    assert_bits(info.forget(1.0), info)
    for bad in (0.0, -1.0, 1.1, np.nan):
        with pytest.raises(ValueError, match="rho"):
            info.forget(bad)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_sliding_window_is_the_fresh_fold(offset):
    rng = np.random.default_rng(3)
    X, y = offset + rng.standard_normal((2000, 4)), rng.standard_normal(2000)
    X[:, 3] = offset  # a constant column: undetermined beside an intercept
    blocks = [Information.from_rows(X[i : i + 50], y[i : i + 50]) for i in range(0, 2000, 50)]
    window = merge(*blocks[:4])
    for i in range(4, 40):
        window = merge(window, blocks[i]).subtract(blocks[i - 4])
    assert_same(window, Information.from_rows(X[-200:], y[-200:]), rtol=1e-11)


@given(problems(min_rows=60))
@settings(max_examples=30, deadline=None)
def test_subtract_undoes_merge_or_refuses(problem):
    X, y, _, _ = problem
    half = len(X) // 2
    a, b = (Information.from_rows(X[s], y[s]) for s in (slice(None, half), slice(half, None)))
    left = merge(a, b).subtract(b)
    assert_same(left, a)
    with pytest.raises(NotContained):
        a.subtract(merge(a, b))


def shrinking():
    """Information of parts of decreasing size, each a thousandth of the one before, and their sum."""
    rng = np.random.default_rng(6)
    parts = [
        Information.from_rows(size * rng.normal(size=(50, 3)), size * rng.normal(size=50))
        for size in 10.0 ** -np.arange(0, 9, 1.5)
    ]
    return parts, merge(*parts[::-1])


@pytest.mark.parametrize(
    "path",
    [
        lambda info: info,
        lambda info: info.fold(np.zeros((1, 3)), np.zeros(1)),
        lambda info: merge(info, Information.zero(3)),
        lambda info: merge(Information.from_rows(np.zeros((1, 3)), np.zeros(1)), info),
        lambda info: info.forget(1 - 1e-15),
        lambda info: pickle.loads(pickle.dumps(info)),
    ],
    ids=["alone", "fold", "merge", "merge with", "forget", "saved"],
)
def test_subtract_keeps_account_of_all_that_it_lost(path):
    # Each step alone leaves a thousandth, and 13 digits; together the first three would leave 7.
    parts, left = shrinking()
    one = left.subtract(parts[0])
    two = path(one).subtract(parts[1])
    kept, expected = one.subtract(parts[1]).centered().precision(), merge(*parts[2:]).centered().precision()
    np.testing.assert_allclose(kept, expected, rtol=0, atol=1e-8 * np.abs(expected).max())
    with pytest.raises(NotContained, match="subtracted before"):
        path(two).subtract(parts[2])
    merge(*parts[2:]).subtract(parts[2])


def test_a_sliding_window_goes_on():
    rng = np.random.default_rng(7)
    blocks = [Information.from_rows(rng.normal(size=(20, 3)), rng.normal(size=20)) for _ in range(300)]
    window = merge(*blocks[:5])
    for old, new in zip(blocks, blocks[5:], strict=False):
        window = merge(window, new).subtract(old)
    assert_same(window, merge(*blocks[-5:]), rtol=1e-12)


def test_subtract_refuses_what_was_never_added():
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((100, 3)), rng.standard_normal(100)
    X[:, 2] = X[:, 0] - X[:, 1]
    info = Information.from_rows(X, y)
    before = info.T.copy()
    out_of_range = np.array([[1.0, 1.0, 1.0]])
    for bad_X, bad_y in (
        (100 * X[:1], y[:1]),  # more than there is in that direction
        (X[:1], 1e4 + y[:1]),  # more than there is left over
        (out_of_range, y[:1]),  # a direction of which nothing is known
    ):
        with pytest.raises(NotContained, match="other"):
            info.subtract(Information.from_rows(bad_X, bad_y))
    with pytest.raises(NotContained, match="fewer rows"):
        info.subtract(info)
    only_row = X.copy()
    only_row[1:, 2] = 0  # the third coefficient is known from the first row alone
    with pytest.raises(NotContained, match="half of its digits"):
        Information.from_rows(only_row, y).subtract(Information.from_rows(only_row[:1], y[:1]))
    with pytest.raises(NotContained, match="zero in every row"):
        Information.from_rows(only_row[1:], y[1:]).subtract(Information.from_rows(only_row[:1], y[:1]))
    np.testing.assert_array_equal(info.T, before)


def test_features_far_from_zero_keep_their_digits():
    rng = np.random.default_rng(5)
    X = np.round(rng.standard_normal((500, 4)) * 2**20) / 2**20  # so that 1e8 + X is exact
    y = X @ [1.0, -2.0, 3.0, 0.5] + rng.standard_normal(500)
    expected, std = reference.exact_fit(X[:60], y[:60])
    for far in (stream(1e8 + X[:60], y[:60]), Information.from_rows(1e8 + X[:60], y[:60])):
        theta = far.with_intercept().solve()[1:]
        assert reference.correct_digits(theta, expected[1:]) > 12
        np.testing.assert_allclose(far.centered().solve(), theta, rtol=1e-14)
        assert reference.correct_digits(standard_errors(far.with_intercept())[1:], std[1:]) > 12
    far, near = Information.from_rows(1e8 + X, y), Information.from_rows(X, y)
    assert reference.correct_digits(far.centered().solve(), near.centered().solve()) > 12
    up = Information.from_rows(1e8 + X, 1e8 + y)  # and a target far from zero: 8 digits of it are spread
    np.testing.assert_allclose(up.centered().solve(), near.centered().solve(), atol=1e-8)


def standard_errors(equations):
    """sqrt of the diagonal of (R'R)^-1 rss / (rows - d)."""
    inverse = scipy.linalg.solve_triangular(equations.R, np.eye(len(equations.R)))
    return np.sqrt((inverse**2).sum(axis=1) * equations.rss / (equations.rows - len(equations.R)))


REFERENCES = {f"wampler{i}": lambda i=i: reference.wampler(i) for i in range(1, 6)}
REFERENCES |= {"norris": reference.norris, "longley": reference.longley}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("ones", [False, True], ids=["intercept", "column of ones"])
def test_reference_data_row_by_row(name, ones):
    X, y = REFERENCES[name]()
    theta, std = reference.exact_fit(X, y)
    if name in ("wampler1", "wampler2"):  # y is exactly a polynomial
        theta, std = (0.1 if name == "wampler2" else 1.0) ** np.arange(6), np.zeros(6)
    info = stream(np.column_stack([np.ones(len(X)), X]), y) if ones else stream(X, y).with_intercept()
    assert reference.correct_digits(standard_errors(info), std) > 7
    digits = reference.correct_digits(info.solve(), theta)
    if name != "wampler5":
        assert digits > 7
        return
    # Coefficients of 1 under noise of 2e7: rounding y once moves them in the eighth digit, and LAPACK's
    # QR of all rows keeps 5.8. Thirteen digits of a standard error is what there is to be had.
    assert np.abs((info.solve() - theta) / std).max() < 1e-13
    Q, R = scipy.linalg.qr(np.column_stack([np.ones(len(X)), X]), mode="economic")
    assert digits > reference.correct_digits(scipy.linalg.solve_triangular(R, Q.T @ y), theta) - 0.5


def test_the_reference_solver_is_nist_certified():
    theta, std = reference.exact_fit(*reference.norris())
    assert reference.correct_digits(theta, reference.NORRIS_CERTIFIED[0]) > 13
    assert reference.correct_digits(std, reference.NORRIS_CERTIFIED[1]) > 13
    theta, std = reference.exact_fit(*reference.wampler(3))
    np.testing.assert_array_equal(theta, np.ones(6))
    assert reference.correct_digits(std, reference.WAMPLER3_CERTIFIED_STD) > 13


@pytest.mark.slow
def test_polynomials_conditioned_near_1e15_row_by_row():
    """Within a digit and a half of LAPACK's QR of the same rows, each problem and every coefficient.

    The digits of either move by one or two with the order of the rows, so medians over five orders are
    compared. On scaled columns these problems are conditioned near 1e10, so no direction may be dropped.
    """
    lost = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = rng.uniform(3, rng.uniform(8, 9), 40)
        X, y = reference.powers(x, 10), np.sin(x) + 0.01 * rng.standard_normal(40)
        A = np.column_stack([np.ones(40), X])
        assert 1e14 < np.linalg.cond(A) < 1e17
        theta, _ = reference.exact_fit(X, y)
        batch, rows = [], []
        for _ in range(5):
            order = rng.permutation(40)
            Q, R = scipy.linalg.qr(A[order], mode="economic")
            batch.append(reference.correct_digits(scipy.linalg.solve_triangular(R, Q.T @ y[order]), theta))
            info = stream(X[order], y[order])
            assert info.with_intercept().rank() == 11
            assert stream(A[order], y[order]).rank() == 11
            rows.append(reference.correct_digits(info.with_intercept().solve(), theta))
        lost.append(np.median(batch) - np.median(rows))
    assert max(lost) < 1.5, lost
    assert np.mean(lost) < 0.8, lost


def test_undetermined_directions():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((2000, 6)) * 10.0 ** np.array([0, 3, -5, 0, 2, 0])
    X[:, 3] = X[:, 0]  # a copy
    X[:, 4] = 1e3 * X[:, 2] - X[:, 1]  # a combination, on another scale
    y = rng.standard_normal(2000)
    for info in (Information.from_rows(X, y), stream(X, y), merge(*[Information.from_rows(X, y)] * 2)):
        assert info.rank() == 4
        np.testing.assert_array_equal(info.undetermined(), [True, True, True, True, True, False])
        assert not info.undetermined(X[:5]).any()  # what was seen can be predicted
        assert info.undetermined(np.array([[1.0, 0, 0, 2.0, 0, 0]]))[0]
        assert not info.undetermined(np.array([[1.0, 0, 0, 1.0, 0, 3.0]]))[0]
        theta = info.solve()
        null = np.array([[1, 0, 0, -1, 0, 0], [0, 1, -1e3, 0, 1, 0.0]])
        np.testing.assert_allclose(null @ theta, 0, atol=1e-11 * 1e3 * np.abs(theta).max())  # of minimum norm
        scale = np.linalg.norm(X, axis=0)
        best = np.linalg.lstsq(X / scale, y, rcond=1e-10)[0]
        np.testing.assert_allclose(X @ theta, X / scale @ best, atol=1e-10)  # and a minimum
    zero = Information.zero(3)
    assert zero.rank() == 0 and zero.rss == 0
    np.testing.assert_array_equal(zero.solve(), np.zeros(3))
    assert zero.undetermined().all()
    full = Information.from_rows(X[:, :3], y)
    assert full.rank() == 3 and not full.undetermined().any()


def test_one_reading_beyond_rank_is_not_thrown_away():
    """Scaled columns 1e-12 from collinear are told apart, as LAPACK's QR tells them apart."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((100, 2))
    X[:, 1] = X[:, 0] + 1e-12 * X[:, 1]
    assert Information.from_rows(X, X[:, 0]).rank() == 2
    assert stream(X, X[:, 0]).rank() == 2


def test_gram_is_taken_only_where_it_keeps_the_digits(monkeypatch):
    rng = np.random.default_rng(8)
    taken = []
    cholesky = fold.cholesky
    monkeypatch.setattr(fold, "cholesky", lambda G: taken.append(cholesky(G)) or taken[-1])
    X = rng.standard_normal((6000, 5))
    for gap, expected in ((1.0, True), (0.1, True), (1e-3, False), (1e-6, False)):
        Z = X.copy()
        Z[:, 4] = Z[:, 3] + gap * X[:, 4]
        y = Z @ np.ones(5) + rng.standard_normal(6000)
        taken.clear()
        info = Information.from_rows(Z, y)
        assert taken and (taken[-1] is not None) == expected
        R = np.linalg.qr(np.column_stack([Z, y]), mode="r")
        theta = scipy.linalg.solve_triangular(R[:5, :5], R[:5, 5])
        # QR's forward error is eps * cond times a modest constant; Gram's alone would be eps * cond^2
        np.testing.assert_allclose(info.solve(), theta, atol=100 * EPS / min(gap, 0.1) * 2)
        assert info.rss == pytest.approx(R[5, 5] ** 2, rel=1e-12)
    taken.clear()
    Information.from_rows(X, X @ np.ones(5) + 1e-6 * rng.standard_normal(6000))  # the residual counts as well
    assert taken[-1] is None
    hidden = np.diag(0.8 ** np.arange(20)) @ (np.eye(20) - 0.6 * np.triu(np.ones((20, 20)), 1))
    taken.clear()  # no pivot below 0.014, yet conditioned like 1e6 (Kahan's triangle)
    Information.from_rows(rng.standard_normal((6000, 20)) @ hidden, y)
    assert taken[-1] is None
    Z = np.column_stack([X, np.ones(6000), np.full(6000, 0.1), np.zeros(6000)])
    taken.clear()
    info = Information.from_rows(Z, X[:, 0] + rng.standard_normal(6000))  # constant columns do not spoil it
    assert taken[-1] is not None and info.rank() == 6 and info.centered().rank() == 5


@pytest.mark.parametrize("layout", ["C", "F", "strided", "float32 y", "read-only"])
def test_any_layout_of_the_rows(layout):
    rng = np.random.default_rng(9)
    X, y = rng.standard_normal((3000, 4)), rng.standard_normal(3000).astype(np.float32).astype(float)
    expected = Information.from_rows(X, y)
    if layout == "F":
        X = np.asfortranarray(X)
    elif layout == "strided":
        X = np.repeat(X, 2, axis=1)[:, ::2]
    elif layout == "float32 y":
        y = y.astype(np.float32)
    elif layout == "read-only":
        X.flags.writeable = y.flags.writeable = False
    assert_same(Information.from_rows(X, y), expected, rtol=1e-12)


def hard_case(dtype):
    """Prior variance 1e6, noise variance 1e-4, columns collinear to 1e-3."""
    rng = np.random.default_rng(10)
    X = rng.standard_normal((400, 5))
    X[:, 4] = X[:, 3] + 1e-3 * X[:, 4]
    X = X.astype(dtype)
    y = (X.astype(float) @ [1.0, -1.0, 2.0, 0.5, -0.5] + 1e-2 * rng.standard_normal(400)).astype(dtype)
    root = np.eye(5, dtype=dtype) * dtype(np.sqrt(1e-4 / 1e6))
    return X, y, Information.from_prior(np.zeros(5, dtype), root)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "jax"])
@pytest.mark.parametrize("block", [1, 7, 400])
def test_float32_gives_the_float64_answer(library, block):
    X, y, prior = hard_case(np.float32)
    _, _, prior64 = hard_case(np.float64)
    exact = stream(X.astype(float), y.astype(float), start=prior64)
    if library == "jax":
        X, y, prior = jax.tree.map(jnp.asarray, (X, y, prior))
    info = stream(X, y, cuts=range(block, 400, block), start=prior)
    assert info.T.dtype == np.float32 and type(info.T) is type(X)
    # The answer is backward stable: errors of cond * eps, a small multiple for the 400 foldings.
    cond = np.linalg.cond(exact.R / np.linalg.norm(exact.R, axis=0))
    tolerance = 20 * cond * np.finfo(np.float32).eps
    assert tolerance < 0.01
    size = np.abs(exact.solve()).max()
    np.testing.assert_allclose(info.solve(), exact.solve(), rtol=0, atol=tolerance * size)
    R = np.asarray(info.R, float)
    cov, expected = (np.linalg.inv(R) @ np.linalg.inv(R).T for R in (R, exact.R))
    np.testing.assert_allclose(cov, expected, rtol=0, atol=2 * tolerance * np.abs(expected).max())
    np.testing.assert_allclose(info.rss, exact.rss, rtol=1e-3)


@pytest.mark.slow
def test_jax_is_numpy():
    rng = np.random.default_rng(11)
    with jax.enable_x64(True):
        for n, gap, offset in ((3, 1.0, 0.0), (400, 1.0, 1e6), (400, 1e-7, 3.0), (400, 0.0, 0.0)):
            X = rng.standard_normal((n, 4))
            X[:, 3] = X[:, 2] + gap * X[:, 3]
            X += offset
            y, w = rng.standard_normal(n), rng.integers(0, 3, n).astype(float)
            X[w == 0] = np.nan  # no row, whatever it holds
            ours, theirs = Information.from_rows(X, y, w), Information.from_rows(*map(jnp.asarray, (X, y, w)))
            assert isinstance(theirs.T, jax.Array) and theirs.T.dtype == np.float64
            assert (jnp.diagonal(theirs.T) >= 0).all()
            assert_same(theirs, ours)
            assert theirs.rank() == ours.rank() and theirs.centered().rank() == ours.centered().rank()
            np.testing.assert_array_equal(theirs.undetermined(), ours.undetermined())
            scale = 1 / max(gap, 1e-2) if gap else 1
            np.testing.assert_allclose(theirs.solve(), ours.solve(), rtol=1e-7, atol=1e-9 * scale)
            zero = Information.zero(4, dtype=jnp.float64, xp=jnp)
            assert_bits(merge(zero, theirs), theirs)
            assert_bits(merge(theirs, zero), theirs)
            assert_bits(theirs.fold(jnp.ones((2, 4)), jnp.ones(2), jnp.zeros(2)).forget(1.0), theirs)
            more = Information.from_rows(offset + rng.standard_normal((50, 4)), rng.standard_normal(50))
            both = merge(theirs, jax.tree.map(jnp.asarray, more))
            assert_same(both, merge(ours, more))
            assert_same(both.subtract(theirs), more)
            mean, root = np.ones(4), np.eye(4)
            prior = Information.from_prior(mean, root), Information.from_prior(jnp.asarray(mean), jnp.asarray(root))
            assert_same(merge(prior[1], theirs), merge(prior[0], ours))


@pytest.mark.slow
def test_jit_scan_and_vmap():
    rng = np.random.default_rng(12)
    X, y = (jnp.asarray(a, jnp.float32) for a in (rng.standard_normal((5, 30, 3)), rng.standard_normal((5, 30))))
    zero = Information.zero(3, dtype=jnp.float32, xp=jnp)
    scanned, _ = jax.jit(lambda s: jax.lax.scan(lambda s, xy: (s.fold(*xy), None), s, (X, y)))(zero)
    flat = Information.from_rows(X.reshape(150, 3), y.reshape(150))
    assert_same(scanned, flat, rtol=1e-5)
    many = jax.vmap(lambda X, y: Information.from_rows(X, y))(X, y)
    assert many.T.shape == (5, 5, 5)
    each = [Information.from_rows(X[i], y[i]) for i in range(5)]
    solved = jax.jit(jax.vmap(lambda info: (info.solve(), info.rank())))(many)
    for i, info in enumerate(each):
        np.testing.assert_allclose(solved[0][i], info.solve(), rtol=1e-4, atol=1e-6)
        assert solved[1][i] == 3
    total = jax.jit(merge)(*each)
    assert_same(total, flat, rtol=1e-5)
    with pytest.raises(TypeError, match="subtract"):
        jax.jit(lambda a, b: a.subtract(b))(total, each[0])


@pytest.mark.slow
def test_gram_on_jax_keeps_the_digits_too():
    rng = np.random.default_rng(13)
    X = rng.standard_normal((500, 3))
    y = X @ np.ones(3) + rng.standard_normal(500)
    with jax.enable_x64(True):
        for gap in (1.0, 1e-7):
            Z = X.copy()
            Z[:, 2] = Z[:, 1] + gap * X[:, 2]
            expected = scipy.linalg.lstsq(Z, y)[0]
            got = Information.from_rows(jnp.asarray(Z), jnp.asarray(y)).solve()
            np.testing.assert_allclose(got, expected, atol=1e-13 / gap, rtol=1e-8)


def test_bad_rows_are_named_and_touch_nothing():
    X, y = np.random.default_rng(14).standard_normal((600, 2)), np.ones(600)
    good = Information.from_rows(X, y)
    before = good.T.copy()
    for value in (np.nan, np.inf, -np.inf):
        for rows in (slice(None), slice(520, 550)):  # by Gram and by QR
            bad = X.copy()
            bad[530, 1] = value
            with pytest.raises(ValueError, match=rf"X must be finite.* {530 - (rows.start or 0)}\."):
                good.fold(bad[rows], y[rows])
            with pytest.raises(ValueError, match=r"y must be finite"):
                good.fold(X[rows], bad[rows, 1])
    with pytest.raises(ValueError, match="X must be finite"):
        Information.from_rows(jnp.full((2, 2), jnp.nan), jnp.ones(2))
    with pytest.raises(ValueError, match="too large"):
        good.fold(np.array([[1e300, 0.0], [-1e308, 1.0], [1.7e308, 1.0]]), np.ones(3))
    np.testing.assert_array_equal(good.T, before)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.ones(3), np.ones(3)), ValueError, "X must have shape"),
        ((np.ones((3, 2)), np.ones(4)), ValueError, "X must have shape"),
        ((np.ones((3, 2)), np.ones((3, 1, 1))), ValueError, "X must have shape"),
        ((np.ones((3, 2), int), np.ones(3)), TypeError, "X must have a floating dtype"),
        ((np.ones((3, 2)), np.ones(3, bool)), TypeError, "y must have a floating dtype"),
        ((np.ones((3, 2)), np.ones(3), np.ones(2)), ValueError, "weights must have one number per row"),
        ((np.ones((3, 2)), np.ones(3), np.array([1.0, -1.0, 0.0])), ValueError, ">= 0; got -1 in row 1"),
        ((np.ones((3, 2)), np.ones(3), np.array([1.0, np.nan, 0.0])), ValueError, "weights must be finite"),
    ],
)
def test_refused_at_the_edge(arguments, error, message):
    with pytest.raises(error, match=message):
        Information.from_rows(*arguments)
    with pytest.raises(error, match=message):
        Information.zero(2).fold(*arguments)


def test_mismatched_information_is_refused():
    info = Information.zero(2)
    with pytest.raises(ValueError, match="shapes"):
        info.fold(np.ones((3, 3)), np.ones(3))
    with pytest.raises(ValueError, match="shapes"):
        info.fold(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(ValueError, match="same number of coefficients"):
        merge(info, Information.zero(3))
    with pytest.raises(ValueError, match="same number of coefficients"):
        info.subtract(Information.zero(2, 1))
    with pytest.raises(ValueError, match="root"):
        Information.from_prior(np.zeros(2), np.eye(3))


def test_overflow_of_squares_alone_is_no_obstacle():
    """Gram matrices overflow where QR does not: columns of 1e200 are folded all the same."""
    rng = np.random.default_rng(15)
    X, y = rng.standard_normal((3000, 2)), rng.standard_normal(3000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        big = Information.from_rows(1e200 * X, y)
    np.testing.assert_allclose(big.T[1, 1] / 1e200, Information.from_rows(X, y).T[1, 1], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-200, 1e-170, 1e-160, 1e160, 1e300])
@pytest.mark.parametrize("xp", [np, jnp])
def test_columns_whose_squares_underflow_or_overflow_keep_their_digits(xp, size):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = X @ np.array([1.0, 2.0, 3.0]) + rng.normal(size=400)
    expected = Information.from_rows(X, y).solve()
    with jax.enable_x64(True):
        X[:, 1] *= size
        theta = np.asarray(Information.from_rows(xp.asarray(X), xp.asarray(y)).solve())
    np.testing.assert_allclose(theta * [1, size, 1], expected, rtol=1e-11)


def test_a_second_reading_compiles_nothing():
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compilations.append(event) if "backend_compile" in event else None
    )
    rng = np.random.default_rng(3)
    for repeat in range(2):
        info = Information.from_rows(*(jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((30, 3), (30,))))
        info.solve(), info.rank(), info.undetermined(), info.residual(info.solve())
        if repeat == 0:
            assert compilations
            compilations.clear()
    assert not compilations
