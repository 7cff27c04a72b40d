"""Settings, data and ways in, by the labels that the tables of this folder use. Only public names of kalprox."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from kalprox import KalproxClassifier, KalproxRegressor, penalties
from kalprox.cli import main
from kalprox.forgetting import ByTime, RandomWalk, Window
from kalprox.structures import LowRank

__all__ = ["COEF", "LEVELS", "N", "Rows", "Scenario", "cuts", "default", "readings"]

N, D = 160, 3
COEF = np.array([0.6, -0.4, 0.3])


def decay(theta: Any, x: Any) -> Any:
    """A function of one's own, for the function model: its derivative comes from JAX."""
    import jax.numpy as jnp

    return theta[0] * jnp.exp(-theta[1] * x[..., 0]) + theta[2] * x[..., 1]


# For each setting its levels: the parameters of the estimator that a label stands for. The first is the default.
LEVELS: dict[str, dict[str, dict[str, Any]]] = {
    "target": {
        "number": {},
        "two numbers": {},
        "student": {"likelihood": "student"},
        "huber": {"likelihood": "huber"},
        "contaminated": {"likelihood": "contaminated"},
        "count": {"likelihood": "poisson"},
        "dispersed count": {"likelihood": "quasi-poisson"},
        "negative binomial": {"likelihood": "negative-binomial"},
        "two classes": {},
        "three classes": {},
        "sigmoid": {"link": "sigmoid"},
        "function": {"function": decay, "start": [1.0, 1.0, 0.0]},
    },
    "penalty": {
        "ridge": {"penalty": "ridge", "alpha": 2.0},
        "none": {"penalty": None},
        "ridge auto": {"penalty": "ridge", "alpha": "auto"},
        "l1": {"penalty": "l1", "alpha": 3.0},
        "l1 auto": {"penalty": "l1", "alpha": "auto"},
        "elasticnet": {"penalty": "elasticnet", "alpha": 3.0},
        "smooth l1": {"penalty": penalties.SmoothL1(0.1), "alpha": 2.0},
        "group": {"penalty": penalties.Group([0, 0, 1]), "alpha": 3.0},
        "box": {"penalty": penalties.Box(0.0, 0.5)},
    },
    "intercept": {"yes": {}, "no": {"fit_intercept": False}},
    "standardize": {"no": {}, "yes": {"standardize": True}},
    "noise": {"learn": {}, "given": {"noise": 0.5}, "inputs": {"noise": "inputs"}},
    "forget": {
        "nothing": {},
        "by row": {"forget": 0.99},
        "by time": {"forget": ByTime(40.0)},
        "window": {"forget": Window(60)},
        "walk": {"forget": RandomWalk(1e-3)},
        "auto": {"forget": "auto"},
    },
    "errors": {
        "model": {"coef_cov": "model"},
        "robust": {"coef_cov": "robust"},
        "clustered": {"coef_cov": "clustered"},
    },
    "weights": {"none": {}, "frequency": {}, "precision": {"weight_kind": "precision"}},
    "late targets": {"no": {}, "yes": {"missing": "drop"}},
    "gaps": {"none": {}, "impute": {"missing": "impute"}, "marginalize": {"missing": "marginalize"}},
    "changes": {"no": {}, "yes": {"change_points": True}},
    "scores": {"yes": {}, "no": {"diagnose": False}},
    "structure": {"dense": {}, "diagonal": {"structure": "diagonal"}, "low rank": {"structure": LowRank(2)}},
    "offset": {"no": {}, "yes": {}},
}

# What the same label is on the command line; a label without an entry cannot be said there.
OPTIONS: dict[str, dict[str, list[str]]] = {
    "target": {
        "number": [],
        "student": ["--likelihood", "student"],
        "huber": ["--likelihood", "huber"],
        "contaminated": ["--likelihood", "contaminated"],
        "count": ["--likelihood", "poisson"],
        "dispersed count": ["--likelihood", "quasi-poisson"],
        "negative binomial": ["--likelihood", "negative-binomial"],
        "two classes": ["--likelihood", "bernoulli"],
        "three classes": ["--likelihood", "categorical"],
        "sigmoid": ["--link", "sigmoid"],
    },
    "penalty": {
        "ridge": ["--alpha", "2"],
        "none": ["--penalty", "none"],
        "ridge auto": ["--alpha", "auto"],
        "l1": ["--penalty", "l1", "--alpha", "3"],
        "l1 auto": ["--penalty", "l1", "--alpha", "auto"],
        "elasticnet": ["--penalty", "elasticnet", "--alpha", "3"],
        "smooth l1": ["--penalty", "smooth_l1,delta=0.1", "--alpha", "2"],
        "box": ["--penalty", "box,low=0,high=0.5"],
    },
    "intercept": {"yes": [], "no": ["--no-intercept"]},
    "standardize": {"no": [], "yes": ["--standardize"]},
    "noise": {"learn": [], "given": ["--noise", "0.5"], "inputs": ["--noise", "inputs"]},
    "forget": {
        "nothing": [],
        "by row": ["--forget", "0.99"],
        "by time": ["--forget", "time,half_life=40", "--time", "time"],
        "window": ["--forget", "window,rows=60"],
        "walk": ["--forget", "walk,q=1e-3"],
        "auto": ["--forget", "auto"],
    },
    "errors": {
        "model": ["--coef-cov", "model"],
        "robust": ["--coef-cov", "robust"],
        "clustered": ["--coef-cov", "clustered", "--clusters", "cluster"],
    },
    "weights": {
        "none": [],
        "frequency": ["--weight", "weight"],
        "precision": ["--weight", "weight", "--weight-kind", "precision"],
    },
    "late targets": {"no": [], "yes": ["--missing", "drop"]},
    "gaps": {"none": [], "impute": ["--missing", "impute"], "marginalize": ["--missing", "marginalize"]},
    "changes": {"no": [], "yes": ["--change-points", "auto"]},
    "scores": {"yes": []},
    "structure": {"dense": [], "diagonal": ["--structure", "diagonal"], "low rank": ["--structure", "low_rank,rank=2"]},
    "offset": {"no": [], "yes": ["--offset", "offset"]},
}


def default(name: str) -> str:
    """Return the level of a setting that is not named."""
    return next(iter(LEVELS[name]))


@dataclass(frozen=True)
class Rows:
    """Rows of a table, and what is said of each: X, y, and the arguments that go with them by their names."""

    X: np.ndarray
    y: np.ndarray
    about: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: Any) -> "Rows":
        return Rows(self.X[rows], self.y[rows], {name: values[rows] for name, values in self.about.items()})


def cuts(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


@dataclass(frozen=True)
class Scenario:
    """Labels of settings; those that are not named have their first level."""

    labels: dict[str, str]

    def __str__(self) -> str:
        return ", ".join(f"{name} {label}" for name, label in self.labels.items()) or "defaults"

    def label(self, name: str) -> str:
        return self.labels.get(name, default(name))

    @property
    def classes(self) -> int:
        return {"two classes": 2, "three classes": 3}.get(self.label("target"), 0)

    @property
    def exact(self) -> bool:
        """Whether one pass of any cut gives the minimiser itself, by the mathematics: a linear model of numbers."""
        return self.label("target") in ("number", "two numbers") and self.label("structure") == "dense"

    @property
    def sayable(self) -> bool:
        """Whether the estimator has all parameters that the labels stand for: a classifier has no noise."""
        known = signature(KalproxClassifier if self.classes else KalproxRegressor).parameters
        return self.parameters().keys() <= known.keys()

    def parameters(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in LEVELS:
            found |= LEVELS[name][self.label(name)]
        return found

    def model(self, **more: Any) -> Any:
        kind = KalproxClassifier if self.classes else KalproxRegressor
        return kind(**self.parameters() | more)

    def rows(self, seed: int = 0, n: int = N) -> Rows:
        """Rows that the model of this scenario describes: same seed, same rows."""
        rng = np.random.default_rng([seed, n])
        X = rng.normal(size=(n, D))
        offset = 0.3 * rng.normal(size=n)
        f = X @ COEF + 0.2
        if self.label("offset") == "yes":
            f = f + offset
        y = _targets(self.label("target"), X, f, rng)
        if self.label("gaps") != "none":
            gap = rng.random(X.shape) < 0.1
            gap[:5] = False  # nothing can stand for a column that had no value so far
            X = np.where(gap, np.nan, X)
        about: dict[str, np.ndarray] = {}
        if self.label("weights") != "none":
            about["sample_weight"] = rng.integers(1, 4, n).astype(float)
        if self.label("errors") == "clustered":
            about["clusters"] = np.arange(n) // 4
        if self.label("forget") == "by time":
            about["times"] = np.arange(n, dtype=float)
        if self.label("offset") == "yes":
            about["offset"] = offset
        if self.label("late targets") == "yes":
            y = y.astype(float)
            y[rng.random(n) < 0.1] = np.nan
        return Rows(X, y, about)

    # ---- ways in: each learns the rows and returns the model ---------------------------------------------

    def fit(self, rows: Rows, **more: Any) -> Any:
        return self.model(**more).fit(rows.X, rows.y, **rows.about)

    def partial_fit(self, rows: Rows, size: int, model: Any = None, **more: Any) -> Any:
        model = self.model(**more) if model is None else model
        for part in cuts(len(rows), size):
            some = rows[part]
            model.partial_fit(some.X, some.y, **self.declared(), **some.about)
        return model

    def prequential(self, rows: Rows, model: Any = None) -> tuple[Any, Any]:
        """The model, and what it predicted of each row before it learned the row."""
        model = self.model() if model is None else model
        about = {name: values for name, values in rows.about.items() if name != "clusters"}
        return model, model.prequential(rows.X, rows.y, **self.declared(), **about)

    def declared(self) -> dict[str, Any]:
        return {"classes": np.arange(self.classes)} if self.classes else {}

    @property
    def options(self) -> list[str] | None:
        """The options of the command line; None if a label cannot be said there."""
        found = ["--target", "y", "--features", "a,b,c"]
        for name, said in OPTIONS.items():
            if self.label(name) not in said:
                return None
            found += said[self.label(name)]
        return found

    def command(self, *arguments: Any, **more: Any) -> Any:
        """Run a command of kalprox in this process; return what it printed, or raise what it says is wrong."""
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], **more)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if result.exit_code:
            raise ValueError(result.output.rpartition("Error: ")[2])
        return result

    def load(self, file: Path) -> Any:
        return (KalproxClassifier if self.classes else KalproxRegressor).load(file)


def _targets(target: str, X: np.ndarray, f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = len(f)
    if target == "two numbers":
        return np.column_stack([f, -f]) + 0.7 * rng.normal(size=(n, 2))
    if target == "count":
        return rng.poisson(np.exp(f)).astype(float)
    if target in ("dispersed count", "negative binomial"):
        return rng.negative_binomial(3, 3 / (3 + np.exp(f))).astype(float)
    if target == "two classes":
        return (rng.random(n) < 1 / (1 + np.exp(-2 * f))).astype(int)
    if target == "three classes":
        return np.argmax(np.column_stack([0 * f, f, 2 * X[:, 0]]) + rng.gumbel(size=(n, 3)), axis=1)
    if target == "sigmoid":
        return 1 / (1 + np.exp(-2 * f)) + 0.1 * rng.normal(size=n)
    if target == "function":
        return 1.5 * np.exp(-0.7 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.normal(size=n)
    noise = rng.standard_t(3, size=n) if target in ("student", "huber", "contaminated") else rng.normal(size=n)
    return f + 0.7 * noise


def readings(model: Any, rows: Rows) -> dict[str, np.ndarray]:
    """Everything that is read of a model, as arrays: estimate, standard errors, noise, predictions and intervals."""
    X = np.nan_to_num(rows.X[:5])
    about = {"offset": rows.about["offset"][:5]} if "offset" in rows.about else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {
            "coef": model.coef_,
            "intercept": model.intercept_,
            "se": model.coef_std_,
            "rows": model.n_rows_seen_,
        }
        if model.structure is None:
            found["low"], found["high"] = model.coef_interval()
        if hasattr(model, "predict_proba"):
            found["probability"], found["probability std"] = model.predict_proba(X, return_std=True, **about)
        else:
            found["noise"] = model.noise_var_
            found["mean"], found["std"] = model.predict(X, return_std=True, **about)
            found["predicted low"], found["predicted high"] = model.predict_interval(X, **about)
    return {name: np.asarray(value, float) for name, value in found.items()}
