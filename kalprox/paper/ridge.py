"""Section IV-A, Fig. 1(a): ridge regression, the error along the rows for 40 step sizes.

The paper's recursion and IPG in the metric I with a decaying step, as there; beside them IPG with a
constant step, which the paper leaves out because it "diverges", and the proximal filter.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import kalprox as kp
from kalprox._arrays import Array
from kalprox.pages import Figure, Section, Table
from kalprox.pages.plots import curves, sweep
from kalprox.paper import problems
from kalprox.paper.cache import Results, Task, cached_all

if TYPE_CHECKING:
    import matplotlib.figure

    from kalprox.algorithms.base import Algorithm  # not loaded here: it imports JAX, which only the workers need

__all__ = ["Settings", "compute", "conclusions", "figures", "marks", "relative_error", "section"]

_AT_ONCE = 5  # step sizes in one vmap: a task of its own, so that an interrupted sweep loses little
_FAR = 10**9  # record_every: kp.run compiles the same loop for every stretch, and records nothing inside


@dataclass(frozen=True)
class Settings:
    """What the paper says, and V0, which it does not: here v0 * I. g is lam/2 ||theta||^2."""

    n: int = 100_000
    d: int = 100
    lam: float = 0.01
    gammas: tuple[float, ...] = tuple(np.linspace(0.005, 0.2, 40).tolist())  # 0.005, 0.010, ..., 0.200
    decay: float = 0.51  # IPG's step is gamma / k^decay
    v0: float = 1.0
    points: int = 61  # where the error is looked at: log-spaced

    @classmethod
    def full(cls) -> Self:
        """The paper's size."""
        return cls()

    @classmethod
    def quick(cls) -> Self:
        """All 40 step sizes, fewer and shorter rows: seconds."""
        return cls(n=10_000, d=40)


def marks(n: int, points: int, first: int = 1) -> np.ndarray:
    """At most `points` row counts from `first` to n, log-spaced.

    >>> marks(1000, 4)
    array([   1,   10,  100, 1000])
    """
    return np.unique(np.geomspace(min(first, n), n, points).round().astype(int))


def relative_error(means: Array, theta: Array) -> Any:
    """E = ||mean - theta|| / ||theta||, over the last axis."""
    return np.linalg.norm(np.asarray(means) - theta, axis=-1) / np.linalg.norm(theta)


def compute(
    settings: Settings,
    seed: int,
    folder: str | PathLike[str],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Results:
    """The errors of all runs on the data of one seed, from the cache in `folder` where they are there.

    Keys: rows (m,); gamma (G,); pipg, ipg, constant (G, m); filter (m,); ridge_once and ridge_every_row,
    the errors of the closed forms argmin sum f_k + g and argmin sum f_k + n g; settings and seed.
    """
    common = {name: getattr(settings, name) for name in ("n", "d", "lam", "points")} | {"seed": seed}
    batches = [settings.gammas[i : i + _AT_ONCE] for i in range(0, len(settings.gammas), _AT_ONCE)]
    tasks = [Task("ridge-pipg", {**common, "gammas": batch, "v0": settings.v0}, _pipg) for batch in batches]
    for decay in (settings.decay, 0.0):
        tasks.append(Task("ridge-ipg", {**common, "gammas": settings.gammas, "decay": decay}, _ipg))
    tasks.append(Task("ridge-exact", common, _exact))
    *pipg, ipg, constant, exact = cached_all(folder, tasks, jobs=jobs, progress=progress)
    return {
        "settings": asdict(settings),
        "seed": seed,
        "rows": marks(settings.n, settings.points),
        "gamma": np.array(settings.gammas),
        "pipg": np.concatenate([batch["errors"] for batch in pipg]),
        "ipg": ipg["errors"],
        "constant": constant["errors"],
        **exact,
    }


def _pipg(s: Mapping[str, Any]) -> Results:
    """The paper's recursion, O(d^3) a row and step size."""
    return _sweep(s, partial(kp.pipg, kp.models.Linear(), kp.regularizers.Ridge(s["lam"])), s["v0"])


def _ipg(s: Mapping[str, Any]) -> Results:
    """The same without a covariance, V = I: O(d) a row and step size."""
    return _sweep(s, partial(kp.ipg, kp.models.Linear(), kp.regularizers.Ridge(s["lam"]), decay=s["decay"]), None)


def _sweep(s: Mapping[str, Any], algorithm: "Callable[..., Algorithm]", v0: Any) -> Results:
    """The errors for all step sizes at once, shape (G, m), in float64."""
    import jax
    import jax.numpy as jnp

    rows = problems.ridge(s["n"], s["d"], s["seed"])

    def start(gamma: Array) -> Any:
        return algorithm(gamma=gamma).init(jnp.zeros(s["d"]), v0)

    def go_on(X: Array, y: Array, gamma: Array, state: Any) -> Any:
        return kp.run(algorithm(gamma=gamma), state, X, y, record_every=_FAR).state

    errors = []
    with jax.enable_x64(True):
        gammas = jnp.asarray(s["gammas"])
        states = jax.vmap(start)(gammas)
        for X, y in _stretches(rows, s["points"]):
            states = jax.vmap(partial(go_on, X, y))(gammas, states)
            errors.append(relative_error(states.mean, rows.theta))
    return {"errors": np.stack(errors, axis=1)}


def _exact(s: Mapping[str, Any]) -> Results:
    """The proximal filter, and the two closed forms that the recursions could be compared with."""
    rows = problems.ridge(s["n"], s["d"], s["seed"])
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(s["lam"]))
    state, errors = alg.init(np.zeros(s["d"])), []
    for X, y in _stretches(rows, s["points"]):
        state = alg.step(state, X, y)
        errors.append(relative_error(state.mean, rows.theta))

    def closed_form(lam: float) -> float:
        solution = np.linalg.solve(rows.X.T @ rows.X + lam * np.eye(s["d"]), rows.X.T @ rows.y)
        return float(relative_error(solution, rows.theta))

    return {
        "filter": np.array(errors),
        "ridge_once": closed_form(s["lam"]),
        "ridge_every_row": closed_form(s["n"] * s["lam"]),
    }


def _stretches(rows: problems.Rows, points: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows from each mark to the next."""
    for start, stop in pairwise([0, *marks(len(rows.y), points)]):
        yield rows.X[start:stop], rows.y[start:stop]


def figures(results: Results) -> list[Figure]:
    """Fig. 1(a) with the proximal filter in it; and beside it the constant step that the paper leaves out."""
    rows, text = results["rows"], _settings_in_words(results)
    named = {
        "pipg": "PIPG",
        "ipg": f"IPG, step $\\gamma / k^{{{results['settings']['decay']:g}}}$",
        "constant": "IPG, constant step $\\gamma$",
    }

    def figure(name: str, title: str, caption: str, *keys: str) -> Figure:
        def draw(canvas: "matplotlib.figure.Figure") -> None:
            for ax, key in zip(canvas.subplots(1, len(keys), sharex=True, sharey=True), keys, strict=True):
                runs, exact = results[key], {"proximal filter": results["filter"]}
                sweep(ax, rows, runs, f"{len(runs)} step sizes", slot=_SLOTS[key], log_x=True, legend=None)
                curves(ax, rows, exact, log_x=True, slots={"proximal filter": 2}, legend="lower left")
                ax.set(title=named[key], xlabel="rows seen, $k$")
            canvas.axes[0].set_ylabel("relative error $E_k$")

        numbers = {key: results[key] for key in ("settings", "seed", "rows", "gamma", *keys, "filter")}
        return Figure(name, title, f"{caption} {text}", numbers, draw, size=(7.2, 3.6))

    return [
        figure(
            "fig1a-ridge",
            "Fig. 1(a): ridge regression, PIPG and IPG over step sizes",
            "The relative error of every run, one thin line per step size; the proximal filter is the same in both.",
            "pipg",
            "ipg",
        ),
        figure(
            "ridge-constant-step",
            "Not in the paper: IPG with a constant step",
            "The runs that the paper leaves out, beside the decaying step.",
            "constant",
            "ipg",
        ),
    ]


_SLOTS = {"pipg": 0, "ipg": 1, "constant": 3}


def section(results: Results) -> Section:
    """The experiment with its figures, in words whose numbers are the results'."""
    seen = _seen(results)
    text = _settings_in_words(results)
    rows = [
        [name, *(seen[key][column] for column in ("lowest", "highest", "early_ratio", "ratio", "reached"))]
        for name, key in (("PIPG", "pipg"), ("IPG, decaying step", "ipg"), ("IPG, constant step", "constant"))
    ]
    G = len(results["gamma"])
    table = Table(
        columns=[
            "method",
            "lowest last error",
            "highest last error",
            f"highest / lowest after {seen['early']:,} rows",
            "highest / lowest at the end",
            f"runs of {G} that reach {seen['level']:.3g}",
        ],
        rows=rows,
        caption=f"Over the {G} step sizes. {seen['level']:.3g} is twice the lowest last error of PIPG and IPG.",
    )
    return Section("Ridge regression (Fig. 1a)", text, figures=figures(results), tables=[table])


def conclusions(results: Results) -> list[str]:
    """What the numbers say, one sentence or two each."""
    seen, G = _seen(results), len(results["gamma"])
    pipg, ipg, constant = seen["pipg"], seen["ipg"], seen["constant"]
    steadier = "less" if pipg["ratio"] < ipg["ratio"] else "no less"
    grown = int((~(results["constant"].max(axis=1) <= 2)).sum())
    rows, exact, d = results["rows"], results["filter"], results["settings"]["d"]
    near = (rows > d / 2) & (rows < 2 * d)
    peaks = near[1:] & (np.diff(exact) > 0.1 * exact[:-1])
    interpolates = (
        f" Near k = d = {d} rows the minimiser nearly interpolates the noise, and its error rises to "
        f"{exact[1:][peaks].max():.3g} on the way."
        if peaks.any()
        else ""
    )
    return [
        f"PIPG depends on γ {steadier} than IPG: over the {G} step sizes its last errors differ by a factor of "
        f"{pipg['ratio']:.3g}, IPG's by {ipg['ratio']:.3g} (after {seen['early']:,} rows: {pipg['early_ratio']:.3g} "
        f"and {ipg['early_ratio']:.3g}).",
        f"PIPG comes within twice the lowest last error ({seen['level']:.3g}) in fewer rows than IPG with the same γ "
        f"for {seen['sooner']} of {G} step sizes; {pipg['reached']} of its runs come there, and {ipg['reached']} of "
        "IPG's.",
        f"PIPG ends at {pipg['middle']:.3g} (median), the proximal filter at {results['filter'][-1]:.3g}. In closed "
        f"form, argmin Σ f_k + g has the error {results['ridge_once']:.3g}, and argmin Σ f_k + n g, which counts g "
        f"once per row as the recursion does, {results['ridge_every_row']:.3g}.{interpolates}",
        f"With a constant step {grown} of {G} runs of IPG diverge (an error above 2, or not finite; the largest "
        f"recorded is {results['constant'].max():.3g}). From row {seen['late']:,} to the end the error changes by a "
        f"factor of {constant['late_change']:.3g} (median), with a decaying step by {ipg['late_change']:.3g}; it ends "
        f"at {constant['lowest']:.3g} to {constant['highest']:.3g}, and {constant['reached']} of {G} runs ever reach "
        f"{seen['level']:.3g}.",
    ]


def _seen(results: Results) -> dict[str, Any]:
    """The numbers that text and table speak of."""
    rows = results["rows"]
    early, late = np.searchsorted(rows, results["settings"]["n"] / np.array([100, 10])).tolist()
    level = 2 * min(results["pipg"][:, -1].min(), results["ipg"][:, -1].min())
    first = {key: _first(results[key] <= level) for key in _SLOTS}
    seen: dict[str, Any] = {"early": int(rows[early]), "late": int(rows[late]), "level": level}
    seen["sooner"] = int((first["pipg"] < first["ipg"]).sum())
    for key in _SLOTS:
        errors = results[key]
        seen[key] = {
            "lowest": errors[:, -1].min(),
            "middle": np.median(errors[:, -1]),
            "highest": errors[:, -1].max(),
            "ratio": errors[:, -1].max() / errors[:, -1].min(),
            "early_ratio": errors[:, early].max() / errors[:, early].min(),
            "late_change": np.median(errors[:, -1] / errors[:, late]),
            "reached": int(np.isfinite(first[key]).sum()),
        }
    return seen


def _first(reached: np.ndarray) -> np.ndarray:
    """The first mark at which each run is there; infinite for one that never is."""
    return np.where(reached.any(axis=1), reached.argmax(axis=1), np.inf)


def _settings_in_words(results: Results) -> str:
    s, gammas = results["settings"], results["gamma"]
    return (
        f"d = {s['d']}, n = {s['n']:,}, x and θ* Gaussian, unit noise, λ = {s['lam']:g}; {len(gammas)} values of γ "
        f"from {gammas[0]:g} to {gammas[-1]:g}; seed {results['seed']}. The paper does not state V₀: here it is "
        f"{s['v0']:g} I. The proximal filter counts g once, as in the problem that is posed, and has no prior and no "
        "step size."
    )
