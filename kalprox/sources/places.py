"""Where the rows of a block stand in the files of a table, and where to resume reading."""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Cursor", "Place"]


@dataclass(frozen=True)
class Cursor:
    """A position in the files of a table, from which reading can be resumed.

    Parameters
    ----------
    file : int
        The index of the file in the order of reading; of a shuffled table, of the pile (see
        `kalprox.sources.shuffling`).
    offset : int
        Where a raw block of the file begins: a number of bytes for text files, of rows for other files.
    skip : int
        The number of rows of that raw block, or of the pile, that have been read.
    row : int
        The number of rows of the file, or of all piles, that have been read.
    sha256 : str, optional
        For standard input, the digest of the bytes before the offset; of a shuffled table, of all bytes.
    """

    file: int = 0
    offset: int = 0
    skip: int = 0
    row: int = 0
    sha256: str | None = None


@dataclass(frozen=True)
class Place:
    """Where the rows of a block of a table were read.

    Parameters
    ----------
    file : str, or array of str of shape (read,)
        The name of the file, or those of the files of all rows, if they are of several.
    rows : array of int, shape (read,)
        The numbers in the file, counted from 1, of all rows read.
    good : array of bool, shape (read,)
        Which of these rows are good: the rows of the block's X and y.
    cursor : Cursor
        Where to resume after the block.
    kept : pyarrow.Table, optional
        The columns that the table keeps, of all rows read; null for rows that could not be split into cells.
    """

    file: Any
    rows: np.ndarray
    good: np.ndarray
    cursor: Cursor
    kept: Any = None

    def names(self) -> list[tuple[str, int]]:
        """The file and the number of each good row."""
        files = np.broadcast_to(self.file, self.rows.shape)[self.good]
        return list(zip(files.tolist(), self.rows[self.good].tolist(), strict=True))
