"""The memory that a model of many columns needs, said before any row is read."""

import os
import warnings
from contextlib import suppress
from pathlib import Path

__all__ = ["MATRICES", "check_memory"]

MATRICES = 16  # of d x d numbers that a fit holds at a time, at most; measured
_SMALL = 1 << 24  # bytes that are not worth a warning: the process itself takes more
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


def check_memory(columns: int, memory: int) -> None:
    """Warn if the matrices of a model take more than `memory` bytes, which bound the rows that are read at a time.

    Parameters
    ----------
    columns : int
        The number d of columns of X, each level of a categorical feature counted.
    memory : int
        What was asked for, in bytes.

    Raises
    ------
    MemoryError
        If the matrices take more than the memory of this machine.
    """
    need, there = MATRICES * 8 * columns**2, _memory_of_machine()
    text = f"{columns:,} columns need about {_shown(need)} of memory for d x d matrices of the model ({MATRICES} of "
    text += f"{_shown(8 * columns**2)})"
    fewer = "Fewer columns, or fewer levels of categorical columns, need less."
    if there is not None and need > there:
        raise MemoryError(f"{text}, and this machine has {_shown(there)}. {fewer}")
    if need > max(memory, _SMALL):
        warnings.warn(
            f"{text}; the {_shown(memory)} of --memory bound only the rows that are read at a time. {fewer}",
            RuntimeWarning,
            stacklevel=2,
        )


def _memory_of_machine() -> int | None:
    """The memory of this machine, or of the container, in bytes; None if it is not known."""
    found = []
    with suppress(OSError, ValueError, AttributeError):  # there is no sysconf on Windows
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # no container, or "max"
        found.append(int(_LIMIT.read_text()))
    return min(found, default=None)


def _shown(size: int) -> str:
    """A number of bytes with its unit.

    >>> _shown(1 << 24), _shown(12_800_000_000)
    ('16 MB', '11.9 GB')
    """
    power = max(1, min(5, (max(size, 1).bit_length() - 1) // 10))
    return f"{size / 1024**power:.3g} {('kB', 'MB', 'GB', 'TB', 'PB')[power - 1]}"
