"""
Spectroscopy: which line shape?
===============================

A line in a spectrum: where is its middle, and how wide is it? A bell curve answers, with certified digits. But its
residuals say that it has the wrong shape, and far from the middle it is wrong by thirty orders of magnitude. Another
shape is another function: three lines of code.

The data are NIST's reference set *Eckerle4*, from a study of circular interference transmittance: the transmittance at
35 wavelengths, with certified estimates for a bell curve.

Run it: ``pip install "kalprox[estimator,jax]" matplotlib``
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

from kalprox import KalproxRegressor

wavelength = np.concatenate([np.arange(400, 436, 5.0), np.arange(436.5, 466, 1.5), np.arange(470, 501, 5.0)])
TRANSMITTANCE = """
0.0001575 0.0001699 0.0002350 0.0003102 0.0004917 0.0008710 0.0017418 0.0046400 0.0065895 0.0097302 0.0149002 0.0237310
0.0401683 0.0712559 0.1264458 0.2073413 0.2902366 0.3445623 0.3698049 0.3668534 0.3106727 0.2078154 0.1164354 0.0616764
0.0337200 0.0194023 0.0117831 0.0074357 0.0022732 0.0008800 0.0004579 0.0002345 0.0001586 0.0001143 0.0000710
"""
transmittance = np.array(TRANSMITTANCE.split(), float)

# %%
# The bell curve, in NIST's parameters, and its certified answer: area, width and middle.


def bell(theta: Array, x: Array) -> Array:
    """A Gaussian line."""
    area, width, middle = theta
    return area / width * jnp.exp(-(((x[0] - middle) / width) ** 2) / 2)


X = wavelength[:, None]
gauss = KalproxRegressor(function=bell, start=[1.5, 5.0, 450.0]).fit(X, transmittance)
CERTIFIED = [(1.5543827178, 0.015408051163), (4.0888321754, 0.046803020753), (451.54121844, 0.046800518816)]
for name, coef, std, (value, error) in zip(
    ("area", "width", "middle"), gauss.coef_, gauss.coef_std_, CERTIFIED, strict=True
):
    print(f"{name:<7} {coef:>12.8g} {std:>12.8g}   NIST {value:>12.8g} {error:>12.8g}")

# %%
# Another shape: its wings fall as a power of the distance from the middle, and the power is to be learned.


def power(theta: Array, x: Array) -> Array:
    """A line that falls to a half at `width` from its middle, and far away with the power 2 n."""
    height, middle, width, n = theta
    return height / (1 + (((x[0] - middle) / width) ** 2 + 1e-12) ** n)  # 1e-12: the derivative is finite everywhere


line = KalproxRegressor(function=power, start=[0.4, 451.0, 4.0, 2.0]).fit(X, transmittance)
print(f"power: 2 n = {2 * line.coef_[3]:.2f}, std error {2 * line.coef_std_[3]:.2f}")
for name, model, j in (("bell curve", gauss, 2), ("power", line, 1)):
    noise = model.noise_var_**0.5
    print(f"{name:<11} noise {noise:.4f}, middle {model.coef_[j]:.2f} nm, std error {model.coef_std_[j]:.3f}")

# %%
# The middle is the same, to a hundredth of a nanometre, and more certain. The noise is smaller by more than a quarter.
# And the wings, which hardly count in the sum of squares, come out to within a factor of about two:

for name, model in (("bell curve", gauss), ("power", line)):
    factor = transmittance / model.predict(X)
    print(f"{name}: observed / fitted is between {factor.min():.2g} and {factor.max():.2g}")

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
grid = np.linspace(400, 500, 600)[:, None]
fig, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
ax.plot(grid[:, 0], gauss.predict(grid), color=ORANGE, ls="--", lw=2, label="bell curve")
ax.plot(grid[:, 0], line.predict(grid), color=BLUE, lw=2, label="power")
ax.plot(wavelength, transmittance, "ko", ms=5, label="observed")
ax.set(yscale="log", ylim=(3e-5, 1), xlabel="wavelength (nm)", ylabel="transmittance")
ax.legend(frameon=False, loc="upper left")
plt.show()

# %%
# The residuals. Neither shape is perfect: both leave a pattern near the middle. The errors are those of the shape, not
# of the instrument, and so neighbours err together; take the standard errors as a lower bound.

fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for name, model, colour, style in (("bell curve", gauss, ORANGE, "s--"), ("power", line, BLUE, "o-")):
    residual = transmittance - model.predict(X)
    correlation = np.corrcoef(residual[1:], residual[:-1])[0, 1]
    print(f"{name}: correlation of neighbouring residuals {correlation:.2f}")
    ax.plot(wavelength, 100 * residual, style, color=colour, ms=4, label=name)
ax.axhline(0, color="black", lw=1)
ax.set(xlabel="wavelength (nm)", ylabel="observed - fitted (%)", xlim=(430, 475))
ax.legend(frameon=False)
plt.show()
