"""
Hospitals that may not share patients
=====================================

Five hospitals follow people with diabetes. Each has too few of them to say much, and none may hand out its rows. They
need not: all that a linear model takes from rows is one small triangle of sums, and triangles add. Each hospital fits
its own model and sends the file. The merged model is the one that all rows together would have given.

The data are the 442 patients of Efron, Hastie, Johnstone and Tibshirani (*Least Angle Regression*, 2004), bundled with
scikit-learn: ten measurements, and how far the disease has progressed a year later. They do not name hospitals, so we
deal the patients to five of them by age, so that no two see the same kind of patients.

Run it: ``pip install "kalprox[files]" matplotlib pandas``
"""

import copy
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from kalprox import KalproxRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X = X.rename(columns={"bmi": "body mass index", "bp": "blood pressure"})
hospital = np.digitize(X["age"], X["age"].quantile([0.15, 0.4, 0.6, 0.85]))
print("patients in each hospital:", np.bincount(hospital))

# %%
# In each hospital: fit, and save without samples of the data. The file holds sums over the patients, no rows.

with tempfile.TemporaryDirectory() as folder:
    for k in range(5):
        mine = hospital == k
        model = KalproxRegressor(penalty=None).fit(X[mine], y[mine])
        model.save(Path(folder) / f"hospital{k}.kalprox", samples=False)
    sizes = [file.stat().st_size for file in Path(folder).iterdir()]
    hospitals = [KalproxRegressor.load(Path(folder) / f"hospital{k}.kalprox") for k in range(5)]
print(f"each sends a file of {max(sizes) / 1024:.0f} kB at most, however many patients it has")

# %%
# At the centre: merge the five files. For comparison, the model of all 442 rows, which nobody has in one place.

merged = copy.copy(hospitals[0])
for other in hospitals[1:]:
    merged.merge(other)

pooled = KalproxRegressor(penalty=None).fit(X, y)
print(f"patients in the merged model: {merged.n_rows_seen_}")
print(f"coefficients agree with those of all rows to {abs(merged.coef_ / pooled.coef_ - 1).max():.0e}")
print(f"standard errors agree to {abs(merged.coef_std_ / pooled.coef_std_ - 1).max():.0e}")
verdict = merged.diagnostics_.verdict()
print(f"{verdict.word}: {verdict.advice}")

# %%
# How much does the disease progress with blood pressure? Alone, a hospital can hardly tell whether it does at all. The
# merged interval is less than half as wide as that of the largest hospital, and the same as if the rows were shared.
# (Sums are not rows, but they are not secret either: those of very few patients tell something about each of them.
# kalprox does not add noise to hide that.)

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
j = list(X).index("blood pressure")
names = [f"hospital {k + 1}, {model.n_rows_seen_} patients" for k, model in enumerate(hospitals)]
kinds = [("o", ORANGE)] * 5 + [("s", BLUE), ("D", "black")]
all_models = dict(zip([*names, "merged", "all rows together"], [*hospitals, merged, pooled], strict=True))
for row, ((name, model), (marker, colour)) in enumerate(zip(all_models.items(), kinds, strict=True)):
    low, high = (ends[j] for ends in model.coef_interval(0.95))
    print(f"{name:<26} {model.coef_[j]:>6.2f}, 95% interval {low:>6.2f} to {high:>5.2f}")
    ax.plot([low, high], [row, row], color=colour, lw=2)
    ax.plot(model.coef_[j], row, marker, color=colour, ms=7)
ax.axvline(0, color="black", lw=1)
ax.set(yticks=range(7), yticklabels=all_models, ylim=(6.5, -0.5))
ax.set(xlabel="progression per mm Hg of blood pressure")
plt.show()
