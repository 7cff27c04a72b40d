"""Faults: full disks, closed pipes, files that cannot be read or written, sources that change while they are read."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.attack.launcher import NOBODY, Launcher
from tests.attack.tables import as_csv, regression
from tests.attack.trial import Wrong, expect, finite_rows

__all__ = ["attack"]


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    FAULTS[rng.integers(len(FAULTS))](rng, folder, launcher)


def full_disk(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """No file may grow beyond a random size. What cannot be written is not there; afterwards, all can be."""
    rows, model = _prepare(folder, launcher, n=3000)
    command, name = [
        (["fit", rows, "-y", "y", "--checkpoint", folder / "state", "--every", 500, "--memory", "100kB"], "m.kalprox"),
        (["predict", model, rows], "m.csv"),
        (["predict", model, rows], "m.parquet"),
        (["path", model], "m.path.csv"),
    ][rng.integers(4)]
    out = folder / name
    expect(launcher.run(*command, "--out", out))
    whole = out.read_bytes()
    before = whole if rng.random() < 0.5 else None  # a file that is there stays as it is
    if before is None:
        out.unlink()
    limit = int(rng.uniform(0, 1.2 * len(whole)))
    try:
        expect(launcher.run(*command, "--out", out, file_size=limit), 7)
    finally:
        if (out.read_bytes() if out.exists() else None) not in (before, whole):
            raise Wrong(f"a disk that was full at {limit} bytes left a part of {name}")
        expect(launcher.run(*command, "--out", out))
        if out.read_bytes() != whole:
            raise Wrong(f"after a full disk {name} differs")


def no_permission(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """A file or folder that the user may not read or write."""
    rows, model = _prepare(folder, launcher)
    for name in ("in", "out"):
        (folder / name).mkdir()
    inside = shutil.copy(rows, folder / "in")
    private = shutil.copy(model, folder / "in")
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    folder.chmod(0o755)
    out, state = folder / "out" / "model.kalprox", folder / "out" / "state"
    forbidden, arguments = [
        (folder / "out", ["fit", rows, "-y", "y", "--out", out]),
        (folder / "out", ["fit", rows, "-y", "y", "--out", folder / "model2.kalprox", "--checkpoint", state]),
        (folder / "out", ["fit", rows, "-y", "y", "--out", out, "--quarantine", folder / "out" / "bad.csv"]),
        (folder / "out", ["fit", rows, "-y", "y", "--out", out, "--events", folder / "out" / "events"]),
        (folder / "out", ["predict", model, rows, "--out", folder / "out" / "p.csv"]),
        (folder / "out", ["report", model, "--out", folder / "out" / "page.html"]),
        (folder / "out", ["path", model, "--out", folder / "out" / "path.csv"]),
        (folder / "out", ["merge", model, model, "--out", out]),
        (folder / "in", ["fit", folder / "in", "-y", "y", "--out", out]),
        (folder / "in", ["fit", inside, "-y", "y", "--out", out]),
        (Path(inside), ["fit", inside, "-y", "y", "--out", out]),
        (Path(inside), ["predict", model, inside]),
        (Path(private), ["show", private]),
        (Path(private), ["predict", private, rows]),
    ][rng.integers(14)]
    forbidden.chmod(int(rng.choice([0, 0o444])) if "out" in forbidden.name else 0)
    try:
        ran = launcher.run(*arguments, user=NOBODY)
    finally:
        forbidden.chmod(0o755)
    if ran.code == 0:
        raise Wrong(f"{arguments} succeeded on what it may not touch")
    expect(ran, 2, 3, 7)


def closed_pipe(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """The reader of standard output goes away after some bytes, as `head` does; or there is none, or it is full."""
    rows, model = _prepare(folder, launcher, n=int(rng.choice([50, 20_000])))
    out = folder / "again.kalprox"
    arguments = [
        ["predict", model, rows],
        ["show", model],
        ["path", model],
        ["fit", rows, "-y", "y", "--out", out],
    ][rng.integers(4)]
    how: dict[str, Any] = [
        {"read": int(rng.choice([0, 1, 100, 10_000]))},
        {"close": (1,)},
        {"close": (2,)},
        {"stdout": Path("/dev/full")},
    ][rng.integers(4)]
    ran = launcher.run(*arguments, **how)
    if 2 in how.get("close", ()) and ran.code in (0, 7):
        return
    try:
        expect(ran, 7, 141)
    finally:
        if out.exists():
            finite_rows(expect(launcher.run("predict", out, rows)).out, _rows(rows))


def strange_source(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """Sources that are no files, give errors when they are read, or never give anything."""
    _, model = _prepare(folder, launcher)
    (folder / "folder.csv").mkdir()
    (folder / "loop.csv").symlink_to(folder / "loop.csv")
    (folder / "dangling.csv").symlink_to(folder / "nothing")
    (folder / "empty.csv").touch()
    os.mkfifo(folder / "pipe.csv")
    (folder / "long.csv").write_text("y,a\n1,2\n" + "1" * 8_000_000)
    (folder / "long.jsonl").write_text('{"y": 1, "a": ' + "[" * 8_000_000)
    names = ["long.csv", "long.jsonl", "folder.csv", "loop.csv", "dangling.csv", "empty.csv", "pipe.csv", "none.csv"]
    names += ["*.none", "/proc/self/mem", "/dev/null", "/proc/self/fd/999", "x" * 300 + ".csv"]
    source = folder / str(rng.choice(names)) if rng.random() < 0.9 else "-"
    command = [["fit", source, "-y", "y", "--out", folder / "out.kalprox"], ["predict", model, source]]
    ran = launcher.run(*command[rng.integers(2)], *([] if rng.random() < 0.5 else ["--format", "csv"]))
    if ran.code == 0 and ran.arguments[0] == "fit":
        raise Wrong(f"{ran.arguments} fitted a model to nothing")
    expect(ran, 2, 3, 4, 7)


def strange_output(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """Outputs that cannot be files."""
    rows, model = _prepare(folder, launcher)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    out = folder / str(rng.choice(["folder", "loop", "none/x", "rows.csv/x", "x" * 300, "folder/."]))
    option = str(rng.choice(["--out", "--checkpoint", "--quarantine", "--events"]))
    chosen = {"--out": folder / "m.kalprox"} | {option: out}
    command = ["fit", rows, "-y", "y", *(part for pair in chosen.items() for part in pair)]
    ran = [
        lambda: launcher.run(*command),
        lambda: launcher.run("predict", model, rows, "--out", f"{out}.csv"),
        lambda: launcher.run("report", model, "--out", out),
        lambda: launcher.run("merge", model, model, "--out", out),
    ][rng.choice(4, p=[0.6, 0.2, 0.1, 0.1])]()
    expect(ran, 2, 7)
    made = {"fit": chosen["--out"], "predict": Path(f"{out}.csv")}.get(ran.arguments[0], out)
    if not made.is_file():
        raise Wrong(f"{ran.arguments} succeeded, and {made.name[:40]} is not there")


def changing_source(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    """The source changes in the middle of a fit: the model is that of the old rows or of the new, or it is refused."""
    n, link = 20_000, str(rng.choice(["identity", "sigmoid"]))
    old, new = (regression(np.random.default_rng(seed), n, link=link) for seed in (1, 2))
    new["y"] = 1 - new["y"]
    rows = folder / "rows.csv"
    contents = launcher.kept.setdefault(("contents", link), [as_csv(old), as_csv(new)])
    options = ["-y", "y", "--link", link, "--memory", "300kB", "--quiet"]
    options += ["--coef-cov", str(rng.choice(["model", "robust"]))]
    out, changed = folder / "model.kalprox", contents[1]
    how = str(rng.choice(["replace", "overwrite", "cut", "append", "touch"]))
    if how in ("cut", "append", "touch"):
        lines = contents[0].splitlines(keepends=True)
        changed = "".join({"cut": lines[: n // 2], "append": [*lines, *lines[1:50]], "touch": lines}[how])
    expected, seconds = [], 1.0
    for content in (contents[0], changed):
        key = (*options, content)
        if key not in launcher.kept:
            rows.write_text(content)
            ran = expect(launcher.run("fit", rows, *options, "--out", out))
            launcher.kept[key] = ran.seconds, _predicted(launcher, out, contents[0], folder)
        seconds = launcher.kept[key][0]
        expected.append(launcher.kept[key][1])
    rows.write_text(contents[0])
    out.unlink(missing_ok=True)
    launcher.start("fit", rows, *options, "--out", out)
    time.sleep(rng.uniform(0, seconds))
    if how == "replace":
        (folder / "other").write_text(changed)
        (folder / "other").rename(rows)
    else:
        with open(rows, "r+" if how != "append" else "a") as file:
            file.write(changed if how != "append" else changed[len(contents[0]) :])
            if how == "cut":
                file.truncate()
    expect(launcher.finish(), 3, 4, 5)
    found = _predicted(launcher, out, contents[0], folder)
    if not any(np.array_equal(found, one, equal_nan=True) for one in expected):
        raise Wrong(f"{link}, {options[-1]}: {how} of the source in the middle gave a model of neither")


def _predicted(launcher: Launcher, model: Path, content: str, folder: Path) -> np.ndarray:
    few = folder / "few.csv"
    few.write_text("".join(content.splitlines(keepends=True)[:20]))
    return finite_rows(expect(launcher.run("predict", model, few)).out, 19)


def _prepare(folder: Path, launcher: Launcher, n: int = 200) -> tuple[Path, Path]:
    """A source and a model that was fitted to it."""
    rows, model = folder / "rows.csv", folder / "fitted.kalprox"
    if n not in launcher.kept:
        rows.write_text(as_csv(regression(np.random.default_rng(0), n)))
        expect(launcher.run("fit", rows, "-y", "y", "--penalty", "ridge", "--out", model))
        launcher.kept[n] = rows.read_text(), model.read_bytes()
    text, data = launcher.kept[n]
    rows.write_text(text)
    model.write_bytes(data)
    return rows, model


def _rows(source: Path) -> int:
    return source.read_text().count("\n") - 1


FAULTS: list[Callable[[np.random.Generator, Path, Launcher], None]] = [
    full_disk,
    no_permission,
    closed_pipe,
    strange_source,
    strange_output,
    changing_source,
]
