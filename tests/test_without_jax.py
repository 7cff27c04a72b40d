"""JAX is an extra: without it everything works that differentiates no function, with the same numbers.

A process in which JAX is not found runs the jobs of `jobs_without_jax.py`; here, where JAX is imported, the same ones
are run again.
"""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs_without_jax import JOBS
from sklearn.base import clone

import kalprox as kp

pytestmark = pytest.mark.integration

HIDE = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
hidden = ("jax", "jaxlib")
PathFinder.find_spec = lambda name, *more: None if name.partition(".")[0] in hidden else find(name, *more)
"""
QUICK = (
    "pipg",
    "filter",
    "linear",
    "l1",
    "poisson",
    "stream",
    "forgetting",
    "2_classes",
    "commands",
    "river",
    "bandit",
)
OTHERS = [name for name in JOBS if name not in QUICK]
NEEDS = {
    "kp.models.Function(lambda theta, x: theta @ x)": "kalprox.models.Function needs",
    "kp.models.Function(lambda w, x: w['a'] @ x, params={'a': X[0]})": "kalprox.models.Function needs",
    "kp.regularizers.Custom(lambda theta: theta @ theta)": "kalprox.regularizers.Custom needs",
    "kp.KalproxRegressor(function=lambda theta, x: theta @ x, start=[0.0]).fit(X, y)": "kalprox.models.Function needs",
    "kp.KalproxNetRegressor().fit(X, y)": "KalproxNetRegressor needs",
    "kp.KalproxNetClassifier().fit(X, y > 0)": "KalproxNetClassifier needs",
}


def run_without_jax(code, *arguments):
    command = [sys.executable, "-W", "error", "-c", HIDE + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers_of(names, folder):
    """The numbers of some jobs, from a process without JAX."""
    file = str(folder / "numbers.npz")
    code = "sys.path.insert(0, sys.argv[1]); from jobs_without_jax import write; write(sys.argv[2], sys.argv[3:])"
    run_without_jax(code, str(Path(__file__).parent), file, *names)
    with np.load(file) as found:
        return dict(found)


def assert_same(name, numbers):
    for i, expected in enumerate(JOBS[name]()):
        np.testing.assert_allclose(numbers[f"{name} {i}"], np.asarray(expected, float), rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return numbers_of(QUICK, tmp_path_factory.mktemp("without"))


@pytest.fixture(scope="module")
def other_numbers(tmp_path_factory):
    return numbers_of(OTHERS, tmp_path_factory.mktemp("others"))


@pytest.mark.parametrize("name", QUICK)
def test_the_numbers_are_those_with_jax(name, numbers):
    assert_same(name, numbers)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_the_numbers_of_other_jobs_are_those_with_jax(name, other_numbers):
    assert_same(name, other_numbers)


@pytest.mark.slow
def test_what_needs_jax_says_which_extra_to_install():
    tried = "".join(f"try:\n    {code}\nexcept ImportError as error:\n    print(error)\n" for code in NEEDS)
    start = "import numpy as np\nimport kalprox as kp\nX, y = np.ones((40, 1)), np.arange(40.0) - 20\n"
    printed = run_without_jax(start + tried).splitlines()
    assert printed == [f'{who} jax: pip install "kalprox[jax]"' for who in NEEDS.values()]


@pytest.mark.slow
def test_a_pickled_network_says_so_too(tmp_path):
    rng = np.random.default_rng(71)
    X = rng.normal(size=(60, 2))
    models = [
        kp.KalproxNetRegressor(hidden=(3,)).fit(X, X[:, 0]),
        kp.KalproxNetClassifier(hidden=(3,)).fit(X, X[:, 0] > 0),
    ]
    again = pickle.loads(pickle.dumps(models[1]))
    np.testing.assert_array_equal(again.predict_proba(X), models[1].predict_proba(X))
    for i, model in enumerate([*models, clone(models[0])]):
        (tmp_path / f"{i}").write_bytes(pickle.dumps(model))
    code = """
import pickle
for i in range(3):
    try:
        print(type(pickle.load(open(sys.argv[1] + f"/{i}", "rb"))).__name__)
    except ImportError as error:
        print(error)
"""
    assert run_without_jax(code, str(tmp_path)).splitlines() == [
        'Unpickling a fitted KalproxNetRegressor needs jax: pip install "kalprox[jax]"',
        'Unpickling a fitted KalproxNetClassifier needs jax: pip install "kalprox[jax]"',
        "KalproxNetRegressor",
    ]


def test_the_command_says_so_too():
    code = "from kalprox.cli import main; main(['reproduce', 'ridge', '--quick'])"
    done = subprocess.run([sys.executable, "-c", HIDE + code], capture_output=True, text=True)
    assert done.returncode == 7
    assert 'Reproducing the paper needs jax: pip install "kalprox[jax]"' in " ".join(done.stderr.split())


@pytest.mark.slow
def test_states_made_before_jax_is_imported_can_be_traced():
    """Classes are registered with JAX as soon as anything is made or computed after its import."""
    code = (
        "import sys\nimport numpy as np\nimport kalprox as kp\n"
        "alg = kp.ipm(kp.models.Linear(), gamma=1.0)\nstate = alg.init(np.zeros(2), 1.0)\n"
        "info = kp.Information.from_rows(np.eye(2), np.ones(2))\nassert 'jax' not in sys.modules\n"
        "import jax\n"
        "expected = alg.step(state, np.ones(2), np.ones(())).mean\n"
        "with jax.enable_x64(True):\n"
        "    found = jax.jit(alg.step)(state, np.ones(2), np.ones(()))\n"
        "    assert np.allclose(found.mean, expected)\n"
        "    assert len(jax.tree_util.tree_leaves((alg, info))) > 5\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.slow
def test_a_run_imports_jax_and_compiles_what_was_made_before():
    code = (
        "import sys\nimport numpy as np\nimport kalprox as kp\n"
        "alg = kp.pipg(kp.models.GLM('sigmoid'), kp.regularizers.Ridge(0.1), gamma=1.0)\n"
        "state, X = alg.init(np.zeros(2), 1.0), np.random.default_rng(0).normal(size=(20, 2))\n"
        "assert 'jax' not in sys.modules\n"
        "found = kp.run(alg, state, X, np.ones(20))\n"
        "assert 'jax' in sys.modules and np.isfinite(found.state.mean).all()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.slow
def test_no_module_imports_jax_when_it_is_imported():
    optional = ("kalprox.__main__", "kalprox.engines.spark")
    code = (
        "import importlib, pkgutil, sys, kalprox\n"
        "for module in pkgutil.walk_packages(kalprox.__path__, 'kalprox.'):\n"
        f"    if module.name not in {optional}:\n"
        "        importlib.import_module(module.name)\n"
        "        assert 'jax' not in sys.modules, module.name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
