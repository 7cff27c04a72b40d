"""Every script of examples/ runs as it stands, and prints what it is there to show."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWN = {
    "flights_stream.py": r"after 327,346 flights\n(.*\n)+dep_delay +1\.0\d+ +0\.0\d+\n(.*\n)+.* Over 327,344 rows",
    "michaelis_menten.py": r"Vm +212\.6837 +6\.9471\d* .*\nK +0\.064121\d* +0\.00828\d+ .*\n\nconverged: True",
    "sparse_sensors.py": r" 1500 +126\.1 +192 +8 +0 .*\n(.*\n)+ +12 +3\.00 +2\.\d+ +0\.\d+\n(.*\n)+.* Over 1,498 rows",
}


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_runs_and_shows(script):
    assert script.name in SHOWN, f"say in SHOWN what {script.name} prints"
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stderr
    assert re.search(SHOWN[script.name], run.stdout), run.stdout


def test_no_entry_without_its_script():
    assert set(SHOWN) == {path.name for path in EXAMPLES.glob("*.py")}
