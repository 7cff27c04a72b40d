"""Odd fits: settings and data at their limits, from the command line and from Python. A usable model, or an error."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.attack.launcher import Launcher
from tests.attack.tables import as_csv
from tests.attack.trial import Wrong, expect, finite_rows

__all__ = ["attack", "in_python"]

LINKS = ["identity"] * 6 + ["sigmoid", "tanh", "softplus", "exp", "arctan"]
PENALTIES = ["none", "ridge", "ridge", "l1", "elasticnet", "smooth_l1", "group", "box"]
DATA = (
    "plain",
    "constant column",
    "collinear",
    "one row",
    "two rows",
    "no rows",
    "more columns than rows",
    "constant y",
    "perfect fit",
    "zero weights",
    "one weight",
    "huge weights",
    "tiny scale",
    "huge scale",
    "offset",
    "one extreme y",
    "one extreme x",
    "mixed scales",
    "zeros",
    "duplicate names",
    "no features",
    "one level",
    "a level a row",
    "integers beyond 2^53",
    "strange names",
)


def attack(rng: np.random.Generator, folder: Path, launcher: Launcher) -> None:
    data, settings = str(rng.choice(DATA)), _settings(rng)
    columns, names = _columns(rng, data, settings)
    text = as_csv(columns)
    if names is not None:
        text = ",".join(names) + "\n" + text.partition("\n")[2]
    (folder / "rows.csv").write_text(text)
    (folder / "settings.json").write_text(json.dumps(settings))
    rows = text.count("\n") - 1
    said = f"{data}, {settings}"
    try:
        if rng.random() < 0.4 and names is None and "c" not in columns and rows:
            expect(launcher.run(folder, call="tests.attack.fits:in_python"), 2)
        else:
            _on_the_command_line(rng, folder, launcher, settings, rows)
    except Wrong as wrong:
        raise Wrong(f"{said}: {wrong}") from None


def _on_the_command_line(
    rng: np.random.Generator, folder: Path, launcher: Launcher, settings: dict[str, Any], rows: int
) -> None:
    source, out = folder / "rows.csv", folder / "m.kalprox"
    options = [part for name, value in settings.items() for part in _option(name, value)]
    expect(launcher.run("fit", source, "-y", "y", *options, "--out", out), 2, 3, 4)
    if not out.exists():
        raise Wrong("a fit succeeded and left no model")
    expect(launcher.run("show", out))
    finite_rows(expect(launcher.run("predict", out, source)).out, rows)
    if rng.random() < 0.2:
        expect(launcher.run("path", out), 2)


def _option(name: str, value: Any) -> list[Any]:
    if value is True:
        return [f"--{name.replace('_', '-')}"]
    return [] if value is False else [f"--{name.replace('_', '-')}", value]


def _settings(rng: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {"link": LINKS[rng.integers(len(LINKS))], "penalty": PENALTIES[rng.integers(8)]}
    if rng.random() < 0.5:
        found["alpha"] = [0.0, 1e-300, 1e-8, 10.0, 1e12, 1e300, "auto", "auto", "auto", -1.0, "nan"][rng.integers(11)]
    if rng.random() < 0.3:
        found["noise"] = [1e-300, 1e-8, 1.0, 1e300, "inputs", "inputs", "inputs", 0.0, "inf"][rng.integers(9)]
    if rng.random() < 0.2:
        found["forget"] = [0.5, 0.99, 1e-3, 1e-300][rng.integers(4)]
    for name, chance in (("no_intercept", 0.2), ("standardize", 0.2), ("drop_first", 0.1)):
        found[name] = bool(rng.random() < chance)
    if rng.random() < 0.2:
        found["passes"] = int(rng.choice([1, 2]))
    if rng.random() < 0.15:
        found["coef_cov"] = "robust"
    if rng.random() < 0.2:
        found["targets"] = "any"
    return found


def _columns(rng: np.random.Generator, data: str, settings: dict[str, Any]) -> tuple[dict[str, Any], list[str] | None]:
    """The columns of the kind, and other names for them where there are such."""
    n = {"one row": 1, "two rows": 2, "no rows": 0, "more columns than rows": 4}.get(data, int(rng.integers(5, 80)))
    d = 9 if data == "more columns than rows" else 3
    X = rng.normal(size=(n, d))
    u = X.sum(1) + rng.normal(size=n)
    columns: dict[str, Any] = {"y": u}
    X = {
        "constant column": lambda: X * [1, 0, 1] + [0, 5, 0],
        "collinear": lambda: X @ np.array([[1, 1, 0], [0, 1, 1], [1, 2, 1.0]]),
        "tiny scale": lambda: X * 1e-160,
        "huge scale": lambda: X * 1e120,
        "offset": lambda: X + 1e9,
        "mixed scales": lambda: X * [1e-100, 1, 1e100],
        "zeros": lambda: X * 0,
        "integers beyond 2^53": lambda: np.rint(X * 1e17),
    }.get(data, lambda: X)()
    if settings["link"] != "identity" and settings.get("targets") != "any":
        columns["y"] = {
            "sigmoid": lambda: (u > 0) * 1.0,
            "exp": lambda: np.exp(0.3 * u),
            "softplus": lambda: np.log1p(np.exp(u)),
        }.get(settings["link"], lambda: np.tanh(u))()
    if data in ("constant y", "perfect fit"):
        columns["y"] = X.sum(1) if data == "perfect fit" else np.full(n, 0.5)
    if data == "one extreme y":
        columns["y"][0] = rng.choice([1e100, 1e140, 1e160, -1e308])
    if data == "one extreme x":
        X[-1, 0] = rng.choice([1e100, 1e140, 1e160, -1e308])
    columns |= {f"x{j}": X[:, j] for j in range(d if data != "no features" else 0)}
    if "weight" in data:
        weights = {
            "zero weights": np.zeros(n),
            "one weight": np.eye(n)[0],
            "huge weights": 10.0 ** rng.uniform(*rng.choice([[0, 14], [13, 14]]), n),
        }
        columns["w"], settings["weight"] = weights[data], "w"
        settings["weight_kind"] = str(rng.choice(["frequency", "precision"]))
    if data in ("one level", "a level a row"):
        columns["c"] = [f"level {i if data == 'a level a row' else 0}" for i in range(n)]
    names = list(columns)
    if data == "duplicate names":
        names[-1] = names[-2]
    elif data == "strange names":
        names[-3:] = [
            str(name) for name in rng.permutation(["x=1", "(intercept)", "\x1b[31mred", "x" * 500, "é ", "mean"])[:3]
        ]
    return columns, None if names == list(columns) else names


def in_python(folder: str) -> None:
    """In the process of the command: fit, predict, save and load in Python. Ends with 2 where an error says why."""
    from kalprox import KalproxRegressor, likelihoods, penalties

    warnings.simplefilter("ignore")
    given = json.loads((Path(folder) / "settings.json").read_text())
    table = np.atleast_1d(np.genfromtxt(Path(folder) / "rows.csv", delimiter=",", names=True))
    for name in ("passes", "drop_first"):
        given.pop(name, None)
    weight = given.pop("weight", None)
    given["fit_intercept"] = not given.pop("no_intercept")
    given["penalty"] = None if given["penalty"] == "none" else given["penalty"]
    for name in ("alpha", "noise"):
        if given.get(name) in ("nan", "inf"):
            given[name] = float(given[name])
    names = [name for name in table.dtype.names if name not in ("y", weight)]
    X = np.column_stack([table[name] for name in names]) if names else np.empty((len(table), 0))
    if given["penalty"] == "group":
        given["penalty"] = penalties.Group(list(range(len(names))))
    if targets := given.pop("targets", None):
        given["likelihood"] = likelihoods.Gaussian(targets)
    try:
        model = KalproxRegressor(**({"penalty": "ridge"} | given)).fit(
            X, table["y"], None if weight is None else table[weight]
        )
        mean, std = model.predict(X, return_std=True)
        model.save(Path(folder) / "python.kalprox")
    except (ValueError, FloatingPointError) as error:  # the latter where sums overflow
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    again = KalproxRegressor.load(Path(folder) / "python.kalprox").predict(X, return_std=True)
    if not np.isfinite(mean).all() or (std < 0).any():
        sys.exit(f"predictions that are not finite: {mean[:3]} {std[:3]}")
    if not np.array_equal(again, (mean, std), equal_nan=True):
        sys.exit("the loaded model predicts something else")
