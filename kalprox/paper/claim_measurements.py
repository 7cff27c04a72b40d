"""The measurements behind the verdicts on the paper's claims: each function returns a dictionary of numbers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from kalprox.algorithms.base import Algorithm
from kalprox.algorithms.proximal_filter import proximal_filter
from kalprox.algorithms.refine import refine
from kalprox.covariance import Dense
from kalprox.models import GLM, Linear
from kalprox.paper import problems
from kalprox.paper.baselines import ipg, ipm, sgd
from kalprox.paper.cache import Results
from kalprox.paper.pipg import pipg
from kalprox.paper.problems import after, closed_form, covered, first_at, relative_error
from kalprox.paper.run import run
from kalprox.paper.states import Belief
from kalprox.regularizers import Ridge, SmoothL1

__all__ = ["breaking", "constant_step", "cost", "linear", "sparse"]

_SIGMOID, _TAPS = GLM("sigmoid"), SmoothL1(1e-5, 0.1)  # h and g of section IV-B
_PIPG = pipg(_SIGMOID, _TAPS, gamma=1.0, q=1e-4)
_SGD = sgd(_SIGMOID, _TAPS, alpha0=1.0, alpha1=1e-4)


def linear(s: Mapping[str, Any]) -> Results:
    """Section IV-A for one seed: PIPG and IPG over step sizes, the constant step, the minimiser, the coverage of V."""
    d = s["d"]
    rows = problems.ridge(s["n"], d, s["seed"])
    X, y, theta = rows
    lam, every = 0.01, max(1, s["n"] // 200)
    h, g = Linear(), Ridge(lam)

    def curves(make: Callable[..., Algorithm]) -> np.ndarray:
        """The errors along the rows for all step sizes."""
        algorithms = [make(gamma=gamma) for gamma in np.linspace(0.005, 0.2, s["gammas"])]
        runs = [run(alg, alg.init(np.zeros(d), 1.0), X, y, record_every=every) for alg in algorithms]
        return np.array([relative_error(out.trace.mean, theta) for out in runs])

    by_pipg, by_ipg = curves(partial(pipg, h, g)), curves(partial(ipg, h, g))
    constant = curves(partial(ipg, h, g, decay=0.0))
    level = 2 * min(by_pipg[:, -1].min(), by_ipg[:, -1].min())  # both methods reach it for some step size
    once, n_times = closed_form(rows, lam), closed_form(rows, lam * len(X))
    alg = pipg(h, g, gamma=1.0)
    state = after(alg, alg.init(np.zeros(d), 1.0), X, y)
    exact = proximal_filter(h, g)
    exact_state = exact.step(exact.init(np.zeros(d), None), X, y)
    kalman = ipm(h, gamma=1.0)
    without_g = after(kalman, kalman.init(np.zeros(d), 1.0), X, y)
    of_rows = X.T @ X
    posterior = np.linalg.inv(np.eye(d) + of_rows)
    g_part = np.diagonal(np.linalg.inv(state.cov()) - of_rows - np.eye(d))
    return {
        "spread_pipg": by_pipg[:, -1].max() / by_pipg[:, -1].min(),
        "spread_ipg": by_ipg[:, -1].max() / by_ipg[:, -1].min(),
        "sooner": np.mean(first_at(by_pipg, level) < first_at(by_ipg, level)),
        "constant_last": np.median(constant[:, -1]),
        "constant_first": np.median(constant[:, 0]),
        "constant_finite": float(np.isfinite(constant).all()),
        "batch": relative_error(closed_form(rows, 0.0), theta),
        "to_n_g": relative_error(state.mean, n_times),
        "to_once": relative_error(state.mean, once),
        "filter_to_once": relative_error(exact_state.mean, once),
        "curvature": np.median(g_part) / (len(X) * lam),
        "covered_pipg": covered(state.mean, state.var(), theta),
        "covered_filter": covered(exact_state.mean, exact_state.var(), theta),
        "posterior": np.abs(without_g.cov() - posterior).max() / np.abs(posterior).max(),
    }


def sparse(s: Mapping[str, Any]) -> Results:
    """Section IV-B for one seed and size, with the paper's settings: all methods, and IPG."""
    d = 50
    X, y, theta = problems.sparse(s["n"], d, s["size"], s["seed"])
    algorithms = {
        "pipg": _PIPG,
        "pipg_q0": pipg(_SIGMOID, _TAPS, gamma=1.0),
        "sgd": _SGD,
        "ipg": ipg(_SIGMOID, _TAPS, gamma=1.0),
    }
    out: Results = {}
    beliefs = {}
    for name, alg in algorithms.items():
        result = run(alg, alg.init(np.zeros(d), 100.0), X, y, record_every=len(X) // 20)
        errors = relative_error(result.trace.mean, theta)
        out |= {name: errors[-1], f"{name}_first": errors[0]}
        if result.trace.var is not None:
            beliefs[name] = result.state.mean, result.state.var()
    alg = proximal_filter(_SIGMOID, _TAPS)
    state = after(alg, alg.init(np.zeros(d), 100.0), X, y)
    fit = refine(_SIGMOID, _TAPS, (X, y), state.mean, gamma=1.0, prior=state.prior, tol=1e-6)
    out |= {"filter": relative_error(state.mean, theta), "refined": relative_error(fit.mean, theta)}
    beliefs |= {"filter": (state.mean, state.var()), "refined": (fit.mean, fit.var)}
    for name, (mean, var) in beliefs.items():
        out |= {f"covered_{name}": covered(mean, var, theta), f"width_{name}": np.sqrt(var).mean()}
    return out


def cost(_: Mapping[str, Any]) -> Results:
    """The exponent of d in the number of operations of a compiled step, which the compiler counts exactly."""
    import jax
    import jax.numpy as jnp

    sizes = [32, 64, 128, 256]

    def operations(alg: Any, d: int) -> float:
        state = alg.init(jnp.zeros(d), Dense(jnp.eye(d)))
        analysis: Any = jax.jit(alg.step).lower(state, jnp.ones(d), jnp.asarray(1.0)).compile().cost_analysis()
        return float(analysis["flops"])

    with jax.enable_x64(True):
        algorithms = {"pipg": _PIPG, "ipm": ipm(_SIGMOID, gamma=1.0), "sgd": _SGD}
        flops = {name: [operations(alg, d) for d in sizes] for name, alg in algorithms.items()}
    return {name: np.polyfit(np.log(sizes), np.log(counts), 1)[0] for name, counts in flops.items()}


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
        return float(np.abs(after(alg, alg.init(np.ones(20)), X, y).mean).max())

    return {"below_two": last(1.9), "above_two": last(2.1)}
