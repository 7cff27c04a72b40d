"""The page of a model shows what it says: whole tables, errors along the rows, and what a coefficient means."""

import re

import numpy as np
import pandas as pd
import pytest
from browser import browser, overflow, show
from click.testing import CliRunner

from kalprox.cli import main


def report(folder, frame, *options):
    frame.to_csv(folder / "model.csv", index=False)
    model, page = folder / "model.kalprox", folder / "model.html"
    for arguments in (["fit", folder / "model.csv", *options, "--out", model], ["report", model, "--out", page]):
        done = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output
    return page


def wine(n, seed=41):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"acidity_in_grams": rng.normal(7, 1, n), "sugar": rng.gamma(2, 2, n)})
    frame["colour"] = rng.choice(["red", "white"], n)
    frame["price"] = 5 + 0.1 * frame.sugar * frame.acidity_in_grams - 2e-5 * frame.sugar + rng.normal(size=n)
    return frame


@pytest.mark.slow
@pytest.mark.parametrize("n", [1_700, *(pytest.param(n, marks=pytest.mark.slow) for n in (150, 70_000))])
def test_a_short_file_has_a_running_error(tmp_path, n):
    page = report(tmp_path, wine(n), "--target", "price").read_text()
    figure = re.search(r"<figure[^>]*>(?:(?!</figure>).)*Error and coverage along.*?</figure>", page, re.DOTALL)[0]
    line = max(re.findall(r'<path d="([^"]*)"', figure), key=len)
    assert 15 <= line.count("L") + 1 <= 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formula", "shared"),
    [
        ("price ~ sugar * acidity_in_grams", ["sugar", "acidity_in_grams"]),
        pytest.param("price ~ sugar + I(sugar**2) + colour", ["sugar"], marks=pytest.mark.slow),
        pytest.param("price ~ sugar + colour", [], marks=pytest.mark.slow),
    ],
)
def test_coefficients_of_products_are_explained(tmp_path, formula, shared):
    page = " ".join(re.sub(r"<[^>]+>", " ", report(tmp_path, wine(300), "--formula", formula).read_text()).split())
    assert ("the others do not change." in page) == (not shared)
    assert ("Columns that share a variable change together" in page) == bool(shared)
    if shared:
        said = page[page.index("several terms contain") :][:100]
        assert all(name in said for name in shared) and "colour" not in said


@pytest.mark.integration
@pytest.mark.slow
def test_no_table_is_cut_on_a_laptop(tmp_path):
    page = report(tmp_path, wine(2_000), "--formula", "price ~ sugar * acidity_in_grams * colour", "--penalty", "none")
    with browser() as driver:
        for width in (1280, 1000):
            show(driver, page, width=width)
            tables = driver.find_elements("class name", "scroll")
            assert len(tables) >= 4 and overflow(driver) <= 0
            for table in tables:
                assert table.get_property("scrollWidth") <= table.get_property("clientWidth")
