"""(c) The paper's sweep: the literal recursion on the ridge problem with 40 step sizes, all at once or one by one.

Times are per row and step size. `error` is the largest relative distance to the results of numba.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import FLOOR, Case, Data, Peer, Settings
from benchmarks.linear import floor

LAM = 0.01
GAMMAS = np.linspace(0.005, 0.2, 40)


def cases() -> list[Case]:
    sizes = [(20, 5000), (100, 1000)]
    return [Case("sweep of 40 step sizes", {"d": d, "n": n, "times": len(GAMMAS)}) for d, n in sizes]


def data(settings: Settings) -> Data:
    from kalprox.paper import problems

    rows = problems.ridge(settings["n"], settings["d"], 0)
    return {"X": rows.X, "y": rows.y, "theta": rows.theta}


def judge(settings: Settings, data: Data, peer: Peer, rows: int, answer: Any) -> dict[str, Any]:
    if peer.name == FLOOR:
        return {}
    ours = np.array(_numba(data, settings)())
    return {"error": float((np.linalg.norm(answer - ours, axis=1) / np.linalg.norm(ours, axis=1)).max())}


def _many_floors(data: Data, settings: Settings) -> Callable[[], Any]:
    once = floor(data, settings)
    return lambda: sum(once() for _ in GAMMAS)


def _numba(data: Data, settings: Settings) -> Callable[[], Any]:
    from benchmarks.numba_pipg import recursion

    return lambda: [recursion(data["X"], data["y"], gamma, 0.0, LAM, 0.0, 1.0, False) for gamma in GAMMAS]


def _algorithm() -> Any:
    import kalprox as kp

    return kp, partial(kp.pipg, kp.models.Linear(), kp.regularizers.Ridge(LAM))


def _loop(data: Data, settings: Settings) -> Callable[[], Any]:
    kp, algorithm = _algorithm()

    def one(gamma: float) -> Any:
        alg = algorithm(gamma=gamma)
        start = alg.init(np.zeros(settings["d"]), 1.0)
        return kp.run(alg, start, data["X"], data["y"], record_every=10**9).state.mean

    return lambda: np.stack([one(gamma) for gamma in GAMMAS])


def _vmap(data: Data, settings: Settings) -> Callable[[], Any]:
    kp, algorithm = _algorithm()
    import jax
    import jax.numpy as jnp

    def one(X: Any, y: Any, gamma: Any) -> Any:
        alg = algorithm(gamma=gamma)
        return kp.run(alg, alg.init(jnp.zeros(settings["d"]), 1.0), X, y, record_every=10**9).state.mean

    def go() -> Any:
        with jax.enable_x64(True):
            X, y = jnp.asarray(data["X"]), jnp.asarray(data["y"])
            return np.asarray(jax.vmap(partial(one, X, y))(jnp.asarray(GAMMAS)))

    return go


PEERS = [
    Peer(FLOOR, "scipy", _many_floors),
    Peer("kalprox pipg, jax.vmap over gamma", "kalprox", _vmap),
    Peer("kalprox pipg, a loop over gamma", "kalprox", _loop),
    Peer("numba, a loop over gamma", "numba", _numba),
]
