"""Some of many combinations of levels, such that every pair of levels is in one of them. The others are slow tests."""

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

__all__ = ["cover", "pairs", "product"]


def cover(cases: Sequence[Collection[Any]], together: int = 2) -> list[bool]:
    """Return for each case, given by its levels, whether it is taken.

    The next that is taken is always the case with most pairs that no other has; or triples, or single levels.
    """
    sets = [set(itertools.combinations(case, together)) for case in cases]
    missing = set().union(*sets)
    taken = [False] * len(cases)
    while missing:
        best = max(range(len(cases)), key=lambda i: len(sets[i] & missing))
        taken[best] = True
        missing -= sets[best]
    return taken


def pairs(*arguments: Iterable[Any]) -> list[Any]:
    """Return as many combinations of the levels of some arguments as have every pair of levels, as parameters."""
    cases = list(itertools.product(*arguments))
    taken = cover([list(enumerate(map(repr, case))) for case in cases])
    return [case for case, one in zip(cases, taken, strict=True) if one]


def product(*arguments: Iterable[Any]) -> list[Any]:
    """Return all combinations of the levels of some arguments, as parameters of a test."""
    cases = list(itertools.product(*arguments))
    quick = cover([list(enumerate(map(repr, case))) for case in cases])
    return [pytest.param(*case, marks=() if one else pytest.mark.slow) for case, one in zip(cases, quick, strict=True)]
