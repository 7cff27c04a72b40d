"""(b) The paper's sigmoid problem: y = sigmoid(x' theta) + N(0, 1), d = 50, AR(0.8) input, smooth L1, prior N(0, 100).

`error` is the relative distance to the minimiser of sum f_k + g + prior, which Newton's method finds here. `above the
best` is the relative excess of the objective over its minimum. `error of the truth` is the distance to the theta that
generated the data.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import FLOOR, Case, Data, Peer, Settings, at_most
from benchmarks.linear import floor

LAM, DELTA, V0, Q, GAMMA = 1e-5, 0.1, 100.0, 1e-4, 1.0
_FAR = 10**9  # rows between two records: none is made


def cases() -> list[Case]:
    return [Case("sigmoid", {"d": 50, "n": 300_000})]


def data(settings: Settings) -> Data:
    from kalprox.paper import problems

    rows = problems.sparse(settings["n"], settings["d"], 1.0, 0)
    return {"X": np.ascontiguousarray(rows.X), "y": rows.y, "theta": rows.theta}


def _sigmoid(u: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-u))


def objective(data: Data, theta: np.ndarray) -> float:
    e = data["y"] - _sigmoid(data["X"] @ theta)
    return float(e @ e / 2 + LAM * (np.sqrt(1 + (theta / DELTA) ** 2) - 1).sum() + theta @ theta / V0 / 2)


def _best(data: Data) -> np.ndarray:
    """Run Newton's method with the full Hessian from the true theta, halving steps that do not descend."""
    X, y, theta = data["X"], data["y"], data["theta"].copy()
    for _ in range(50):
        h = _sigmoid(X @ theta)
        e, slope = y - h, h * (1 - h)
        root = np.sqrt(1 + (theta / DELTA) ** 2)
        gradient = -X.T @ (e * slope) + LAM / DELTA**2 * theta / root + theta / V0
        H = (X * (slope**2 - e * slope * (1 - 2 * h))[:, None]).T @ X
        H += np.diag(LAM / DELTA**2 / root**3 + 1 / V0)
        step = np.linalg.solve(H, gradient)
        t = 1.0
        while objective(data, theta - t * step) > objective(data, theta) * (1 + 1e-14) and t > 1e-6:
            t /= 2
        theta = theta - t * step
        if np.linalg.norm(step) < 1e-13 * np.linalg.norm(theta):
            break
    return theta


_known: dict[int, tuple[np.ndarray, float]] = {}


def judge(settings: Settings, data: Data, peer: Peer, rows: int, answer: Any) -> dict[str, Any]:
    from benchmarks.reference import distance

    if peer.name == FLOOR:
        return {}
    if rows not in _known:
        seen = {"X": data["X"][:rows], "y": data["y"][:rows], "theta": data["theta"]}
        best = _best(seen)
        _known[rows] = best, objective(seen, best)
    best, least = _known[rows]
    seen = {"X": data["X"][:rows], "y": data["y"][:rows]}
    theta = np.asarray(answer, float)
    found = {
        "error": distance(theta, best),
        "objective_above": objective(seen, theta) / least - 1,
        "truth": distance(theta, data["theta"]),
    }
    if peer.package == "numba":
        from benchmarks.numba_pipg import agreement

        found["agreement"] = agreement()
    return found


def _problem() -> tuple[Any, Any, Any]:
    import kalprox as kp

    return kp, kp.models.GLM("sigmoid"), kp.regularizers.SmoothL1(LAM, DELTA)


def _pipg(data: Data, settings: Settings) -> Callable[[], Any]:
    kp, h, g = _problem()
    run, alg = kp.run, kp.pipg(h, g, gamma=GAMMA, q=Q)
    state = alg.init(np.zeros(settings["d"]), V0)
    return lambda: run(alg, state, data["X"], data["y"], record_every=_FAR).state.mean


def _numba(data: Data, settings: Settings) -> Callable[[], Any]:
    from benchmarks.numba_pipg import recursion

    return lambda: recursion(data["X"], data["y"], GAMMA, Q, LAM, DELTA, V0, True)


def _filter(data: Data, settings: Settings) -> Callable[[], Any]:
    kp, h, g = _problem()
    run, alg = kp.run, kp.proximal_filter(h, g, gamma=GAMMA)
    return lambda: run(alg, alg.init(np.zeros(settings["d"]), V0), data["X"], data["y"], record_every=4096).state.mean


def _refine(data: Data, settings: Settings) -> Callable[[], Any]:
    kp, h, g = _problem()
    d = settings["d"]
    prior = kp.Information.from_prior(np.zeros(d), np.eye(d) / V0**0.5)
    refine = kp.refine
    return lambda: refine(h, g, (data["X"], data["y"]), np.zeros(d), gamma=GAMMA, prior=prior).mean


def _filter_and_refine(data: Data, settings: Settings) -> Callable[[], Any]:
    kp, h, g = _problem()
    run, refine, alg, d = kp.run, kp.refine, kp.proximal_filter(h, g, gamma=GAMMA), settings["d"]

    def go() -> Any:
        state = run(alg, alg.init(np.zeros(d), V0), data["X"], data["y"], record_every=4096).state
        return refine(h, g, (data["X"], data["y"]), state.mean, gamma=GAMMA, prior=state.prior).mean

    return go


def _sgd(data: Data, settings: Settings) -> Callable[[], Any]:
    kp, h, g = _problem()
    run, alg = kp.run, kp.sgd(h, g, alpha0=1.0, alpha1=1e-4)
    return lambda: run(alg, alg.init(np.zeros(settings["d"]), V0), data["X"], data["y"], record_every=_FAR).state.mean


def _dynamax(data: Data, settings: Settings) -> Callable[[], Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from dynamax.nonlinear_gaussian_ssm.inference_ekf import extended_kalman_filter
    from dynamax.nonlinear_gaussian_ssm.models import ParamsNLGSSM

    eye = jnp.eye(settings["d"])
    params = ParamsNLGSSM(
        jnp.zeros(settings["d"]),
        V0 * eye,
        lambda z, u: z,
        0 * eye,
        lambda z, u: jax.nn.sigmoid(u @ z)[None],
        jnp.eye(1),
    )

    @jax.jit
    def last(X: Any, y: Any) -> Any:
        out = extended_kalman_filter(params, y[:, None], inputs=X, output_fields=["filtered_means"])
        return out.filtered_means[-1]

    X, y = jnp.asarray(data["X"]), jnp.asarray(data["y"])
    return lambda: np.asarray(last(X, y))


def _least_squares(method: str) -> Callable[[Data, Settings], Callable[[], Any]]:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from scipy.optimize import least_squares

        X, y, d = data["X"], data["y"], settings["d"]

        def smooth_l1(t: np.ndarray) -> np.ndarray:  # as a residual: half of its square is g
            return np.sign(t) * np.sqrt(2 * LAM * (np.sqrt(1 + (t / DELTA) ** 2) - 1))

        def residuals(t: np.ndarray) -> np.ndarray:
            return np.concatenate([_sigmoid(X @ t) - y, smooth_l1(t), t / V0**0.5])

        def jacobian(t: np.ndarray) -> np.ndarray:
            h = _sigmoid(X @ t)
            r, root = smooth_l1(t), np.sqrt(1 + (t / DELTA) ** 2)
            slope = np.where(r == 0, LAM**0.5 / DELTA, LAM / DELTA**2 * t / root / np.where(r == 0, 1, r))
            return np.concatenate([(h * (1 - h))[:, None] * X, np.diag(slope), np.eye(d) / V0**0.5])

        tight = {"ftol": 1e-12, "xtol": 1e-10, "gtol": 1e-10}
        return lambda: least_squares(residuals, np.zeros(d), jacobian, method=method, **tight).x

    return build


PEERS = [
    Peer(FLOOR, "scipy", floor),
    Peer("kalprox pipg, one pass", "kalprox", _pipg, note="the literal recursion"),
    Peer("numba, the same formula", "numba", _numba),
    Peer("kalprox proximal_filter, one pass", "kalprox", _filter),
    Peer("kalprox refine, from zero to the MAP", "kalprox", _refine),
    Peer("kalprox proximal_filter, then refine", "kalprox", _filter_and_refine),
    Peer("SciPy least_squares, lm", "scipy", _least_squares("lm"), note="from zero to the MAP"),
    Peer("SciPy least_squares, trf", "scipy", _least_squares("trf"), note="from zero to the MAP"),
    Peer("dynamax extended_kalman_filter, one pass", "dynamax", _dynamax, at_most(60_000), note="no g"),
    Peer("kalprox sgd, one pass", "kalprox", _sgd, note="the paper's step sizes"),
]
