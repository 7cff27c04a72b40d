"""
Growing chicks: rows that depend on each other
==============================================

Fifty chicks on four diets were weighed on up to twelve days: 578 rows, but only fifty chicks. A chick that is heavy on
day 10 is heavy on day 12. Standard errors that take the rows for independent count each chick a dozen times, and make
diets look proven that are not. With ``coef_cov="clustered"`` and the chicks as ``groups``, kalprox counts chicks.

The data are R's ``ChickWeight`` (Crowder and Hand, *Analysis of Repeated Measures*, 1990), which is bundled with River.

Run it: ``pip install "kalprox[estimator]" matplotlib pandas river``
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from river.datasets import ChickWeights

from kalprox import KalproxRegressor

rows = pd.DataFrame([{**x, "weight": y} for x, y in ChickWeights()]).astype(int).sort_values(["chick", "time"])
print(f"{len(rows)} weights of {rows['chick'].nunique()} chicks")

# %%
# The first column is the growth on diet 1 in grams a day, the others are what diets 2 to 4 add to it. All chicks start
# from the same weight, which is the intercept.

X = pd.DataFrame({"diet 1": rows["time"]} | {f"diet {k}": rows["time"] * (rows["diet"] == k) for k in (2, 3, 4)})
X, y = X.astype(float), rows["weight"].astype(float)

naive = KalproxRegressor(penalty=None).fit(X, y)
honest = KalproxRegressor(penalty=None, coef_cov="clustered").fit(X, y, clusters=rows["chick"])

# %%
# The model itself says that something is wrong: the verdict of the default fit names the dependence and the cure.

verdict = naive.diagnostics_.verdict()
print(f"{verdict.word}: {verdict.advice}")

# %%
# Is the wider answer the right one? A bootstrap that draws whole chicks assumes nothing but that the chicks are
# independent of each other. The standard deviation of its estimates is what a standard error should be.

rng = np.random.default_rng(0)
members = list(rows.reset_index().groupby("chick").indices.values())
draws, table, weight = [], X.to_numpy(), y.to_numpy()
for _ in range(400):
    drawn = np.concatenate([members[i] for i in rng.integers(len(members), size=len(members))])
    draws.append(KalproxRegressor(penalty=None, diagnose=False).fit(table[drawn], weight[drawn]).coef_)
bootstrap = np.std(draws, axis=0)

print(f"{'':<13} {'g a day':>8} {'naive std':>10} {'clustered std':>14} {'bootstrap std':>14}")
for j, name in enumerate(["on diet 1", "diet 2 adds", "diet 3 adds", "diet 4 adds"]):
    stds = f"{naive.coef_std_[j]:>10.2f} {honest.coef_std_[j]:>14.2f} {bootstrap[j]:>14.2f}"
    print(f"{name:<13} {naive.coef_[j]:>8.2f} {stds}")

# %%
# Is diet 2 better than diet 1? The naive interval says yes without a doubt. The honest one says that fifty chicks
# cannot tell. Diets 3 and 4 stay ahead of diet 1 either way.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
for model, colour, marker, shift, label in (
    (naive, ORANGE, "s", -0.12, "rows as if independent"),
    (honest, BLUE, "o", 0.12, "clustered by chick"),
):
    low, high = model.coef_interval(0.95)
    print(f"diet 2 adds, 95% interval, {label}: {low[1]:.2f} to {high[1]:.2f} g a day")
    reach = [(model.coef_ - low)[1:], (high - model.coef_)[1:]]
    ax.errorbar(
        model.coef_[1:], np.array([2, 3, 4]) + shift, xerr=reach, fmt=marker, color=colour, capsize=4, lw=2, label=label
    )
ax.axvline(0, color="black", lw=1)
ax.set(yticks=[2, 3, 4], yticklabels=["diet 2", "diet 3", "diet 4"], ylim=(4.6, 1.0))
ax.set(xlabel="growth, compared with diet 1 (g a day)")
ax.legend(frameon=False, loc="upper right")
plt.show()
