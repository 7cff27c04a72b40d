"""alpha="auto" for penalties other than ridge: the choice by prediction, and before there are predictions to score."""

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LassoCV

from kalprox import KalproxRegressor, model_file
from kalprox.learning.alpha_scores import FEWEST_ROWS, AlphaScores, null_ratio
from kalprox.learning.penalties import Penalty


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


@pytest.mark.parametrize("block", ["tiny", "constant", "sorted", "no target"])
def test_an_unlucky_first_block_does_not_decide(block):
    X, y, theta = sparse(1000)
    plain = auto(X, y)
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
        {"penalty": "elasticnet", "l1_ratio": 0.9},
        {"noise": 1.0},  # with weights
    ],
    ids=lambda settings: " ".join(settings),
)
def test_the_choice_depends_neither_on_the_batches_nor_on_diagnose(settings):
    """Rows, pieces of batches and folds of the buffer all score the same rows by the same estimates."""
    X, y, _ = sparse(2300, d=10)
    X[:40, 3], X[:, 4] = 1.0, 1e3 + X[:, 4]
    weights = np.tile([2.0, 0.0, 1.0, 1.0], 575) if "noise" in settings else None
    whole = auto(X, y, None, weights, **settings)
    for size in (1, 7, 100, 1000, 2300):
        for diagnose in (True, False):
            if size == 1 and diagnose:
                continue  # each row is then predicted for the diagnosis too, which takes long
            cuts = range(size, len(X), size)
            stream = auto(X, y, cuts, weights, diagnose=diagnose, **settings)
            np.testing.assert_allclose(stream.alpha_, whole.alpha_, rtol=1e-9)
            np.testing.assert_allclose(stream.coef_, whole.coef_, rtol=1e-9, atol=1e-12)


def test_a_stream_that_begins_with_constant_rows_is_scored_from_the_same_row_on():
    X, y, _ = sparse(500, d=4)
    X[:50], y[:50] = 1.0, 2.0
    models = [auto(X, y, range(size, 500, size), diagnose=False) for size in (1, 9, 45, 64, 500)]
    np.testing.assert_allclose([model.alpha_ for model in models], models[0].alpha_, rtol=1e-9)
    assert models[0]._learner.belief.scores.rows == 500 - 64


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
        {"penalty": "elasticnet", "l1_ratio": 0.9},
        {"penalty": "group", "groups": np.arange(50) // 2},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_every_setting_gains_most_of_what_the_penalty_can(settings):
    X, y, theta = sparse(1000)
    model, plain = auto(X, y, **settings), KalproxRegressor(penalty=None, forget=settings.get("forget", 1.0)).fit(X, y)
    assert risk(model, theta) < 0.6 * risk(plain, theta)
    assert 3 <= (model.coef_ != 0).sum() < 25


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


def test_the_choice_follows_the_units():
    X, y, _ = sparse(500, d=8)
    for penalty in ("l1", "elasticnet"):
        plain, other = auto(X, y, penalty=penalty, l1_ratio=1.0), auto(X * 0.07, y * 30, penalty=penalty, l1_ratio=1.0)
        np.testing.assert_allclose(other.alpha_, 0.07 * 30 * plain.alpha_, rtol=1e-9)
        np.testing.assert_allclose(other.coef_, 30 / 0.07 * plain.coef_, rtol=1e-8, atol=1e-12)


def test_a_few_scored_rows_are_enough_to_decide():
    risks = []
    for seed in range(10):
        X, y, theta = sparse(63, d=20, seed=seed)
        risks.append([risk(auto(X, y), theta), risk(LassoCV(cv=5).fit(X, y), theta)])
    ours, theirs = np.mean(risks, axis=0)
    assert ours < 2 * theirs < 1


def test_scores_are_saved_and_a_file_with_other_shapes_is_refused(tmp_path):
    X, y, _ = sparse(200, d=4)
    model = auto(X[:100], y[:100], [])
    model.save(tmp_path / "model.kalprox")
    again = KalproxRegressor.load(tmp_path / "model.kalprox")
    for one in (model, again):
        one.partial_fit(X[100:], y[100:])
    assert again.alpha_ == model.alpha_
    header, arrays = model_file.read(tmp_path / "model.kalprox")
    for name in ("alpha_scores.c", "alpha_scores.squares", "alpha_scores.maps", "spread"):
        model_file.write(tmp_path / "bad.kalprox", header, {**arrays, name: arrays[name][:-1]})
        with pytest.raises(model_file.ModelFileError, match="not of an estimator that this version can read"):
            KalproxRegressor.load(tmp_path / "bad.kalprox")


def test_exact_data_are_not_shrunk():
    X, _, theta = sparse(200, d=6)
    model = auto(X, X @ theta)
    np.testing.assert_allclose(model.coef_, theta, atol=1e-6)


def test_a_grid_that_grows_has_the_scores_that_it_would_have_had():
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(30, 1, 1))
    scores = AlphaScores.start(1.0, 1).reaching(1.0, 0.1).after(np.repeat(errors, 5, axis=1), np.ones(30), 1.0)
    longer = scores.reaching(5.0, 0.05)
    assert longer.c[0] >= 5 and longer.c[-1] <= 0.05 and np.isin(scores.c, longer.c).all()
    np.testing.assert_allclose(longer.squares[:, 0], scores.squares[0, 0], rtol=1e-15)
    assert scores.reaching(0.9, 0.2) is scores
    assert len(scores.reaching(1e9, 1e-300).c) == 41 and scores.reaching(1e9, 1.0).c[0] >= 1e9
    halves = AlphaScores.start(1.0, 1).after(errors[:9], np.ones(9), 0.9).after(errors[9:], np.ones(21), 0.9)
    whole = AlphaScores.start(1.0, 1).after(errors, np.ones(30), 0.9)
    np.testing.assert_allclose(halves.squares, whole.squares, rtol=1e-13)


@pytest.mark.parametrize(("n", "d"), [(6, 50), (12, 4), (31, 20)])
def test_noise_exceeds_the_safe_alpha_in_one_case_of_a_hundred(n, d):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    X -= X.mean(axis=0)
    noise = rng.normal(size=(n, 4000))
    noise -= noise.mean(axis=0)
    penalty = Penalty.of("l1", "auto")
    exceeds = np.abs(X.T @ (noise / np.linalg.norm(noise, axis=0))).max(axis=0) > null_ratio(
        penalty, np.linalg.qr(X, mode="r"), n - 1
    )
    # The largest of 99 draws is exceeded with a probability of law Beta(1, 99): at most 0.052 in 99.5 of 100 cases.
    assert exceeds.mean() < scipy.stats.beta(1, 99).ppf(0.995)


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["none", "one", "weak", "dense"])
@pytest.mark.parametrize(("n", "d"), [(5, 1), (5, 50), (12, 5), (20, 50), (31, 10)])
def test_few_rows_are_never_predicted_worse_than_by_the_mean(n, d, signal):
    seeds, gains = 40, []
    for seed in range(seeds):
        rng = np.random.default_rng([n, d, seed])
        X = rng.normal(size=(n, d))
        theta = {"none": 0.0, "one": np.eye(d)[0] * 2, "weak": 0.5, "dense": 3.0}[signal] * np.ones(d)
        theta = theta * rng.normal(size=d) / d**0.5 if signal in ("weak", "dense") else theta
        y = 3 + X @ theta + rng.normal(size=n)
        model = auto(X, y)
        ours, theirs = risk(model, theta) + (model.intercept_ - 3) ** 2, np.sum(theta**2) + (y.mean() - 3) ** 2
        gains.append((theirs - ours) / (1 + theirs))  # the noise variance is 1
    gains = np.array(gains)
    worse = (gains < -1e-9).sum()
    assert worse <= scipy.stats.binom(seeds, 0.02).ppf(0.999)
    assert gains.mean() > -0.005 and gains.min() > -1
    if signal == "one" and n >= 20:
        assert gains.mean() > 0.2


def test_scores_of_fewer_rows_than_are_needed_are_saved_as_they_were_restored():
    """Those of version 0.1 with fewer than 32 rows became a model that could not be saved again."""
    scores = AlphaScores.of_log_scores(np.array([2.0, 1.0]), np.array([-3.0, -4.0]), 10.0, 1)
    assert type(scores.rows) is float and scores.rows == FEWEST_ROWS
