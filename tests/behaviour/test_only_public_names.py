"""The tests of this folder import public names of kalprox only, so that the inside may be rebuilt under them."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__)
FILES = [file for file in sorted(HERE.parent.glob("*.py")) if file != HERE]  # the faults below are meant
HELPERS = {file.stem: file for file in HERE.parents[1].glob("*.py")}  # of other tests
# The modules of docs/reference/api.md whose names users import, and the command line. A module that may be used as an
# attribute, such as `kp.models.Linear`, is in `kalprox.__all__` too.
MODULES = {
    "kalprox",
    "kalprox.adapters.river",
    "kalprox.covariance",
    "kalprox.decisions",
    "kalprox.forgetting",
    "kalprox.likelihoods",
    "kalprox.models",
    "kalprox.penalties",
    "kalprox.regularizers",
    "kalprox.structures",
}
COMMAND = {("kalprox.cli", "main"), ("kalprox.learning.rules", "RULES")}  # which the reference prints
OPEN_TO_ALL = {
    "_repr_html_",
    "_exit",
    "_asdict",
    "_fields",
    "_replace",
}  # protocols of others


def is_public(module: str, name: str) -> bool:
    """Whether an import is open to users; a helper of other tests is, if all that it imports is."""
    if module in HELPERS:
        return faults(HELPERS[module].read_text()) == []
    if module.split(".")[0] != "kalprox" or (module, name) in COMMAND | {("kalprox", "")}:
        return module.split(".")[0] != "tests"
    return module in MODULES and name in import_module(module).__all__


def imported(tree: ast.AST) -> list[tuple[str, str]]:
    """Return every import as (module, name), the name empty where the whole module is imported."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [(node.module, alias.name) for alias in node.names]
    return found


def scripts(tree: ast.AST) -> list[ast.AST]:
    """Return the programs that are written in a test as text, for another process."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    found = []
    for text in texts:
        if re.search(r"^\s*(from|import) kalprox", text, flags=re.M):
            try:
                found.append(ast.parse(text))
            except SyntaxError:
                continue  # a sentence, or a part of a program
    return found


def private(tree: ast.AST) -> list[str]:
    """Return the attributes with one underscore that are read of anything but one's own self."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = [node.attr for node in nodes if not (isinstance(node.value, ast.Name) and node.value.id == "self")]
    return [name for name in names if re.match("_[^_]", name) and name not in OPEN_TO_ALL]


def faults(text: str) -> list[str]:
    whole = ast.parse(text)
    found = []
    for tree in [whole, *scripts(whole)]:
        found += [f"{module}.{name}" for module, name in imported(tree) if not is_public(module, name)]
        found += private(tree)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_test_of_behaviour_imports_public_names_only(file):
    assert faults(file.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "from kalprox.learning import learner",
        "import kalprox.learning.belief",
        "from kalprox import calibration",
        "def f():\n    from kalprox.base.checks import positive",
        "from kalprox.cli.fit import fit",
        "model._learner",
        "from tests.oracle import solve",
        "SCRIPT = '''\nimport os\nfrom kalprox.jobs import fit\n'''",
    ],
)
def test_an_internal_name_is_found(text):
    assert len(faults(text)) == 1


def test_the_names_of_the_first_page_are_public():
    text = "import kalprox as kp\nfrom kalprox import KalproxRegressor, models\nfrom kalprox.cli import main"
    assert faults(text) == []
