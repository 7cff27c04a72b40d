"""Save fitted learners to model files and load them: settings as JSON, the state as arrays, without pickle."""

import warnings
from dataclasses import fields
from os import PathLike
from types import ModuleType
from typing import Any, cast

import numpy as np

import kalprox.forgetting
import kalprox.likelihoods
import kalprox.penalties
import kalprox.regularizers
import kalprox.structures
from kalprox import model_file
from kalprox.base.tree import Saved, expect, flatten, is_count
from kalprox.forgetting import Forgetting
from kalprox.learning.gaps import Gaps
from kalprox.learning.learner import Learner
from kalprox.learning.merging import SIZE
from kalprox.learning.pending import PendingRows
from kalprox.learning.settings import Settings
from kalprox.learning.step import Buffered
from kalprox.likelihoods import Likelihood
from kalprox.model_file import Parts, refusing
from kalprox.penalties import Penalty
from kalprox.regularizers import Regularizer
from kalprox.structures import Structure

# what an estimator has, and a learner has not
_ESTIMATOR = ("class_weight", "classes")
_OBJECTS: tuple[tuple[str, ModuleType, type], ...] = (  # settings that are objects: how a file names them
    ("regularizer", kalprox.regularizers, Regularizer),
    ("penalty", kalprox.penalties, Penalty),
    ("likelihood", kalprox.likelihoods, Likelihood),
    ("forgetting", kalprox.forgetting, Forgetting),
    ("structure", kalprox.structures, Structure),
)


def save_learner(file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write the header and the arrays that `learner_parts` returned to a model file, atomically.

    The learner is restored from what was written, and compared, before the file replaces another.
    """

    def rebuilt(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
        learner, about = from_parts(file, header, arrays, try_out=False)
        return learner_parts(learner, **about)

    model_file.write(file, header, arrays, rebuilt)


def learner_parts(
    learner: Learner, *, n_features: int, feature_names: list[str] | None, estimator_settings: dict[str, Any]
) -> Parts:
    """Return the header and the arrays of a fitted learner and of the columns it was fitted to."""
    settings = {**learner.settings.parameters, **estimator_settings}
    header: dict[str, Any] = {
        "estimator": "KalproxClassifier" if "classes" in estimator_settings else "KalproxRegressor",
        "settings": {name: plain_setting(name, value) for name, value in settings.items()},
        "n_rows": learner.n_rows,
        "n_rejected": learner.n_rejected,
        "n_features": n_features,
        "feature_names": feature_names,
    }
    arrays: dict[str, np.ndarray] = {}
    for name, value in _values(learner).items():
        flatten(name, value, header, arrays)
    return header, arrays


def n_held(learner: Learner) -> int:
    """Return the number of rows that are held as they came, and that a model file would hold too."""
    waiting = 0 if learner.pending is None else len(learner.pending)
    return learner.stream.n_held + learner.gaps.n_held + waiting


def _values(learner: Learner) -> dict[str, Any]:
    """Return the state of a learner as values that can be saved; see `kalprox.base.tree`."""
    settings, found = learner.settings, learner.stream.saved()
    if len(learner.merged):
        found["merged"] = learner.merged
    if settings.fills_gaps or learner.gaps.unlabelled:
        found["gaps"] = learner.gaps
    if learner.pending is not None:
        found["pending"] = learner.pending.saved()
    if settings.chooses_alpha and not settings.is_exact:
        found["alpha"] = np.array(settings.alpha)
    if settings.coef_cov == "clustered":
        found["clustered"] = True
    return found


def _restored(settings: Settings, d: int, saved: Saved) -> Learner:
    """Return the learner of d features of which `_values` returned these values."""
    settings = settings.clustered() if "clustered" in saved.header else settings
    if settings.awaits_alpha:
        expect(saved["alpha"].shape == () and 0 < saved["alpha"] < np.inf)
        settings = settings.with_alpha(float(saved["alpha"]))
    sizes: dict[str, int | None] = {name: saved.header[f"sizes.{name}"] for name in ("k", "o", "p")}
    expect(saved.count("sizes.d") == d and is_count(sizes["p"]))
    expect(all(sizes[name] is None or is_count(sizes[name]) for name in ("k", "o")))
    sizes["d"] = d
    learner = Learner(settings)
    learner.stream = Buffered.restored(settings, saved, sizes)
    if "gaps" in saved:
        learner.gaps = saved.tree(Gaps, "gaps", sizes)
    if "merged" in saved:
        learner.merged = saved["merged"]
        expect(learner.merged.ndim == 2 and learner.merged.shape[1] == SIZE and len(learner.merged))
        expect(np.isfinite(learner.merged).all())
    if "pending" in saved:
        learner.pending = PendingRows.restored(d, saved)
    learner.n_rejected = saved.count("n_rejected")
    return learner


def from_parts(
    file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray], *, try_out: bool = True
) -> tuple[Learner, dict[str, Any]]:
    """Return the learner that `learner_parts` was given, and its other arguments.

    Anything else raises a `ModelFileError`, which names `file`. With `try_out`, a row is predicted and the score is
    read too, which fails if the numbers make no sense together; otherwise nothing is computed.
    """
    with refusing(f"{file} is a model file, but not of an estimator that this version can read."):
        expect(header["estimator"] in ("KalproxRegressor", "KalproxClassifier"))
        parameters = {name: from_plain_setting(value) for name, value in header["settings"].items()}
        estimator_settings = {name: parameters.pop(name) for name in _ESTIMATOR if name in parameters}
        expect(("classes" in estimator_settings) is (header["estimator"] == "KalproxClassifier"))
        expect("classes" in estimator_settings or parameters.get("class_weights") is None)
        names, saved = header["feature_names"], Saved(header, arrays)
        d = saved.count("n_features")
        expect(d >= 1 and (names is None or (type(names) is list and len(names) == d)))
        expect(names is None or (all(isinstance(name, str) for name in names)))
        settings = Settings.of(**parameters)
        learner = _restored(settings, d, saved)  # which compares d with the arrays first
        _try_penalty(settings, d)
        if try_out:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                offset = np.zeros(1) if learner.belief.design.row_offsets else None
                learner.belief.predict(np.zeros((1, d)), offset=offset)
                learner.score.verdict()
        about = {"n_features": d, "feature_names": names, "estimator_settings": estimator_settings}
        return learner, about


def _try_penalty(settings: Settings, d: int) -> None:
    """Raise if the penalty of a file cannot be computed for d coefficients."""
    float(settings.penalty.regularizer(1.0 if settings.alpha == "auto" else settings.alpha).value(np.zeros(d)))


def plain_setting(name: str, value: Any) -> Any:
    """Convert a setting to JSON types; `from_plain_setting` converts it back."""
    if isinstance(value, (Regularizer, Penalty, Likelihood, Forgetting, Structure)):
        kind = type(value).__name__
        word, module, _ = next(one for one in _OBJECTS if isinstance(value, one[2]))
        if getattr(module, kind, None) is type(value) and kind != "Custom":
            parts = {f.name: plain_setting(name, getattr(value, f.name)) for f in fields(cast(Any, value))}
            return {word: kind, "fields": parts}
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "fiub":
        return {"array": plain_setting(name, value.tolist())} if isinstance(value, np.ndarray) else value.item()
    elif isinstance(value, tuple):
        return {"tuple": [plain_setting(name, v) for v in value]}
    elif isinstance(value, list):
        return [plain_setting(name, v) for v in value]
    elif isinstance(value, dict) and name == "class_weight":
        return {"dict": [[plain_setting(name, label), plain_setting(name, weight)] for label, weight in value.items()]}
    elif value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(
        f"{name} cannot be saved without pickle: expected names, numbers, arrays, likelihoods of kalprox, or "
        f"regularisers of kalprox other than Custom; got {value!r}. Use joblib instead."
    )


def from_plain_setting(value: Any) -> Any:
    """Return the setting that `plain_setting` converted."""
    if isinstance(value, list):
        return [from_plain_setting(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"array"}:
        array = np.array(value["array"])
        expect(array.dtype.kind in "fiub")
        return array
    if set(value) == {"dict"}:
        return {from_plain_setting(label): from_plain_setting(weight) for label, weight in value["dict"]}
    if set(value) == {"tuple"}:
        return tuple(from_plain_setting(v) for v in value["tuple"])
    found = [one for one in _OBJECTS if one[0] in value]
    expect(found)
    word, module, base = found[0]
    kind = value[word]
    expect(kind in module.__all__ and kind != "Custom")
    made = getattr(module, kind)(**{name: from_plain_setting(v) for name, v in value["fields"].items()})
    expect(isinstance(made, base))
    return made
