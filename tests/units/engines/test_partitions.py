"""Dividing sources into partitions: every row is in one partition, with its number in its file."""

from dataclasses import replace

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pytest
from engine_data import COLUMNS, information, sample, table, with_bad_rows, write

from kalprox.engines import ArrayPartition, EngineSource, LocalEngine, partitions_of
from kalprox.engines.base import fold_partition
from kalprox.engines.partitions import FramePartition
from kalprox.information import Information
from kalprox.sources import Counts
from kalprox.sources.columns import Columns
from kalprox.sources.files import SourceError, Unreadable
from kalprox.sources.quarantine import Quarantine
from kalprox.sources.table import Table


@pytest.mark.slow
def test_files_are_read_once_whatever_the_number_of_partitions(tmp_path):
    names = write(tmp_path, [table(n, seed=n) for n in (35, 1, 100, 64)])
    expected = Table(str(tmp_path), COLUMNS).fold(Information.from_block)
    assert expected.counts.read == 200
    for n, count in ((None, 4), (1, 1), (3, 3), (4, 4), (16, 4 + 1 + 4 + 4)):
        partitions = partitions_of(str(tmp_path), COLUMNS, n=n)
        assert len(partitions) == count
        found = EngineSource(LocalEngine(), partitions).fold(Information.from_block)
        np.testing.assert_allclose(found.total.solve(), expected.total.solve(), rtol=1e-10)
        assert found.counts == expected.counts
    assert [p.files for p in partitions_of(names, COLUMNS)] == [(name,) for name in names]


@pytest.mark.slow
def test_a_share_of_a_file_keeps_the_row_numbers_of_the_file(tmp_path):
    write(tmp_path, [with_bad_rows(table(), [3, 42, 99])])
    partitions = partitions_of(str(tmp_path), COLUMNS, n=5)
    single = [row for block in Table(str(tmp_path), COLUMNS).blocks() for row in block.bad]
    source = EngineSource(LocalEngine(), partitions, quarantine=Quarantine(max_bad=3))
    information(source)
    assert [row for i in range(5) for row in source.summaries[i].bad] == single and len(single) == 3
    assert "rows 41 to 60" in partitions[2].name


def test_an_unreadable_file_is_named_or_skipped(tmp_path):
    names = write(tmp_path, [table(), table(seed=2)])
    (tmp_path / "000.parquet").write_bytes(b"PAR1 no longer")
    with pytest.raises(Unreadable, match=r"000\.parquet"):
        information(EngineSource(LocalEngine(), partitions_of(names, COLUMNS)))
    partitions = partitions_of(names, COLUMNS, n=8, skip_unreadable=True)
    source = EngineSource(LocalEngine(), partitions, quarantine=Quarantine(max_bad=1))
    np.testing.assert_allclose(
        information(source).solve(), information(Table([tmp_path / "001.parquet"], COLUMNS)).solve()
    )
    (bad,) = source.summaries[0].bad
    assert (bad.reason, bad.file) == ("unreadable", names[0])


def test_bad_rows_of_arrays_and_frames():
    X, y, w = (a.copy() for a in sample(n=50))
    X[3, 1], y[5], w[7] = np.nan, np.inf, -1
    for partition in (
        ArrayPartition(X, y, w, "chunk 2"),
        FramePartition(pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y, "w": w}), COLUMNS, "chunk 2"),
    ):
        (block,) = partition.blocks()
        assert [(row.file, row.row, row.reason) for row in block.bad] == [
            ("chunk 2", 4, "not finite"),
            ("chunk 2", 6, "not finite"),
            ("chunk 2", 8, "negative weight"),
        ]
        assert len(block) == 47 and block.read == 50
    with pytest.raises(SourceError, match="chunk 2: X, y and the other arrays"):
        list(ArrayPartition(X, y[1:], None, "chunk 2").blocks())


def test_notes_about_a_frame_are_kept_where_it_has_bad_rows():
    frame = pa.table({"y": [1.0, None, 2.0], "g": ["u", "u", "new"]})
    (block,) = FramePartition(frame, Columns("y", categorical={"g": ("u", "v")}), "chunk").blocks()
    assert len(block) == 2 and [row.row for row in block.bad] == [2]
    assert block.notes.unknown_levels["g"].examples == ("new",)


def test_a_summary_has_the_counts_and_the_range_of_the_columns():
    X, y, w = sample(n=9000)
    summary = fold_partition(ArrayPartition(X, y, w, "it"), 4, Information.from_block).summaries[4]
    assert summary.name == "it" and summary.counts == Counts(9000, int((w > 0).sum()), 0)
    assert np.array_equal(summary.columns.low, X.min(axis=0)) and np.array_equal(summary.columns.high, X.max(axis=0))
    np.testing.assert_allclose(summary.columns.total, X.sum(axis=0))


def test_sources_that_no_worker_can_read():
    with pytest.raises(SourceError, match="Standard input"):
        partitions_of("-", COLUMNS)
    with pytest.raises(ValueError, match="columns must name"):
        partitions_of(["a.csv"])
    with pytest.raises(SourceError, match="shuffle cannot be used"):
        partitions_of(["a.csv"], COLUMNS, shuffle=1)


def test_every_partition_has_the_clusters_of_its_rows(tmp_path):
    columns = replace(COLUMNS, cluster="g")
    X, y, w = (a.copy() for a in sample(n=50))
    groups = np.arange(50) // 7
    frame = table(50).append_column("g", pa.array(groups))
    write(tmp_path, [frame.slice(0, 20), frame.slice(20)], groups=5)
    pandas = frame.to_pandas()
    for partitions in (
        partitions_of((X, y, w, groups), n=4),
        partitions_of((X, y, None, groups.astype(float))),
        partitions_of(tuple(map(da.from_array, (X, y, w, groups))), n=3),
        partitions_of((da.from_array(X, chunks=(9, 3)), y, None, groups)),
        partitions_of(str(tmp_path), columns, n=6),
        partitions_of(dd.from_pandas(pandas, npartitions=3), columns),
        [FramePartition(frame, columns)],
        [FramePartition(pandas, columns)],
    ):
        blocks = [block for partition in partitions for block in partition.blocks()]
        assert [label for block in blocks for label in block.groups.tolist()] == [str(g) for g in groups]


def test_a_row_without_a_cluster_is_bad():
    X, y, _ = sample(n=4)
    labels = np.array(["u", None, "v", "u"], object)
    frame = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y, "w": np.ones(4), "g": labels.tolist()})
    for partition in (
        ArrayPartition(X, y, None, "chunk", labels),
        FramePartition(frame, replace(COLUMNS, cluster="g"), "chunk"),
    ):
        (block,) = partition.blocks()
        assert block.groups.tolist() == ["u", "v", "u"] and np.array_equal(block.y, y[[0, 2, 3]])
        assert [(row.row, row.reason) for row in block.bad] == [(2, "missing")]
    with pytest.raises(SourceError, match="must have the same number of rows; got 4, 4, 3"):
        list(ArrayPartition(X, y, None, "chunk", labels[1:]).blocks())
