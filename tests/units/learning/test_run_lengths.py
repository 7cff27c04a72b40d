"""Run lengths against the posterior of all beginnings by direct formulas, and what they promise on still streams."""

import numpy as np
import pytest
from scipy import stats

from kalprox.learning.change_points import RunLengths

FIRST = 12  # rows of the first fit


class AllRuns:
    """The posterior of all beginnings: each run is a matrix of its rows, whose density is a multivariate Student's t.

    It knows nothing of roots, updates or pruning. A new run begins with what the most probable run knows, faded; if
    there are coefficients besides the level, so does a second one, which keeps the coefficients.
    """

    def __init__(self, U, y, hazard, new_dof):
        theta, *_ = np.linalg.lstsq(U, y)
        dof = len(y) - U.shape[1]
        prior = theta, np.linalg.inv(U.T @ U), ((y - U @ theta) ** 2).sum() / dof, dof
        self.hazard, self.new_dof = hazard, new_dof
        self.runs = [{"prior": prior, "size": len(y), "rows": [], "before": 0.0}]  # log p(run begins, rows before)
        self.log_p = [0.0]

    def posterior(self, run):
        """Mean, covariance in units of the noise, and the noise, from the prior and all rows at once."""
        theta, V, variance, dof = run["prior"]
        if not run["rows"]:
            return theta, V, variance, dof
        U, y = np.array([u for u, _ in run["rows"]]), np.array([v for _, v in run["rows"]])
        P = np.linalg.inv(V) + U.T @ U
        mean = np.linalg.solve(P, np.linalg.inv(V) @ theta + U.T @ y)
        e = y - U @ theta
        rss = variance * dof + e @ np.linalg.solve(np.eye(len(y)) + U @ V @ U.T, e)
        return mean, np.linalg.inv(P), rss / (dof + len(y)), dof + len(y)

    def density(self, run):
        """log p(rows of the run | it began there), in one formula for all of them."""
        theta, V, variance, dof = run["prior"]
        U, y = np.array([u for u, _ in run["rows"]]), np.array([v for _, v in run["rows"]])
        shape = variance * (np.eye(len(y)) + U @ V @ U.T)
        return stats.multivariate_t(U @ theta, shape, df=dof).logpdf(y)

    def learn(self, u, y):
        total = np.logaddexp.reduce(self.log_p)
        lead = self.runs[int(np.argmax(self.log_p))]
        theta, V, variance, _ = self.posterior(lead)
        size, m = lead["size"] + len(lead["rows"]), len(u)
        kinds = [(max(size / m, 1.0), min(size, m)), (1.0, size)][:m]
        for others, known in kinds:
            widen = np.full(m, others)
            widen[0] = size
            prior = theta, V * np.sqrt(np.outer(widen, widen)), variance, self.new_dof
            before = np.log(self.hazard / len(kinds)) + total
            self.runs.append({"prior": prior, "size": known, "rows": [], "before": before})
        for run in self.runs:
            run["rows"].append((u, y))
        stay = [np.log1p(-self.hazard) * (len(run["rows"]) - (i > 0)) for i, run in enumerate(self.runs)]
        self.log_p = [run["before"] + a + self.density(run) for run, a in zip(self.runs, stay, strict=True)]

    @property
    def weights(self):
        return np.exp(self.log_p - np.logaddexp.reduce(self.log_p))


def stream(seed, m, n, jump):
    rng = np.random.default_rng(seed)
    U = np.column_stack([np.ones(n), rng.normal(size=(n, m - 1))])
    theta = np.tile(rng.normal(size=m), (n, 1))
    theta[2 * n // 3 :] += jump
    return U, (U * theta).sum(axis=1) + rng.normal(size=n)


@pytest.mark.parametrize(("m", "new_dof", "jump"), [(1, 1.0, 3.0), (1, 100.0, 0.0), (3, 1.0, 1.5), (3, 1.0, 0.0)])
def test_all_runs_have_the_posterior_of_the_direct_formula(m, new_dof, jump):
    U, y = stream(m, m, 45, jump)
    oracle = AllRuns(U[:FIRST], y[:FIRST], 0.02, new_dof)
    runs = RunLengths.after_first_rows(U[:FIRST], y[:FIRST], 0.02, outliers=0.0, new_dof=new_dof, keep=50)
    for i in range(FIRST, len(y)):
        oracle.learn(U[i], y[i])
        runs.learn(U[i], y[i])
        order = np.argsort(np.where(runs.weight > 0, runs.start, np.inf), kind="stable")
        mine = runs.weight[order][: len(oracle.runs)]
        np.testing.assert_allclose(mine, oracle.weights, rtol=1e-5, atol=1e-9)  # the first prior has a variance of 1e8
    lead = runs.lead
    mean, V, variance, dof = oracle.posterior(oracle.runs[int(np.argmax(oracle.weights))])
    np.testing.assert_allclose(runs.theta[lead], mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(runs.root[lead].T @ runs.root[lead], V, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(runs.rss[lead] / runs.dof[lead], variance, rtol=1e-6)
    assert runs.dof[lead] == pytest.approx(dof)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jump", [0.0, 1.0, 3.0])
def test_ten_runs_give_the_answer_of_all(seed, jump):
    """What is given up changes the probability of a change by a few percent, and the rows it is found at hardly."""
    U, y = stream(100 + seed, 3, 90, jump)
    few, every = (RunLengths.after_first_rows(U[:FIRST], y[:FIRST], 0.01, keep=keep) for keep in (10, 100))
    changed = []
    for i in range(FIRST, len(y)):
        for runs in (few, every):
            runs.learn(U[i], y[i])
        changed.append((few.changed, every.changed))
        assert (few.weight.reshape(2, -1) > 0).sum(axis=1).max() <= 10
        assert few.weight.sum() == pytest.approx(1)
    few_changed, every_changed = np.array(changed).T
    log_odds = [np.log(p / (1 - p)) for p in np.clip([few_changed, every_changed], 1e-12, 1 - 1e-12)]
    assert np.abs(log_odds[0] - log_odds[1]).max() < 1.5
    first = [int(np.argmax(p > 0.99)) if (p > 0.99).any() else None for p in (few_changed, every_changed)]
    assert first[0] == first[1] or (None not in first and abs(first[0] - first[1]) <= 3)


def test_no_weight_passes_the_last_reported_change():
    """What began before `known` does not become a run that began later by giving up runs."""
    U, y = stream(3, 2, 600, 0.0)
    runs = RunLengths.after_first_rows(U[:FIRST], y[:FIRST], 1e-12, keep=4)
    for i in range(FIRST, len(y)):
        runs.learn(U[i], y[i])
        assert runs.changed < 1e-3


def test_false_alarms_on_a_still_stream_are_as_few_as_promised():
    """The odds of a change grow by the hazard a row: they reach A at most once in A / hazard rows on average."""
    rng, rows, hazard, odds = np.random.default_rng(0), 2000, 0.05, 9.0
    U = np.column_stack([np.ones(rows), rng.normal(size=(rows, 2))])
    y = U @ [1.0, 2.0, -1.0] + rng.normal(size=rows)
    runs = RunLengths.after_first_rows(U[:30], y[:30], hazard)
    alarms = 0
    for i in range(30, rows):
        runs.learn(U[i], y[i])
        if runs.changed > odds / (1 + odds):
            alarms, runs.known = alarms + 1, runs.rows
    expected = rows * hazard / odds
    assert alarms <= stats.poisson(expected).ppf(0.999)


def test_neither_units_nor_a_common_weight_matter():
    U, y = stream(5, 3, 80, 1.0)
    found = []
    for scale, factor, weight in [(1.0, 1.0, 1.0), (10.0, 1e4, 1.0), (1.0, 1.0, 4.0)]:
        V, z = U * [1.0, scale, 1 / scale], y * factor
        runs = RunLengths.after_first_rows(V[:FIRST] * weight**0.5, z[:FIRST] * weight**0.5, 0.01)
        for i in range(FIRST, len(z)):
            runs.learn(V[i], z[i], weight)
        found.append(runs.weight)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-6)  # the first prior has units
    np.testing.assert_allclose(found[2], found[0], rtol=1e-6, atol=1e-9)


def test_a_row_that_counts_twice_is_two_rows():
    """The runs that do not begin at it know the same, and have the same odds."""
    U, y = stream(6, 2, 40, 0.0)
    once, twice = (RunLengths.after_first_rows(U[:20], y[:20], 1e-9, outliers=0.0) for _ in range(2))
    for i in range(20, 40):
        once.learn(U[i], y[i], 2.0, 2.0)
        twice.learn(U[i], y[i])
        twice.learn(U[i], y[i])
    for name in ("theta", "rss", "dof", "size"):
        np.testing.assert_allclose(getattr(once, name)[once.lead], getattr(twice, name)[twice.lead], rtol=1e-9)


def test_one_enormous_row_is_no_change_and_several_are():
    rng = np.random.default_rng(2)
    y = np.concatenate([rng.normal(size=300), [1e3], rng.normal(size=100), 1e3 + rng.normal(size=4)])
    runs = RunLengths.after_first_rows(np.ones((30, 1)), y[:30], 0.001)
    changed = []
    for value in y[30:]:
        runs.learn(np.ones(1), value)
        changed.append(runs.changed)
    assert max(changed[:-4]) < 0.5
    assert changed[-1] > 0.99
    assert runs.start[runs.lead] == 401
