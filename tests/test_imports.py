"""The package as a tree of modules: what importing it costs, and what its names are bound to."""

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import kalprox

OPTIONAL = ("kalprox.__main__", "kalprox.engines.spark")
MODULES = [module.name for module in pkgutil.walk_packages(kalprox.__path__, "kalprox.")]


def test_a_dotted_name_is_the_module():
    """`import a.b.c as m` binds the attribute c of a.b: no function may stand in its place."""
    for name in [name for name in MODULES if name not in OPTIONAL]:
        module = importlib.import_module(name)
        found = kalprox
        for part in name.split(".")[1:]:
            found = getattr(found, part)
        assert isinstance(found, ModuleType) and found is module, name


def test_every_public_name_is_found_and_listed():
    assert set(kalprox.__all__) <= set(dir(kalprox))
    for name in kalprox.__all__:
        assert getattr(kalprox, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kalprox.nothing


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import kalprox", ("numpy", "scipy", "jax", "sklearn", "pyarrow", "matplotlib", "click", "dask")),
        ("from kalprox.learning.learner import Learner", ("jax", "sklearn", "pyarrow", "pandas", "scipy.stats")),
        ("import kalprox; kalprox.KalproxRegressor", ("jax", "matplotlib", "dask", "click")),
        ("from kalprox.decisions import Bandit", ("jax", "sklearn", "matplotlib", "scipy.stats")),
        ("from kalprox.jobs.fit import FitJob", ("jax", "sklearn", "matplotlib", "dask", "scipy.stats")),
    ],
)
def test_nothing_is_imported_that_is_not_needed(code, unwanted):
    script = f"import sys; {code}; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_commands_on_files_import_neither_pandas_nor_other_large_packages(tmp_path, kind):
    """pyarrow imports pandas at its first conversion from or to NumPy; that takes longer than a small fit."""
    file, model = str(tmp_path / f"rows.{kind}"), str(tmp_path / "model.kp")
    _write(file, kind)
    commands = (
        ["fit", file, "--target", "y", "--out", model, "--max-bad", "10%"],
        ["show", model],
        ["predict", model, file, "--out", str(tmp_path / "out.csv"), "--keep", "y,at", "--max-bad", "10%"],
    )
    unwanted = ("pandas", "scipy.stats", "sklearn", "matplotlib", "jax", "dask", "kalprox.engines")
    script = (
        f"import sys\nfrom kalprox.cli import main\nfor args in {commands!r}:\n    main(args, standalone_mode=False)\n"
        f"    print('imported', [name for name in {unwanted!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("imported")] == ["imported []"] * 3


def _write(file, kind):
    """Rows with missing and bad cells, so that the slow paths of the readers are taken too."""
    n = 60
    table = pa.table(
        {
            "y": pa.array([i % 7 + 0.5 for i in range(n)]),
            "x": pa.array([None if i % 20 == 3 else i % 5 for i in range(n)], pa.int64()),
            "on": pa.array([i % 3 == 0 for i in range(n)]),
            "level": pa.array(["ab"[i % 2] for i in range(n)]),
            "at": pa.array([f"2020-01-{i % 28 + 1:02}" for i in range(n)]),
        }
    )
    if kind == "parquet":
        pyarrow.parquet.write_table(table, file)
    elif kind == "csv":
        pyarrow.csv.write_csv(table, file)
    else:
        Path(file).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
