"""The summary says what statsmodels says, leaves out what is not defined, and fits in 80 columns."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm
from data import linear

from kalprox import KalproxRegressor
from kalprox.display.tables import as_text, whole_table, width_of
from kalprox.learning import summary as module
from kalprox.likelihoods import Gaussian
from kalprox.linalg.factor import Factor

pytestmark = pytest.mark.filterwarnings("ignore:The first prediction step overshoots")


def rows(n=150, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 2
    return X, 1 + X @ np.arange(d) + (0.5 + np.abs(X[:, 0])) * rng.normal(size=n)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", ["model", "robust"])
def test_the_numbers_are_those_of_statsmodels(kind, fit_intercept):
    X, y = rows()
    # The robust standard errors are those of residuals, which are HC3 to the last digits.
    model = KalproxRegressor(penalty=None, coef_cov=kind, fit_intercept=fit_intercept, engine="local").fit(X, y)
    design = sm.add_constant(X) if fit_intercept else X
    ols = sm.OLS(y, design)
    expected = ols.fit() if kind == "model" else ols.fit(cov_type="HC3", use_t=True)
    found = model.summary(level=0.9)
    assert found.names == (["intercept"] if fit_intercept else []) + ["x0", "x1", "x2"]
    for mine, theirs in [
        (found.coef, expected.params),
        (found.se, expected.bse),
        (found.t, expected.tvalues),
        (found.p, expected.pvalues),
        (np.column_stack([found.low, found.high]), expected.conf_int(0.1)),
        (found.r2, expected.rsquared),
        (found.noise_var, expected.scale),
        (found.noise_dof, expected.df_resid),
        (found.edf, design.shape[1]),
    ]:
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    assert (found.rows, found.rejected) == (150, 0)
    assert found.facts["standard errors"].startswith(kind)


def test_weights_of_precision_are_weighted_least_squares():
    X, y = rows()
    w = np.random.default_rng(1).uniform(0.1, 2, size=len(y))
    found = KalproxRegressor(penalty=None, weight_kind="precision").fit(X, y, sample_weight=w).summary()
    expected = sm.WLS(y, sm.add_constant(X), weights=w).fit()
    for mine, theirs in ((found.t, expected.tvalues), (found.p, expected.pvalues), (found.r2, expected.rsquared)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_a_given_noise_has_the_normal_distribution():
    X, y = rows()
    found = KalproxRegressor(penalty=None, noise=4.0).fit(X, y).summary()
    std = 2 * np.sqrt(np.diag(np.linalg.inv(sm.add_constant(X).T @ sm.add_constant(X))))
    np.testing.assert_allclose(found.se, std, rtol=1e-9)
    from scipy.stats import norm

    np.testing.assert_allclose(found.p, 2 * norm.sf(np.abs(found.coef / std)), rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "empty", "reason"),
    [
        ({"penalty": "l1", "alpha": 5.0}, ("t", "p", "log_evidence"), "t and p are empty: the penalty sets"),
        ({"penalty": "box"}, ("t", "p", "log_evidence"), "Intervals are debiased"),
        ({"penalty": None}, ("log_evidence",), "There is no log evidence"),
        (
            {"link": "softplus", "likelihood": Gaussian(targets="any")},
            ("r2", "log_evidence"),
            "R2 is empty: with a nonlinear link",
        ),
        ({"noise": "inputs"}, ("r2",), "R2 is empty: with noise='inputs'"),
        ({}, (), "only differences between models of the same y"),
    ],
)
def test_what_is_not_defined_is_left_empty_and_a_footnote_says_why(settings, empty, reason):
    found = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(*rows()).summary()
    for name in ("t", "p", "r2", "edf", "log_evidence"):
        assert np.isnan(getattr(found, name)).all() == (name in empty), name
    assert np.isfinite([found.coef, found.se, found.low, found.high]).all()
    assert any(reason in note for note in found.notes), found.notes
    assert all(len(line) <= 80 for line in str(found).splitlines())


def test_a_constant_target_and_undetermined_columns_are_said():
    X, _ = rows()
    found = KalproxRegressor(alpha="auto").fit(X, np.full(len(X), 0.1)).summary()
    assert np.isnan(found.r2) and "R2 is empty: the target is constant." in found.notes
    X[:, 1] = X[:, 2]
    found = KalproxRegressor(penalty=None).fit(X, X[:, 0]).summary()
    assert "undetermined" in str(found) and any(note.startswith("Undetermined") for note in found.notes)
    assert np.isnan(found.t[2:]).all() and np.isfinite(found.r2)


def test_the_text_fits_in_80_columns_and_html_is_escaped():
    names = ["<script>alert(1)</script>" * 4, "温度" * 30, "a\x1b[31m\nb", *(f"column {i}" for i in range(97))]
    X, y = linear(400, 100)[:2]
    found = KalproxRegressor(penalty="ridge").fit(pd.DataFrame(X * 1e-9, columns=names), -1e12 * y).summary()
    text = str(found)
    assert all(width_of(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text and "The 60 with the largest effects, of 100, are shown" in text
    assert all(width_of(line) <= 80 for line in as_text(found.about_coefficients(), 80).splitlines())
    html = found._repr_html_() + whole_table(found.about_coefficients())
    assert "<script>" not in html and "&lt;script&gt;" in html and repr(found) == text


def test_several_targets_have_a_table_each():
    X, y = rows()
    model = KalproxRegressor(penalty=None).fit(X, np.column_stack([y, -y]))
    found, one = model.summary(), KalproxRegressor(penalty=None).fit(X, y).summary()
    np.testing.assert_allclose(found.t, [*one.t, *-one.t], rtol=1e-9)
    np.testing.assert_allclose(found.r2, [one.r2] * 2, rtol=1e-9)
    assert list(model.to_frame()["target"]) == ["y0"] * 4 + ["y1"] * 4 and " y1 " in str(found)


@pytest.mark.parametrize("library", [pd, pl])
def test_the_frame_is_of_the_kind_the_model_was_fitted_to(library, tmp_path):
    X, y = rows()
    names = ["a", "b", "c"]
    given = pd.DataFrame(X, columns=names) if library is pd else pl.DataFrame(X, schema=names)
    for model in (
        KalproxRegressor(penalty="ridge").fit(given, y),
        KalproxRegressor(penalty="ridge").partial_fit(given, y),
    ):
        frame = model.to_frame(level=0.8)
        assert isinstance(frame, library.DataFrame)
        assert list(frame.columns) == ["name", "coef", "se", "t", "p", "low", "high"]
        assert list(frame["name"]) == ["intercept", *names]
        np.testing.assert_array_equal(frame["low"].to_numpy()[1:], model.coef_interval(0.8)[0])
    assert isinstance(KalproxRegressor(penalty="ridge").fit(X, y).to_frame(), pd.DataFrame)
    sparse = KalproxRegressor(penalty="l1").fit(given, y).to_frame()
    assert sparse["p"].is_null().all() if library is pl else sparse["p"].isna().all()


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(ImportError, match="to_frame needs pandas, which is not installed: pip install pandas"):
        KalproxRegressor(penalty="ridge").fit(*rows()).to_frame()
    with pytest.raises(ValueError, match="kind must be 'pandas' or 'polars'"):
        KalproxRegressor(penalty="ridge").fit(*rows()).summary().to_frame("arrow")


@pytest.mark.parametrize("settings", [{}, {"coef_cov": "robust"}, {"penalty": "l1", "alpha": 5.0}])
def test_a_summary_reads_the_posterior_once(settings, monkeypatch):
    model = KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(*rows())
    made = []
    of = Factor.of.__func__
    monkeypatch.setattr(Factor, "of", classmethod(lambda cls, *args, **how: made.append(1) or of(cls, *args, **how)))
    model.summary()
    assert len(made) <= 1 + ("penalty" in settings)  # and the debiased one, without the penalty


def test_level_is_checked():
    with pytest.raises(ValueError, match="level must be strictly between 0 and 1"):
        KalproxRegressor(penalty="ridge").fit(*rows()).summary(95)


def test_the_repr_shows_no_long_arrays():
    X, y = rows(d=40)
    model = KalproxRegressor(link="sigmoid", start=np.zeros(41), penalty="ridge").fit(X, y > 0)
    assert "start=<array of shape (41,)>" in repr(model)
    assert repr(KalproxRegressor(start=[0.0, 1.0])) == "KalproxRegressor(start=[0.0, 1.0])"
