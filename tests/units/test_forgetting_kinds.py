"""Kinds of forgetting: what they take, how they are described, and with what they are refused."""

import pickle
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from kalprox.forgetting import ByRow, ByTime, RandomWalk, Window, forgetting_of
from kalprox.learning.settings import Settings
from kalprox.sources.weighting import TimeGoesBack, in_order, time_numbers

LINEAR = Window(50), RandomWalk(0.1)


def test_a_number_is_forgetting_by_row():
    assert forgetting_of(0.9) == ByRow(0.9) and forgetting_of(ByTime(2.0)) == ByTime(2.0)
    assert Settings.of(forget=0.9).forgetting == ByRow(0.9) and Settings.of(forget=0.9).forgetting.per_row == 0.9
    assert not Settings.of().forgets and not RandomWalk(0.0).forgets and RandomWalk(0, intercept=1e-3).forgets


@pytest.mark.parametrize("bad", [0, 1.5, -1, float("nan"), True, "often", None])
def test_a_factor_outside_of_its_range_is_named(bad):
    with pytest.raises(ValueError, match=r"forget must lie in \(0, 1\]"):
        Settings.of(forget=bad)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ByTime(0), "half_life"),
        (lambda: ByTime("week"), "half_life must be a number"),
        (lambda: Window(1), "whole number >= 2"),
        (lambda: Window(2.5), "whole number >= 2"),
        (lambda: RandomWalk(-1.0), "q must be"),
        (lambda: RandomWalk([[1.0]]), "q must be a number"),
        (lambda: RandomWalk(1.0, intercept=np.inf), "intercept must be"),
        (lambda: RandomWalk([1.0, 2.0]).steps(3, intercept=False), "one entry per coefficient, 3; got 2"),
        (lambda: RandomWalk([1.0, 2.0]).steps(2, intercept=True), "give intercept="),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("kind", LINEAR, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"link": "exp"}, "link='identity'"),
        ({"likelihood": "bernoulli"}, "likelihood='gaussian'"),
        ({"coef_cov": "robust"}, "coef_cov='model'"),
        ({"noise": "inputs"}, "noise='learn'"),
        ({"penalty": "l1", "alpha": "auto"}, "number for alpha"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(kind, setting, words):
    with pytest.raises(ValueError, match=type(kind).__name__) as error:
        Settings.of(forget=kind, **setting)
    assert words in str(error.value)


def test_the_standard_deviations_of_columns_are_those_of_a_window_and_of_no_drift():
    Settings.of(forget=Window(50), penalty="ridge", standardize=True)
    with pytest.raises(ValueError, match="standardize=False"):
        Settings.of(forget=RandomWalk(0.1), penalty="ridge", standardize=True)
    assert not Settings.of(forget=RandomWalk(0.1), standardize=True).standardize  # without a penalty it has no effect


@pytest.mark.parametrize("kind", [ByRow(0.9), ByTime(2.0), *LINEAR, RandomWalk((0.1, 0.0), 0.5)])
def test_kinds_are_values(kind):
    assert pickle.loads(pickle.dumps(kind)) == kind and hash(kind) == hash(kind)
    assert kind.describe() and eval(repr(kind)) == kind


def test_half_lives_of_dates_are_in_days():
    assert ByTime(timedelta(hours=6)).half_life == 0.25 == ByTime(np.timedelta64(6, "h")).half_life


def test_times_are_numbers_or_dates():
    noon = datetime(1970, 1, 2, 12)
    elsewhere = datetime(1970, 1, 2, 14, tzinfo=timezone(timedelta(hours=2)))
    given = noon, noon.replace(tzinfo=UTC), elsewhere, np.datetime64("1970-01-02T12:00"), "1970-01-02T12:00:00"
    assert all((time_numbers(one, 2) == 1.5).all() for one in given)
    assert (time_numbers([noon, elsewhere], 2) == 1.5).all()
    assert time_numbers([1, 2], 2).tolist() == [1.0, 2.0]
    for bad in ("soon", [1.0, np.nan], [1.0, 2.0, 3.0], [True, False], [None, 1.0]):
        with pytest.raises(ValueError, match="times must"):
            time_numbers(bad, 2)


def test_a_row_that_goes_back_is_named_and_one_of_weight_zero_is_no_row():
    times = np.array([1.0, 3.0, 2.0, 4.0])
    with pytest.raises(TimeGoesBack, match=r"row 2: .*2, after 3\. Sort the rows") as error:
        in_order(times)
    assert error.value.row == 2 and pickle.loads(pickle.dumps(error.value)).row == 2
    with pytest.raises(TimeGoesBack, match="row 10:"):
        in_order(times, since=1.5, first=10)
    assert in_order(times, weights=np.array([1.0, 1.0, 0.0, 1.0])).tolist() == [1.0, 3.0, 3.0, 4.0]
    with pytest.raises(ValueError, match=r"ByTime\(\.\.\.\) needs the time of every row"):
        in_order(None)
