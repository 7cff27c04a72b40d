"""The figures, the table and the conclusions of the sparse experiment."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.pages import Figure, Section, Table
from kalprox.pages.plots import curves, estimates, matrix, quantile_bands, traces
from kalprox.pages.style import line_style
from kalprox.paper.cache import Results
from kalprox.paper.sparse import METHODS, coverage

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

__all__ = ["conclusions", "figures", "section"]

_SLOTS = {"pipg": 0, "sgd": 1, "filter": 2, "pipg0": 3, "refined": 4}
_ROW_BY_ROW = ("pipg", "pipg0", "sgd")

Draw = Callable[["matplotlib.figure.Figure"], None]


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
    return Section(title, _settings_text(results), figures(results), [table])


def figures(results: Results) -> list[Figure]:
    """Fig. 1(b), (c), (d) and Fig. 2(a), (b), each with one panel for each size of the true taps."""
    seeds, sizes = results["seeds"], results["settings"]["sizes"]
    text = f"d = {results['settings']['d']}, n = {results['settings']['n']:,}."
    bands = f"Lines: medians over {len(seeds)} seeds; bands: 10% to 90% quantiles." if len(seeds) > 1 else "One seed."
    one_seed = f"Seed {seeds[0]}."

    def numbers(*keys: str, first_seed: bool = False) -> dict[str, Any]:
        chosen = {key: results[key] for key in keys if key in results}
        about = {"settings": results["settings"], "seeds": seeds[:1] if first_seed else seeds}
        about |= {"sizes": sizes, "rows": results["rows"]}
        return about | {key: value[:, 0] if first_seed else value for key, value in chosen.items()}

    width = 2.6 * len(sizes)
    return [
        Figure(
            "fig1b-sparse-errors",
            "Relative error along the rows (Fig. 1b of the paper)",
            f"{bands} The error of the proximal filter is recorded from {results['filter_rows'][0]:,} rows on; that of "
            f"the refined estimate, after all rows, is at the right end. {text}",
            numbers(*(f"error_{m}" for m in METHODS)) | {"filter_rows": results["filter_rows"]},
            _draw_errors(results),
            (width, 3.6),
        ),
        Figure(
            "fig1c-sparse-estimates",
            "Estimates with ±2σ bars, and the true taps (Fig. 1c)",
            f"Circles: true taps. Crosses: estimates whose bars do not contain the true tap. {one_seed} {text}",
            numbers("truth", "mean_pipg", "var_pipg", "mean_refined", "var_refined", first_seed=True),
            _draw_taps(results, "pipg", "refined"),
            (7.8, 2.0 * len(sizes) + 0.4),
        ),
        Figure(
            "fig1d-sparse-sgd",
            "SGD estimates, and the true taps (Fig. 1d)",
            f"SGD does not estimate its uncertainty. {one_seed} {text}",
            numbers("truth", "mean_sgd", first_seed=True),
            _draw_taps(results, "sgd"),
            (5.2, 2.0 * len(sizes) + 0.4),
        ),
        Figure(
            "fig2a-sparse-covariance",
            "Covariance of PIPG as printed, after all rows (Fig. 2a)",
            f"The panels have different colour scales. {one_seed} {text}",
            numbers("cov_pipg", first_seed=True),
            _draw_covariance(results),
            (width, 2.6),
        ),
        Figure(
            "fig2b-sparse-variances",
            "Variances of PIPG as printed, along the rows (Fig. 2b)",
            f"Each thin line is one tap. {one_seed} {text}",
            numbers("trace_pipg", first_seed=True),
            _draw_variances(results),
            (width, 3.2),
        ),
    ]


def _draw_panels(
    results: Results, canvas: "matplotlib.figure.Figure", draw: Callable[["Axes", int], None], share: bool
) -> None:
    """One panel for each size of the taps."""
    sizes = results["settings"]["sizes"]
    for i, ax in enumerate(canvas.subplots(1, len(sizes), squeeze=False, sharex=share, sharey=share)[0]):
        ax.set_title(f"taps of size {sizes[i]:g}")
        draw(ax, i)


def _draw_errors(results: Results) -> Draw:
    slots = {METHODS[m]: slot for m, slot in _SLOTS.items()}

    def panel(ax: "Axes", i: int) -> None:
        runs = {METHODS[m]: results[f"error_{m}"][i] for m in _ROW_BY_ROW}
        curves(ax, results["rows"], runs, log_x=True, slots=slots, legend=None)
        one_pass = {METHODS["filter"]: results["error_filter"][i]}
        curves(ax, results["filter_rows"], one_pass, log_x=True, slots=slots, legend=None)
        low, middle, high = quantile_bands(results["error_refined"][i])
        style = line_style(_SLOTS["refined"]) | {"linestyle": "none"}
        bar = [middle - low, high - middle]
        ax.errorbar([results["settings"]["n"]], middle, bar, capsize=3, label=METHODS["refined"], **style)
        ax.set_xlabel("rows seen, $k$")

    def draw(canvas: "matplotlib.figure.Figure") -> None:
        _draw_panels(results, canvas, panel, share=True)
        canvas.axes[0].set_ylabel("relative error $E_k$")
        canvas.legend(*canvas.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)

    return draw


def _draw_taps(results: Results, *methods: str) -> Draw:
    sizes = results["settings"]["sizes"]

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


def _draw_covariance(results: Results) -> Draw:
    last = len(results["settings"]["sizes"]) - 1

    def panel(ax: "Axes", i: int) -> None:
        matrix(ax, results["cov_pipg"][i, 0], "$V_n$" if i == last else "")
        ax.set_xlabel("index $j$")

    def draw(canvas: "matplotlib.figure.Figure") -> None:
        _draw_panels(results, canvas, panel, share=False)
        canvas.axes[0].set_ylabel("index $i$")

    return draw


def _draw_variances(results: Results) -> Draw:
    def panel(ax: "Axes", i: int) -> None:
        traces(ax, results["rows"], results["trace_pipg"][i, 0], f"{results['settings']['d']} taps")
        ax.set_xlabel("rows seen, $k$")

    def draw(canvas: "matplotlib.figure.Figure") -> None:
        _draw_panels(results, canvas, panel, share=True)
        canvas.axes[0].set_ylabel("diagonal of $V_k$")

    return draw


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
    taps = max(1, s["d"] // 10)
    return (
        f"d = {s['d']}, n = {s['n']:,}, AR(0.8) input, noise variance 1; λ = {s['lam']:g}, δ = {s['delta']:g}, "
        f"v₀ = {s['v0']:g}, Q = {s['q']:g} I, γ = {s['gamma']:g}; SGD with α₀ = {s['alpha0']:g}, α₁ = {s['alpha1']:g}. "
        f"The paper does not state θ*: here {taps} taps at random positions are plus or minus the size, and the others "
        "are zero."
    )
