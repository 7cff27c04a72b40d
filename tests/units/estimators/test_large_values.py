"""Values and weights whose squares overflow are bad, as NaN is; all others are learned, saved and loaded."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from kalprox import KalproxRegressor
from kalprox.base.checks import LARGEST
from kalprox.engines import ArrayPartition
from kalprox.likelihoods import Gaussian
from kalprox.sources import ArraySource
from kalprox.sources.quarantine import Reason

LARGE = [1.01e70, 1e160, 1.7e308]
MODELS = {
    "ridge": {},
    "no penalty": {"penalty": None},
    "evidence": {"alpha": "auto"},
    "l1": {"penalty": "l1", "alpha": "auto"},
    "robust": {"coef_cov": "robust"},
    "clustered": {"coef_cov": "clustered"},
    "forget": {"forget": 0.99},
    "standardize": {"standardize": True},
    "inputs": {"noise": "inputs"},
    "precision": {"weight_kind": "precision"},
    "noise": {"noise": 1.0},
    "tanh": {"link": "tanh", "likelihood": Gaussian(targets="any")},
}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    return X, X @ [1.0, 2.0, 3.0] + rng.normal(size=200)


@pytest.fixture(params=LARGE)
def spoiled(request, rows):
    """X and y with a value that is too large in row 5, and its message."""
    X, y = (a.copy() for a in rows)
    X[5, 1] = request.param
    return X, y, f"{request.param:.6g}".replace("+", r"\+")


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_matrix, np.asfortranarray])
def test_a_row_is_refused_with_its_place_and_the_limit(spoiled, rows, form):
    X, y, value = spoiled
    message = rf"at most 1e\+70 in size.*got {value} in row 5, column 1 of X. Rescale"
    model = KalproxRegressor(penalty="ridge").fit(*rows)
    before = model.coef_.copy()
    for learn in (
        KalproxRegressor(penalty="ridge").fit,
        KalproxRegressor(penalty="ridge").partial_fit,
        model.partial_fit,
        model.prequential,
    ):
        with pytest.raises(ValueError, match=message):
            learn(form(X), y)
    for predict in (model.predict, model.predict_interval, lambda X: model.predict(X, minimax=True)):
        with pytest.raises(ValueError, match=message):
            predict(form(X))
    with pytest.raises(ValueError, match=f"got {value} in row 0, column 1"):
        model.partial_fit(form(X[5:6]), y[5:6])
    np.testing.assert_array_equal(model.coef_, before)
    model.partial_fit(*rows)  # nothing is lost
    assert model.n_rows_seen_ == 400 and np.isfinite(model.coef_).all()


def test_a_target_is_refused(spoiled):
    X, y, value = spoiled
    X, y = y[:, None], X[:, 1]
    with pytest.raises(ValueError, match=f"got {value} in row 5, y. Rescale"):
        KalproxRegressor(penalty="ridge").fit(X, y)
    with pytest.raises(ValueError, match=f"got -{value} in row 5, y. Rescale"):
        KalproxRegressor(penalty="ridge").fit(X, np.column_stack([y, -y * 1.001])[:, ::-1] / 1.001)
    model = KalproxRegressor(penalty="ridge").fit(X, X[:, 0])
    with pytest.raises(ValueError, match=f"got {value} in row 0, y. Rescale"):
        model.partial_fit(X[5:6], y[5:6])


def test_the_column_of_a_frame_is_named(spoiled):
    X, y, value = spoiled
    with pytest.raises(ValueError, match=f"got {value} in row 5, column 'b' of X"):
        KalproxRegressor(penalty="ridge").fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)


@pytest.mark.parametrize("weight", [*LARGE, 1e300])
def test_a_weight_is_refused(weight, rows):
    X, y = rows
    weights = np.ones(200)
    weights[7] = weight
    for learn in (KalproxRegressor(penalty="ridge").fit, KalproxRegressor(penalty="ridge").fit(X, y).partial_fit):
        with pytest.raises(ValueError, match=r"got the weight .* for the value .* in row 7.*Divide all weights"):
            learn(X, y, sample_weight=weights)
    skipping = KalproxRegressor(missing="drop", penalty="ridge").fit(X, y, sample_weight=weights)
    good = KalproxRegressor(penalty="ridge").fit(np.delete(X, 7, axis=0), np.delete(y, 7))
    np.testing.assert_allclose(skipping.coef_, good.coef_, rtol=1e-12)


def test_a_weight_is_refused_for_the_values_of_its_row(rows):
    X, y = rows
    weights = np.full(200, 1e40)
    KalproxRegressor(penalty="ridge").fit(X * 1e49, y, sample_weight=weights)
    with pytest.raises(ValueError, match="got the weight 1e"):
        KalproxRegressor(penalty="ridge").fit(X * 1e51, y, sample_weight=weights)


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_matrix])
def test_large_rows_are_skipped_and_counted(spoiled, form):
    X, y, _ = spoiled
    y = y.copy()
    y[9] = -1e160
    X[11, 0] = np.nan
    model = KalproxRegressor(missing="drop", penalty="ridge").fit(form(X), y)
    good = np.delete(np.arange(200), [5, 9, 11])
    assert model.n_rows_rejected_ == 3
    np.testing.assert_allclose(model.coef_, KalproxRegressor(penalty="ridge").fit(X[good], y[good]).coef_, rtol=1e-12)
    with pytest.raises(ValueError, match="at least one row without NaN, infinity or values above"):
        KalproxRegressor(missing="drop", penalty="ridge").fit(form(X[5:6]), y[5:6])


def test_float32_is_learned_as_float64(rows):
    X, y = (a.astype(np.float32) for a in rows)
    large = np.float32(1e37)
    model = KalproxRegressor(penalty=None).fit(X * large, y)
    np.testing.assert_allclose(model.coef_ * 1e37, KalproxRegressor(penalty=None).fit(X, y).coef_, rtol=1e-5)


def test_partitions_of_arrays(rows):
    X, y = (a.copy() for a in rows)
    weights = np.ones(200)
    X[3, 2], y[4], weights[5], weights[6], X[6, 0] = 1e160, -1.7e308, 1e300, 1e60, 1e50
    (block,) = ArrayPartition(X, y, weights).blocks()
    found = [(row.row, row.column, row.reason, row.value) for row in block.bad]
    assert found == [
        (4, "X[2]", Reason.TOO_LARGE, "1e+160"),
        (5, "y", Reason.TOO_LARGE, "-1.7e+308"),
        (6, "weight", Reason.TOO_LARGE, "1e+300"),
        (7, "weight", Reason.WEIGHT_TOO_LARGE, "1e+60"),
    ]
    assert len(block) == 196
    assert f"{LARGEST:g}".replace("+", "") in Reason.TOO_LARGE


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("where", ["all", "weight", *(pytest.param(one, marks=pytest.mark.slow) for one in ("x", "y"))])
@pytest.mark.filterwarnings("ignore::kalprox.learning.belief.PenaltyTooStrong")  # it is, behind a link
@pytest.mark.filterwarnings("ignore:The warm-up of the stream has not ended")
@pytest.mark.filterwarnings("ignore:The clusters are worth")  # a row of a large value or weight is a giant
def test_all_that_is_accepted_is_saved_and_loaded(settings, where, rows, tmp_path):
    """Near the limit, before and after ordinary rows, and without a warning, which would be an error here."""
    X, y = (a.copy() for a in rows)
    weights = np.ones(200)
    if where == "x":
        X[5, 1] = 9.9e69
    elif where == "y":
        y[5] = -9.9e69
    elif where == "weight":
        weights[5] = 9.9e69
    else:
        X, y = X * 1e69, y * 1e68
    for first in ((X, y, weights), rows):
        model = KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(*first)
        model.partial_fit(*(rows if first is not rows else (X, y, weights)))
        for i in range(3):
            model.partial_fit(rows[0][i : i + 1], rows[1][i : i + 1])
        assert np.isfinite(model.coef_).all() and model.n_rows_seen_ == 403
        assert model.diagnostics_.verdict().word
        model.predict(rows[0], return_std=True)
        assert len(model.coef_interval()) == 2 and model.coef_std_.shape == (3,)
        model.save(tmp_path / "model")
        np.testing.assert_array_equal(KalproxRegressor.load(tmp_path / "model").coef_, model.coef_)


def test_weights_that_forget_everything_before_them(rows):
    """A row that counts for 1e6 rows leaves nothing of those before it; what was left of them underflowed."""
    X, y = rows
    weights = np.ones(200)
    weights[50] = 1e6
    model = KalproxRegressor(forget=0.99, penalty="ridge").partial_fit(X, y).partial_fit(X, y, sample_weight=weights)
    alone = KalproxRegressor(forget=0.99, penalty="ridge").partial_fit(X[50:], y[50:], sample_weight=weights[50:])
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-9)
    assert model.diagnostics_.rows + model.diagnostics_.undetermined == 200 + weights.sum()


def test_a_source_of_arrays_names_the_row(spoiled, rows):
    X, y, value = spoiled
    with pytest.raises(ValueError, match=f"row 5 has {value}. Rescale"):
        KalproxRegressor(penalty="ridge").fit_source(ArraySource(X, y), 3)
    with pytest.raises(ValueError, match=r"row 5 has .* and the weight 1e\+80"):
        ArraySource(*rows, np.where(np.arange(200) == 5, 1e80, 1.0))
    weights = np.ones(200)
    weights[5] = 0.0  # such a row may hold anything
    model = KalproxRegressor(penalty="ridge").fit_source(ArraySource(X, y, weights), 3)
    np.testing.assert_allclose(model.coef_, KalproxRegressor(penalty="ridge").fit(*rows, weights).coef_, rtol=1e-12)
