"""Streams of every likelihood with every setting: learned, read while they are short, saved, and read back."""

import numpy as np
import pytest
from pairwise import pairs

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.forgetting import ByTime

N = 120
LIKELIHOODS = ["student", "huber", "contaminated", "poisson", "quasi-poisson", "negative-binomial", "classes"]
SETTINGS = {
    "robust": {"coef_cov": "robust"},
    "clustered": {"coef_cov": "clustered"},
    "time": {"forget": ByTime(50)},
    "forget": {"forget": 0.99},
    "l1": {"penalty": "l1", "alpha": 0.1},
    "impute": {"missing": "impute"},
    "structure": {"structure": "diagonal"},
    "late": {},
}


def rows_of(likelihood):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    f = X @ [0.5, 0.3, -0.2]
    if likelihood == "classes":
        return X, (rng.random(N) < 1 / (1 + np.exp(-2 * f))).astype(int)
    if likelihood == "negative-binomial":
        return X, rng.negative_binomial(3, 3 / (3 + np.exp(f))).astype(float)
    if likelihood.endswith("poisson"):
        return X, rng.poisson(np.exp(f)).astype(float)
    return X, f + rng.standard_t(3, size=N)


def model_of(likelihood, setting):
    if likelihood == "classes":
        return KalproxClassifier(**SETTINGS[setting])
    return KalproxRegressor(likelihood=likelihood, **({"penalty": "ridge"} | SETTINGS[setting]))


def about(setting, rows):
    i = np.arange(N)[rows]
    return {"clustered": {"clusters": i // 5}, "time": {"times": i}, "late": {"keys": i}}.get(setting, {})


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.slow
@pytest.mark.parametrize(("likelihood", "setting", "length"), pairs(LIKELIHOODS, SETTINGS, [1, 7, N]))
def test_a_stream_is_learned_read_and_saved_from_its_first_rows_on(likelihood, setting, length, tmp_path):
    X, y = rows_of(likelihood)
    model = model_of(likelihood, setting)
    classes = {"classes": [0, 1]} if likelihood == "classes" else {}
    predict = "predict_proba" if likelihood == "classes" else "predict"
    for i in range(0, N, length):
        rows = slice(i, i + length)
        model.partial_fit(X[rows], y[rows], **classes, **about(setting, rows))
        if i <= 2 * length or i + length >= N:
            later = {"time": float(i + length + 10)} if setting == "time" else {}
            found = getattr(model, predict)(X[:4], **later)
            assert np.isfinite(found).all() and str(model.diagnostics_.verdict())
            model.save(tmp_path / "m")
            again = type(model).load(tmp_path / "m")
            np.testing.assert_array_equal(getattr(again, predict)(X[:4], **later), found)
            np.testing.assert_array_equal(again.coef_std_, model.coef_std_)
    assert (np.isfinite(model.coef_std_) | (setting == "clustered")).all() and model.n_rows_seen_ == N


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_robust_standard_errors_of_a_warm_up_are_those_of_fit(likelihood):
    """A stream ends on a weak prior of what has no penalty, and a fit has none: they agree to a hundredth."""
    X, y = rows_of(likelihood)
    model, fitted = model_of(likelihood, "robust"), model_of(likelihood, "robust").fit(X, y)
    model.partial_fit(X, y, **({"classes": [0, 1]} if likelihood == "classes" else {}))
    np.testing.assert_allclose(model.coef_std_, fitted.coef_std_, rtol=0.01)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_clustered_standard_errors_of_a_warm_up_are_those_of_fit(likelihood):
    X, y = rows_of(likelihood)
    groups = np.arange(N) // 5
    model, fitted = model_of(likelihood, "clustered"), model_of(likelihood, "clustered").fit(X, y, clusters=groups)
    model.partial_fit(X, y, clusters=groups, **({"classes": [0, 1]} if likelihood == "classes" else {}))
    np.testing.assert_allclose(model.coef_std_, fitted.coef_std_, rtol=0.01)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("setting", ["robust", "clustered"])
@pytest.mark.parametrize("forget", [1.0, pytest.param(0.995, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "likelihood", [pytest.param("student", marks=pytest.mark.slow), "negative-binomial", "classes"]
)
def test_standard_errors_after_a_warm_up_are_about_those_of_fit(likelihood, setting, forget):
    """Scores are innovations and not residuals, and rows of the warm-up count as the others: 2,000 rows, to a tenth.

    With forgetting 200 rows count; two estimates of a variance from as many agree to within a factor of 2.
    """
    rng, n = np.random.default_rng(1), 2000
    X = rng.normal(size=(n, 3))
    f = X @ [0.5, 0.3, -0.2]
    y = {
        "student": f + rng.standard_t(3, size=n),
        "negative-binomial": rng.negative_binomial(3, 3 / (3 + np.exp(f))).astype(float),
        "classes": (rng.random(n) < 1 / (1 + np.exp(-2 * f))).astype(int),
    }[likelihood]
    groups = {"clusters": np.arange(n) // 5} if setting == "clustered" else {}
    fitted = model_of(likelihood, setting).set_params(forget=forget).fit(X, y, **groups)
    model = model_of(likelihood, setting).set_params(forget=forget)
    classes = {"classes": [0, 1]} if likelihood == "classes" else {}
    for i in range(0, n, 50):
        some = {name: values[i : i + 50] for name, values in groups.items()}
        model.partial_fit(X[i : i + 50], y[i : i + 50], **some, **classes)
    ratio = model.coef_std_ / fitted.coef_std_
    assert (np.abs(np.log(ratio)) < (0.1 if forget == 1 else np.log(2))).all(), ratio


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_mean_of_counts_does_not_wait_for_their_dispersion():
    """One row and its intercept leave nothing to learn the dispersion from: the std is unknown, and the mean is not."""
    X, y = np.ones((1, 2)), np.array([2.0])
    mean, std = KalproxRegressor(likelihood="quasi-poisson").fit(X, y).predict(X, return_std=True)
    np.testing.assert_allclose(mean, KalproxRegressor(likelihood="poisson").fit(X, y).predict(X))
    assert np.isnan(std).all()
