"""Ways in: each lets the model of a scenario learn the same rows, by another door."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scenarios import Rows, Scenario, default

from kalprox.adapters.river import RiverClassifier, RiverRegressor

__all__ = ["ROUTES", "Route", "table"]

Learn = Callable[[Scenario, Rows, Path], Any]
ALL = "fit"  # all rows at once


@dataclass(frozen=True)
class Route:
    """How rows are learned, what it must equal, and which scenarios can be asked for by this door.

    `like` is what the same rows give by `fit`, or by `partial_fit` in cuts of this size; 0 is one call for all.
    `other_cuts` says that the rows are cut otherwise than there, and `other_passes` that sums are made in another order
    and a search for a minimum may end elsewhere within its tolerance.
    """

    learn: Learn
    like: str | int
    can_be_said: Callable[[Scenario], bool] = lambda scenario: True
    other_cuts: bool = False
    other_passes: bool = False

    def expected(self, scenario: Scenario, rows: Rows) -> Any:
        if self.like == ALL:
            return scenario.fit(rows)
        return scenario.partial_fit(rows, int(self.like) or len(rows))


def table(rows: Rows) -> pd.DataFrame:
    """The rows as a table with all that is said of them."""
    frame = pd.DataFrame(rows.X, columns=list("abc"))
    for j, y in enumerate(rows.y.reshape(len(rows), -1).T):
        whole = bool(np.all(np.nan_to_num(y) == np.round(np.nan_to_num(y))))
        frame["yz"[j]] = pd.array(y, dtype="Int64") if whole else y  # a class is 1, also where others are missing
    names = {"sample_weight": "weight", "clusters": "cluster", "times": "time", "offset": "offset"}
    for name, values in rows.about.items():
        frame[names[name]] = values
    return frame


def _cuts(size: int) -> Learn:
    return lambda scenario, rows, folder: scenario.partial_fit(rows, size)


def _fit(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    return scenario.fit(rows)


def _saved(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    """Learn batches of 16, with a model file in between after each three of them."""
    model = scenario.model()
    for start in range(0, len(rows), 48):
        scenario.partial_fit(rows[start : start + 48], 16, model).save(folder / "m.kalprox")
        model = scenario.load(folder / "m.kalprox")
    return model


def _merged(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    third = len(rows) // 3
    parts = [scenario.fit(rows[:third]), scenario.fit(rows[third : 2 * third]), scenario.fit(rows[2 * third :])]
    return parts[2].merge(parts[0]).merge(parts[1])


def _merged_streams(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    half = len(rows) // 2
    first, second = scenario.partial_fit(rows[:half], 20), scenario.partial_fit(rows[half:], 20)
    return first.merge(second)


def _frames(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    model = scenario.model()
    frame = table(rows)
    for start in range(0, len(rows), 50):
        part = rows[start : start + 50]
        X = frame[list("abc")].iloc[start : start + 50]
        model.partial_fit(X, part.y, **scenario.declared(), **part.about)
    return model


def _lists(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    about = {name: values.tolist() for name, values in rows.about.items()}
    return scenario.model().partial_fit(rows.X.tolist(), rows.y.tolist(), **scenario.declared(), **about)


def _prequential(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    return scenario.prequential(rows)[0]


def _engine(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    return scenario.fit(rows, engine="local")


def _fit_command(scenario: Scenario, rows: Rows, folder: Path, *more: Any) -> Any:
    table(rows).to_csv(folder / "rows.csv", index=False)
    arguments = ["fit", folder / "rows.csv", *scenario.options, "--quiet", "--out", folder / "m.kalprox", *more]
    scenario.command(*arguments)
    return scenario.load(folder / "m.kalprox")


def _file(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    return _fit_command(scenario, rows, folder)


def _file_on_an_engine(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    return _fit_command(scenario, rows, folder, "--engine", "local", "--partitions", 3, "--workers", 2)


def _stream_command(scenario: Scenario, rows: Rows, folder: Path, *more: Any) -> Any:
    records = table(rows).astype(object).where(lambda frame: frame.notna(), None).to_dict("records")
    text = "".join(json.dumps(record) + "\n" for record in records)
    arguments = ["stream", *scenario.options, "--quiet", "--flush", 9, "--out", folder / "m.kalprox", *more]
    if scenario.classes:
        arguments += ["--classes", ",".join(map(str, range(scenario.classes)))]
    scenario.command(*arguments, input=text)
    return scenario.load(folder / "m.kalprox")


def _stream(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    return _stream_command(scenario, rows, folder)


def _stream_resumed(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    """A stream that ends in the middle, and goes on from its checkpoint."""
    kept = ["--checkpoint", folder / "c.ckpt"]
    first = 9 * (len(rows) // 18)
    _stream_command(scenario, rows[:first], folder, *kept)
    return _stream_command(scenario, rows[first:], folder, *kept, "--resume", "continue")


def _river_kind(scenario: Scenario) -> type:
    return RiverClassifier if scenario.classes else RiverRegressor


def _river_can(scenario: Scenario) -> bool:
    """Whether the model of River has all parameters that are set; its rows have no offsets, clusters and times.

    Its features have no places, which the groups of a penalty are about.
    """
    if scenario.label("target") in ("two numbers", "function") or scenario.label("penalty") == "group":
        return False
    known = inspect.signature(_river_kind(scenario)).parameters
    wordless = scenario.label("offset"), scenario.label("errors"), scenario.label("forget"), scenario.label("gaps")
    return (
        scenario.parameters().keys() <= known.keys()
        and wordless[0] == "no"
        and wordless[1] != "clustered"
        and wordless[2] != "by time"
        and wordless[3] == "none"
    )


def _river(scenario: Scenario, rows: Rows, folder: Path) -> Any:
    parameters = {"diagnose": True} | scenario.parameters()
    if scenario.classes:
        parameters["classes"] = tuple(range(scenario.classes))
    model = _river_kind(scenario)(**parameters)
    weights = rows.about.get("sample_weight", np.ones(len(rows)))
    for x, y, w in zip(rows.X, rows.y, weights, strict=True):
        model.learn_one(dict(zip("abc", x, strict=True)), y, w=w)
    return model.to_estimator()


def _in_files(scenario: Scenario) -> bool:
    return scenario.options is not None


def _without_clusters(scenario: Scenario) -> bool:
    return scenario.label("errors") == default("errors") or scenario.label("errors") == "robust"


def _is_saved(scenario: Scenario) -> bool:
    return scenario.label("target") != "function"  # a function of one's own is no part of a model file


ROUTES: dict[str, Route] = {
    "fit": Route(_fit, ALL),
    "one row a call": Route(_cuts(1), 0, other_cuts=True),
    "batches of 7": Route(_cuts(7), 0, other_cuts=True),
    "batches of 64": Route(_cuts(64), 0, other_cuts=True),
    "prequential": Route(_prequential, 1, _without_clusters),
    "lists": Route(_lists, 0),
    "frames": Route(_frames, 50),
    "saved and resumed": Route(_saved, 16, _is_saved),
    "merged": Route(_merged, ALL, other_cuts=True, other_passes=True),
    "merged streams": Route(_merged_streams, 20, other_cuts=True),
    "engine": Route(_engine, ALL, other_passes=True),
    "file": Route(_file, ALL, _in_files, other_passes=True),
    "file on an engine": Route(_file_on_an_engine, ALL, _in_files, other_passes=True),
    "stream": Route(_stream, 9, _in_files),
    "stream resumed": Route(_stream_resumed, 9, _in_files),
    "river": Route(_river, 1, _river_can),
}
