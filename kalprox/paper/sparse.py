"""Section IV-B, Fig. 1(b)-(d) and Fig. 2: sparse taps observed through a sigmoid, over many seeds.

As in the paper: its recursion as printed, and SGD. In addition: the recursion with Q = 0, the proximal filter in one
pass over the rows, and the estimate refined by `kalprox.refine`, which is the minimiser of (1).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kalprox as kp
from kalprox.paper import problems
from kalprox.paper.cache import Compute, Results, Task
from kalprox.paper.problems import after, record_points, relative_error, stretches

if TYPE_CHECKING:
    from kalprox.algorithms.base import Algorithm

__all__ = ["METHODS", "QUICK", "Settings", "compute", "coverage"]

METHODS = {
    "pipg": "PIPG as printed",
    "pipg0": "PIPG, Q = 0",
    "sgd": "SGD",
    "filter": "proximal filter, one pass",
    "refined": "refined",
}
_BLOCK = 1024  # rows in a step of the proximal filter


@dataclass(frozen=True)
class Settings:
    """The settings of the paper, and the sizes of the true taps, which the paper does not state."""

    n: int = 300_000
    d: int = 50
    sizes: tuple[float, ...] = (1.0, 3.0, 5.0)
    lam: float = 1e-5
    delta: float = 0.1
    v0: float = 100.0
    q: float = 1e-4
    gamma: float = 1.0
    alpha0: float = 1.0
    alpha1: float = 1e-4
    points: int = 61  # logarithmically spaced numbers of rows at which the error is recorded
    filter_points: int = 16  # for the proximal filter, from 10 d rows on; during its warm-up each record costs a fit


QUICK = Settings(n=30_000, filter_points=7)  # a tenth of the rows, and fewer records of the proximal filter


def compute(settings: Settings, seeds: Sequence[int], results: Compute) -> Results:
    """Compute all methods for every size and seed, or read their results from the cache.

    With the sizes of the paper it takes about half a minute per seed and size of the taps.

    Parameters
    ----------
    settings : Settings
    seeds : sequence of int
    results : callable
        Returns the results of tasks: `kalprox.paper.cache.cached_all` in a folder. Each size and seed is one task.

    Returns
    -------
    dict
        With S sizes, N seeds and d taps: rows : (m,) and filter_rows : (f,), the numbers of rows at which errors are
        recorded; truth : (S, N, d); for each method error_* : (S, N, m) (filter: f; refined: 1), mean_* : (S, N, d),
        var_* : (S, N, d) where the method has a covariance, and seconds_* : (S, N) of CPU time; for PIPG as printed
        also cov_pipg : (S, N, d, d) and trace_pipg : (S, N, m, d), the diagonal of V_k; passes and converged : (S, N),
        of the refinement; settings and seeds. Only seconds_* differ if the same settings are computed again.
    """
    common = {name: value for name, value in asdict(settings).items() if name != "sizes"}
    cells = [{**common, "size": size, "seed": seed} for size in settings.sizes for seed in seeds]
    found = results([Task("sparse", cell, _cell) for cell in cells])
    shape = (len(settings.sizes), len(seeds))
    stacked = {key: np.stack([cell[key] for cell in found]) for key in found[0]}
    return {
        "settings": asdict(settings),
        "seeds": list(seeds),
        "rows": record_points(settings.n, settings.points),
        "filter_rows": record_points(settings.n, settings.filter_points, first=10 * settings.d),
        **{key: array.reshape(shape + array.shape[1:]) for key, array in stacked.items()},
    }


def coverage(results: Results, method: str) -> np.ndarray | None:
    """The share of the true taps within ±2 sigma, of shape (S, N); None for a method without a covariance."""
    if f"var_{method}" not in results:
        return None
    share: np.ndarray = problems.covered(results[f"mean_{method}"], results[f"var_{method}"], results["truth"])
    return share


def _cell(s: Mapping[str, Any]) -> Results:
    """All methods for one size and one seed."""
    rows = problems.sparse(s["n"], s["d"], s["size"], s["seed"])
    h, g = kp.models.GLM("sigmoid"), kp.regularizers.SmoothL1(s["lam"], s["delta"])
    algorithms = {
        "pipg": kp.pipg(h, g, gamma=s["gamma"], q=s["q"]),
        "pipg0": kp.pipg(h, g, gamma=s["gamma"]),
        "sgd": kp.sgd(h, g, alpha0=s["alpha0"], alpha1=s["alpha1"]),
    }
    out: Results = {"truth": rows.theta}
    for method, alg in algorithms.items():
        out |= {f"{key}_{method}": value for key, value in _row_by_row(alg, rows, s).items()}
    del out["cov_pipg0"], out["trace_pipg0"]

    alg = kp.proximal_filter(h, g, gamma=s["gamma"])
    state, errors, seconds = alg.init(np.zeros(s["d"]), s["v0"]), [], 0.0
    for X, y in stretches(rows, s["filter_points"], first=10 * s["d"]):
        begin = time.process_time()
        for i in range(0, len(X), _BLOCK):
            state = alg.step(state, X[i : i + _BLOCK], y[i : i + _BLOCK])
        seconds += time.process_time() - begin
        errors.append(relative_error(state.mean, rows.theta))
    out |= {"error_filter": np.array(errors), "mean_filter": state.mean, "var_filter": state.var()}

    begin = time.process_time()  # with the filter's prior: the same objective, minimised to convergence
    fit = kp.refine(h, g, (rows.X, rows.y), state.mean, gamma=s["gamma"], prior=state.prior)
    out |= {
        "seconds_filter": seconds,
        "seconds_refined": seconds + time.process_time() - begin,
        "error_refined": np.array([relative_error(fit.mean, rows.theta)]),
        "mean_refined": fit.mean,
        "var_refined": fit.var,
        "passes": fit.passes,
        "converged": fit.converged,
    }
    return out


def _row_by_row(alg: "Algorithm", rows: problems.Rows, s: Mapping[str, Any]) -> Results:
    """An algorithm that takes one row at a time, with its error at each record."""
    state = alg.init(np.zeros(s["d"]), s["v0"])
    after(alg, state, rows.X[:1], rows.y[:1])  # compiles the loop, so that the time below is without compilation
    states, begin = [], time.process_time()
    for X, y in stretches(rows, s["points"]):
        state = after(alg, state, X, y)
        states.append(state)
    out: Results = {
        "seconds": time.process_time() - begin,
        "error": relative_error([state.mean for state in states], rows.theta),
        "mean": state.mean,
    }
    if hasattr(state, "cov"):
        out |= {"var": state.var(), "cov": state.cov(), "trace": np.stack([state.var() for state in states])}
    return out
