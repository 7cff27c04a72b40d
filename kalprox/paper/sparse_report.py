"""The figures, the table and the conclusions of the sparse experiment."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.display.axes import is_narrow, label_panels, panels
from kalprox.display.plots import curves, estimates, matrix, quantile_bands, traces
from kalprox.display.style import line_style
from kalprox.pages import Figure, Section, Table
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
            "Relative error along the rows",
            f"{bands} The error of the proximal filter is recorded from {results['filter_rows'][0]:,} rows on; that of "
            "the refined estimate, after all rows, is at the right end. In the paper: Fig. 1(b).",
            numbers(*(f"error_{m}" for m in METHODS)) | {"filter_rows": results["filter_rows"]},
            _draw_errors(results),
            (width + 0.9, 3.6),
            narrow_height=2.6 * len(sizes),
        ),
        Figure(
            "fig1c-sparse-estimates",
            "Estimates with ±2σ bars, and the true taps",
            f"Circles: true taps. Crosses: estimates whose bars do not contain the true tap. {one_seed} In the paper: "
            "Fig. 1(c).",
            numbers("truth", "mean_pipg", "var_pipg", "mean_refined", "var_refined", first_seed=True),
            _draw_taps(results, "pipg", "refined"),
            (7.8, 2.0 * len(sizes) + 0.4),
            narrow_height=3.6 * len(sizes) + 0.4,
        ),
        Figure(
            "fig1d-sparse-sgd",
            "SGD estimates, and the true taps",
            f"SGD does not estimate its uncertainty. {one_seed} In the paper: Fig. 1(d).",
            numbers("truth", "mean_sgd", first_seed=True),
            _draw_taps(results, "sgd"),
            (5.2, 2.0 * len(sizes) + 0.4),
            narrow_height=1.8 * len(sizes) + 0.4,
        ),
        Figure(
            "fig2a-sparse-covariance",
            "Covariance of PIPG as printed, after all rows",
            f"The panels have different colour scales. {one_seed} In the paper: Fig. 2(a).",
            numbers("cov_pipg", first_seed=True),
            _draw_covariance(results),
            (width, 2.6),
            narrow_height=3.1 * len(sizes),
        ),
        Figure(
            "fig2b-sparse-variances",
            "Variances of PIPG as printed, along the rows",
            f"Each thin line is one tap. {one_seed} In the paper: Fig. 2(b).",
            numbers("trace_pipg", first_seed=True),
            _draw_variances(results),
            (width + 0.6, 3.2),
            narrow_height=2.4 * len(sizes),
        ),
    ]


def _draw_panels(
    results: Results, canvas: "matplotlib.figure.Figure", draw: Callable[["Axes", int], None], share: bool
) -> "list[Axes]":
    """One panel for each size of the taps."""
    sizes = results["settings"]["sizes"]
    axes = panels(canvas, len(sizes), sharex=share, sharey=share)
    for i, ax in enumerate(axes):
        ax.set_title(f"taps of size {sizes[i]:g}")
        draw(ax, i)
    return axes


def _draw_errors(results: Results) -> Draw:
    slots = {METHODS[m]: slot for m, slot in _SLOTS.items()}

    def panel(ax: "Axes", i: int) -> None:
        runs = {METHODS[m]: results[f"error_{m}"][i] for m in _ROW_BY_ROW}
        curves(ax, results["rows"], runs, slots=slots)
        one_pass = {METHODS["filter"]: results["error_filter"][i]}
        curves(ax, results["filter_rows"], one_pass, slots=slots)
        low, middle, high = quantile_bands(results["error_refined"][i])
        style = line_style(_SLOTS["refined"]) | {"linestyle": "none"}
        bar = [middle - low, high - middle]
        point = ax.errorbar([results["settings"]["n"]], middle, bar, capsize=3, **style)[0]
        point.set_label(METHODS["refined"])

    def draw(canvas: "matplotlib.figure.Figure") -> None:
        label_panels(_draw_panels(results, canvas, panel, share=True), "rows seen, $k$", "relative error $E_k$")

    return draw


def _draw_taps(results: Results, *methods: str) -> Draw:
    sizes = results["settings"]["sizes"]

    def draw(canvas: "matplotlib.figure.Figure") -> None:
        shape = (len(sizes) * len(methods), 1) if is_narrow(canvas) else (len(sizes), len(methods))
        grid = canvas.subplots(*shape, squeeze=False, sharex=True, sharey="row").reshape(len(sizes), len(methods))
        for i, line in enumerate(grid):
            for ax, method in zip(line, methods, strict=True):
                var = results.get(f"var_{method}")
                std = None if var is None else np.sqrt(var[i, 0])
                mean = results[f"mean_{method}"][i, 0]
                estimates(ax, results["truth"][i, 0], mean, std, slot=_SLOTS[method])
                ax.set_title(f"{METHODS[method]}, size {sizes[i]:g}")
            line[0].set_ylabel("tap")
        for ax in grid[-1][-1:] if is_narrow(canvas) else grid[-1]:
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

    def draw(canvas: "matplotlib.figure.Figure") -> None:
        label_panels(_draw_panels(results, canvas, panel, share=True), "rows seen, $k$", "diagonal of $V_k$")

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
        f"d = {s['d']}, n = {s['n']:,}, AR(0.8) input, noise variance 1; λ = {_decimal(s['lam'])}, δ = {s['delta']:g}, "
        f"v₀ = {s['v0']:g}, Q = {_decimal(s['q'])} I, γ = {s['gamma']:g}; SGD with α₀ = {s['alpha0']:g}, α₁ = "
        f"{_decimal(s['alpha1'])}. "
        f"The paper does not state θ*: here {taps} taps at random positions are plus or minus the size, and the others "
        "are zero."
    )


def _decimal(value: float) -> str:
    """A number as people write it, with its zeros.

    >>> _decimal(1e-5), _decimal(2.5)
    ('0.00001', '2.5')
    """
    return f"{value:.12f}".rstrip("0").rstrip(".")
