"""The page about the paper: its experiments and its claims, each as one chapter."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from os import PathLike
from types import ModuleType
from typing import Any, NamedTuple

from kalprox.display.progress import progress_bar
from kalprox.pages import Page
from kalprox.paper import claims, ridge, sparse
from kalprox.paper.cache import cached_all


class _Chapter(NamedTuple):
    experiment: ModuleType  # with Settings, QUICK, compute, section and conclusions
    seeds: int | None  # None: one data set, which compute takes the seed of
    quick_seeds: int | None


_CHAPTERS = {
    "ridge": _Chapter(ridge, None, None),
    "sparse": _Chapter(sparse, 20, 3),
    "claims": _Chapter(claims, 20, 20),
}


def page(
    chapters: Sequence[str], seed: int, seeds: int | None, quick: bool, jobs: int, folder: str | PathLike[str]
) -> Page:
    """Compute the chapters, or read their results from the cache, and return the page.

    Parameters
    ----------
    chapters : sequence of str
        Any of "ridge", "sparse" and "claims".
    seed : int
        The first seed.
    seeds : int or None
        The number of seeds; None for the default of each chapter.
    quick : bool
        Whether the problems are small.
    jobs : int
        The number of processes.
    folder : str or path-like
        The folder of the cache.
    """
    sections, conclusions = [], []
    settings: dict[str, Any] = {"seed": seed, "quick": quick}
    for name in chapters:
        chapter = _CHAPTERS[name]
        experiment = chapter.experiment
        chosen = experiment.QUICK if quick else experiment.Settings()
        default = chapter.quick_seeds if quick else chapter.seeds
        count = 1 if default is None else seeds or default
        data = seed if default is None else range(seed, seed + count)
        with progress_bar(name) as progress:
            results = experiment.compute(chosen, data, partial(cached_all, folder, jobs=jobs, progress=progress))
        sections.append(experiment.section(results))
        conclusions += experiment.conclusions(results)
        settings[name] = {**asdict(chosen), "seeds": count}
    return Page(
        title="A probabilistic incremental proximal gradient method, reproduced",
        summary=(
            "The experiments of Akyildiz, Chouzenoux, Elvira and Míguez (2019), reproduced from the text of the paper, "
            "with additional experiments on what it leaves open. The numbers of each figure are in a JSON file beside "
            "the figure."
        ),
        sections=sections,
        settings=settings,
        conclusions=conclusions,
    )
