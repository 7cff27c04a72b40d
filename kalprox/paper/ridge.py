"""Section IV-A, Fig. 1(a): ridge regression, the error along the rows for 40 step sizes.

As in the paper: its recursion, and IPG with the metric I and a decaying step. In addition: IPG with a constant step,
which the paper leaves out because it "diverges", and the proximal filter.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import kalprox as kp
from kalprox.base.arrays import Array
from kalprox.paper import problems
from kalprox.paper.cache import Results, Task, cached_all
from kalprox.paper.problems import record_points, relative_error

if TYPE_CHECKING:
    from kalprox.algorithms.base import Algorithm

__all__ = ["Settings", "compute"]

_BATCH = 5  # step sizes in one vmap, which is one task, so that an interrupted sweep loses little
_NEVER = 10**9  # record_every: kp.run records nothing, and compiles one loop for all lengths


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

    @classmethod
    def full(cls) -> Self:
        """The sizes of the paper."""
        return cls()

    @classmethod
    def quick(cls) -> Self:
        """All 40 step sizes on a smaller problem, which takes seconds."""
        return cls(n=10_000, d=40)


def compute(
    settings: Settings,
    seed: int,
    folder: str | PathLike[str],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Results:
    """Compute the errors of all runs on the data of one seed, or read them from the cache.

    Parameters
    ----------
    settings : Settings
    seed : int
    folder, jobs, progress
        See `kalprox.paper.cache.cached_all`.

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
    tasks.append(Task("ridge-exact", common, _exact))
    *pipg, ipg, constant, exact = cached_all(folder, tasks, jobs=jobs, progress=progress)
    return {
        "settings": asdict(settings),
        "seed": seed,
        "rows": record_points(settings.n, settings.points),
        "gamma": np.array(settings.gammas),
        "pipg": np.concatenate([batch["errors"] for batch in pipg]),
        "ipg": ipg["errors"],
        "constant": constant["errors"],
        **exact,
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

    def init(gamma: Array) -> Any:
        return algorithm(gamma=gamma).init(jnp.zeros(s["d"]), v0)

    def advance(X: Array, y: Array, gamma: Array, state: Any) -> Any:
        return kp.run(algorithm(gamma=gamma), state, X, y, record_every=_NEVER).state

    errors = []
    with jax.enable_x64(True):
        gammas = jnp.asarray(s["gammas"])
        states = jax.vmap(init)(gammas)
        for X, y in _between_records(rows, s["points"]):
            states = jax.vmap(partial(advance, X, y))(gammas, states)
            errors.append(relative_error(states.mean, rows.theta))
    return {"errors": np.stack(errors, axis=1)}


def _exact(s: Mapping[str, Any]) -> Results:
    """The proximal filter, and the two closed forms with which the recursions are compared."""
    rows = problems.ridge(s["n"], s["d"], s["seed"])
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(s["lam"]))
    state, errors = alg.init(np.zeros(s["d"])), []
    for X, y in _between_records(rows, s["points"]):
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


def _between_records(rows: problems.Rows, points: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows from each record to the next."""
    for start, stop in pairwise([0, *record_points(len(rows.y), points)]):
        yield rows.X[start:stop], rows.y[start:stop]
