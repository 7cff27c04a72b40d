"""Rows that wait for their target."""

import numpy as np
import pytest

from kalprox import model_file
from kalprox.base.tree import Saved, as_numbers, flatten
from kalprox.learning.pending import PendingRow, PendingRows, as_key, as_keys


def _stored(pending, tmp_path):
    header, arrays = {}, {}
    flatten("pending", pending.saved(), header, arrays)
    model_file.write(tmp_path / "rows", header, arrays)
    return Saved(*model_file.read(tmp_path / "rows"))


def _filled(capacity=10):
    pending = PendingRows(capacity)
    pending.add("a", PendingRow(np.array([1.0, np.nan]), 2.0, "north", 17.25, -0.5, (1.0, 0.5)))
    pending.add(7, PendingRow(np.array([3.0, 4.0])))
    pending.add("7", PendingRow(np.array([5.0, 6.0]), issued=(2.0,)))
    pending.add("ümlaut \U0001f600", PendingRow(np.array([5.0, 6.0]), group="süd"))
    return pending


def _same(one, other):
    assert list(one) == list(other)
    assert (one.capacity, one.n_dropped) == (other.capacity, other.n_dropped)
    for key in one:
        np.testing.assert_array_equal(one[key].x, other[key].x)
        assert one[key][1:] == other[key][1:]


def test_rows_come_back_as_they_were_added_and_once():
    pending = _filled()
    row = pending.take("a")
    np.testing.assert_array_equal(row.x, [1.0, np.nan])
    assert row[1:] == (2.0, "north", 17.25, -0.5, (1.0, 0.5))
    assert pending.take("a") is None
    assert "a" not in pending and 7 in pending and len(pending) == 3


def test_the_oldest_is_dropped_and_counted():
    pending, x = PendingRows(100), np.ones(3)
    for key in range(1000):
        pending.add(key, PendingRow(x * key))
        assert len(pending) <= 100
    assert list(pending) == list(range(900, 1000)) and pending.n_dropped == 900
    with pytest.raises(ValueError, match=r"3.*was dropped: 900 were, of the oldest, to hold 100"):
        pending.check_known([3, 950])


def test_inputs_are_copied():
    x = np.ones(2)
    pending = PendingRows()
    pending.add("a", PendingRow(x))
    x[:] = 5
    np.testing.assert_array_equal(pending["a"].x, 1.0)


def test_a_key_is_taken_once():
    pending = _filled()
    with pytest.raises(ValueError, match=r"'a' came before.*target of the earlier row first"):
        pending.add("a", PendingRow(np.ones(2)))
    assert len(pending) == 4 and pending["a"].weight == 2.0
    with pytest.raises(ValueError, match=r"'new' came before"):
        pending.check_new(["new", "other", "new"])
    with pytest.raises(ValueError, match=r"No row waits for the target of the key\(s\) 'x'.*4 row"):
        pending.check_known(["a", "x"])
    with pytest.raises(ValueError, match=r"one target; the key\(s\) 7 has several"):
        pending.check_known([7, "a", 7])
    with pytest.raises(ValueError, match=r"0, 1, 2, 3, 4 and 4 more"):
        pending.check_known(range(10))


def test_a_key_that_was_taken_may_wait_again():
    pending = _filled()
    pending.take("a")
    pending.add("a", PendingRow(np.zeros(2)))
    assert list(pending)[-1] == "a"


@pytest.mark.parametrize("bad", [1.5, None, True, b"a", np.float64(2.0), np.datetime64("2020-01-01")])
def test_keys_are_texts_or_whole_numbers(bad):
    with pytest.raises(TypeError, match=r"text or a whole number"):
        as_key(bad)


def test_keys_of_a_batch():
    assert as_keys(np.array(["a", "b"]), 2) == ["a", "b"]
    assert as_keys(np.arange(2), 2) == [0, 1]
    with pytest.raises(ValueError, match=r"one key per row, 3 in all; got 2"):
        as_keys(["a", "b"], 3)
    with pytest.raises(ValueError, match=r"'abc'"):
        as_keys("abc", 3)


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "many"])
def test_capacity_is_a_whole_number(capacity):
    with pytest.raises(ValueError, match=r"capacity must be a whole number >= 1"):
        PendingRows(capacity)


def test_saved_and_restored(tmp_path):
    pending = _filled(capacity=4)
    pending.add("e", PendingRow(np.array([0.0, -1.0])))  # drops the first
    _same(PendingRows.restored(2, _stored(pending, tmp_path)), pending)
    assert pending.n_dropped == 1


def test_an_empty_store_is_saved(tmp_path):
    _same(PendingRows.restored(3, _stored(PendingRows(5), tmp_path)), PendingRows(5))


@pytest.mark.slow
def test_many_long_keys_are_saved(tmp_path):
    pending = PendingRows(40_000)
    for i in range(40_000):  # more text than the header of a model file may have
        pending.add(f"{i:0500d}", PendingRow(np.array([float(i)])))
    _same(PendingRows.restored(1, _stored(pending, tmp_path)), pending)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [["a", 1.0, None, None, None, []]] * 2},
        {"rows": [["a", -1.0, None, None, None, []]]},
        {"rows": [["a", 1.0, 7, None, None, []]]},
        {"rows": [["a", 1.0, None, "late", None, []]]},
        {"rows": [[None, 1.0, None, None, None, []]]},
        {"rows": [["a", 1.0, None, None, None, ["far"]]]},
        {"X": np.ones((4, 3))},
        {"X": np.full((4, 2), np.inf)},
        {"rows": np.array([0.5])},
        {"capacity": 2},
    ],
)
def test_values_that_do_not_fit_are_refused(change):
    header, arrays = {}, {}
    values = _filled().saved()
    for name, value in change.items():
        values[name] = as_numbers(value) if isinstance(value, list) else value
        if isinstance(value, list):
            values["X"] = np.ones((len(value), 2))
    flatten("pending", values, header, arrays)
    with pytest.raises(ValueError, match=r"do not agree|JSON|whole number|Expecting"):
        PendingRows.restored(2, Saved(header, arrays))


def test_a_copy_is_independent():
    pending = _filled()
    other = pending.copy()
    other.take("a")
    other.add("new", PendingRow(np.ones(2)))
    assert "a" in pending and "new" not in pending
