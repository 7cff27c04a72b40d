"""What the documents show is run: the README's first example, the skeletons of CONTRIBUTING."""

import re
from pathlib import Path

import numpy as np

import kalprox as kp
from kalprox import covariance, models, regularizers
from kalprox._arrays import namespace, pytree, static

ROOT = Path(__file__).parent.parent


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.S)


def test_the_readme_example_runs_and_finds_the_truth():
    scope = {}
    exec(blocks("README.md")[0], scope)
    mean, sigma = scope["out"].state.mean, np.sqrt(scope["out"].state.var())
    assert mean[1] == 0
    assert np.all(np.abs(mean - [1.0, 0.0, -0.5]) < 0.04)  # L1 shrinks by about lam over the precision, 30 in 1000
    assert np.all(sigma < 0.02)
    assert scope["out"].calibration.verdict().word == "calibrated"


def test_the_skeletons_run():
    scope = {"Any": object, "namespace": namespace, "pytree": pytree, "static": static}
    for module in (covariance, models, regularizers):
        scope |= {name: getattr(module, name) for name in module.__all__}
    for code in blocks("CONTRIBUTING.md"):
        exec(code, scope)
    alg = kp.pipg(scope["MichaelisMenten"](), scope["LogCosh"](1e-3), gamma=100.0)
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 3, size=2000)
    y = 2 * x / (0.5 + x) + 0.1 * rng.normal(size=2000)
    for v0 in (0.1, scope["Scaled"](0.1, 2)):
        mean = kp.run(alg, alg.init(np.ones(2), v0), x, y).state.mean
        assert np.abs(mean - [2.0, 0.5]).max() < 0.1
