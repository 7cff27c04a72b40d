"""Section IV-A, Fig. 1(a): ridge regression, the error along the rows for 40 step sizes.

As in the paper: its recursion, and IPG with the metric I and a decaying step. In addition: IPG with a constant step,
which the paper leaves out because it "diverges", and the proximal filter.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import kalprox as kp
from kalprox.base.arrays import Array
from kalprox.paper import problems
from kalprox.paper.cache import Compute, Results, Task
from kalprox.paper.problems import after, closed_form, record_points, relative_error, stretches

if TYPE_CHECKING:
    from kalprox.algorithms.base import Algorithm

__all__ = ["QUICK", "Settings", "compute"]

_BATCH = 5  # step sizes in one vmap, which is one task, so that an interrupted sweep loses little


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
    batches = [settings.gammas[i : i + _BATCH] for i in range(0, len(settings.gammas), _BATCH)]
    tasks = [Task("ridge-pipg", {**common, "gammas": batch, "v0": settings.v0}, _pipg) for batch in batches]
    for decay in (settings.decay, 0.0):
        tasks.append(Task("ridge-ipg", {**common, "gammas": settings.gammas, "decay": decay}, _ipg))
    *pipg, ipg, constant, exact = results([*tasks, Task("ridge-exact", common, _exact)])
    return exact | {
        "settings": asdict(settings),
        "seed": seed,
        "rows": record_points(settings.n, settings.points),
        "gamma": np.array(settings.gammas),
        "pipg": np.concatenate([batch["errors"] for batch in pipg]),
        "ipg": ipg["errors"],
        "constant": constant["errors"],
    }


def _pipg(s: Mapping[str, Any]) -> Results:
    """The recursion of the paper; O(d^3) per row and step size."""
    return _sweep(s, partial(kp.pipg, kp.models.Linear(), kp.regularizers.Ridge(s["lam"])), s["v0"])


def _ipg(s: Mapping[str, Any]) -> Results:
    """IPG, with the metric V = I; O(d) per row and step size."""
    return _sweep(s, partial(kp.ipg, kp.models.Linear(), kp.regularizers.Ridge(s["lam"]), decay=s["decay"]), None)


def _sweep(s: Mapping[str, Any], algorithm: "Callable[..., Algorithm]", v0: Any) -> Results:
    """The errors for all step sizes at once, of shape (G, m), in float64."""
    import jax
    import jax.numpy as jnp

    rows = problems.ridge(s["n"], s["d"], s["seed"])

    def advance(X: Array, y: Array, gamma: Array, state: Any) -> Any:
        return after(algorithm(gamma=gamma), state, X, y)

    errors = []
    with jax.enable_x64(True):
        gammas = jnp.asarray(s["gammas"])
        states = jax.vmap(lambda gamma: algorithm(gamma=gamma).init(jnp.zeros(s["d"]), v0))(gammas)
        for X, y in stretches(rows, s["points"]):
            states = jax.vmap(partial(advance, X, y))(gammas, states)
            errors.append(relative_error(states.mean, rows.theta))
    return {"errors": np.stack(errors, axis=1)}


def _exact(s: Mapping[str, Any]) -> Results:
    """The proximal filter, and the two closed forms with which the recursions are compared."""
    rows = problems.ridge(s["n"], s["d"], s["seed"])
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(s["lam"]))
    state, errors = alg.init(np.zeros(s["d"])), []
    for X, y in stretches(rows, s["points"]):
        state = alg.step(state, X, y)
        errors.append(relative_error(state.mean, rows.theta))
    return {
        "filter": np.array(errors),
        "ridge_once": relative_error(closed_form(rows, s["lam"]), rows.theta),
        "ridge_every_row": relative_error(closed_form(rows, s["n"] * s["lam"]), rows.theta),
    }
