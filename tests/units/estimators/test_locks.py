"""The lock of an estimator, and what is pickled while another thread reads it."""

import copy
import dataclasses
import pickle
import threading

import numpy as np
import pytest
from sklearn.base import clone

from kalprox import KalproxRegressor


def rows(n):
    X = np.random.default_rng(0).normal(size=(n, 2))
    return X, X.sum(axis=1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), clone])
def test_a_copy_has_its_own_lock(copied):
    model = KalproxRegressor(penalty="ridge").fit(*rows(50))
    with model._lock:  # which another thread would wait for
        new = copied(model)
        thread = threading.Thread(target=new.partial_fit, args=rows(20))
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert new._lock is not model._lock and model.n_rows_seen_ == 50


def test_what_is_pickled_does_not_grow_while_it_is():
    """Another thread that reads the model computes cached properties, which made pickling fail now and then."""
    X, y = rows(100)
    model = KalproxRegressor(penalty="ridge").fit(X, y)
    _ = model.coef_std_, model.predict(X, return_std=True)
    belief = model._learner.stream.folded.belief
    assert "posterior" in vars(belief) and "design" in vars(belief.rows)
    for part in (belief, belief.rows, belief.design, belief.information):
        assert set(part.__getstate__()) == {field.name for field in dataclasses.fields(part)}
