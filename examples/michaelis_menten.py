"""
Enzyme kinetics: a model given as a function
============================================

How fast does an enzyme work? The rate of the reaction rises with the concentration of the substrate and levels off:
v = Vm c / (K + c), with the largest rate Vm and the concentration K of half that rate. Any such formula is a model for
kalprox: write it as a function of the parameters and of one row, and JAX computes its derivatives. The result is the
least squares fit, with standard errors.

The data are R's ``Puromycin``, treated cells (Treloar 1974; Bates and Watts, *Nonlinear Regression Analysis*, 1988).

Run it: ``pip install "kalprox[estimator,jax]" matplotlib``
"""

import matplotlib.pyplot as plt
import numpy as np
from jax import Array

from kalprox import KalproxRegressor

concentration = np.repeat([0.02, 0.06, 0.11, 0.22, 0.56, 1.10], 2)  # ppm
observed = np.array([76, 47, 97, 107, 123, 139, 159, 152, 191, 201, 207, 200], float)  # counts / min^2

# %%
# The function, a rough start, and the fit.


def rate(theta: Array, x: Array) -> Array:
    """The rate at concentration x[0]."""
    vm, k = theta
    return vm * x[0] / (k + x[0])


model = KalproxRegressor(function=rate, penalty=None, start=[200.0, 0.05])
model.fit(concentration[:, None], observed)
print(f"converged: {model.converged_}, after {model.n_passes_} passes over {model.n_rows_seen_} rows")
print(f"residual standard error: {model.noise_var_**0.5:.4g} on {model.noise_dof_:.0f} degrees of freedom")

# %%
# The same numbers from R, ``nls(rate ~ Vm * conc / (K + conc))``. R stops at a relative offset of 1e-5, so that its
# last digits differ.

R_NLS = {"Vm": (212.68370, 6.947148), "K": (0.06412123, 0.008280895)}
print(f"{'':<3} {'value':>11} {'std error':>12} {'R value':>12} {'R std error':>12}")
for (name, (value, error)), coef, std in zip(R_NLS.items(), model.coef_, model.coef_std_, strict=True):
    print(f"{name:<3} {coef:>11.7g} {std:>12.7g} {value:>12.7g} {error:>12.7g}")

# %%
# The light band has a new observation inside with a probability of 95%, the dark one the curve itself. With twelve rows
# there is no way to check that from the data, and the verdict does not pretend: a nonlinear fit makes several passes
# over all rows, so none of them was predicted before it was learned.

print(model.diagnostics_.verdict())

BLUE = "#0072B2"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
grid = np.linspace(0, 1.2, 200)[:, None]
for of, alpha, label in (("target", 0.15, "a new observation"), ("mean", 0.4, "the curve")):
    ax.fill_between(
        grid[:, 0], *model.predict_interval(grid, of=of), color=BLUE, alpha=alpha, lw=0, label=f"95%, {label}"
    )
ax.plot(grid[:, 0], model.predict(grid), color=BLUE)
ax.plot(concentration, observed, "ko", ms=5)
vm, k = model.coef_
ax.axhline(vm, color="black", ls=":", lw=1)
ax.plot([k, k, 0], [0, vm / 2, vm / 2], color="black", ls=":", lw=1)
ax.annotate("K", (k, 0), (k + 0.015, 8))
ax.annotate("Vm", (1.13, vm), (1.13, vm + 4))
ax.set(xlabel="substrate (ppm)", ylabel="rate (counts / min²)", xlim=(0, 1.2), ylim=(0, 245))
ax.legend(frameon=False, loc="lower right")
plt.show()
