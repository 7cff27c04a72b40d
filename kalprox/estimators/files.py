"""A fitted estimator as a model file, and back: settings as JSON, what it has learned as arrays."""

from dataclasses import fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

import kalprox.regularizers
from kalprox.calibration import Calibration
from kalprox.estimators.checks import check_settings, is_linear, same
from kalprox.estimators.linear import LinearBelief
from kalprox.estimators.prequential import Prequential
from kalprox.information import Information
from kalprox.model_file import ModelFileError, read, write
from kalprox.regularizers import Regularizer

if TYPE_CHECKING:
    from kalprox.estimators.regressor import KalproxRegressor

_WAITING = ("X", "y", "mean", "std", "dof", "together")
_MAY_BE_INFINITE = ("waiting.std", "waiting.dof")
M = TypeVar("M", bound="KalproxRegressor")


def save(model: "KalproxRegressor", file: str | PathLike) -> None:
    write(file, *parts(model))


def parts(model: "KalproxRegressor") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Settings, counts and names as a header; information, state and score as arrays."""
    belief, settings = model._fitted, model.get_params(deep=False)
    settings.pop("engine")  # is where it was fitted
    changed = [name for name in settings if not same(settings[name], model._settings[name])]
    if changed:
        raise ValueError(f"{', '.join(changed)} changed since the last fit: fit or partial_fit first, then save.")
    header: dict[str, Any] = {
        "estimator": "KalproxRegressor",
        "settings": {name: _plain(name, value) for name, value in settings.items()},
        "n_rows": model._n_rows,
        "n_rejected": model._n_rejected,
        "n_features": model.n_features_in_,
        "feature_names": None if not hasattr(model, "feature_names_in_") else list(model.feature_names_in_),
    }
    arrays = {f"diagnostics.{f.name}": _array(getattr(model._diagnostics, f.name)) for f in fields(Calibration)}
    if isinstance(belief, LinearBelief):
        header["targets"] = belief.folded.targets
        arrays |= information_arrays("information", belief.folded)
        if belief.scores is not None:
            arrays |= {"scores.alphas": belief.scores.alphas, "scores.scores": belief.scores.scores}
        if belief.waiting:
            arrays |= {f"waiting.{name}": a for name, a in zip(_WAITING, belief.waiting.all, strict=True)}
    else:
        _nonlinear(belief, header, arrays)
    return header, arrays


def load(cls: type[M], file: str | PathLike) -> M:
    return from_parts(cls, file, *read(file))


def from_parts(cls: type[M], file: str | PathLike, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> M:
    """The model that `parts` came from; `file` is where they were found."""
    try:
        return _build(cls, header, arrays)
    except ModelFileError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise ModelFileError(
            f"{file} is a model file, but not of a KalproxRegressor that this version knows."
        ) from error


def _build(cls: type[M], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> M:
    if header["estimator"] != "KalproxRegressor" or not all(
        np.isfinite(a).all() for name, a in arrays.items() if name not in _MAY_BE_INFINITE
    ):
        raise ValueError("another estimator, or numbers that are not finite")
    model = cls(**{name: _object(value) for name, value in header["settings"].items()})
    penalty, d = check_settings(model), int(header["n_features"])
    model.n_features_in_ = d
    if header["feature_names"] is not None:
        model.feature_names_in_ = np.array([str(name) for name in header["feature_names"]], dtype=object)
        _expect(len(model.feature_names_in_) == d)
    sums = {f.name: arrays[f"diagnostics.{f.name}"] for f in fields(Calibration)}
    _expect(all(sums[f.name].shape == np.shape(getattr(Calibration(), f.name)) for f in fields(Calibration)))
    if is_linear(model):
        belief: Any = model._linear(read_information("information", arrays, d, header["targets"]))
        if "waiting.X" in arrays:
            X, *others, together = (arrays[f"waiting.{name}"] for name in _WAITING)
            k = () if header["targets"] is None else (header["targets"],)
            _expect(X.ndim == 2 and X.shape[1] == d and together.shape == (len(X),))
            _expect(all(a.shape == (len(X), *k) for a in others))
            belief = replace(belief, waiting=belief.waiting.followed_by(X, *others, together))
        if "scores.alphas" in arrays:
            scores = Prequential(arrays["scores.alphas"], arrays["scores.scores"])
            _expect(scores.alphas.shape == scores.scores.shape == (len(scores.alphas),) and (scores.alphas > 0).all())
            belief = replace(belief, scores=scores)
        _expect(not np.isnan(penalty.at(1.0).value(np.zeros(d))))  # of the right size, and made of numbers
    else:
        belief = _read_nonlinear(model, header, arrays)
    return model._now(belief, int(header["n_rows"]), int(header["n_rejected"]), Calibration(**sums))


def _nonlinear(belief: Any, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    from kalprox.estimators.nonlinear import PaperBelief

    header["n_passes"], header["converged"] = belief.n_passes, bool(belief.converged)
    if (design := belief.design) is not None:
        arrays |= {"design.center": design.center, "design.scale": design.scale}
    state = belief.state
    if isinstance(belief, PaperBelief):
        arrays |= {"mean": _array(state.mean), "cov": _array(state.cov())}
        return
    arrays |= information_arrays("prior", state.prior) | information_arrays("data", state.data)
    arrays["estimate"] = _array(state.estimate)
    header["warmup"] = state.problem.warmup
    header["next_look"] = None if state.held is None else state.held.next_look
    if state.held is not None and state.held.rows:
        for name, parts in (("X", state.held.X), ("y", state.held.y), ("weights", state.held.weights)):
            arrays[f"held.{name}"] = np.concatenate(parts)


def _read_nonlinear(model: "KalproxRegressor", header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    from kalprox.algorithms.base import Belief, start_covariance, start_mean
    from kalprox.algorithms.proximal_filter import Held, proximal_filter
    from kalprox.estimators.nonlinear import Design, FilterBelief, PaperBelief, problem_of

    design = None
    if isinstance(model.link, str):
        design = Design(arrays["design.center"], arrays["design.scale"], bool(model.fit_intercept))
        _expect(design.center.shape == design.scale.shape == (model.n_features_in_,) and (design.scale > 0).all())
    h, g, gamma = problem_of(model, design)
    how = int(header["n_passes"]), bool(header["converged"])
    mean = start_mean(arrays["mean" if model.method == "paper" else "estimate"])
    _expect(design is None or len(mean) == len(design.center) + design.intercept)
    if model.method == "paper":
        assert gamma is not None
        return PaperBelief(Belief(mean, start_covariance(arrays["cov"], mean)), h, design, *how, g, gamma, model.q)
    state = proximal_filter(h, g, gamma=gamma, forget=model.forget, warmup=int(header["warmup"])).init(mean, None)
    d, held = len(mean), None
    if header["next_look"] is not None:
        X, y, weights = ((arrays[f"held.{n}"],) if "held.X" in arrays else () for n in ("X", "y", "weights"))
        _expect(len({len(a) for a in (*X, *y, *weights)}) <= 1 and all(a.ndim == 2 for a in X))
        held = Held(X, y, weights, next_look=int(header["next_look"]))
    prior, data = (read_information(name, arrays, d, None) for name in ("prior", "data"))
    return FilterBelief(replace(state, prior=prior, data=data, held=held), h, design, *how)


def information_arrays(name: str, info: Information) -> dict[str, np.ndarray]:
    return {f"{name}.T": _array(info.T), f"{name}.shift": _array(info.shift), f"{name}.rows": _array(info.rows)}


def read_information(name: str, arrays: dict[str, np.ndarray], d: int, targets: int | None) -> Information:
    T, shift, rows = (arrays[f"{name}.{part}"] for part in ("T", "shift", "rows"))
    p = d + (targets or 1)
    _expect(T.shape == (1 + p, 1 + p) and shift.shape == (p,) and rows.shape == () and rows >= 0)
    _expect(not np.tril(T, -1).any() and (np.diagonal(T) >= 0).all())
    return replace(Information.zero(d, targets), T=T, shift=shift, rows=rows[()])


def _plain(name: str, value: Any) -> Any:
    """A setting in JSON's types, from which `_object` makes it again."""
    if isinstance(value, Regularizer):
        kind = type(value).__name__
        if getattr(kalprox.regularizers, kind, None) is type(value) and kind != "Custom":
            parts = {f.name: _plain(name, getattr(value, f.name)) for f in fields(cast(Any, value))}
            return {"regularizer": kind, "fields": parts}
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "fiub":
        return {"array": _plain(name, value.tolist())} if isinstance(value, np.ndarray) else value.item()
    elif isinstance(value, tuple):
        return {"tuple": [_plain(name, v) for v in value]}
    elif isinstance(value, list):
        return [_plain(name, v) for v in value]
    elif value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(
        f"{name} cannot be saved without pickle: expected names, numbers, arrays or kalprox's own regularisers (Custom "
        f"excepted); got {value!r}. Use joblib, or keep the settings in code and save only models without it."
    )


def _object(value: Any) -> Any:
    if isinstance(value, list):
        return [_object(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"array"}:
        return np.array(value["array"])
    if set(value) == {"tuple"}:
        return tuple(_object(v) for v in value["tuple"])
    kind = value["regularizer"]
    _expect(kind in kalprox.regularizers.__all__ and kind != "Custom")
    made = getattr(kalprox.regularizers, kind)(**{name: _object(v) for name, v in value["fields"].items()})
    _expect(isinstance(made, Regularizer))
    return made


def _array(value: Any) -> np.ndarray:
    return np.asarray(value, np.float64)


def _expect(condition: Any) -> None:
    if not condition:
        raise ValueError("the header and the arrays of the file do not agree")
