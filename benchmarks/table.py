"""The results of a run as Markdown tables, one for each benchmark and size, and as JSON."""

import math
from itertools import groupby
from typing import Any

import numpy as np

__all__ = ["grid", "markdown", "of_peers", "one_line", "plain"]

_COLUMNS = {  # key in the JSON file -> heading; shown if any peer has a value
    "rows": "rows",
    "us_per_row": "µs a row",
    "ratio": "× floor",
    "seconds": "seconds",
    "peak_mb": "peak MB",
    "import_mb": "import MB",
    "first_call_s": "first call s",
    "error": "error",
    "prediction": "prediction",
    "objective_above": "above the best",
    "truth": "error of the truth",
    "optimality": "optimality",
}


def one_line(result: dict[str, Any]) -> str:
    """Return one line with the date, the machine and its load."""
    machine = result["machine"]
    return (
        f"{result['date']}, {machine['cpu']}, {machine['cores']} cores, one core a peer, Python {machine['python']}; "
        f"load {machine['load_before'][0]} before and {result['load_after'][0]} after, {result['minutes']} minutes"
        f"{_only(result)}."
    )


def _only(result: dict[str, Any]) -> str:
    return f", --only {result['only']}" if result.get("only") else ""


def markdown(result: dict[str, Any]) -> str:
    parts = [one_line(result)]
    for (work, d, n), rows in groupby(result["rows"], key=lambda r: (r["work"], r["d"], r["n"])):
        parts.append(f"### {work}: d = {d:,}, n = {n:,}\n\n{of_peers(list(rows))}")
    return "\n\n".join(parts) + "\n"


def of_peers(rows: list[dict[str, Any]], leave: tuple[str, ...] = ()) -> str:
    """Return a table with a line for each peer and the columns in which any peer has a value, except those to omit."""
    columns = [c for c in _COLUMNS if c not in leave and any(_is(row.get(c)) for row in rows)]
    head = ["", "version", *(_COLUMNS[c] for c in columns)]
    lines = [head, ["---", "---", *["---:"] * len(columns)]]
    for row in rows:
        name = row["peer"] + (f" ({row['note']})" if row["note"] else "")
        lines.append([name, row["version"], *(_cell(c, row.get(c)) for c in columns)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def grid(head: list[str], lines: list[list[str]]) -> str:
    """Return a table in Markdown; columns of numbers are aligned on the right."""
    numbers = [
        all(cell.lstrip("*-")[:1].isdigit() or not cell for cell in column) for column in zip(*lines, strict=True)
    ]
    rule = ["---:" if number else "---" for number in numbers]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (head, rule, *lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def _is(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _cell(column: str, value: Any) -> str:
    if not _is(value):
        return ""
    if column == "rows":
        return f"{value:,}"
    if column in ("error", "optimality", "objective_above"):
        return f"{value:.0e}"
    if column in ("peak_mb", "import_mb"):
        return f"{value:,.0f}"
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def plain(value: Any) -> Any:
    """Convert a value to JSON types; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
