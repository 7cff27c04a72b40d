"""Odd options: values that no option expects, some at a time, on a plain table. A usable result, or an error."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.attack.launcher import Launcher
from tests.attack.tables import regression, save
from tests.attack.trial import Wrong, expect, finite_rows, numbers

__all__ = ["attack"]

HUGE = str(10**30)
READING: list[list[str]] = [
    ["--encoding", "nonsense"],
    ["--encoding", "utf-16"],
    ["--encoding", "rot13"],
    ["--encoding", "undefined"],
    ["--encoding", "punycode"],
    ["--encoding", ""],
    ["--delimiter", ""],
    ["--delimiter", "ab"],
    ["--delimiter", "\n"],
    ["--delimiter", "é"],
    ["--delimiter", '"'],
    ["--delimiter", "1"],
    ["--memory", "1"],
    ["--memory", "0.0001k"],
    ["--memory", f"{HUGE}TB"],
    ["--memory", "inf"],
    ["--format", "parquet"],
    ["--format", "jsonl"],
    ["--format", "csv.gz"],
    ["--max-bad", HUGE],
    ["--max-bad", "0.0%"],
    ["--max-bad", "-1"],
    ["--skip-unreadable"],
    ["no such file"],
    ["--no-such-option"],
]
FIT = [
    ["--target", "none"],
    ["--target", "x0"],
    ["--target", ""],
    ["--features", "y"],
    ["--features", "x0,x0"],
    ["--features", ","],
    ["--features", "c"],
    ["--categorical", "y"],
    ["--categorical", "c="],
    ["--categorical", "c=u|u"],
    ["--categorical", "none=u"],
    ["--categorical", "=u"],
    ["--dates", "x0"],
    ["--dates", "c"],
    ["--weight", "y"],
    ["--weight", "x0"],
    ["--weight", "c"],
    ["--clusters", "c"],
    ["--clusters", "x0"],
    ["--clusters", "none"],
    ["--coef-cov", "clustered"],
    ["--infer-rows", HUGE],
    ["--infer-rows", "1"],
    ["--max-levels", "1"],
    ["--unseen", "reject"],
    ["--penalty", "box,low=nan,high=1"],
    ["--penalty", "box,low=1,high=-1"],
    ["--penalty", "box,low=inf,high=inf"],
    ["--penalty", "box"],
    ["--penalty", "group"],
    ["--penalty", "smooth_l1,delta=0"],
    ["--penalty", "smooth_l1,delta=nan"],
    ["--penalty", "elasticnet,l1_ratio=nan"],
    ["--alpha", HUGE],
    ["--noise", "1e-320"],
    ["--forget", "1e-320"],
    ["--forget", "nan"],
    ["--passes", HUGE],
    ["--shuffle", "-1"],
    ["--shuffle", HUGE],
    ["--every", HUGE],
    ["--engine", "local", "--partitions", "1000", "--workers", "1"],
    ["--engine", "local", "--forget", "0.9", "--workers", "1"],
    ["--engine", "spark", "--scheduler", "nowhere"],
    ["--partitions", HUGE],
    ["--columns", "rows.csv"],
]
PREDICT = [["--level", "1e-320"], ["--level", "0.9999999999999999"], ["--level", "nan"], ["--interval", "conformal"]]
PREDICT += [["--out", "out.xlsx"], ["--out", "out"], ["--interval", "conformal", "--level", "0.7"]]
OTHERS = [["show", "--top", HUGE], ["show", "--level", "nan"], ["path", "--alphas", "nan"], ["path", "--alphas", "-1"]]
OTHERS += [["path", "--alphas", ""], ["path", "--alphas", "1e300,1e-300,0"], ["path", "--alphas", "1," * 2000 + "1"]]
OTHERS += [["report", "--level", "1e-320"], ["completion", "tcsh"], ["merge"], ["--version"], ["fitt"]]


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    n = 60
    columns: dict[str, Any] = regression(rng, n) | {"c": [str(word) for word in rng.choice(["u", "v", "1"], size=n)]}
    model = _model(folder, launcher)
    source = save(columns, folder / "rows.csv")
    kind = rng.choice(3, p=[0.7, 0.15, 0.15])
    if kind == 0:
        _fit(rng, folder, launcher, source, n)
    elif kind == 1:
        chosen = _choose(rng, PREDICT + READING, folder)
        found = expect(launcher.run("predict", model, source, *chosen), 2, 3, 4)
        if "--out" not in chosen and np.isinf(numbers(found.out)[:, 0]).any():
            raise Wrong(f"{chosen}: infinite predictions")
    else:
        command = OTHERS[rng.integers(len(OTHERS))]
        file = [model] if command and command[0] in ("show", "path", "report", "merge") else []
        expect(launcher.run(*command[:1], *file, *command[1:]), 2)


def _model(folder: Path, launcher: Launcher) -> Path:
    model = folder / "model.kalprox"
    if "options" not in launcher.kept:
        source = save(regression(np.random.default_rng(0), 60) | {"c": ["u", "v", "1"] * 20}, folder / "rows.csv")
        expect(launcher.run("fit", source, "-y", "y", "--categorical", "c", "--out", model))
        launcher.kept["options"] = model.read_bytes()
    model.write_bytes(launcher.kept["options"])
    return model


def _fit(rng: np.random.Generator, folder: Path, launcher: Launcher, source: Path, n: int) -> None:
    out = folder / "m.kalprox"
    chosen, reading = _choose(rng, FIT, folder), _choose(rng, READING, folder) if rng.random() < 0.3 else []
    target = [] if "--target" in chosen else ["--target", "y"]
    expect(launcher.run("fit", source, *target, *chosen, *reading, "--out", out), 2, 3, 4, 6)
    expect(launcher.run("show", out))
    finite_rows(expect(launcher.run("predict", out, source, *reading), 3, 4).out, n)


def _choose(rng: np.random.Generator, options: list[list[str]], folder: Path) -> list[str]:
    """One or two of the options."""
    picked = rng.choice(len(options), size=rng.integers(1, 3), replace=False)
    chosen = [part for i in picked for part in options[i]]
    return [str(folder / part) if part in ("rows.csv", "out.xlsx", "out") else part for part in chosen]
