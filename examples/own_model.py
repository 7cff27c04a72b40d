"""
El Niño: a model of one's own
=============================

The difference of air pressure between Easter Island and Darwin drives the trade winds of the south. Beside the seasons
it has slower cycles, which belong to El Niño. How long are they? The lengths stand inside sines and cosines, so this is
no linear model, and none of the links of kalprox. It is a function, and that is enough.

The data are NIST's reference set *ENSO*, 168 months (Kahaner, Moler and Nash, *Numerical Methods and Software*, 1989),
with certified estimates and standard errors.

Run it: ``pip install "kalprox[estimator,jax]" matplotlib``
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

from kalprox import KalproxRegressor

PRESSURE = """
12.9 11.3 10.6 11.2 10.9 7.5 7.7 11.7 12.9 14.3 10.9 13.7 17.1 14 15.3 8.5 5.7 5.5 7.6 8.6 7.3 7.6 12.7 11 12.7
12.9 13 10.9 10.4 10.2 8 10.9 13.6 10.5 9.2 12.4 12.7 13.3 10.1 7.8 4.8 3 2.5 6.3 9.7 11.6 8.6 12.4 10.5 13.3
10.4 8.1 3.7 10.7 5.1 10.4 10.9 11.7 11.4 13.7 14.1 14 12.5 6.3 9.6 11.7 5 10.8 12.7 10.8 11.8 12.6 15.7 12.6
14.8 7.8 7.1 11.2 8.1 6.4 5.2 12 10.2 12.7 10.2 14.7 12.2 7.1 5.7 6.7 3.9 8.5 8.3 10.8 16.7 12.6 12.5 12.5 9.8
7.2 4.1 10.6 10.1 10.1 11.9 13.6 16.3 17.6 15.5 16 15.2 11.2 14.3 14.5 8.5 12 12.7 11.3 14.5 15.1 10.4 11.5 13.4
7.5 0.6 0.3 5.5 5 4.6 8.2 9.9 9.2 12.5 10.9 9.9 8.9 7.6 9.5 8.4 10.7 13.6 13.7 13.7 16.5 16.8 17.1 15.4 9.5 6.1
10.1 9.3 5.3 11.2 16.6 15.6 12 11.5 8.6 13.8 8.7 8.6 8.6 8.7 12.8 13.2 14 13.4 14.8
"""
y = np.array(PRESSURE.split(), float)
month = np.arange(1.0, len(y) + 1)

# %%
# Where to start? For a cycle of given length the model is linear. So try all lengths between 15 and 70 months, one at a
# time, beside the seasons. The noise that is left has two dips.


def wave_columns(length: float) -> list[np.ndarray]:
    """Return a cosine and a sine with a period of `length` months."""
    return [np.cos(2 * np.pi * month / length), np.sin(2 * np.pi * month / length)]


lengths = np.linspace(15, 70, 221)
left = []
for length in lengths:
    X = np.column_stack([*wave_columns(12.0), *wave_columns(length)])
    left.append(KalproxRegressor(penalty=None, diagnose=False).fit(X, y).noise_var_ ** 0.5)
left = np.array(left)
dips = [float(lengths[between][left[between].argmin()]) for between in (lengths < 35, lengths > 35)]
print(f"dips at {dips[0]:.1f} and {dips[1]:.1f} months")

# %%
# Now all together, the lengths included: a level, the seasons, and two cycles of unknown length.


def pressure(theta: Array, x: Array) -> Array:
    """The pressure difference in month x[0]."""

    def wave(length: Array | float, cosine: Array, sine: Array) -> Array:
        phase = 2 * jnp.pi * x[0] / length
        return cosine * jnp.cos(phase) + sine * jnp.sin(phase)

    level, c1, s1, length2, c2, s2, length3, c3, s3 = theta
    return level + wave(12.0, c1, s1) + wave(length2, c2, s2) + wave(length3, c3, s3)


start = [y.mean(), 1.0, 1.0, dips[1], 1.0, 1.0, dips[0], 1.0, 1.0]
model = KalproxRegressor(function=pressure, start=start).fit(month[:, None], y)

CERTIFIED = {3: (44.311088700, 0.94408025976), 6: (26.887614440, 0.41612939130)}
for j, (value, error) in CERTIFIED.items():
    print(f"a cycle of {model.coef_[j]:.6f} months, std error {model.coef_std_[j]:.6f}; NIST: {value:.6f}, {error:.6f}")

# %%
# NIST's standard errors, as ours, take the errors of the months for independent. Are they? A look at the residuals:
# neighbours are somewhat correlated, so the true standard errors are a little larger.

residual = y - model.predict(month[:, None])
correlation = np.corrcoef(residual[1:], residual[:-1])[0, 1]
print(f"correlation of successive residuals: {correlation:.2f}")
print(f"factor, if it decays like a power: {np.sqrt((1 + correlation) / (1 - correlation)):.1f}")

# %%
# The noise that is left with one cycle beside the seasons. The bands are the 95% intervals of the two lengths.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
ax.plot(lengths, left, color="black", lw=2)
low, high = model.coef_interval(0.95)
for j, colour in ((6, BLUE), (3, ORANGE)):
    ax.axvspan(low[j], high[j], color=colour, alpha=0.35, lw=0)
    ax.annotate(f"{model.coef_[j]:.1f} months", (high[j] + 0.7, 2.35), color=colour)
ax.set(xlabel="length of the cycle (months)", ylabel="noise left (std)", ylim=(2.3, 2.75))
plt.show()

# %%
# The pressure and the fit.

fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
grid = np.linspace(1, 168, 800)[:, None]
ax.plot(month, y, "k.", ms=5)
ax.plot(grid[:, 0], model.predict(grid), color=BLUE)
ax.set(xlabel="month", ylabel="pressure difference")
plt.show()
