"""Readers: one file per format. Each yields raw blocks of rows, from any offset where a raw block ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from kalprox.base.memory import check_address_space
from kalprox.sources.files import MAX_RECORD, STDIN, Replay, SourceError, format_of, refuse_pipe
from kalprox.sources.files import stdin as standard_input
from kalprox.sources.readers.base import RawBlock, Reader, Wanted
from kalprox.sources.readers.notation import Notation

__all__ = ["RawBlock", "Reader", "Reading", "Wanted"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read.

    Parameters
    ----------
    format : str, optional
        The format of all files, such as "csv.gz". The default is the format that the suffix of each says.
    encoding, delimiter : str, optional
        The encoding of text files, and the delimiter of CSV files. By default the delimiter is found, and so are UTF-16
        and UTF-32, by their byte order marks.
    max_record : int
        The largest number of bytes in the header or a record of a text file; a longer record is a bad row.
    decimal, thousands, units : optional
        How numbers are written as text; see `kalprox.sources.readers.notation.Notation`.
    chunk_bytes, batch_rows : int
        The size of raw blocks: about `chunk_bytes` of a text file, at most `batch_rows` rows of a Parquet file.
    stdin : binary stream, optional
        The stream to read for the path "-". The default is the standard input of this process.
    """

    _LATER: ClassVar[Mapping[str, Any]] = MappingProxyType({"decimal": ".", "thousands": None, "units": ()})

    format: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    max_record: int = MAX_RECORD
    decimal: str = "."
    thousands: str | None = None
    units: tuple[str, ...] = ()
    chunk_bytes: int = 1 << 20
    batch_rows: int = 1 << 16
    stdin: Any = None

    notation: Notation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", tuple(self.units))
        object.__setattr__(self, "notation", Notation(self.decimal, self.thousands, self.units))
        if self.stdin is not None:  # one object, which is rewound
            object.__setattr__(self, "stdin", standard_input(self.stdin))

    @property
    def replay(self) -> Replay:
        """The stream that is read for the path "-"."""
        return standard_input(self.stdin)

    def settings(self) -> dict[str, Any]:
        """The keyword arguments for a Reading of the same files, in blocks of another size."""
        names = [part.name for part in fields(Reading) if part.name not in ("chunk_bytes", "batch_rows", "notation")]
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """What determines the raw blocks. What older versions did not have is left out unless it is used."""
        sizes = {"chunk_bytes": self.chunk_bytes, "batch_rows": self.batch_rows}
        own = {name: value for name, value in (self.settings() | sizes).items() if name != "stdin"}
        return {name: value for name, value in own.items() if name not in self._LATER or value != self._LATER[name]}

    def open(self, path: Path, *, threads: int = 1) -> Reader:
        """The reader of one file, which parses so many raw blocks of a text file at a time."""
        refuse_pipe(path)
        check_address_space()
        kind, _, compression = format_of(path, self.format).partition(".")
        if kind in ("parquet", "arrow") and path == STDIN:
            raise SourceError(f"Standard input must be csv, tsv or jsonl, or one of them with .gz; got {kind}.")
        if kind == "parquet":
            from kalprox.sources.readers.parquet import ParquetReader

            return ParquetReader(path, self.batch_rows, self.notation)
        if kind == "arrow":
            from kalprox.sources.readers.arrow import ArrowReader

            return ArrowReader(path, self.notation)
        from kalprox.sources.readers.text import Text

        text = Text(path, compressed=compression == "gz", encoding=self.encoding, stdin=self.stdin)
        options = {"chunk_bytes": self.chunk_bytes, "max_record": self.max_record, "threads": threads}
        if kind == "jsonl":
            from kalprox.sources.readers.jsonl import JsonReader

            return JsonReader(text, **options)
        from kalprox.sources.readers.csv import CsvReader

        default = "\t" if kind == "tsv" else ","
        return CsvReader(text, delimiter=self.delimiter, default=default, notation=self.notation, **options)
