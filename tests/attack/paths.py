"""Paths that coincide: two roles of a command get one file, under one name or two. What is read stays as it is."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.attack.launcher import Launcher
from tests.attack.tables import as_csv, regression
from tests.attack.trial import Wrong, expect, finite_rows

__all__ = ["attack"]

# The roles of each command: those that it reads, and those that it writes with their option.
READ = {"fit": ["source", "columns"], "predict": ["model", "source"], "report": ["model"], "path": ["model"]}
READ["merge"] = ["model", "second"]
WRITTEN = {"fit": ["out", "checkpoint", "quarantine", "events"], "predict": ["out", "quarantine", "events"]}
WRITTEN |= {"report": ["out"], "path": ["out"], "merge": ["out"]}
NAMES = {"source": "rows", "columns": "model"}  # of the files of roles that are not called as the role


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    command = str(rng.choice(list(READ), p=[0.5, 0.3, 0.05, 0.05, 0.1]))
    first = str(rng.choice(WRITTEN[command]))
    others = [role for role in (*READ[command], *WRITTEN[command]) if role != first]
    second = str(rng.choice(others))
    inputs = _inputs(folder, launcher)
    paths = {role: folder / f"{NAMES.get(role, role)}.csv" for role in (*READ[command], *WRITTEN[command])}
    how = str(rng.choice(["same", "relative", "symlink", "hard link"]))
    paths[first] = _alias(paths[second], how, second in WRITTEN[command])
    ran = launcher.run(*_arguments(command, paths))
    said = f"{command}: {first} = {second} ({how})"
    replaced = ran.code == 0 and first == "out" and second in ("model", "second", "columns")  # by a model
    for name, content in inputs.items():
        if replaced and command in ("fit", "merge") and paths[second].name == name:
            continue
        if not (folder / name).exists() or (folder / name).read_bytes() != content:
            raise Wrong(f"{said} destroyed {name} and ended with {ran.code}")
    expect(ran, 2, 5, 6)
    if second in WRITTEN[command]:
        raise Wrong(f"{said} succeeded with two outputs in one file")
    if command in ("fit", "merge"):
        finite_rows(expect(launcher.run("predict", paths["out"], folder / "rows.csv")).out, 100)


def _inputs(folder: Path, launcher: Launcher) -> dict[str, bytes]:
    """Write the source and two models; return their bytes by name."""
    rows = folder / "rows.csv"
    rows.write_text(as_csv(regression(np.random.default_rng(0), 100)))
    if "paths" not in launcher.kept:
        expect(launcher.run("fit", rows, "-y", "y", "--out", folder / "model.csv"))
        launcher.kept["paths"] = (folder / "model.csv").read_bytes()
    for name in ("model.csv", "second.csv"):
        (folder / name).write_bytes(launcher.kept["paths"])
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _alias(path: Path, how: str, make: bool) -> Path:
    """Another name of the file, which is made if it is an output."""
    other = path.with_name(f"other{path.suffix}")
    if how == "relative":
        return path.parent / ".." / path.parent.name / path.name
    if how in ("symlink", "hard link") and make:
        path.touch()
    if how == "symlink":
        other.symlink_to(path)
        return other
    if how == "hard link":
        os.link(path, other)
        return other
    return path


def _arguments(command: str, paths: dict[str, Path]) -> list[Any]:
    options = [part for role in WRITTEN[command] for part in (f"--{role}", paths[role])]
    if command == "fit":
        return ["fit", paths["source"], "--columns", paths["columns"], *options, "--every", 10]
    return [command, *(paths[role] for role in READ[command]), *options]
