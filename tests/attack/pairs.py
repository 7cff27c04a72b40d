"""Representation pairs: one table in two formats. Fitted from one and predicted from the other, the same numbers."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.attack.launcher import Launcher
from tests.attack.tables import save
from tests.attack.trial import Refused, Wrong, expect, is_close, numbers

__all__ = ["attack"]

FORMATS = ("csv", "jsonl", "parquet", "arrow", "csv.gz")
ARROW = ("parquet", "arrow")

DAYS = [date(2020, 1, 1), date(2020, 2, 29), date(1969, 12, 31), date(2021, 7, 1)]

# A column: four values, and how each format holds them; what it does not say it holds as the values are.
KINDS: dict[str, dict[str, Any]] = {
    "text": {"values": ["u", "v", "w", "é"]},
    "booleans": {"values": [True, False, True, False]},
    "integers": {"values": [1, 2, 3, 4]},
    "large integers": {"values": [10**15, 10**15 + 1, 10**15 + 2, 10**15 + 4]},
    "integers beyond 2^53": {"values": [2**60, 2**60 + 1, 2**60 + 2, 2**60 + 3]},
    "floats": {"values": [0.1, 1 / 3, 1e-7, 2.5]},
    "whole floats": {"values": [1.0, 2.0, 3.0, 4.0]},
    "decimals": {"values": [1.0, 2.5, 3.25, 4.0], "arrow": [Decimal(x) for x in ("1.00", "2.50", "3.25", "4.00")]},
    "small integers": {"values": [1, 2, 3, 4], "arrow": pa.array([1, 2, 3, 4], pa.int8())},
    "32-bit floats": {"values": [0.5, 0.25, 3.0, 4.0], "arrow": pa.array([0.5, 0.25, 3.0, 4.0], pa.float32())},
    "numbers as text": {"values": ["01", "1", "1.0", "2"]},
    "blanks": {"values": ["u", "u ", " u", "v"]},
    "dictionary": {"values": ["u", "v", "w", "x"], "arrow": pa.array(["u", "v", "w", "x"]).dictionary_encode()},
    "true and True": {"values": ["true", "True", "TRUE", "false"]},
    "text like null": {"values": ["NA", "null", "None", "x"]},
    "dates": {"values": [str(day) for day in DAYS], "arrow": DAYS},
    "times": {"values": [f"{day}T00:00:00" for day in DAYS], "arrow": pa.array(DAYS).cast(pa.timestamp("us"))},
    "quotes": {"values": ['a"b', "a,b", "a\tb", "it's"]},
}


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    kind = str(rng.choice(list(KINDS)))
    first, second = (str(name) for name in rng.choice(FORMATS, size=2, replace=False))
    n = int(rng.integers(20, 60))
    which = np.r_[np.arange(4), rng.integers(4, size=n - 4)]
    x = rng.normal(size=n)
    columns = {"y": x + which + 0.1 * rng.normal(size=n), "x": x}
    sources = {name: save(columns | {"c": _column(kind, name, which)}, folder / f"rows.{name}") for name in FORMATS}
    options = [[], ["--categorical", "c"], ["--penalty", "none", "--categorical", "c"]][rng.integers(3)]
    if kind in ("dates", "times") and rng.random() < 0.7:
        options = ["--dates", "c"]
    said = f"{kind} of {first}, predicted from {second}, {' '.join(options)}"
    model = folder / "m.kalprox"
    fitted = launcher.run("fit", sources[first], "-y", "y", *options, "--out", model)
    expect(fitted, 2, 3, 4)
    same = numbers(expect(launcher.run("predict", model, sources[first])).out)
    if np.isnan(same[:, 0]).any():
        raise Wrong(f"{said}: the rows that it was fitted to are not predicted")
    other = launcher.run("predict", model, sources[second])
    expect(other, 3, 4)
    if is_close(same, numbers(other.out)):
        return
    if "nknown" in other.err or "level" in other.err:
        raise Refused(f"{said}: {other.err.strip()[:200]}")
    raise Wrong(f"{said}: other predictions, and nothing said")


def _column(kind: str, format: str, which: np.ndarray) -> Any:
    spec = KINDS[kind]
    if format in ARROW and "arrow" in spec:
        return pa.array(spec["arrow"]).take(pa.array(which))
    return [spec["values"][i] for i in which]
