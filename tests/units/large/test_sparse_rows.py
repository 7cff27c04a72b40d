"""Sparse rows in structures: equal to the same rows made dense, without making them so."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse

from kalprox.large.information import with_room
from kalprox.structures import Blocks, Diagonal, LowRank

D = 40
STRUCTURES = [Diagonal(), LowRank(3), LowRank(D), Blocks((5, 7, 28))]


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = scipy.sparse.random(n, D, 0.15, "csr", rng=rng, data_rvs=rng.standard_normal)
    return X, rng.standard_normal(n), rng.integers(0, 3, n).astype(float)


def start(structure):
    rng = np.random.default_rng(1)
    return structure.start(rng.standard_normal(D), rng.uniform(0.5, 2.0, D))


def assert_same(a, b, rtol=1e-9):
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(a.solve(np.eye(a.d)), b.solve(np.eye(b.d)), rtol=rtol, atol=rtol)
    for name in ("rows", "squares", "rss", "traces"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_sparse_rows_are_learned_as_dense_ones(structure):
    """Three pieces of weighted rows, some of weight 0. Truncated at the same rows, the two are the same."""
    found = expected = start(structure)
    for seed in range(3):
        X, y, w = rows(16, seed)
        found = found.fold(X, y, w)
        expected = expected.fold(X.toarray()[w > 0], y[w > 0], w[w > 0])
        if structure == LowRank(3):
            expected = with_room(expected, 100)  # which truncates
        assert_same(found, expected)


def test_a_piece_is_exact_and_every_diagonal_entry_of_the_precision_is_that_of_all_rows():
    X, y, _ = rows(50)
    found, prior = start(LowRank(3)).fold(X, y), start(LowRank(3))
    A = X.toarray()
    P = np.diag(prior.prior_precision) + A.T @ A
    np.testing.assert_allclose(found.mean, np.linalg.solve(P, prior.prior_precision * prior.mean + A.T @ y), rtol=1e-10)
    np.testing.assert_allclose(found.precision.apply(np.eye(D)).diagonal(), P.diagonal(), rtol=1e-12)
    assert len(found.precision.W) == 3 and found.dropped > 0


def test_fewer_rows_than_directions_are_kept_as_they_are():
    X, y, _ = rows(5)
    found = start(LowRank(10)).fold(X, y)
    np.testing.assert_array_equal(found.precision.W, X.toarray())
    assert found.dropped == 0
    assert_same(found, start(LowRank(10)).fold(X.toarray(), y))


def test_entries_that_occur_twice_add_up():
    X = scipy.sparse.csr_matrix((np.ones(3), [1, 1, 2], [0, 2, 3]), shape=(2, D))
    for structure in (Diagonal(), LowRank(3)):
        assert_same(start(structure).fold(X, np.ones(2)), start(structure).fold(X.toarray(), np.ones(2)))


@pytest.mark.parametrize("structure", [Diagonal(), LowRank(3)], ids=repr)
def test_bad_rows_are_named_unless_they_have_weight_0(structure):
    X, y, _ = rows(4)
    y[2] = np.nan
    assert_same(
        start(structure).fold(X, y, np.array([1.0, 1.0, 0.0, 1.0])), start(structure).fold(X[[0, 1, 3]], y[[0, 1, 3]])
    )
    with pytest.raises(ValueError, match="targets"):
        start(structure).fold(X, y)
    X.data[0] = np.inf
    with pytest.raises(ValueError, match="D "):
        start(structure).fold(X, np.zeros(4))
    with pytest.raises(ValueError, match="weights"):
        start(structure).fold(X, np.zeros(4), np.array([1.0, -1.0, 1.0, 1.0]))


def test_memory_is_that_of_the_directions():
    """64 rows of 2^18 columns would take 134 MB. The directions take 6 MB, and are there up to four times."""
    d, n = 1 << 18, 192
    rng = np.random.default_rng(0)
    X = scipy.sparse.csr_matrix((np.ones(20 * n), rng.integers(0, d, 20 * n), 20 * np.arange(n + 1)), shape=(n, d))
    before = LowRank(3).start(np.zeros(d), 1.0)
    tracemalloc.start()
    before.fold(X, np.ones(n))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6
