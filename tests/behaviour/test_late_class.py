"""A declared class that comes late in a stream: its probability is soon that of a fit to all rows so far."""

import numpy as np
import pytest

from kalprox import KalproxClassifier
from kalprox.adapters.river import RiverClassifier

FIRST = 800


def rows(n, seed, size):
    """Three classes, the last of which comes after the first 800 rows, in a share that grows with `size`."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    f = np.column_stack([X[:, 0], -X[:, 1], np.full(n, size)])
    f[:FIRST, 2] = -np.inf
    return X, (f + rng.gumbel(size=f.shape)).argmax(axis=1)


def share(model, X):
    return float(model.predict_proba(X[:500])[:, 2].mean())


@pytest.mark.parametrize(
    ("batch", "size"),
    [(200, 1.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(40, 1.0), (40, -2.0), (200, -2.0)])],
)
def test_the_batches_with_its_first_rows_do_not_overshoot(batch, size):
    X, y = rows(FIRST + 400, 21, size)
    model = KalproxClassifier()
    for i in range(0, len(y), batch):
        model.partial_fit(X[i : i + batch], y[i : i + batch], classes=[0, 1, 2])
        events = int((y[: i + batch] == 2).sum())
        if events > 3:
            fit = share(KalproxClassifier().fit(X[: i + batch], y[: i + batch]), X)
            assert share(model, X) == pytest.approx(fit, rel=0.35)  # it was up to 90 times as much


@pytest.mark.slow
def test_single_rows_do_not_overshoot():
    X, y = rows(FIRST + 60, 22, 0.0)
    model = KalproxClassifier()
    model.partial_fit(X[:FIRST], y[:FIRST], classes=[0, 1, 2])
    for i in range(FIRST, len(y)):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
        if i % 10 == 0 and (y[: i + 1] == 2).sum() > 3:
            fit = share(KalproxClassifier().fit(X[: i + 1], y[: i + 1]), X)
            assert share(model, X) == pytest.approx(fit, rel=0.5)  # it was up to 30 times as much


@pytest.mark.slow
def test_a_stream_that_was_saved_on_the_way_has_the_same_bits(tmp_path):
    X, y = rows(FIRST + 16, 23, 1.0)
    model = KalproxClassifier()
    model.partial_fit(X[:FIRST], y[:FIRST], classes=[0, 1, 2])
    model.save(tmp_path / "model")
    other = KalproxClassifier.load(tmp_path / "model")
    for i in range(FIRST, len(y)):
        for one in (model, other):
            one.partial_fit(X[i : i + 1], y[i : i + 1])
        if i % 7 == 0:
            other.save(tmp_path / "model")
            other = KalproxClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(model.coef_, other.coef_)


CLOSE = {5: 1.2, 10: 0.8, 20: 0.6}  # by its events: the new class begins with one that no row had


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "size", "known"), [(24, 0.0, None), (25, -1.5, None), (26, 1.0, (0, 1))])
def test_a_class_that_nobody_declared(seed, size, known):
    """River's rows one by one; it was 7 to 30 times as much."""
    X, y = rows(FIRST + 100, seed, size)
    model, events = RiverClassifier(classes=known), 0
    named = [dict(zip("ab", x, strict=True)) for x in X.tolist()]
    for i, row in enumerate(named):
        model.learn_one(row, int(y[i]))
        events += int(y[i] == 2)
        if y[i] == 2 and events in CLOSE:
            fit = share(KalproxClassifier().fit(X[: i + 1], y[: i + 1]), X)
            found = np.mean([model.predict_proba_one(one)[2] for one in named[:500:5]])
            assert found == pytest.approx(fit, rel=CLOSE[events])


@pytest.mark.slow
def test_two_classes_that_nobody_declared():
    """What is known of the other classes stays, and the second one is as soon right as the first one."""
    X, y = rows(FIRST + 300, 27, 0.0)
    y[FIRST + 150 :][X[FIRST + 150 :, 0] > 1.2] = 3
    model = RiverClassifier()
    named = [dict(zip("ab", x, strict=True)) for x in X.tolist()]
    for i, row in enumerate(named):
        model.learn_one(row, int(y[i]))
    fit = KalproxClassifier().fit(X, y).predict_proba(X[:500:5])
    found = np.array([[model.predict_proba_one(one)[c] for c in range(4)] for one in named[:500:5]])
    np.testing.assert_allclose(found.mean(axis=0), fit.mean(axis=0), rtol=0.1)
    assert np.abs(found - fit).mean() < 0.01
