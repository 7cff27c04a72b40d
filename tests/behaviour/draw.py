"""`python tests/behaviour/draw.py`: walk all pairs of settings and ways in, and write the tables of this folder anew.

`refused.json`: the pairs that raise, by `fit`, by `partial_fit` or by another way in, with their message.
`scenarios.json`: combinations of settings and a way in, such that every pair that goes together is in one of them (a
pairwise covering array). `numbers.json`: what some scenarios say, see numbers_kept.py. All are data for the tests. Run
this when a setting is added, or after a change that is meant, and read the difference. `draw.py refused`, `scenarios`
or `numbers` writes one of them.
"""

import itertools
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numbers_kept import CHOSEN, kept
from routes import ROUTES
from scenarios import LEVELS, Scenario, default

__all__ = ["BATCH", "STREAM", "can_be_said", "candidates", "error_of", "implied", "refusal"]

HERE = Path(__file__).parent
ROWS = 40  # of the walk: a refusal does not depend on how many
BATCH, STREAM = "fit", "batches of 7"  # the ways in that every pair of settings is tried by
NEEDS = {"offset": {"target": "count"}, "changes": {}}  # a setting that the default target has not
Labels = dict[str, str]
Pair = frozenset[tuple[str, str]]


def error_of(labels: Labels, way: str) -> Exception | None:
    """Return the error of a combination; None if it is learned and read."""
    scenario = Scenario(labels)
    rows = scenario.rows(n=ROWS)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        try:
            ROUTES[way].learn(scenario, rows, Path(folder))
        except Exception as error:  # whatever it raises is looked at by the test of the table
            return error
    return None


def refusal(labels: Labels, way: str) -> str | None:
    """Return the error of a combination, in one line; None if it is learned and read."""
    error = error_of(labels, way)
    if error is None:
        return None
    said = re.sub(r"<function (\w+) at \w+>", r"\1", " ".join(str(error).split()))
    return f"{type(error).__name__}: {said}"


def _changed() -> dict[str, list[str]]:
    """Return the levels of each setting but the default."""
    return {name: list(levels)[1:] for name, levels in LEVELS.items()}


def can_be_said(labels: Labels, way: str) -> bool:
    scenario = Scenario(labels)
    return scenario.sayable and ROUTES[way].can_be_said(scenario)


def candidates() -> Iterator[tuple[Labels, str]]:
    """Yield all pairs: of two settings, by `fit` and by `partial_fit`; and of a setting and another way in."""
    changed = _changed()
    for name, levels in changed.items():
        for level in levels:
            for way in ROUTES:
                yield NEEDS.get(name, {}) | {name: level}, way
    for a, b in itertools.combinations(changed, 2):
        for x, y in itertools.product(changed[a], changed[b]):
            for way in (BATCH, STREAM):
                yield NEEDS.get(a, {}) | NEEDS.get(b, {}) | {a: x, b: y}, way


def implied(labels: Labels, way: str, refused: set[tuple[Pair, str]]) -> bool:
    """Whether a part of a combination is refused by this way already: what is said of it is said of the part."""
    items = labels.items()
    sizes = range(min(len(items), 4))  # three labels at most are in the table
    parts = [frozenset(part) for size in sizes for part in itertools.combinations(items, size)]
    return any((part, way) in refused for part in parts)


def walk() -> list[dict[str, Any]]:
    """Return what is refused, each with the way in and the message."""
    table: list[dict[str, Any]] = []
    refused: set[tuple[Pair, str]] = set()
    for labels, way in candidates():
        if not can_be_said(labels, way) or implied(labels, way, refused):
            continue
        why = refusal(labels, way)
        if why is not None:
            refused.add((frozenset(labels.items()), way))
            table.append({"labels": labels, "way": way, "why": why})
    return table


# ---- scenarios: every pair that goes together ------------------------------------------------------------


class Cover:
    """Draws scenarios until every pair that goes together is in one of them. Each is tried before it is taken."""

    def __init__(self, refused: list[dict[str, Any]], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.refused = {(frozenset(one["labels"].items()), one["way"]) for one in refused}
        self.levels = {name: list(labels) for name, labels in LEVELS.items()} | {"way": list(ROUTES)}
        self.tried: dict[frozenset[tuple[str, str]], bool] = {}
        self.wanted = self._pairs()

    def _pairs(self) -> set[Pair]:
        pairs = set()
        for a, b in itertools.combinations(self.levels, 2):
            for x, y in itertools.product(self.levels[a], self.levels[b]):
                labels = {a: x, b: y}
                if any(
                    self._fits(labels | {"way": way}) for way in self.levels["way"] if way == labels.get("way", way)
                ):
                    pairs.add(frozenset(labels.items()))
        return pairs

    def _fits(self, labels: Labels) -> bool:
        """Whether no part of the labels is known to be refused by their way in, or by its like of all settings."""
        settings = {name: label for name, label in labels.items() if name != "way"}
        if "way" not in labels:
            return Scenario(settings).sayable
        named = {name: label for name, label in settings.items() if label != default(name)}
        like = BATCH if ROUTES[labels["way"]].like == BATCH else STREAM
        ways = (labels["way"], like)
        known = any(implied(named | {"way": ""}, way, self.refused) for way in ways)
        return can_be_said(settings, labels["way"]) and not known

    def _works(self, labels: Labels) -> bool:
        """Whether the way in, what it is compared with, and a file learn the rows of a scenario."""
        key = frozenset(labels.items())
        if key not in self.tried:
            settings = {name: label for name, label in labels.items() if name != "way"}
            like = BATCH if ROUTES[labels["way"]].like == BATCH else STREAM
            self.tried[key] = refusal(settings, labels["way"]) is None and refusal(settings, like) is None
        return self.tried[key]

    def _filled(self, first: Labels) -> Labels | None:
        """Fill in the other settings, each with the level that has most pairs that are still wanted."""
        labels = dict(first)
        for name in self.rng.permutation([name for name in self.levels if name not in labels]).tolist():
            fitting = [x for x in self.levels[name] if self._fits(labels | {name: x})]
            if not fitting:
                return None
            gain = [sum(frozenset([(name, x), item]) in self.wanted for item in labels.items()) for x in fitting]
            labels[name] = fitting[int(np.argmax(np.array(gain) + self.rng.random(len(gain))))]
        return labels

    def _plain(self, first: Labels) -> Iterator[Labels]:
        """Yield the pair with defaults, for each target and way in."""
        for target, way in itertools.product(self.levels["target"], self.levels["way"]):
            yield {name: levels[0] for name, levels in self.levels.items()} | {"target": target, "way": way} | first

    def _with(self, first: Labels) -> Labels | None:
        for _ in range(6):
            labels = self._filled(first)
            if labels is not None and self._works(labels):
                return labels
        fitting = (labels for labels in self._plain(first) if self._fits(labels))
        return next((labels for labels in fitting if self._works(labels)), None)

    def draw(self) -> Iterator[Labels]:
        while self.wanted:
            pairs = sorted(self.wanted, key=sorted)
            first = dict(pairs[self.rng.integers(len(pairs))])
            self.wanted.discard(frozenset(first.items()))
            labels = self._with(first)
            if labels is None:
                print("does not go together:", first)
                continue
            self.wanted -= {frozenset(pair) for pair in itertools.combinations(labels.items(), 2)}
            yield labels


def short(labels: Labels) -> Labels:
    """Leave out what is a default; the way in comes first."""
    named = {name: label for name, label in labels.items() if name != "way" and label != default(name)}
    return {"way": labels["way"]} | dict(sorted(named.items(), key=lambda item: list(LEVELS).index(item[0])))


def _write(name: str, entries: list[dict[str, Any]]) -> None:
    lines = ",\n".join(" " + json.dumps(entry) for entry in entries)
    (HERE / name).write_text(f"[\n{lines}\n]\n")
    print(len(entries), "in", name)


def write_refused() -> None:
    _write("refused.json", walk())


def write_scenarios() -> None:
    refused = json.loads((HERE / "refused.json").read_text())
    drawn = [short(labels) for labels in Cover(refused, seed=0).draw()]
    _write("scenarios.json", sorted(drawn, key=lambda labels: list(ROUTES).index(labels["way"])))


def write_numbers() -> None:
    found = [labels | {"found": kept(labels)} for labels in CHOSEN]
    _write("numbers.json", found)


def main(names: list[str]) -> None:
    steps: dict[str, Callable[[], None]] = {
        "refused": write_refused,
        "scenarios": write_scenarios,
        "numbers": write_numbers,
    }
    for name in names or steps:
        steps[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
