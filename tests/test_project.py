"""What is said in two places is the same: versions, pinned tools, and the files that the sdist needs."""

import re
import tomllib
from pathlib import Path

import yaml

import kalprox

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_in_one_place_and_the_citation_agrees():
    assert "version" in PROJECT["project"]["dynamic"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == kalprox.__version__


def test_the_changelog_has_this_version_below_unreleased():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert headings[:2] == ["Unreleased", kalprox.__version__]


def test_types_are_handed_on():
    assert (Path(kalprox.__file__).parent / "py.typed").exists()
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_the_hooks_run_the_pinned_tools():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    versions = {hook["repo"].rpartition("/")[2]: hook["rev"].removeprefix("v") for hook in hooks}
    assert versions["ruff-pre-commit"] == pinned["ruff"]
    assert versions["mirrors-mypy"] == pinned["mypy"]


def test_ci_tries_the_versions_of_python_that_are_promised():
    promised = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["newest"]["strategy"]["matrix"]["python"] == promised
    assert PROJECT["tool"]["hatch"]["envs"]["matrix"]["matrix"] == [{"python": promised}]
    assert PROJECT["project"]["requires-python"] == f">={promised[0]}"
