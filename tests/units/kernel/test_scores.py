"""The compiled sums of scores equal the plain ones of NumPy, for every kind of row that can come."""

import copy
import os
import pickle
from contextlib import contextmanager
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest

from kalprox.calibration import Calibration
from kalprox.calibration.sums import _KERNEL_ENDS
from kalprox.kernel import library
from kalprox.kernel.build import OFF
from kalprox.kernel.scores import ROW_VALUES, add_scores
from kalprox.learning.tracking import Quantiles
from kalprox.predictive import Student

pytestmark = pytest.mark.skipif(library.kernel() is None, reason="nothing is compiled: the reference is all there is")

TINY = np.finfo(float).tiny


@contextmanager
def plain():
    """The library is hidden: NumPy computes everything."""
    library.kernel.cache_clear()
    with mock.patch.dict(os.environ, {OFF: "off"}):
        assert library.kernel() is None
        yield
    library.kernel.cache_clear()


_SHAPES = Calibration.layout.names


def assert_same(calibration, reference):
    rows = float(reference.rows + reference.undetermined)
    for name in _SHAPES:
        one, other = np.asarray(getattr(calibration, name)), np.asarray(getattr(reference, name))
        assert one.shape == other.shape and one.dtype == other.dtype, name
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * max(rows, 1.0), err_msg=name)


def assert_equal_by_blocks(rows, lengths, **more):
    """Compare after blocks of these lengths; `rows` are the positional arguments of `update`."""
    compiled, reference, start = Calibration(), Calibration(), 0
    for length in lengths:
        block = [a[start : start + length] if np.ndim(a) else a for a in rows]
        compiled = compiled.update(*block, **more)
        with plain():
            reference = reference.update(*block, **more)
        start += length
    assert_same(compiled, reference)
    return compiled, reference


def stream(n, seed=0, spread=3.0):
    rng = np.random.default_rng(seed)
    mean, std = spread * rng.normal(size=n), np.exp(rng.normal(size=n))
    return rng, mean, std, mean + std * rng.standard_t(4, size=n)


DOFS = [0.5, 1.0, 2.5, 30.0, 39.9, 40.0, 199.99, 200.0, 1000.0, 1e4, 1e9, 1e99, 1e101, np.inf]


@pytest.mark.parametrize("dof", [*DOFS, "mixed", "growing"])
def test_sums_of_a_stream(dof):
    rng, mean, std, y = stream(3000, seed=1)
    if dof == "mixed":
        dof = rng.choice(DOFS, size=len(y))
    elif dof == "growing":
        dof = np.arange(1.0, len(y) + 1)
    assert_equal_by_blocks([mean, std, y, dof], [1, 0, 1, 14, 2, 300, 700, 1982])


@pytest.mark.parametrize("lengths", [[1] * 700, [7] * 100, [256, 257, 187], [700]])
def test_segments_join_however_the_rows_come(lengths):
    _, mean, std, y = stream(700, seed=2)
    compiled, _ = assert_equal_by_blocks([mean + 1e3, std, y + 1e3, 12.0], lengths)
    assert compiled.segment_length == 64


def test_every_weight():
    rng, mean, std, y = stream(900, seed=3)
    together = rng.integers(0, 9, size=len(y)).astype(float)
    for weights in (rng.choice([0.0, 1.0, 2.0, 7.0], size=len(y)), rng.uniform(0.1, 3.0, size=len(y)), np.zeros(900)):
        assert_equal_by_blocks([mean, std, y, 20.0, weights], [1, 99, 800])
        assert_equal_by_blocks([mean, std, y, 5000.0, weights, together], [1, 99, 800])
    unread = np.where(np.arange(900) % 3 == 0, np.nan, y)
    assert_equal_by_blocks([mean, -std, unread, 5000.0, np.zeros(900)], [900])


def test_one_number_for_all_rows_and_a_number_for_one():
    _, mean, std, y = stream(500, seed=4)
    for rows in ([mean, 1.3, y, 700.0], [0.0, std, y], [mean, std, y, 9.0, None, np.ones(())], [mean, std, y, 9]):
        assert_equal_by_blocks(rows, [500])
    assert_equal_by_blocks([1.0, 2.0, 1.5, 3.0], [1])
    assert_equal_by_blocks([[1, 2], [2, 1], [1, 1], 3], [2])


@pytest.mark.parametrize("dof", [3.0, 150.0, 300.0, np.inf])
def test_predictions_that_say_nothing_and_certain_ones(dof):
    _, mean, std, y = stream(64, seed=5)
    mean[3], mean[9], mean[10], std[4], std[5] = np.nan, np.inf, -np.inf, np.inf, np.nan
    dof = np.full(64, dof)
    dof[[20, 21, 22]] = 0.0, -3.0, np.nan
    with np.errstate(all="ignore"):
        assert_equal_by_blocks([mean, std, y, dof], [64])
    certain = np.where(np.arange(64) % 2 == 0, mean, y)
    finite = np.isfinite(certain) & (dof > 0)
    assert_equal_by_blocks([certain[finite], np.zeros(finite.sum()), y[finite], dof[finite]], [10, finite.sum() - 10])
    assert_equal_by_blocks([np.full(8, np.nan), std[:8], y[:8]], [3, 5])


def assert_same_scores(z, dof):
    """Compare the scores of errors, and their sums if each of them is alone."""
    rows = np.empty((ROW_VALUES, len(z)))
    rows[:6] = np.stack(np.broadcast_arrays(0.0, 1.0, z, dof, 1.0, 1.0))
    assert add_scores(Calibration().sums, rows, _KERNEL_ENDS)
    scores, _ = Student(np.zeros(len(z)), np.ones(len(z)), rows[3]).normal_scores(z)
    np.testing.assert_allclose(rows[-1], scores, rtol=1e-12, atol=1e-15)
    for i in range(0, len(z), 20):
        compiled, reference = assert_equal_by_blocks([0.0, 1.0, z[i], rows[3, i]], [1])
        assert compiled.log_score == pytest.approx(reference.log_score, rel=1e-12)


@pytest.mark.parametrize("dof", [0.5, 1.0, 20.0, 199.0, 201.0, 1e4, np.inf])
def test_scores_of_any_error(dof):
    sizes = [[0.0, 1e-300, 1e-20, 1e-9], np.geomspace(1e-6, 40, 400), 10.0 ** np.arange(2, 78), [1e200, 1e308]]
    z = np.concatenate(sizes)
    assert_same_scores(np.concatenate([z, -z]), dof)


@pytest.mark.parametrize("z", [1e-3, 0.4, 1.1, 2.5, -6.0, 30.0, -1e4])
def test_scores_for_every_number_of_degrees_of_freedom(z):
    dof = np.arange(1.0, 1001.0)
    assert_same_scores(np.full(len(dof), z), dof)


@pytest.mark.parametrize("std", [TINY, 1e-310, 1e-200, 1e200, 1e307])
def test_every_size_of_the_std(std):
    _, mean, _, y = stream(40, seed=6)
    assert_equal_by_blocks([mean, np.full(40, std), mean + std * (y - mean) / 100, 50.0], [40])


@pytest.mark.parametrize(("shift", "scale"), [(1e8, 1.0), (1e12, 1.0), (0.0, 1e30), (1e30, 1e20), (0.0, 1e55)])
def test_predictions_of_any_size(shift, scale):
    _, mean, std, y = stream(600, seed=7)
    rows, compiled, reference = (
        [shift + scale * mean, scale * std, shift + scale * y, 40.0],
        Calibration(),
        Calibration(),
    )
    for part in (slice(0, 256), slice(256, 600)):
        block = [a[part] if np.ndim(a) else a for a in rows]
        compiled = compiled.update(*block)
        with plain():
            reference = reference.update(*block)
    for name in _SHAPES:
        one, other = getattr(compiled, name), getattr(reference, name)
        size = 1e-12 * max(np.abs(other).max(), 600.0)
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=size, err_msg=name)


def test_columns_are_looked_at_with_the_same_scores():
    rng, mean, std, y = stream(400, seed=8)
    mean[7], std[9] = np.nan, np.inf
    compiled, reference = assert_equal_by_blocks([mean, std, y, 30.0], [400], X=rng.normal(size=(400, 4)))
    for name in ("columns_seen", "column_means", "column_squares", "column_products"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(reference, name), rtol=1e-11, atol=1e-11)


def test_what_was_added_is_read_saved_merged_and_continued():
    _, mean, std, y = stream(300, seed=9)
    first = Calibration().update(mean[:200], std[:200], y[:200], 9.0)
    kept = first.sums.copy()
    second = first.update(mean[200:], std[200:], y[200:], 9.0)
    np.testing.assert_array_equal(first.sums, kept)
    for same in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first), first.merge(Calibration())):
        np.testing.assert_array_equal(same.sums, kept)
        np.testing.assert_array_equal(same.update(mean[200:], std[200:], y[200:], 9.0).sums, second.sums)
    with plain():
        assert first.update(mean[200:], std[200:], y[200:], 9.0).rows == second.rows == 300
    with pytest.raises(AttributeError, match="'Calibration' object has no attribute 'nothing'"):
        _ = first.nothing


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([0.0], [1.0], [np.nan]), "y"),
        (([0.0], [-1.0], [0.0]), "std must be >= 0"),
        (([0.0], [1.0], [0.0], 3.0, [-1.0]), "weights must be finite"),
        (([0.0], [1.0], [0.0], 3.0, [np.inf]), "weights must be finite"),
        (([0.0], [1.0], [0.0, 1.0]), "mean must be a number or have y's shape"),
        (([0.0], [1.0], [[0.0]]), "y must be a number or a vector"),
    ],
)
def test_rows_that_can_be_none_are_refused_in_the_words_of_the_reference(rows, message):
    for mode in (plain(), pytest.MonkeyPatch.context()):
        with mode, pytest.raises(ValueError, match=message):
            Calibration().update(*(np.array(a) if isinstance(a, list) else a for a in rows))


def test_the_layout_is_that_of_the_library():
    compiled = library.kernel()
    assert compiled.kalprox_scores_size() == Calibration().sums.size
    quantiles = Quantiles.normal(None)
    assert compiled.kalprox_quantiles_size() == quantiles.ends.size + 1 + quantiles.missed.size


# ---- quantiles -------------------------------------------------------------------------------------------


def assert_same_quantiles(move, before=None):
    """Compare what `move` makes of quantiles, to the last bit where every row counts for a whole number."""
    before = before or Quantiles.normal(None)
    found = move(before)
    with plain():
        reference = move(before)
    np.testing.assert_array_equal(found.ends, reference.ends)
    np.testing.assert_array_equal(found.missed, reference.missed)
    assert found.rows == reference.rows and isinstance(found.rows, float)
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 64, 3000])
def test_quantiles_after_batches(size):
    z = np.random.default_rng(10).standard_t(3, size=3000)
    together = np.concatenate([np.full(len(part), len(part)) for part in np.split(z, range(size, 3000, size))])
    found = assert_same_quantiles(lambda q: q.after_rows(z, together))
    assert found.rows == 3000
    one_by_one = Quantiles.normal(None)
    for start, stop in pairwise([*range(0, 3000, size), 3000]):
        one_by_one = one_by_one.after(z[start:stop])
    np.testing.assert_array_equal(found.ends, one_by_one.ends)


def test_quantiles_after_odd_rows():
    rng = np.random.default_rng(11)
    z = rng.standard_t(3, size=60)
    z[[4, 30]], z[[5, 31]] = np.nan, [np.inf, -np.inf]
    together = np.concatenate([np.repeat(1, 10), [0, 0, 1], np.repeat(20, 20), [0], np.repeat(26, 26)])
    counts = rng.choice([0.0, 1.0, 3.0], size=60)
    assert_same_quantiles(lambda q: q.after_rows(z, together))
    assert_same_quantiles(lambda q: q.after_rows(z, together, counts))
    assert_same_quantiles(lambda q: q.after(z, counts))
    assert_same_quantiles(lambda q: q.after(z[:1]))
    for nothing in (np.zeros(0), np.full(3, np.nan)):
        assert_same_quantiles(lambda q, nothing=nothing: q.after(nothing))
    found = Quantiles.normal(None).after(z, rng.uniform(size=60))
    assert 0 < found.rows < 60


def test_quantiles_of_several_targets_are_those_of_the_reference():
    z = np.random.default_rng(12).normal(size=(50, 2))
    assert_same_quantiles(lambda q: q.after_rows(z, np.full(50, 10)), Quantiles.normal(2))
