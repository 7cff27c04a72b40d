"""How often intervals cover on streams whose truth is known, for each kind of stream and each kind of interval.

Each stream has 2,000 rows of 5 inputs, and is learned by `KalproxRegressor` in batches of 100. A claim is a kind of
stream for which the documentation promises that a kind of interval covers; the others show what happens without it.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from benchmarks.streams import CLUSTER, DIAGNOSES, STREAMS, Stream, stream
from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.learning.tracking import Quantiles

__all__ = [
    "CLAIMS",
    "DRAWN",
    "KINDS",
    "LEVEL",
    "NONLINEAR",
    "SETTINGS",
    "batches",
    "measure",
    "setting",
    "summary",
    "tracked",
]

N, D, BATCH, LEVEL = 2000, 5, 100, 0.95
LOOK = 5  # rows between two looks at the coefficients: 400 looks
NONLINEAR = "sorted, nonlinear; its link given"
_EQUAL = ("independent", "1% outliers x 20", "Student 3")  # independent rows whose noise has one variance
_UNEQUAL = ("sd = |x_0|", "sd grows with the prediction")
_DEPENDENT = ("AR(.5)", "AR(.9)", "clusters of 10")
_GIVEN = ("noise given x 2", "noise given x .5")
CLAIMS: dict[str, tuple[str, ...]] = {
    "model": (*_EQUAL, NONLINEAR),
    "robust": (*_EQUAL, *_UNEQUAL, *_GIVEN),
    "clustered": (*_EQUAL, *_UNEQUAL, *_GIVEN, *_DEPENDENT),
    "one look, at 400 looks": (),
    "anytime, at 400 looks": ("independent",),
    "gaussian": ("independent", NONLINEAR),
    "conformal, in blocks": (*STREAMS, NONLINEAR),
    "conformal, row by row": tuple(STREAMS),
}
KINDS = {**DIAGNOSES, NONLINEAR: "calibrated"}  # and the right word of the verdict
DRAWN = "AR(.9)"  # the kind whose intervals a figure shows
_LOOKED = "independent"  # the kind whose coefficients are looked at 400 times
_NOISIEST: dict[str, Callable[[Stream], np.ndarray]] = {  # what the spread of the noise increases with
    "independent": lambda s: s.X @ s.coef,
    "sd = |x_0|": lambda s: np.abs(s.X[:, 0]),
    "sd grows with the prediction": lambda s: s.X @ s.coef,
}


def batches(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def tracked(z: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends, in stds, of conformal intervals that are issued and adjusted row by row.

    They are those of `KalproxRegressor.predict_interval` if each row is predicted and then learned in a call of its
    own, which takes four times as long as `prequential`, where the errors z of all rows come from.
    """
    quantiles, ends = Quantiles.normal(None), np.empty((2, len(z)))
    for i in range(len(z)):
        ends[:, i] = quantiles.of(level)
        quantiles = quantiles.after(z[i : i + 1])
    return ends[0], ends[1]


def measure(kind: str, seed: int) -> dict[str, Any]:
    """Return what happened on one stream: for each kind of interval whether, or how often, it covered."""
    warnings.simplefilter("ignore")  # a linear model of nonlinear rows, and noise that is not known before the 7th row
    s = stream(kind.removesuffix("; its link given"), seed, N, D)
    options: dict[str, Any] = {} if s.noise is None else {"noise": s.noise}
    if kind == NONLINEAR:
        options |= {"link": s.link, "fit_intercept": False, "penalty": None}
    scored = kind in _NOISIEST
    model, predictive = _predicted(KalproxRegressor(**({"penalty": "ridge"} | options)), s, scored)
    found = {"verdict": model.diagnostics_.verdict().word, "model": _coef_inside(model, s), **_shares(predictive)}
    if kind == DRAWN:
        found["interval, model"] = _first_interval(model, s)
    for coef_cov in () if kind == NONLINEAR else ("robust", "clustered"):
        model = KalproxRegressor(coef_cov=coef_cov, diagnose=False, **({"penalty": "ridge"} | options))
        for rows in batches(N, BATCH):
            named = coef_cov == "clustered" and kind.startswith("clusters")
            model.partial_fit(s.X[rows], s.y[rows], clusters=np.arange(N)[rows] // CLUSTER if named else None)
        found[coef_cov] = _coef_inside(model, s)
        if kind == DRAWN:
            found[f"interval, {coef_cov}"] = _first_interval(model, s)
    if kind != NONLINEAR:
        mean, std = KalproxRegressor(**({"penalty": "ridge"} | options)).prequential(s.X, s.y)
        z = (s.y - mean) / std
        low, high = tracked(z, LEVEL)
        found["conformal, row by row"] = float(((-low <= z) & (z <= high))[BATCH:].mean())
    if kind == _LOOKED:
        found |= _looks(s)
    if scored:
        order = _NOISIEST[kind](s)
        noisiest = order >= np.quantile(order, 0.9)
        inputs = _predicted(KalproxRegressor(noise="inputs", **({"penalty": "ridge"} | options)), s, scored)[1]
        found |= {
            f"noise={name}": _in_parts(made, noisiest) for name, made in (("learn", predictive), ("inputs", inputs))
        }
    return found


def _first_interval(model: KalproxRegressor, s: Stream) -> list[float]:
    """Return the interval of the first coefficient, less its true value."""
    return [float(end[0] - s.coef[0]) for end in model.coef_interval(LEVEL)]


def _coef_inside(model: KalproxRegressor, s: Stream) -> list[bool]:
    low, high = model.coef_interval(LEVEL)
    return ((low <= s.coef) & (s.coef <= high)).tolist()


def _predicted(model: KalproxRegressor, s: Stream, scored: bool) -> tuple[KalproxRegressor, dict[str, np.ndarray]]:
    """Learn the stream; return which rows were inside the intervals issued before their batch (NaN: none was)."""
    found = {name: np.full(N, np.nan) for name in ("gaussian", "conformal, in blocks")}
    if scored:
        found["log score"] = np.full(N, np.nan)
    judged = False  # a nonlinear model predicts no row before its warm-up ends
    for rows in batches(N, BATCH):
        judged = judged or (rows.start > 0 and model.diagnostics_.rows > 0)
        if judged:
            y = s.y[rows]
            for name, method in (("gaussian", "gaussian"), ("conformal, in blocks", "conformal")):
                low, high = model.predict_interval(s.X[rows], LEVEL, method=method)
                found[name][rows] = (low <= y) & (y <= high)
            if scored:
                found["log score"][rows] = model._predictive(s.X[rows], None, None, None).log_prob(y)
        model.partial_fit(s.X[rows], s.y[rows])
    return model, found


def _shares(predictive: dict[str, np.ndarray]) -> dict[str, float]:
    return {
        name: float(np.nanmean(values)) if np.isfinite(values).any() else np.nan for name, values in predictive.items()
    }


def _in_parts(predictive: dict[str, np.ndarray], noisiest: np.ndarray) -> dict[str, float]:
    """Return the shares of all rows, and of the tenth of the rows with the largest noise."""
    parts = {f"{name}, noisiest": values[noisiest] for name, values in predictive.items()}
    return _shares({**predictive, **parts})


def _looks(s: Stream) -> dict[str, list[bool]]:
    """Return which coefficients were inside their intervals at every look."""
    model = KalproxRegressor(diagnose=False, penalty="ridge")
    always = {"one look, at 400 looks": np.ones(D, bool), "anytime, at 400 looks": np.ones(D, bool)}
    for rows in batches(N, LOOK):
        model.partial_fit(s.X[rows], s.y[rows])
        if rows.stop > 2 * D:
            for held, anytime in zip(always.values(), (False, True), strict=True):
                low, high = model.coef_interval(LEVEL, anytime=anytime)
                held &= (low <= s.coef) & (s.coef <= high)
    return {name: held.tolist() for name, held in always.items()}


# ---- settings for which the streams above say nothing ------------------------------------------------


def _few_rows(rng: np.random.Generator) -> dict[str, Any]:
    X, coef, fresh = rng.normal(size=(30, 50)), rng.normal(size=50), rng.normal(size=(100, 50))
    model = KalproxRegressor(alpha="auto").fit(X, X @ coef + rng.normal(size=30))
    low, high = model.coef_interval(LEVEL)
    a, b = model.predict_interval(fresh, LEVEL)
    y = fresh @ coef + rng.normal(size=100)
    return {
        "coefficients": float(((low <= coef) & (coef <= high)).mean()),
        "new rows": float(((a <= y) & (y <= b)).mean()),
    }


def _l1(rng: np.random.Generator) -> dict[str, Any]:
    X, coef = rng.normal(size=(200, 50)), np.zeros(50)
    coef[:3] = 1, -1, 0.3
    model = KalproxRegressor(penalty="l1", alpha="auto").fit(X, X @ coef + rng.normal(size=200))
    low, high = model.coef_interval(LEVEL)
    inside, naive = (low <= coef) & (coef <= high), np.abs(model.coef_ - coef) <= 1.96 * model.coef_std_
    return {
        "coefficients": float(inside.mean()),
        "the 3 that are not zero": float(inside[:3].mean()),
        "these 3, coef_ +- 1.96 coef_std_": float(naive[:3].mean()),
    }


def _forget(rng: np.random.Generator) -> dict[str, Any]:
    X, coef = rng.normal(size=(400, 3)), rng.normal(size=3)
    y, model = X @ coef + rng.normal(size=400), KalproxRegressor(forget=0.9, penalty="ridge")
    low, high = model.partial_fit(X[:300], y[:300]).coef_interval(LEVEL)
    return {
        "coefficients": float(((low <= coef) & (coef <= high)).mean()),
        "new rows": float(np.mean([_next_inside(model, X[i : i + 1], y[i : i + 1]) for i in range(300, 400)])),
    }


def _next_inside(model: KalproxRegressor, X: np.ndarray, y: np.ndarray) -> bool:
    low, high = model.predict_interval(X, LEVEL)
    model.partial_fit(X, y)
    return bool(low[0] <= y[0] <= high[0])


def _weighted(weights: str) -> Callable[[np.random.Generator], dict[str, Any]]:
    def run(rng: np.random.Generator) -> dict[str, Any]:
        X, coef, sigma = rng.normal(size=(400, 5)), rng.normal(size=5), np.exp(rng.normal(size=400))
        y = X @ coef + sigma * rng.normal(size=400)
        model = KalproxRegressor(weight_kind=weights, penalty="ridge").fit(X, y, sample_weight=sigma**-2.0)
        low, high = model.coef_interval(LEVEL)
        new = np.exp(rng.normal(size=100))
        fresh = rng.normal(size=(100, 5))
        a, b = model.predict_interval(fresh, LEVEL, sigma=new)
        y = fresh @ coef + new * rng.normal(size=100)
        return {
            "coefficients": float(((low <= coef) & (coef <= high)).mean()),
            "new rows": float(((a <= y) & (y <= b)).mean()),
        }

    return run


def _class_weight(rng: np.random.Generator) -> dict[str, Any]:
    X, coef = rng.normal(size=(2000, 3)), np.array([1.0, -0.5, 0.0])
    y = rng.random(2000) < 1 / (1 + np.exp(3.0 - X @ coef))
    model = KalproxClassifier(class_weight="balanced").fit(X, y)
    return {"coefficients": _share_inside(model, coef)}


def _clusters(sizes: list[int]) -> Callable[[np.random.Generator], dict[str, Any]]:
    """An input and half of the noise's variance are common to the rows of each cluster."""

    def run(rng: np.random.Generator) -> dict[str, Any]:
        label = np.repeat(np.arange(len(sizes)), sizes)
        x, common = rng.normal(size=len(sizes))[label], rng.normal(size=len(sizes))[label]
        y = 1 + x + (common + rng.normal(size=len(label))) / 2**0.5
        model = KalproxRegressor(penalty=None, coef_cov="clustered").fit(x[:, None], y, clusters=label)
        return {"coefficients": _share_inside(model, np.ones(1))}

    return run


def _few_robust(rng: np.random.Generator) -> dict[str, Any]:
    X, coef = rng.lognormal(size=(40, 2)), np.array([1.0, -1.0])
    y = X @ coef + X[:, 0] * rng.normal(size=40)
    return {"coefficients": _share_inside(KalproxRegressor(penalty=None, coef_cov="robust").fit(X, y), coef)}


def _gaps(rng: np.random.Generator) -> dict[str, Any]:
    X, coef = rng.normal(size=(1000, 3)) + 2 * rng.normal(size=(1000, 1)), np.array([1.0, -1.0, 0.5])
    y = X @ coef + rng.normal(size=1000)
    X[rng.random(X.shape) < 0.1] = np.nan
    model = KalproxRegressor(penalty=None, missing="marginalize")
    for rows in batches(1000, BATCH):
        model.partial_fit(X[rows], y[rows])
    return {"coefficients": _share_inside(model, coef)}


def _share_inside(model: KalproxRegressor | KalproxClassifier, coef: np.ndarray) -> float:
    low, high = model.coef_interval(LEVEL)
    return float(((np.ravel(low) <= coef) & (coef <= np.ravel(high))).mean())


SETTINGS: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    '30 rows, 50 coefficients, ridge with alpha="auto"': _few_rows,
    '200 rows, 50 coefficients of which 3 are not zero, L1 with alpha="auto"': _l1,
    "400 rows, 3 coefficients, forget=0.9": _forget,
    '400 rows with known unequal noise, weight_kind="precision"': _weighted("precision"),
    'the same with weight_kind="frequency", which they are not': _weighted("frequency"),
    '2,000 rows, 7% events, class_weight="balanced"': _class_weight,
    '10 clusters of 20 rows, coef_cov="clustered"': _clusters([20] * 10),
    "20 clusters, one of which has half of the rows": _clusters([10] * 19 + [190]),
    '40 rows whose noise grows with an input, coef_cov="robust"': _few_robust,
    '1,000 rows, correlated inputs, a tenth of the values missing, missing="marginalize"': _gaps,
}


def setting(name: str, seed: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    return SETTINGS[name](np.random.default_rng([seed, *name.encode()]))


# ---- summaries -----------------------------------------------------------------------------------------


class Share(NamedTuple):
    """A share with its 95% bounds."""

    share: float
    low: float
    high: float


def summary(values: list[Any]) -> Share:
    """Return the mean of what was found on each stream.

    For yes or no, for each stream or each of its coefficients, the bounds are Clopper and Pearson's of the binomial
    distribution. For shares of the rows of each stream they are the mean +- 1.96 standard errors over the streams,
    since rows of one stream are not independent.
    """
    numbers = np.array(values, float)
    known = numbers[np.isfinite(numbers)]
    if isinstance(np.ravel(np.array(values, object))[0], bool):
        test = stats.binomtest(int(known.sum()), known.size).proportion_ci(0.95)
        return Share(float(known.mean()), float(test.low), float(test.high))
    error = 1.96 * known.std(ddof=1) / len(known) ** 0.5
    return Share(float(known.mean()), float(known.mean() - error), float(known.mean() + error))
