"""A nonlinear model given as a function: the speed of an enzyme, v = Vm c / (K + c), with standard errors.

R's Puromycin data, treated cells (Treloar 1974; Bates and Watts 1988): reaction rate against substrate concentration.
The model is a function of one row; JAX computes its derivatives. The script prints Vm and K with their standard errors,
next to those of R's nls(rate ~ Vm * conc / (K + conc)), and predicted rates with 95% intervals. R stops at a relative
offset of 1e-5, so that its last digits differ.

Run it: pip install "kalprox[estimator]" && python examples/michaelis_menten.py
"""

import numpy as np
from jax import Array

from kalprox import KalproxRegressor

CONCENTRATION = np.repeat([0.02, 0.06, 0.11, 0.22, 0.56, 1.10], 2)
RATE = np.array([76, 47, 97, 107, 123, 139, 159, 152, 191, 201, 207, 200], float)
R_NLS = {"Vm": (212.68370, 6.947148), "K": (0.06412123, 0.008280895)}


def rate(theta: Array, x: Array) -> Array:
    vm, k = theta
    return vm * x[0] / (k + x[0])


def main() -> None:
    model = KalproxRegressor(link=rate, penalty=None, start=[200.0, 0.05])
    model.fit(CONCENTRATION[:, None], RATE)

    print(f"{'':<3} {'value':>11} {'std error':>12} {'R value':>12} {'R std error':>12}")
    for (name, (value, error)), coef, std in zip(R_NLS.items(), model.coef_, model.coef_std_, strict=True):
        print(f"{name:<3} {coef:>11.7g} {std:>12.7g} {value:>12.7g} {error:>12.7g}")
    print(f"\nconverged: {model.converged_}, after {model.n_passes_} passes over {model.n_rows_seen_} rows")
    print(f"residual standard error: {model.noise_var_**0.5:.4g} on {model.noise_dof_:.0f} degrees of freedom\n")

    print(f"{'conc':>5} {'rate':>7} {'95% interval':>16}")
    grid = np.array([[0.05], [0.1], [0.3], [1.0]])
    for c, mean, low, high in zip(grid[:, 0], model.predict(grid), *model.predict_interval(grid), strict=True):
        print(f"{c:>5.2f} {mean:>7.1f} {low:>8.1f} {high:>7.1f}")


if __name__ == "__main__":
    main()
