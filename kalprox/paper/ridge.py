"""Section IV-A, Fig. 1(a): ridge regression, the error along the rows for 40 step sizes.

As in the paper: its recursion, and IPG with the metric I and a decaying step. In addition: IPG with a constant step,
which the paper leaves out because it "diverges", and the proximal filter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import kalprox as kp
from kalprox.algorithms.base import Algorithm
from kalprox.display.axes import label_panels, panels
from kalprox.display.plots import curves, sweep
from kalprox.pages import Figure, Section, Table
from kalprox.paper import problems
from kalprox.paper.cache import Compute, Results, Task
from kalprox.paper.problems import closed_form, first_at, record_points, relative_error, states_along

if TYPE_CHECKING:
    import matplotlib.figure


_SLOTS = {"pipg": 0, "ipg": 1, "constant": 3}


@dataclass(frozen=True)
class Settings:
    """The settings of the paper, and V0 = v0 * I, which the paper does not state. g is lam/2 ||theta||^2."""

    n: int = 100_000
    d: int = 100
    lam: float = 0.01
    gammas: tuple[float, ...] = tuple(k / 200 for k in range(1, 41))  # 0.005, 0.010, ..., 0.200
    decay: float = 0.51  # the step of IPG is gamma / k^decay
    v0: float = 1.0
    points: int = 61  # logarithmically spaced numbers of rows at which the error is recorded


QUICK = Settings(n=10_000, d=40)  # all 40 step sizes on a smaller problem, which takes seconds


def compute(settings: Settings, seed: int, results: Compute) -> Results:
    """Compute the errors of all runs on the data of one seed, or read them from the cache.

    Parameters
    ----------
    settings : Settings
    seed : int
    results : callable
        Returns the results of tasks: `kalprox.paper.cache.cached_all` in a folder.

    Returns
    -------
    dict
        rows : (m,), the numbers of rows at which errors are recorded; gamma : (G,), the step sizes; pipg, ipg,
        constant : (G, m), the relative errors; filter : (m,); ridge_once, ridge_every_row : the errors of the closed
        forms argmin sum f_k + g and argmin sum f_k + n g; settings and seed.
    """
    common = {name: getattr(settings, name) for name in ("n", "d", "lam", "points")} | {"seed": seed}
    tasks = [  # of the recursion of the paper each step size is one, so that an interrupted sweep loses little
        *(Task("ridge-pipg", {**common, "gamma": gamma, "v0": settings.v0}, _pipg) for gamma in settings.gammas),
        *(Task("ridge-ipg", {**common, "gammas": settings.gammas, "decay": d}, _ipg) for d in (settings.decay, 0.0)),
        Task("ridge-exact", common, _exact),
    ]
    *pipg, ipg, constant, exact = results(tasks)
    return exact | {
        "settings": asdict(settings),
        "seed": seed,
        "rows": record_points(settings.n, settings.points),
        "gamma": np.array(settings.gammas),
        "pipg": np.concatenate([run["errors"] for run in pipg]),
        "ipg": ipg["errors"],
        "constant": constant["errors"],
    }


def _pipg(s: Mapping[str, Any]) -> Results:
    """The recursion of the paper; O(d^3) per row."""
    return _errors([kp.pipg(kp.models.Linear(), kp.regularizers.Ridge(s["lam"]), gamma=s["gamma"])], s["v0"], s)


def _ipg(s: Mapping[str, Any]) -> Results:
    """IPG, with the metric V = I; O(d) per row and step size."""
    h, g = kp.models.Linear(), kp.regularizers.Ridge(s["lam"])
    return _errors((kp.ipg(h, g, gamma=gamma, decay=s["decay"]) for gamma in s["gammas"]), None, s)


def _exact(s: Mapping[str, Any]) -> Results:
    """The proximal filter, and the two closed forms with which the recursions are compared."""
    rows = problems.ridge(s["n"], s["d"], s["seed"])
    found = _errors([kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(s["lam"]))], None, s)
    return {
        "filter": found["errors"][0],
        "ridge_once": relative_error(closed_form(rows, s["lam"]), rows.theta),
        "ridge_every_row": relative_error(closed_form(rows, s["n"] * s["lam"]), rows.theta),
    }


def _errors(algorithms: Iterable[Algorithm], v0: float | None, s: Mapping[str, Any]) -> Results:
    """The errors of G algorithms along the rows, of shape (G, m)."""
    rows = problems.ridge(s["n"], s["d"], s["seed"])

    def errors(alg: Algorithm) -> list[Any]:
        states = states_along(alg, alg.init(np.zeros(s["d"]), v0), rows, s["points"])
        return [relative_error(state.mean, rows.theta) for state in states]

    return {"errors": np.array(list(map(errors, algorithms)))}


def section(results: Results) -> Section:
    """The experiment with its figures and a table."""
    found, s = _statistics(results), results["settings"]
    gammas, n_gammas = results["gamma"], len(results["gamma"])
    columns = {
        "lowest final error": "lowest",
        "highest final error": "highest",
        f"highest / lowest after {found['early']:,} rows": "early_ratio",
        "highest / lowest at the end": "ratio",
        f"runs, of {n_gammas}, that reach {found['level']:.3g}": "reached",
    }
    methods = {"PIPG": found["pipg"], "IPG, decaying step": found["ipg"], "IPG, constant step": found["constant"]}
    table = Table(
        ["method", *columns],
        [[name, *(numbers[column] for column in columns.values())] for name, numbers in methods.items()],
        f"Over the {n_gammas} step sizes. {found['level']:.3g} is twice the lowest final error of PIPG and IPG.",
    )
    text = (
        f"d = {s['d']}, n = {s['n']:,}, Gaussian x and θ*, noise variance 1, λ = {s['lam']:g}; {n_gammas} values of γ "
        f"from {gammas[0]:g} to {gammas[-1]:g}; seed {results['seed']}. The paper does not state V₀: here V₀ = "
        f"{s['v0']:g} I. The proximal filter counts g once, as the objective does, and has no prior."
    )
    return Section("Ridge regression (Fig. 1a)", text, _figures(results), [table])


def _figures(results: Results) -> list[Figure]:
    """Fig. 1(a), with the proximal filter added, and the constant step that the paper leaves out."""
    captions = {
        "fig1a-ridge": "The relative error of every run; each thin line is one step size. The proximal filter, which "
        "has no step size, is the same in both panels. In the paper: Fig. 1(a).",
        "ridge-constant-step": "Not in the paper: the runs that it leaves out, and those with a decaying step. Here γλ "
        f"is at most {results['gamma'].max() * results['settings']['lam']:.3g}. The step on g is explicit: above "
        "γλ = 2 a run can diverge.",
    }

    def figure(name: str, title: str, *keys: str) -> Figure:
        numbers = {key: results[key] for key in ("settings", "seed", "rows", "gamma", *keys, "filter")}
        draw = partial(_draw, results, keys)
        return Figure(name, title, captions[name], numbers, draw, size=(7.2, 3.6), narrow_height=5.2)

    return [
        figure("fig1a-ridge", "PIPG and IPG over step sizes", "pipg", "ipg"),
        figure("ridge-constant-step", "IPG with a constant step", "constant", "ipg"),
    ]


def _draw(results: Results, keys: tuple[str, ...], canvas: "matplotlib.figure.Figure") -> None:
    decaying = f"IPG, step $\\gamma / k^{{{results['settings']['decay']:g}}}$"
    titles = {"pipg": "PIPG", "ipg": decaying, "constant": "IPG, constant step $\\gamma$"}
    axes = panels(canvas, len(keys), sharex=True, sharey=True)
    for ax, key in zip(axes, keys, strict=True):
        rows, runs, exact = results["rows"], results[key], {"proximal filter": results["filter"]}
        sweep(ax, rows, runs, f"{len(runs)} step sizes", slot=_SLOTS[key])
        curves(ax, rows, exact, slots={"proximal filter": 2})
        ax.set_title(titles[key])
    label_panels(axes, "rows seen, $k$", "relative error $E_k$")


def conclusions(results: Results) -> list[str]:
    """The conclusions from the numbers, in one or two sentences each."""
    found, n_gammas = _statistics(results), len(results["gamma"])
    pipg, ipg, constant = found["pipg"], found["ipg"], found["constant"]
    less = "less" if pipg["ratio"] < ipg["ratio"] else "no less"
    diverged = int((~(results["constant"].max(axis=1) <= 2)).sum())
    rows, exact, d = results["rows"], results["filter"], results["settings"]["d"]
    peaks = (rows > d / 2) & (rows < 2 * d) & (np.diff(exact, prepend=np.inf) > 0.1 * np.roll(exact, 1))
    interpolation = f" Near k = d = {d} rows, the minimiser nearly interpolates the noise, and its error rises to "
    return [
        f"PIPG depends {less} on γ than IPG: over the {n_gammas} step sizes, its final errors differ by a factor of "
        f"{pipg['ratio']:.3g}, those of IPG by {ipg['ratio']:.3g} (after {found['early']:,} rows: "
        f"{pipg['early_ratio']:.3g} and {ipg['early_ratio']:.3g}).",
        f"PIPG reaches twice the lowest final error ({found['level']:.3g}) in fewer rows than IPG with the same γ for "
        f"{found['sooner']} of {n_gammas} step sizes; {pipg['reached']} runs of PIPG reach it, and {ipg['reached']} of "
        "IPG.",
        f"The median final error of PIPG is {pipg['middle']:.3g}, and the final error of the proximal filter is "
        f"{exact[-1]:.3g}. In closed form, argmin Σ f + g has the error {results['ridge_once']:.3g}, and argmin Σ f + "
        f"n g, which counts g once per row as the recursion does, has the error {results['ridge_every_row']:.3g}."
        + (f"{interpolation}{exact[peaks].max():.3g}." if peaks.any() else ""),
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
    found: dict[str, Any] = {"early": int(rows[early]), "late": int(rows[late]), "level": level}
    first = {}
    for key in _SLOTS:
        last = results[key][:, -1]
        first[key] = first_at(results[key], level)
        found[key] = {
            "lowest": last.min(),
            "middle": np.median(last),
            "highest": last.max(),
            "ratio": last.max() / last.min(),
            "early_ratio": results[key][:, early].max() / results[key][:, early].min(),
            "late_change": np.median(last / results[key][:, late]),
            "reached": int(np.isfinite(first[key]).sum()),
        }
    return found | {"sooner": int((first["pipg"] < first["ipg"]).sum())}
