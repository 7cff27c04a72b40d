"""The measurements behind the verdicts on the paper's claims: each function returns a dictionary of numbers."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kalprox.algorithms.proximal_filter import proximal_filter
from kalprox.algorithms.refine import refine
from kalprox.covariance import Dense
from kalprox.models import GLM, Linear
from kalprox.paper import problems
from kalprox.paper.baselines import ipg, ipm, sgd
from kalprox.paper.cache import Results
from kalprox.paper.pipg import pipg
from kalprox.paper.problems import relative_error
from kalprox.paper.run import run
from kalprox.paper.states import Belief
from kalprox.regularizers import Ridge, SmoothL1

__all__ = ["breaking", "constant_step", "cost", "linear", "sparse"]


def linear(s: Mapping[str, Any]) -> Results:
    """Section IV-A for one seed: PIPG and IPG over step sizes, the constant step, the minimiser, the coverage of V."""
    import jax
    import jax.numpy as jnp

    d = s["d"]
    X, y, theta = problems.ridge(s["n"], d, s["seed"])
    g, lam, every = Ridge(0.01), 0.01, max(1, s["n"] // 200)
    gammas = np.linspace(0.005, 0.2, s["gammas"])

    def error(state: Any) -> Any:
        return jnp.linalg.norm(state.mean - theta) / np.linalg.norm(theta)

    def curve(make: Callable[..., Any], gamma: Any) -> Any:
        alg = make(gamma)
        return run(alg, alg.init(jnp.zeros(d), 1.0), X, y, record_every=every, record=error).trace.extra

    with jax.enable_x64(True):
        curves = {
            "pipg": jax.vmap(lambda gamma: curve(lambda c: pipg(Linear(), g, gamma=c), gamma))(gammas),
            "ipg": jax.vmap(lambda gamma: curve(lambda c: ipg(Linear(), g, gamma=c), gamma))(gammas),
            "constant": jax.vmap(lambda gamma: curve(lambda c: ipg(Linear(), g, gamma=c, decay=0.0), gamma))(gammas),
        }
        curves = {name: np.asarray(value) for name, value in curves.items()}
    A = X.T @ X
    once, n_times = (np.linalg.solve(A + m * np.eye(d), X.T @ y) for m in (lam, lam * len(X)))
    best = float(relative_error(np.linalg.solve(A, X.T @ y), theta))
    level = 2 * min(curves[name][:, -1].min() for name in ("pipg", "ipg"))  # both methods reach it for some step size
    alg = pipg(Linear(), g, gamma=1.0)
    state = run(alg, alg.init(np.zeros(d), 1.0), X, y, record_every=len(X)).state
    exact = proximal_filter(Linear(), g)
    exact_state = exact.step(exact.init(np.zeros(d), None), X, y)
    kalman = ipm(Linear(), gamma=1.0)
    without_g = run(kalman, kalman.init(np.zeros(d), 1.0), X, y, record_every=len(X)).state
    posterior = np.linalg.inv(np.eye(d) + A)
    g_part = np.diagonal(np.linalg.inv(state.cov()) - A - np.eye(d))
    return {
        "spread_pipg": curves["pipg"][:, -1].max() / curves["pipg"][:, -1].min(),
        "spread_ipg": curves["ipg"][:, -1].max() / curves["ipg"][:, -1].min(),
        "sooner": np.mean(_reaches(curves["pipg"], level) < _reaches(curves["ipg"], level)),
        "constant_last": np.median(curves["constant"][:, -1]),
        "constant_first": np.median(curves["constant"][:, 0]),
        "constant_finite": float(np.isfinite(curves["constant"]).all()),
        "batch": best,
        "to_n_g": np.linalg.norm(state.mean - n_times) / np.linalg.norm(n_times),
        "to_once": np.linalg.norm(state.mean - once) / np.linalg.norm(once),
        "filter_to_once": np.linalg.norm(exact_state.mean - once) / np.linalg.norm(once),
        "curvature": np.median(g_part) / (len(X) * lam),
        "covered_pipg": _covered(state.mean, state.var(), theta),
        "covered_filter": _covered(exact_state.mean, exact_state.var(), theta),
        "posterior": np.abs(without_g.cov() - posterior).max() / np.abs(posterior).max(),
    }


def _reaches(curves: np.ndarray, level: float) -> np.ndarray:
    """The first record at which each curve is at or below the level; the number of records where it never is."""
    below = curves <= level
    first: np.ndarray = np.where(below.any(axis=1), below.argmax(axis=1), curves.shape[1])
    return first


def sparse(s: Mapping[str, Any]) -> Results:
    """Section IV-B for one seed and size, with the paper's settings: all methods, and IPG."""
    h, g, d = GLM("sigmoid"), SmoothL1(1e-5, 0.1), 50
    X, y, theta = problems.sparse(s["n"], d, s["size"], s["seed"])
    algorithms = {
        "pipg": pipg(h, g, gamma=1.0, q=1e-4),
        "pipg_q0": pipg(h, g, gamma=1.0),
        "sgd": sgd(h, g, alpha0=1.0, alpha1=1e-4),
        "ipg": ipg(h, g, gamma=1.0),
    }
    out: Results = {}
    for name, alg in algorithms.items():
        result = run(alg, alg.init(np.zeros(d), 100.0), X, y, record_every=len(X) // 20)
        errors = relative_error(result.trace.mean, theta)
        out |= {name: errors[-1], f"{name}_first": errors[0]}
        if result.trace.var is not None:
            var = result.state.var()
            out |= {f"covered_{name}": _covered(result.state.mean, var, theta), f"width_{name}": np.sqrt(var).mean()}
    alg = proximal_filter(h, g)
    state = run(alg, alg.init(np.zeros(d), 100.0), X, y, record_every=len(X)).state
    fit = refine(h, g, (X, y), state.mean, gamma=1.0, prior=state.prior, tol=1e-6)
    for name, mean, var in (("filter", state.mean, state.var()), ("refined", fit.mean, fit.var)):
        out |= {name: relative_error(mean, theta), f"covered_{name}": _covered(mean, var, theta)}
        out[f"width_{name}"] = np.sqrt(var).mean()
    return out


def _covered(mean: np.ndarray, var: np.ndarray, theta: np.ndarray) -> float:
    return float(np.mean(np.abs(mean - theta) <= 2 * np.sqrt(var)))


def cost(_: Mapping[str, Any]) -> Results:
    """The exponent of d in the number of operations of a compiled step, which the compiler counts exactly."""
    import jax
    import jax.numpy as jnp

    sizes = np.array([32, 64, 128, 256])
    counts: dict[str, list[float]] = {"pipg": [], "ipm": [], "sgd": []}
    with jax.enable_x64(True):
        for d in sizes.tolist():
            x, y = jnp.ones(d), jnp.asarray(1.0)
            algorithms = {
                "pipg": pipg(GLM("sigmoid"), SmoothL1(1e-5, 0.1), gamma=1.0, q=1e-4),
                "ipm": ipm(GLM("sigmoid"), gamma=1.0),
                "sgd": sgd(GLM("sigmoid"), SmoothL1(1e-5, 0.1), alpha0=1.0, alpha1=1e-4),
            }
            for name, alg in algorithms.items():
                state = Belief(jnp.zeros(d), Dense(jnp.eye(d))) if name != "sgd" else alg.init(jnp.zeros(d))
                cost: Any = jax.jit(alg.step).lower(state, x, y).compile().cost_analysis()
                counts[name].append(cost["flops"])
    return {name: np.polyfit(np.log(sizes), np.log(flops), 1)[0] for name, flops in counts.items()}


def breaking(_: Mapping[str, Any]) -> Results:
    """The recursion with gamma * max eig(V H) at 0.5, 1 and 2.5; `init` would warn at 1 and raise an error at 2.5."""
    import jax
    import jax.numpy as jnp

    X, y, _theta = problems.ridge(60, 20, seed=0)
    step = jax.jit(lambda step, state, x, y: step(state, x, y))

    def last(product: float) -> float:
        alg = pipg(Linear(), Ridge(product / 100), gamma=1.0)
        with jax.enable_x64(True):
            state = Belief(jnp.ones(20), Dense(100 * jnp.eye(20)))
            for x, target in zip(X, y, strict=True):
                state = step(alg.step, state, x, target)
            return float(jnp.abs(state.mean).max())

    return {"at_one": last(1.0), "above_two": last(2.5), "below": last(0.5)}


def constant_step(_: Mapping[str, Any]) -> Results:
    """IPG with a constant step and gamma * lambda at 1.9 and 2.1, on either side of 2: its step on g is explicit."""
    X, y, _theta = problems.ridge(1000, 20, seed=0)

    def last(product: float) -> float:
        alg = ipg(Linear(), Ridge(0.01), gamma=product / 0.01, decay=0.0)
        return float(np.abs(run(alg, alg.init(np.ones(20)), X, y).state.mean).max())

    return {"below_two": last(1.9), "above_two": last(2.1)}
