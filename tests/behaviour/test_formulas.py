"""A model fitted to a frame by a formula: the numbers of statsmodels, raw frames in every method, one file for both."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import statsmodels.api as sm
from command import invoke
from formulaic import Formula

from kalprox import KalproxRegressor

FORMULA = "y ~ scale(x) + C(g)*h"


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 300
    made = pd.DataFrame({"x": rng.normal(size=n), "g": np.sort(rng.choice([*"abc"], n)), "h": rng.normal(size=n)})
    return made.assign(y=made.x + (made.g == "b") * made.h + 0.1 * rng.normal(size=n), w=1.0 + np.arange(n) % 2)


@pytest.mark.parametrize(
    "kind", [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas], ids=["pandas", "polars", "arrow"]
)
def test_the_model_is_that_of_statsmodels_and_takes_raw_frames(frame, kind):
    data = kind(frame)
    model = KalproxRegressor(FORMULA, penalty=None).fit(data)
    X = Formula(FORMULA.partition("~")[2]).get_model_matrix(frame)
    reference = sm.OLS(frame.y, X).fit()
    np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], reference.params, rtol=1e-8)
    np.testing.assert_allclose(model.coef_std_, reference.bse[1:], rtol=1e-8)
    mean, std = model.predict(kind(frame.drop(columns="y").iloc[:7]), return_std=True)
    np.testing.assert_allclose(mean, reference.predict(X.iloc[:7]), rtol=1e-8)
    assert list(model.feature_names_in_) == list(X.columns[1:]) and (std > 0).all()


def test_half_of_the_rows_and_then_the_others(frame):
    """The state of scale() is that of the first rows, and stays: the columns do not change while a model learns."""
    model = KalproxRegressor("y ~ x + C(g)", penalty=None).fit(frame.iloc[::2]).partial_fit(frame.iloc[1::2])
    whole = KalproxRegressor("y ~ x + C(g)", penalty=None).fit(frame)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8)
    assert model.n_rows_seen_ == len(frame)


def test_a_file_serves_the_command(frame, tmp_path):
    model = KalproxRegressor(FORMULA).fit(frame, sample_weight="w")
    model.save(tmp_path / "m.kalprox")
    frame.drop(columns=["y", "w"]).to_csv(tmp_path / "new.csv", index=False)
    invoke("predict", tmp_path / "m.kalprox", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["mean"], model.predict(frame), rtol=1e-10)
    assert "scale(x)" in invoke("show", tmp_path / "m.kalprox").output
    again = KalproxRegressor.load(tmp_path / "m.kalprox")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


def test_no_intercept_groups_and_bad_rows(frame):
    model = KalproxRegressor("y ~ 0 + g + x", penalty="group").fit(frame)
    assert model.intercept_ == 0 and len(model.coef_) == 4
    broken = frame.assign(x=frame.x.where(frame.index != 5))
    with pytest.raises(ValueError, match=r"row 5, column 'x': missing.*missing='drop'"):
        KalproxRegressor("y ~ x").fit(broken)
    with pytest.warns(UserWarning, match="1 of 300 rows"):
        model = KalproxRegressor("y ~ x", missing="drop").fit(broken)
    assert model.n_rows_rejected_ == 1 and model.n_rows_seen_ == 299


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("~ x", "has no target"),
        ("y ~ nothing", "no column 'nothing'"),
        ("y ~ lag(x)", "not known here"),
        ("y ~ open('x')", "a call of 'open'"),
    ],
)
def test_mistakes_are_named(frame, formula, message):
    with pytest.raises(ValueError, match=message):
        KalproxRegressor(formula).fit(frame)


def test_other_arguments_are_refused(frame):
    with pytest.raises(ValueError, match="fit_intercept must be True with a formula"):
        KalproxRegressor("y ~ x", fit_intercept=False).fit(frame)
    with pytest.raises(TypeError, match="X must be a frame"):
        KalproxRegressor("y ~ x").fit({"x": [1.0], "y": [1.0]})
    with pytest.raises(ValueError, match="unseen level"):
        KalproxRegressor("y ~ g").fit(frame).predict(pd.DataFrame({"g": ["z"]}))
