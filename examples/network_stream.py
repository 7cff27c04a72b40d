"""
A network that learns a stream in one pass
==========================================

How many bikes are rented in an hour depends on the hour, the day and the weather, and not as a sum of their effects:
rain in the rush hour costs more than rain at night. A network can learn that. This one sees every hour once, in the
order of time, has no learning rate, and says how sure it is, beside a linear model on the same inputs.

The data are the bikes rented in each hour of 2011 in Washington, D.C. (Capital Bikeshare; Fanaee-T and Gama, *Event
labeling combining ensemble detectors and background knowledge*, 2013, CC BY 4.0). The file
:download:`bikeshare.csv.gz <../../examples/bikeshare.csv.gz>` lies beside this script.

Run it: ``pip install "kalprox[estimator,jax]" matplotlib pandas``
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import kalprox as kp

FILE = "bikeshare.csv.gz"
beside = Path(sys.argv[0]).with_name(FILE)  # of a script; a notebook looks in its own folder
data = pd.read_csv(beside if beside.exists() else FILE)
count = data["bikers"].to_numpy(float)
levels = pd.get_dummies(data[["hr", "weathersit"]].astype(str), drop_first=True)
X = np.column_stack([levels, data[["workingday", "temp"]], np.roll(count, 1), np.roll(count, 24)]).astype(float)[24:]
y = count[24:]

# %%
# Both models learn the first 1,000 hours. Then the hours of each day are predicted by the model of the days before, and
# learned when the day is over. The inputs of an hour are known one hour ahead: the count of the hour before is among
# them. The network has 20 hidden units. Of the precision matrix of its weights, 20 directions are kept beside the
# diagonal.

FIRST, DAY, END = 1000, 24, 2440


def forecasts(model: kp.KalproxRegressor | kp.KalproxNetRegressor) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the standard deviation of every hour, predicted by the model of the days before."""
    model.partial_fit(X[:FIRST], y[:FIRST])
    found = []
    for start in range(FIRST, END, DAY):
        rows = slice(start, start + DAY)
        found.append(model.predict(X[rows], return_std=True))
        model.partial_fit(X[rows], y[rows])
    mean, std = (np.concatenate(part) for part in zip(*found, strict=True))
    return mean, std


net = kp.KalproxNetRegressor((20,), structure=kp.structures.LowRank(20))
found = {"linear": forecasts(kp.KalproxRegressor(penalty="ridge", standardize=True)), "network": forecasts(net)}
after = y[FIRST : FIRST + len(found["linear"][0])]
for name, (mean, std) in found.items():
    z = (after - mean) / std
    score = np.mean(-np.log(std) - z**2 / 2 - np.log(2 * np.pi) / 2)
    inside = np.mean(np.abs(z) < 1.645)
    print(
        f"{name:8} error {np.sqrt(np.mean((after - mean) ** 2)):5.1f} bikes, log score {score:.2f}, {inside:.0%} in 90%"
    )

# %%
# The network has far smaller errors, and a higher log score. The intervals of both are too narrow, and cover less than
# they say. Below, the last five days.

LAST = slice(-5 * DAY, None)
hours = np.arange(5 * DAY) / DAY
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, axes = plt.subplots(2, 1, figsize=(6.2, 6.0), layout="constrained", sharex=True, sharey=True)
for ax, (name, (mean, std)), colour in zip(axes, found.items(), ("#D55E00", "#0072B2"), strict=True):
    low, high = (mean + side * 1.645 * std for side in (-1, 1))
    ax.fill_between(hours, low[LAST], high[LAST], color=colour, alpha=0.25, lw=0, label="90% interval")
    ax.plot(hours, mean[LAST], color=colour, label=name)
    ax.plot(hours, after[LAST], ".", color="black", ms=4, label="rented")
    ax.set(xlabel="days", ylabel="bikes an hour", xlim=(0, 5))
    ax.legend(loc="upper left", fontsize=10, frameon=False, ncols=3)
axes[0].set_ylim(-100, 520)
plt.show()
