"""Columns and labels of odd types: an error that names the column and says what to do, never one from within."""

import numpy as np
import pandas as pd
import pytest

from kalprox import KalproxClassifier, KalproxRegressor

rng = np.random.default_rng(0)
N = 40
FRAME = pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N)})
Y = (2 * FRAME.a + rng.normal(size=N)).to_numpy()
ODD = {
    "text": ["u", "v"] * (N // 2),
    "category": pd.Categorical(["u", "v"] * (N // 2)),
    "date": pd.date_range("2020", periods=N),
    "date with a zone": pd.date_range("2020", periods=N, tz="Europe/Berlin"),
    "duration": pd.to_timedelta(range(N), unit="h"),
    "period": pd.period_range("2020", periods=N, freq="D"),
}


@pytest.mark.parametrize("learn", ["fit", "partial_fit", "prequential"])
@pytest.mark.parametrize("kind", ODD)
def test_a_column_without_numbers_is_named(kind, learn):
    frame = FRAME.assign(b=ODD[kind])
    with pytest.raises(ValueError, match=r"X must hold numbers; column 'b' holds .* A formula, as in"):
        getattr(KalproxRegressor(), learn)(frame, Y)
    with pytest.raises(ValueError, match="column 'b' holds"):
        KalproxRegressor().fit(FRAME, Y).predict(frame)


def test_a_column_of_another_name_is_still_what_scikit_learn_says():
    frame = FRAME.rename(columns={"a": "c"}).assign(b=ODD["text"])
    with pytest.raises(ValueError, match="feature names should match"):
        KalproxRegressor().fit(FRAME, Y).predict(frame)


@pytest.mark.parametrize(("target", "kind"), [(Y + 1j, "complex"), ([object()] * N, "object")])
@pytest.mark.parametrize("estimator", [KalproxRegressor, KalproxClassifier])
def test_a_target_that_no_column_holds_is_refused_in_words(estimator, target, kind):
    with pytest.raises(TypeError, match=f"y must hold numbers, or text or booleans for classes; it holds {kind}"):
        estimator("~ a").fit(FRAME, target)


def test_a_formula_without_a_target_needs_one_to_fit_and_to_score():
    with pytest.raises(ValueError, match="The formula has no target: give y to fit"):
        KalproxRegressor("~ a").fit(FRAME)
    with pytest.raises(ValueError, match="y must be given to score: the formula, '~ a', has no target"):
        KalproxRegressor("~ a").fit(FRAME, Y).score(FRAME)


def test_numbers_among_text_are_called_so():
    with pytest.raises(ValueError, match=r"numbers with a decimal point as text, such as '1'\. Write them as numbers"):
        KalproxRegressor("~ a").fit(FRAME.assign(a=[1, "x"] * (N // 2)), Y)


def test_labels_of_several_types_are_refused_in_words():
    labels = np.array(["u", 1] * (N // 2), dtype=object)
    with pytest.raises(TypeError, match="y must have labels of one type, which can be sorted; got int and str"):
        KalproxClassifier().fit(FRAME, labels)
