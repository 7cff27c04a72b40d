"""EngineSource: passes, their counts and bad rows, and the replay of completed passes."""

import pytest
from engine_data import COLUMNS, bits, cut, fitted, information, sample, table, with_bad_rows, write

from kalprox.engines import EngineSource, LocalEngine, partitions_of
from kalprox.information import Information
from kalprox.sources import Counts
from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Quarantine, TooManyBadRows
from kalprox.sources.table import Table


def test_the_quarantine_is_that_of_one_machine(tmp_path):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", [with_bad_rows(table(50, seed), [seed, 20 + seed]) for seed in range(8)])
    one = Quarantine(tmp_path / "one.csv")
    for block in Table(str(tmp_path / "in"), COLUMNS).blocks():
        one.take(block.bad, block.read)
    one.finish()
    many = Quarantine(tmp_path / "many.csv")
    source = EngineSource(LocalEngine(3), partitions_of(str(tmp_path / "in"), COLUMNS), quarantine=many)
    first, second = (source.fold(Information.from_block) for _ in range(2))
    many.finish()
    assert (tmp_path / "many.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()  # of the first pass only
    assert (first.counts.read, first.counts.bad) == (400, 16) and second.counts == first.counts


def test_too_many_bad_rows_stop_the_first_pass_with_their_file(tmp_path):
    names = write(tmp_path, [table(), with_bad_rows(table(), [5])])
    with pytest.raises(TooManyBadRows, match=r"001\.parquet, row 6, column 'a': not finite"):
        information(EngineSource(LocalEngine(), partitions_of(names, COLUMNS)))


def test_completed_passes_are_replayed_with_their_counts():
    partitions, kept, watched = cut(sample(), 6, 0), [], []
    whole = fitted("sigmoid", EngineSource(LocalEngine(2), partitions, keep=lambda *one: kept.append(one)))
    assert [number for number, _ in kept] == list(range(len(kept)))
    later = []
    source = EngineSource(
        LocalEngine(2),
        partitions,
        done=[folded for _, folded in kept[:3]],
        keep=lambda number, folded: later.append(number),
        watch=lambda number, *_: watched.append(number),
    )
    assert fitted("sigmoid", source).tobytes() == whole.tobytes()
    assert later == list(range(3, len(kept))) and min(watched) == 3
    replayed = EngineSource(LocalEngine(), partitions, done=[kept[0][1]]).fold(len)
    assert replayed.counts == Counts(600, int((sample()[2] > 0).sum()), 0)


def test_every_partition_of_every_pass_is_watched_once():
    watched = []
    partitions = cut(sample(), 9, 0)
    source = EngineSource(LocalEngine(3), partitions, watch=lambda n, i, summary: watched.append((n, i, summary.name)))
    assert bits(information(source)) == bits(information(source))
    assert sorted(watched) == [(number, i, p.name) for number in (0, 1) for i, p in enumerate(partitions)]


def test_a_source_without_a_good_row():
    X, y, _ = sample()
    folded = EngineSource(LocalEngine(), partitions_of((X[:0], y[:0]), n=3)).fold(Information.from_block)
    assert folded.total is None and folded.counts == Counts()
    with pytest.raises(SourceError, match="at least one partition"):
        EngineSource(LocalEngine(), [])
