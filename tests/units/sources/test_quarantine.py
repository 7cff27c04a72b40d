"""The quarantine: limits on bad rows, and its file."""

import json

import pytest

from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import BadRow, Quarantine, TooManyBadRows


def bad(n, file="x.csv"):
    return [BadRow(file, i, "a", "not a number", 'x"\n,') for i in range(n)]


def test_quarantine_counts():
    with pytest.raises(TooManyBadRows, match=r"(?s)1 bad of 10 rows.*x.csv, row 1, column 'a': missing \('7'\)"):
        Quarantine().take([BadRow("x.csv", 1, "a", "missing", "7")], 10)
    kept = Quarantine(max_bad=3)
    kept.take(bad(3), 10)
    with pytest.raises(TooManyBadRows, match="4 bad of 11 rows"):
        kept.take(bad(1), 1)


def test_quarantine_share():
    kept = Quarantine(max_bad="1%")
    kept.take(bad(60), 100)
    kept.take([], 9_900)
    kept.finish()
    kept = Quarantine(max_bad="1%")
    kept.take(bad(60), 100)
    with pytest.raises(TooManyBadRows, match="more than the 1% allowed"):
        kept.finish()
    with pytest.raises(TooManyBadRows):
        Quarantine(max_bad="0.5%").take(bad(60), 10_001)
    for wrong in ("x", "-1", "101%", "%", -1, "1.5"):
        with pytest.raises(SourceError, match="max_bad must be"):
            Quarantine(max_bad=wrong)


def test_quarantine_resumes_without_a_row_twice(tmp_path):
    whole, path = Quarantine(tmp_path / "whole.csv"), tmp_path / "q.csv"
    for n in (2, 3, 4):
        whole.take(bad(n), 10)
    whole.finish()
    first = Quarantine(path)
    first.take(bad(2), 10)
    state = json.loads(json.dumps(first.state()))
    first.take(bad(4), 10)
    first.close()
    second = Quarantine(path, resume=state)
    second.take(bad(3), 10)
    second.take(bad(4), 10)
    second.finish()
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert (second.bad, second.read, second.first) == (9, 30, whole.first)
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="shorter than"):
        Quarantine(path, resume=state)
