"""All of the paper on one page: the experiments asked for, as chapters."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from os import PathLike
from typing import Any

from kalprox.pages import Page
from kalprox.paper import claims, ridge, sparse

__all__ = ["page"]

_SEEDS = {"ridge": 1, "sparse": 20, "claims": 20}
_QUICK_SEEDS = {"ridge": 1, "sparse": 3, "claims": 20}

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


def page(
    chapters: Sequence[str],
    seed: int,
    seeds: int | None,
    quick: bool,
    jobs: int,
    folder: str | PathLike[str],
    bar: Bar,
) -> Page:
    """The chapters ("ridge", "sparse", "claims") computed, or read from the cache in `folder`, and written up."""
    sections, conclusions = [], []
    settings: dict[str, Any] = {"seed": seed, "quick": quick}
    for name in chapters:
        chapter: Any = {"ridge": ridge, "sparse": sparse, "claims": claims}[name]
        chosen = chapter.Settings.quick() if quick else chapter.Settings.full()
        count = seeds or (_QUICK_SEEDS if quick else _SEEDS)[name]
        with bar(name) as progress:
            which = seed if name == "ridge" else range(seed, seed + count)  # Fig. 1(a) is one data set, as in the paper
            results = chapter.compute(chosen, which, folder, jobs=jobs, progress=progress)
        sections.append(chapter.section(results))
        conclusions += chapter.conclusions(results)
        settings[name] = {**asdict(chosen), "seeds": 1 if name == "ridge" else count}
    return Page(
        title="A probabilistic incremental proximal gradient method, rebuilt",
        summary=(
            "The experiments of Akyildiz, Chouzenoux, Elvira and Míguez (2019), rebuilt from the paper's text, with "
            "what the paper leaves open beside them. Every number drawn lies in a JSON file beside its figure."
        ),
        sections=sections,
        settings=settings,
        conclusions=conclusions,
    )
