"""The command line as a user runs it, on small problems: the numbers beside the figures, and the page in a browser."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import browser
import pytest
from click.testing import CliRunner

from kalprox.cli import main
from kalprox.paper import claims, demo, ridge, sparse
from kalprox.paper.cache import cached_all

SMALL = {
    ridge: ridge.Settings(n=400, d=5, gammas=(0.05, 0.2), points=6),
    sparse: sparse.Settings(n=3000, d=10, sizes=(1.0,), points=6, filter_points=3),
    claims: claims.Settings(n=2000, d=6, gammas=4, sparse_n=3000, sizes=(1.0,)),
}


@pytest.fixture
def small(monkeypatch):
    for module, settings in SMALL.items():
        monkeypatch.setattr(module, "QUICK", settings)
    monkeypatch.setattr(demo, "SETTINGS", SMALL[sparse])


def invoke(*arguments):
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip().splitlines()


@pytest.mark.integration
@pytest.mark.parametrize("command", [[], ["reproduce"]])
def test_help_imports_nothing_heavy(command):
    code = (
        "import sys; from click.testing import CliRunner; from kalprox.cli import main; "
        f"assert CliRunner().invoke(main, {[*command, '--help']}).exit_code == 0; "
        "heavy = {'numpy', 'scipy', 'jax', 'matplotlib', 'rich'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.integration
def test_the_installed_command_answers():
    done = subprocess.run([sys.executable, "-m", "kalprox", "--version"], check=True, capture_output=True, text=True)
    assert "kalprox, version" in done.stdout


@pytest.mark.slow
@pytest.mark.integration
def test_demo_ends_with_the_path_of_a_page_that_shows_its_table(small, tmp_path):
    lines = invoke("demo", "--out", tmp_path / "demo", "--seed", 3)
    assert lines[-1] == str(tmp_path / "demo" / "demo.html")
    text = "\n".join(lines)
    assert "refined" in text and "rows per" in text
    numbers = json.loads((tmp_path / "demo" / "figures" / "fig1b-sparse-errors.json").read_text())
    assert numbers["seeds"] == [3, 4]
    assert numbers["settings"]["n"] == 3000
    page = (tmp_path / "demo" / "demo.html").read_text()
    assert page.count("<figure") == 7
    assert page.index("A stream with intervals") < page.index("PIPG")  # the library comes before the paper
    for term in ("taps", "size", "PIPG", "Q", "SGD", "refined"):
        assert re.search(rf"<t[hd][^>]*>\s*{term}\s*</t[hd]>", page), f"{term} is not explained"
    assert "drifting: The rows at the end" in page and text.index("calibrated") < text.index("drifting")
    assert not re.search(r"Figure \d+\.[^<]*Fig\.", page) and page.count("n = 3,000") == 1  # said once
    assert "3, 4" in page  # the seeds are on the page


@pytest.mark.slow
@pytest.mark.integration
def test_reproduce_all_is_repeatable_cached_and_reads_well_in_a_browser(small, tmp_path):
    options = ("--quick", "--seeds", 2, "--seed", 5, "--out", tmp_path)
    lines = invoke("reproduce", "all", *options, "--format", "png")
    assert lines[-1] == str(tmp_path / "all.html")
    figures = tmp_path / "figures"
    before = {path.name: path.read_text() for path in figures.glob("*.json")}
    assert len(before) >= 6
    assert all((figures / name).with_suffix(".png").exists() for name in before)
    assert json.loads(before["fig1b-sparse-errors.json"])["seeds"] == [5, 6]

    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert invoke("reproduce", "all", *options) == lines
    assert {path.name: path.read_text() for path in figures.glob("*.json")} == before
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == stamps  # nothing recomputed

    with browser.browser() as driver:
        for width in (390, 1280):
            browser.show(driver, tmp_path / "all.html", width)
            assert not browser.console_errors(driver)
            assert not browser.outside_requests(driver)
            assert browser.overflow(driver) <= 0
            drawn = browser.drawings(driver)
            assert min(browser.label_sizes(driver)) >= 9
            assert len(drawn) == len(before)
            assert all(min(browser.box(driver, svg)[2:]) > 100 for svg in drawn)


@pytest.mark.slow
@pytest.mark.integration
def test_claims_follow_from_the_numbers(small, tmp_path):
    found = claims.compute(SMALL[claims], range(3), partial(cached_all, tmp_path, jobs=2))
    verdicts = {claim.says: claim.verdict for claim in found}

    def verdict(part):
        return next(v for says, v in verdicts.items() if part in says)

    assert verdict("O(d^2)") == claims.FAILS
    assert verdict("constant step diverges") == claims.FAILS
    assert verdict("cannot be run on the sigmoid") == claims.FAILS
    assert verdict("posterior is exact") == claims.CONDITIONS
    assert verdict("any v0, gamma and lambda") == claims.FAILS
    assert all(claim.evidence and "nan" not in claim.evidence for claim in found)
    text = (Path(__file__).parents[3] / "docs" / "explanation" / "paper.md").read_text()
    assert all(claim.why in text for claim in found if "stable" not in claim.says)  # its words depend on the numbers
    table = claims.section(found).tables[0]
    assert len(table.rows) == len(found) >= 10


@pytest.mark.parametrize(
    ("option", "registry", "others"),
    [("--link", "kalprox.models.LINKS", []), ("--penalty", "kalprox.penalties.PENALTIES", ["none"])],
)
def test_links_and_penalties_are_those_of_the_library(option, registry, others):
    module, _, name = registry.rpartition(".")
    names = [*others, *getattr(import_module(module), name)]
    (parameter,) = (p for p in main.commands["fit"].params if option in p.opts)
    assert list(parameter.type.choices) == names
    assert [item.value for item in parameter.type.shell_complete(None, parameter, "")] == names
    result = CliRunner().invoke(main, ["fit", "a.csv", "-y", "a", option, "unknown"])
    assert result.exit_code == 2 and all(repr(name) in result.output.replace("\n", " ") for name in names)


def test_missing_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 7
    assert 'need jinja2 and matplotlib: pip install "kalprox[report]"' in result.output


@pytest.mark.integration
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and "_KALPROX_COMPLETE" in result.output and "kalprox" in result.output
    for line, last, expected in (("kalprox fit --pen", 2, "--penalty"), ("kalprox fit --penalty gro", 3, "group")):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(last), "_KALPROX_COMPLETE": f"{shell}_complete"}
        words |= {"COMP_CWORD": line.split()[-1]} if shell == "fish" else {}
        found = subprocess.run(
            [sys.executable, "-m", "kalprox"], env=os.environ | words, capture_output=True, text=True
        )
        assert expected in found.stdout


@pytest.mark.parametrize("command", ["fit", "stream"])
def test_help_shows_what_is_needed_first_and_all_options_in_groups(command):
    short, whole = (CliRunner().invoke(main, [command, option]).output for option in ("--help", "--help-all"))
    options = [max(option.opts, key=len) for option in main.commands[command].params if option.opts[0][0] == "-"]
    shown = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", short.partition("Options:")[2], re.MULTILINE)
    assert len(shown) == 12 and shown[-2:] == ["--help-all", "--help"]
    sections = whole[whole.index("\nColumns:") :] if command == "fit" else whole[whole.index("\nStream:") :]
    everything = re.findall(r"^  (?:-\w, )?(--[a-z-]+)(?:, (--[a-z-]+))?", sections, re.MULTILINE)
    assert sorted(options) == sorted(max(names, key=len) for names in everything if names[0] != "--help")
    others = whole.partition("Other options:")[2]
    assert re.findall(r"--[a-z-]+", others) == ["--help-all", "--help"]
    assert "elasticnet,l1_ratio=0.5" in whole and "time,half_life=NUMBER" in whole
