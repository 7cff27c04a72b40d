"""
Bike rentals: how much to forget
================================

More bikes are rented from month to month, and not in the same way: a holiday, a storm or a new station changes the rule
for days or for good. A model that forgets nothing is left behind, one that forgets fast is noisy, and which is better
changes along the year. With ``forget="auto"`` kalprox runs several ways to forget side by side, and mixes them by how
well each has predicted so far.

The data are the bikes rented in each hour of 2011 in Washington, D.C. (Capital Bikeshare; Fanaee-T and Gama, *Event
labeling combining ensemble detectors and background knowledge*, 2013, CC BY 4.0). The file
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
data = pd.read_csv(beside if beside.exists() else FILE)
count = data["bikers"].to_numpy(float)

# %%
# The inputs are known an hour ahead: the hour of the day and the weather as columns of 0 and 1, whether it is a working
# day, the temperature, and the counts one hour and one day before. The first day has no day before it, and is left out.

levels = pd.get_dummies(data[["hr", "weathersit"]].astype(str), drop_first=True)
X = np.column_stack([levels, data[["workingday", "temp"]], np.roll(count, 1), np.roll(count, 24)]).astype(float)[24:]
y = count[24:]

# %%
# Every hour is predicted from all hours before it, and then learned. The log score is the logarithm of the density that
# was predicted for what came: the higher, the better. The first six weeks are not counted.

FIRST, WEEK = 1008, 7 * 24


def log_scores(forget: float | str) -> tuple[np.ndarray, KalproxRegressor]:
    """Return the sum of the log scores of each week, and the model."""
    model, totals = KalproxRegressor(penalty="ridge", forget=forget), []
    model.partial_fit(X[:FIRST], y[:FIRST])
    for start in range(FIRST, len(y), WEEK):
        totals.append(float(model.diagnostics_.log_score))
        model.partial_fit(X[start : start + WEEK], y[start : start + WEEK])
    return np.diff([*totals, float(model.diagnostics_.log_score)]), model


ways: tuple[float | str, ...] = (1.0, 0.9995, 0.998, 0.99, 0.96, "auto")
found = {forget: log_scores(forget) for forget in ways}
rows = len(y) - FIRST
for forget, (weeks, _) in found.items():
    print(f"forget={forget}: mean log score {weeks.sum() / rows:.3f}")

# %%
# The mixture is better than the best of the fixed ways, which could be known only at the end of the year: it need not
# stay with one of them. The figure shows how far each is ahead of a model that forgets nothing, week by week added up.

BLUE, GREY = "#0072B2", "#8a8a8a"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
at = FIRST + WEEK * np.arange(1, len(found["auto"][0]) + 1)
for forget, style in ((0.9995, ":"), (0.998, "--"), (0.99, "-.")):
    ahead = np.cumsum(found[forget][0] - found[1.0][0])
    ax.plot(at, ahead, style, color=GREY, label=f"forget={forget}")
ax.plot(at, np.cumsum(found["auto"][0] - found[1.0][0]), color=BLUE, lw=2.2, label='forget="auto"')
ax.axhline(0, color="black", lw=1)
ax.set(xlabel="hours", ylabel="log score ahead of\nno forgetting", xlim=(0, len(y)))
ax.legend(frameon=False, loc="upper left")
plt.show()

# %%
# These are the weights with which the ways to forget were mixed. A number is a forgetting factor; with "intercept" only
# the intercept moves, and the other coefficients stay.

weights = found["auto"][1].forget_weights_
fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
weights.plot(ax)
ax.set_xlabel("hours")
plt.show()

# %%
# What a summary says of it: the weights at the end, and on how many rows the coefficients rest.

print(found["auto"][1].summary().facts["forget"])
