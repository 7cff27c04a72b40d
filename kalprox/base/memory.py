"""The memory of this machine, and sizes in bytes as text."""

import os
from contextlib import suppress
from pathlib import Path

from kalprox.base.text import worded

_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
_ANYWHERE = 1 << 24  # bytes that every machine has
_LIBRARIES = 1 << 30  # bytes of addresses that libraries and their threads take; with less, some of them abort
_COPIES = 2  # of the information that a fit holds at a time, at least


def memory_of_machine() -> int | None:
    """The memory of this machine, the container or the process, in bytes; None if it is not known."""
    found = []
    with suppress(OSError, ValueError, AttributeError):  # there is no sysconf on Windows
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # no container, or "max"
        found.append(int(_LIMIT.read_text()))
    if (limit := address_space()) is not None:
        found.append(max(0, limit - _LIBRARIES))
    return min(found, default=None)


def address_space() -> int | None:
    """The bytes that this process may address, as `ulimit -v` says; None if there is no limit."""
    try:
        import resource
    except ImportError:  # on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space(more: int = 0) -> None:
    """Raise a MemoryError if this process may not address what libraries and threads take, and some bytes more."""
    limit = address_space()
    if limit is not None and limit < _LIBRARIES + more:
        raise MemoryError(
            f"Libraries and their threads take about {shown_bytes(_LIBRARIES + more)} of addresses, and this "
            f"process may have {shown_bytes(limit)} (ulimit -v). Raise this limit, or bound the memory of a container "
            "instead, which counts what is used."
        )


def check_room(size: int, what: str) -> None:
    """Raise a MemoryError if this process may not address some bytes more, besides those that it addresses already."""
    limit = address_space()
    if limit is None:
        return
    used = 0
    with suppress(OSError, ValueError):  # where there is no such file
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    if limit < used + size:
        raise MemoryError(
            f"{what} takes about {shown_bytes(size)} of addresses, and of the {shown_bytes(limit)} that this process "
            f"may have (ulimit -v) {shown_bytes(used)} are taken. Raise this limit, or bound the memory of a container "
            "instead, which counts what is used."
        )


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
            worded(
                f"{columns:,} columns and {rows:,} rows are too many for all of their information, which takes "
                f"{shown_bytes(need)}; this machine has {shown_bytes(there)} of memory. Set {{structure='diagonal'}}, "
                "or {structure=kalprox.structures.LowRank(20)|--structure low_rank,rank=20}, which find the same "
                "coefficients with memory in proportion to the number of columns and approximate their standard "
                "errors; or use fewer columns."
            )
        )
