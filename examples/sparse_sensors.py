"""Which of 200 sensors matter? A stream of batches with an l1 penalty, whose zeros are exact.

Eight sensors drive the reading, the others are idle. After each batch the script prints how many coefficients are zero,
how many of the eight sensors are found, how many idle sensors have a nonzero coefficient, and the share of the readings
inside the 95% intervals predicted before the batch was learned. At the end it compares the found sensors with the
truth.

alpha is noise_std * sqrt(2 n log d), the universal threshold, which the noise of d idle sensors rarely exceeds after n
rows. It grows with the stream, and is therefore set before each batch; the estimate stays exact for all rows. The bias
of l1 is printed too: with independent sensors of variance 1 each coefficient is shrunk by alpha / n towards zero, which
the standard errors do not include.

Run it: pip install "kalprox[estimator]" && python examples/sparse_sensors.py
"""

import numpy as np

from kalprox import KalproxRegressor

SENSORS, BATCHES, ROWS = 200, 10, 150
NOISE_STD = 1.0
WEIGHTS = {12: 3.0, 31: -2.0, 57: 1.5, 88: -1.0, 103: 0.8, 140: -0.6, 166: 0.5, 199: 0.4}


def main() -> None:
    rng = np.random.default_rng(0)
    truth = np.zeros(SENSORS)
    truth[list(WEIGHTS)] = list(WEIGHTS.values())
    model = KalproxRegressor(penalty="l1")

    print(f"{'rows':>5} {'alpha':>7} {'zeros':>6} {'found':>6} {'idle kept':>10} {'inside 95%':>11}")
    for n in range(ROWS, BATCHES * ROWS + 1, ROWS):
        X = rng.normal(size=(ROWS, SENSORS))
        y = 2.0 + X @ truth + NOISE_STD * rng.normal(size=ROWS)
        inside = "-"
        if n > ROWS:
            low, high = model.predict_interval(X, level=0.95)
            inside = f"{np.mean((low <= y) & (y <= high)):.1%}"
        model.set_params(alpha=NOISE_STD * np.sqrt(2 * n * np.log(SENSORS)))
        model.partial_fit(X, y)
        kept = model.coef_ != 0
        found, idle = (kept & (truth != 0)).sum(), (kept & (truth == 0)).sum()
        print(f"{n:>5} {model.alpha_:>7.1f} {(~kept).sum():>6} {found:>6} {idle:>10} {inside:>11}")

    print(f"\n{'sensor':>6} {'truth':>7} {'coef':>8} {'std':>7}")
    for sensor in np.flatnonzero((model.coef_ != 0) | (truth != 0)):
        print(f"{sensor:>6} {truth[sensor]:>7.2f} {model.coef_[sensor]:>8.3f} {model.coef_std_[sensor]:>7.3f}")
    print(f"\npull towards zero, alpha / n: {model.alpha_ / model.n_rows_seen_:.3f}")
    print(model.diagnostics_.verdict())


if __name__ == "__main__":
    main()
