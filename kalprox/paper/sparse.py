"""Section IV-B, Fig. 1(b)-(d) and Fig. 2: sparse taps behind a sigmoid, over many seeds.

The paper's recursion as printed and SGD, as there; beside them the recursion with Q = 0, the proximal
filter in one pass over the rows, and the answer after `kalprox.refine`, which is the minimiser of (1).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import kalprox as kp
from kalprox.pages import Figure, Section, Table
from kalprox.pages.plots import curves, estimates, matrix, quantile_bands, traces
from kalprox.pages.style import line_style
from kalprox.paper import problems
from kalprox.paper.cache import Results, Task, cached_all
from kalprox.paper.ridge import marks, relative_error

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

    from kalprox.algorithms.base import Algorithm  # not loaded here: it imports JAX, which only the workers need

__all__ = ["METHODS", "Settings", "compute", "conclusions", "figures", "section"]

METHODS = {
    "pipg": "PIPG as printed",
    "pipg0": "PIPG, Q = 0",
    "sgd": "SGD",
    "filter": "proximal filter, one pass",
    "refined": "refined",
}
_SLOTS = {"pipg": 0, "sgd": 1, "filter": 2, "pipg0": 3, "refined": 4}
_ROW_BY_ROW = ("pipg", "pipg0", "sgd")
_BLOCK = 1024  # rows in a step of the proximal filter
_FAR = 10**9  # record_every: kp.run compiles the same loop for every stretch, and records nothing inside


@dataclass(frozen=True)
class Settings:
    """What the paper says, and the sizes of the true taps, which it does not."""

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
    points: int = 61  # where the errors are looked at: log-spaced
    filter_points: int = 16  # the proximal filter's, from 10 d rows on: during its warm-up each look costs a fit

    @classmethod
    def full(cls) -> Self:
        """The paper's size: about half a minute for one seed and size."""
        return cls()

    @classmethod
    def quick(cls) -> Self:
        """A tenth of the rows, and fewer looks at the filter's warm-up."""
        return cls(n=30_000, filter_points=7)


def compute(
    settings: Settings,
    seeds: Sequence[int],
    folder: str | PathLike[str],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Results:
    """All methods on every size and seed, from the cache in `folder` where they are there.

    Each size and seed is a task and a file of its own. Keys, with S sizes, N seeds, d taps: rows (m,),
    filter_rows (f,); truth (S, N, d); for each method error_* (S, N, m) (filter: f; refined: 1), mean_* (S, N, d),
    var_* (S, N, d) where it has a belief, seconds_* (S, N) of one core's time; for PIPG as printed also cov_pipg
    (S, N, d, d) and trace_pipg (S, N, m, d), the diagonal of V_k; passes, converged (S, N) of refine; settings, seeds.
    Only seconds_* differ between two computations of the same settings.
    """
    if not seeds:
        raise ValueError("seeds must hold at least one seed; got none.")
    common = {name: value for name, value in asdict(settings).items() if name != "sizes"}
    cells = [{**common, "size": size, "seed": seed} for size in settings.sizes for seed in seeds]
    found = cached_all(folder, [Task("sparse", cell, _cell) for cell in cells], jobs=jobs, progress=progress)
    shape = (len(settings.sizes), len(seeds))
    stacked = {key: np.stack([cell[key] for cell in found]) for key in found[0]}
    return {
        "settings": asdict(settings),
        "seeds": list(seeds),
        "rows": marks(settings.n, settings.points),
        "filter_rows": marks(settings.n, settings.filter_points, first=10 * settings.d),
        **{key: array.reshape(shape + array.shape[1:]) for key, array in stacked.items()},
    }


def _cell(s: Mapping[str, Any]) -> Results:
    """One size, one seed."""
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
    for start, stop in pairwise([0, *marks(s["n"], s["filter_points"], first=10 * s["d"])]):
        begin = time.process_time()
        for i in range(start, stop, _BLOCK):
            state = alg.step(state, rows.X[i : min(i + _BLOCK, stop)], rows.y[i : min(i + _BLOCK, stop)])
        seconds += time.process_time() - begin
        errors.append(relative_error(state.mean, rows.theta))
    out |= {"error_filter": np.array(errors), "mean_filter": state.mean, "var_filter": state.var()}

    begin = time.process_time()  # from the filter's answer, with its prior: the same problem, solved to the end
    fit = kp.refine(h, g, (rows.X, rows.y), state.mean, gamma=s["gamma"], prior=state.prior)
    out |= {
        "seconds_filter": seconds,
        "seconds_refined": seconds + time.process_time() - begin,
        "error_refined": np.array([relative_error(fit.mean, rows.theta)]),
        "mean_refined": fit.mean,
        "var_refined": np.diagonal(fit.cov),
        "passes": fit.passes,
        "converged": fit.converged,
    }
    return out


def _row_by_row(alg: "Algorithm", rows: problems.Rows, s: Mapping[str, Any]) -> Results:
    """The rows one after the other, with a look at each mark."""
    go_on = partial(kp.run, alg, record_every=_FAR)
    state = alg.init(np.zeros(s["d"]), s["v0"])
    go_on(state, rows.X[:1], rows.y[:1])  # compiled here, so that the times are of the rows
    states, begin = [], time.process_time()
    for start, stop in pairwise([0, *marks(s["n"], s["points"])]):
        state = go_on(state, rows.X[start:stop], rows.y[start:stop]).state
        states.append(state)
    out: Results = {
        "seconds": time.process_time() - begin,
        "error": relative_error([state.mean for state in states], rows.theta),
        "mean": state.mean,
    }
    if hasattr(state, "cov"):
        out |= {"var": state.var(), "cov": state.cov(), "trace": np.stack([state.var() for state in states])}
    return out


def figures(results: Results) -> list[Figure]:
    """Fig. 1(b), (c), (d), Fig. 2(a), (b), each with one panel per size of the true taps."""
    s, seeds = results["settings"], results["seeds"]
    sizes, rows = s["sizes"], results["rows"]
    text = _settings_in_words(results)
    N = len(seeds)
    many_seeds = f"Lines: medians over {N} seeds; bands: from the 10% to the 90% quantile." if N > 1 else "One seed."
    one_seed = f"Seed {seeds[0]}."

    def panels(canvas: "matplotlib.figure.Figure", draw: Callable[["Axes", int], None], share: bool) -> None:
        for i, ax in enumerate(canvas.subplots(1, len(sizes), squeeze=False, sharex=share, sharey=share)[0]):
            ax.set_title(f"taps of size {sizes[i]:g}")
            draw(ax, i)

    def errors(canvas: "matplotlib.figure.Figure") -> None:
        def panel(ax: "Axes", i: int) -> None:
            runs = {METHODS[m]: results[f"error_{m}"][i] for m in _ROW_BY_ROW}
            slots = {METHODS[m]: slot for m, slot in _SLOTS.items()}
            curves(ax, rows, runs, log_x=True, slots=slots, legend=None)
            one_pass = {METHODS["filter"]: results["error_filter"][i]}
            curves(ax, results["filter_rows"], one_pass, log_x=True, slots=slots, legend=None)
            low, middle, high = quantile_bands(results["error_refined"][i])
            style = line_style(_SLOTS["refined"]) | {"linestyle": "none"}
            ax.errorbar([s["n"]], middle, [middle - low, high - middle], capsize=3, label=METHODS["refined"], **style)
            ax.set_xlabel("rows seen, $k$")

        panels(canvas, panel, share=True)
        canvas.axes[0].set_ylabel("relative error $E_k$")
        canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)

    def taps(*methods: str) -> Callable[["matplotlib.figure.Figure"], None]:
        def draw(canvas: "matplotlib.figure.Figure") -> None:
            grid = canvas.subplots(len(sizes), len(methods), squeeze=False, sharex=True, sharey="row")
            for i, line in enumerate(grid):
                for ax, method in zip(line, methods, strict=True):
                    var = results.get(f"var_{method}")
                    std = None if var is None else np.sqrt(var[i, 0])
                    mean = results[f"mean_{method}"][i, 0]
                    estimates(ax, results["truth"][i, 0], mean, std, slot=_SLOTS[method], legend=None)
                    ax.set_title(f"{METHODS[method]}, size {sizes[i]:g}")
                line[0].set_ylabel("tap")
            for ax in grid[-1]:
                ax.set_xlabel("index $i$")

        return draw

    def covariance(canvas: "matplotlib.figure.Figure") -> None:
        def panel(ax: "Axes", i: int) -> None:
            matrix(ax, results["cov_pipg"][i, 0], "$V_n$" if i == len(sizes) - 1 else "")
            ax.set_xlabel("index $j$")

        panels(canvas, panel, share=False)
        canvas.axes[0].set_ylabel("index $i$")

    def variances(canvas: "matplotlib.figure.Figure") -> None:
        def panel(ax: "Axes", i: int) -> None:
            traces(ax, rows, results["trace_pipg"][i, 0], f"{s['d']} entries")
            ax.set_xlabel("rows seen, $k$")

        panels(canvas, panel, share=True)
        canvas.axes[0].set_ylabel("diagonal of $V_k$")

    def numbers(*keys: str, first_seed: bool = False) -> dict[str, Any]:
        chosen = {key: results[key] for key in keys if key in results}
        about = {"settings": s, "seeds": seeds[:1] if first_seed else seeds, "sizes": sizes, "rows": rows}
        return about | {key: value[:, 0] if first_seed else value for key, value in chosen.items()}

    w = 2.6 * len(sizes)
    return [
        Figure(
            "fig1b-sparse-errors",
            "Fig. 1(b): sparse taps behind a sigmoid, relative error along the rows",
            f"{many_seeds} The proximal filter is looked at from {results['filter_rows'][0]:,} rows on; the refined "
            f"answer, after all rows, stands at the right end. {text}",
            numbers(*(f"error_{m}" for m in METHODS)) | {"filter_rows": results["filter_rows"]},
            errors,
            (w, 3.6),
        ),
        Figure(
            "fig1c-sparse-estimates",
            "Fig. 1(c): estimates with ±2σ bars against the true taps",
            f"Circles: the true taps. Crosses: estimates whose bar misses the truth. {one_seed} {text}",
            numbers("truth", "mean_pipg", "var_pipg", "mean_refined", "var_refined", first_seed=True),
            taps("pipg", "refined"),
            (7.8, 2.0 * len(sizes) + 0.4),
        ),
        Figure(
            "fig1d-sparse-sgd",
            "Fig. 1(d): the SGD estimates against the true taps",
            f"SGD has no bars. {one_seed} {text}",
            numbers("truth", "mean_sgd", first_seed=True),
            taps("sgd"),
            (5.2, 2.0 * len(sizes) + 0.4),
        ),
        Figure(
            "fig2a-sparse-covariance",
            "Fig. 2(a): the covariance V_n of PIPG as printed",
            f"Each panel has a scale of its own. {one_seed} {text}",
            numbers("cov_pipg", first_seed=True),
            covariance,
            (w, 2.6),
        ),
        Figure(
            "fig2b-sparse-variances",
            "Fig. 2(b): the diagonal of V_k along the rows, PIPG as printed",
            f"One thin line per tap. {one_seed} {text}",
            numbers("trace_pipg", first_seed=True),
            variances,
            (w, 3.2),
        ),
    ]


def section(results: Results) -> Section:
    """The experiment with its figures and a table, in words whose numbers are the results'."""
    text = _settings_in_words(results)
    cells = []
    for i, size in enumerate(results["settings"]["sizes"]):
        for method, name in METHODS.items():
            low, middle, high = quantile_bands(results[f"error_{method}"][i, :, -1:])[:, 0]
            covered = _coverage(results, method)
            cells.append(
                [
                    f"{size:g}",
                    name,
                    middle,
                    f"{low:.3g} to {high:.3g}",
                    "none" if covered is None else f"{covered[i].mean():.1%}",
                    f"{results['settings']['n'] / np.median(results[f'seconds_{method}'][i]):,.0f}",
                ]
            )
    table = Table(
        columns=["size", "method", "last error (median)", "10% to 90%", "taps within ±2σ", "rows per second"],
        rows=cells,
        caption=f"Over {len(results['seeds'])} seeds. Honest ±2σ bars hold 95.4% of the taps. Rows per second of one "
        "core's time, without compilation; the refined answer's time includes the filter's that it starts from.",
    )
    return Section("Sparse taps behind a sigmoid (Fig. 1b-d, Fig. 2)", text, figures(results), [table])


def conclusions(results: Results) -> list[str]:
    """What the numbers say, a sentence or two for each size."""
    out = []
    for i, size in enumerate(results["settings"]["sizes"]):
        last = {m: results[f"error_{m}"][i, :, -1] for m in METHODS}
        middle = {m: np.median(errors) for m, errors in last.items()}
        covered = {m: c[i].mean() for m in METHODS if (c := _coverage(results, m)) is not None}
        better = int((last["pipg"] < last["sgd"]).sum())
        out.append(
            f"Taps of size {size:g}: PIPG as printed ends at a median error of {middle['pipg']:.3g}, below SGD "
            f"({middle['sgd']:.3g}) on {better} of {len(last['sgd'])} seeds; with Q = 0 at {middle['pipg0']:.3g}; the "
            f"proximal filter, in one pass, at {middle['filter']:.3g}; refined, at {middle['refined']:.3g}. The ±2σ "
            f"bars hold {covered['pipg']:.0%}, {covered['pipg0']:.0%} (Q = 0), {covered['filter']:.0%} (filter) and "
            f"{covered['refined']:.0%} (refined) of the true taps; honest ones would hold 95%."
        )
    done, all_of_them = int(results["converged"].sum()), results["converged"].size
    out.append(
        f"Refinement converged on {done} of {all_of_them} data sets, in {int(np.median(results['passes']))} passes "
        f"over the rows (median; at most {int(results['passes'].max())})."
    )
    return out


def _coverage(results: Results, method: str) -> np.ndarray | None:
    """The share of true taps within +-2 sigma, shape (S, N); None for a method without a belief."""
    if f"var_{method}" not in results:
        return None
    away = np.abs(results[f"mean_{method}"] - results["truth"])
    return (away <= 2 * np.sqrt(results[f"var_{method}"])).mean(axis=-1)


def _settings_in_words(results: Results) -> str:
    s = results["settings"]
    taps = max(1, s["d"] // 10)
    return (
        f"d = {s['d']}, n = {s['n']:,}, AR(0.8) input, noise variance 1; λ = {s['lam']:g}, δ = {s['delta']:g}, "
        f"v₀ = {s['v0']:g}, Q = {s['q']:g} I, γ = {s['gamma']:g}; SGD with α₀ = {s['alpha0']:g}, α₁ = {s['alpha1']:g}. "
        f"The paper does not say what θ* was: here {taps} taps at random places are plus or minus the size, the others "
        "zero."
    )
