"""What is refused: refused.json, found by walking all pairs of settings and ways in; see draw.py.

The table may only shrink: a pair that works must not be refused one day, and one that works now leaves the table. Every
refusal is a sentence that says what to change.
"""

import json
import re
from pathlib import Path

import pytest
from draw import BATCH, STREAM, can_be_said, candidates, implied, refusal

pytestmark = pytest.mark.filterwarnings("ignore")
TABLE = json.loads((Path(__file__).parent / "refused.json").read_text())
MOST = 289  # refusals; to be made smaller with the table
KNOWN = {(frozenset(one["labels"].items()), one["way"]) for one in TABLE}
COMMANDS = ("file", "file on an engine", "stream", "stream resumed")
ADVICE = re.compile(
    r"\b(needs?|must|use|set|give|fit|leave|learn|change|subtract|scale|should)\b", flags=re.IGNORECASE
)  # what is needed, or what to do instead


def name(one) -> str:
    return f"{one['way']}: " + ", ".join(f"{key} {label}" for key, label in one["labels"].items())


@pytest.mark.parametrize("way", [BATCH, STREAM, "merged", "merged streams", "engine", "river", *COMMANDS])
def test_what_is_refused_says_what_to_change(way):
    """Each is tried again: the table has the words of the day when it was drawn, and words may change."""
    for one in [one for one in TABLE if one["way"] == way]:
        said = refusal(one["labels"], way)
        assert said is not None, f"{name(one)} works now: python tests/behaviour/draw.py refused takes it out"
        kind, _, message = said.partition(": ")
        assert kind in ("SettingsError", "ValueError", "TypeError"), name(one)
        assert message.endswith(".") and len(message.split()) > 4 and ADVICE.search(message), name(one)


def test_the_table_of_refusals_only_shrinks():
    assert len(TABLE) <= MOST


def _others() -> dict[str, list]:
    """The pairs that are not refused, by the first setting."""
    found: dict[str, list] = {}
    for labels, way in candidates():
        if (
            can_be_said(labels, way)
            and not implied(labels, way, KNOWN)
            and (frozenset(labels.items()), way) not in KNOWN
        ):
            found.setdefault(next(iter(labels.values())), []).append((labels, way))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", list(_others()))
def test_every_other_pair_works(first):
    refused = [name({"labels": labels, "way": way}) for labels, way in _others()[first] if refusal(labels, way)]
    assert refused == []
