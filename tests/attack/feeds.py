"""Feeds: what comes into `kalprox stream` is cut inside a row, too long, or from the far future; what goes out, cut."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.attack.launcher import Launcher
from tests.attack.tables import as_csv, as_lines, regression
from tests.attack.trial import Refused, Wrong, expect, is_close, numbers

__all__ = ["attack"]


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    FEEDS[rng.integers(len(FEEDS))](rng, folder, launcher)


def cut(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """A feeder dies at any byte, one to three times, and sends all of it again: each row is learned once, and whole."""
    lines, jsonl = int(rng.integers(20, 120)), bool(rng.random() < 0.5)
    table = {name: values.round(3) for name, values in regression(rng, lines, 2).items()}
    whole = (as_lines if jsonl else as_csv)(table).encode()
    options = ["-y", "y", "--infer-rows", 5, "--flush", int(rng.choice([1, 7]))]
    straight = _fed(launcher, folder, whole, *options, "--out", folder / "straight.kalprox")
    answers: list[str] = []
    begin = whole.index(b"\n") if not jsonl else 0
    for end in [*sorted(rng.integers(begin, len(whole), size=rng.integers(1, 4)).tolist()), len(whole)]:
        told = ["--checkpoint", folder / "state", "--every", 3, "--out", folder / "resumed.kalprox"]
        answers += _fed(launcher, folder, whole[:end], *options, *told)
    if len(answers) != len(straight):
        raise Wrong(f"{len(answers)} answers for {len(straight)} rows")
    _same(launcher, folder, "straight.kalprox", "resumed.kalprox")


def long_cell(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """A quoted cell longer than a record may be, with lines inside that look like rows: one bad row, and no other."""
    n, at = 60, int(rng.integers(10, 50))
    table = {name: values.round(3).tolist() for name, values in regression(rng, n, 2).items()}
    notes = ["-"] * n
    notes[at] = "\n".join(["1,2,3,4"] * int(rng.integers(200, 900)))
    rows = as_csv({**table, "note": notes}).encode()
    told = ["-y", "y", "--exclude", "note", "--infer-rows", 5, "--max-record", 1000, "--out", folder / "long.kalprox"]
    answers = _fed(launcher, folder, rows, *told)
    if len(answers) != n or sum("bad" in line for line in answers) != 1:
        raise Wrong(f"{len(answers)} answers, of which {sum('bad' in line for line in answers)} bad, for {n} rows")
    others = {name: values[:at] + values[at + 1 :] for name, values in table.items()}
    _fed(launcher, folder, as_csv(others).encode(), "-y", "y", "--infer-rows", 5, "--out", folder / "others.kalprox")
    _same(launcher, folder, "long.kalprox", "others.kalprox")


def full_output(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """The answers go to a disk that is full at a random size: exit 7; afterwards, each answer comes whole."""
    rows = folder / "rows.csv"
    rows.write_text(as_csv(regression(rng, 300, 2)))
    expect(launcher.run("fit", rows, "-y", "y", "--out", folder / "m.kalprox"))
    whole = expect(launcher.run("predict", folder / "m.kalprox", rows)).out
    answers = folder / "answers.csv"
    answers.touch()
    limit = int(rng.uniform(0, 1.2 * len(whole)))
    ran = launcher.run("predict", folder / "m.kalprox", rows, stdout=answers, file_size=limit)
    if ran.code == 0 and answers.read_text() != whole:
        raise Wrong(f"exit code 0 with {answers.stat().st_size} of {len(whole)} bytes")
    expect(ran, 7)


def empty(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """An input without a row: nothing at all, a header, blank lines, or no standard input."""
    data = [b"", b"a,b,y\n", b"\n\n\n", b"a,b,y"][rng.integers(4)]
    (folder / "feed").write_bytes(data)
    close = {"close": (0,)} if rng.random() < 0.3 else {"stdin": folder / "feed"}
    ran = launcher.run("stream", "-y", "y", "--out", folder / "m.kalprox", **close)
    expect(ran, 2, 3, 6)


def _fed(launcher: Launcher, folder: Path, data: bytes, *options: object) -> list[str]:
    """Return the answers to the bytes of a feed, a line a row."""
    (folder / "feed").write_bytes(data)
    try:
        ran = expect(launcher.run("stream", *options, "--to", "jsonl", stdin=folder / "feed"), 3, 6)
    except Refused:
        return []  # no whole row has come yet
    lines = ran.out.splitlines()
    for line in lines:
        json.loads(line)
    return lines


def _same(launcher: Launcher, folder: Path, *models: str) -> None:
    """Raise `Wrong` unless two models predict the same."""
    (folder / "new.csv").write_text("x0,x1\n1,0\n0,1\n-2,3\n")
    first, second = (numbers(expect(launcher.run("predict", folder / name, folder / "new.csv")).out) for name in models)
    if not is_close(first, second):
        raise Wrong(f"{models[1]} predicts otherwise than {models[0]}")


FEEDS: list[Callable[[np.random.Generator, Path, Launcher], None]] = [cut, long_cell, full_output, empty]
