"""The memory of this machine, and sizes in bytes as text."""

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["check_matrix", "memory_of_machine", "shown_bytes"]

_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
_ANYWHERE = 1 << 24  # bytes that every machine has
_COPIES = 2  # of the information that a fit holds at a time, at least


def memory_of_machine() -> int | None:
    """The memory of this machine, or of the container, in bytes; None if it is not known."""
    found = []
    with suppress(OSError, ValueError, AttributeError):  # there is no sysconf on Windows
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # no container, or "max"
        found.append(int(_LIMIT.read_text()))
    return min(found, default=None)


def shown_bytes(size: int) -> str:
    """A number of bytes with its unit.

    >>> shown_bytes(1 << 24), shown_bytes(12_800_000_000)
    ('16 MB', '11.9 GB')
    """
    power = max(1, min(5, (max(size, 1).bit_length() - 1) // 10))
    return f"{size / 1024**power:.3g} {('kB', 'MB', 'GB', 'TB', 'PB')[power - 1]}"


def check_matrix(rows: int, columns: int) -> None:
    """Raise a ValueError if the information of so many rows, a triangle of all pairs of columns, takes too much memory.

    There is one row of it for each row learned, up to the number of columns.

    Parameters
    ----------
    rows : int
        The number of rows learned.
    columns : int
        The number d of parameters.
    """
    need = _COPIES * 8 * min(rows, columns) * columns
    if need <= _ANYWHERE:  # the memory of the machine is read from a file, which takes as long as learning a batch
        return
    there = memory_of_machine()
    if there is not None and need > there:
        raise ValueError(
            f"{columns:,} columns and {rows:,} rows are too many for all of their information, which takes "
            f"{shown_bytes(need)}; this machine has {shown_bytes(there)} of memory. Set structure='diagonal', or "
            "structure=kalprox.structures.LowRank(20), which find the same coefficients with memory in proportion to "
            "the number of columns and approximate their standard errors; or use fewer columns."
        )
