"""
A River pipeline: features that come later
==========================================

River learns from dictionaries, one row at a time. The hours of a bike-sharing scheme come as such a stream: each
hour is predicted before it is learned. After a month the scheme starts to write down the weather, so that features
come that no row had before. ``RiverRegressor`` takes them as they come: their coefficients start at their prior, and
the model is exactly the one that a matrix with columns of zeros would have given.

The counts are those of Capital Bikeshare, 2011 (Fanaee-T and Gama).

Run it: ``pip install "kalprox[river]" matplotlib pandas``
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from river import compose, linear_model, preprocessing

from kalprox.adapters.river import RiverRegressor

here = Path(__file__).parent if "__file__" in globals() else Path.cwd()
hours = pd.read_csv(here / "bikeshare.csv.gz").iloc[:2500]

# %%
# A row has the hour and the day, each a feature of its own by River's ``OneHotEncoder``. From hour 700 on, it has the
# weather too.


def rows():
    for i, (_, hour) in enumerate(hours.iterrows()):
        row = {"hour": str(hour["hr"]), "workday": str(hour["workingday"])}
        if i >= 700:
            row |= {"temp": float(hour["temp"]), "weather": hour["weathersit"]}
        yield row, float(hour["bikers"]) ** 0.5


def pipeline(model):
    encode = compose.SelectType(str) | preprocessing.OneHotEncoder()
    return (encode + compose.SelectType(float)) | model


# %%
# Every hour is predicted, with an interval, and then learned. The error is that of the root of the count.

ours = pipeline(RiverRegressor(forget=0.998, diagnose=True))
theirs = pipeline(linear_model.BayesianLinearRegression(smoothing=0.998))
error, covered, width = {"kalprox": [], "River": []}, [], []
for x, y in rows():
    found = ours.predict_one(x, with_dist=True)
    error["kalprox"].append(abs(y - found.mu))
    error["River"].append(abs(y - theirs.predict_one(x)))
    if found.scale > 0 and np.isfinite(found.scale):
        low, high = found.interval(0.9)
        covered.append(low <= y <= high)
        width.append(high - low)
    ours.learn_one(x, y)
    theirs.learn_one(x, y)

late = slice(1000, None)
after = {name: round(float(np.mean(values[late])), 2) for name, values in error.items()}
print("mean absolute error after the first 1,000 hours:", after)
print("90% intervals cover", round(float(np.mean(covered)), 3))

estimator = ours["RiverRegressor"].to_estimator()
names = list(estimator.feature_names_in_)
print("temp:", estimator.coef_[names.index("temp")].round(2), "+-", estimator.coef_std_[names.index("temp")].round(2))
print(estimator.diagnostics_.verdict())

# %%
# The running error of both, and the width of the intervals, which are wide again for a while when the weather comes.

figure, axes = plt.subplots(2, 1, figsize=(6, 5), layout="constrained", sharex=True)
for name, values in error.items():
    axes[0].plot(pd.Series(values).rolling(168).mean(), label=name)
axes[0].axvline(700, color="0.7")
axes[0].set(xlabel="hour", ylabel="mean |error| of a week", ylim=(0, 6))
axes[0].legend()
axes[1].plot(width)
axes[1].set(xlabel="hour", ylabel="width of 90% intervals", ylim=(0, 25))
plt.show()
