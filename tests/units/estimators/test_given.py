"""What is given of rows besides X and y: offsets beside those of a frame, keys, and how many rows may wait."""

import numpy as np
import pandas as pd
import pytest

from kalprox import KalproxRegressor

X = np.random.default_rng(0).normal(size=(6, 2))
Y, UNKNOWN = X.sum(axis=1), np.full(6, np.nan)


def test_an_offset_beside_the_exposure_of_a_frame_counts_with_it():
    frame = pd.DataFrame({"a": X[:, 0], "count": [1.0, 0, 2, 3, 1, 0], "hours": [1.0, 2, 3, 4, 5, 6]})
    offset = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])

    def fitted(exposure):
        return KalproxRegressor("count ~ a", likelihood="poisson").fit(frame, offset=offset, exposure=exposure)

    np.testing.assert_allclose(fitted("hours").coef_, fitted(frame["hours"].to_numpy()).coef_, rtol=1e-12)


def test_rows_that_were_dropped_stay_counted_when_no_other_waits():
    model = KalproxRegressor().fit(X, Y)
    model.partial_fit(X, UNKNOWN, keys=list("abcdef"), max_pending=2).learn_late(["e", "f"], [1.0, 2.0])
    model.partial_fit(X, UNKNOWN, keys=list("ghijkl"))
    assert (model.n_rows_dropped_, model.n_rows_pending_) == (4, 6)


def test_a_wrong_number_of_rows_that_may_wait_leaves_the_model_unchanged():
    model = KalproxRegressor().fit(X, Y)
    with pytest.raises(ValueError, match="max_pending must be a whole number >= 1; got 0"):
        model.partial_fit(X, np.where(np.arange(6) < 1, np.nan, Y), keys=list("abcdef"), max_pending=0)
    assert model.n_rows_seen_ == 6
