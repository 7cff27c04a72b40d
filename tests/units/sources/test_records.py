"""Records of a stream as they come: what is a record, what is held, and how a position is found again."""

import io
import os

import numpy as np
import pytest

from kalprox.sources.files import SourceError
from kalprox.sources.quarantine import Reason
from kalprox.sources.records import Position, Records


def split(data, delimiter=None, max_record=1000, stream=None):
    records = Records(stream or io.BytesIO(data), max_record=max_record)
    if delimiter:
        records.split_by(delimiter)
    return records


class Drops:
    """A stream that gives its bytes in pieces of random length."""

    def __init__(self, data, seed):
        self.data, self.rng = data, np.random.default_rng(seed)

    def read1(self, size):
        n = int(self.rng.integers(1, 5))
        piece, self.data = self.data[:n], self.data[n:]
        return piece


def test_lines_are_records_whatever_the_pieces_in_which_they_come():
    data = b'{"a": 1}\n\n  \r\n{"a": 2}\r\n{"a": 3}'
    for seed in range(20):
        found = list(split(b"", stream=Drops(data, seed)))
        assert [record.data for record in found] == [b'{"a": 1}\n', b'{"a": 2}\r\n', b'{"a": 3}']
        assert [data[record.start : record.end] for record in found] == [record.data for record in found]


def test_a_quoted_cell_may_contain_newlines_and_delimiters():
    data = b'1,"a\nb"\n2,"c ""d""\n,"\r\n3,e"f\n4,g\n'
    for seed in range(20):
        found = [record.data for record in split(b"", ",", stream=Drops(data, seed))]
        assert [one.strip() for one in found] == [b'1,"a\nb"', b'2,"c ""d""\n,"', b'3,e"f', b"4,g"]


def test_a_record_that_does_not_end_is_a_fault_and_the_next_line_goes_on():
    data = b"1,2\n" + b"x" * 300_000 + b"\n3,4\n"
    found = list(split(data, ",", max_record=1000))
    assert [record.fault for record in found] == [None, Reason.TOO_LONG, None]
    assert found[1].data == b"x" * 80 and found[2].data == b"3,4\n" and found[2].end == len(data)
    found = list(split(b'1,"open\n3,4\n5,6\n', ","))
    assert [record.fault for record in found] == [Reason.UNCLOSED, None, None]
    assert [record.data for record in found[1:]] == [b"3,4\n", b"5,6\n"]
    long = b'1,"open\n' + b"7,8\n" * 1000
    found = list(split(long, ",", max_record=100))
    assert found[0].fault is Reason.UNCLOSED and len(found) == 1001


def test_no_more_is_held_than_a_record():
    """What is not taken stays in the stream: a writer that is faster has to wait."""

    class Endless:
        read = 0

        def read1(self, size):
            self.read += size
            return b"1,2\n" * (size // 4)

    stream = Endless()
    records = split(b"", stream=stream)
    for _ in range(100):
        records.next()
    assert stream.read == 1 << 16  # one piece for the first 16,384 records


def test_rows_are_taken_by_number_or_by_time():
    records = split(b"a\nb\nc\n")
    assert [one.data for one in records.take(2)] == [b"a\n", b"b\n"]
    assert [one.data for one in records.take(2)] == [b"c\n"]
    assert records.take(2) == []
    read, write = os.pipe()
    os.write(write, b"a\nb\nc")
    with os.fdopen(read, "rb") as stream:
        records = split(b"", stream=stream)
        assert [one.data for one in records.take(100, seconds=0.01)] == [b"a\n", b"b\n"]
        os.write(write, b"\n")
        os.close(write)
        assert [one.data for one in records.take(100, seconds=10.0)] == [b"c\n"]
        assert records.take(100, seconds=0.01) == []


def test_a_look_ahead_takes_nothing():
    data = b"".join(b"%d,%d\n" % (i, i) for i in range(30_000))
    for rows, expected in ((1, 4), (20_000, data.find(b"20000,")), (100_000, len(data))):
        records = split(data)
        assert records.peek(rows) == data[:expected]
        assert records.peek(rows) == data[:expected]
        assert records.offset == 0
        assert [record.data for record in records] == data.splitlines(keepends=True)
    with pytest.raises(SourceError, match=r"header does not end within 100 bytes"):
        split(b"x" * 100_000 + b"\n1\n", max_record=100).peek(2)
    assert split(b"a\n" + b"x" * 100_000 + b"\n1\n", max_record=100).peek(3) == b"a\n"
    assert [r.data for r in split(b"x" * 100_000 + b"\n1\n2\n", max_record=100).ahead(1)] == [b"1\n"]


def test_a_position_is_found_again():
    data = b"".join(b"%d\n" % (7 * i) for i in range(100_000))
    records = split(data)
    for _ in range(54_321):
        record = records.next()
    position = Position(54_321, record.end, record.start, record.sha256)
    again = split(data)
    again.skip(position)
    assert again.next().data == records.next().data
    for other in (data[1:], data[: position.last], data.replace(record.data, b"1" * len(record.data[:-1]) + b"\n")):
        with pytest.raises(SourceError, match=r"differs from that of the run to resume, in row 54,321"):
            split(other).skip(position)
