"""A bank of ways to forget: its weights by hand, its bounds, and what it reads and refuses."""

import numpy as np
import pytest
from scipy import stats

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.forgetting import ByRow, RandomWalk
from kalprox.learning.bank import Bank, member_settings, predicted, ways_to_forget
from kalprox.learning.exact import Exact
from kalprox.learning.learner import Learner
from kalprox.learning.mixed import RATES, Odds, WeightRecord
from kalprox.learning.settings import Settings
from kalprox.sources import Block

LOSS = 0.0001  # the share of the rates


def drifting(seed, n=600, d=3, step=0.1, level=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    coef = 1 + np.cumsum(rng.normal(scale=step, size=(n, d)), axis=0)
    return X, (X * coef).sum(axis=1) + np.cumsum(rng.normal(scale=level, size=n)) + rng.normal(size=n)


def still(seed, n=600, d=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, 2 + X @ np.arange(1.0, d + 1) + rng.normal(size=n)


def one_by_one(X, y, way, **settings):
    """The mean, the scale and the degrees of freedom of every row, by a model with one way to forget."""
    learner, found = Learner(Settings.of(forget=way, **settings)), []
    for i in range(len(y)):
        row = X[i : i + 1], y[i : i + 1]
        if i:
            said = learner.belief.predict(row[0])
            found.append([float(said.mean[0]), float(said.std[0]), float(np.broadcast_to(said.dof, 1)[0])])
        learner.learn(Block(*row))
    return np.array([[np.nan, np.inf, np.inf], *found])


def mixed_by_hand(log_prob, rates=RATES, share=LOSS):
    """The weights before each row and the log scores, by loops over members, rates and rows. NaN is no claim."""
    K, n = log_prob.shape
    w = [[1 / (K * len(rates))] * K for _ in rates]
    weights, scores = [], []
    for t in range(n):
        weights.append([sum(row[k] for row in w) for k in range(K)])
        awake = [k for k in range(K) if np.isfinite(log_prob[k, t])]
        if not awake:
            scores.append(np.nan)
            continue
        total = sum(weights[-1][k] for k in awake)
        mean = sum(weights[-1][k] * np.exp(log_prob[k, t]) for k in awake) / total
        scores.append(np.log(mean))
        p = [np.exp(log_prob[k, t]) / mean if k in awake else 1.0 for k in range(K)]
        w = [[row[k] * p[k] for k in range(K)] for row in w]
        w = [[(1 - r) * v + r * sum(row) / K for v in row] for r, row in zip(rates, w, strict=True)]
        columns = [sum(row[k] for row in w) / len(rates) for k in range(K)]
        w = [[(1 - share) * row[k] + share * columns[k] for k in range(K)] for row in w]
    return np.array(weights), np.array(scores)


# ---- weights ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [None, "ridge"])
def test_weights_are_those_of_members_that_run_alone(penalty):
    X, y = drifting(0, n=120)
    settings = {"penalty": penalty}
    ways = ways_to_forget(Settings.of(forget="auto", **settings), Exact)
    said = np.array([one_by_one(X, y, way, **settings) for way in ways.values()])
    known = np.isfinite(said).all(axis=2) & (said[:, :, 2] > 0)
    log_prob = np.where(known, stats.t.logpdf(y, said[:, :, 2], said[:, :, 0], said[:, :, 1]), np.nan)
    weights, scores = mixed_by_hand(log_prob)
    model = KalproxRegressor(forget="auto", **({"penalty": "ridge"} | settings))
    for i in range(len(y)):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    found = model.forget_weights_
    assert found.names == tuple(ways)
    np.testing.assert_allclose(found.weights[:-1], weights, rtol=1e-6)
    assert float(model.diagnostics_.log_score) == pytest.approx(np.nansum(scores), rel=1e-7)
    some = known.any(axis=0)
    share, mean = np.where(known, weights.T, 0)[:, some], np.where(known, said[:, :, 0], 0)[:, some]
    rmse = np.sqrt(np.mean((y[some] - (share * mean).sum(axis=0) / share.sum(axis=0)) ** 2))
    assert float(model.diagnostics_.rmse) == pytest.approx(rmse, rel=1e-7)


def test_a_bank_of_one_member_is_that_member():
    X, y = drifting(1)
    settings = Settings.of(forget="auto", penalty="ridge")
    way = member_settings(settings, ByRow(0.99))
    odds = Odds.equal(1, None)
    bank = Bank(settings, (Exact.start(way, [Block(X, y)]),), odds, WeightRecord.start(odds.weights))
    bank = bank.learn(Block(X, y)).belief
    alone = KalproxRegressor(forget=0.99, penalty="ridge").fit(X, y)._belief
    assert (bank.weights == 1).all()
    for name in ("coef", "intercept"):
        np.testing.assert_array_equal(getattr(bank, name), getattr(alone, name))
    for name in ("coef_std", "intercept_std", "covariance"):
        np.testing.assert_allclose(getattr(bank, name), getattr(alone, name), rtol=1e-12)
    mine, theirs = bank.predict(X[:5]), alone.predict(X[:5])
    np.testing.assert_array_equal(mine.std, theirs.std)
    np.testing.assert_allclose(bank.coef_interval(0.9), alone.coef_interval(0.9), rtol=1e-12)
    assert float(bank.noise.dof) == pytest.approx(float(alone.noise.dof), rel=1e-12)


def test_a_member_without_a_claim_keeps_its_weight():
    log_prob = np.array([[-1.0, -1.0], [np.nan, -3.0], [-2.0, -1.5]])
    _, path = Odds.equal(3, None).after(log_prob, np.isfinite(log_prob), None)
    by_hand, _ = mixed_by_hand(np.column_stack([log_prob, np.zeros(3)]))
    np.testing.assert_allclose(path, by_hand, rtol=1e-12)


def test_a_row_that_counts_twice_moves_the_weights_as_two_rows():
    log_prob = np.array([[-1.0], [-2.0]])
    known = np.ones((2, 1), bool)
    twice, path = Odds.equal(2, None).after(log_prob, known, np.array([2.0]))
    none, _ = Odds.equal(2, None).after(log_prob, known, np.array([0.0]))
    np.testing.assert_array_equal(none.joint, Odds.equal(2, None).joint)
    assert path[1, 0] == pytest.approx(1 / (1 + np.exp(-2)), abs=0.06)  # but for what is shared
    assert twice.weights.sum() == pytest.approx(1)


@pytest.mark.slow
def test_the_loss_to_the_best_member_is_bounded_on_still_streams():
    """At most log(K M) and what the smallest rate and the share of the rates cost in n rows, in every stream."""
    losses = []
    for seed in range(8):
        X, y = still(seed, n=800)
        bank = Learner(Settings.of(forget="auto", penalty="ridge"))
        bank.learn(Block(X[:50], y[:50]))
        before = bank.state
        found = [before._taken(member, Block(X[50:], y[50:]), False)[1] for member in before.members]
        log_prob = np.array([predicted(before.settings.likelihood, one).log_prob(y[50:]) for one in found])
        start = float(bank.score.log_score)
        bank.learn(Block(X[50:], y[50:]))
        mixture, n, (M, K) = float(bank.score.log_score) - start, 750, before.odds.joint.shape
        best = int(log_prob.sum(axis=1).argmax())
        bound = -np.log(before.odds.weights[best] / M) - n * np.log(
            (1 - RATES[0] * (1 - 1 / K)) * (1 - LOSS * (1 - 1 / M))
        )
        losses.append(log_prob.sum(axis=1).max() - mixture)
        assert losses[-1] <= bound
    assert np.mean(losses) < np.log(8)


@pytest.mark.slow
def test_the_mixture_beats_every_member_where_the_drift_changes():
    X1, y1 = still(3, n=700)
    X2, y2 = drifting(4, n=700, step=0.3)
    X, y = np.concatenate([X1, X2, X1]), np.concatenate([y1, y2, y1])
    auto = float(KalproxRegressor(forget="auto", penalty="ridge").fit(X, y).diagnostics_.log_score)
    ways = (1.0, 0.9995, 0.998, 0.99, 0.96, RandomWalk(0, intercept=0.01))
    best = max(float(KalproxRegressor(forget=way, penalty="ridge").fit(X, y).diagnostics_.log_score) for way in ways)
    assert auto > best


@pytest.mark.slow
def test_intervals_of_the_mixture_cover_on_drifting_streams():
    """The number inside is binomial if the predictions are right: |z| < 3.5 over all streams, 1,500 rows."""
    inside = rows = 0
    for seed in range(5):
        X, y = drifting(seed, n=500, step=0.1, level=0.1)
        model = KalproxRegressor(forget="auto", penalty="ridge")
        model.partial_fit(X[:200], y[:200])
        for i in range(200, 500):
            low, high = model.predict_interval(X[i : i + 1], level=0.9)
            inside, rows = inside + int(low[0] <= y[i] <= high[0]), rows + 1
            model.partial_fit(X[i : i + 1], y[i : i + 1])
    assert abs(inside - 0.9 * rows) < 3.5 * np.sqrt(0.09 * rows)


def test_walking_intercept_wins_where_only_the_level_drifts():
    X, y = drifting(5, n=900, step=0.0, level=0.3)
    found = KalproxRegressor(forget="auto", penalty="ridge").fit(X, y).forget_weights_
    assert sum(w for name, w in zip(found.names, found.weights[-1], strict=True) if "intercept" in name) > 0.9


# ---- splits, saving, targets -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_a_penalty_any_split_gives_the_same():
    X, y = drifting(6)
    models = [KalproxRegressor(penalty=None, forget="auto") for _ in range(3)]
    for model, size in zip(models, (1, 97, 600), strict=True):
        for i in range(0, 600, size):
            model.partial_fit(X[i : i + size], y[i : i + size])
    for model in models[1:]:
        np.testing.assert_allclose(model.forget_weights_.weights, models[0].forget_weights_.weights, atol=1e-8)
        np.testing.assert_allclose(model.coef_, models[0].coef_, atol=1e-10)
        np.testing.assert_allclose(model.coef_std_, models[0].coef_std_, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 40])
def test_saved_and_resumed_bit_for_bit(tmp_path, size):
    X, y = drifting(7)
    one = KalproxRegressor(forget="auto", penalty="ridge")
    one.partial_fit(X[:300], y[:300])
    for i in range(300, 320):
        one.partial_fit(X[i : i + 1], y[i : i + 1])
    one.save(tmp_path / "model")
    other = KalproxRegressor.load(tmp_path / "model")
    for model in (one, other):
        for i in range(320, 600, size):
            model.partial_fit(X[i : i + size], y[i : i + size])
    np.testing.assert_array_equal(one._belief.odds.joint, other._belief.odds.joint)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.covariance_, other.covariance_)
    assert float(one.diagnostics_.log_score) == float(other.diagnostics_.log_score)
    for a, b in zip(one.forget_weights_, other.forget_weights_, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_targets_have_weights_of_their_own():
    X, y = still(8)
    drifted = X[:, 0] * np.linspace(-5, 5, len(X)) + np.random.default_rng(0).normal(size=len(X))
    model = KalproxRegressor(forget="auto", penalty="ridge").fit(X, np.column_stack([y, drifted]))
    alone = [KalproxRegressor(forget="auto", penalty="ridge").fit(X, target) for target in (y, drifted)]
    for j, one in enumerate(alone):
        np.testing.assert_allclose(model.forget_weights_.weights[-1, :, j], one.forget_weights_.weights[-1], atol=1e-6)
        np.testing.assert_allclose(model.coef_[j], one.coef_, atol=1e-6)
        np.testing.assert_allclose(model.coef_std_[j], one.coef_std_, rtol=1e-4)
    coef, intercept = model.sample(7, random_state=0)
    assert coef.shape == (7, 2, 3) and intercept.shape == (7, 2)
    low, high = model.predict_interval(X[:4])
    assert low.shape == (4, 2) and (low < high).all()


def test_draws_have_the_moments_that_are_read():
    X, y = drifting(9)
    model = KalproxRegressor(forget="auto", penalty="ridge").fit(X, y)
    coef, intercept = model.sample(40_000, random_state=0)
    error = model.coef_std_ / np.sqrt(len(coef))
    assert (np.abs(coef.mean(axis=0) - model.coef_) < 5 * error).all()
    np.testing.assert_allclose(coef.std(axis=0), model.coef_std_, rtol=0.05)  # Student's tails
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_)), model.coef_std_, rtol=1e-10)
    assert intercept.mean() == pytest.approx(model.intercept_, abs=5 * model.intercept_std_ / 200)


def test_a_record_is_bounded_and_does_not_depend_on_the_batches():
    rng = np.random.default_rng(0)
    path = rng.dirichlet(np.ones(3), size=5000)
    whole = WeightRecord.start(path[0]).after(path, None)
    parts = WeightRecord.start(path[0])
    for i in range(0, 5000, 7):
        parts = parts.after(path[i : i + 7], None)
    assert len(whole.rows) <= 256 and whole.stride == parts.stride
    np.testing.assert_array_equal(whole.rows, parts.rows)
    np.testing.assert_array_equal(whole.weights, parts.weights)
    np.testing.assert_array_equal(whole.weights[1:], path[whole.rows[1:].astype(int) - 1])


# ---- other settings, and refusals ------------------------------------------------------------------------------


def test_classes_row_by_row_and_in_blocks_are_the_same():
    rng = np.random.default_rng(10)
    X = rng.normal(size=(300, 2))
    y = (X[:, 0] * np.linspace(-3, 3, 300) + rng.logistic(size=300) > 0).astype(int)
    models = [KalproxClassifier(forget="auto") for _ in range(2)]
    for model, size in zip(models, (1, 300), strict=True):
        for i in range(0, 300, size):
            model.partial_fit(X[i : i + size], y[i : i + size], classes=[0, 1])
    single, whole = models
    np.testing.assert_allclose(single.coef_, whole.coef_, atol=0.05)  # the prior of the intercept is at another point
    proba, std = whole.predict_proba(X, return_std=True)
    assert (std > 0).all() and np.allclose(proba.sum(axis=1), 1)
    np.testing.assert_allclose(np.log(proba[:, 1] / proba[:, 0]), whole.decision_function(X), atol=1e-9)
    fixed = KalproxClassifier(forget=0.998).fit(X, y)
    assert float(whole.diagnostics_.log_loss) < np.log(2) + 0.05
    assert whole.coef_[0, 0] > fixed.coef_[0, 0]  # which remembers the slopes of the beginning


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"penalty": "l1"},
        {"alpha": "auto"},
        {"coef_cov": "robust"},
        {"noise": "inputs"},
        {"noise": 1.0},
        {"fit_intercept": False},
        {"standardize": True},
        {"weight_kind": "precision"},
        {"diagnose": False},
        {"likelihood": "poisson"},
    ],
)
def test_every_setting_learns_reads_and_resumes(tmp_path, settings):
    X, y = still(11, n=240)
    y = np.round(np.abs(y)) if "likelihood" in settings else y
    weights = np.linspace(0.5, 2, len(y))
    model = KalproxRegressor(forget="auto", **({"penalty": "ridge"} | settings))
    for i in range(0, 160, 40):
        model.partial_fit(X[i : i + 40], y[i : i + 40], weights[i : i + 40])
    model.save(tmp_path / "model")
    other = KalproxRegressor.load(tmp_path / "model")
    for one in (model, other):
        one.partial_fit(X[160:161], y[160:161])
        one.partial_fit(X[161:], y[161:])
    np.testing.assert_array_equal(model.coef_, other.coef_)
    np.testing.assert_array_equal(model.coef_std_, other.coef_std_)
    assert model.forget_weights_.weights[-1].sum() == pytest.approx(1)
    low, high = model.predict_interval(X[:3])
    assert (low <= high).all() and np.isfinite(model.coef_std_).all()
    assert "auto: " in str(model.summary())


def test_what_cannot_be_is_refused_by_name():
    X, y = still(12, n=60)
    model = KalproxRegressor(forget="auto", penalty="ridge").fit(X, y)
    with pytest.raises(ValueError, match=r"merge needs forget=1, .* got forget='auto'"):
        model.merge(KalproxRegressor(forget="auto", penalty="ridge").fit(X[::-1], y))
    with pytest.raises(ValueError, match=r"without an order of rows .* needs forget=1, .* got forget='auto'"):
        KalproxRegressor(forget="auto", engine="local", penalty="ridge").fit(X, y)
    with pytest.raises(ValueError, match=r"anytime=True needs forget=1, .* got forget='auto'"):
        model.coef_interval(anytime=True)
    with pytest.raises(ValueError, match=r"forget cannot change from 'auto' to 0.99"):
        model.set_params(forget=0.99).partial_fit(X, y)
    with pytest.raises(ValueError, match=r"or be 'auto', or one of kalprox.forgetting"):
        KalproxRegressor(forget="Auto", penalty="ridge").fit(X, y)
    assert not hasattr(KalproxRegressor(penalty="ridge").fit(X, y), "forget_weights_")


@pytest.mark.slow
def test_awkward_streams_stay_finite():
    rng = np.random.default_rng(13)
    for X, y in (
        (np.zeros((9, 2)), rng.normal(size=9)),  # dead columns
        (np.repeat(rng.normal(size=(3, 3)), 4, axis=0), np.repeat(rng.normal(size=3), 4)),  # sorted, repeated
        (rng.normal(size=(6, 20)), rng.normal(size=6)),  # far more columns than rows
        (1e8 + rng.normal(size=(9, 2)), np.full(9, 3.0)),  # far from zero, and a constant target
    ):
        for penalty, size in (("ridge", 1), ("ridge", 5), (None, 5)):
            model = KalproxRegressor(forget="auto", penalty=penalty).partial_fit(X[:1], y[:1])
            for i in range(1, len(y), size):
                model.partial_fit(X[i : i + size], y[i : i + size])
            assert np.isfinite(model.predict(X)).all() and np.isfinite(model.coef_).all()
            assert model.forget_weights_.weights[-1].sum() == pytest.approx(1)
