"""Missing packages are named all at once, and the extras of the code are those of pyproject.toml."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kalprox.base import extras
from kalprox.base.extras import EXTRAS, load, require

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
MODULES = {"scikit-learn": "sklearn"}


def packages(extra):
    """The packages that an extra of pyproject.toml installs, by the names of their modules."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, inner = re.fullmatch(r"([\w-]+)(?:\[(.*)\])?(?:>=.*)?", requirement).groups()
        if name == "kalprox":
            found = found.union(*map(packages, inner.split(",")))
        else:
            found |= {MODULES.get(name, name)} | ({"distributed"} if name == "dask" else set())
    return found


def block(monkeypatch, *names):
    for name in (name for name in list(sys.modules) if name.partition(".")[0] in names):
        monkeypatch.setitem(sys.modules, name, None)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_extras_are_those_of_the_project(extra):
    assert set(EXTRAS[extra]) == packages(extra)


def test_all_is_every_extra():
    assert packages("all") == set().union(*EXTRAS.values())
    assert set(PROJECT["optional-dependencies"]) == {"all", *EXTRAS}


@pytest.mark.parametrize(
    ("extra", "blocked", "named"),
    [
        ("report", ("jinja2",), "jinja2"),
        ("report", ("jinja2", "matplotlib"), "jinja2 and matplotlib"),
        ("files", ("filelock", "pyarrow", "sklearn"), "filelock, pyarrow and scikit-learn"),
        ("formula", ("formulaic", "sklearn"), "formulaic and scikit-learn"),
    ],
)
def test_all_missing_packages_are_named_at_once(extra, blocked, named, monkeypatch):
    block(monkeypatch, *blocked)
    expected = re.escape(f'This needs {named}: pip install "kalprox[{extra}]"')
    with pytest.raises(ImportError, match=f"^{expected}$"):
        load(blocked[0], extra, "This needs")
    with pytest.raises(ImportError, match=f"^{expected}$"):
        require(extra, "This needs")


def test_what_is_installed_is_loaded():
    require("report", "This needs")
    assert load("jinja2", "report", "This needs").__name__ == "jinja2"


def test_a_package_that_is_broken_is_not_called_missing(monkeypatch):
    def broken(name):
        raise ImportError("libparquet.so: cannot open shared object file")

    monkeypatch.setattr(extras, "import_module", broken)
    with pytest.raises(ImportError, match=r"needs jinja2, which is installed but cannot be imported: libparquet\.so"):
        load("jinja2", "report", "This needs")


@pytest.mark.integration
def test_the_command_names_them_too():
    code = "import sys; sys.modules |= dict.fromkeys(['pyarrow', 'filelock', 'sklearn']); import kalprox.__main__"
    program = f"{code}; kalprox.__main__.main(['fit', 'rows.csv', '--target', 'y'])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    message = 'Reading files needs filelock, pyarrow and scikit-learn: pip install "kalprox[files]"'
    assert run.returncode == 7 and message in " ".join(run.stderr.split())
