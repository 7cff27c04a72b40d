"""The installed package, as someone meets it who has just installed it: `make wheel-test` runs this beside a wheel.

Without arguments in an environment with the package alone, with --extras in one with all extras; spark is not used.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import kalprox as kp

if not list((Path(kp.__file__).parent / "kernel").glob("kalprox.kernel.*")):
    os.environ.setdefault("KALPROX_KERNEL", "off")  # a wheel for any machine, whose warning would be an error


def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    return X, X @ [1.0, 0.0, -0.5] + 0.3 * rng.normal(size=2000)


def alone():
    X, y = rows()
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.L1(30.0), gamma=None)
    out = kp.run(alg, alg.init(np.zeros(3)), X, y)
    low, high = out.state.interval(X)
    assert out.state.mean[1] == 0 and abs(np.mean((low < y) & (y < high)) - 0.95) < 0.03
    alg = kp.ipm(kp.models.Linear(), gamma=10.0)
    assert np.allclose(kp.run(alg, alg.init(np.zeros(3), 1.0), X, y).state.mean, [1.0, 0.0, -0.5], atol=0.05)
    for use, expected in (
        (lambda: kp.KalproxRegressor, 'KalproxRegressor needs scikit-learn: pip install "kalprox[estimator]"'),
        (lambda: kp.models.Function(np.dot), 'kalprox.models.Function needs jax: pip install "kalprox[jax]"'),
    ):
        message = "nothing is missing: the package is not alone"
        try:
            use()
        except ImportError as error:
            message = str(error)
        assert message == expected, message


def with_extras():
    X, y = rows()
    mean, std = kp.KalproxRegressor(penalty="ridge").fit(X, y).predict(X, return_std=True)
    assert abs(np.mean(np.abs(y - mean) < 1.96 * std) - 0.95) < 0.03
    Path("rows.csv").write_text("a,b,c,y\n" + "\n".join(",".join(map(str, row)) for row in np.c_[X, y]))
    for command in (
        "fit rows.csv --target y --out m.kalprox",
        "predict m.kalprox rows.csv --out p.parquet",
        "report m.kalprox --out m.html",
    ):
        subprocess.run([kalprox(), *command.split()], check=True, capture_output=True)


def kalprox():
    return Path(sys.executable).with_name("kalprox")


if __name__ == "__main__":
    place = Path(kp.__file__).parent
    assert place.is_relative_to(sys.prefix) and (place / "py.typed").exists(), f"{place} is not the installed package"
    assert importlib.metadata.version("kalprox") == kp.__version__
    printed = subprocess.run([kalprox(), "--version"], check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(rf"kalprox, version {re.escape(kp.__version__)}\n", printed), printed
    with_extras() if "--extras" in sys.argv[1:] else alone()
    print(f"kalprox {kp.__version__} from {place}: fine")
