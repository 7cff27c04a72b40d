"""The claims of the paper, with evidence over many seeds and a verdict on each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Self

import numpy as np

from kalprox.pages import Section, Table
from kalprox.paper import claim_measurements as measure
from kalprox.paper.cache import Results, Task, cached_all
from kalprox.paper.claim_verdicts import CONDITIONS, FAILS, HOLDS, Claim, verdicts

__all__ = ["CONDITIONS", "FAILS", "HOLDS", "Claim", "Settings", "compute", "conclusions", "section"]


@dataclass(frozen=True)
class Settings:
    """The sizes of the problems, smaller than in the paper so that twenty seeds take minutes."""

    d: int = 20
    n: int = 40_000
    gammas: int = 20
    sparse_n: int = 60_000
    sizes: tuple[float, ...] = (1.0, 3.0)

    @classmethod
    def full(cls) -> Self:
        """The default sizes."""
        return cls()

    @classmethod
    def quick(cls) -> Self:
        """Smaller sizes."""
        return cls(n=10_000, d=10, gammas=8, sparse_n=20_000, sizes=(1.0,))


def compute(
    settings: Settings,
    seeds: Sequence[int],
    folder: str | PathLike[str],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Claim]:
    """Measure the evidence for all claims, or read it from the cache, and judge them.

    Parameters
    ----------
    settings : Settings
    seeds : sequence of int
    folder, jobs, progress
        See `kalprox.paper.cache.cached_all`. Each seed is one task.
    """
    linear = {"d": settings.d, "n": settings.n, "gammas": settings.gammas}
    sparse = [{"n": settings.sparse_n, "size": size} for size in settings.sizes]
    tasks = [
        *(Task("claims-ridge", {**linear, "seed": seed}, measure.linear) for seed in seeds),
        *(Task("claims-sigmoid", {**cell, "seed": seed}, measure.sparse) for cell in sparse for seed in seeds),
        Task("claims-cost", {}, measure.cost),
        Task("claims-breaking", {}, measure.breaking),
        Task("claims-constant-step", {}, measure.constant_step),
    ]
    found = cached_all(folder, tasks, jobs=jobs, progress=progress)
    N = len(seeds)

    def stacked(runs: Sequence[Results]) -> dict[str, np.ndarray]:
        return {key: np.array([run[key] for run in runs]) for key in runs[0]}

    by_size = {size: stacked(found[N * (i + 1) : N * (i + 2)]) for i, size in enumerate(settings.sizes)}
    return verdicts(settings.gammas, stacked(found[:N]), by_size, *found[-3:])


def section(claims: list[Claim]) -> Section:
    """The claims as a table."""
    return Section(
        "The paper's claims, measured",
        "Each claim in our words, the evidence over all seeds, and the verdict that follows from the numbers.",
        tables=[
            Table(
                ["The paper says", "Measured", "Verdict"],
                [[claim.says, claim.evidence, f"**{claim.verdict.capitalize()}.** {claim.why}"] for claim in claims],
                "Medians over the seeds, with the 10% and 90% quantiles in brackets.",
            )
        ],
    )


def conclusions(claims: list[Claim]) -> list[str]:
    """How many of the claims hold."""
    hold, conditions, fail = (sum(c.verdict == verdict for c in claims) for verdict in (HOLDS, CONDITIONS, FAILS))
    return [f"Of {len(claims)} claims, {hold} hold, {conditions} hold with conditions and {fail} do not hold."]
