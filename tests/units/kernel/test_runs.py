"""The regressions of run lengths: a row learned by the compiled kernel and by its reference in NumPy."""

import pickle
from dataclasses import fields

import numpy as np
import pytest

from kalprox.base.tree import copied
from kalprox.kernel.library import kernel
from kalprox.learning.change_points import RunLengths

FIRST = 30

pytestmark = pytest.mark.skipif(kernel() is None, reason="the kernel is not compiled")


def both(U, y, **options):
    """Return the runs of the first rows twice: for the compiled kernel and for NumPy."""
    compiled = RunLengths.after_first_rows(U[:FIRST], y[:FIRST], 0.005, **options)
    reference = copied(compiled)
    reference._compiled = None
    return compiled, reference


def assert_equal(compiled, reference):
    taken = reference.weight > 0
    assert ((compiled.weight > 0) == taken).all()
    for field in fields(RunLengths):
        one, other = (np.asarray(getattr(runs, field.name), float) for runs in (compiled, reference))
        if len(np.shape(one)) and len(one) == len(taken):
            one, other = one[taken], other[taken]  # what is in free places is never read
        scale = np.abs(other).max(initial=0.0, where=np.isfinite(other))
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * scale, err_msg=field.name)


@pytest.mark.parametrize(
    ("m", "options"),
    [
        (1, {}),
        (1, {"outliers": 0.0, "new_dof": 100.0}),
        (2, {"outliers": 0.0}),
        (4, {"keep": 1}),
        (4, {"keep": 40}),
        (12, {}),
        (9, {"new_dof": 100.0, "before": 7, "time": 3.5}),
    ],
)
def test_rows_of_any_weight_with_outliers_and_changes(m, options):
    rng = np.random.default_rng(m)
    n = 200
    U = np.column_stack([np.ones(n), rng.normal(size=(n, m - 1))])
    y = U @ rng.normal(size=m) + rng.standard_t(3, size=n)
    y[120:] = 2 * y[120:] + 3
    y[[60, 90, 150]] += 40.0
    compiled, reference = both(U, y, **options)
    for i in range(FIRST, n):
        weight = float(rng.choice([0.25, 1.0, 3.0]))
        for runs in (compiled, reference):
            if i == 100:
                runs.known = 95  # a change was reported
            if i % 50 == 0:
                runs.rows += 1  # a row of which something is not known
            runs.learn(U[i], y[i], weight, weight if i % 2 else 1.0, float(i))
        assert_equal(compiled, reference)


@pytest.mark.parametrize(
    "y", [np.zeros(80), np.full(80, 1e140), np.repeat([0.0, 1e30], 40)], ids=["0", "1e140", "jump"]
)
def test_rows_without_noise_and_enormous_ones_stay_finite(y):
    compiled, _ = both(np.column_stack([np.ones(80), np.arange(80.0)]), y)
    for i in range(FIRST, 80):
        compiled.learn(np.array([1.0, i]), y[i])
    assert all(np.isfinite(np.asarray(getattr(compiled, field.name), float)).all() for field in fields(RunLengths))
    assert abs(compiled.weight.sum() - 1) < 1e-9


def test_runs_that_began_together_as_no_stream_makes_them_are_only_given_up_one_by_one():
    U, y = np.ones((60, 1)), np.random.default_rng(0).normal(size=60)
    compiled, _ = both(U, y)
    compiled.start[:] = FIRST
    for i in range(FIRST, 60):
        compiled.rows = FIRST
        compiled.learn(U[i], y[i])
    assert abs(compiled.weight.sum() - 1) < 1e-9 and (compiled.weight >= 0).all()


def test_copies_and_what_was_pickled_go_on_by_themselves():
    U, y = np.ones((60, 1)), np.random.default_rng(0).normal(size=60)
    runs, _ = both(U, y)
    others = [copied(runs), pickle.loads(pickle.dumps(runs))]
    before = runs.theta.copy()
    for one in others:
        one.learn(U[FIRST], y[FIRST])
        np.testing.assert_array_equal(runs.theta, before)
    runs.learn(U[FIRST], y[FIRST])
    for one in others:
        assert_equal(one, runs)
