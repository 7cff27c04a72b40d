"""Too little memory is exit code 7 with a sentence, and neither an abort, nor a hang, nor a damaged file."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is for Linux")]


def run(kilobytes, *arguments):
    command = [sys.executable, "-m", "kalprox", *map(str, arguments)]
    limited = ["sh", "-c", f'ulimit -v {kilobytes} && exec "$@"', "sh", *command]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(limited, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "rows.csv"
    X = np.random.default_rng(2).integers(0, 10**5, (60, 4500))
    header = ",".join(["y", *(f"x{i}" for i in range(1, 4500))])
    path.write_text(header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in X.tolist()))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [420, 800, 1500, 2100])
def test_many_columns(megabytes, wide, tmp_path):
    done = run(megabytes * 1000, "fit", wide, "-y", "y", "--out", tmp_path / "m.kalprox")
    assert done.returncode == 7, (done.returncode, done.stderr)
    assert done.stderr.splitlines()[-1].startswith("Error: ") and "(ulimit -v)" in done.stderr
    assert not (tmp_path / "m.kalprox").exists()


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [1100, 1800, 1950])
def test_many_columns_of_a_structure(megabytes, wide, tmp_path):
    """A limit that was too small for JAX, which is loaded after the rows have been read, was an abort."""
    done = run(megabytes * 1000, "fit", wide, "-y", "y", "--structure", "diagonal", "--out", tmp_path / "m.kalprox")
    assert done.returncode in (0, 7), (done.returncode, done.stderr)
    assert (done.returncode == 0) is (tmp_path / "m.kalprox").exists()
    assert done.returncode == 0 or (done.stderr.splitlines()[-1].startswith("Error: ") and "(ulimit -v)" in done.stderr)


@pytest.mark.slow
def test_a_model_of_one_column(tmp_path):
    """A limit that is large enough; and one with which `predict` did not end."""
    (tmp_path / "rows.csv").write_text("x,y\n" + "".join(f"{i},{2 * i + i % 3}\n" for i in range(100)))
    done = run(4_000_000, "fit", tmp_path / "rows.csv", "-y", "y", "--out", tmp_path / "m.kalprox", "--quiet")
    assert done.returncode == 0, done.stderr
    done = run(400_000, "predict", tmp_path / "m.kalprox", tmp_path / "rows.csv")
    assert done.returncode == 7 and "Error: Libraries" in done.stderr and "(ulimit -v)" in done.stderr
