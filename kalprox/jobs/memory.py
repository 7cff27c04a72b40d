"""The memory that a model of many columns needs, said before any row is read."""

import warnings

from kalprox.base.memory import address_space, memory_of_machine, shown_bytes
from kalprox.base.text import Text, worded
from kalprox.structures import Structure

MATRICES = 16  # of d x d numbers that a fit holds at a time, at most; measured
_SMALL = 1 << 24  # bytes that are not worth a warning: the process itself takes more


def check_memory(columns: int, memory: int, structure: Structure | None = None) -> None:
    """Warn if the matrices of a model take more than `memory` bytes, which bound the rows that are read at a time.

    Parameters
    ----------
    columns : int
        The number d of columns of X, each level of a categorical feature counted.
    memory : int
        What was asked for, in bytes.
    structure : Structure, optional
        That of the model, which has vectors instead of d x d matrices.

    Raises
    ------
    MemoryError
        If the matrices take more than the memory of this machine.
    """
    size, what = 8 * columns**2, "d x d matrices"
    fewer: str = worded(
        "Fewer columns, or fewer levels of categorical columns, need less; or set {structure='diagonal'}, which keeps "
        "no correlations of coefficients."
    )
    if structure is not None:
        size, what = 8 * columns * (getattr(structure, "rank", 0) + 1), "vectors"
        fewer = "Fewer columns, fewer levels of categorical columns, or a lower rank of the structure need less."
    need, there = MATRICES * size, memory_of_machine()
    text = f"{columns:,} columns need about {shown_bytes(need)} of memory for {what} of the model ({MATRICES} of "
    text += f"{shown_bytes(size)})"
    if there is not None and need > max(there, _SMALL):
        has = "this machine has" if address_space() is None else "the limit of this process (ulimit -v) leaves it"
        raise MemoryError(Text.of(f"{text}, and {has} {shown_bytes(there)}. ", fewer))
    if need > max(memory, _SMALL):
        warnings.warn(
            f"{text}; the {shown_bytes(memory)} of --memory bound only the rows that are read at a time. {fewer}",
            RuntimeWarning,
            stacklevel=2,
        )
