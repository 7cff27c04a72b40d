"""The table of docs/explanation/reliability.md, from the counts of the last run of each family."""

import json
import re
from pathlib import Path

from tests.attack.families import FAMILIES

__all__ = ["table", "update"]

NUMBERS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "reliability.md"

Counts = dict[str, dict[str, int]]


def table(results: dict[str, Counts]) -> str:
    """Return the counts as a table: a row a family, four columns a run."""
    verdicts = list(next(iter(next(iter(results.values())).values())))
    several = len(results) > 1
    heads = [f"{name}{f', {run}' if several else ''}" for run in results for name in ("tried", *verdicts)]
    lines = [["family", *heads], ["---", *["---:"] * len(heads)]]
    families = [family for family in FAMILIES if any(family in counts for counts in results.values())]
    rows = {family: [counts.get(family) for counts in results.values()] for family in families}
    rows["all"] = [_sum(counts) for counts in results.values()]
    for family, cells in rows.items():
        lines.append([family, *(cell for count in cells for cell in _cells(count, verdicts))])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def update(run: str, counts: Counts) -> None:
    """Keep the counts of these families, and write the table of the page anew."""
    results: dict[str, Counts] = {"before": {}, "after": {}}
    if NUMBERS.exists():
        results |= json.loads(NUMBERS.read_text())
    results[run] |= counts
    NUMBERS.write_text(json.dumps(results, indent=1) + "\n")
    marked = re.compile(r"(<!-- begin table -->\n).*?(<!-- end -->)", flags=re.S)
    shown = {name: found for name, found in results.items() if found}
    PAGE.write_text(marked.sub(lambda m: f"{m[1]}\n{table(shown)}\n\n{m[2]}", PAGE.read_text()))


def _sum(counts: Counts) -> dict[str, int]:
    return {name: sum(count[name] for count in counts.values()) for name in next(iter(counts.values()))}


def _cells(count: dict[str, int] | None, verdicts: list[str]) -> list[str]:
    if count is None:
        return [""] * (len(verdicts) + 1)
    return [f"{sum(count.values()):,}", *(f"{count[name]:,}" for name in verdicts)]
