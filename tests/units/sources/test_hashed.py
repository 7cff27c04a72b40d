"""Hashed columns: stable bins, no unknown level, and a count of the levels that share a bin."""

import json
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest

from kalprox.jobs.record import from_json
from kalprox.sources.columns import Columns
from kalprox.sources.files import SourceError
from kalprox.sources.labels import level_hash
from kalprox.sources.quarantine import HashNote, Notes, Reason


def encoded(columns, cells):
    return columns.encode(pa.table({"c": cells}))


def test_the_hash_never_changes():
    """Bins in model files depend on it: these numbers are part of the format."""
    found = [level_hash(label) for label in ("UA", "é", "7")]
    assert found == [147670283652064, 11707938059005, 9074044953775]


def test_levels_are_put_into_bins(tmp_path):
    columns = Columns(hashed={"c": 8})
    cells = ["UA", " UA", "AA", "7", None, "never seen"]
    rows = encoded(columns, cells)
    assert columns.names == [f"c=#{i}" for i in range(8)]
    bins = [level_hash(label) % 8 for label in ("UA", "UA", "AA", "7")]
    np.testing.assert_array_equal(rows.X[:4], np.eye(8)[bins])
    assert [(cell.at, cell.reason) for cell in rows.bad] == [(4, Reason.MISSING)]
    np.testing.assert_array_equal(encoded(columns, pa.array([7.0, 7.0])).X, np.eye(8)[[bins[3]] * 2])
    dropped = Columns(hashed={"c": 8}, drop_first=True)
    assert dropped.names == columns.names[1:] and dropped.references == {"c": "#0"}
    np.testing.assert_array_equal(encoded(dropped, cells).X, rows.X[:, 1:])
    assert Columns.from_json(dropped.to_json()) == dropped


def test_levels_that_share_a_bin_are_counted():
    labels = [f"N{i}" for i in range(100)]
    _, counts = np.unique([level_hash(label) % 64 for label in labels], return_counts=True)
    columns = Columns(hashed={"c": 64})
    notes = encoded(columns, labels[:60]).notes + encoded(columns, labels[40:]).notes
    note = notes.hashed["c"]
    assert (note.levels, note.shared) == (100, counts[counts > 1].sum())
    assert list(notes.texts()) == [
        f"Hashed levels that share a coefficient: column 'c', {note.shared} of 100 levels share one of 64 bins with "
        "others. More bins separate them."
    ]
    assert from_json(Notes, json.loads(json.dumps(asdict(notes)))) == notes
    assert notes.without_examples() == Notes()  # a hash is nearly a value
    assert not list(encoded(columns, ["a"]).notes.texts())


def test_of_many_levels_the_number_is_estimated():
    """The relative std of (k - 1) / u_k is 1 / sqrt(k - 2): 4.4% for k = 512; five times that is allowed."""
    note = HashNote(1024)
    for i in range(40):
        hashes = np.array([level_hash(f"N{j}") for j in range(500 * i, 500 * (i + 2))], np.uint64)
        note = note + HashNote.of(1024, hashes)
    assert len(note.smallest) == 512 and abs(note.levels / 20_500 - 1) < 5 / np.sqrt(510)
    assert note.shared > 0.99 * note.levels and str(note).startswith("about ")


def test_bins_are_checked(tmp_path):
    with pytest.raises(SourceError, match="at least 2"):
        Columns(hashed={"c": 1})
    with pytest.raises(SourceError, match="exactly one of"):
        Columns(hashed={"c": 8}, categorical={"c": ("a",)})
    (tmp_path / "a.csv").write_text("y,c\n1,a\n2,b\n")
    with pytest.raises(SourceError, match="'c' must be either categorical or hashed"):
        Columns.infer([tmp_path / "a.csv"], "y", categorical=["c"], hashed={"c": None})
    assert Columns.infer([tmp_path / "a.csv"], "y", hashed={"c": None}).hashed == {"c": 1024}
