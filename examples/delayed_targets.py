"""
Bike rentals: late targets, missing features
============================================

A model in production predicts before it knows. The bikes of an hour are counted when they have been returned, half a
day later, a thermometer falls silent, a report of yesterday's rentals is lost. kalprox holds the rows that were
predicted, by a key, until ``learn_late`` has their targets. ``missing="marginalize"`` predicts and learns a row without
some of its features by what the others say of them, with the uncertainty that this leaves.

The data are the bikes rented in each hour of the first half of 2011 in Washington, D.C. (Capital Bikeshare; Fanaee-T
and Gama, *Event labeling combining ensemble detectors and background knowledge*, 2013, CC BY 4.0). The file
:download:`bikeshare.csv.gz <../../examples/bikeshare.csv.gz>` lies beside this script.

Run it: ``pip install "kalprox[estimator]" matplotlib pandas``
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from kalprox import KalproxRegressor

FILE = "bikeshare.csv.gz"
beside = Path(sys.argv[0]).with_name(FILE)  # of a script; a notebook looks in its own folder
data = pd.read_csv(beside if beside.exists() else FILE).query("day <= 181")
count = data["bikers"].to_numpy(float)

# %%
# The features: the hour and the weather as columns of 0 and 1, whether it is a working day, the temperature now and a
# day before, and the count of a day before. Of the last three, each is missing in a third of the hours, at random.

levels = pd.get_dummies(data[["hr", "weathersit"]].astype(str), drop_first=True)
temp = data["temp"].to_numpy()
known = np.column_stack([levels, data["workingday"], temp, np.roll(temp, 24), np.roll(count, 24)]).astype(float)[24:]
y = count[24:]
X = known.copy()
X[:, -3:][np.random.default_rng(0).random((len(X), 3)) < 1 / 3] = np.nan
gaps = np.isnan(X).any(axis=1)
print(f"{len(X):,} hours, {gaps.mean():.0%} of them without some of their features")

# %%
# Every twelve hours the next twelve are predicted, and given to ``partial_fit`` without their targets, under the
# numbers of the hours. Then the targets of the twelve hours before are known, and ``learn_late`` learns them.
# ``forget=0.999`` lets old hours fade: to a model that forgets, a row is as old as its target.

FIRST, STEP = 1008, 12


def stream(X: np.ndarray, missing: str) -> tuple[np.ndarray, np.ndarray, KalproxRegressor]:
    """Return the 90% intervals of all rows, NaN for those that were not predicted, and the model."""
    model = KalproxRegressor(penalty="ridge", missing=missing, forget=0.999)
    low, high = np.full(len(y), np.nan), np.full(len(y), np.nan)
    for start in range(0, len(y), STEP):
        hours = np.arange(start, min(start + STEP, len(y)))
        if start >= FIRST:
            low[hours], high[hours] = model.predict_interval(X[hours], level=0.9)
        good = hours if missing != "drop" else hours[~np.isnan(X[hours]).any(axis=1)]
        if len(good):
            model.partial_fit(X[good], np.full(len(good), np.nan), keys=good)
        counted = np.arange(max(start - STEP, 0), start)
        counted = counted if missing != "drop" else counted[~np.isnan(X[counted]).any(axis=1)]
        if len(counted):
            model.learn_late(counted, y[counted])
    return low, high, model


runs = {
    "complete hours only": stream(X, "drop"),
    'missing="impute"': stream(X, "impute"),
    'missing="marginalize"': stream(X, "marginalize"),
}

# %%
# A model of complete hours has nothing to say about the others, two thirds of them. Means in place of what is missing
# predict them, with intervals no wider than where all is known. Marginalised, they are wider where they must be.

later = np.arange(len(y)) >= FIRST
print(f"{'learned':>30} {'predicted':>9} {'error':>6} {'inside 90%':>10} {'of gaps':>7} {'width':>5} {'of gaps':>7}")
for name, (low, high, model) in runs.items():
    rows = later & np.isfinite(low)
    inside, error, width = (low <= y) & (y <= high), np.sqrt(np.mean((y - (low + high) / 2)[rows] ** 2)), high - low
    line = f"{name:<22} {model.n_rows_seen_:>7,} {rows.sum() / later.sum():>9.0%} {error:>6.1f}"
    line += f" {inside[rows].mean():>10.1%}"
    some, others = rows & gaps, rows & ~gaps
    if some.any():
        line += f" {inside[some].mean():>7.1%} {width[others].mean():>5.0f} {width[some].mean():>7.0f}"
    print(line)

# %%
# The last hours still wait, and are saved with the model. The coefficient of yesterday's count, with its standard
# error: means in place of lost counts take almost half of it away. (The intervals of all three cover less than they
# say, because rentals grow and the noise depends on the hour; another example is about that.)

for name, (_, _, model) in runs.items():
    print(
        f"{name:<22} {model.n_rows_pending_} wait, yesterday's count {model.coef_[-1]:.3f} ± {model.coef_std_[-1]:.3f}"
    )

# %%
# Two days in June with the marginalised 90% intervals: where the count of the day before is missing, they are wider.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
shown = np.flatnonzero(np.isin(data["day"].to_numpy()[24:], [159, 160]))  # days of the year
low, high, _ = runs['missing="marginalize"']
hours, lost = np.arange(len(shown)), np.isnan(X[shown, -1])
for which, colour, label in ((~lost, BLUE, "yesterday's count known"), (lost, ORANGE, "yesterday's count missing")):
    ends = low[shown][which], high[shown][which]
    ax.vlines(hours[which], *ends, color=colour, lw=6, alpha=0.45, label=label)
ax.plot(hours, y[shown], "k.", ms=7, label="observed, half a day later")
ax.set(xlabel="hour, 8 and 9 June 2011", ylabel="bikes rented", xticks=range(0, len(shown), 6), ylim=(-160, 1000))
ax.set_xticklabels([str(h % 24) for h in range(0, len(shown), 6)])
ax.legend(loc="upper left", frameon=False)
plt.show()
