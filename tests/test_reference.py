"""What the reference and the theory state is so: the reader of model files, the exit codes, the tests named."""

import re
from pathlib import Path

import numpy as np
import pytest

from kalprox import KalproxRegressor, model_file
from kalprox.cli.errors import EXIT_CODES
from kalprox.learning.rules import page

ROOT = Path(__file__).parents[1]
THEORY = sorted(page.name for page in (ROOT / "docs" / "theory").glob("*.md") if page.name != "index.md")


def test_the_specification_of_model_files_has_a_reader_that_reads_and_refuses_them(tmp_path):
    page, scope = (ROOT / "docs" / "reference" / "model_file.md").read_text(), {}
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    exec(code, scope)
    rng, path = np.random.default_rng(0), tmp_path / "model.kalprox"
    X = rng.normal(size=(50, 2))
    KalproxRegressor(penalty="ridge").fit(X[:40], X[:40, 0]).partial_fit(X[40:], X[40:, 0]).save(path)
    header, arrays = scope["read_model_file"](path)
    expected = model_file.read(path)
    assert header == expected[0] and arrays.keys() == expected[1].keys()
    for name, a in arrays.items():
        np.testing.assert_array_equal(a, expected[1][name])
    data = path.read_bytes()
    for damaged in (b"", data[:20], data[:-1], data + b"\0", data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"not a model file|too soon|left over|damaged"):
            scope["read_model_file"](path)


def test_the_specification_names_the_version_and_every_array_of_a_linear_model():
    page = (ROOT / "docs" / "reference" / "model_file.md").read_text()
    assert f"version {model_file.VERSION}." in page and f'"format": "{model_file.FORMAT}"' in page
    rng = np.random.default_rng(0)
    model = (
        KalproxRegressor(penalty="ridge")
        .fit(rng.normal(size=(50, 2)), rng.normal(size=50))
        .partial_fit([[1.0, 2.0]], [0.0])
    )
    names = {name for name, _ in _flat(model)}
    listed = set(re.findall(r"`([a-z_.]+\*?)`", page, flags=re.I))
    assert {n for n in names if n not in listed and f"{n.partition('.')[0]}.*" not in listed} == set()


def _flat(model):
    from kalprox.learning.saving import learner_parts

    return learner_parts(model._learner, **model._about())[1].items()


def test_the_exit_codes_are_included_from_the_page_that_is_generated():
    page = (ROOT / "docs" / "reference" / "exit_codes.md").read_text()
    assert 'cli.md\n:start-after: "## Exit codes"' in page
    table = (ROOT / "docs" / "reference" / "cli.md").read_text().partition("## Exit codes")[2]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.M)] == list(EXIT_CODES)


def test_what_goes_with_what_is_the_table_that_is_checked():
    written = (ROOT / "docs" / "reference" / "what_goes_with_what.md").read_text()
    assert written == page(), "python -m kalprox.learning.rules > docs/reference/what_goes_with_what.md"


@pytest.mark.parametrize("name", THEORY)
def test_a_page_on_theory_states_a_result_and_names_tests_that_exist(name):
    text = (ROOT / "docs" / "theory" / name).read_text()
    assert re.search(r":::\{admonition\} (Result|Identity)", text)
    assert "\n## Proof" in text or "\n## Source" in text
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text.partition("\n## Held by")[2])
    assert named
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in _source(file)]
    assert missing == []


def _source(file):
    path = ROOT / file
    return path.read_text() if path.exists() else ""


def test_there_is_a_page_for_each_result():
    results = {"exactness", "regret", "efficiency", "refinement", "conformal", "confidence_sequences"}
    assert results <= {Path(name).stem for name in THEORY}
