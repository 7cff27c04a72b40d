"""The structured filter on an accelerator: the time of a row, for networks of 10^3 to 10^7 parameters.

python -m benchmarks.large.accelerator [FILE] prints one JSON object, and writes it to FILE.
"""

import json
import platform
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kalprox as kp
from benchmarks.table import grid

INPUTS, HIDDEN, RANKS, ROWS = 20, (64, 256, 1000, 3000), (10, 50), 64
SECONDS = 5.0  # of steps that are timed, after those that compile


def network(hidden: int) -> tuple[Any, Callable[..., Any]]:
    """Return the first weights of a network with two hidden layers, and the network."""
    rng = np.random.default_rng(0)
    sizes = (INPUTS, hidden, hidden, 1)
    weights = [
        (rng.normal(size=(b, a)).astype(np.float32) / a**0.5, np.zeros(b, np.float32)) for a, b in pairwise(sizes)
    ]

    def apply(weights: Any, x: Any) -> Any:
        for W, b in weights[:-1]:
            x = jnp.tanh(W @ x + b)
        W, b = weights[-1]
        return (W @ x + b)[0]

    return weights, apply


def measure(hidden: int, rank: int) -> dict[str, Any]:
    """Return the number of parameters, seconds to compile, and microseconds a row in blocks of 64 rows.

    Once step by step, each of which the host looks at for errors, and once in a loop that is compiled as a whole.
    """
    weights, apply = network(hidden)
    model = kp.models.Function(apply, params=weights)
    theta = jnp.asarray(model.flatten(weights))
    alg = kp.proximal_filter(model, kp.regularizers.Zero(), gamma=100.0, structure=kp.structures.LowRank(rank))
    state, rows = alg.init(theta, jnp.float32(1 / INPUTS)), ROWS
    rng = np.random.default_rng(1)
    blocks = []
    for _ in range(40):
        X = rng.normal(size=(rows, INPUTS)).astype(np.float32)
        y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=rows)
        blocks.append((jnp.asarray(X), jnp.asarray(y, jnp.float32)))
    start = time.perf_counter()
    state = _stepped(alg, state, blocks[0])
    first = time.perf_counter() - start
    for block in blocks[1:4]:
        state = _stepped(alg, state, block)
    start, taken = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS and taken < len(blocks) - 4:
        state = _stepped(alg, state, blocks[4 + taken])
        taken += 1
    elapsed = time.perf_counter() - start
    in_loop = _looped(alg, state, blocks[4:])
    X = rng.normal(size=(200, INPUTS)).astype(np.float32)
    error = float(jnp.sqrt(jnp.mean((state.predict(jnp.asarray(X)).mean - jnp.sin(X[:, 0])) ** 2)))
    return {
        "parameters": int(theta.size),
        "rank": rank,
        "rows of a block": rows,
        "compile and first step, s": round(first, 2),
        "µs a row": round(1e6 * elapsed / taken / rows, 1),
        "in a compiled loop": round(1e6 * in_loop / rows, 1),
        "error": round(error, 3),
    }


def parts(found: dict[str, Any]) -> dict[str, str]:
    """Return the table of a file that `main` has written, as Markdown."""
    names = [
        "parameters",
        "rank",
        "rows of a block",
        "compile and first step, s",
        "µs a row",
        "in a compiled loop",
        "error",
    ]
    rows = [[f"{run[name]:,}" for name in names] for run in found["runs"]]
    return {"accelerator": f"{found['device']}, JAX {found['jax']}.\n\n{grid(names, rows)}"}


def _looped(alg: Any, state: Any, blocks: list[Any]) -> float:
    """Return the seconds of a block in one program for all blocks, which the host does not look at on the way."""
    X, y = (jnp.stack(arrays) for arrays in zip(*blocks, strict=True))
    loop = jax.jit(lambda state: jax.lax.scan(lambda s, block: (alg.step(s, *block), None), state, (X, y))[0])
    jax.block_until_ready(loop(state).data.mean)
    start = time.perf_counter()
    jax.block_until_ready(loop(state).data.mean)
    return (time.perf_counter() - start) / len(blocks)


def _stepped(alg: Any, state: Any, block: Any) -> Any:
    state = alg.step(state, *block)
    jax.block_until_ready(state.data.mean)
    return state


def main() -> None:
    """Measure every network and rank on the device that JAX uses."""
    found: dict[str, Any] = {"device": str(jax.devices()[0].device_kind), "python": platform.python_version()}
    found["jax"], found["runs"] = jax.__version__, []
    for hidden in HIDDEN:
        for rank in RANKS:
            try:
                found["runs"].append(measure(hidden, rank))
            except Exception as error:  # one that does not fit into the memory does not end the others
                found["runs"].append(
                    {"hidden": hidden, "rank": rank, "error": f"{type(error).__name__}: {error}"[:300]}
                )
            print(json.dumps(found["runs"][-1], ensure_ascii=False), flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
