"""
Carbon dioxide: forgetting the old rows
=======================================

The air over Mauna Loa gains carbon dioxide, and gains it faster from decade to decade. A straight line through all
weeks since 1958, with the seasons on top, is left behind: in the end it is wrong by two to three parts per million,
always in the same direction. ``forget`` lets the weight of old rows fade, so that the line follows.

The data are the weekly means of the Mauna Loa observatory, 1958 to 2001 (Keeling and Whorf), bundled with statsmodels.

Run it: ``pip install "kalprox[estimator]" matplotlib pandas statsmodels``
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import statsmodels.api as sm

from kalprox import KalproxRegressor

co2 = sm.datasets.co2.load_pandas().data["co2"].dropna()
year = 1958 + (co2.index - pd.Timestamp("1958-01-01")).days.to_numpy() / 365.25
y = co2.to_numpy()

# %%
# The first input is the time in years, so that its coefficient is the growth in ppm a year. The others are two waves
# for the seasons. With ``forget=0.99`` a row counts half after 69 weeks. Every week is predicted from all weeks before
# it, and then learned.

waves = [wave(2 * np.pi * k * year) for k in (1, 2) for wave in (np.sin, np.cos)]
X = np.column_stack([year - 1980, *waves])

models = {forget: KalproxRegressor(penalty=None, forget=forget) for forget in (1.0, 0.99)}
years = np.arange(1961, 2002)
error, growth = {}, {}
for forget, model in models.items():
    model.partial_fit(X[year < 1961], y[year < 1961])
    error[forget], growth[forget] = [], []
    for begin in years:
        weeks = np.flatnonzero((begin <= year) & (year < begin + 1))
        errors = []
        for k in weeks:
            errors.append(y[k] - model.predict(X[k : k + 1])[0])
            model.partial_fit(X[k : k + 1], y[k : k + 1])
        error[forget].append(np.mean(errors))
        growth[forget].append(model.coef_[0])
    print(f"forget={forget}: mean error in 2001 {error[forget][-1]:.2f} ppm, growth {model.coef_[0]:.2f} ppm a year")
    print(f"    found: {', '.join(model.diagnostics_.verdict().findings)}")

# %%
# The verdict on the model without forgetting names the problem and the cure. With forgetting, what is left is that the
# errors of successive weeks are correlated: predictions are good, but standard errors of the growth would be too small.

print(models[1.0].diagnostics_.verdict().advice)
print(models[0.99].diagnostics_.verdict().advice)

# %%
# How far the air of each year was from the predictions.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
kinds = ((1.0, ORANGE, "s--", "all rows alike"), (0.99, BLUE, "o-", "forget=0.99"))
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
for forget, colour, style, label in kinds:
    ax.plot(years, error[forget], style, color=colour, ms=4, label=label)
ax.axhline(0, color="black", lw=1)
ax.set(xlabel="year", ylabel="observed - predicted (ppm)")
ax.legend(frameon=False, loc="upper left")
plt.show()

# %%
# And the growth that the models believe in.

fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for forget, colour, style, label in kinds:
    ax.plot(years, growth[forget], style, color=colour, ms=4, label=label)
ax.set(xlabel="year", ylabel="growth (ppm a year)", ylim=(0, None))
ax.legend(frameon=False, loc="lower right")
plt.show()
