"""The main jobs in three minutes, to compare before and after a change: `make bench ARGS=--quick`.

What is kept is the time of each job as a multiple of that of a peer, both timed in turns in this process: first the
peer, then kalprox, round after round, so that other load falls on both. The ratio is the median of the rounds, of CPU
times of all threads and commands. The full benchmark, with a process for each peer, accuracy and memory, is the page on
performance; these ratios are for comparisons with the ones kept in results/quick.json.
"""

import copy
import datetime
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import batches, from_files
from benchmarks.harness import Data, Peer, Settings, cpu_time
from benchmarks.machine import describe, load
from benchmarks.table import grid, plain
from kalprox import penalties

__all__ = ["NOISE", "compared", "main"]

Build = Callable[[Data, Settings], Callable[[], Any]]
NOISE = 1.25  # at a load of 5 on two cores, no ratio of two pairs of runs of the same code differed by more
_ROUNDS = 4, 40  # at least, and at most
_LONG = 0.01  # seconds; what is shorter is called several times in a round


class Group(NamedTuple):
    """Jobs that take turns with one peer, on the same rows."""

    work: str
    settings: dict[str, Any]
    data: Callable[[Settings], Data]
    peer: Peer
    jobs: dict[str, Build]


# ---- how a job is built --------------------------------------------------------------------------------------


def _rows(settings: Settings) -> Data:
    """Rows of numbers, counts or classes, with one coefficient in five that is not zero; some to be learned before."""
    n, d, before = settings["n"], settings["d"], settings.get("before", 0)
    rng = np.random.default_rng([3, n, d])
    X, theta = rng.standard_normal((n + before, d)), rng.standard_normal(d) / d**0.5
    theta[d // 5 :] = 0
    f = X @ theta
    y = {
        "numbers": lambda: f + rng.standard_normal(n + before),
        "counts": lambda: rng.poisson(np.exp(f)).astype(float),
        "classes": lambda: (f + rng.logistic(size=n + before) > 0).astype(int),
    }[settings.get("y", "numbers")]()
    groups = np.arange(n) // 20
    return {"X": X[before:], "y": y[before:], "X_before": X[:before], "y_before": y[:before], "groups": groups}


def _model(name: str, **options: Any) -> Callable[[], Any]:
    """A function that makes a model of the class with this name, which is imported when the model is made."""
    module, _, of = name.rpartition(".")
    return lambda: getattr(import_module(module), of)(**options)


def _fit(make: Callable[[], Any], read: str = "coef_", groups: bool = False) -> Build:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        about = {"clusters": data["groups"]} if groups else {}
        return lambda: getattr(make().fit(data["X"], data["y"], **about), read)

    return build


def _ols(**options: Any) -> Build:
    """Least squares with standard errors by statsmodels."""

    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        from statsmodels.api import OLS, add_constant

        about = {"cov_kwds": {"groups": data["groups"]}} if options["cov_type"] == "cluster" else {}
        return lambda: OLS(data["y"], add_constant(data["X"])).fit(**options, **about).bse

    return build


def _predict(make: Callable[[], Any], name: str, **options: Any) -> Build:
    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        model = make().fit(data["X"], data["y"])
        return lambda: getattr(model, name)(data["X"], **options)

    return build


def _arrays(make: Callable[[], Any], name: str = "predict", **first: Any) -> Build:
    """Predict each batch, or each row, and then learn it, by a model that has learned others before."""

    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        X, y, size = data["X"], data["y"], settings.get("batch", 1)
        begun = make().partial_fit(data["X_before"], data["y_before"], **first)
        pieces = [(X[i : i + size], y[i : i + size]) for i in range(0, len(y), size)]

        def go() -> None:
            model = copy.deepcopy(begun)
            predict = getattr(model, name)
            for x, t in pieces:
                predict(x)
                model.partial_fit(x, t)

        return go

    return build


def _dictionaries(make: Callable[[], Any], name: str = "predict_one") -> Build:
    """The same for a model of River."""

    def build(data: Data, settings: Settings) -> Callable[[], Any]:
        def rows(X: np.ndarray, y: np.ndarray) -> list[tuple[dict[str, float], Any]]:
            y = y.astype(bool) if settings.get("y") == "classes" else y
            return [({f"x{j}": v for j, v in enumerate(x)}, t) for x, t in zip(X.tolist(), y.tolist(), strict=True)]

        begun, pieces = make(), rows(data["X"], data["y"])
        for row in rows(data["X_before"], data["y_before"]):
            begun.learn_one(*row)

        def go() -> None:
            model = copy.deepcopy(begun)
            predict = getattr(model, name)
            for x, t in pieces:
                predict(x)
                model.learn_one(x, t)

        return go

    return build


def _pandas(data: Data, settings: Settings) -> Callable[[], Any]:
    import pandas as pd
    from sklearn.linear_model import Ridge

    def go() -> Any:
        frame = pd.read_csv(settings["file"])
        return Ridge().fit(frame.drop(columns="y"), frame["y"]).coef_

    return go


def _python(*args: str) -> Build:
    """Start Python, and wait until it has ended."""
    return lambda data, settings: lambda: subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)


# ---- the jobs ------------------------------------------------------------------------------------------------


def groups() -> Iterator[Group]:
    """Yield the jobs, beside their peers."""
    regressor, classifier = "kalprox.KalproxRegressor", "kalprox.KalproxClassifier"
    river = "kalprox.adapters.river"

    def sklearn(name: str, **options: Any) -> Peer:
        return Peer(f"scikit-learn {name}", "scikit-learn", _fit(_model(f"sklearn.linear_model.{name}", **options)))

    for d, n in ((10, 50_000), (100, 10_000), (300, 4_000)):
        jobs = {"every row scored": _fit(_model(regressor)), "diagnose=False": _fit(_model(regressor, diagnose=False))}
        yield Group(f"fit, d = {d}", {"d": d, "n": n}, _rows, sklearn("Ridge"), jobs)

    of_batches = {peer.name: peer for peer in batches.PEERS}
    ours, sgd = of_batches["kalprox partial_fit"].build, of_batches["scikit-learn SGDRegressor"]
    for d in (10, 100):
        for size, n in ((16, 4_096), (256, 16_384), (4096, 32_768)):
            settings = {"d": d, "n": n, "batch": size, "before": 16_384}
            yield Group(f"partial_fit, d = {d}", settings, batches.data, sgd, {f"{size} rows": ours})
        settings = {"d": d, "n": 8_192, "batch": 256, "before": 0}
        yield Group(f"partial_fit, d = {d}", settings, batches.data, sgd, {"256 rows, the first 8,192": ours})

    settings = {"d": 20, "n": 400, "before": 3_000}
    peer = Peer("River LinearRegression", "river", _dictionaries(_model("river.linear_model.LinearRegression")))
    jobs = {"arrays": _arrays(_model(regressor)), "dictionaries": _dictionaries(_model(f"{river}.RiverRegressor"))}
    yield Group("one row, d = 20", settings, _rows, peer, jobs)

    logistic = _dictionaries(_model("river.linear_model.LogisticRegression"), "predict_proba_one")
    jobs = {
        "arrays": _arrays(_model(classifier), "predict_proba", classes=[0, 1]),
        "dictionaries": _dictionaries(_model(f"{river}.RiverClassifier"), "predict_proba_one"),
    }
    peer = Peer("River LogisticRegression", "river", logistic)
    yield Group("one row of classes, d = 20", settings | {"y": "classes"}, _rows, peer, jobs)

    settings = {"d": 50, "n": 3_000}
    lasso = {"penalty": "l1", "alpha": 0.02 * settings["n"]}
    jobs = {
        "penalty='l1'": _fit(_model(regressor, **lasso)),
        "penalty='l1', diagnose=False": _fit(_model(regressor, **lasso, diagnose=False)),
    }
    yield Group("fit, d = 50", settings, _rows, sklearn("Lasso", alpha=0.02, tol=1e-10), jobs)
    jobs = {"penalty='l1', alpha='auto'": _fit(_model(regressor, penalty="l1", alpha="auto"))}
    yield Group("fit, d = 20", {"d": 20, "n": 2_000}, _rows, sklearn("LassoCV"), jobs)

    settings = {"d": 20, "n": 10_000}
    jobs = {"classes": _fit(_model(classifier))}
    yield Group("fit, d = 20", settings | {"y": "classes"}, _rows, sklearn("LogisticRegression"), jobs)
    jobs = {"counts": _fit(_model(regressor, likelihood="poisson"))}
    yield Group("fit, d = 20", settings | {"y": "counts"}, _rows, sklearn("PoissonRegressor"), jobs)
    jobs = {"coef_cov='robust'": _fit(_model(regressor, coef_cov="robust"), "coef_std_")}
    yield Group("fit, d = 20", settings, _rows, Peer("statsmodels OLS, HC3", "statsmodels", _ols(cov_type="HC3")), jobs)
    jobs = {"coef_cov='clustered'": _fit(_model(regressor, coef_cov="clustered"), "coef_std_", groups=True)}
    yield Group(
        "fit, d = 20", settings, _rows, Peer("statsmodels OLS, cluster", "statsmodels", _ols(cov_type="cluster")), jobs
    )

    by_setting: dict[str, dict[str, Any]] = {
        "forget=0.999": {"forget": 0.999},
        "standardize=True": {"standardize": True},
        "penalty='elasticnet'": {"penalty": "elasticnet"},
        "penalty='box'": {"penalty": penalties.Box(0.0, 1.0)},
    }
    jobs = {name: _arrays(_model(regressor, **options)) for name, options in by_setting.items()}
    peer = Peer("kalprox, ridge", "kalprox", _arrays(_model(regressor)))
    for name, size, n in (("one row", 1, 400), ("64 rows", 64, 2_048)):
        yield Group(f"{name}, d = 20", {"d": 20, "n": n, "batch": size, "before": 3_000}, _rows, peer, jobs)

    jobs = {
        "return_std=True": _predict(_model(regressor), "predict", return_std=True),
        "intervals": _predict(_model(regressor), "predict_interval"),
    }
    peer = Peer("scikit-learn Ridge", "scikit-learn", _predict(_model("sklearn.linear_model.Ridge"), "predict"))
    yield Group("predict, d = 20", {"d": 20, "n": 1_000}, _rows, peer, jobs)

    of_files = {peer.name: peer.build for peer in from_files.PEERS}
    peer = Peer("pandas read_csv, then Ridge", "pandas", _pandas)
    settings = {"d": 20, "n": 10_000, "file": from_files.place("rows.csv")}
    yield Group("CSV file, d = 20", settings, from_files.data, peer, {"fit": of_files["kalprox FitJob, whole"]})

    jobs = {
        "import kalprox": _python("-c", "import kalprox"),
        "import KalproxRegressor": _python("-c", "from kalprox import KalproxRegressor"),
        "kalprox --version": _python("-m", "kalprox", "--version"),
        "kalprox fit of 100 rows": of_files["kalprox fit, the command"],
    }
    peer = Peer("import sklearn.linear_model", "scikit-learn", _python("-c", "import sklearn.linear_model"))
    settings = {"d": 5, "n": 100, "file": from_files.place("few.csv")}
    yield Group("start", settings, from_files.data, peer, jobs)


# ---- the run -------------------------------------------------------------------------------------------------


def ratios(group: Group, seconds: float) -> dict[str, float]:
    """Return the time of each job relative to the peer: the median of rounds that take about `seconds` for each."""
    data = group.data(group.settings)
    calls = [build(data, group.settings) for build in (group.peer.build, *group.jobs.values())]
    for call in calls:
        call()
    gc.collect()
    gc.freeze()  # what is there stays: a collection would go through all of it, in the time of whoever is next
    rounds, begin, (least, most) = [], cpu_time(), _ROUNDS
    while len(rounds) < least or (len(rounds) < most and cpu_time() - begin < seconds * len(calls)):
        rounds.append([_seconds(call) for call in calls])
    times = np.array(rounds)
    found = np.median(times[:, 1:] / times[:, :1], axis=0)
    return dict(zip(group.jobs, found.tolist(), strict=True))


def _seconds(call: Callable[[], Any]) -> float:
    """Return the CPU time of a call: the mean of several if it is short."""
    begin, count = cpu_time(), 0
    while not count or cpu_time() - begin < _LONG:
        call()
        count += 1
    return (cpu_time() - begin) / count


def compared(before: dict[str, float], after: dict[str, float]) -> str:
    """Return a table of the ratios kept and those of now, with a word where they differ by more than noise."""
    lines = []
    for name, ratio in after.items():
        job, _, beside = name.partition(" | ")
        line = [job, beside, "", f"{ratio:.3g}", "", "new"]
        if name in before:
            change = ratio / before[name]
            word = "**slower**" if change > NOISE else "faster" if change < 1 / NOISE else ""
            line[2:] = [f"{before[name]:.3g}", f"{ratio:.3g}", f"{change:.2f}", word]
        lines.append(line)
    return grid(["", "beside", "before", "after", "after / before", ""], lines)


def main(file: Path, keep: bool, only: str, seconds: float) -> None:
    """Measure, print the ratios beside those of the file, and write them there if there are none, or with `keep`.

    `only` has parts of the names of jobs, with commas between them; what is kept of other jobs stays.
    """
    warnings.simplefilter("ignore")
    begin, machine, found, versions = time.perf_counter(), describe(), {}, {}
    for group in groups():
        if not any(part in group.work for part in only.split(",")):
            continue
        versions[group.peer.package] = version(group.peer.package)
        for job, ratio in ratios(group, seconds).items():
            found[f"{group.work}: {job} | {group.peer.name}"] = ratio
            print(f"{time.perf_counter() - begin:4.0f} s  {ratio:8.3g}  {group.work}: {job}", flush=True)
    kept = json.loads(file.read_text()) if file.exists() else {}
    print(f"\n{compared(kept.get('ratios', {}), found)}\n\nTimes of kalprox divided by those of the other, CPU times.")
    print(f"Marked if they differ by more than a factor of {NOISE}, which is rarely noise; --only measures some again.")
    if kept:
        print(f"Before: {kept['date']}, {kept['machine']['cpu']}, load {kept['machine']['load_before'][0]}.")
    if keep or not kept:
        others = kept if only else {}
        result = {"date": datetime.date.today().isoformat(), "machine": machine, "load_after": load()}
        result["minutes"] = round((time.perf_counter() - begin) / 60, 1)
        result |= {name: others.get(name, {}) | new for name, new in (("versions", versions), ("ratios", found))}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(plain(result), indent=1) + "\n")
        print(f"Written: {file.name} in {file.parent}")
