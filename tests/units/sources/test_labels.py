"""Labels of clusters: one text for one value, whatever its type."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from kalprox.sources.labels import label_of, labels_of

MOMENT = datetime.datetime(2013, 1, 1, 5, 30)
EASTERN = datetime.timezone(datetime.timedelta(hours=-5))


@pytest.mark.parametrize(
    ("label", "values"),
    {
        "7": (7, 7.0, np.int8(7), np.float32(7), Decimal("7.00"), "7", "7.0", "7."),
        "-3": (-3, -3.0, "-3.0"),
        "123456789012": (123456789012, 123456789012.0, "123456789012.0"),
        "1e+20": (1e20, "1e+20"),
        "0.1": (0.1, "0.1", Decimal("0.1")),
        "true": (True, "True", "true"),
        "2013-01-01": (datetime.date(2013, 1, 1), datetime.datetime(2013, 1, 1), "2013-01-01", "2013-01-01 00:00:00"),
        "2013-01-01 05:30:00": (
            MOMENT,
            MOMENT.replace(hour=0, tzinfo=EASTERN),
            "2013-01-01T05:30:00.000",
            "2013-01-01 05:30:00",
            "2013-01-01 00:30:00-05:00",
        ),
        "007": ("007",),
        "1.10": ("1.10",),
        "2013-13-45": ("2013-13-45",),
        "NA": ("NA",),
        "é x": ("é x",),
        None: (None, float("nan"), np.nan, "", "nan", "NaN", pd.NaT),
    }.items(),
    ids=str,
)
def test_a_value_has_one_label(label, values):
    assert [label_of(value) for value in values] == [label] * len(values)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (np.array([3, 1, 3]), ["3", "1", "3"]),
        (np.array([3.0, np.nan, 0.5]), ["3", "", "0.5"]),
        (["b", "a", "b"], ["b", "a", "b"]),
        (np.array(["b", None, 2, 2.0, True], object), ["b", "", "2", "2", "true"]),
        (pd.Series(["u", "v", "u"], dtype="category"), ["u", "v", "u"]),
        (
            pd.Series(np.array(["2013-01-01", "2013-01-01T12", "NaT"], "M8[ns]")),
            ["2013-01-01", "2013-01-01 12:00:00", ""],
        ),
        (np.array([], int), []),
    ],
    ids=str,
)
def test_arrays_of_any_type(values, labels):
    found = labels_of(values)
    assert found.labels.tolist() == labels and found.missing.tolist() == [label == "" for label in labels]
