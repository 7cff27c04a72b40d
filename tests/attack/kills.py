"""Kills: a job that is stopped at random instants and started again comes to the bytes of one that never was."""

import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.attack.launcher import Launcher, Ran
from tests.attack.tables import as_csv, regression, save
from tests.attack.trial import Wrong, expect

__all__ = ["attack"]

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
FIT = ["--memory", "1MB", "--every", 2000, "--quiet"]
JOBS = {
    "linear": ("bad.csv", []),
    "l1": ("parts", ["--penalty", "l1", "--alpha", "auto"]),
    "robust": ("parts", ["--coef-cov", "robust"]),
    "forgetting": ("bad.csv", ["--forget", "0.999"]),
    "noise by inputs": ("parts", ["--noise", "inputs"]),
    "standard input": ("-", []),
    "sigmoid": ("classes.parquet", ["--link", "sigmoid"]),
    "sigmoid, one pass": ("classes.parquet", ["--link", "sigmoid", "--passes", 1]),
    "engine": ("classes.parquet", ["--link", "sigmoid", "--engine", "local", "--partitions", 3, "--workers", 1]),
    "predict": ("bad.csv", None),
}


class Reference(NamedTuple):
    """An undisturbed run: the bytes that it left, and the seconds that it took."""

    files: dict[str, bytes]
    seconds: float


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    kind = str(rng.choice(list(JOBS)))
    data = _data(launcher)
    if (kind, "reference") not in launcher.kept:
        straight = launcher.folder / f"straight {kind}"
        straight.mkdir(exist_ok=True)
        ran = expect(_run(launcher, kind, data, straight))
        if JOBS[kind][1] is not None:
            expect(launcher.run("show", straight / "model.kalprox"))
        launcher.kept[kind, "reference"] = Reference(_files(straight), ran.seconds)
    reference = launcher.kept[kind, "reference"]
    for _ in range(rng.integers(1, 4)):
        how, share = SIGNALS[rng.integers(3)], rng.uniform(0, 1.1) if rng.random() < 0.7 else rng.uniform(0.8, 1.1)
        after = 0.01 + share * reference.seconds
        ran = _run(launcher, kind, data, folder, stop=(int(how), after))
        if ran.code not in (0, -how, 130 if how == signal.SIGINT else 0) or "Traceback" in ran.err or ran.hung:
            raise Wrong(f"{kind}: {how.name} after {after:.3f} s: ended with {ran.code}: {ran.err[-300:]}")
        if ran.code == 0:
            _compare(kind, folder, reference)
    expect(_run(launcher, kind, data, folder))
    _compare(kind, folder, reference)


def _run(launcher: Launcher, kind: str, data: Path, folder: Path, **options: Any) -> Ran:
    source, more = JOBS[kind]
    bad = ["--quarantine", folder / "bad.csv"]
    if more is None:
        arguments = ["predict", data / "model.kalprox", data / source, "--out", folder / "out.parquet", "--quiet"]
        return launcher.run(*arguments, "--memory", "1MB", *bad, **options)
    files = ["--out", folder / "model.kalprox", "--checkpoint", folder / "state"]
    if source == "-":
        options["stdin"] = data / "bad.csv"
    named = source if source == "-" else data / source
    return launcher.run("fit", named, "--target", "y", *more, *FIT, *files, *bad, **options)


def _data(launcher: Launcher) -> Path:
    """The folder of the sources, made once; its tables do not depend on the seed of the trial."""
    folder = launcher.folder / "kills"
    if folder.exists():
        return folder
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = as_csv(regression(rng, 20_000)).splitlines(keepends=True)
    lines[25::50] = ["1,2\n" if i % 3 else "1,2,three,4\n" for i in range(len(lines[25::50]))]
    (folder / "bad.csv").write_text("".join(lines))
    (folder / "parts").mkdir()
    for i, n in enumerate((7000, 13_000)):
        save(regression(np.random.default_rng(i), n), folder / "parts" / f"{i}.parquet")
    save(regression(rng, 15_000, link="sigmoid"), folder / "classes.parquet")
    expect(launcher.run("fit", folder / "parts", "--target", "y", "--out", folder / "model.kalprox"))
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _compare(kind: str, folder: Path, reference: Reference) -> None:
    """The job is done: its files are those of the reference. They are removed, so that it can begin anew."""
    found = _files(folder)
    if found.keys() != reference.files.keys():
        raise Wrong(f"{kind}: left {sorted(found)} instead of {sorted(reference.files)}")
    for name, content in reference.files.items():
        if found[name] != content:
            raise Wrong(f"{kind}: {name} has other bytes")
        (folder / name).unlink()
