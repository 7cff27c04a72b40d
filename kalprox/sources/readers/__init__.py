"""Readers: one file a format. Each yields pieces of a table, from any offset that a piece ended at."""

from pathlib import Path
from typing import Any

from kalprox.sources.files import STDIN, Replay, SourceError, format_of
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
) -> Reader:
    """The reader of one file: pieces of about `chunk_bytes` of text, or of at most `batch_rows` rows."""
    kind, _, packed = format_of(path, format).partition(".")
    if kind in ("parquet", "arrow") and path == STDIN:
        raise SourceError(f"Standard input can be csv, tsv or jsonl, also packed (csv.gz); not {kind}.")
    if kind == "parquet":
        from kalprox.sources.readers.parquet import ParquetReader

        return ParquetReader(path, batch_rows)
    if kind == "arrow":
        from kalprox.sources.readers.arrow import ArrowReader

        return ArrowReader(path)
    from kalprox.sources.readers.text import Text

    text = Text(path, packed=packed == "gz", encoding=encoding, stdin=stdin)
    options: dict[str, Any] = {"chunk_bytes": chunk_bytes}
    if kind == "jsonl":
        from kalprox.sources.readers.jsonl import JsonReader

        return JsonReader(text, **options)
    from kalprox.sources.readers.csv import CsvReader

    return CsvReader(text, delimiter=delimiter or ("\t" if kind == "tsv" else ","), **options)
