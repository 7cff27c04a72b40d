"""KalproxRegressor: fit, partial_fit, predict, and how sure it is, under scikit-learn's contract."""

from collections.abc import Callable
from dataclasses import replace
from operator import is_, itemgetter
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from kalprox._arrays import Array
from kalprox._checks import check_positive
from kalprox.calibration import Calibration
from kalprox.engines.collections import is_collection, partition_collection, predict_collection
from kalprox.estimators.checks import Blocks, Rows, check_rows, check_settings, is_linear, same
from kalprox.estimators.diagnostics import due, judged, judged_waiting
from kalprox.estimators.linear import HUGE, LinearBelief, Path, faded
from kalprox.estimators.waiting import Waiting
from kalprox.information import Information, merge
from kalprox.noise import Noise
from kalprox.sources import Source as SourceRows
from kalprox.sources.quarantine import Quarantine

_FLOAT64 = np.dtype(np.float64)  # compared with a type, a dtype takes twice as long


class KalproxRegressor(RegressorMixin, BaseEstimator):
    """Regularised regression, all at once or as a stream, that knows how sure it is.

    Minimises, with the intercept free,

        sum_k 1/2 w_k (y_k - link(x_k' coef + intercept))^2 + alpha * penalty(coef).

    With the identity link every answer is exact over the rows seen so far, whatever the blocks and their order;
    `partial_fit` costs O(d^2) a row, and reading `coef_` or predicting O(d^3) once after it. All inside is float64.

    Parameters
    ----------
    link : identity, sigmoid, tanh, softplus, exp or arctan; or a JAX function fn(theta, x) of one row, which then is
        the whole model: it has no intercept, `coef_` is theta, and `start` is needed. Behind any link but identity
        `fit` refines to a stationary point by passes over the rows, and `partial_fit` streams in one pass, with a
        weak prior on the predictor's scale.
    penalty : None, or what alpha multiplies: ridge, 1/2 ||coef||^2; l1, ||coef||_1; elasticnet, l1_ratio ||coef||_1 +
        (1 - l1_ratio)/2 ||coef||^2; smooth_l1, sum(sqrt(1 + coef^2/delta^2) - 1); group, sum over groups of
        sqrt(size) ||coef_g||. "box" keeps coef between `bounds` and has no alpha. Or a `kalprox.regularizers` object,
        with its own weight.
    alpha : the penalty's weight. It is the alpha of scikit-learn's Ridge, and n times the alpha of its Lasso and
        ElasticNet, which divide the sum of squares by n. "auto" (linear only) maximises the evidence for ridge, from
        the information alone; for the others the prequential score: each batch is predicted with every alpha of a
        grid before it is learned (`fit` goes through its rows so, in their order, doubling them at each step).
    l1_ratio, delta, groups, bounds : see penalty; groups has an integer label a feature, -1 for no penalty, and
        bounds is (low, high), each a number or one a feature.
    method : "exact", or "paper": the paper's recursion (`kalprox.pipg`), row by row from N(start, v0) with process
        noise q. It needs the noise variance, and settles at n * penalty.
    noise : "learn", or the noise variance. Learned, it is rss / (rows - effective degrees of freedom), and
        intervals are Student's.
    fit_intercept : whether an intercept is added, never penalised.
    standardize : penalise coefficients in units of 1 / (standard deviation of their column), exactly, as if X had
        been standardised first; `coef_` stays in the units of X. Behind a nonlinear link only for `fit`.
    forget : what a row's weight is multiplied by with every later row, in (0, 1]; 1 forgets nothing.
    block_size : rows made dense at a time, where X is sparse; "auto" takes 32 MiB.
    max_passes, tol : when refining a nonlinear link stops.
    on_bad_rows : "raise", or "skip" rows with NaN or infinity in X or y and count them in `n_rows_rejected_`.
    start : first theta, for a nonlinear link (intercept first where there is one) or a function.
    v0, q : for method="paper": variance of the first theta, and process noise.
    diagnose : whether partial_fit predicts batches before it learns them, and keeps score in `diagnostics_`: all
        batches of the first 16,384 rows, then one in 16, but one in 32,768 rows (64 d if that is more); of a batch 512
        rows, evenly spaced, or a sixteenth if that is more. It costs a reading, O(d^3). Batches of 16 rows or fewer are
        all judged, where the penalty is ridge or None at O(d^2) a row.
    engine : where `fit` folds the rows: None is here; "local" (threads), "processes", "dask", "spark", the address of a
        Dask scheduler, a `distributed.Client` or a `SparkSession`. X and y may be Dask arrays, a Dask dataframe and
        series, or a Spark frame and the name of its target, which go to their own client or session where engine is
        None; `predict` of them is lazy. Bad rows as `on_bad_rows` says. No part of the model: it is not saved.

    Attributes
    ----------
    coef_ : (d,), or (k, d) where y had k columns, which share one factor; intercept_ : number or (k,).
    coef_std_, intercept_std_, covariance_ : of the estimates, (d,), number, (d, d), each with k in front for k columns.
        Infinite where nothing determines a coefficient (which then has minimum norm); zero where a penalty holds it
        at a kink or bound, the others being conditional on that. With few degrees of freedom, Student's scale.
    noise_var_, noise_dof_ : noise variance and its degrees of freedom (infinite where given).
    alpha_ : the alpha used.
    n_rows_seen_, n_rows_rejected_ : rows learned (of weight > 0), and skipped.
    n_passes_, converged_ : over the rows, and whether the minimiser was reached.
    diagnostics_ : a `kalprox.Calibration` of each batch given to partial_fit, predicted before it was learned;
        `diagnostics_.verdict()` says in words whether the intervals can be believed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = 1 + X @ [2.0, 0.0, -1.0] + 0.5 * rng.normal(size=200)
    >>> model = KalproxRegressor(penalty="l1", alpha=20.0).partial_fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    >>> model.coef_.round(2), model.coef_std_.round(2)
    (array([ 1.87,  0.  , -0.88]), array([0.04, 0.  , 0.04]))
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.round(2), std.round(2)
    (array([0.65, 0.86]), array([0.53, 0.53]))
    """

    _belief: Any
    _n_rows: int
    _n_rejected: int
    _diagnostics: Calibration
    _settings: dict[str, Any]
    _current: Callable[[dict[str, Any]], tuple[Any, ...]]  # the same of now, from vars(self)

    def __init__(
        self,
        link: str | Callable = "identity",
        penalty: Any = "ridge",
        alpha: float | str = 1.0,
        *,
        l1_ratio: float = 0.5,
        delta: float = 1.0,
        groups: Any = None,
        bounds: Any = (0.0, np.inf),
        method: str = "exact",
        noise: float | str = "learn",
        fit_intercept: bool = True,
        standardize: bool = False,
        forget: float = 1.0,
        block_size: int | str = "auto",
        max_passes: int = 200,
        tol: float = 1e-10,
        on_bad_rows: str = "raise",
        start: Any = None,
        v0: Any = 1.0,
        q: Any = 0.0,
        diagnose: bool = True,
        engine: Any = None,
    ) -> None:
        self.link = link
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.delta = delta
        self.groups = groups
        self.bounds = bounds
        self.method = method
        self.noise = noise
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.forget = forget
        self.block_size = block_size
        self.max_passes = max_passes
        self.tol = tol
        self.on_bad_rows = on_bad_rows
        self.start = start
        self.v0 = v0
        self.q = q
        self.diagnose = diagnose
        self.engine = engine

    # ---- learning --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn these rows alone. A sample weight is a number of repetitions: 2 is the row twice, 0 no row."""
        check_settings(self)
        if self.engine is not None or is_collection(X):
            return self._fit_on_engine(X, y, sample_weight)
        rows, rejected = check_rows(self, X, y, sample_weight, reset=True)
        if is_linear(self) or self.method == "paper":
            belief = self._learned(self._fresh(rows), rows)
        else:
            from kalprox.estimators.nonlinear import refined

            X, y, weights = rows
            if self.forget != 1:
                weights, _ = faded(np.ones(len(y)) if weights is None else weights, self.forget)
            belief, _ = refined(self, Blocks(self, X, y, weights), X.shape[1])
        return self._now(belief, _count(rows), rejected, Calibration())

    def fit_source(self, source: SourceRows, d: int) -> Self:
        """Learn the rows of a source that need not be in memory (`kalprox.sources.Rows`), d columns of X each.

        A linear model takes one pass, a nonlinear one as many as it needs. n_rows: asked afterwards how many they were.
        """
        check_settings(self)
        if self.method == "paper" or self.forget != 1:
            raise ValueError("fit_source needs method='exact' and forget=1: the order of its rows is not known.")
        if is_linear(self):
            if self.alpha == "auto" and self.penalty != "ridge":
                raise ValueError(
                    "alpha='auto' needs penalty='ridge' here: otherwise it is chosen by predicting rows from those "
                    "before them, and their order is not known. Give a number, or look at `path` afterwards."
                )
            folded = source.fold(Information.from_block)
            belief: Any = self._linear(folded.total)
            good = folded.counts.good
        else:
            from kalprox.estimators.nonlinear import refined

            belief, good = refined(self, source, d)
        self.n_features_in_ = d
        return self._now(belief, good, 0, Calibration())

    def _fit_on_engine(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """On whatever machines: the sums are those of one."""
        from kalprox import engines

        partitions, names, d = partition_collection(X, y, sample_weight)
        quarantine = Quarantine(max_bad=None if self.on_bad_rows == "raise" else "100%")
        with engines.open(self.engine or engines.engine_of(X)) as engine:
            rows = engines.EngineSource(engine, partitions, quarantine=quarantine)
            self.fit_source(rows, d)
        self._n_rejected = quarantine.bad
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn these rows besides those learned before. If a row is bad all are refused, and nothing changes."""
        if sample_weight is None and self._is_one_row(X) and _is_one(y) and abs(y[0]) < HUGE**0.5:
            belief = self._belief.with_waiting(X, y, self.diagnose)
            if belief.folded is not self._belief.folded:
                self._diagnostics = self._judged(self._belief, belief, (X, y, None))
            self._belief, self._n_rows = belief, self._n_rows + 1
            return self
        check_settings(self)
        if not hasattr(self, "_belief"):
            rows, rejected = check_rows(self, X, y, sample_weight, reset=True)
            belief = self._learned(self._fresh(rows), rows)
            return self._now(belief, _count(rows), rejected, Calibration())
        rows, rejected = check_rows(self, X, y, sample_weight, reset=False)
        before = self._reread()
        belief = self._learned(before, rows)
        diagnostics = self._judged(before, belief, rows)
        return self._now(belief, self._n_rows + _count(rows), self._n_rejected + rejected, diagnostics)

    def merge(self, other: Self) -> Self:
        """Take in what `other` has learned, as if its rows had come here: exact, O(d^3). Linear models only."""
        if not (isinstance(self._fitted, LinearBelief) and isinstance(other._fitted, LinearBelief)):
            raise ValueError(
                "merge needs linear models, link='identity' and method='exact': others have no common linearisation. "
                "Fit one model on all rows instead."
            )
        mine, theirs = self._settings, other._settings
        different = [name for name in mine if not same(mine[name], theirs[name])]
        if different:
            raise ValueError(
                "merge needs two models fitted with the same settings; these differ in "
                + ", ".join(f"{name} ({mine[name]!r} and {theirs[name]!r})" for name in different)
                + "."
            )
        if self._belief.scores is not None:
            raise ValueError(
                "merge needs a number for alpha, or penalty='ridge': alpha='auto' was chosen here by predicting each "
                "batch from those before it, and predictions made apart do not add up."
            )
        if self.forget != 1:
            raise ValueError(f"merge needs forget=1: with forget={self.forget!r} the order of all rows would matter.")
        names = [getattr(model, "feature_names_in_", None) for model in (self, other)]
        if not same(*names):
            raise ValueError(f"merge needs the same features in the same order; got {names[0]} and {names[1]}.")
        belief = self._linear(merge(self._belief.information, other._belief.information))
        counts = self._n_rows + other._n_rows, self._n_rejected + other._n_rejected
        return self._now(belief, *counts, self.diagnostics_.merge(other.diagnostics_))

    # ---- asking ----------------------------------------------------------------------------------------

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean for each row; with return_std also the scale of a new observation there, noise included.

        The scale is Student's with `noise_dof_` degrees of freedom where the noise is learned, and NaN where no
        degrees of freedom are left. O(d) a row, O(d^2) with std.
        """
        if self._is_one_row(X) and (live := self._belief.live) is not None:
            return live.predict_with_std(X[0]) if return_std else np.array([live.predict(X[0])])
        if is_collection(X):
            return predict_collection(self, X, return_std)
        belief = self._fitted
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        if isinstance(belief, LinearBelief) and not return_std:
            return belief.predict(X)
        means, stds = zip(*((belief.predict(B), belief.std(B)) for B, _, _ in Blocks(self, X)), strict=True)
        return (np.concatenate(means), np.concatenate(stds)) if return_std else np.concatenate(means)

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Array, Array]:
        """Low and high ends of the central predictive intervals, which hold a new observation with this probability."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1; got {level!r}.")
        mean, std = self.predict(X, return_std=True)
        live = self._belief.live if self._is_one_row(X) else None
        noise = self._belief.noise if live is None else Noise(*map(np.asarray, live.noise()))
        reach = noise.quantile(level) * std
        return mean - reach, mean + reach

    def sample(self, n: int = 1, random_state: Any = None) -> tuple[Array, Array]:
        """n draws of (coef, intercept) from the posterior, shapes (n, d) and (n,), or (n, k, d) and (n, k)."""
        return self._fitted.sample(n, check_random_state(random_state))

    def path(self, alphas: Any = None) -> Path:
        """Coefficients, intercepts, degrees of freedom and score for each alpha (default: a grid), with no pass
        over the data: O(d^3) an alpha. Linear models only."""
        belief = self._fitted
        if not isinstance(belief, LinearBelief):
            raise ValueError("path needs link='identity' and method='exact'; fit once for each alpha instead.")
        if not belief.penalty.has_weight:
            raise ValueError(f"path needs a penalty that alpha weighs; got penalty={belief.penalty.kind!r}.")
        if alphas is None:
            alphas = belief.penalty.alphas(belief.equations.R, belief.equations.z)
        alphas = np.asarray(alphas, float)
        check_positive("alphas", alphas, strict=False)
        return belief.path(alphas)

    coef_ = property(lambda self: self._fitted.coef)
    intercept_ = property(lambda self: np.asarray(self._fitted.intercept)[()])
    coef_std_ = property(lambda self: self._fitted.coef_std)
    intercept_std_ = property(lambda self: np.asarray(self._fitted.intercept_std)[()])
    covariance_ = property(lambda self: self._fitted.covariance)
    noise_var_ = property(lambda self: np.asarray(self._fitted.noise.variance)[()])
    noise_dof_ = property(lambda self: np.asarray(self._fitted.noise.dof)[()])
    converged_ = property(lambda self: self._fitted.converged)
    n_passes_ = property(lambda self: self._fitted.n_passes)
    n_rows_seen_ = property(lambda self: self._fitted and self._n_rows)
    n_rows_rejected_ = property(lambda self: self._fitted and self._n_rejected)

    @property
    def diagnostics_(self) -> Calibration:
        belief = self._fitted
        linear = isinstance(belief, LinearBelief)
        return judged_waiting(self._diagnostics, belief.waiting) if linear else self._diagnostics

    @property
    def alpha_(self) -> Any:
        belief = self._fitted
        return belief.alpha if isinstance(belief, LinearBelief) else self._settings["alpha"]

    @property
    def log_evidence_(self) -> Any:
        """log p(y) with the penalty read as a prior, a number or one for each column of y: linear, ridge."""
        belief = self._fitted
        if not isinstance(belief, LinearBelief):
            raise AttributeError("log_evidence_ is exact for link='identity' and method='exact' only.")
        try:
            return belief.log_evidence[()]
        except ValueError as error:  # hasattr says no
            raise AttributeError(str(error)) from error

    # ---- files -----------------------------------------------------------------------------------------

    def save(self, file: str | PathLike) -> None:
        """Write the fitted model, whole or not at all; without pickle. A function or Custom penalty cannot be saved."""
        from kalprox.estimators import files

        files.save(self, file)

    @classmethod
    def load(cls, file: str | PathLike) -> Self:
        """Read what `save` wrote; partial_fit goes on bit for bit. Any other file raises `ModelFileError`."""
        from kalprox.estimators import files

        return files.load(cls, file)

    # ---- inside ----------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_belief")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: a client or session stays behind."""
        return super().__getstate__() | {"engine": self.engine if isinstance(self.engine, str) else None}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.target_tags.multi_output = True, is_linear(self)
        tags.regressor_tags.poor_score = not is_linear(self)  # a link's range need not hold any y
        return tags

    @property
    def _fitted(self) -> Any:
        check_is_fitted(self)
        return self._belief

    def _now(self, belief: Any, n_rows: int, n_rejected: int, diagnostics: Calibration) -> Self:
        """All that was learned, at once: an error before this has changed nothing."""
        self._belief, self._n_rows, self._n_rejected, self._diagnostics = belief, n_rows, n_rejected, diagnostics
        names = self._settings if hasattr(self, "_settings") else self._get_param_names()  # which takes 0.5 ms
        self._settings = {name: getattr(self, name) for name in names if name != "engine"}
        self._current = itemgetter(*self._settings)
        return self

    def _is_one_row(self, X: Any) -> bool:
        """Whether X is one good row, for settings that have a short way: scikit-learn's checks take 200 us."""
        mine = vars(self)
        return (
            type(X) is np.ndarray
            and type(mine.get("_belief")) is LinearBelief
            and X.shape == (1, mine["n_features_in_"])
            and X.dtype == _FLOAT64
            and "feature_names_in_" not in mine
            and mine["forget"] == 1
            and all(map(is_, mine["_current"](mine), mine["_settings"].values()))  # none has changed
            and float(np.vdot(X, X)) < HUGE  # not so for NaN
        )

    def _learned(self, belief: Any, rows: Rows) -> Any:
        whole = isinstance(belief, LinearBelief) and isinstance(rows[0], np.ndarray)
        judge = {"judge": self.diagnose} if isinstance(belief, LinearBelief) else {}
        return belief.learn([rows] if whole else Blocks(self, *rows), self.forget, **judge)

    def _linear(self, info: Information) -> LinearBelief:
        noise_var = None if isinstance(self.noise, str) else float(self.noise)
        waiting = Waiting.none(info.d, info.targets)
        return LinearBelief(info, check_settings(self), self.fit_intercept, self.standardize, noise_var, waiting)

    def _fresh(self, rows: Rows) -> Any:
        """The belief before the first row."""
        X, y, _ = rows
        if is_linear(self):
            return self._linear(Information.zero(X.shape[1], y.shape[1] if y.ndim == 2 else None))
        from kalprox.estimators.nonlinear import begin

        return begin(self, Blocks(self, *rows), y, X.shape[1])

    def _reread(self) -> Any:
        """The belief so far under the settings of now: alpha, noise and the like may have been changed since."""
        if isinstance(self._belief, LinearBelief) and is_linear(self):
            old = self._belief
            new = replace(self._linear(old.folded), waiting=old.waiting)
            scored = ("penalty", "fit_intercept", "standardize", "noise_var")  # under other settings than these, anew
            return replace(new, scores=old.scores if all(same(vars(old)[n], vars(new)[n]) for n in scored) else None)
        fixed = ("link", "method", "fit_intercept", "standardize")
        changed = [name for name in fixed if self._settings[name] is not getattr(self, name)]
        if changed:
            raise ValueError(f"{' and '.join(changed)} cannot change between calls of partial_fit here: use fit.")
        return self._belief.reread(self)

    def _judged(self, before: Any, after: Any, rows: Rows) -> Calibration:
        """The score so far and that of this batch, predicted before it is learned. Short batches wait, and so do their
        predictions: they are scored together, which takes 0.2 ms, when they are folded in."""
        score = self._diagnostics
        if not self.diagnose or getattr(before, "waits", False):
            return score
        if isinstance(before, LinearBelief):
            if after.folded is not before.folded:
                score = judged_waiting(score, before.waiting)
            if after.waiting:
                return score
        learned = self._n_rows, self._n_rows + _count(rows)
        return judged(score, before, rows) if due(score, *learned, self.n_features_in_) else score


def _is_one(y: Any) -> bool:
    return type(y) is np.ndarray and y.shape == (1,) and y.dtype == _FLOAT64


def _count(rows: Rows) -> int:
    _, y, weights = rows
    return len(y) if weights is None else int((weights > 0).sum())
