"""kalprox on one accelerator: `python -m benchmarks.gpu OUT.json`. On a CPU it runs smaller sizes.

Every rate is compared with the ceiling measured on the device in the same run: that of a large matrix product in the
same precision for folds, that of a copy of memory for sweeps and fleets.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kalprox as kp

SMALL = jax.default_backend() == "cpu"


def timed(function: Callable, *args: Any, times: int = 3) -> tuple[float, float, Any]:
    """Return the seconds of the first call and of the fastest of the next few, and the result."""
    start = time.perf_counter()
    out = jax.block_until_ready(function(*args))
    first = time.perf_counter() - start
    best = np.inf
    for _ in range(times):
        start = time.perf_counter()
        out = jax.block_until_ready(function(*args))
        best = min(best, time.perf_counter() - start)
    return first, best, out


def ceilings() -> dict[str, float]:
    """Measure the TFLOP/s of a matrix product in full precision and the TB/s of a copy."""
    found = {}
    for dtype in ("float64", "float32"):
        n = 1024 if SMALL else 16384
        A = jax.random.normal(jax.random.key(0), (n, n), dtype)
        _, seconds, _ = timed(jax.jit(partial(jnp.matmul, precision="highest")), A, A)
        found[dtype] = 2 * n**3 / seconds / 1e12
    a = jnp.ones(1 << (24 if SMALL else 30), jnp.float32)
    _, seconds, _ = timed(jax.jit(lambda a: a + 1), a)
    found["copy"] = 2 * a.nbytes / seconds / 1e12
    return found


def folds(ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """Measure a dense fold of n rows, for large d, into information that has rows already."""
    found = []
    for d in (500, 1000) if SMALL else (10_000, 20_000):
        for dtype in ("float64", "float32"):
            n = 2 * (d + 2) + 512
            key = jax.random.key(d)
            X = jax.random.normal(key, (n, d), dtype)
            y = X[:, 0] + jax.random.normal(jax.random.fold_in(key, 1), (n,), dtype)
            info = jax.block_until_ready(kp.Information.from_rows(X, y))
            first, seconds, out = timed(lambda info=info, X=X, y=y: info.fold(X, y).T, times=2)
            p = d + 2
            flops = 2 * n * p**2 + 2 * p**3 + p**3 / 3  # X'X + T'T as products, and Cholesky
            row = {"d": d, "dtype": dtype, "rows": n, "first_s": first, "seconds": seconds}
            row |= {"tflops": flops / seconds / 1e12, "share": flops / seconds / 1e12 / ceiling[dtype]}
            if d <= 10_000:
                half = kp.Information.from_rows(np.asarray(X[:, :200], np.float64), np.asarray(y, np.float64))
                ours = np.asarray(kp.Information.from_rows(X[:, :200], y).solve(), np.float64)
                row["error"] = float(np.linalg.norm(ours - half.solve()) / np.linalg.norm(half.solve()))
            found.append(row)
            del X, y, info, out
            print(row, flush=True)
    return found


def sweep(d: int, dtype: str, copy: float) -> dict[str, Any]:
    """Measure the literal recursion of the sigmoid problem for 40 step sizes at once."""
    n, gammas = (200 if SMALL else 4000), np.logspace(-2, 0, 40).astype(dtype)
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(n, d)), dtype)
    y = jnp.asarray(1 / (1 + np.exp(-np.asarray(X) @ rng.normal(size=d))) + rng.normal(size=n), dtype)

    @jax.jit
    def all_of_them(gammas: jax.Array, X: jax.Array, y: jax.Array) -> jax.Array:
        def one(gamma: jax.Array) -> jax.Array:
            alg = kp.pipg(kp.models.GLM("sigmoid"), kp.regularizers.Ridge(1e-3), gamma=gamma)
            state = alg.init(jnp.zeros(d, dtype), jnp.asarray(0.1, dtype))
            return kp.run(alg, state, X, y, record_every=len(X)).state.mean

        return jax.vmap(one)(gammas)

    first, seconds, out = timed(all_of_them, jnp.asarray(gammas), X, y)
    bytes_a_row = 40 * 6 * d * d * np.dtype(dtype).itemsize  # each of the three products reads and writes V
    return {
        "d": d,
        "dtype": dtype,
        "rows": n,
        "first_s": first,
        "us_a_row": seconds / n * 1e6,
        "share_of_copy": bytes_a_row * n / seconds / 1e12 / copy,
        "finite": bool(jnp.isfinite(out).all()),
    }


def fleet(filters: int, d: int, dtype: str, copy: float) -> dict[str, Any]:
    """Measure thousands of small proximal filters under vmap, each with its own rows: one block, then the estimates."""
    b = 256
    key = jax.random.key(0)
    X = jax.random.normal(key, (filters, b, d), dtype)
    theta = jax.random.normal(jax.random.fold_in(key, 1), (filters, d), dtype)
    y = (X * theta[:, None, :]).sum(axis=2) + 0.1 * jax.random.normal(jax.random.fold_in(key, 2), (filters, b), dtype)
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(0.1), gamma=100.0)

    @jax.jit
    def step(X: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(X: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = alg.step(alg.init(jnp.zeros(d, dtype)), X, y)
            return state.mean, state.var()

        return jax.vmap(one)(X, y)

    first, seconds, (mean, var) = timed(step, X, y, times=3 if d < 32 else 1)
    z = (mean - theta) / jnp.sqrt(var)
    return {
        "filters": filters,
        "d": d,
        "dtype": dtype,
        "first_s": first,
        "us_a_filter": seconds / filters * 1e6,
        "rows_a_second": filters * b / seconds,
        "share_of_copy": X.nbytes / seconds / 1e12 / copy,
        "rms_z": float(jnp.sqrt((z**2).mean())),
    }


def main(out: str) -> None:
    with jax.enable_x64(True):
        device = jax.devices()[0]
        found: dict[str, Any] = {
            "device": device.device_kind,
            "jax": jax.__version__,
            "date": time.strftime("%Y-%m-%d"),
        }
        found["ceilings"] = ceilings()
        print(found, flush=True)
        copy = found["ceilings"]["copy"]
        found["sweep"] = []
        for d in (10, 50, 100):
            for dtype in ("float64", "float32"):
                found["sweep"].append(sweep(d, dtype, copy))
                print(found["sweep"][-1], flush=True)
        found["fleet"] = []
        for filters, d in ((64, 10),) if SMALL else ((4096, 10), (16384, 20), (4096, 50)):
            for dtype in ("float64", "float32"):
                found["fleet"].append(fleet(filters, d, dtype, copy))
                print(found["fleet"][-1], flush=True)
        found["folds"] = folds(found["ceilings"])
    with open(out, "w") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
