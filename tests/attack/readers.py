"""Fuzz of the readers: the bytes of a source are changed. Rows are read or refused; what is fitted is usable."""

import gzip
from pathlib import Path

import numpy as np

from tests.attack.launcher import Launcher
from tests.attack.tables import FORMATS, regression, save
from tests.attack.trial import Wrong, expect, finite_rows

__all__ = ["attack", "mutated"]

TOKENS = [b"\0", b'"', b'""', b",", b"\n", b"\r", b"\r\n", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"{", b"}", b"["]
TOKENS += [
    b"1e999",
    b"NaN",
    b"\x1b[31m",
    b"PAR1",
    b"ARROW1",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"9" * 40,
    b"\t",
]


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    n = int(rng.choice([5, 50, 300]))
    columns: dict = regression(rng, n) | {"c": [str(word) for word in rng.choice(["u", "v", "é"], size=n)]}
    source = save(columns, folder / f"rows.{rng.choice(FORMATS)}")
    data = source.read_bytes()
    inside = source.name.endswith(".gz") and rng.random() < 0.5
    changed = gzip.compress(mutated(rng, gzip.decompress(data))) if inside else mutated(rng, data)
    source.write_bytes(changed)
    clean = save(columns, folder / "clean.csv")
    out = folder / "m.kalprox"
    options = [["--quarantine", folder / "bad.csv"], ["--max-bad", "50%"], ["--skip-unreadable", "--max-bad", 9], []]
    command = ["fit", source, "-y", "y", *options[rng.integers(4)], "--out", out]
    engine = ["--engine", "local", "--partitions", 3, "--workers", 1] if rng.random() < 0.2 else []
    expect(launcher.run(*command, *engine), 3, 4)
    if not out.exists():
        raise Wrong("a fit succeeded and left no model")
    expect(launcher.run("show", out))
    predicted = launcher.run("predict", out, clean)
    if expect(predicted, 3, 4):  # the clean file may lack a column that was renamed, or have levels that were lost
        finite_rows(predicted.out, n)


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    """The bytes with one to four changes: flipped, removed, inserted, repeated, cut, joined."""
    found = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at, length = int(rng.integers(len(found) + 1)), int(rng.choice([1, 1, 4, 30, 300]))
        kind = rng.integers(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del found[at : at + length]
        elif kind == 2:
            found[at:at] = TOKENS[rng.integers(len(TOKENS))]
        elif kind == 3:
            found[at:at] = found[at : at + length]
        elif kind == 4:
            found[at : at + length] = rng.bytes(length)
        elif kind == 5 and rng.random() < 0.3:
            del found[at:]
        elif kind == 6:
            token = TOKENS[rng.integers(len(TOKENS))]
            found[at : at + len(token)] = token
    return bytes(found)
