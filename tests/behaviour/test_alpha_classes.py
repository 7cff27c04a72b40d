"""alpha="auto" for classes and counts: the evidence of a Laplace approximation, held against cross-validation."""

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import special
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, PoissonRegressor
from sklearn.model_selection import GridSearchCV

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of scikit-learn's own parameters


def classes(n, d, size, seed, m=2):
    """Rows of d columns with effects of this size in all: X, the classes, and their true probabilities."""
    rng = np.random.default_rng([seed, n, d])
    X, coef = rng.normal(size=(n, d)), rng.normal(size=(d, m)) * size / (2 * d) ** 0.5
    p = special.softmax(X @ coef, axis=1)
    return X, (rng.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1), p


def excess(model, X, p):
    """How much larger the expected log loss of stated probabilities is than that of the true ones."""
    return np.mean(np.sum(p * (np.log(p) - np.log(model.predict_proba(X))), axis=1))


def losses(n, d, size, seeds, m=2):
    found = []
    for seed in range(300, 300 + seeds):
        X, y, p = classes(n + 2000, d, size, seed, m)
        ours = KalproxClassifier(alpha="auto").fit(X[:n], y[:n])
        theirs = LogisticRegressionCV(Cs=10, cv=5, scoring="neg_log_loss", max_iter=1000).fit(X[:n], y[:n])
        found.append([excess(model, X[n:], p[n:]) for model in (ours, theirs)])
    return np.mean(found, axis=0)


@pytest.mark.slow
def test_classes_are_told_as_well_as_by_cross_validation():
    ours, theirs = losses(150, 20, 2.0, 4)
    assert ours < 1.1 * theirs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "d", "size", "m"),
    [(500, 50, 1.5, 2), (200, 50, 4.0, 2), (80, 8, 2.0, 2), (200, 20, 0.3, 2), (300, 10, 2.0, 3)],
)
def test_the_excess_log_loss_is_that_of_cross_validation(n, d, size, m):
    ours, theirs = losses(n, d, size, 10, m)
    assert ours < 1.1 * theirs


@pytest.mark.slow
@pytest.mark.integration  # scikit-learn looks how many cores there are
def test_counts_are_told_as_well_as_by_cross_validation():
    ours, theirs = [], []
    for seed in range(5):
        rng = np.random.default_rng([seed, 7])
        X, coef = rng.normal(size=(1200, 25)), 0.1 * rng.normal(size=25)
        mean = np.exp(0.5 + X @ coef)
        y = rng.poisson(mean)

        def loss(model, X=X, mean=mean):
            stated = model.predict(X[200:])
            return np.mean(stated - mean[200:] - mean[200:] * np.log(stated / mean[200:]))

        ours.append(loss(KalproxRegressor(likelihood="poisson", alpha="auto").fit(X[:200], y[:200])))
        grid = {"alpha": np.logspace(-1, 3, 17) / 200}
        search = GridSearchCV(PoissonRegressor(tol=1e-8, max_iter=1000), grid, cv=5)  # by the deviance
        theirs.append(loss(search.fit(X[:200], y[:200])))
    assert np.mean(ours) < 1.1 * np.mean(theirs)


@pytest.mark.slow
def test_probabilities_of_many_columns_are_not_too_extreme():
    """The slope of the true log odds on those stated: 1 is right, and alpha = 1 has less."""
    slopes = []
    for seed in range(4):
        X, y, _ = classes(6500, 50, 1.5, seed)
        for alpha in (1.0, "auto"):
            stated = KalproxClassifier(alpha=alpha).fit(X[:500], y[:500]).predict_proba(X[500:])[:, 1]
            slopes.append(LogisticRegression(C=1e6).fit(special.logit(stated)[:, None], y[500:]).coef_[0, 0])
    fixed, chosen = np.mean(slopes[::2]), np.mean(slopes[1::2])
    assert fixed < 0.85 and 0.9 < chosen < 1.2


def test_a_fitted_model_goes_on_is_saved_and_chooses_again(tmp_path):
    X, y, _ = classes(700, 6, 2.0, 3)
    model = KalproxClassifier(alpha="auto").fit(X[:200], y[:200])
    alpha = model.alpha_
    fixed = KalproxClassifier(alpha=alpha).fit(X[:200], y[:200])
    np.testing.assert_allclose(model.coef_, fixed.coef_, rtol=1e-6)
    model.save(tmp_path / "model.kalprox")
    again = KalproxClassifier.load(tmp_path / "model.kalprox")
    for one in (model, again, fixed):
        one.partial_fit(X[200:300], y[200:300])
    assert again.alpha == "auto" and again.alpha_ == model.alpha_ == alpha
    np.testing.assert_array_equal(again.coef_, model.coef_)
    np.testing.assert_allclose(model.coef_, fixed.coef_, rtol=1e-6)
    model.set_params(diagnose=False).partial_fit(X[300:310], y[300:310])
    assert model.alpha_ == alpha
    assert "auto -> " in str(model.summary())
    assert model.fit(X, y).alpha_ != alpha
    assert model.alpha_ == KalproxClassifier(alpha="auto", diagnose=False).fit(X, y).alpha_
    with pytest.raises(ValueError, match="merge needs two models with the same alpha"):
        again.merge(KalproxClassifier(alpha="auto").fit(X[300:], y[300:]))


@pytest.mark.parametrize(
    "settings",
    [
        {"standardize": True},
        {"fit_intercept": False},
        {"coef_cov": "robust"},
        {"class_weight": "balanced"},
        {"forget": 0.999},
    ],
    ids=lambda one: " ".join(one),
)
def test_other_settings_choose_too(settings):
    X, y, p = classes(2300, 15, 1.0, 6)
    chosen, weak = (KalproxClassifier(alpha=alpha, **settings).fit(X[:300], y[:300]) for alpha in ("auto", 0.01))
    assert 1 < chosen.alpha_ < 1e4
    if "class_weight" not in settings:
        assert excess(chosen, X[300:], p[300:]) < 0.9 * excess(weak, X[300:], p[300:])


def test_classes_that_a_column_separates_and_classes_without_a_cause():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(80, 5))
    separable = KalproxClassifier(alpha="auto").fit(X, X[:, 0] > 0)
    assert 1e-4 < separable.alpha_ < 5 and separable.coef_[0, 0] > 1 and separable.converged_
    none = KalproxClassifier(alpha="auto").fit(X, rng.integers(0, 2, 80))
    assert none.alpha_ > 5 and np.abs(none.coef_).max() < 0.5


def test_what_cannot_choose_says_what_to_do(tmp_path):
    X, y, _ = classes(60, 3, 1.0, 6)
    with pytest.raises(ValueError, match="Fit the first rows"):
        KalproxClassifier(alpha="auto").partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="Fit the first rows"):
        KalproxClassifier().fit(X, y).set_params(alpha="auto").partial_fit(X, y)
    for settings in ({"penalty": "l1"}, {"forget": "auto"}):
        with pytest.raises(ValueError, match=r"alpha='auto' with .* Give a number"):
            KalproxClassifier(alpha="auto", **settings).fit(X, y)
    for likelihood in ("huber", "student", "quasi-poisson"):
        with pytest.raises(ValueError, match="alpha='auto' needs"):
            KalproxRegressor(likelihood=likelihood, alpha="auto").fit(X, y)
    np.savetxt(tmp_path / "d.csv", np.c_[X, y], delimiter=",", header="a,b,c,y", comments="", fmt="%.6g")
    how = ["-y", "y", "--likelihood", "bernoulli", "--alpha", "auto", "--out", str(tmp_path / "m.kalprox")]
    done = CliRunner().invoke(main, ["fit", str(tmp_path / "d.csv"), *how])
    assert done.exit_code == 0 and "1/C" not in done.output
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "m.kalprox")])
    assert "auto ->" in shown.output
    done = CliRunner().invoke(main, ["stream", *how], input=(tmp_path / "d.csv").read_text())
    assert done.exit_code != 0 and "--alpha auto" in done.output and "learned\n" not in done.output
