"""What some scenarios say, to the last digits: coefficients, standard errors, intervals, predictions, scores, verdicts.

The numbers are in numbers.json, and test_numbers.py compares them. A law cannot tell a model from another one that
keeps the same law; these can. `python tests/behaviour/draw.py numbers` writes them anew, after a change that is meant.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from routes import ROUTES
from scenarios import LEVELS, Scenario, readings

__all__ = ["CHOSEN", "kept", "tolerance"]

ROWS = 120
DIGITS = 13


def _chosen() -> list[dict[str, str]]:
    """Return every level of every setting by itself, every way in with the defaults, and some that belong together."""
    chosen = [{"way": "fit"}, {"way": "fit", "penalty": "ridge auto"}]
    for name, levels in LEVELS.items():
        for level in list(levels)[1:]:
            way = "fit" if name in ("penalty", "standardize", "intercept", "weights") else "batches of 7"
            needs = {"target": "count"} if name == "offset" else {}
            chosen.append({"way": way} | needs | {name: level})
    chosen += [{"way": way} for way in ROUTES if way not in ("fit", "engine", "file on an engine")]
    chosen += [{"way": "fit", "target": target} for target in LEVELS["target"] if target not in ("number", "function")]
    return chosen + [
        {"way": "fit", "errors": "robust", "penalty": "none"},
        {"way": "fit", "errors": "clustered", "penalty": "none"},
        {"way": "fit", "target": "count", "offset": "yes", "weights": "frequency"},
        {"way": "fit", "target": "two classes", "errors": "robust"},
        {"way": "batches of 64", "forget": "by time", "penalty": "none"},
        {"way": "batches of 64", "forget": "by row", "weights": "precision"},
        {"way": "fit", "standardize": "yes", "penalty": "l1"},
        {"way": "prequential", "target": "two classes"},
    ]


CHOSEN = _chosen()


def tolerance(labels: dict[str, str]) -> float:
    """Return how far numbers may be from those that were kept, relative to the largest of an array.

    1e-9 where the answer is a formula. 1e-6 where it is the end of a search, whose last step is 1e-10 of theta but
    whose curvature may be small, or of a chain of rows that are linearised, weighed or completed one after the other,
    which carries rounding along.
    """
    scenario = Scenario({name: label for name, label in labels.items() if name != "way"})
    chain = (
        scenario.label("noise") == "inputs" or scenario.label("forget") == "auto" or scenario.label("gaps") != "none"
    )
    return 1e-9 if scenario.exact and not chain else 1e-6


def kept(labels: dict[str, str]) -> dict[str, Any]:
    """Return the numbers and the words of a scenario."""
    scenario = Scenario({name: label for name, label in labels.items() if name != "way"})
    rows = scenario.rows(seed=7, n=ROWS)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        model = ROUTES[labels["way"]].learn(scenario, rows, Path(folder))
        found: dict[str, Any] = {name: _digits(value) for name, value in readings(model, rows).items()}
        found["alpha"] = _digits(np.asarray(model.alpha_, float)) if scenario.label("penalty") != "none" else None
        score = model.diagnostics_
        if scenario.label("scores") == "yes" and float(score.rows):
            found["judged"], found["log score"] = _digits(score.rows), _digits(score.log_score)
            found["verdict"] = score.verdict().word
    return found


def _digits(value: Any) -> Any:
    """Return numbers as JSON has them, with as many digits as are compared; a number that is not finite is a text."""
    numbers = np.asarray(value, float)
    if numbers.ndim:
        return [_digits(one) for one in numbers]
    return float(f"{numbers:.{DIGITS}g}") if np.isfinite(numbers) else str(float(numbers))
