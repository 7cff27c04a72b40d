"""The hashed space that columns of levels and of texts share."""

import numpy as np
import pyarrow as pa
import pytest

from kalprox.sources.columns import Columns
from kalprox.sources.files import SourceError
from kalprox.sources.hashing import HashedSpace, check_bits
from kalprox.sources.labels import level_hash

TABLE = pa.table(
    {
        "x": [1.0, 2.0, 3.0, 4.0],
        "tail": ["N1", "N2", "N1", None],
        "note": ["Good, good work", "bad", "Ärger im Büro", "good bad"],
    }
)


def expected(bits, keys):
    """A row of the space, with a sum of signed values for keys, one by one."""
    row = np.zeros(2**bits)
    for key, value in keys.items():
        row[level_hash(key) % 2**bits] += value if level_hash(key) < 2**47 else -value
    return row


def test_places_never_change():
    """They are part of the format of model files."""
    assert [HashedSpace(10).place(key) for key in ("carrier=UA", "note=büro")] == [(983, 1.0), (43, -1.0)]


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_levels_and_words_share_one_space(bits):
    columns = Columns(numeric=("x",), shared=("tail", "note"), words=("note",), hash_bits=bits)
    found = columns.encode(TABLE)
    assert columns.names == ["x", *(f"#{i}" for i in range(2**bits))] and columns.groups == [0] + [3] * 2**bits
    words = [{"good": 2, "work": 1}, {"bad": 1}, {"ärger": 1, "im": 1, "büro": 1}, {"good": 1, "bad": 1}]
    rows = [expected(bits, {f"note={word}": n for word, n in one.items()}) for one in words]
    for row, tail in zip(rows, ("N1", "N2", "N1"), strict=False):
        row += expected(bits, {f"tail={tail}": 1})
    np.testing.assert_array_equal(found.X, np.column_stack([TABLE["x"].to_numpy(), rows]))
    assert [(cell.at, cell.column) for cell in found.bad] == [(3, "tail")]
    note = found.notes.hashed["tail + note"]
    assert note.bins == 2**bits and note.levels == 8
    assert any("share a coefficient" in text for text in found.notes.texts()) is (note.shared > 0)


@pytest.mark.parametrize("own", [{"numeric": ("x",)}, {}])
@pytest.mark.parametrize("bits", [1, 8])
def test_sparse_rows_are_the_dense_ones(own, bits):
    """Two words of a row that share a column add up, bad rows are left out, and a weight is checked by its row."""
    table = TABLE.append_column("w", pa.array([1.0, 1e300, 1.0, 1.0]))
    how = {**own, "shared": ("tail", "note"), "words": ("note",), "hash_bits": bits, "weight": "w"}
    dense, found = (Columns(**how, sparse=sparse).encode(table) for sparse in (False, True))
    np.testing.assert_array_equal(found.X.toarray(), dense.X)
    assert found.X.format == "csr" and found.X.has_canonical_format
    assert found.bad == dense.bad and found.notes == dense.notes
    np.testing.assert_array_equal(found.at(np.array([2, 0])).X.toarray(), dense.X[[2, 0]])


def test_the_memory_of_sparse_rows_is_that_of_their_entries():
    columns = Columns(shared=("note",), words=("note",), hash_bits=20, sparse=True)
    found = columns.encode(TABLE)
    assert found.X.shape == (4, 2**20) and found.X.nnz == 8
    assert columns.row_size < 1000 < Columns(shared=("note",), hash_bits=10).row_size


def test_signs_keep_inner_products_right_on_average():
    """Over 400 pairs of rows of 30 words in 64 columns the mean error of x'z is within 4 standard errors of 0."""
    rng, space, errors = np.random.default_rng(0), HashedSpace(6), []
    for pair in range(400):
        keys = [[f"{pair}:{i}" for i in rng.choice(60, 30, replace=False)] for _ in range(2)]
        x, z = (expected(6, dict.fromkeys(some, 1)) for some in keys)
        errors.append(x @ z - len(set(keys[0]) & set(keys[1])))
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 20 and np.std(errors) > 0
    assert space.size == 64


def test_columns_come_back_from_json():
    columns = Columns("y", numeric=("x",), shared=("tail", "note"), words=("note",), hash_bits=18, sparse=True)
    assert Columns.from_json(columns.to_json()) == columns


def test_mistakes(tmp_path):
    for bits in (0, -1, 2.5):
        with pytest.raises(SourceError, match=r"hash_bits must be a whole number from 1 to 12"):
            check_bits(bits)
    with pytest.raises(
        SourceError, match=r"at most 12; got 18.* 262,144 columns .* 512 GiB.*structure='diagonal'.* 20 bits"
    ):
        check_bits(18)
    check_bits(20, sparse=True)
    with pytest.raises(SourceError, match=r"at most 20, which are 1,048,576 columns; got 21"):
        check_bits(21, sparse=True)
    with pytest.raises(SourceError, match=r"words must be in shared"):
        Columns(shared=("a",), words=("b",), hash_bits=3)
    (tmp_path / "a.csv").write_text("y,c,t\n1,a,b c\n2,b,c d\n")
    files = [tmp_path / "a.csv"]
    with pytest.raises(SourceError, match=r"hash_bits needs hashed features, or words"):
        Columns.infer(files, "y", hash_bits=4)
    with pytest.raises(SourceError, match=r"'t' must be hashed either as a whole or by its words"):
        Columns.infer(files, "y", hashed={"t": None}, words=["t"])
    with pytest.raises(SourceError, match=r"either categorical or hashed"):
        Columns.infer(files, "y", categorical=["t"], words=["t"])
    with pytest.raises(SourceError, match=r"there is no column 't'. The columns are 'c'"):
        Columns.infer(files, "y", features=["c"], words=["t"])
    with pytest.raises(SourceError, match=r"'t' must be either hashed or a date"):
        Columns.infer(files, "y", dates=["t"], words=["t"])
    found = Columns.infer(files, "y", hashed={"c": None}, words=["t"])
    assert found.shared == ("c", "t") and found.hash_bits == 10 and len(found.names) == 1024
    assert Columns.infer(files, "y", hashed={"c": 8}, words=["t"], hash_bits=4).hashed == {"c": 8}
