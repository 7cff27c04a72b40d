"""One trial: an attack drawn from a seed, and whether kalprox survived it, refused it clearly, or was wrong."""

import contextlib
import csv
import io
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.attack.launcher import Launcher, Ran

__all__ = ["REFUSED", "SURVIVED", "WRONG", "Attack", "Refused", "Trial", "Wrong", "attempt", "expect", "finite_rows"]
__all__ += ["is_close", "numbers"]

SURVIVED, REFUSED, WRONG = "survived", "refused", "wrong"

Attack = Callable[[np.random.Generator, Path, Launcher], None]


class Trial(NamedTuple):
    """What came of a trial; `why` is what was refused or wrong."""

    family: str
    seed: int
    verdict: str
    why: str = ""


class Wrong(Exception):
    """kalprox did what it must never do."""


class Refused(Exception):
    """kalprox ended with a message and a documented exit code."""


def attempt(family: str, attack: Attack, seed: int, launcher: Launcher, keep: Path | None = None) -> Trial:
    """Run one trial in a folder of its own; `keep` is where its files stay."""
    rng = np.random.default_rng([*family.encode(), seed])
    with _folder(keep) as folder:
        try:
            attack(rng, folder, launcher)
        except Refused as refused:
            return Trial(family, seed, REFUSED, str(refused))
        except Wrong as wrong:
            return Trial(family, seed, WRONG, str(wrong))
        except Exception as error:  # such as a file that should be there and is not
            return Trial(family, seed, WRONG, f"{type(error).__name__}: {error}")
    return Trial(family, seed, SURVIVED)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="kalprox-trial-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def expect(ran: Ran, *codes: int) -> Ran:
    """Return a command that succeeded; raise `Refused` if it ended with one of these codes and says why.

    Anything else is wrong: another code, a traceback, no message, a hang.
    """
    said = " ".join(ran.err.split())[-300:]
    asked = f"`{' '.join(ran.arguments)}`"
    if ran.hung:
        raise Wrong(f"{asked} did not end")
    if "Traceback (most recent call last)" in ran.err or "Exception ignored" in ran.err:
        raise Wrong(f"{asked} printed a traceback: {said}")
    if "\x1b" in ran.out + ran.err:
        raise Wrong(f"{asked} printed a control character")
    if ran.code not in (0, *codes):
        raise Wrong(f"{asked} ended with {ran.code}: {said}")
    if ran.code > 0 and "Error: " not in ran.err and ran.code not in (130, 141):
        raise Wrong(f"{asked} ended with {ran.code} and without a message: {said}")
    if ran.code:
        raise Refused(f"{ran.code}: {said}")
    return ran


def numbers(text: str) -> np.ndarray:
    """Return the predictions that `kalprox predict` wrote as CSV, a row each: mean, std, lower, upper; NaN if empty."""
    _, *rows = csv.reader(io.StringIO(text))
    return np.array([[float(cell or "nan") for cell in row] for row in rows]).reshape(len(rows), 4)


def finite_rows(text: str, rows: int) -> np.ndarray:
    """Return the predictions of so many rows, which must be there, with finite means and no negative spread."""
    found = numbers(text)
    if len(found) != rows:
        raise Wrong(f"{len(found)} predictions of {rows} rows")
    if not np.isfinite(found[:, 0]).all():
        raise Wrong(f"predictions that are not finite: {found[~np.isfinite(found[:, 0]), 0][:3]}")
    if (found[:, 1] < 0).any() or (found[:, 2] > found[:, 3]).any():
        raise Wrong("a negative spread")
    return found


def is_close(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether predictions agree to ten digits of the largest."""
    scale = max(abs(a[:, 0]).max(initial=0.0), abs(b[:, 0]).max(initial=0.0), math.ulp(1.0))
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-8, atol=1e-10 * scale, equal_nan=True)
