"""The claims of the paper, with evidence over many seeds and a verdict that follows from the numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import kalprox as kp
from kalprox.algorithms.base import Algorithm
from kalprox.covariance import Dense
from kalprox.models import GLM, Linear
from kalprox.pages import Section, Table
from kalprox.paper import problems
from kalprox.paper.cache import Compute, Results, Task
from kalprox.paper.pipg import Belief
from kalprox.paper.problems import after, closed_form, covered, first_at, relative_error
from kalprox.regularizers import Ridge, SmoothL1

Numbers = dict[str, np.ndarray]  # arrays over the seeds

HOLDS, CONDITIONS, FAILS = "holds", "holds with conditions", "does not hold"

_NAMES = {"pipg": "PIPG", "pipg_q0": "PIPG with Q = 0", "sgd": "SGD", "ipg": "IPG", "filter": "proximal filter"}

_SIGMOID, _TAPS = GLM("sigmoid"), SmoothL1(1e-5, 0.1)  # h and g of section IV-B
_PIPG = kp.pipg(_SIGMOID, _TAPS, gamma=1.0, q=1e-4)
_SGD = kp.sgd(_SIGMOID, _TAPS, alpha0=1.0, alpha1=1e-4)


@dataclass(frozen=True)
class Settings:
    """The sizes of the problems, smaller than in the paper so that twenty seeds take minutes."""

    d: int = 20
    n: int = 40_000
    gammas: int = 20
    sparse_n: int = 60_000
    sizes: tuple[float, ...] = (1.0, 3.0)


QUICK = Settings(n=10_000, d=10, gammas=8, sparse_n=20_000, sizes=(1.0,))


class Claim(NamedTuple):
    """A claim of the paper in our words, the evidence, the verdict and its explanation."""

    says: str
    evidence: str
    verdict: str
    why: str


def compute(settings: Settings, seeds: Sequence[int], results: Compute) -> list[Claim]:
    """Measure the evidence for all claims, or read it from the cache, and judge them.

    Parameters
    ----------
    settings : Settings
    seeds : sequence of int
    results : callable
        Returns the results of tasks: `kalprox.paper.cache.cached_all` in a folder. Each seed is one task.
    """
    linear = {"d": settings.d, "n": settings.n, "gammas": settings.gammas}
    sparse = [{"n": settings.sparse_n, "size": size} for size in settings.sizes]
    tasks = [
        *(Task("claims-ridge", {**linear, "seed": seed}, measure_linear) for seed in seeds),
        *(Task("claims-sigmoid", {**cell, "seed": seed}, measure_sparse) for cell in sparse for seed in seeds),
        Task("claims-cost", {}, measure_cost),
        Task("claims-breaking", {}, measure_breaking),
        Task("claims-constant-step", {}, measure_constant_step),
    ]
    *runs, cost, breaking, constant_step = results(tasks)
    N = len(seeds)
    groups = [runs[i : i + N] for i in range(0, len(runs), N)]
    ridge, *by_size = [{key: np.array([run[key] for run in group]) for key in group[0]} for group in groups]
    sigmoid = dict(zip(settings.sizes, by_size, strict=True))
    return _claims(settings.gammas, ridge, sigmoid, cost, breaking, constant_step)


def section(claims: list[Claim]) -> Section:
    """The claims as a table."""
    table = Table(
        ["The paper says", "Measured", "Verdict"],
        [[claim.says, claim.evidence, f"**{claim.verdict.capitalize()}.** {claim.why}"] for claim in claims],
        "Medians over the seeds, with the 10% and 90% quantiles in brackets.",
    )
    text = "Each claim in our words, the evidence over all seeds, and the verdict that follows from the numbers."
    return Section("The paper's claims, measured", text, tables=[table])


def conclusions(claims: list[Claim]) -> list[str]:
    """How many of the claims hold."""
    hold, conditions, fail = (sum(c.verdict == verdict for c in claims) for verdict in (HOLDS, CONDITIONS, FAILS))
    return [f"Of {len(claims)} claims, {hold} hold, {conditions} hold with conditions and {fail} do not hold."]


def _claims(
    n_gammas: int,
    ridge: Numbers,
    sparse: dict[float, Numbers],
    cost: Results,
    breaking: Results,
    constant_step: Results,
) -> list[Claim]:
    """The claims with their evidence and verdicts.

    Parameters
    ----------
    n_gammas : int
        The number of step sizes in the ridge experiment.
    ridge : dict
        Each number of `measure_linear`.
    sparse : dict
        For each size of the taps, each number of `measure_sparse`.
    cost, breaking, constant_step : dict
        The numbers of `measure_cost`, `measure_breaking` and `measure_constant_step`.
    """
    shown = {name: _quantiles(values) for name, values in ridge.items()}
    median = {name: float(np.median(values)) for name, values in ridge.items()}

    def label(name: str) -> str:
        method = name.removeprefix("covered_").removesuffix("_first")
        return _NAMES.get(method, method)

    def by_size(*names: str) -> str:
        return "; ".join(
            f"size {size:g}: " + ", ".join(f"{label(name)} {_quantiles(found[name])}" for name in names)
            for size, found in sparse.items()
        )

    stable = median["spread_pipg"] < 1.5 and median["spread_ipg"] > 2
    sooner = median["sooner"]
    ahead = [np.mean(found["pipg_first"] < found["sgd_first"]) for found in sparse.values()]
    better = [np.mean(found["pipg"] < found["sgd"]) for found in sparse.values()]
    covered = [np.mean(found["covered_pipg"]) for found in sparse.values()]
    wider = [np.median(found["width_pipg"] / found["width_refined"]) for found in sparse.values()]
    share = np.mean(ridge["covered_pipg"])
    exact = median["posterior"] < 1e-8
    runs_on_sigmoid = all(np.isfinite(found["ipg"]).all() for found in sparse.values())
    above_two = f"{breaking['above_two']:.3g}" if np.isfinite(breaking["above_two"]) else "not a number"
    unsafe = breaking["at_one"] == 0 or not breaking["above_two"] < 1e6
    return [
        Claim(
            "PIPG is stable with respect to the step size, IPG is sensitive to it (ridge).",
            f"Ratio of the largest to the smallest final error over {n_gammas} step sizes: PIPG "
            f"{shown['spread_pipg']}, IPG {shown['spread_ipg']}.",
            HOLDS if stable else FAILS,
            "The learned metric takes the place of the step size."
            if stable
            else "The criterion is a ratio below 1.5 for PIPG and above 2 for IPG.",
        ),
        Claim(
            "PIPG needs fewer iterations than IPG for a wide range of step sizes (ridge).",
            "Share of the step sizes at which PIPG is the first to reach twice the lowest final error of both methods: "
            f"{shown['sooner']}.",
            HOLDS if sooner > 0.8 else CONDITIONS if sooner > 0.3 else FAILS,
            "IPG can keep up only with a step size in a narrow range.",
        ),
        Claim(
            "IPG with a constant step diverges (ridge).",
            f"Relative error at the first record {shown['constant_first']} and at the last {shown['constant_last']}; "
            f"finite in {np.mean(ridge['constant_finite']):.0%} of the runs; the batch solution has {shown['batch']}. "
            "Largest coefficient after 1,000 rows, starting from 1: "
            f"{constant_step['below_two']:.3g} with gamma lambda = 1.9, {constant_step['above_two']:.3g} at 2.1.",
            FAILS if np.all(ridge["constant_finite"]) and median["constant_last"] < 1 else HOLDS,
            "With the step sizes of the paper, gamma lambda is at most 0.002, and the error stops at a floor that is "
            "set by the noise, far above the error of the batch solution. The proximal step on f_k is implicit, and "
            "enlarges no error; the gradient step on g is explicit, and the recursion can diverge once gamma max "
            "eig(V Hess g), here gamma lambda, is above 2.",
        ),
        Claim(
            "One pass is enough in the linear case: the posterior is exact.",
            f"Without g, relative difference between V and the explicit posterior covariance: {shown['posterior']}. "
            f"With g, relative distance of the mean from argmin sum f + n g: {shown['to_n_g']}, from argmin sum f + g: "
            f"{shown['to_once']} (the proximal filter: {shown['filter_to_once']}).",
            FAILS if not exact else CONDITIONS if median["to_once"] > median["filter_to_once"] + 1e-6 else HOLDS,
            "It is exact for the state-space model that the paper writes down, and for g = 0. With g != 0 that model "
            "takes a full step on g at every row, and so it solves a different problem from (1).",
        ),
        Claim(
            "The covariance quantifies the uncertainty (ridge, lambda = 0.01, gamma = 1).",
            f"The curvature of g is counted {shown['curvature']} times; +-2 sigma covers {share:.0%} of all "
            f"coefficients (the proximal filter: {np.mean(ridge['covered_filter']):.0%}).",
            HOLDS if 0.93 <= share <= 0.97 else CONDITIONS if exact else FAILS,  # on the condition that g = 0
            "Without g, V is the posterior covariance. With g, M V M' adds 2 gamma Hess g to the precision while the "
            "mean counts g once per row: V is only a metric.",
        ),
        Claim(
            "The covariance quantifies the uncertainty (sparse sigmoid, Q = 1e-4 I).",
            "Share of the taps within +-2 sigma: "
            + by_size("covered_pipg", "covered_pipg_q0", "covered_filter", "covered_refined")
            + f". The bars of PIPG are {', '.join(f'{w:.1f}' for w in wider)} times as wide as the refined ones.",
            FAILS if not all(0.9 <= c <= 0.99 for c in covered) else CONDITIONS if max(wider) > 1.5 else HOLDS,
            "The bars cover the taps, but they are those of a random walk: Q keeps V from shrinking with the data. "
            "With Q = 0, early linearisations are never corrected, and the bars of large taps are too narrow.",
        ),
        Claim(
            "PIPG reaches stability in fewer iterations than SGD (sparse sigmoid).",
            "Error after a twentieth of the rows: "
            + by_size("pipg_first", "sgd_first")
            + f". The error of PIPG is lower on {', '.join(f'{a:.0%}' for a in ahead)} of the seeds.",
            HOLDS if min(ahead) > 0.9 else CONDITIONS if max(ahead) > 0.5 else FAILS,
            "The early stability comes with a floor under the error, which is due to Q.",
        ),
        Claim(
            "PIPG gives a better estimate than SGD after one pass (sparse sigmoid).",
            "Final error: "
            + by_size("pipg", "pipg_q0", "sgd", "filter", "refined")
            + f". The error of PIPG is lower on {', '.join(f'{b:.0%}' for b in better)} of the seeds.",
            HOLDS if min(better) > 0.9 else CONDITIONS if max(better) > 0.5 else FAILS,
            "The paper does not state theta*; here a tenth of the taps are plus or minus the size.",
        ),
        Claim(
            "IPG cannot be run on the sigmoid, because f_k is not easily proximable.",
            "Final error of IPG with the exact proximal step: " + by_size("ipg") + ".",
            FAILS if runs_on_sigmoid else HOLDS,
            "For h(x' theta) the proximal step is one-dimensional (`kp.ipg`).",
        ),
        Claim(
            "PIPG scales as O(d^2), SGD as O(d).",
            f"Exponent of d in the number of operations of a compiled step: PIPG {cost['pipg']:.2f}, its update alone "
            f"{cost['ipm']:.2f}, SGD {cost['sgd']:.2f}.",
            HOLDS if cost["pipg"] < 2.2 else FAILS,
            "M V M' is a product of dense matrices.",
        ),
        Claim(
            "(Implied.) The recursion can be run with any v0, gamma and lambda.",
            f"Largest coefficient after 60 rows, starting from 1: {breaking['below']:.3g} with gamma max eig(V H) = "
            f"0.5, {breaking['at_one']:.3g} at 1, {above_two} at 2.5.",
            FAILS if unsafe else HOLDS,
            "At 1 the covariance becomes singular and the estimate is frozen; above 2 the recursion diverges. "
            "`kp.pipg` warns, or raises an error.",
        ),
    ]


def _quantiles(values: np.ndarray) -> str:
    """The median, and the 10% and 90% quantiles."""
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


# ---- the measurements: each returns a dictionary of numbers ------------------------------------------------


def measure_linear(s: Mapping[str, Any]) -> Results:
    """Section IV-A for one seed: PIPG and IPG over step sizes, the constant step, the minimiser, the coverage of V."""
    d = s["d"]
    rows = problems.ridge(s["n"], d, s["seed"])
    X, y, theta = rows
    lam, every = 0.01, max(1, s["n"] // 200)
    h, g = Linear(), Ridge(lam)

    def curves(make: Callable[..., Algorithm]) -> np.ndarray:
        """The errors along the rows for all step sizes."""
        algorithms = [make(gamma=gamma) for gamma in np.linspace(0.005, 0.2, s["gammas"])]
        runs = [kp.run(alg, alg.init(np.zeros(d), 1.0), X, y, record_every=every) for alg in algorithms]
        return np.array([relative_error(out.trace.mean, theta) for out in runs])

    by_pipg, by_ipg = curves(partial(kp.pipg, h, g)), curves(partial(kp.ipg, h, g))
    constant = curves(partial(kp.ipg, h, g, decay=0.0))
    level = 2 * min(by_pipg[:, -1].min(), by_ipg[:, -1].min())  # both methods reach it for some step size
    once, n_times = closed_form(rows, lam), closed_form(rows, lam * len(X))
    alg = kp.pipg(h, g, gamma=1.0)
    state = after(alg, alg.init(np.zeros(d), 1.0), X, y)
    exact = kp.proximal_filter(h, g)
    exact_state = exact.step(exact.init(np.zeros(d), None), X, y)
    kalman = kp.ipm(h, gamma=1.0)
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


def measure_sparse(s: Mapping[str, Any]) -> Results:
    """Section IV-B for one seed and size, with the paper's settings: all methods, and IPG."""
    d = 50
    X, y, theta = problems.sparse(s["n"], d, s["size"], s["seed"])
    algorithms = {
        "pipg": _PIPG,
        "pipg_q0": kp.pipg(_SIGMOID, _TAPS, gamma=1.0),
        "sgd": _SGD,
        "ipg": kp.ipg(_SIGMOID, _TAPS, gamma=1.0),
    }
    out: Results = {}
    beliefs = {}
    for name, alg in algorithms.items():
        result = kp.run(alg, alg.init(np.zeros(d), 100.0), X, y, record_every=len(X) // 20)
        errors = relative_error(result.trace.mean, theta)
        out |= {name: errors[-1], f"{name}_first": errors[0]}
        if result.trace.var is not None:
            beliefs[name] = result.state.mean, result.state.var()
    alg = kp.proximal_filter(_SIGMOID, _TAPS)
    state = after(alg, alg.init(np.zeros(d), 100.0), X, y)
    fit = kp.refine(_SIGMOID, _TAPS, (X, y), state.mean, gamma=1.0, prior=state.prior, tol=1e-6)
    out |= {"filter": relative_error(state.mean, theta), "refined": relative_error(fit.mean, theta)}
    beliefs |= {"filter": (state.mean, state.var()), "refined": (fit.mean, fit.var)}
    for name, (mean, var) in beliefs.items():
        out |= {f"covered_{name}": covered(mean, var, theta), f"width_{name}": np.sqrt(var).mean()}
    return out


def measure_cost(_: Mapping[str, Any]) -> Results:
    """The exponent of d in the number of operations of a compiled step, which the compiler counts exactly."""
    import jax
    import jax.numpy as jnp

    sizes = [32, 64, 128, 256]

    def operations(alg: Any, d: int) -> float:
        state = alg.init(jnp.zeros(d), Dense(jnp.eye(d)))
        analysis: Any = jax.jit(alg.step).lower(state, jnp.ones(d), jnp.asarray(1.0)).compile().cost_analysis()
        return float(analysis["flops"])

    with jax.enable_x64(True):
        algorithms = {"pipg": _PIPG, "ipm": kp.ipm(_SIGMOID, gamma=1.0), "sgd": _SGD}
        flops = {name: [operations(alg, d) for d in sizes] for name, alg in algorithms.items()}
    return {name: np.polyfit(np.log(sizes), np.log(counts), 1)[0] for name, counts in flops.items()}


def measure_breaking(_: Mapping[str, Any]) -> Results:
    """The recursion with gamma * max eig(V H) at 0.5, 1 and 2.5; `init` would warn at 1 and raise an error at 2.5."""
    import jax
    import jax.numpy as jnp

    X, y, _theta = problems.ridge(60, 20, seed=0)
    step = jax.jit(lambda step, state, x, y: step(state, x, y))

    def last(product: float) -> float:
        alg = kp.pipg(Linear(), Ridge(product / 100), gamma=1.0)
        with jax.enable_x64(True):
            state = Belief(jnp.ones(20), Dense(100 * jnp.eye(20)))
            for x, target in zip(X, y, strict=True):
                state = step(alg.step, state, x, target)
            return float(jnp.abs(state.mean).max())

    return {"at_one": last(1.0), "above_two": last(2.5), "below": last(0.5)}


def measure_constant_step(_: Mapping[str, Any]) -> Results:
    """IPG with a constant step and gamma * lambda at 1.9 and 2.1, on either side of 2: its step on g is explicit."""
    X, y, _theta = problems.ridge(1000, 20, seed=0)

    def last(product: float) -> float:
        alg = kp.ipg(Linear(), Ridge(0.01), gamma=product / 0.01, decay=0.0)
        return float(np.abs(after(alg, alg.init(np.ones(20)), X, y).mean).max())

    return {"below_two": last(1.9), "above_two": last(2.1)}
