"""Decisions: rules, propensities, rewards now, later and in batches, arms that come and go, and regret."""

import math
from collections import Counter
from copy import deepcopy
from datetime import timedelta

import numpy as np
import pytest
from scipy import stats

from kalprox import KalproxRegressor
from kalprox.decisions import Bandit
from kalprox.forgetting import ByTime, RandomWalk

D = 3


def taught(bandit, n=60, seed=0):
    """A bandit with n rewards of arms at random, separate or shared."""
    rng = np.random.default_rng(seed)
    arms = [bandit.arms_[i] for i in rng.integers(len(bandit.arms_), size=n)]
    X = rng.normal(size=(n, D))
    coef = {arm: rng.normal(size=D) for arm in bandit.arms_}
    y = np.array([X[i] @ coef[arms[i]] for i in range(n)]) + rng.normal(size=n)
    bandit.update(X, arms, y)
    return X, arms, y


def played(bandit, rule, rounds, seed=0, noise=1.0, coef=None):
    """The regret of each round of a linear bandit whose best reward is known."""
    rng = np.random.default_rng(seed)
    coef = rng.normal(size=(len(bandit.arms_), D)) if coef is None else coef
    regret = np.empty(rounds)
    for t in range(rounds):
        x = rng.normal(size=D)
        decision = rule(bandit, x)
        k = bandit.arms_.index(decision.arm)
        means = coef @ x
        bandit.reward(decision.key, means[k] + noise * rng.normal())
        regret[t] = means.max() - means[k]
    return regret


# ---- beliefs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fit_intercept", "reward_mean"), [(False, "learn"), (True, "learn"), (True, 0.0), (True, 2.0)]
)
def test_coefficients_and_their_std_are_those_of_a_regression_on_the_rows_of_each_arm(fit_intercept, reward_mean):
    bandit = Bandit(["a", "b", "c"], alpha=0.5, noise=1.5, fit_intercept=fit_intercept, reward_mean=reward_mean)
    X, arms, y = taught(bandit, 90)
    c = (y.mean() if reward_mean == "learn" else reward_mean) if fit_intercept else 0.0
    rows = np.column_stack([np.ones(90), X]) if fit_intercept else X
    first = int(fit_intercept)
    for k, arm in enumerate(bandit.arms_):
        own = np.array(arms) == arm
        model = KalproxRegressor(alpha=0.5, noise=1.5, fit_intercept=False).fit(rows[own], y[own] - c)
        np.testing.assert_allclose(bandit.coef_[k], model.coef_[first:], rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(bandit.coef_std_[k], model.coef_std_[first:], rtol=1e-10)
        assert bandit.intercept_[k] == pytest.approx(c + model.coef_[0] if fit_intercept else 0.0, rel=1e-10)
        assert bandit.n_rows_[k] == own.sum()


def test_shared_features_are_one_regression():
    bandit = Bandit(["a", "b"], features="shared", fit_intercept=False)
    X, _, y = taught(bandit)
    model = KalproxRegressor(fit_intercept=False, penalty="ridge").fit(X, y)
    np.testing.assert_allclose(bandit.coef_, [model.coef_], rtol=1e-10)
    np.testing.assert_allclose(bandit.coef_std_, [model.coef_std_], rtol=1e-10)
    np.testing.assert_allclose(bandit.noise_var_, [model.noise_var_], rtol=1e-10)
    rows = np.random.default_rng(1).normal(size=(2, D))
    mean, std = bandit.predict(rows)
    np.testing.assert_allclose(mean, rows @ model.coef_, rtol=1e-10)
    np.testing.assert_allclose(std, np.sqrt(np.diag(rows @ model.covariance_ @ rows.T)), rtol=1e-10)


def test_draws_have_the_mean_and_the_covariance_of_the_posterior():
    """Of n normal draws the mean has the variance C_ii / n, and a covariance (C_ii C_jj + C_ij^2) / n; 5 sigma each."""
    bandit = Bandit(["a", "b"], noise=1.0, random_state=0)
    taught(bandit)
    n = 20_000
    coef, intercept = bandit.sample_coef(n)
    draws = np.concatenate([intercept[..., None], coef], axis=2)
    for k in range(2):
        root = bandit._fleet.root(k, np.eye(D + 1))
        C, mean = root @ root.T, np.append(bandit.intercept_[k], bandit.coef_[k])
        assert (np.abs(draws[:, k].mean(axis=0) - mean) < 5 * np.sqrt(np.diag(C) / n)).all()
        bound = 5 * np.sqrt((np.outer(np.diag(C), np.diag(C)) + C**2) / n)
        assert (np.abs(np.cov(draws[:, k].T) - C) < bound).all()
    between = np.corrcoef(draws[:, 0].T, draws[:, 1].T)[: D + 1, D + 1 :]
    assert (np.abs(between) < 5 / math.sqrt(n)).all()  # arms are independent


@pytest.mark.parametrize("features", ["separate", "shared"])
@pytest.mark.parametrize("forget", [1.0, ByTime(40.0)])
def test_what_sample_compares_has_the_distribution_of_the_mean_rewards(features, forget):
    """Kolmogorov and Smirnov's test of 2,000 standardised draws against Student's t, at level 1e-4 each."""
    bandit = Bandit([0, 1], features=features, random_state=1, forget=forget, propensity_draws=0)
    taught(bandit, 12)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, D)) if features == "shared" else rng.normal(size=D)
    rows = bandit._context(x)
    mean, std = bandit.predict(x)
    draws = bandit._drawn(rows, 0.5, 2000)
    dof = np.broadcast_to(bandit._fleet.noise().dof, 2)
    for k in range(2):
        scores = (draws[:, k] - mean[k]) / (0.5 * std[k])
        assert stats.kstest(scores, stats.t(dof[k]).cdf).pvalue > 1e-4
    if features == "shared":  # and the draws of the two arms are correlated as their rows say
        root = bandit._fleet.root(0, rows)
        C = root @ root.T
        r = C[0, 1] / math.sqrt(C[0, 0] * C[1, 1])
        found = stats.spearmanr(draws).statistic  # of few degrees of freedom, moments do not exist
        assert abs(found - 6 / math.pi * math.asin(r / 2)) < 0.1


# ---- rules --------------------------------------------------------------------------------------------------


def test_the_bound_of_ucb_is_the_mean_plus_the_width_times_the_std():
    bandit = Bandit(["a", "b", "c"], random_state=0)
    taught(bandit, 30)
    x = np.array([0.3, -1.0, 2.0])
    mean, std = bandit.predict(x)
    decision = bandit.ucb(x, width=1.7)
    np.testing.assert_allclose(decision.values, mean + 1.7 * std, rtol=1e-14)
    assert decision.arm == bandit.arms_[int(np.argmax(mean + 1.7 * std))] and decision.propensity == 1
    quantile = stats.t(bandit._fleet.noise().dof).ppf(0.9)
    np.testing.assert_allclose(bandit.ucb(x, level=0.9).values, mean + quantile * std, rtol=1e-8)
    np.testing.assert_array_equal(bandit.ucb(x, width=0).values, bandit.greedy(x).values)


def test_without_any_width_sample_is_greedy():
    bandit = Bandit(["a", "b", "c"], random_state=0)
    taught(bandit, 30)
    for x in np.random.default_rng(3).normal(size=(20, D)):
        assert bandit.sample(x, width=0).arm == bandit.greedy(x).arm


def test_the_propensities_of_epsilon_are_the_frequencies_of_its_choices():
    """The number of choices of an arm is binomial; 5 sigma of 4,000."""
    bandit, n = Bandit(["a", "b", "c"], random_state=0), 4000
    taught(bandit, 30)
    x, found, stated = np.ones(D), Counter(), {}
    for _ in range(n):
        decision = bandit.epsilon(x, 0.3)
        found[decision.arm] += 1
        stated[decision.arm] = decision.propensity
    assert sum(stated.values()) == pytest.approx(1)
    for arm, p in stated.items():
        assert abs(found[arm] / n - p) < 5 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize("features", ["separate", "shared"])
def test_the_propensities_of_sample_are_the_frequencies_of_its_choices(features):
    """Means over 300 propensities of 50 draws each, and 3,000 choices: errors are binomial, 5 sigma of both.

    The mean propensity of decisions for an arm counts the draw that decided: (1 + 50 p) / 51 instead of p.
    """
    bandit = Bandit(["a", "b", "c"], features=features, random_state=0, propensity_draws=50)
    taught(bandit, 30)
    x = np.random.default_rng(5).normal(size=(3, D)) if features == "shared" else np.array([0.2, 0.1, -0.1])
    n = 3000
    decisions = [bandit.sample(x) for _ in range(n)]
    for arm in bandit.arms_:
        stated = [decision.propensity for decision in decisions if decision.arm == arm]
        p = len(stated) / n
        if len(stated) >= 100:
            spread = math.sqrt(p * (1 - p)) * (1 / math.sqrt(n) + 1 / math.sqrt(51 * len(stated)))
            assert abs(np.mean(stated) - (1 + 50 * p) / 51) < 5 * spread
    assert all(0 < decision.propensity <= 1 for decision in decisions)


def test_arms_of_which_nothing_is_known_are_chosen_alike():
    """800 choices among 4 arms: chi-square with 3 degrees of freedom, at level 1e-6."""
    for rule in ("sample", "ucb", "greedy", "epsilon"):
        bandit = Bandit([0, 1, 2, 3], random_state=0, propensity_draws=0)
        found = Counter(getattr(bandit, rule)([1.0, 2.0]).arm for _ in range(800))
        assert sum((found[arm] - 200) ** 2 / 200 for arm in range(4)) < stats.chi2(3).isf(1e-6)


def test_arms_whose_first_rewards_are_equal_are_not_taken_for_certain():
    """Without noise from other arms, three rewards of 0 would leave an arm no uncertainty at all."""
    bandit = Bandit(["zero", "some"], random_state=0)
    bandit.update([[1.0]] * 3, ["zero"] * 3, [0.0] * 3)
    assert bandit.greedy([1.0]).propensity == 0.5  # all rewards so far are 0
    bandit.update([[1.0]] * 3, ["some"] * 3, [0.0, 1.0, 0.5])
    assert (bandit.predict([1.0])[1] > 0.05).all()


def test_decisions_depend_neither_on_the_unit_of_rewards_nor_on_their_origin():
    arms = []
    for unit, origin in ((1.0, 0.0), (1024.0, 0.0), (1.0, 1000.0)):
        bandit = Bandit(["a", "b", "c"], random_state=0)
        rng = np.random.default_rng(1)
        chosen = []
        for _ in range(150):
            x = rng.normal(size=D)
            decision = bandit.sample(x)
            chosen.append(decision.arm)
            bandit.reward(decision.key, origin + unit * (x["abc".index(decision.arm)] + 0.5 * rng.normal()))
        arms.append(chosen)
    assert arms[0] == arms[1] == arms[2]


def test_rewards_without_noise_do_not_hide_better_arms():
    """An arm that always gives 5 says nothing about the others, which are then tried."""
    for rule in ("sample", "ucb"):
        bandit = Bandit(["five", "six", "seven"], random_state=0)
        for _ in range(60):
            decision = getattr(bandit, rule)([0.3, 1.0])
            bandit.reward(decision.key, 5.0 + bandit.arms_.index(decision.arm))
        assert bandit.greedy([0.3, 1.0]).arm == "seven" and (bandit.n_rows_ > 0).all()


# ---- rewards ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", ["separate", "shared"])
def test_rewards_in_any_order_and_any_batches_give_the_same_belief(features):
    one, other = (Bandit(["a", "b", "c"], features=features) for _ in range(2))
    X, arms, y = taught(one, 300)
    order = np.random.default_rng(1).permutation(300)
    for part in np.split(order, [1, 2, 40, 250]):
        other.update(X[part], [arms[i] for i in part], y[part])
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(one.coef_std_, other.coef_std_, rtol=1e-10)
    np.testing.assert_allclose(one.noise_var_, other.noise_var_, rtol=1e-10)
    np.testing.assert_array_equal(one.n_rows_, other.n_rows_)


@pytest.mark.parametrize("forget", [1.0, ByTime(25.0)])
def test_rewards_that_come_late_give_the_belief_of_rewards_at_once(forget):
    now, late = (Bandit(["a", "b"], forget=forget, random_state=0) for _ in range(2))
    rng = np.random.default_rng(0)
    waiting = []
    for _ in range(80):
        x, reward = rng.normal(size=D), rng.normal()
        now.reward(now.epsilon(x, 1.0).key, reward)  # choices that do not depend on the rewards
        waiting.append((late.epsilon(x, 1.0).key, reward))
        if len(waiting) > 20:
            late.reward(*waiting.pop(int(rng.integers(len(waiting)))))
    while waiting:
        late.reward(*waiting.pop())
    np.testing.assert_array_equal(now.n_rows_, late.n_rows_)
    np.testing.assert_allclose(now.coef_, late.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(now.coef_std_, late.coef_std_, rtol=1e-9)
    assert late.n_pending_ == 0


def test_decisions_that_wait_too_long_are_dropped_and_counted():
    bandit = Bandit(["a", "b"], max_pending=3, random_state=0)
    keys = [bandit.sample([1.0]).key for _ in range(5)]
    assert (bandit.n_pending_, bandit.n_dropped_) == (3, 2)
    bandit.reward(keys[-1], 1.0)
    with pytest.raises(ValueError, match=r"No row waits for the target of the key\(s\) 0.*dropped"):
        bandit.reward(keys[0], 1.0)
    assert "2 were dropped" in bandit.summary()


def test_arms_are_added_and_removed():
    bandit = Bandit(["a", "b", "c"], random_state=0)
    taught(bandit)
    coef, x = bandit.coef_, np.ones(D)
    while (decision := bandit.sample(x, width=5)).arm != "b":
        pass
    bandit.remove_arm("b")
    np.testing.assert_array_equal(bandit.coef_, coef[[0, 2]])
    with pytest.raises(ValueError, match=f"The arm of decision {decision.key} was removed"):
        bandit.reward(decision.key, 1.0)
    bandit.add_arm("b")  # another one of the same name: the reward is still not its own
    with pytest.raises(ValueError, match="was removed"):
        bandit.reward(decision.key, 1.0)
    np.testing.assert_array_equal(bandit.coef_, [*coef[[0, 2]], np.zeros(D)])
    assert bandit.arms_ == ["a", "c", "b"] and bandit.n_rows_[2] == 0
    bandit.update([x], ["b"], [2.0])
    assert bandit.n_rows_[2] == 1 and bandit.coef_[2].any()


def test_a_reward_of_an_arm_that_was_removed_is_learned_if_features_are_shared():
    bandit = Bandit(["a", "b"], features="shared", random_state=0)
    decision = bandit.greedy(np.eye(2, D))
    bandit.remove_arm(decision.arm)
    bandit.reward(decision.key, 3.0)
    assert bandit.intercept_ == 3.0 and bandit.n_rows_.sum() == 0
    assert bandit.sample(np.eye(1, D)).arm == bandit.arms_[0]


# ---- forgetting ---------------------------------------------------------------------------------------------


def restless(rounds, seed, **settings):
    """How often the second arm is chosen in the last fifth: it gives -1 for two fifths, then 1; the first always 0."""
    bandit, rng = Bandit(["steady", "restless"], random_state=seed, **settings), np.random.default_rng(seed)
    found = 0
    for t in range(rounds):
        decision = bandit.ucb([1.0], width=2.0)
        mean = 0.0 if decision.arm == "steady" else (-1.0 if t < 0.4 * rounds else 1.0)
        bandit.reward(decision.key, mean + 0.1 * rng.normal())
        found += t >= 0.8 * rounds and decision.arm == "restless"
    return found / (0.2 * rounds)


@pytest.mark.slow
def test_an_arm_that_was_bad_is_tried_again_only_if_time_makes_it_fade():
    """The belief about an arm that is not chosen stays as it is, however its own rows would fade."""
    for seed in range(2):
        assert restless(500, seed, forget=ByTime(30.0)) > 0.9
        assert restless(500, seed, forget=0.97) == 0


def test_times_that_are_given_count_instead_of_decisions():
    """Rows of two days, at irregular times: those of a regression with the weights 2^(-elapsed / half-life)."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 48, 40)) * np.timedelta64(3_600_000_000, "us") + np.datetime64("2026-03-01")
    X, y = rng.normal(size=(40, D)), rng.normal(size=40)
    bandit = Bandit(["a"], forget=ByTime(timedelta(hours=6)), noise=1.0, fit_intercept=False)
    for x, reward, time in zip(X, y, times, strict=True):
        bandit.reward(bandit.greedy(x, time=time).key, reward)
    batch = Bandit(["a"], forget=ByTime(0.25), noise=1.0, fit_intercept=False)
    order = rng.permutation(40)
    batch.update(X[order], ["a"] * 40, y[order], times=times[order])
    elapsed = (times[-1] - times) / np.timedelta64(6, "h")
    model = KalproxRegressor(fit_intercept=False, noise=1.0, weight_kind="precision", penalty="ridge")
    model.fit(X, y, sample_weight=0.5**elapsed)
    np.testing.assert_allclose(bandit.coef_[0], model.coef_, rtol=1e-9)
    np.testing.assert_allclose(batch.coef_[0], model.coef_, rtol=1e-9)
    np.testing.assert_allclose(batch.coef_std_, bandit.coef_std_, rtol=1e-9)
    before = bandit.predict(X[0])[1]
    with pytest.raises(ValueError, match="time must not go backwards"):
        bandit.greedy(X[0], time="2026-02-01")
    assert bandit.predict(X[0])[1] == before
    bandit.greedy(X[0], time="2027-01-01")
    np.testing.assert_allclose(bandit.coef_, 0, atol=1e-15)


# ---- regret -------------------------------------------------------------------------------------------------


RULES = {
    "sample": lambda bandit, x: bandit.sample(x),
    "ucb": lambda bandit, x: bandit.ucb(x, width=2.0),
}


@pytest.mark.parametrize("rule", RULES)
def test_regret_grows_much_more_slowly_than_the_number_of_rounds(rule):
    """With logarithmic regret the second 500 of 1,000 rounds cost less than half of what the first 500 did.

    If a part of the rounds were wasted for ever, they would cost as much.
    """
    for seed in range(2):
        bandit = Bandit(["a", "b", "c"], random_state=seed, propensity_draws=0)
        regret = played(bandit, RULES[rule], 1000, seed)
        blind = played(Bandit(["a", "b", "c"], random_state=seed), lambda b, x: b.epsilon(x, 1.0), 300, seed)
        assert regret[500:].sum() < 0.5 * regret[:500].sum()
        assert regret.mean() < 0.1 * blind.mean()


# ---- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": "own"}, "features must be 'separate' or 'shared'"),
        ({"alpha": 0}, "alpha must be finite and > 0"),
        ({"alpha": "auto"}, "alpha must be a number"),
        ({"noise": "known"}, "noise must be 'learn' or the noise variance"),
        ({"noise": -1.0}, "noise must be finite and > 0"),
        ({"reward_mean": "median"}, "reward_mean must be 'learn' or a number"),
        ({"reward_mean": math.inf}, "reward_mean must be finite"),
        ({"reward_mean": 1.0, "fit_intercept": False}, "has no effect without an intercept"),
        ({"pooling": 0}, "pooling must be a number > 0"),
        ({"forget": 1.5}, r"forget must lie in \(0, 1\]"),
        ({"forget": "auto"}, "forget must"),
        ({"forget": RandomWalk(0.1)}, r"forget must be a number, .* or ByTime\(half_life\), .*; got RandomWalk"),
        ({"max_pending": 0}, "max_pending must be a whole number >= 1"),
        ({"propensity_draws": -1}, "propensity_draws must be a whole number >= 0"),
        ({"random_state": -3}, "random_state must be a whole number >= 0"),
        ({"random_state": "seed"}, "random_state must be a whole number >= 0"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Bandit(["a", "b"], **settings)


@pytest.mark.parametrize(
    ("arms", "error", "message"),
    [
        ("ab", TypeError, "arms must be a list of names"),
        (3, TypeError, "arms must be a list of names"),
        ([], ValueError, "at least one name"),
        (["a", "a"], ValueError, "'a' occur"),
        ([1.5], TypeError, "text or a whole number; got 1.5"),
        ([None], TypeError, "text or a whole number"),
    ],
)
def test_names_of_arms_are_checked(arms, error, message):
    with pytest.raises(error, match=message):
        Bandit(arms)


def test_wrong_arguments_are_named_and_change_nothing():
    bandit = Bandit(["a", "b"], random_state=0)
    decision = bandit.sample([1.0, 2.0])
    before = deepcopy(bandit._parts())
    mistakes = [
        (lambda: bandit.sample([1.0]), "must have 2 features, as the first one had; got 1"),
        (lambda: bandit.sample([[1.0, 2.0]]), r"x must have shape \(d,\)"),
        (lambda: bandit.sample([1.0, math.nan]), "finite numbers"),
        (lambda: bandit.sample([1.0, 1e300]), "at most 1e\\+70"),
        (lambda: bandit.sample(["x", "y"]), "x must be numbers"),
        (lambda: bandit.sample([1.0, 2.0], width=-1), "width must be a finite number >= 0"),
        (lambda: bandit.ucb([1.0, 2.0], width=math.nan), "width must be a finite number >= 0"),
        (lambda: bandit.ucb([1.0, 2.0], level=1.0), "level must lie strictly between 0 and 1"),
        (lambda: bandit.ucb([1.0, 2.0], width=2.0, level=0.9), "width or level, not both"),
        (lambda: bandit.epsilon([1.0, 2.0], 1.5), "epsilon must lie between 0 and 1"),
        (lambda: bandit.reward(decision.key, math.nan), "A reward must be a finite number; got nan"),
        (lambda: bandit.reward(decision.key, None), "A reward must be a finite number"),
        (lambda: bandit.reward(decision.key, "much"), "rewards must be numbers"),
        (lambda: bandit.reward(17, 1.0), "No row waits for the target of the key\\(s\\) 17"),
        (lambda: bandit.update([[1.0, 2.0]], ["c"], [1.0]), "There is no arm 'c'; the arms are 'a', 'b'"),
        (lambda: bandit.update([[1.0, 2.0]], ["a", "b"], [1.0]), "must have the same length"),
        (lambda: bandit.update([[1.0, 2.0]] * 2, ["a", "b"], [1.0, math.inf]), "got inf in row 1"),
        (lambda: bandit.update([[1.0, math.nan]], ["a"], [1.0]), "NaN"),
        (lambda: bandit.update([1.0, 2.0], ["a"], [1.0]), r"contexts must have shape \(n, d\)"),
        (
            lambda: bandit.update([[1.0, 2.0]], ["a"], [1.0], times=[1.0]),
            r"times have no effect, and need forget=ByTime",
        ),
        (lambda: bandit.sample([1.0, 2.0], time=3.0), "times have no effect"),
        (lambda: bandit.add_arm("a"), "'a' occur"),
        (lambda: bandit.remove_arm("z"), "There is no arm 'z'"),
    ]
    for call, message in mistakes:
        with pytest.raises(ValueError, match=message):
            call()
    after = bandit._parts()
    assert before[0] == after[0]
    for name in before[1]:
        np.testing.assert_array_equal(before[1][name], after[1][name])
    bandit.reward(decision.key, 1.0)
    with pytest.raises(ValueError, match="No row waits"):
        bandit.reward(decision.key, 1.0)


def test_arguments_of_the_wrong_kind_are_named():
    bandit = Bandit(["a", "b"])
    bandit.sample([1.0])
    for key in (None, [0], 0.0, True):
        with pytest.raises(TypeError, match="A key must be a text or a whole number"):
            bandit.reward(key, 1.0)
    for arms in ("a", None, 3):
        with pytest.raises(TypeError, match="arms must be a list of names, one for each context"):
            bandit.update([[1.0]], arms, [1.0])
    with pytest.raises(ValueError, match="n must be a whole number >= 0; got -1"):
        bandit.sample_coef(-1)
    bandit.reward(np.int64(0), True)
    assert bandit.n_rows_.sum() == 1


def test_a_first_row_that_is_refused_does_not_decide_the_number_of_features():
    bandit = Bandit(["a", "b"])
    with pytest.raises(ValueError, match="NaN"):
        bandit.update([[1.0, math.nan]], ["a"], [1.0])
    with pytest.raises(AttributeError, match="Nothing is known yet"):
        _ = bandit.coef_
    bandit.update([[1.0]], ["a"], [1.0])
    bandit.remove_arm("a")
    with pytest.raises(ValueError, match="The last arm, 'b', cannot be removed"):
        bandit.remove_arm("b")


def test_shared_contexts_need_a_row_for_every_arm():
    bandit = Bandit(["a", "b"], features="shared")
    with pytest.raises(ValueError, match=r"one row for each of 2 arms"):
        bandit.sample([[1.0, 2.0]])
