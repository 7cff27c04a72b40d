"""
A growth curve: when do we know how it ends?
============================================

Onions grow slowly, then fast, then not at all. From the first weights one would like to know the final weight. A growth
curve can be fitted at any time, and always answers. Its standard error says when the answer is worth something.

The data are NIST's reference set *Rat43* (Ratkowsky, *Nonlinear Regression Modeling*, 1983): the dry weight of onion
bulbs and tops at 15 times. NIST certifies the estimates and their standard errors to eleven digits. (The set does not
tell the units.)

Run it: ``pip install "kalprox[estimator,jax]" matplotlib``
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

from kalprox import KalproxRegressor

time = np.arange(1.0, 16.0)
weight = np.array(
    [16.08, 33.83, 65.80, 97.20, 191.55, 326.20, 386.87, 520.53, 590.03, 651.92, 724.93, 699.56, 689.96, 637.56, 717.41]
)
CERTIFIED = {"final weight": (699.64151270, 16.302297817), "start": (5.2771253025, 2.0828735829)}
CERTIFIED |= {"rate": (0.75962938329, 0.19566123451), "shape": (1.2792483859, 0.68761936385)}

# %%
# The model is a function of the parameters and of one row. JAX differentiates it.


def richards(theta: Array, x: Array) -> Array:
    """The weight at time x[0]; theta[0] is the weight that it grows to."""
    return theta[0] / (1 + jnp.exp(theta[1] - theta[2] * x[0])) ** (1 / theta[3])


def fitted(n: int) -> KalproxRegressor:
    """Fit the curve to the first n weights."""
    return KalproxRegressor(function=richards, start=[700.0, 5.0, 0.75, 1.3]).fit(time[:n, None], weight[:n])


# %%
# With all weights the answer is NIST's.

model = fitted(15)
print(f"{'':<13} {'kalprox':>12} {'std error':>12} {'NIST':>12} {'std error':>12}")
for (name, certified), coef, std in zip(CERTIFIED.items(), model.coef_, model.coef_std_, strict=True):
    print(f"{name:<13} {coef:>12.8g} {std:>12.8g} {certified[0]:>12.8g} {certified[1]:>12.8g}")

# %%
# And with fewer weights? After nine of them the curve has only begun to bend. It converges, and its final weight is not
# bad, but the 95% interval reaches from 340 to 1,140: the data do not know yet. After thirteen they do.

counts = range(9, 16)
final = []
print(f"{'weights':>7} {'final weight':>13} {'std error':>10} {'95% interval':>15}")
for n in counts:
    partial = fitted(n)
    low, high = (ends[0] for ends in partial.coef_interval(0.95))
    final.append((partial.coef_[0], low, high))
    print(f"{n:>7} {partial.coef_[0]:>13.0f} {partial.coef_std_[0]:>10.0f} {low:>7.0f} to {high:.0f}")

# %%
# The curve and the 95% band of its mean after 9 and after 15 weights. ``of="mean"`` leaves the noise of single weights
# out of a predictive interval.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
grid = np.linspace(1, 15, 200)[:, None]
for n, colour, style in ((9, ORANGE, "--"), (15, BLUE, "-")):
    partial = fitted(n)
    low, high = partial.predict_interval(grid, of="mean")
    ax.fill_between(grid[:, 0], low, high, color=colour, alpha=0.25, lw=0)
    ax.plot(grid[:, 0], partial.predict(grid), style, color=colour, lw=2, label=f"{n} weights")
ax.plot(time, weight, "ko", ms=5)
ax.set(xlabel="time", ylabel="dry weight", ylim=(0, 1250))
ax.legend(frameon=False, loc="upper left")
plt.show()

# %%
# The final weight with its 95% interval, as the weights come in. The line is the answer in the end.

fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
value, low, high = np.array(final).T
ax.errorbar(counts, value, [value - low, high - value], fmt="o", color=BLUE, capsize=4, lw=2)
ax.axhline(CERTIFIED["final weight"][0], color="black", lw=1)
ax.set(xlabel="weights known so far", ylabel="final weight", xticks=counts, ylim=(0, 1250))
plt.show()
