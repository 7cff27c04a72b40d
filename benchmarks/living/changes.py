"""Change points: the delay of detection against the rate of false alarms, beside River's detectors."""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from river.drift import ADWIN, PageHinkley

from benchmarks.streams import autoregressive
from benchmarks.table import grid
from kalprox import KalproxRegressor
from kalprox.learning.change_points import ChangeDetector
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.sources import Block

D, BEFORE, AFTER, STILL = 5, 400, 600, 1500  # columns, rows before and after a change, rows of a still stream
CASES = {
    "level + 0.5": ("level", 0.5),
    "level + 1": ("level", 1.0),
    "level + 2": ("level", 2.0),
    "level + 4": ("level", 4.0),
    "coefficients by 0.5": ("coef", 0.5),
    "coefficients by 1": ("coef", 1.0),
    "coefficients by 2": ("coef", 2.0),
    "noise x 2": ("noise", 2.0),
    "noise x 0.5": ("noise", 0.5),
}
RATES = (10.0, 3.0, 1.0)  # false alarms per 10,000 rows at which delays are compared
ODDS = np.geomspace(0.01, 1e8, 61)
ADWIN_DELTAS = (0.9, 0.5, 0.2, 0.05, 0.01, 0.002, 1e-4, 1e-6)
THRESHOLDS = np.geomspace(1, 400, 61)
DELTAS = (0.005, 0.1, 0.25, 0.5, 1.0)  # of PageHinkley: its default, and others
OURS, ADAPTIVE, PAGE, TUNED = "kalprox", "River ADWIN", "River PageHinkley", "PageHinkley, best delta"
ROBUST = ("Gaussian noise", "Student 3", "1% outliers x 20", "AR(.5) noise", "sorted inputs", "slow drift")


def measure(quick: bool) -> dict[str, Any]:
    """Return delays at equal rates of false alarms, false alarms on difficult streams, and times."""
    streams, changed = (20, 10) if quick else (200, 40)
    still = [_alarms(*_stream(seed, "still", 0.0, STILL)) for seed in range(10_000, 10_000 + streams)]
    exposed = _by_detector(still, lambda alarms: _rate(alarms, STILL))
    delays = {}
    for case, (kind, size) in CASES.items():
        found = [_alarms(*_stream(seed, kind, size, BEFORE + AFTER), BEFORE) for seed in range(changed)]
        delays[case] = _by_detector(found, _mean_delay)
    return {
        "streams": streams,
        "changed": changed,
        "delays": {case: _at_rates(exposed, of_case) for case, of_case in delays.items()},
        "curves": {case: _curves(exposed, of_case) for case, of_case in delays.items()},
        "robust": {name: _reported(name, 5 if quick else 20) for name in ROBUST},
        "microseconds": {str(d): _microseconds(d) for d in (10, 50)},
    }


def _stream(seed: int, kind: str, size: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, coef, noise = rng.normal(size=(n, D)), rng.normal(size=D), rng.normal(size=n)
    direction = rng.normal(size=D)
    changed = np.arange(n) >= BEFORE
    if kind == "level":
        noise[changed] += size
    if kind == "noise":
        noise[changed] *= size
    y = X @ coef + noise
    if kind == "coef":
        y[changed] += X[changed] @ direction * size / np.linalg.norm(direction)
    return X, y


# ---- detectors -------------------------------------------------------------------------------------------


def _alarms(X: np.ndarray, y: np.ndarray, since: int = 0) -> dict[Any, np.ndarray]:
    """Return the row of the first alarm, for each detector and threshold; infinite if none, NaN if before `since`."""
    found: dict[Any, np.ndarray] = {(OURS, ""): _first(_log_odds(X, y), np.log(ODDS), since)}
    mean, std = KalproxRegressor(penalty="ridge").prequential(X, y)
    z = np.where(np.isfinite(std), (y - mean) / std, 0.0)
    for name, values in (("z", z), ("|z|", np.abs(z))):
        for delta in DELTAS:
            found[PAGE, name, delta] = _first(_page_hinkley(values, delta), THRESHOLDS, since)
        found[ADAPTIVE, name] = np.array([_adwin(values, delta, since) for delta in ADWIN_DELTAS])
    return found


def _first(path: np.ndarray, thresholds: np.ndarray, since: int) -> np.ndarray:
    """Return the first row at which a path exceeds each threshold; NaN if it is before `since`."""
    above = path[:, None] > thresholds
    first = np.where(above.any(axis=0), above.argmax(axis=0), np.inf)
    return np.where(first < since, np.nan, first)


def _log_odds(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log odds of a change after each row, without a report on the way."""
    settings = Settings.of(change_points=True)
    belief = Learner(settings)
    belief.learn(Block(X[:1], y[:1]))
    detector = ChangeDetector.start(settings, D, 0).after(Block(X[:32], y[:32]), belief.belief)
    runs, ones = detector.runs, np.ones((len(X) - 32, 1))
    assert runs is not None
    odds = np.full(len(X), -np.inf)
    for i, _ in enumerate(detector.steps(runs, detector.last, np.hstack([X[32:], y[32:, None], ones, ones, ones]))):
        new = runs.start > runs.known
        with np.errstate(divide="ignore"):
            odds[32 + i] = np.log(runs.weight[new].sum()) - np.log(runs.weight[~new].sum())
    return odds


def _page_hinkley(values: np.ndarray, delta: float) -> np.ndarray:
    """Return the statistic of PageHinkley after each row, as it is compared with the threshold."""
    detector, path = PageHinkley(delta=delta, threshold=math.inf), np.zeros(len(values))
    for i, value in enumerate(values.tolist()):
        detector.update(value)
        rise, fall = (
            detector._sum_increase - detector._min_increase,
            detector._max_decrease - detector._sum_decrease,
        )
        path[i] = max(rise, fall) if i + 1 >= detector.min_instances else 0.0
    return path


def _adwin(values: np.ndarray, delta: float, since: int) -> float:
    detector = ADWIN(delta=delta, clock=1)
    for i, value in enumerate(values.tolist()):
        detector.update(value)
        if detector.drift_detected:
            return i if i >= since else math.nan
    return math.inf


# ---- equal rates -----------------------------------------------------------------------------------------


def _by_detector(found: list[dict[Any, np.ndarray]], summary: Any) -> dict[Any, np.ndarray]:
    return {key: summary(np.stack([one[key] for one in found])) for key in found[0]}


def _rate(alarms: np.ndarray, rows: int) -> np.ndarray:
    """Return the false alarms per 10,000 rows, until the first one of each stream."""
    return 1e4 * np.isfinite(alarms).sum(axis=0) / np.minimum(alarms, rows).sum(axis=0)


def _mean_delay(alarms: np.ndarray) -> np.ndarray:
    """Return the mean delay over the streams without an alarm before the change; a miss counts as `AFTER` rows."""
    known = ~np.isnan(alarms)
    total = np.where(known, np.minimum(alarms - BEFORE, AFTER), 0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def _delay(rates: np.ndarray, delays: np.ndarray, rate: float) -> float:
    """Return the delay at a rate of false alarms, between the thresholds with the next rates."""
    known = (rates > 0) & np.isfinite(delays)
    if not known.any() or rate < rates[known].min() or rate > rates.max():
        return math.nan
    order = np.argsort(rates[known], kind="stable")
    return float(np.interp(np.log(rate), np.log(rates[known][order]), delays[known][order]))


def _at_rates(exposed: dict[Any, np.ndarray], delays: dict[Any, np.ndarray]) -> dict[str, list[float]]:
    """Return for each detector the delays at `RATES`: of the better one of z and |z|, and of the best delta."""
    found: dict[str, list[float]] = {}
    for name in (OURS, ADAPTIVE, PAGE, TUNED):
        keys = [key for key in delays if key[0] == (PAGE if name == TUNED else name)]
        keys = [key for key in keys if name != PAGE or key[2] == DELTAS[0]]
        best = [[_delay(exposed[key], delays[key], rate) for key in keys] for rate in RATES]
        found[name] = [float(np.nanmin(one)) if np.isfinite(one).any() else math.nan for one in best]
    return found


def _curves(exposed: dict[Any, np.ndarray], delays: dict[Any, np.ndarray]) -> list[list[float]]:
    """Return rate and delay of kalprox for each threshold with any false alarm."""
    rates, key = exposed[OURS, ""], (OURS, "")
    return [[float(r), float(d)] for r, d in zip(rates, delays[key], strict=True) if r > 0]


# ---- difficult streams, and time -------------------------------------------------------------------------


def _difficult(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(20_000 + seed)
    n = STILL
    X, coef, noise = rng.normal(size=(n, D)), rng.normal(size=D), rng.normal(size=n)
    coefs = np.tile(coef, (n, 1))
    if name == "Student 3":
        noise = rng.standard_t(3, size=n) / 3**0.5
    if name == "1% outliers x 20":
        noise[rng.random(n) < 0.01] *= 20
    if name == "AR(.5) noise":
        noise = autoregressive(rng, n, 1, 0.5)[:, 0]
    if name == "sorted inputs":
        X = X[np.argsort(X[:, 0])]
    if name == "slow drift":
        coefs += np.cumsum(rng.normal(scale=0.003, size=(n, D)), axis=0)
    return X, (X * coefs).sum(axis=1) + noise


def _reported(name: str, streams: int) -> dict[str, float]:
    """Return how many changes are reported per 10,000 rows of streams without a jump, with the default settings."""
    found: dict[str, float] = {OURS: 0.0, ADAPTIVE: 0.0, PAGE: 0.0}
    for seed in range(streams):
        X, y = _difficult(name, seed)
        model = KalproxRegressor(change_points=True, penalty="ridge")
        mean, std = model.prequential(X, y)
        z = np.where(np.isfinite(std), (y - mean) / std, 0.0)
        found[OURS] += model.diagnostics_.changes.found
        for key, detector in ((ADAPTIVE, ADWIN()), (PAGE, PageHinkley())):
            found[key] += sum(_updates(detector, z))
    return {key: value * 1e4 / (streams * STILL) for key, value in found.items()}


def _updates(detector: Any, values: np.ndarray) -> Iterator[bool]:
    for value in values.tolist():
        detector.update(value)
        yield detector.drift_detected


def _microseconds(d: int) -> dict[str, float]:
    """Return the time of a row in blocks of 1,000, with and without change points: the best of five."""
    rng, times = np.random.default_rng(0), {}
    X = rng.normal(size=(6000, d))
    y = X @ rng.normal(size=d) + rng.normal(size=6000)
    for name, change_points in (("without", False), ("with", True)):
        model = KalproxRegressor(change_points=change_points, penalty="ridge").partial_fit(X[:1000], y[:1000])
        best = math.inf
        for i in range(1000, 6000, 1000):
            begin = time.process_time()
            model.partial_fit(X[i : i + 1000], y[i : i + 1000]).diagnostics_  # noqa: B018  # which looks at the rows
            best = min(best, (time.process_time() - begin) / 1000)
        times[name] = best * 1e6
    return times


# ---- tables ----------------------------------------------------------------------------------------------


def parts(numbers: dict[str, Any]) -> dict[str, str]:
    """Return the tables as Markdown."""
    names = (OURS, ADAPTIVE, PAGE, TUNED)
    head = ["change", *(f"{name}, {rate:g}" for rate in (RATES[0], RATES[-1]) for name in names)]
    lines = [
        [case, *(_rows(found[name][i]) for i in (0, len(RATES) - 1) for name in names)]
        for case, found in numbers["delays"].items()
    ]
    robust = [[name, *(f"{found[key]:.2f}" for key in found)] for name, found in numbers["robust"].items()]
    times = [[f"d = {d}", *(f"{found[key]:.1f}" for key in found)] for d, found in numbers["microseconds"].items()]
    return {
        "changes streams": f"Mean delays over {numbers['changed']} streams of each kind, without an alarm before the "
        f"change, which count {AFTER} rows if it is missed; the thresholds that give a rate were found on "
        f"{numbers['streams']} streams of {STILL:,} rows without a change.",
        "changes delay": grid(head, lines),
        "changes robust": grid(["stream without a jump", *numbers["robust"][ROBUST[0]]], robust),
        "changes time": grid(["µs a row, in blocks of 1,000", "without", "with change points"], times),
    }


def _rows(delay: float | None) -> str:
    return "" if delay is None or math.isnan(delay) else f"{delay:.0f}" if delay < AFTER - 0.5 else f"{AFTER}+"
