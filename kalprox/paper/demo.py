"""The first minute: the sparse sigmoid problem in small, with the paper's method, SGD and the proximal filter."""

from collections.abc import Callable
from dataclasses import asdict
from os import PathLike

from kalprox.pages import Page, Section
from kalprox.paper import sparse
from kalprox.paper.cache import Results

__all__ = ["SETTINGS", "compute", "page"]

SETTINGS = sparse.Settings(n=30_000, sizes=(1.0, 3.0), points=31, filter_points=8)
SEEDS = 2


def compute(
    seed: int, folder: str | PathLike[str], progress: Callable[[int, int], None] | None = None, *, jobs: int = 2
) -> Results:
    return sparse.compute(SETTINGS, range(seed, seed + SEEDS), folder, jobs=jobs, progress=progress)


def page(results: Results) -> Page:
    told = sparse.section(results)
    return Page(
        title="kalprox: a sparse filter behind a sigmoid",
        summary=(
            "Fifty taps, most of them zero, are seen only through a sigmoid and noise that is larger than the sigmoid "
            "itself. Each method gets the rows once, in order, and says what the taps are; all but SGD also say how "
            "sure they are. The refined answer is the minimiser of the problem, after a few more passes."
        ),
        sections=[Section("Side by side", told.text, told.figures, told.tables)],
        settings={**asdict(SETTINGS), "seeds": list(results["seeds"])},
        conclusions=sparse.conclusions(results),
    )
