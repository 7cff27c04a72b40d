"""The figures, the table and the conclusions of the ridge experiment."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.display.axes import label_panels, panels
from kalprox.display.plots import curves, sweep
from kalprox.pages import Figure, Section, Table
from kalprox.paper.cache import Results

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["conclusions", "figures", "section"]

_SLOTS = {"pipg": 0, "ipg": 1, "constant": 3}


def section(results: Results) -> Section:
    """The experiment with its figures and a table."""
    found, n_gammas = _statistics(results), len(results["gamma"])
    rows = [
        [name, *(found[key][column] for column in ("lowest", "highest", "early_ratio", "ratio", "reached"))]
        for name, key in (("PIPG", "pipg"), ("IPG, decaying step", "ipg"), ("IPG, constant step", "constant"))
    ]
    table = Table(
        columns=[
            "method",
            "lowest final error",
            "highest final error",
            f"highest / lowest after {found['early']:,} rows",
            "highest / lowest at the end",
            f"runs, of {n_gammas}, that reach {found['level']:.3g}",
        ],
        rows=rows,
        caption=f"Over the {n_gammas} step sizes. {found['level']:.3g} is twice the lowest final error of PIPG and "
        "IPG.",
    )
    return Section("Ridge regression (Fig. 1a)", _settings_text(results), figures(results), [table])


def figures(results: Results) -> list[Figure]:
    """Fig. 1(a), with the proximal filter added, and the constant step that the paper leaves out."""
    rows, s = results["rows"], results["settings"]
    titles = {
        "pipg": "PIPG",
        "ipg": f"IPG, step $\\gamma / k^{{{s['decay']:g}}}$",
        "constant": "IPG, constant step $\\gamma$",
    }

    def figure(name: str, title: str, caption: str, *keys: str) -> Figure:
        def draw(canvas: "matplotlib.figure.Figure") -> None:
            axes = panels(canvas, len(keys), sharex=True, sharey=True)
            for ax, key in zip(axes, keys, strict=True):
                runs, exact = results[key], {"proximal filter": results["filter"]}
                sweep(ax, rows, runs, f"{len(runs)} step sizes", slot=_SLOTS[key])
                curves(ax, rows, exact, slots={"proximal filter": 2})
                ax.set_title(titles[key])
            label_panels(axes, "rows seen, $k$", "relative error $E_k$")

        numbers = {key: results[key] for key in ("settings", "seed", "rows", "gamma", *keys, "filter")}
        return Figure(name, title, caption, numbers, draw, size=(7.2, 3.6), narrow_height=5.2)

    return [
        figure(
            "fig1a-ridge",
            "PIPG and IPG over step sizes",
            "The relative error of every run; each thin line is one step size. The proximal filter, which has no step "
            "size, is the same in both panels. In the paper: Fig. 1(a).",
            "pipg",
            "ipg",
        ),
        figure(
            "ridge-constant-step",
            "IPG with a constant step",
            "Not in the paper: the runs that it leaves out, and those with a decaying step. Here γλ is at most "
            f"{results['gamma'].max() * s['lam']:.3g}. The step on g is explicit: above γλ = 2 a run can diverge.",
            "constant",
            "ipg",
        ),
    ]


def conclusions(results: Results) -> list[str]:
    """The conclusions from the numbers, in one or two sentences each."""
    found, n_gammas = _statistics(results), len(results["gamma"])
    pipg, ipg, constant = found["pipg"], found["ipg"], found["constant"]
    less = "less" if pipg["ratio"] < ipg["ratio"] else "no less"
    diverged = int((~(results["constant"].max(axis=1) <= 2)).sum())
    rows, exact, d = results["rows"], results["filter"], results["settings"]["d"]
    near = (rows > d / 2) & (rows < 2 * d)
    peaks = near[1:] & (np.diff(exact) > 0.1 * exact[:-1])
    interpolation = (
        f" Near k = d = {d} rows, the minimiser nearly interpolates the noise, and its error rises to "
        f"{exact[1:][peaks].max():.3g}."
        if peaks.any()
        else ""
    )
    return [
        f"PIPG depends {less} on γ than IPG: over the {n_gammas} step sizes, its final errors differ by a factor of "
        f"{pipg['ratio']:.3g}, those of IPG by {ipg['ratio']:.3g} (after {found['early']:,} rows: "
        f"{pipg['early_ratio']:.3g} and {ipg['early_ratio']:.3g}).",
        f"PIPG reaches twice the lowest final error ({found['level']:.3g}) in fewer rows than IPG with the same γ for "
        f"{found['sooner']} of {n_gammas} step sizes; {pipg['reached']} runs of PIPG reach it, and {ipg['reached']} of "
        "IPG.",
        f"The median final error of PIPG is {pipg['middle']:.3g}, and the final error of the proximal filter is "
        f"{results['filter'][-1]:.3g}. In closed form, argmin Σ f + g has the error {results['ridge_once']:.3g}, and "
        "argmin Σ f + n g, which counts g once per row as the recursion does, has the error "
        f"{results['ridge_every_row']:.3g}.{interpolation}",
        f"With a constant step, {diverged} of {n_gammas} runs of IPG diverge (an error above 2, or not finite; the "
        f"largest recorded error is {results['constant'].max():.3g}). From row {found['late']:,} to the end the error "
        f"changes by a factor of {constant['late_change']:.3g} (median), with a decaying step by "
        f"{ipg['late_change']:.3g}. The final errors are between {constant['lowest']:.3g} and "
        f"{constant['highest']:.3g}, and {constant['reached']} of {n_gammas} runs reach {found['level']:.3g}.",
    ]


def _statistics(results: Results) -> dict[str, Any]:
    """The numbers in the table and the conclusions."""
    rows = results["rows"]
    early, late = np.searchsorted(rows, results["settings"]["n"] / np.array([100, 10])).tolist()
    level = 2 * min(results["pipg"][:, -1].min(), results["ipg"][:, -1].min())
    first = {key: _first_true(results[key] <= level) for key in _SLOTS}
    found: dict[str, Any] = {"early": int(rows[early]), "late": int(rows[late]), "level": level}
    found["sooner"] = int((first["pipg"] < first["ipg"]).sum())
    for key in _SLOTS:
        errors = results[key]
        found[key] = {
            "lowest": errors[:, -1].min(),
            "middle": np.median(errors[:, -1]),
            "highest": errors[:, -1].max(),
            "ratio": errors[:, -1].max() / errors[:, -1].min(),
            "early_ratio": errors[:, early].max() / errors[:, early].min(),
            "late_change": np.median(errors[:, -1] / errors[:, late]),
            "reached": int(np.isfinite(first[key]).sum()),
        }
    return found


def _first_true(reached: np.ndarray) -> np.ndarray:
    """The index of the first True in each row; infinite for a row without one."""
    return np.where(reached.any(axis=1), reached.argmax(axis=1), np.inf)


def _settings_text(results: Results) -> str:
    s, gammas = results["settings"], results["gamma"]
    return (
        f"d = {s['d']}, n = {s['n']:,}, Gaussian x and θ*, noise variance 1, λ = {s['lam']:g}; {len(gammas)} values of "
        f"γ from {gammas[0]:g} to {gammas[-1]:g}; seed {results['seed']}. The paper does not state V₀: here "
        f"V₀ = {s['v0']:g} I. The proximal filter counts g once, as the objective does, and has no prior."
    )
