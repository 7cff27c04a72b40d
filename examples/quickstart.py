"""The paper's sparse experiment, small: a filter behind a sigmoid, learned row by row, with error bars.

Run it with `make demo`, or `python examples/quickstart.py`.
"""

import numpy as np

import kalprox as kp

D, N, SEED = 12, 60_000, 3


def sparse_filter_data(rng):
    """Taps that are mostly zero, AR(0.8) input, sigmoid output, noise of variance 1."""
    taps = np.zeros(D)
    taps[[1, 4, 8]] = [1.0, -1.2, 0.8]
    noise = rng.normal(size=N)
    signal = np.zeros(N)
    for k in range(N):
        signal[k] = 0.8 * signal[k - 1] + noise[k]
    X = np.stack([np.roll(signal, lag) for lag in reversed(range(D))], axis=1)  # circulant boundary
    return X, 1 / (1 + np.exp(-X @ taps)) + rng.normal(size=N), taps


def main():
    X, y, taps = sparse_filter_data(np.random.default_rng(SEED))
    alg = kp.pipg(kp.models.GLM("sigmoid"), kp.regularizers.SmoothL1(1e-5, 0.1), gamma=1.0)
    out = kp.run(alg, alg.init(np.zeros(D), 1.0), X, y, record_every=10_000)

    print(f"{N:,} rows, {D} taps behind a sigmoid, noise variance 1\n")
    print("    rows   relative error   mean 2 sigma")
    for rows, mean, var in zip(out.trace.rows, out.trace.mean, out.trace.var, strict=True):
        error = np.linalg.norm(mean - taps) / np.linalg.norm(taps)
        print(f"{rows:>8,} {error:>16.3f} {2 * np.sqrt(var).mean():>14.3f}")

    print("\n tap    truth   estimate +- 2 sigma")
    sigma = np.sqrt(out.state.var())
    for i, (truth, mean, s) in enumerate(zip(taps, out.state.mean, sigma, strict=True)):
        mark = "" if abs(truth - mean) <= 2 * s else "   outside"
        print(f"{i:>4} {truth:>8.2f} {mean:>10.3f} +- {2 * s:.3f}{mark}")
    inside = np.mean(np.abs(taps - out.state.mean) <= 2 * sigma)
    print(f"\n{inside:.0%} of the taps lie within their 2 sigma bars (expected: 95%).")


if __name__ == "__main__":
    main()
