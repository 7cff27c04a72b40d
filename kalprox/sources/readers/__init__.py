"""Readers: one file per format. Each yields raw blocks of rows, from any offset where a raw block ended."""

from pathlib import Path
from typing import Any

from kalprox.base.memory import check_address_space
from kalprox.sources.files import MAX_RECORD, STDIN, Replay, SourceError, format_of, refuse_pipe
from kalprox.sources.readers.base import RawBlock, Reader, Wanted

__all__ = ["RawBlock", "Reader", "Wanted", "reader"]


def reader(
    path: Path,
    *,
    format: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    stdin: Replay | None = None,
    chunk_bytes: int = 1 << 20,
    batch_rows: int = 1 << 16,
    max_record: int = MAX_RECORD,
    decimal: str = ".",
    thousands: str | None = None,
    units: tuple[str, ...] = (),
    threads: int = 1,
) -> Reader:
    """The reader of one file.

    Parameters
    ----------
    path : Path
    format : str, optional
        The format of the file, such as "csv.gz". The default is the format that the suffix says.
    encoding, delimiter : str, optional
        The encoding of text files, and the delimiter of CSV files. By default the delimiter is found, and so are UTF-16
        and UTF-32, by their byte order marks.
    stdin : Replay, optional
        The stream to read for the path "-".
    chunk_bytes, batch_rows : int
        The size of raw blocks: about `chunk_bytes` of a text file, at most `batch_rows` rows of a Parquet file.
    max_record : int
        The largest number of bytes in the header or a record of a text file; a longer record is a bad row.
    decimal, thousands, units : optional
        How numbers are written as text; see `kalprox.sources.readers.notation.Notation`.
    threads : int
        The number of raw blocks of a text file to parse at a time.

    Returns
    -------
    Reader
    """
    from kalprox.sources.readers.notation import Notation

    refuse_pipe(path)
    check_address_space()
    notation = Notation(decimal, thousands, units)
    kind, _, compression = format_of(path, format).partition(".")
    if kind in ("parquet", "arrow") and path == STDIN:
        raise SourceError(f"Standard input must be csv, tsv or jsonl, or one of them with .gz; got {kind}.")
    if kind == "parquet":
        from kalprox.sources.readers.parquet import ParquetReader

        return ParquetReader(path, batch_rows, notation)
    if kind == "arrow":
        from kalprox.sources.readers.arrow import ArrowReader

        return ArrowReader(path, notation)
    from kalprox.sources.readers.text import Text

    text = Text(path, compressed=compression == "gz", encoding=encoding, stdin=stdin)
    options: dict[str, Any] = {"chunk_bytes": chunk_bytes, "max_record": max_record, "threads": threads}
    if kind == "jsonl":
        from kalprox.sources.readers.jsonl import JsonReader

        return JsonReader(text, **options)
    from kalprox.sources.readers.csv import CsvReader

    default = "\t" if kind == "tsv" else ","
    return CsvReader(text, delimiter=delimiter, default=default, notation=notation, **options)
