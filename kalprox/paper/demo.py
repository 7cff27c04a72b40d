"""The demonstration: the paper's method, SGD and the proximal filter on a small version of the sparse problem."""

from collections.abc import Callable
from dataclasses import asdict
from os import PathLike

from kalprox.pages import Page, Section
from kalprox.paper import sparse, sparse_report
from kalprox.paper.cache import Results

__all__ = ["SETTINGS", "compute", "page"]

SETTINGS = sparse.Settings(n=30_000, sizes=(1.0, 3.0), points=31, filter_points=8)
SEEDS = 2


def compute(
    seed: int, folder: str | PathLike[str], progress: Callable[[int, int], None] | None = None, *, jobs: int = 2
) -> Results:
    """Compute the results for two seeds; see `kalprox.paper.sparse.compute`."""
    return sparse.compute(SETTINGS, range(seed, seed + SEEDS), folder, jobs=jobs, progress=progress)


def page(results: Results) -> Page:
    """The page of the demonstration."""
    section = sparse_report.section(results)
    return Page(
        title="kalprox: a sparse filter observed through a sigmoid",
        summary=(
            "The fifty taps of a filter, most of them zero, are observed only through a sigmoid, with noise that is "
            "larger than the range of the sigmoid. Each method reads the rows once, in order, and estimates the taps; "
            "all methods but SGD also estimate their uncertainty. The refined estimate is the minimiser of the "
            "objective, after a few more passes over the rows."
        ),
        sections=[Section("Comparison", section.text, section.figures, section.tables)],
        settings={**asdict(SETTINGS), "seeds": list(results["seeds"])},
        conclusions=sparse_report.conclusions(results),
    )
