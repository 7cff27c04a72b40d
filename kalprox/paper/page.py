"""The page about the paper: its experiments and its claims, each as one chapter."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from os import PathLike
from typing import Any, NamedTuple

from kalprox.pages import Page, Section
from kalprox.paper import claims, ridge, ridge_report, sparse, sparse_report

__all__ = ["page"]

ProgressBar = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


class _Chapter(NamedTuple):
    settings: Any
    compute: Callable[..., Any]
    section: Callable[[Any], Section]
    conclusions: Callable[[Any], list[str]]
    seeds: int | None  # None: one data set, which compute takes the seed of
    quick_seeds: int | None


_CHAPTERS = {
    "ridge": _Chapter(ridge.Settings, ridge.compute, ridge_report.section, ridge_report.conclusions, None, None),
    "sparse": _Chapter(sparse.Settings, sparse.compute, sparse_report.section, sparse_report.conclusions, 20, 3),
    "claims": _Chapter(claims.Settings, claims.compute, claims.section, claims.conclusions, 20, 20),
}


def page(
    chapters: Sequence[str],
    seed: int,
    seeds: int | None,
    quick: bool,
    jobs: int,
    folder: str | PathLike[str],
    progress_bar: ProgressBar,
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
    progress_bar : callable
        `progress_bar(title)` is a context manager that yields a function of the numbers of tasks (done, total).
    """
    sections, conclusions = [], []
    settings: dict[str, Any] = {"seed": seed, "quick": quick}
    for name in chapters:
        chapter = _CHAPTERS[name]
        chosen = chapter.settings.quick() if quick else chapter.settings.full()
        default = chapter.quick_seeds if quick else chapter.seeds
        count = 1 if default is None else seeds or default
        with progress_bar(name) as progress:
            data = seed if default is None else range(seed, seed + count)
            results = chapter.compute(chosen, data, folder, jobs=jobs, progress=progress)
        sections.append(chapter.section(results))
        conclusions += chapter.conclusions(results)
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
