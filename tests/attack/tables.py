"""Tables to attack with, in every format that kalprox reads."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

__all__ = ["FORMATS", "as_csv", "as_lines", "regression", "save"]

FORMATS = ("csv", "jsonl", "parquet", "arrow", "csv.gz", "tsv")


def regression(rng: np.random.Generator, n: int, d: int = 3, link: str = "identity") -> dict[str, np.ndarray]:
    """Return the columns y and x0, x1, ...: y = h(x'theta + 0.5) + noise."""
    X = rng.normal(size=(n, d))
    u = X @ rng.normal(size=d) + 0.5
    if link == "sigmoid":
        y = (rng.random(n) < 1 / (1 + np.exp(-u))).astype(float)
    else:
        y = (np.tanh(u) if link == "tanh" else u) + 0.3 * rng.normal(size=n)
    return {"y": y} | {f"x{j}": X[:, j] for j in range(d)}


def as_csv(columns: Mapping[str, Sequence[Any]], delimiter: str = ",") -> str:
    """Return a table as CSV, every number with all its digits; None is an empty cell."""
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(delimiter.join(map(_cell, row)) + "\n" for row in rows)


def as_lines(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return a table as JSON lines."""
    rows = zip(*([_plain(v) for v in values] for values in columns.values()), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def save(columns: Mapping[str, Sequence[Any]], path: Path) -> Path:
    """Write a table in the format of the file's suffix."""
    name = path.name
    if name.endswith(".parquet"):
        pq.write_table(pa.table(dict(columns)), path)
    elif name.endswith(".arrow"):
        table = pa.table(dict(columns))
        with ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    else:
        text = as_lines(columns) if ".jsonl" in name else as_csv(columns, "\t" if ".tsv" in name else ",")
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _cell(value: Any) -> str:
    value = _plain(value)
    if value is None:
        return ""
    text = value if isinstance(value, str) else repr(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n\r\t') else text
