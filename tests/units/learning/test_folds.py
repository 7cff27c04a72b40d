"""alpha="auto" for penalties other than ridge: the choice by cross-validation from sums of blocks of rows."""

import numpy as np
import pytest
from sklearn.linear_model import Lasso, LassoCV

from kalprox import KalproxRegressor, model_file, penalties


def sparse(n, d=50, true=3, seed=0):
    """Rows of which `true` of d columns matter, by 1 each: X, y, the coefficients."""
    rng = np.random.default_rng(seed)
    X, theta = rng.normal(size=(n, d)), np.r_[np.ones(true), np.zeros(d - true)]
    return X, X @ theta + rng.normal(size=n), theta


def auto(X, y, cuts=None, weights=None, **settings):
    model = KalproxRegressor(**{"penalty": "l1", "alpha": "auto", **settings})
    if cuts is None:
        return model.fit(X, y, weights)
    for a, b in zip([0, *cuts], [*cuts, len(X)], strict=True):
        model.partial_fit(X[a:b], y[a:b], None if weights is None else weights[a:b])
    return model


def risk(model, theta):
    return np.sum((model.coef_ - theta) ** 2)


@pytest.mark.slow
def test_the_risk_and_the_selection_are_those_of_cross_validation():
    risks, kept = [], []
    for seed in range(10):
        X, y, theta = sparse(1000, seed=seed)
        ours, theirs = auto(X, y), LassoCV(cv=5).fit(X, y)
        risks.append([risk(model, theta) for model in (ours, theirs)])
        kept.append((ours.coef_ != 0).sum())
    ours, theirs = np.mean(risks, axis=0)
    assert ours < 1.1 * theirs and np.mean(kept) < 20


def test_alpha_grows_as_the_square_root_of_the_rows():
    sizes, logs = np.array([1000, 4000, 16_000]), []
    for seed in range(4):
        X, y, _ = sparse(16_000, d=20, seed=seed)
        logs.append(np.log([auto(X[:n], y[:n], diagnose=False).alpha_ for n in sizes]))
    c = np.exp(np.mean(logs, axis=0)) / sizes**0.5
    np.testing.assert_allclose(c / c[1], 1, rtol=0.5)


@pytest.fixture(scope="module")
def plain():
    X, y, _ = sparse(1000)
    return auto(X, y)


@pytest.mark.parametrize("block", ["tiny", "constant", "sorted", "no target"])
def test_an_unlucky_first_block_does_not_decide(block, plain):
    X, y, theta = sparse(1000)
    noise, X = y - X @ theta, X.copy()
    if block == "tiny":
        X[:64] *= 1e-6
    elif block == "constant":
        X[:64] = X[0]
    elif block == "sorted":
        order = np.argsort(X[:64, 0])
        X[:64], noise[:64] = X[order], noise[order]
    y = X @ theta + noise
    if block == "no target":
        y[:64] = 0.0
        X[:64] *= 1e-3
    model = auto(X, y)
    assert 0.5 < model.alpha_ / plain.alpha_ < 2
    assert risk(model, theta) < 2 * risk(plain, theta)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"standardize": True},
        {"fit_intercept": False},
        {"forget": 0.999},
        {"penalty": penalties.ElasticNet(0.9)},
        {"noise": 1.0},  # with weights
    ],
    ids=lambda settings: " ".join(settings),
)
def test_the_choice_depends_neither_on_the_batches_nor_on_diagnose(settings):
    """Rows, pieces of batches and folds of the buffer all score the same rows by the same estimates."""
    X, y, _ = sparse(1300, d=10)
    X[:40, 3], X[:, 4] = 1.0, 1e3 + X[:, 4]
    weights = np.tile([2.0, 0.0, 1.0, 1.0], 325) if "noise" in settings else None
    whole = auto(X, y, None, weights, **settings)
    for size in (1, 7, 100, 1300):
        for diagnose in (True, False):
            if size == 1 and diagnose:
                continue  # each row is then predicted for the diagnosis too, which takes long
            cuts = range(size, len(X), size)
            stream = auto(X, y, cuts, weights, diagnose=diagnose, **settings)
            np.testing.assert_allclose(stream.alpha_, whole.alpha_, rtol=1e-9)
            np.testing.assert_allclose(stream.coef_, whole.coef_, rtol=1e-9, atol=1e-12)


def test_the_batches_do_not_matter_to_a_stream_that_begins_with_constant_rows():
    X, y, _ = sparse(500, d=4)
    X[:50], y[:50] = 1.0, 2.0
    models = [auto(X, y, range(size, 500, size), diagnose=False) for size in (1, 9, 45, 64, 500)]
    np.testing.assert_allclose([model.alpha_ for model in models], models[0].alpha_, rtol=1e-9)


def test_fit_is_partial_fit_of_one_batch():
    X, y, _ = sparse(300)
    np.testing.assert_array_equal(auto(X, y).coef_, auto(X, y, []).coef_)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"standardize": True},
        {"forget": 0.999},
        {"noise": 1.0},
        {"fit_intercept": False},
        {"penalty": penalties.ElasticNet(0.9)},
        {"penalty": penalties.Group(np.arange(50) // 2)},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_every_setting_gains_most_of_what_the_penalty_can(settings):
    X, y, theta = sparse(1000)
    model, plain = auto(X, y, **settings), KalproxRegressor(penalty=None, forget=settings.get("forget", 1.0)).fit(X, y)
    assert risk(model, theta) < 0.6 * risk(plain, theta)
    assert 3 <= (model.coef_ != 0).sum() < 30


@pytest.mark.slow
def test_weights_and_several_targets_in_different_units():
    X, y, theta = sparse(1000)
    other = X[:, ::-1] @ theta + np.random.default_rng(1).normal(size=1000)
    both = auto(X, np.column_stack([y, 1e-3 * other]))
    assert both.coef_.shape == (2, 50) and (both.coef_[0] != 0).any()
    weights = np.tile([2.0, 0.0, 1.0], 334)[:1000]
    weighted, repeated = auto(X, y, weights=weights), auto(*(np.repeat(a, weights.astype(int), axis=0) for a in (X, y)))
    assert 0.5 < weighted.alpha_ / repeated.alpha_ < 2
    assert risk(weighted, theta) < 0.1
    same = auto(X, np.column_stack([y, y]))
    np.testing.assert_allclose(same.alpha_, auto(X, y).alpha_, rtol=1e-9)


@pytest.mark.slow
def test_the_choice_follows_the_units():
    X, y, _ = sparse(500, d=8)
    for penalty in ("l1", penalties.ElasticNet(l1_ratio=1.0)):
        plain, other = auto(X, y, penalty=penalty), auto(X * 0.07, y * 30, penalty=penalty)
        np.testing.assert_allclose(other.alpha_, 0.07 * 30 * plain.alpha_, rtol=1e-9)
        np.testing.assert_allclose(other.coef_, 30 / 0.07 * plain.coef_, rtol=1e-8, atol=1e-12)


@pytest.mark.slow
def test_a_few_scored_rows_are_enough_to_decide():
    risks = []
    for seed in range(10):
        X, y, theta = sparse(63, d=20, seed=seed)
        risks.append([risk(auto(X, y), theta), risk(LassoCV(cv=5).fit(X, y), theta)])
    ours, theirs = np.mean(risks, axis=0)
    assert ours < 2 * theirs < 1


SHAPED = (
    "belief.folds.compared.sums.0.shift",
    "belief.folds.compared.sums.5.T",
    "belief.folds.current.shift",
    "belief.spread_before",
)


def test_folds_are_saved_and_a_file_with_other_shapes_is_refused(tmp_path):
    X, y, _ = sparse(200, d=4)
    model = auto(X[:100], y[:100], [])
    model.save(tmp_path / "model.kalprox")
    again = KalproxRegressor.load(tmp_path / "model.kalprox")
    for one in (model, again):
        one.partial_fit(X[100:], y[100:])
    assert again.alpha_ == model.alpha_
    header, arrays = model_file.read(tmp_path / "model.kalprox")
    wrong = {name: arrays[name][:-1] for name in SHAPED}
    wrong |= {"belief.folds.left": np.array(-1.0), "belief.folds.fade": np.array(2.0)}
    for name, value in wrong.items():
        model_file.write(tmp_path / "bad.kalprox", header, {**arrays, name: value})
        with pytest.raises(model_file.ModelFileError, match="not of an estimator that this version can read"):
            KalproxRegressor.load(tmp_path / "bad.kalprox")


def test_exact_data_are_not_shrunk():
    X, _, theta = sparse(200, d=6)
    model = auto(X, X @ theta)
    np.testing.assert_allclose(model.coef_, theta, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("targets", [1, 2])
def test_the_errors_of_the_folds_are_those_of_fits_to_the_other_rows(weighted, targets):
    """By Lasso of scikit-learn, on rows cut into blocks by hand: an eighth of the rows before, but at least one."""
    X, y, _ = sparse(120, d=6)
    y = y if targets == 1 else np.column_stack([y, X[:, 5] - 3 * y])
    w = np.random.default_rng(1).integers(1, 4, len(X)).astype(float) if weighted else np.ones(len(X))
    fold, seen, number, reached = np.zeros(len(X), int), 0.0, 0, 1.0
    for i in range(len(X)):
        fold[i], seen = number % 5, seen + w[i]
        if seen >= reached:
            number, last = number + 1, i + 1
            reached = seen + max(1, seen // 8)
    compared = auto(X, y, weights=w if weighted else None)._learner.state.folds.compared
    c, expected = np.array([3.0, 0.5]), np.zeros((2, targets))
    for k in range(5):
        mine, others = (np.flatnonzero((fold[:last] == k) == same) for same in (True, False))
        n = w[others].sum()
        for i in range(2):
            lasso = Lasso(c[i] / n**0.5, tol=1e-12, max_iter=100_000)  # which divides the sum of squares by n
            error = y[mine] - lasso.fit(X[others], y[others], w[others]).predict(X[mine])
            expected[i] += w[mine] @ error.reshape(len(mine), -1) ** 2
    np.testing.assert_allclose(compared._squares(c), expected, rtol=1e-7)


def test_a_model_that_goes_on_with_auto_compares_the_rows_that_come_then():
    X, y, theta = sparse(600, d=30)
    model = KalproxRegressor(penalty="l1", alpha=1.0).fit(X[:300], y[:300])
    model.set_params(alpha="auto").partial_fit(X[300:310], y[300:310])
    first = model.alpha_  # too few to compare: that of the best BIC
    model.partial_fit(X[310:], y[310:])
    assert all(3 < alpha / 600**0.5 * 12 < 60 for alpha in (first, model.alpha_))
    assert risk(model, theta) < 0.06
