"""The package as a tree of modules: what importing it costs, and what its names are bound to."""

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import kalprox

OPTIONAL = ("kalprox.__main__", "kalprox.engines.spark", "kalprox.engines.spark_frame")
MODULES = [module.name for module in pkgutil.walk_packages(kalprox.__path__, "kalprox.")]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in OPTIONAL])
def test_a_dotted_name_is_the_module(name):
    """`import a.b.c as m` binds the attribute c of a.b: no function may stand in its place."""
    module = importlib.import_module(name)
    found = kalprox
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert isinstance(found, ModuleType) and found is module


def test_every_public_name_is_found_and_listed():
    assert set(kalprox.__all__) <= set(dir(kalprox))
    for name in kalprox.__all__:
        assert getattr(kalprox, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kalprox.nothing


@pytest.mark.integration
@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import kalprox", ("numpy", "scipy", "jax", "sklearn", "pyarrow", "matplotlib", "click", "dask")),
        ("from kalprox.learning.learner import Learner", ("jax", "sklearn", "pyarrow", "pandas", "scipy.stats")),
        ("import kalprox; kalprox.KalproxRegressor", ("jax", "matplotlib", "dask", "click")),
        ("from kalprox.jobs.fit import FitJob", ("jax", "sklearn", "matplotlib", "dask", "scipy.stats")),
    ],
)
def test_nothing_is_imported_that_is_not_needed(code, unwanted):
    script = f"import sys; {code}; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
