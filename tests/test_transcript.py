"""The transcripts in the documents are what the commands print."""

from pathlib import Path

import pytest
from transcript import run

PAGES = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", ["tutorials/from_a_messy_file.md"])
def test_a_transcript_is_what_the_commands_print(name):
    page = (PAGES / name).read_text(encoding="utf-8")
    assert run(page) == page


def test_only_the_last_digits_of_a_number_may_differ_from_the_page():
    page = "```pycon\n>>> print(0.1 + 0.2, 0.5)\n0.30000000000000099 0.5\n```"
    assert run(page) == page
    assert "0.30000000000000004 0.5" in run(page.replace("0.300000", "0.300001"))
    assert "0.30000000000000004 0.5" in run(page.replace("0.5\n`", "0.4\n`"))
