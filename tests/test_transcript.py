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
