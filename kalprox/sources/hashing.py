"""Hashed features: any number of names, such as words and identifiers, in a fixed number of columns."""

import numbers
import re
from collections import Counter
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from kalprox.sources.cells import Faults, cell_labels, distinct_cells, faults_of
from kalprox.sources.files import SourceError
from kalprox.sources.labels import level_hash
from kalprox.sources.quarantine import Reason

BITS = 10  # by default
MOST_BITS = 12  # whose information, a matrix of 4,096 x 4,096 numbers, takes 128 MiB
MOST_SPARSE_BITS = 20  # of sparse rows, whose information is held in a structure: some vectors of 1,048,576 numbers
_WORD = re.compile(r"\w+")
_SIGN = 1 << 47  # the highest bit of a hash, which the columns do not depend on


class HashedSpace:
    """2^bits columns in which features are put by the hashes of their keys, with signs.

    The column of a feature is the hash of its key, see `kalprox.sources.labels.level_hash`, modulo the number of
    columns; it is the same in every process and version. Another bit of the hash is a sign, by which its value is
    multiplied: of two features that share a column, the second adds to the first as often as it takes away, so that
    inner products of rows are right on average [1]_.

    Parameters
    ----------
    bits : int
        From 1 to 12: the information of all columns is held as one matrix.
    sparse : bool
        Whether rows are sparse, and their information is held in a structure (see `kalprox.structures`): `bits` may
        then be up to 20.

    References
    ----------
    .. [1] K. Weinberger, A. Dasgupta, J. Langford, A. Smola, J. Attenberg, "Feature hashing for large scale multitask
       learning", ICML 2009.

    Examples
    --------
    >>> HashedSpace(10).place("carrier=UA")
    (983, 1.0)
    >>> HashedSpace(20, sparse=True).size
    1048576
    """

    def __init__(self, bits: int, *, sparse: bool = False) -> None:
        check_bits(bits, sparse=sparse)
        self.bits = int(bits)
        self.size = 1 << self.bits

    @cached_property
    def names(self) -> list[str]:
        """The names of the columns: "#0", "#1" and so on."""
        return [f"#{i}" for i in range(self.size)]

    def place(self, key: str) -> tuple[int, float]:
        """Return the column of a key, and its sign."""
        found = level_hash(key)
        return found % self.size, -1.0 if found & _SIGN else 1.0


def check_bits(bits: int, *, sparse: bool = False) -> None:
    """Raise a SourceError unless this is a number of bits whose information fits into memory.

    With `sparse` the rows are sparse, and their information is held in a structure.
    """
    most = MOST_SPARSE_BITS if sparse else MOST_BITS
    if not (isinstance(bits, numbers.Integral) and bits >= 1):
        raise SourceError.worded(f"{{hash_bits}} must be a whole number from 1 to {most}; got {bits!r}.")
    if bits <= most:
        return
    fewer = "Use fewer bits: more features then share a column."
    if sparse:
        shown = f"at most {most}, which are {2**most:,} columns; got {bits}"
        raise SourceError.worded(f"{{hash_bits}} must be {shown}. {fewer}")
    size = 8 * 4.0**bits / 2**30
    raise SourceError.worded(
        f"{{hash_bits}} must be at most {most}; got {bits}. The information of {2**bits:,} columns is one matrix, "
        f"which would take {size:,.3g} GiB, and several times as much while it is computed. {fewer} Or set "
        f"{{structure='diagonal'}}, which keeps less than the whole matrix and allows up to "
        f"{MOST_SPARSE_BITS} bits."
    )


class HashedRows(NamedTuple):
    """The rows of a hashed space that come from one column of a table.

    Attributes
    ----------
    X : sparse array of shape (n, number of columns)
    hashes : array of uint64
        Those of the features, each once.
    faults : Faults
        The cells that are missing.
    """

    X: csr_array
    hashes: np.ndarray
    faults: Faults


def hashed_rows(space: HashedSpace, name: str, column: Any, *, words: bool) -> HashedRows:
    """Return the rows of a column of a table: a feature for each level, or for each word of a text.

    Only the cells that differ are hashed. A word counts as often as it occurs in a cell.

    Parameters
    ----------
    space : HashedSpace
    name : str
        The name of the column, with which the keys begin.
    column : pyarrow.Array or ChunkedArray
    words : bool
        Whether the cells are texts.

    Returns
    -------
    HashedRows
    """
    distinct, codes = distinct_cells(column)
    known: dict[str, int] = {}  # the hashes of the features
    found: list[tuple[int, int, int]] = []  # the cell, the hash and the number of times of a feature
    bad: dict[int, Reason] = {}
    for cell, label in enumerate(cell_labels(distinct)):
        if isinstance(label, Reason):
            bad[cell] = label
            continue
        for part, n in (Counter(_WORD.findall(label.lower())) if words else {label: 1}).items():
            if part not in known:
                known[part] = level_hash(f"{name}={part}")
            found.append((cell, known[part], n))
    cells, hashes, times = np.array(found, np.int64).reshape(-1, 3).T
    values, places = np.where(hashes & _SIGN, -1.0, 1.0) * times, hashes % space.size
    of_cells = csr_array((values, (cells, places)), shape=(len(distinct), space.size))
    return HashedRows(of_cells[codes], np.unique(hashes).astype(np.uint64), faults_of(bad, codes))
