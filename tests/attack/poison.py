"""Poison: bad cells of all kinds in every format. Each row is learned or refused, and none is lost."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.attack.launcher import Launcher
from tests.attack.tables import save
from tests.attack.trial import Refused, Wrong, expect, numbers

__all__ = ["attack"]

# Of the text of a cell in CSV: the number that it is, or None if the row must be refused.
CELLS: dict[bytes, float | None] = {
    b"abc": None,
    b'"1,5"': None,
    b"0x10": None,
    b"1_000": None,
    b"2020-01-01": None,
    b"  ": None,
    b"": None,
    b"NA": None,
    b"null": None,
    b"NaN": None,
    b"nan": None,
    b"-inf": None,
    b"Infinity": None,
    b"1e999": None,
    b"1e300": None,
    b"-1.7e308": None,
    b"9" * 400: None,
    b"1\x002": None,
    b"1\xff": None,
    b"\xef\xbb\xbf1": None,
    b'"x"': None,
    b'1"2': None,
    b"--1": None,
    b"1e": None,
    b"=1+1": None,
    b"\x1b[31m1": None,
    b"1 2": None,
    b'"1\n2"': None,
    b"True": None,
    b'"3"': 3.0,
    b" 3": 3.0,
    b"3 ": 3.0,
    b"+3": 3.0,
    b"3.": 3.0,
    b".5": 0.5,
    b"3e0": 3.0,
    b"-0": 0.0,
    b"1e-320": 1e-320,
    b"0.1e1": 1.0,
}
VALUES: dict[str, float | None] = {  # of the text of a value in JSON
    '"abc"': None,
    "null": None,
    "NaN": None,
    "-Infinity": None,
    "1e999": None,
    "1e300": None,
    "9" * 400: None,
    '"3"': 3.0,
    "[3]": None,
    '{"a": 3}': None,
    "true": 1.0,
    "3": 3.0,
    "3.0": 3.0,
    "-0.0": 0.0,
    "1e-320": 1e-320,
}
NUMBERS: list[float | None] = [None, np.nan, np.inf, -np.inf, 1e300, -1.7e308]  # bad ones, in a column of numbers
RECORDS = [b"1,2\n", b"1,2,3,4,5,6\n", b"7\n", b"\xff\xfe,2\n", b"\0\n", b",,,\n"]  # bad ones, in a CSV of four columns
LINES = ['{"y": 1, "a": 1, "b"', "[1, 2, 3]", "null", "x", '{"y": 1, "b": 1, "w": 1}', '{"y": 1}{"a": 2}', '"y"']


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    n = int(rng.integers(20, 60))
    columns = {name: rng.normal(size=n).round(3) for name in ("y", "a", "b")}
    columns["w"] = rng.integers(1, 4, size=n).astype(float)
    columns["y"] = (columns["y"] + 2 * columns["a"] - columns["b"]).round(6)
    source, bad = _write(rng, folder, columns)
    weighted = rng.random() < 0.5
    used = [name for name in columns if name != "w" or weighted]
    refused = sorted({row for row, names in bad.items() if names is None or set(names) & set(used)})
    out, quarantine, events = folder / "m.kalprox", folder / "bad.csv", folder / "events.jsonl"
    command = ["fit", source, "-y", "y", "--features", "a,b", "--out", out, "--events", events]
    command += ["--penalty", "ridge", *(["--weight", "w"] if weighted else [])]
    how, allowed = _bound(rng, n)
    ran = launcher.run(*command, *how, *(["--quarantine", quarantine] if allowed == n else []))
    said = f"{source.name}, {len(refused)} bad of {n}, {' '.join(how)}"
    if len(refused) > allowed:
        if ran.code == 0 or out.exists():
            raise Wrong(f"{said}: more bad rows than allowed were accepted")
        expect(ran, 4)
    expect(ran, *([3] if len(refused) == n else []))
    _check_rows(said, events, quarantine if allowed == n else None, refused, n, columns["w"] if weighted else None)
    good = np.delete(np.arange(n), refused)
    clean = save({name: columns[name][good] for name in columns}, folder / "clean.csv")
    found = numbers(expect(launcher.run("predict", out, clean)).out)
    expected = _ridge({name: columns[name][good] for name in columns}, weighted)
    if not np.allclose(found[:, 0], expected, rtol=1e-8, atol=1e-8):
        raise Wrong(
            f"{said}: predictions differ by {abs(found[:, 0] - expected).max():.1e} from those of the good rows"
        )
    _check_predictions(launcher, said, out, source, bad, n, folder)
    if refused:
        raise Refused(f"{said}: refused these rows")


def _bound(rng: np.random.Generator, n: int) -> tuple[list[str], int]:
    """Options for bad rows, and how many they allow."""
    kind = rng.integers(4)
    if kind == 0:
        return [], 0
    if kind == 1:
        return ["--max-bad", str(allowed := int(rng.integers(0, 6)))], allowed
    if kind == 2:
        return ["--max-bad", "10%"], n // 10
    return ["--max-bad", "100%"], n


def _write(
    rng: np.random.Generator, folder: Path, columns: dict[str, np.ndarray]
) -> tuple[Path, dict[int, list[str] | None]]:
    """Write the columns with some cells replaced, which changes the columns where a strange cell is a number.

    Returns
    -------
    source : Path
    bad : dict
        The columns of each bad row in which something is bad; None if the whole row is.
    """
    n = len(columns["y"])
    bad: dict[int, list[str] | None] = {}
    format = str(rng.choice(["csv", "csv.gz", "jsonl", "parquet", "arrow"]))
    path = folder / f"rows.{format}"
    cells: dict[str, list[Any]] = {name: list(values) for name, values in columns.items()}
    places = [(int(rng.integers(1, n)), str(rng.choice(list(columns)))) for _ in range(rng.integers(0, 7))]
    chosen: dict[tuple[int, str], Any] = {}
    for row, name in dict.fromkeys(places):
        if format in ("parquet", "arrow"):
            chosen[row, name], value = NUMBERS[rng.integers(len(NUMBERS))], None
        elif format == "jsonl":
            chosen[row, name] = str(rng.choice(list(VALUES)))
            value = VALUES[chosen[row, name]]
        else:
            chosen[row, name] = list(CELLS)[rng.integers(len(CELLS))]
            value = CELLS[chosen[row, name]]
        if value is None:
            bad.setdefault(row, []).append(name)
        else:
            columns[name][row] = value
    if format in ("parquet", "arrow"):
        for (row, name), value in chosen.items():
            cells[name][row] = value
        return save(cells, path), bad
    lines = [_line(format, columns, chosen, row) for row in range(n)]
    for row in rng.integers(1, n, size=rng.integers(0, 3)):
        broken = RECORDS[rng.integers(len(RECORDS))] if format != "jsonl" else rng.choice(LINES).encode() + b"\n"
        lines[row], bad[int(row)] = broken, None
    head = b"" if format == "jsonl" else b"y,a,b,w\n"
    head = b"\xef\xbb\xbf" * int(rng.integers(2)) + head
    data = head + b"".join(lines)
    path.write_bytes(gzip.compress(data) if format == "csv.gz" else data)
    return path, bad


def _line(format: str, columns: dict[str, np.ndarray], chosen: dict[tuple[int, str], Any], row: int) -> bytes:
    if format == "jsonl":
        pairs = (f'"{name}": {chosen.get((row, name), json.dumps(float(columns[name][row])))}' for name in columns)
        return ("{" + ", ".join(pairs) + "}\n").encode()
    cells = (chosen.get((row, name), repr(float(columns[name][row])).encode()) for name in columns)
    return b",".join(cells) + b"\n"


def _check_rows(
    said: str, events: Path, quarantine: Path | None, refused: list[int], n: int, weights: np.ndarray | None
) -> None:
    """Rows read = learned + refused."""
    done = json.loads(events.read_text().splitlines()[-1])
    if done["event"] != "done" or done["bad"] != len(refused):
        raise Wrong(f"{said}: said {done}")
    if weights is None and done["rows"] + done["bad"] != n:
        raise Wrong(f"{said}: learned {done['rows']} and refused {done['bad']} of {n} rows")
    if quarantine is not None:
        with open(quarantine, newline="", encoding="utf-8") as file:
            rows = [int(row["row"]) - 1 for row in csv.DictReader(file)]
        if rows != refused:
            raise Wrong(f"{said}: refused the rows {rows}, instead of {refused}")


def _check_predictions(
    launcher: Launcher, said: str, model: Path, source: Path, bad: dict[int, list[str] | None], n: int, folder: Path
) -> None:
    """`predict` writes one line a row, empty for the rows whose features are bad."""
    found = numbers(expect(launcher.run("predict", model, source, "--quarantine", folder / "not predicted.csv")).out)
    empty = {row for row, names in bad.items() if names is None or {"a", "b"} & set(names)}
    incomplete = {row for row, names in bad.items() if names is None}  # a line that lacks only the target is predicted
    nan = set(np.flatnonzero(np.isnan(found[:, 0])).tolist())
    if len(found) != n or nan | incomplete != empty | incomplete:
        raise Wrong(f"{said}: {len(found)} predictions of {n} rows, empty in {sorted(nan)} instead of {sorted(empty)}")


def _ridge(columns: dict[str, np.ndarray], weighted: bool) -> np.ndarray:
    """The fitted values of ridge regression with alpha = 1 and an intercept, by the normal equations."""
    y, w = columns["y"], columns["w"] if weighted else np.ones(len(columns["y"]))
    X = np.column_stack([np.ones(len(y)), columns["a"], columns["b"]])
    theta = np.linalg.solve(X.T @ (w[:, None] * X) + np.diag([0.0, 1.0, 1.0]), X.T @ (w * y))
    return X @ theta
