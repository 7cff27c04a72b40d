"""What a page shows of a stream: its counts now, and its coefficients, errors and weights as they moved."""

import threading
import time
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from kalprox.base.text import count
from kalprox.jobs.stream import StreamRun
from kalprox.jobs.stream_job import StreamCounts
from kalprox.learning.belief import Belief

_POINTS = 240  # that are kept; when there are more, every other one is dropped
_INTERVAL = 1.0  # seconds from one point to the next, at the beginning
_COLUMNS = 200  # coefficients that are followed
_SHOWN = 12  # coefficients that are shown: the most certain ones
_REASONS = 8  # for which rows are bad
_CHANGES = 20  # change points


class _Point(NamedTuple):
    row: int
    counts: StreamCounts
    coef: np.ndarray
    low: np.ndarray
    high: np.ndarray
    weights: dict[str, float] | None


class StreamView:
    """Follows a run, in a thread of its own, inside `with StreamView(run) as view`.

    A point is taken every second at the beginning; when there are 240 of them, every other one is dropped, and the next
    ones are taken at twice the interval. So the memory is bounded, whatever the length of the stream.

    Parameters
    ----------
    run : StreamRun
    interval : float
        Seconds from one point to the next, at the beginning.
    """

    def __init__(self, run: StreamRun, interval: float = _INTERVAL) -> None:
        self.run, self.interval = run, interval
        self._points: list[_Point] = []
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._rate = (time.monotonic(), 0, float("nan"))  # when, rows answered by then, and rows a second
        self._thread = threading.Thread(target=self._follow, daemon=True, name="kalprox-view")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _follow(self) -> None:
        while not self._stop.wait(self.interval):
            self.sample()

    def sample(self) -> None:
        """Take a point, if rows have come since the last one."""
        run = self.run
        with run.lock:  # a reading folds rows into a copy of the belief, which never changes
            if not run.is_open or not run.learner.is_fitted:
                return
            row, counts, belief = run.position.row, run.counts, run.learner.belief
        with self._lock:
            if self._points and self._points[-1].row == row:
                return
            self._points.append(_Point(row, counts, *_coefficients(belief, run.job.level), _weights(belief)))
            if len(self._points) > _POINTS:
                self._points, self.interval = self._points[::2], 2 * self.interval

    def state(self) -> dict[str, Any]:
        """Return what the page shows, in the types of JSON and arrays."""
        run = self.run
        with run.lock:
            counts, position, waiting, answered = run.counts, run.position, len(run.pending), run.answered
            latencies, is_open = list(run.latencies), run.is_open
            quality = run.quality() if is_open else None
            fitted = is_open and run.learner.is_fitted
            changes = run.changes() if fitted else None
        with self._lock:
            points = list(self._points)
            self._rate = _rate(self._rate, answered)
        columns = run.columns if is_open else None
        found: dict[str, Any] = {
            "target": None if columns is None else columns.target,
            "classes": bool(columns is not None and columns.classes),
            "about": f"From {run.job.source}" if run.job.source != "-" else "From standard input",
            "rows": position.row,
            "learned": counts.learned + counts.late,
            "predicted": counts.predicted,
            "waiting": waiting,
            "dropped": counts.dropped,
            "bad": counts.bad,
            "rate": self._rate[2],
            "latency": np.quantile(latencies, (0.5, 0.99)) if latencies else [None, None],
            "level": run.job.level,
            "error": counts.error,
            "coverage": counts.coverage,
            "reasons": [] if quality is None else list(map(list, quality.counted[:_REASONS])),
            "changes": [] if changes is None else [_change(point._asdict()) for point in changes.points[-_CHANGES:]],
            "foot": f"Byte {position.offset:,} of the input. " + _checkpoint(run),
        }
        if found["classes"]:
            found["error"] = counts.squares / counts.judged if counts.judged else None
        return found | _moved(points, [] if columns is None else _names(columns), classes=found["classes"])


def _coefficients(belief: Belief, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    coef = np.ravel(np.asarray(belief.coef, float))[:_COLUMNS]
    try:
        low, high = (np.ravel(np.asarray(end, float))[:_COLUMNS] for end in belief.coef_interval(level))
    except (ValueError, NotImplementedError):  # there are none before a warm-up has ended
        low = high = np.full(len(coef), np.nan)
    return coef, low, high


def _names(columns: Any) -> list[str]:
    """The names of the coefficients; of several classes, those of each class."""
    if len(columns.classes) > 2:
        return [f"{name} ({label})" for label in columns.classes for name in columns.names][:_COLUMNS]
    return list(columns.names[:_COLUMNS])


def _moved(points: list[_Point], names: list[str], *, classes: bool) -> dict[str, Any]:
    """The points of the coefficients that are known best, and of errors and coverage between the points."""
    chosen = list(range(len(names)))
    text = "No row has been learned yet."
    if points:
        last = points[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            known = np.nan_to_num(np.abs(last.coef) / (last.high - last.low), nan=0.0, posinf=np.inf)
        chosen = sorted(np.argsort(-known, kind="stable")[:_SHOWN].tolist())
        more = "" if len(names) <= _SHOWN else f" The {_SHOWN} of {len(names):,} that differ most from 0."
        text = f"The band is the interval.{more}"
    before = [StreamCounts(), *(point.counts for point in points)]
    between = [_between(old, new, classes=classes) for old, new in pairwise(before)]
    weights = points[-1].weights if points else None
    return {
        "names": [names[j] for j in chosen],
        "coefs_text": text,
        "weights": None if weights is None else {"names": list(weights)},
        "points": {
            "rows": [point.row for point in points],
            "coef": [point.coef[chosen] for point in points],
            "low": [point.low[chosen] for point in points],
            "high": [point.high[chosen] for point in points],
            "error": [error for error, _ in between],
            "coverage": [coverage for _, coverage in between],
            "weights": [None if point.weights is None else list(point.weights.values()) for point in points],
        },
    }


def _between(old: StreamCounts, new: StreamCounts, *, classes: bool) -> tuple[float | None, float | None]:
    """The error and the coverage of the predictions that were judged between two points."""
    n = new.judged - old.judged
    if n <= 0:
        return None, None
    mean = (new.squares - old.squares) / n
    return (mean if classes else max(mean, 0.0) ** 0.5), (new.covered - old.covered) / n


def _rate(last: tuple[float, int, float], answered: int) -> tuple[float, int, float]:
    """Rows a second since the last time, at least a second ago."""
    now = time.monotonic()
    when, rows, rate = last
    if now - when < 0.9:
        return when, rows, (answered - rows) / max(now - when, 1e-3) if rate != rate else rate
    return now, answered, (answered - rows) / (now - when)


def _checkpoint(run: StreamRun) -> str:
    if run.job.checkpoint is None:
        return "There is no checkpoint."
    return f"The checkpoint has {count(max(run.saved_at, 0), 'row')}."


def _weights(belief: Belief) -> dict[str, float] | None:
    """The weight of each way to forget, if the model chooses among several."""
    found = getattr(belief, "forget_weights", None)
    if found is None or np.ndim(found.weights) != 2:
        return None
    return dict(zip(found.names, np.asarray(found.weights[-1], float).tolist(), strict=True))


def _change(point: dict[str, Any]) -> dict[str, Any]:
    """A change point, at the first row after the change, for the page."""
    time = "" if point["start_time"] is None else f"{point['start_time']:g}"
    return {"row": point["start"], "found": point["row"], "probability": point["probability"], "time": time}
