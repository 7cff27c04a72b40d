"""Innovations: every row predicted from all rows before it, in blocks as one by one."""

import numpy as np
import pytest
from data import linear

from kalprox import KalproxRegressor
from kalprox.learning.innovations import Innovations
from kalprox.regularizers import Quadratic
from kalprox.sources import Block

N, FIRST, D = 110, 30, 4
SETTINGS = {
    "none": {"penalty": None},
    "ridge": {"alpha": 5.0},
    "heavy ridge": {"alpha": 5e3},
    "quadratic": {"penalty": Quadratic(np.triu(np.ones((D, D))))},
    "no intercept": {"alpha": 5.0, "fit_intercept": False},
    "noise": {"alpha": 5.0, "noise": 0.5},
    "forget": {"penalty": None, "forget": 0.97},
    "forget noise": {"penalty": None, "forget": 0.97, "noise": 0.5},
}


def rows(kind="", n=N, d=D):
    X, y = linear(n, d)
    rng = np.random.default_rng(1)
    if kind == "far":
        X = X + 1e8
        y = y + 1e8
    if kind == "targets":
        y = np.column_stack([y, 1e3 * rng.normal(size=n) + X[:, 0], np.abs(y)])
    if kind in ("frequency", "precision"):
        weights = rng.integers(0, 4, size=n) + 0.0 if kind == "frequency" else rng.gamma(2, size=n)
        weights[50] = 0
        return X, y, weights
    return X, y, None


def of_a_block(X, y, w, **settings):
    """The innovations of the rows after the first, as one block."""
    some = None if w is None else w[:FIRST]
    state = (
        KalproxRegressor(diagnose=False, **({"penalty": "ridge"} | settings))
        .fit(X[:FIRST], y[:FIRST], some)
        ._learner.state
    )
    block = Block(X[FIRST:], y[FIRST:], None if w is None else w[FIRST:])
    return state.innovations(block, state.learn(block), exact=True)


def one_by_one(X, y, w, **settings):
    """Mean, std and dof for each row after the first, by a fit to the rows before it."""
    found = []
    for i in range(FIRST, len(y)):
        some = None if w is None else w[:i]
        model = KalproxRegressor(diagnose=False, **({"penalty": "ridge"} | settings)).fit(X[:i], y[:i], some)
        sigma = w[i] ** -0.5 if settings.get("weight_kind") == "precision" and w[i] else None
        mean, std = model.predict(X[i : i + 1], return_std=True, sigma=sigma)
        found.append((mean[0], std[0], np.broadcast_to(model.noise_dof_, mean[0].shape)))
    return map(np.stack, zip(*found, strict=True))


def check(found, expected, counted, rtol=1e-11):
    for ours, theirs in zip((found.mean, found.std, found.dof), expected, strict=True):
        np.testing.assert_allclose(ours[counted], theirs[counted], rtol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "far", "targets", "frequency", "precision"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_block_gives_the_innovations_of_its_rows_one_by_one(name, kind):
    X, y, weights = rows(kind)
    settings = SETTINGS[name] | ({"weight_kind": kind} if weights is not None else {})
    counted = slice(None) if weights is None else weights[FIRST:] > 0
    rtol = 1e-7 if kind == "far" else 1e-11  # at 1e8 the inputs themselves, less their mean, are known to 1e-8
    check(of_a_block(X, y, weights, **settings), one_by_one(X, y, weights, **settings), counted, rtol)


@pytest.mark.parametrize("kind", ["", "targets"])
def test_on_a_fixed_active_set_l1_is_exact(kind):
    X, y, _ = rows()
    X = X - X[:, :2] @ np.linalg.lstsq(X[:, :2], X)[0] * [0, 0, 1, 1]
    y = X[:, :2].sum(axis=1) * 20 + 0.1 * y
    y = np.column_stack([y, 0.7 * y + X[:, 0]]) if kind == "targets" else y
    settings = {"penalty": "l1", "alpha": 40.0}
    zeros = np.array(
        [
            KalproxRegressor(**({"penalty": "ridge"} | settings), diagnose=False).fit(X[:i], y[:i]).coef_ == 0
            for i in range(FIRST, N, 8)
        ]
    )
    assert (zeros == zeros[0]).all() and zeros[0].any()
    check(of_a_block(X, y, None, **settings), one_by_one(X, y, None, **settings), slice(None), 1e-9)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_rows_of_enormous_leverage_are_learned_and_predicted(size):
    X, y, _ = rows()
    X[FIRST:, 3] *= size
    settings = {"alpha": 1.0, "noise": 0.5}
    found, (mean, std, _) = of_a_block(X, y, None, **settings), one_by_one(X, y, None, **settings)
    assert found.std[0] > 1e-3 * size  # the column was known only to one part in its old size
    rtol = 10 * np.finfo(float).eps * size + 1e-11  # what is left of the column's old uncertainty is a part 1 / size
    np.testing.assert_allclose(found.mean[1:], mean[1:], rtol=rtol, atol=10 * rtol)
    np.testing.assert_allclose(found.std, std, rtol=rtol)


def test_forgetting_fades_a_penalty_only_within_a_block():
    """The filter fades the curvature of the penalty with the rows; the block is as short as that makes little."""
    X, y, _ = rows()
    for alpha in (0.1, 5.0):
        settings = {"alpha": alpha, "forget": 0.99}
        found, (mean, std, _) = of_a_block(X, y, None, **settings), one_by_one(X, y, None, **settings)
        # Over the 80 rows half of alpha fades, which moves predictions by some alpha / 2 / 60 rows of their size.
        assert np.abs(found.mean - mean).max() < alpha / 60 * np.abs(mean).max()
        np.testing.assert_allclose(found.std, std, rtol=alpha / 60)
        np.testing.assert_allclose(found.mean[0], mean[0], rtol=1e-11)  # the first row has seen no fading


def test_the_intervals_issued_are_those_before_the_block():
    for name in ("none", "ridge", "forget", "noise"):
        X, y, _ = rows()
        model = KalproxRegressor(diagnose=False, **({"penalty": "ridge"} | SETTINGS[name])).fit(X[:FIRST], y[:FIRST])
        mean, std = model.predict(X[FIRST:], return_std=True)
        found = of_a_block(X, y, None, **SETTINGS[name])
        np.testing.assert_allclose(found.issued, (y[FIRST:] - mean) / std, rtol=1e-10, atol=1e-11)


def test_rows_that_could_not_be_predicted():
    none = Innovations.unknown(np.ones((3, 2)))
    assert np.isnan(none.mean).all() and np.isinf(none.std).all() and np.isnan(none.standardised(np.ones((3, 2)))).all()


# ---- a stream --------------------------------------------------------------------------------------

KINDS = ["", "targets", "frequency", "precision"]
STREAMS = {
    "none": {"penalty": None},
    "ridge": {"alpha": 5.0},
    "no intercept": {"fit_intercept": False},
    "smooth": {"penalty": "smooth_l1"},
    "l1": {"penalty": "l1", "alpha": 30.0},
    "standardize": {"standardize": True},
    "noise": {"noise": 1.0},
    "forget": {"penalty": None, "forget": 0.99},
    "forget ridge": {"forget": 0.99},
    "auto": {"alpha": "auto"},
}


def score(X, y, w, size, **settings):
    model = KalproxRegressor(**({"penalty": "ridge"} | settings))
    if size is None:
        return model.fit(X, y, w).diagnostics_
    for i in range(0, len(y), size):
        some = slice(i, i + size)
        model.partial_fit(X[some], y[some], None if w is None else w[some])
    return model.diagnostics_


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [(name, KINDS[(i + j) % 4]) for i, name in enumerate(STREAMS) for j in range(2)]
)
def test_the_score_does_not_depend_on_the_batches(name, kind):
    settings = STREAMS[name]
    # Rows of weight 3 move the count by 3. Where alpha is chosen, the noise level of a fit lags by up to half the rows.
    n = 5000 if name == "auto" else 30_000 if kind == "frequency" else 20_000
    X, y, weights = rows(kind, n)
    if weights is not None:
        settings = settings | {"weight_kind": kind}
    sizes = [64, 300, 5000, None] if name in ("none", "ridge") and kind == "" else [300, None]
    scores = [score(X, y, weights, size, **settings) for size in sizes]
    known = scores[0]
    total = n if weights is None else weights.sum() if kind == "frequency" else (weights > 0).sum()
    total = total * (y.shape[1] if y.ndim == 2 else 1)
    for other in scores:
        assert other.rows == known.rows and other.undetermined == known.undetermined
        assert other.rows + other.undetermined == total
        np.testing.assert_allclose(other.rmse, known.rmse, rtol=1e-3)
        np.testing.assert_allclose(other.coverage, known.coverage, atol=5e-3 if name == "auto" else 1e-3)


@pytest.mark.parametrize("name", ["none", "ridge", "no intercept", "noise"])
def test_short_batches_have_the_score_of_single_rows(name):
    X, y, _ = rows("", 700)
    single = score(X, y, None, 1, **STREAMS[name])
    for size in (7, 64, 256):
        other = score(X, y, None, size, **STREAMS[name])
        assert (other.rows, other.undetermined) == (single.rows, single.undetermined)
        for field in ("rmse", "nis", "coverage"):
            np.testing.assert_allclose(getattr(other, field), getattr(single, field), rtol=1e-9)


@pytest.mark.parametrize("size", [1, 7, 400, None])
def test_a_column_that_appears_late(size):
    X, y, _ = rows("", 400)
    X[:150, 3] = 0.0
    found = score(X, y, None, size, penalty=None)
    # Before the third row of four known columns and an intercept, and at row 150, nothing is determined; at the row
    # after the first four there are no degrees of freedom left.
    assert found.undetermined == 4 + 1 + 1 and found.rows == 400 - 6
    first = KalproxRegressor(penalty=None).fit(X[:150], y[:150])
    _, std = first.prequential(X[150:], y[150:])
    assert np.isinf(std[0]) and np.isfinite(std[1:]).all()


@pytest.mark.parametrize("size", [1, 7, 100, None])
def test_columns_that_depend_on_each_other(size):
    X, y, _ = rows("", 300)
    X = np.column_stack([X, X[:, 0] + X[:, 1], np.ones(300)])
    found, plain = score(X, y, None, size, penalty=None), score(X[:, :4], y, None, size, penalty=None)
    assert (found.rows, found.undetermined) == (plain.rows, plain.undetermined)
    np.testing.assert_allclose(found.coverage, plain.coverage, rtol=1e-12)
    np.testing.assert_allclose(found.nis, plain.nis, rtol=1e-7)


@pytest.mark.parametrize("kind", ["equal rows", "rows of unequal leverage", "new directions"])
def test_rows_of_moderate_leverage_are_predicted_by_the_estimate_before_them(kind):
    """Each with its own leverage; where a few rows decide what is known of others, each from all rows before it."""
    d, n, more = 250, 2600, 200  # 10 to 20 rows for each coefficient
    X, y = linear(n + more, d)
    if kind == "rows of unequal leverage":
        X[n + 1 :: 10] *= 2
    if kind == "new directions":
        X[:n, -20:] *= 1e-3
    model = KalproxRegressor(alpha=1.0, penalty="ridge").fit(X[:n], y[:n])
    state, block = model._learner.state, Block(X[n:], y[n:])
    assert state.current_scorer is not None
    _, found = state._predicted(block)
    mean, std = model.predict(block.X, return_std=True)
    exact = state.innovations(block, state.learn(block))
    if kind == "new directions":
        np.testing.assert_allclose(found.std, exact.std, rtol=1e-12)
        return
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.std, std, rtol=1e-9)
    # The variance that predictions have in excess because they lack `more` rows is about d * more / n^2.
    extra = found.scale**2 - exact.scale**2
    assert 0 < extra.mean() < 2 * d * more / n**2
