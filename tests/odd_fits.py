"""Seeded odd fits: settings, data and batches at the edge of what learning accepts, drawn at random."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from kalprox import KalproxRegressor, likelihoods, penalties, regularizers

__all__ = ["OddFit", "differences", "odd_fit"]

_LINKS = ("identity", "identity", "identity", "sigmoid", "tanh", "exp", "softplus")
_PENALTIES = (None, "ridge", "l1", "elasticnet", "smooth_l1", "group", "box", "object")
_READINGS = ("coef_", "intercept_", "coef_std_", "intercept_std_", "covariance_", "noise_var_", "noise_dof_", "alpha_")
_COUNTS = ("n_rows_seen_", "n_rows_rejected_", "n_passes_", "converged_", "n_features_in_")

_REFUSED = ValueError, FloatingPointError  # the second where sums for robust standard errors overflow


@dataclass
class OddFit:
    """One odd fit: the settings of the estimator, and the calls that learn its rows."""

    settings: dict[str, Any]
    calls: list[tuple[str, tuple[Any, ...]]]
    more: tuple[Any, ...]  # rows that are learned afterwards

    def run(self) -> KalproxRegressor | None:
        """Return the fitted estimator; None if the rows or settings are refused, or no row has a weight."""
        model = KalproxRegressor(**({"penalty": "ridge"} | self.settings))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for name, rows in self.calls:
                    getattr(model, name)(*rows)
            except _REFUSED:
                return None
        return model if model.__sklearn_is_fitted__() else None

    def learn_more(self, model: KalproxRegressor) -> str:
        """Let a model learn more rows; return the error message if they are refused."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model.partial_fit(*self.more)
            except _REFUSED as error:
                return str(error)
        return ""


def odd_fit(seed: int, **fixed: Any) -> OddFit:
    """Return the odd fit of a seed; `fixed` settings, such as link, replace those drawn."""
    rng = np.random.default_rng([seed, 15])

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    d, link = int(rng.integers(1, 6)), fixed.get("link", one(*_LINKS))
    linear = link == "identity"
    settings = _settings(rng, one, d, link, linear) | fixed
    k = int(rng.integers(1, 4)) if linear and rng.random() < 0.3 else None
    n = one(1, 2, 3, 20, 60, 200, 700 if linear else 120)
    X, y = _rows(rng, one, n + 30, d, k, link)
    weights = _weights(rng, n + 30)
    groups = rng.integers(0, 5, n + 30) if settings["coef_cov"] == "clustered" and rng.random() < 0.7 else None

    def rows(start: int, stop: int, several: bool = True) -> tuple[Any, ...]:
        parts = [X[start:stop], y[start:stop]]
        parts += [None if a is None else a[start:stop] for a in (weights, groups if several else None)]
        return tuple(parts)

    how = one("fit", "batches", "single", "both", "prequential")
    first = n if how == "fit" else one(1, max(n // 2, 1), n)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("partial_fit" if how in ("batches", "single") else "fit", rows(0, first))
    ]
    while first < n:
        step = 1 if how == "single" else int(one(1, 2, 7, 40, n))
        stop = min(first + step, n)
        preq = how == "prequential" and groups is None
        calls.append(("prequential", rows(first, stop)[:3]) if preq else ("partial_fit", rows(first, stop)))
        first = stop
    return OddFit(settings, calls, rows(n, n + 30))


def _settings(rng: Any, one: Any, d: int, link: str, linear: bool) -> dict[str, Any]:
    penalty = kind = one(*_PENALTIES)
    if penalty == "group":
        penalty = penalties.Group(rng.integers(-1, 2, d).tolist())
    elif penalty == "box":
        penalty = penalties.Box(*one((0.0, np.inf), (-1.0, 1.0), (np.full(d, -0.1), np.inf)))
    elif penalty == "object":
        penalty = one(
            regularizers.Ridge(0.3),
            regularizers.Weighted(regularizers.L1(0.5), np.linspace(0, 1, d)),
            regularizers.Quadratic(rng.normal(size=(max(d - 1, 1), d))),
            regularizers.ElasticNet(0.1, 2.0),
        )
    given = isinstance(penalty, regularizers.Regularizer)
    auto = linear and kind in ("ridge", "l1", "elasticnet", "group") and rng.random() < 0.3
    settings = {
        "link": link,
        "penalty": penalty,
        "alpha": "auto" if auto else 1.0 if given else one(0.0, 1e-6, 1.0, 100.0),
        "noise": one("learn", "learn", 1.0, 1e-8, 1e6, *(["inputs"] if linear else [])),
        "fit_intercept": bool(rng.random() < 0.7),
        "standardize": bool(linear and rng.random() < 0.3),
        "forget": one(1.0, 1.0, 0.99, 0.9),
        "diagnose": bool(rng.random() < 0.8),
        "coef_cov": one("model", "model", "robust", "clustered"),
        "weight_kind": one("frequency", "precision"),
        "likelihood": one("gaussian", likelihoods.Gaussian(targets="any")),
        "missing": one("raise", "drop"),
    }
    if not linear and rng.random() < 0.2:
        settings["start"] = rng.normal(size=d + settings["fit_intercept"])
    return settings


def _rows(rng: Any, one: Any, n: int, d: int, k: int | None, link: str) -> tuple[Any, Any]:
    X = rng.normal(size=(n, d))
    u = X @ rng.normal(size=(d, k or 1)) * one(0.0, 1.0, 5.0)
    noise = one(0.0, 1e-6, 0.1, 1.0) * rng.standard_t(one(1, 3, 100), size=u.shape)
    value = {"sigmoid": lambda u: 1 / (1 + np.exp(-u)), "tanh": np.tanh, "exp": lambda u: np.exp(np.minimum(u, 5))}
    y = value.get(link, lambda u: u)(u) + noise
    for j in range(d):
        kind = one("plain", "plain", "plain", "far", "large", "small", "zero", "constant", "copy", "late")
        if kind == "far":
            X[:, j] += one(1e4, 1e8)
        elif kind in ("large", "small"):
            X[:, j] *= 10.0 ** (one(3, 8, 40) if kind == "large" else -one(3, 8, 40))
        elif kind in ("zero", "constant"):
            X[:, j] = 0.0 if kind == "zero" else one(1.0, -3.7, 1e9)
        elif kind == "copy":
            X[:, j] = X[:, 0]
        elif kind == "late":
            X[: n // 2, j] = 0.0
    if rng.random() < 0.15:
        X[rng.integers(n)] = 0.0
    if rng.random() < 0.15:
        y[rng.integers(n)] *= one(1e3, 1e8, 1e60)
    if rng.random() < 0.1:
        y[:] = one(0.0, 1.0)
    return X, (y[:, 0] if k is None else y)


def _weights(rng: Any, n: int) -> Any:
    if rng.random() < 0.6:
        return None
    weights = rng.integers(0, 4, n).astype(float)
    if rng.random() < 0.5:
        weights *= 10.0 ** rng.integers(-30, 8)
    return weights


def differences(model: KalproxRegressor, again: KalproxRegressor, X: Any) -> list[str]:
    """Return the names of the readings in which two models differ in any bit."""
    found = [name for name in (*_READINGS, *_COUNTS) if not _same(_read(model, name), _read(again, name))]
    for name, call in (
        ("predict", lambda m: m.predict(X, return_std=True)),
        ("one row", lambda m: m.predict(X[:1], return_std=True)),
        ("coef_interval", lambda m: m.coef_interval(0.9)),
        ("conformal", lambda m: m.predict_interval(X, 0.9, method="conformal")),
        ("verdict", lambda m: str(m.diagnostics_.verdict())),
    ):
        if not _same(_outcome(call, model), _outcome(call, again)):
            found.append(name)
    return found


def _read(model: KalproxRegressor, name: str) -> Any:
    return _outcome(lambda m: getattr(m, name), model)


def _outcome(call: Any, model: KalproxRegressor) -> Any:
    """Return the result of a call, or the text of its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(model)
        except _REFUSED as error:
            return str(error)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    if isinstance(a, tuple):
        return all(map(_same, a, b))
    return np.array_equal(np.asarray(a, float), np.asarray(b, float), equal_nan=True)
