"""Section IV-B, Fig. 1(b)-(d) and Fig. 2: sparse taps observed through a sigmoid, over many seeds.

As in the paper: its recursion as printed, and SGD. In addition: the recursion with Q = 0, the proximal filter in one
pass over the rows, and the estimate refined by `kalprox.refine`, which is the minimiser of (1).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import kalprox as kp
from kalprox.algorithms.base import Algorithm
from kalprox.display.axes import is_narrow, label_panels, line_style, panels
from kalprox.display.plots import curves, estimates, matrix, quantile_bands, traces
from kalprox.pages import Figure, Section, Table
from kalprox.paper import problems
from kalprox.paper.cache import Compute, Results, Task
from kalprox.paper.problems import after, record_points, relative_error, states_along, stretches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


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


def _row_by_row(alg: Algorithm, rows: problems.Rows, s: Mapping[str, Any]) -> Results:
    """An algorithm that takes one row at a time, with its error at each record."""
    state = alg.init(np.zeros(s["d"]), s["v0"])
    after(alg, state, rows.X[:1], rows.y[:1])  # compiles the loop, so that the time below is without compilation
    begin = time.process_time()
    states = list(states_along(alg, state, rows, s["points"]))
    state = states[-1]
    out: Results = {
        "seconds": time.process_time() - begin,
        "error": relative_error([state.mean for state in states], rows.theta),
        "mean": state.mean,
    }
    if hasattr(state, "cov"):
        out |= {"var": state.var(), "cov": state.cov(), "trace": np.stack([state.var() for state in states])}
    return out


def section(results: Results) -> Section:
    """The experiment with its figures and a table."""
    n = results["settings"]["n"]
    rows = []
    for i, size in enumerate(results["settings"]["sizes"]):
        for method, name in METHODS.items():
            low, middle, high = quantile_bands(results[f"error_{method}"][i, :, -1:])[:, 0]
            covered = coverage(results, method)
            within = "none" if covered is None else f"{covered[i].mean():.1%}"
            speed = f"{n / np.median(results[f'seconds_{method}'][i]):,.0f}"
            rows.append([f"{size:g}", name, middle, f"{low:.3g} to {high:.3g}", within, speed])
    table = Table(
        columns=["size", "method", "final error (median)", "10% to 90%", "taps within ±2σ", "rows per second"],
        rows=rows,
        caption=f"Over {len(results['seeds'])} seeds. Calibrated ±2σ bars contain 95.4% of the taps. Rows per second "
        "of CPU time on one core, without compilation; the time of the refined estimate includes that of the filter, "
        "from which it starts.",
    )
    title = "Sparse taps observed through a sigmoid (Fig. 1b-d, Fig. 2)"
    return Section(title, _settings_text(results), _figures(results), [table])


def _figures(results: Results) -> list[Figure]:
    """Fig. 1(b), (c), (d) and Fig. 2(a), (b), each with one panel for each size of the true taps."""
    seeds, sizes = results["seeds"], results["settings"]["sizes"]
    bands = f"Lines: medians over {len(seeds)} seeds; bands: 10% to 90% quantiles." if len(seeds) > 1 else "One seed."
    one_seed = f"Seed {seeds[0]}."

    def numbers(*keys: str, first_seed: bool = False) -> dict[str, Any]:
        about = {"settings": results["settings"], "seeds": seeds, "sizes": sizes, "rows": results["rows"]}
        if first_seed:
            return about | {"seeds": seeds[:1]} | {key: results[key][:, 0] for key in keys}
        return about | {key: results[key] for key in keys}

    width = 2.6 * len(sizes)
    return [
        Figure(
            "fig1b-sparse-errors",
            "Relative error along the rows",
            f"{bands} The error of the proximal filter is recorded from {results['filter_rows'][0]:,} rows on; that of "
            "the refined estimate, after all rows, is at the right end. In the paper: Fig. 1(b).",
            numbers(*(f"error_{m}" for m in METHODS)) | {"filter_rows": results["filter_rows"]},
            partial(_draw_errors, results),
            (width + 0.9, 3.6),
            narrow_height=2.6 * len(sizes),
        ),
        Figure(
            "fig1c-sparse-estimates",
            "Estimates with ±2σ bars, and the true taps",
            f"Circles: true taps. Crosses: estimates whose bars do not contain the true tap. {one_seed} In the paper: "
            "Fig. 1(c).",
            numbers("truth", "mean_pipg", "var_pipg", "mean_refined", "var_refined", first_seed=True),
            partial(_draw_taps, results, ["pipg", "refined"]),
            (7.8, 2.0 * len(sizes) + 0.4),
            narrow_height=3.6 * len(sizes) + 0.4,
        ),
        Figure(
            "fig1d-sparse-sgd",
            "SGD estimates, and the true taps",
            f"SGD does not estimate its uncertainty. {one_seed} In the paper: Fig. 1(d).",
            numbers("truth", "mean_sgd", first_seed=True),
            partial(_draw_taps, results, ["sgd"]),
            (5.2, 2.0 * len(sizes) + 0.4),
            narrow_height=1.8 * len(sizes) + 0.4,
        ),
        Figure(
            "fig2a-sparse-covariance",
            "Covariance of PIPG as printed, after all rows",
            f"The panels have different colour scales. {one_seed} In the paper: Fig. 2(a).",
            numbers("cov_pipg", first_seed=True),
            partial(_draw_covariance, results),
            (width, 2.6),
            narrow_height=3.1 * len(sizes),
        ),
        Figure(
            "fig2b-sparse-variances",
            "Variances of PIPG as printed, along the rows",
            f"Each thin line is one tap. {one_seed} In the paper: Fig. 2(b).",
            numbers("trace_pipg", first_seed=True),
            partial(_draw_variances, results),
            (width + 0.6, 3.2),
            narrow_height=2.4 * len(sizes),
        ),
    ]


def _by_size(results: Results, canvas: "Canvas", draw: Callable[["Axes", int], None], share: bool) -> "list[Axes]":
    """One panel for each size of the taps."""
    sizes = results["settings"]["sizes"]
    axes = panels(canvas, len(sizes), sharex=share, sharey=share)
    for i, ax in enumerate(axes):
        ax.set_title(f"taps of size {sizes[i]:g}")
        draw(ax, i)
    return axes


def _draw_errors(results: Results, canvas: "Canvas") -> None:
    plot = partial(curves, slots={METHODS[m]: slot for m, slot in _SLOTS.items()})

    def panel(ax: "Axes", i: int) -> None:
        plot(ax, results["rows"], {METHODS[m]: results[f"error_{m}"][i] for m in _ROW_BY_ROW})
        plot(ax, results["filter_rows"], {METHODS["filter"]: results["error_filter"][i]})
        low, middle, high = quantile_bands(results["error_refined"][i])
        style = line_style(_SLOTS["refined"]) | {"linestyle": "none"}
        bar = [middle - low, high - middle]
        point = ax.errorbar([results["settings"]["n"]], middle, bar, capsize=3, **style)[0]
        point.set_label(METHODS["refined"])

    label_panels(_by_size(results, canvas, panel, share=True), "rows seen, $k$", "relative error $E_k$")


def _draw_taps(results: Results, methods: list[str], canvas: "Canvas") -> None:
    sizes, narrow = results["settings"]["sizes"], is_narrow(canvas)
    shape = (len(sizes) * len(methods), 1) if narrow else (len(sizes), len(methods))
    grid = canvas.subplots(*shape, squeeze=False, sharex=True, sharey="row").reshape(len(sizes), len(methods))
    for i, line in enumerate(grid):
        for ax, method in zip(line, methods, strict=True):
            std = np.sqrt(results[f"var_{method}"][i, 0]) if f"var_{method}" in results else None
            mean = results[f"mean_{method}"][i, 0]
            estimates(ax, results["truth"][i, 0], mean, std, slot=_SLOTS[method])
            ax.set_title(f"{METHODS[method]}, size {sizes[i]:g}")
        line[0].set_ylabel("tap")
    for ax in grid[-1][-1:] if narrow else grid[-1]:
        ax.set_xlabel("index $i$")


def _draw_covariance(results: Results, canvas: "Canvas") -> None:
    last = len(results["settings"]["sizes"]) - 1

    def panel(ax: "Axes", i: int) -> None:
        matrix(ax, results["cov_pipg"][i, 0], "$V_n$" if i == last else "")
        ax.set_xlabel("index $j$")

    _by_size(results, canvas, panel, share=False)[0].set_ylabel("index $i$")


def _draw_variances(results: Results, canvas: "Canvas") -> None:
    def panel(ax: "Axes", i: int) -> None:
        traces(ax, results["rows"], results["trace_pipg"][i, 0], f"{results['settings']['d']} taps")

    label_panels(_by_size(results, canvas, panel, share=True), "rows seen, $k$", "diagonal of $V_k$")


def conclusions(results: Results) -> list[str]:
    """The conclusions from the numbers, for each size of the taps."""
    out = []
    for i, size in enumerate(results["settings"]["sizes"]):
        final = {m: results[f"error_{m}"][i, :, -1] for m in METHODS}
        middle = {m: np.median(errors) for m, errors in final.items()}
        covered = {m: c[i].mean() for m in METHODS if (c := coverage(results, m)) is not None}
        better = int((final["pipg"] < final["sgd"]).sum())
        out.append(
            f"Taps of size {size:g}: the median final error of PIPG as printed is {middle['pipg']:.3g}, and its error "
            f"is lower than that of SGD (median {middle['sgd']:.3g}) on {better} of {len(final['sgd'])} seeds. With "
            f"Q = 0 the median is {middle['pipg0']:.3g}, for the proximal filter in one pass {middle['filter']:.3g}, "
            f"and for the refined estimate {middle['refined']:.3g}. The ±2σ bars contain {covered['pipg']:.0%} (as "
            f"printed), {covered['pipg0']:.0%} (Q = 0), {covered['filter']:.0%} (filter) and {covered['refined']:.0%} "
            "(refined) of the true taps; calibrated bars contain 95%."
        )
    converged, data_sets = int(results["converged"].sum()), results["converged"].size
    out.append(
        f"The refinement converged on {converged} of {data_sets} data sets, in {int(np.median(results['passes']))} "
        f"passes over the rows (median; at most {int(results['passes'].max())})."
    )
    return out


def _settings_text(results: Results) -> str:
    s = results["settings"]
    lam, q, alpha1 = (np.format_float_positional(s[name], trim="-") for name in ("lam", "q", "alpha1"))
    return (
        f"d = {s['d']}, n = {s['n']:,}, AR(0.8) input, noise variance 1; λ = {lam}, δ = {s['delta']:g}, v₀ = "
        f"{s['v0']:g}, Q = {q} I, γ = {s['gamma']:g}; SGD with α₀ = {s['alpha0']:g}, α₁ = {alpha1}. The paper does not "
        f"state θ*: here {max(1, s['d'] // 10)} taps at random positions are plus or minus the size, and the others "
        "are zero."
    )
