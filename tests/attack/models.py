"""Fuzz of model files: what is inside is changed and signed anew, or the bytes are. A usable model, or exit code 6."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.attack.launcher import Launcher
from tests.attack.readers import mutated
from tests.attack.tables import regression, save
from tests.attack.trial import Refused, expect, finite_rows

__all__ = ["attack", "load"]

DTYPES = {"F64": "<f8", "I64": "<i8", "BOOL": "|b1"}
VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    1e300,
    -1e-300,
    2**70,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "x",
]
VALUES += ["\ud800", "\x1b[31m", "ridge", "sigmoid", "auto", "=1+1", [], [[]], {}, [1, 2], {"a": 1}, [None], "1"]
KINDS: dict[str, list[Any]] = {
    "linear": [],
    "l1": ["--penalty", "l1", "--alpha", "auto"],
    "robust": ["--coef-cov", "robust", "--standardize"],
    "noise by inputs": ["--noise", "inputs"],
    "forgetting": ["--forget", 0.99, "--penalty", "none"],
    "clustered": ["--clusters", "c", "--features", "x0,x1"],
    "group": ["--penalty", "group"],
    "box": ["--penalty", "box"],
    "sigmoid": ["--link", "sigmoid"],
    "sigmoid, one pass": ["--link", "sigmoid", "--passes", 1],
}


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    kind = str(rng.choice(list(KINDS)))
    data, rows = _model(kind, folder, launcher)
    file = folder / "changed.kalprox"
    resigned = rng.random() < 0.8
    file.write_bytes(resign(rng, data) if resigned else mutated(rng, data))
    if file.read_bytes() == data:
        return
    whole = folder / "whole.kalprox"
    whole.write_bytes(data)
    command, codes = [
        (["report", file], (6,)),
        (["path", file], (2, 6)),
        (["merge", whole, file, "--out", folder / "merged.kalprox"], (2, 6)),
        (["fit", rows, "--columns", file, "--out", folder / "again.kalprox"], (2, 3, 4, 6)),
        (["predict", file, rows, "--interval", "conformal", "--level", 0.9], (2, 3, 4, 6)),
    ][rng.integers(5)]
    refused = None
    for arguments, allowed in (
        (["show", file], (6,)),
        (["predict", file, rows], (3, 4, 6)),
        (command, codes),
    ):
        try:
            ran = expect(launcher.run(*arguments), *allowed)
        except Refused as error:
            refused = refused or error
            continue
        if arguments[0] == "predict":
            finite_rows(ran.out, 40)
    try:
        expect(launcher.run(file, call="tests.attack.models:load"), 6)
    except Refused as error:
        refused = refused or error
    if refused:
        raise refused


def load(file: str) -> None:
    """In the process of the command: load the file in Python; end with 6 where it is refused as documented."""
    import sys

    from kalprox import KalproxRegressor
    from kalprox.model_file import ModelFileError

    try:
        model = KalproxRegressor.load(file)
        model.predict(np.zeros((2, model.n_features_in_)), return_std=True)
    except ModelFileError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(6)


def _model(kind: str, folder: Path, launcher: Launcher) -> tuple[bytes, Path]:
    """The bytes of a model file, and rows to predict."""
    n = 400
    link = "sigmoid" if "sigmoid" in kind else "identity"
    columns: dict = regression(np.random.default_rng(0), n, d=2, link=link)
    columns["c"] = [f"level {i % 5}" for i in range(n)]
    columns["t"] = [f"2020-01-{1 + i % 28:02}" for i in range(n)]
    rows = save({name: values[:40] for name, values in columns.items()}, folder / "rows.csv")
    if ("model", kind) not in launcher.kept:
        source, out = save(columns, folder / "all.csv"), folder / "good.kalprox"
        features = [] if "--features" in KINDS[kind] else ["--dates", "t"]
        expect(launcher.run("fit", source, "-y", "y", *features, *KINDS[kind], "--out", out))
        expect(launcher.run("show", out))
        launcher.kept["model", kind] = out.read_bytes()
    return launcher.kept["model", kind], rows


# -- the layout of a model file, as its documentation says it ---------------------------------------------------------


def resign(rng: np.random.Generator, data: bytes) -> bytes:
    """The file with something inside changed, and with the checksum of what it then holds."""
    length = int.from_bytes(data[:8], "little")
    layout, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    text = json.loads(layout.pop("__metadata__")["kalprox"])
    arrays = {}
    for name, entry in layout.items():
        start, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(body[start:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    for _ in range(rng.integers(1, 3)):
        if rng.random() < 0.6:
            _change(rng, text)
        else:
            _change_array(rng, arrays)
    return _sign(json.dumps(text, sort_keys=True), arrays)


def _change(rng: np.random.Generator, tree: Any) -> None:
    """Change one value somewhere in a tree of JSON."""
    places = list(_places(tree))
    parent, key = places[rng.integers(len(places))]
    kind = rng.integers(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.append(parent[key])
    elif kind == 2 and isinstance(parent, dict):
        parent[str(key) + "2"] = parent[key]
    elif kind == 3:
        deep: Any = 0
        for _ in range(int(rng.choice([3, 600]))):
            deep = [deep]
        parent[key] = deep
    else:
        parent[key] = VALUES[rng.integers(len(VALUES))]


def _places(tree: Any) -> Any:
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _change_array(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> None:
    name = sorted(arrays)[rng.integers(len(arrays))]
    a, kind = arrays[name].copy(), rng.integers(8)
    if kind == 0:
        del arrays[name]
        return
    if kind == 1:
        a = a.reshape(-1)[:-1]
    elif kind == 2:
        a = a[None]
    elif kind == 3:
        a = a.astype(["<f8", "<i8", "|b1"][rng.integers(3)])
    elif a.size:
        values = [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e300, 1e-300, 1e160]
        with np.errstate(all="ignore"):
            a.reshape(-1)[rng.integers(a.size) if kind < 7 else slice(None)] = (
                values[rng.integers(8)] if a.dtype.kind == "f" else int(rng.choice([-1, 0, 1, 7]))
            )
    arrays[name] = a


def _sign(text: str, arrays: dict[str, np.ndarray]) -> bytes:
    parts = [text.encode()]
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name]).reshape(arrays[name].shape)
        parts += [json.dumps([name, a.dtype.str, a.shape]).encode(), a.tobytes()]
    sha = hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts))
    layout: dict[str, Any] = {"__metadata__": {"kalprox": text, "sha256": sha.hexdigest()}}
    codes, end = {np.dtype(dtype): code for code, dtype in DTYPES.items()}, 0
    order = sorted(arrays, key=lambda name: (list(codes).index(arrays[name].dtype), name))
    for name in order:
        start, end = end, end + arrays[name].nbytes
        layout[name] = {"dtype": codes[arrays[name].dtype], "shape": arrays[name].shape, "data_offsets": [start, end]}
    described = json.dumps(layout, sort_keys=True, separators=(",", ":")).encode()
    described += b" " * (-len(described) % 8)
    return b"".join([len(described).to_bytes(8, "little"), described, *(arrays[name].tobytes() for name in order)])
