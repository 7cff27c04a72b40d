"""Finding files, their formats and fingerprints; importing without pyarrow."""

import subprocess
import sys
from pathlib import Path

import pytest

from kalprox.sources.files import STDIN, SourceError, find, fingerprint, format_of


def test_find(tmp_path):
    for name in ("b.csv", "a.parquet", "sub/c.CSV.GZ", "_tmp/d.csv", ".e.csv", "f.txt", "_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [file.relative_to(tmp_path).as_posix() for file in find(str(tmp_path))] == [
        "a.parquet",
        "b.csv",
        "sub/c.CSV.GZ",
    ]
    assert find(str(tmp_path / "*.csv")) == [tmp_path / "b.csv"]
    assert find(str(tmp_path / "f.txt")) == [tmp_path / "f.txt"] and find("-") == [STDIN]
    assert (
        format_of(STDIN) == "csv" and format_of(STDIN, "jsonl") == "jsonl" and format_of(Path("x.CSV.gz")) == "csv.gz"
    )
    with pytest.raises(SourceError, match="format must be one of arrow, csv"):
        format_of(STDIN, "xml")


def test_fingerprint(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(bytes(200_000))
    first = fingerprint(path)
    assert (first["name"], first["size"]) == ("x.csv", 200_000) and fingerprint(path) == first
    for at in (0, 199_999):
        data = bytearray(200_000)
        data[at] = 1
        path.write_bytes(data)
        assert fingerprint(path) != first
    assert fingerprint(STDIN) is None


@pytest.mark.integration
def test_pyarrow_is_not_imported_early():
    code = "import sys, kalprox, kalprox.sources, kalprox.sources.files; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.integration
def test_without_pyarrow():
    code = "import sys; sys.modules['pyarrow'] = None; import kalprox.sources.table"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "kalprox[files]"' in run.stderr
