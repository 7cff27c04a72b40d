"""The claims of the paper, with evidence over many seeds and a verdict that follows from the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kalprox.pages import Section, Table
from kalprox.paper import claim_measurements as measure
from kalprox.paper.cache import Compute, Results, Task

__all__ = ["CONDITIONS", "FAILS", "HOLDS", "QUICK", "Claim", "Settings", "compute", "conclusions", "section"]

Numbers = dict[str, np.ndarray]  # arrays over the seeds

HOLDS, CONDITIONS, FAILS = "holds", "holds with conditions", "does not hold"

_NAMES = {"pipg": "PIPG", "pipg_q0": "PIPG with Q = 0", "sgd": "SGD", "ipg": "IPG", "filter": "proximal filter"}


@dataclass(frozen=True)
class Settings:
    """The sizes of the problems, smaller than in the paper so that twenty seeds take minutes."""

    d: int = 20
    n: int = 40_000
    gammas: int = 20
    sparse_n: int = 60_000
    sizes: tuple[float, ...] = (1.0, 3.0)


QUICK = Settings(n=10_000, d=10, gammas=8, sparse_n=20_000, sizes=(1.0,))


class Claim(NamedTuple):
    """A claim of the paper in our words, the evidence, the verdict and its explanation."""

    says: str
    evidence: str
    verdict: str
    why: str


def compute(settings: Settings, seeds: Sequence[int], results: Compute) -> list[Claim]:
    """Measure the evidence for all claims, or read it from the cache, and judge them.

    Parameters
    ----------
    settings : Settings
    seeds : sequence of int
    results : callable
        Returns the results of tasks: `kalprox.paper.cache.cached_all` in a folder. Each seed is one task.
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
    *runs, cost, breaking, constant_step = results(tasks)
    N = len(seeds)
    groups = [runs[i : i + N] for i in range(0, len(runs), N)]
    ridge, *by_size = [{key: np.array([run[key] for run in group]) for key in group[0]} for group in groups]
    sigmoid = dict(zip(settings.sizes, by_size, strict=True))
    return _claims(settings.gammas, ridge, sigmoid, cost, breaking, constant_step)


def section(claims: list[Claim]) -> Section:
    """The claims as a table."""
    table = Table(
        ["The paper says", "Measured", "Verdict"],
        [[claim.says, claim.evidence, f"**{claim.verdict.capitalize()}.** {claim.why}"] for claim in claims],
        "Medians over the seeds, with the 10% and 90% quantiles in brackets.",
    )
    text = "Each claim in our words, the evidence over all seeds, and the verdict that follows from the numbers."
    return Section("The paper's claims, measured", text, tables=[table])


def conclusions(claims: list[Claim]) -> list[str]:
    """How many of the claims hold."""
    hold, conditions, fail = (sum(c.verdict == verdict for c in claims) for verdict in (HOLDS, CONDITIONS, FAILS))
    return [f"Of {len(claims)} claims, {hold} hold, {conditions} hold with conditions and {fail} do not hold."]


def _claims(
    n_gammas: int,
    ridge: Numbers,
    sparse: dict[float, Numbers],
    cost: Results,
    breaking: Results,
    constant_step: Results,
) -> list[Claim]:
    """The claims with their evidence and verdicts.

    Parameters
    ----------
    n_gammas : int
        The number of step sizes in the ridge experiment.
    ridge : dict
        Each number of `claim_measurements.linear`.
    sparse : dict
        For each size of the taps, each number of `claim_measurements.sparse`.
    cost, breaking, constant_step : dict
        The numbers of the functions of `claim_measurements` with these names.
    """
    shown = {name: _quantiles(values) for name, values in ridge.items()}
    median = {name: float(np.median(values)) for name, values in ridge.items()}

    def label(name: str) -> str:
        method = name.removeprefix("covered_").removesuffix("_first")
        return _NAMES.get(method, method)

    def by_size(*names: str) -> str:
        return "; ".join(
            f"size {size:g}: " + ", ".join(f"{label(name)} {_quantiles(found[name])}" for name in names)
            for size, found in sparse.items()
        )

    stable = median["spread_pipg"] < 1.5 and median["spread_ipg"] > 2
    sooner = median["sooner"]
    ahead = [np.mean(found["pipg_first"] < found["sgd_first"]) for found in sparse.values()]
    better = [np.mean(found["pipg"] < found["sgd"]) for found in sparse.values()]
    covered = [np.mean(found["covered_pipg"]) for found in sparse.values()]
    wider = [np.median(found["width_pipg"] / found["width_refined"]) for found in sparse.values()]
    share = np.mean(ridge["covered_pipg"])
    exact = median["posterior"] < 1e-8
    runs_on_sigmoid = all(np.isfinite(found["ipg"]).all() for found in sparse.values())
    above_two = f"{breaking['above_two']:.3g}" if np.isfinite(breaking["above_two"]) else "not a number"
    unsafe = breaking["at_one"] == 0 or not breaking["above_two"] < 1e6
    return [
        Claim(
            "PIPG is stable with respect to the step size, IPG is sensitive to it (ridge).",
            f"Ratio of the largest to the smallest final error over {n_gammas} step sizes: PIPG "
            f"{shown['spread_pipg']}, IPG {shown['spread_ipg']}.",
            HOLDS if stable else FAILS,
            "The learned metric takes the place of the step size."
            if stable
            else "The criterion is a ratio below 1.5 for PIPG and above 2 for IPG.",
        ),
        Claim(
            "PIPG needs fewer iterations than IPG for a wide range of step sizes (ridge).",
            "Share of the step sizes at which PIPG is the first to reach twice the lowest final error of both methods: "
            f"{shown['sooner']}.",
            HOLDS if sooner > 0.8 else CONDITIONS if sooner > 0.3 else FAILS,
            "IPG can keep up only with a step size in a narrow range.",
        ),
        Claim(
            "IPG with a constant step diverges (ridge).",
            f"Relative error at the first record {shown['constant_first']} and at the last {shown['constant_last']}; "
            f"finite in {np.mean(ridge['constant_finite']):.0%} of the runs; the batch solution has {shown['batch']}. "
            "Largest coefficient after 1,000 rows, starting from 1: "
            f"{constant_step['below_two']:.3g} with gamma lambda = 1.9, {constant_step['above_two']:.3g} at 2.1.",
            FAILS if np.all(ridge["constant_finite"]) and median["constant_last"] < 1 else HOLDS,
            "With the step sizes of the paper, gamma lambda is at most 0.002, and the error stops at a floor that is "
            "set by the noise, far above the error of the batch solution. The proximal step on f_k is implicit, and "
            "enlarges no error; the gradient step on g is explicit, and the recursion can diverge once gamma max "
            "eig(V Hess g), here gamma lambda, is above 2.",
        ),
        Claim(
            "One pass is enough in the linear case: the posterior is exact.",
            f"Without g, relative difference between V and the explicit posterior covariance: {shown['posterior']}. "
            f"With g, relative distance of the mean from argmin sum f + n g: {shown['to_n_g']}, from argmin sum f + g: "
            f"{shown['to_once']} (the proximal filter: {shown['filter_to_once']}).",
            FAILS if not exact else CONDITIONS if median["to_once"] > median["filter_to_once"] + 1e-6 else HOLDS,
            "It is exact for the state-space model that the paper writes down, and for g = 0. With g != 0 that model "
            "takes a full step on g at every row, and so it solves a different problem from (1).",
        ),
        Claim(
            "The covariance quantifies the uncertainty (ridge, lambda = 0.01, gamma = 1).",
            f"The curvature of g is counted {shown['curvature']} times; +-2 sigma covers {share:.0%} of all "
            f"coefficients (the proximal filter: {np.mean(ridge['covered_filter']):.0%}).",
            HOLDS if 0.93 <= share <= 0.97 else CONDITIONS if exact else FAILS,  # on the condition that g = 0
            "Without g, V is the posterior covariance. With g, M V M' adds 2 gamma Hess g to the precision while the "
            "mean counts g once per row: V is only a metric.",
        ),
        Claim(
            "The covariance quantifies the uncertainty (sparse sigmoid, Q = 1e-4 I).",
            "Share of the taps within +-2 sigma: "
            + by_size("covered_pipg", "covered_pipg_q0", "covered_filter", "covered_refined")
            + f". The bars of PIPG are {', '.join(f'{w:.1f}' for w in wider)} times as wide as the refined ones.",
            FAILS if not all(0.9 <= c <= 0.99 for c in covered) else CONDITIONS if max(wider) > 1.5 else HOLDS,
            "The bars cover the taps, but they are those of a random walk: Q keeps V from shrinking with the data. "
            "With Q = 0, early linearisations are never corrected, and the bars of large taps are too narrow.",
        ),
        Claim(
            "PIPG reaches stability in fewer iterations than SGD (sparse sigmoid).",
            "Error after a twentieth of the rows: "
            + by_size("pipg_first", "sgd_first")
            + f". The error of PIPG is lower on {', '.join(f'{a:.0%}' for a in ahead)} of the seeds.",
            HOLDS if min(ahead) > 0.9 else CONDITIONS if max(ahead) > 0.5 else FAILS,
            "The early stability comes with a floor under the error, which is due to Q.",
        ),
        Claim(
            "PIPG gives a better estimate than SGD after one pass (sparse sigmoid).",
            "Final error: "
            + by_size("pipg", "pipg_q0", "sgd", "filter", "refined")
            + f". The error of PIPG is lower on {', '.join(f'{b:.0%}' for b in better)} of the seeds.",
            HOLDS if min(better) > 0.9 else CONDITIONS if max(better) > 0.5 else FAILS,
            "The paper does not state theta*; here a tenth of the taps are plus or minus the size.",
        ),
        Claim(
            "IPG cannot be run on the sigmoid, because f_k is not easily proximable.",
            "Final error of IPG with the exact proximal step: " + by_size("ipg") + ".",
            FAILS if runs_on_sigmoid else HOLDS,
            "For h(x' theta) the proximal step is one-dimensional (`kp.ipg`).",
        ),
        Claim(
            "PIPG scales as O(d^2), SGD as O(d).",
            f"Exponent of d in the number of operations of a compiled step: PIPG {cost['pipg']:.2f}, its update alone "
            f"{cost['ipm']:.2f}, SGD {cost['sgd']:.2f}.",
            HOLDS if cost["pipg"] < 2.2 else FAILS,
            "M V M' is a product of dense matrices.",
        ),
        Claim(
            "(Implied.) The recursion can be run with any v0, gamma and lambda.",
            f"Largest coefficient after 60 rows, starting from 1: {breaking['below']:.3g} with gamma max eig(V H) = "
            f"0.5, {breaking['at_one']:.3g} at 1, {above_two} at 2.5.",
            FAILS if unsafe else HOLDS,
            "At 1 the covariance becomes singular and the estimate is frozen; above 2 the recursion diverges. "
            "`kp.pipg` warns, or raises an error.",
        ),
    ]


def _quantiles(values: np.ndarray) -> str:
    """The median, and the 10% and 90% quantiles."""
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"
