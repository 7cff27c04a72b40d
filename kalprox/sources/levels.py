"""The levels of a categorical column: a level is found however its value is spelled. Hashes of levels."""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from decimal import Decimal

from kalprox.sources.labels import label_of, number_in

__all__ = ["LevelIndex", "in_order", "level_hash", "same_levels"]


class LevelIndex:
    """Finds the number of a level by its text, else by its label, else by the number that it spells.

    The text comes first, so that a model whose levels differ only in their spelling, such as "1" and "1.0", tells them
    apart. Any other text, such as "1.00", is then the same value as both of them, and is not found.

    Parameters
    ----------
    levels : dict of str to int
        The number of each level.
    any_case : bool
        Whether a level that is not found is looked for in upper and lower case.
    """

    def __init__(self, levels: Mapping[str, int], *, any_case: bool = False) -> None:
        self._by_text = {level.encode("utf-8", "surrogatepass"): number for level, number in levels.items()}
        self._by_label = _unique(levels, label_of)
        self._by_number = _unique(levels, _number)
        self._by_case = _unique(levels, _folded) if any_case else {}

    def find(self, text: bytes | None, label: str | None = None) -> int | None:
        """The number of the level with this text, or with this label; None where there is none."""
        if text is not None and (found := self._by_text.get(text)) is not None:
            return found
        if label is None:
            return None
        found = self._by_text.get(label.encode("utf-8", "surrogatepass"), self._by_label.get(label))
        found = self._by_number.get(number_in(label)) if found is None else found
        return self._by_case.get(label.casefold()) if found is None else found


def in_order(levels: Iterable[str]) -> tuple[str, ...]:
    """The levels sorted by their values where all are numbers, else by their text.

    >>> in_order(["10", "9.5", "2"]), in_order(["10", "9E", "2"])
    (('2', '9.5', '10'), ('10', '2', '9E'))
    """
    texts = sorted(levels)
    return tuple(sorted(texts, key=Decimal) if all(map(number_in, texts)) else texts)


def same_levels(levels: Iterable[str]) -> tuple[str, str] | None:
    """The first two of some levels that are the same value, spelled in two ways; None where all are different."""
    seen: dict[str | None, str] = {}
    for level in levels:
        label = label_of(level)
        if label in seen:
            return seen[label], level
        seen[label] = level
    return None


def level_hash(label: str) -> int:
    """The hash of a level: the BLAKE2b digest, of 6 bytes, of its label in UTF-8, as a little-endian integer.

    It is the same in every process and version, because the bins of a hashed column in model files depend on it.

    >>> level_hash("UA") % 1024
    992
    """
    data = label.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "little")


def _number(level: str) -> Hashable:
    label = label_of(level)
    return None if label is None else number_in(label)


def _folded(level: str) -> Hashable:
    label = label_of(level)
    return None if label is None else label.casefold()


def _unique(levels: Mapping[str, int], key: Callable[[str], Hashable]) -> dict[Hashable, int]:
    """The number of each level by its key, without the keys that several levels have, and without None."""
    found: dict[Hashable, int | None] = {}
    for level, number in levels.items():
        found[key(level)] = number if key(level) not in found else None
    return {k: number for k, number in found.items() if k is not None and number is not None}
