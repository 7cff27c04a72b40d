"""
Choosing alpha without spending rows
====================================

Ten measurements of a patient, their squares and their products are 65 columns. With 120 patients, least squares on 65
columns learns mostly noise. A ridge penalty helps if its weight alpha is right. The usual way to find it is to hold
patients back and try. ``alpha="auto"`` needs none: it takes the alpha under which the rows seen are most probable, from
sums that the model has anyway. ``path`` has the solutions for all other alphas.

The data are the 442 diabetes patients of scikit-learn (Efron and others, *Least Angle Regression*, 2004).

Run it: ``pip install "kalprox[estimator]" matplotlib``
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from kalprox import KalproxRegressor

X, y = load_diabetes(return_X_y=True)
X = StandardScaler().fit_transform(PolynomialFeatures(2, include_bias=False).fit_transform(X))

# %%
# Learn from 120 patients, and compare on the other 322, for every alpha from almost nothing to far too much.

ALPHAS = np.geomspace(0.1, 1e4, 60)


def split(seed: int) -> tuple[KalproxRegressor, np.ndarray, float]:
    """Fit to 120 random patients; return the model, and the errors on the others: for ALPHAS, and for the model."""
    order = np.random.default_rng(seed).permutation(len(y))
    here, there = order[:120], order[120:]
    model = KalproxRegressor(penalty="ridge", alpha="auto").fit(X[here], y[here])
    path = model.path(ALPHAS)
    guesses = X[there] @ path.coef.T + path.intercept
    errors = np.sqrt(np.mean((y[there, None] - guesses) ** 2, axis=0))
    return model, errors, float(np.sqrt(np.mean((y[there] - model.predict(X[there])) ** 2)))


model, errors, error = split(0)
print(f"alpha='auto' chose {model.alpha_:.0f}: error {error:.1f} on other patients")
print(f"the best of all alphas: {errors.min():.1f}; hardly any penalty, alpha=0.1: {errors[0]:.1f}")

# %%
# Was that luck? Fifty other splits of the patients:

excess = []
for seed in range(1, 51):
    _, others, own = split(seed)
    excess.append(own / others.min() - 1)
print(f"error above that of the best alpha: mean {np.mean(excess):.1%}, at most {np.max(excess):.1%}")

# %%
# The error on the other patients, who had no part in the choice. The black line is the alpha chosen.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
ax.plot(ALPHAS, errors, color=BLUE, lw=2)
ax.axvline(model.alpha_, color="black", lw=1)
ax.annotate('alpha="auto"', (model.alpha_, 85), (4, 0), textcoords="offset points")
ax.set(xscale="log", xlabel="alpha", ylabel="rms error on other patients")
plt.show()

# %%
# What made the choice: how probable the targets of the 120 patients are under each alpha.

fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
score = model.path(ALPHAS).score
ax.plot(ALPHAS, score - score.max(), color=ORANGE, lw=2)
ax.axvline(model.alpha_, color="black", lw=1)
ax.set(xscale="log", xlabel="alpha", ylabel="log evidence, relative", ylim=(-60, 5))
plt.show()
