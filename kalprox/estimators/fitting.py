"""Fits of all rows: `fit`, `refine` and `fit_source`, and the `path` of a penalty."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from kalprox.base.text import plain_number
from kalprox.engines.partitions import is_collection, partition_collection
from kalprox.estimators.classes import labels_of_targets
from kalprox.estimators.frames import as_arrow, as_frame, check_encoded, column_names, encode, frame_kind
from kalprox.estimators.rows import Given, any_missing, labelled
from kalprox.estimators.streaming import Streaming, check_offset, of_good_rows
from kalprox.learning.learner import Learner
from kalprox.learning.path import Path
from kalprox.learning.rules import check
from kalprox.learning.sandwich import NEEDS_GROUPS
from kalprox.learning.settings import Settings
from kalprox.penalties import penalty_of
from kalprox.sources import ArraySource, Block, Source
from kalprox.sources.quarantine import Quarantine

if TYPE_CHECKING:
    from kalprox.sources.formula import FormulaColumns
    from kalprox.sources.inference import TargetClasses


_ROLES = ("weight", "cluster", "offset", "exposure", "time")  # of columns, in the order of `Given`


class Fitting(Streaming):
    """The methods that learn all rows of a model: from arrays, frames, sources or collections."""

    fit_intercept: bool
    _new_columns: "FormulaColumns | None" = None  # of the formula, while a frame is fitted

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        clusters: Any = None,
        offset: Any = None,
        exposure: Any = None,
        times: Any = None,
    ) -> Self:
        """Fit the model to these rows, discarding everything learned before.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d), a Dask collection or a Spark frame
        y : array-like of shape (n,), or (n, k) for a linear model; the name of the target column for a Spark frame
        sample_weight : array-like of shape (n,), optional
            The weights of the rows; see `weight_kind`. A row of weight 0 is ignored.
        clusters : array-like of shape (n,), optional
            The cluster of each row, a number or a text, for clustered standard errors; see `coef_cov`. The name of a
            column for a Spark frame.
        offset : array-like of shape (n,), optional
            What is added to the linear predictor of each row, for likelihoods other than "gaussian". Then every row
            has one, those to predict included. The name of a column for a Spark frame.
        exposure : array-like of shape (n,), optional
            The time, or the number at risk, in which each count was made: its log is added to the linear predictor. The
            name of a column for a Spark frame.
        times : array-like of shape (n,), or one time, optional
            The time of each row, or of all rows: numbers or dates, none before that of an earlier row. Required with
            forget=ByTime(half_life), and for no other kind of forgetting.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> model = KalproxRegressor(penalty=None).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
        >>> model.coef_.round(8), round(float(model.intercept_), 8)
        (array([2.]), 1.0)
        """
        return self._fit(X, y, Given(sample_weight, clusters, offset, exposure, times))

    def _fit(self, X: Any, y: Any, given: Given) -> Self:
        """Fit the model to rows as they were given; names of columns only with a formula."""
        X = as_frame(X)
        with self._lock:
            if self.formula is not None:
                return self._fit_formula(X, y, given)
            if self.engine is not None or is_collection(X):
                return self._fit_on_engine(X, y, given)
            with self._targets(y, given) as (y, given):
                return self._fit_rows(X, y, given)

    @contextmanager
    def _targets(
        self, y: Any, given: Given, classes: Any = None, *, of_table: bool = False
    ) -> Iterator[tuple[Any, Given]]:
        """Yield y as the learner takes it, and what is given of the rows; a classifier has its classes from then on.

        Parameters
        ----------
        y : Any
            None for a frame `of_table`, with the columns that the model was fitted to, which has its own.
        given : Given
            Weights are yielded with those of the classes, but for a frame: see `_weighted_by_class`.
        classes : array of shape (m,), optional
            If they are known.
        of_table : bool
        """
        yield y, given

    def _fit_rows(self, X: Any, y: Any, given: Given) -> Self:
        """Fit the model to rows in memory with their targets."""
        settings = self._checked_settings()
        check_offset(settings, given)
        learner = Learner(settings)
        source, rejected, unlabelled = self._source(X, y, given, settings, reset=True)
        learner.fit(source)
        _warn_of_unused_parameters(learner)
        self._warn_of_unseen(learner)
        learner.n_rejected, learner.gaps = rejected, replace(learner.gaps, unlabelled=unlabelled)
        self._table, self._frame_kind = None, frame_kind(X)
        return self._keep(learner)

    def _source(self, X: Any, y: Any, given: Given, settings: Settings, *, reset: bool) -> tuple[ArraySource, int, int]:
        """Return all rows of a model as a source, and how many of them are bad, or have no target."""
        rows, rejected, _ = self._rows_of(X, y, given, settings=settings, reset=reset)
        found, known = labelled(rows)
        if known is not None and not known.any():
            raise ValueError(f"y has no target: all {len(known)} are missing. Nothing can be learned.")
        source = self._batch(found, settings, whole=False)
        assert isinstance(source, ArraySource)
        return source, rejected, len(rows.y) - len(found.y)

    def refine(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        clusters: Any = None,
        offset: Any = None,
        exposure: Any = None,
        times: Any = None,
    ) -> Self:
        """Refine a fitted model by passes over all rows, which begin at its estimate.

        The result is that of `fit`. A stream or a merge of streams ends close to the minimiser, so that two or three
        passes are enough. The prequential score is kept. For models that `fit` learns in several passes.

        Parameters
        ----------
        X, y, sample_weight, clusters, offset, exposure, times
            All rows that the model has learned; see `fit`. Of a frame that has the target of the formula, or of the
            files, y may be left out.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2))
        >>> y = rng.poisson(np.exp(X @ [0.5, -0.2])).astype(float)
        >>> model = KalproxRegressor(likelihood="poisson").partial_fit(X, y).refine(X, y)
        >>> whole = KalproxRegressor(likelihood="poisson").fit(X, y)
        >>> bool(np.allclose(model.coef_, whole.coef_, rtol=1e-9)), model.n_passes_ < whole.n_passes_
        (True, True)
        """
        X, given = as_frame(X), Given(sample_weight, clusters, offset, exposure, times)
        with self._lock:
            learner = self._fitted.copy()
            with self._targets(y, given, vars(self).get("classes_"), of_table=self._is_raw(X)) as (y, given):
                settings = self._checked_settings()
                source, rejected, unlabelled = self._source(X, y, given, settings, reset=False)
                learner.configure(settings)
                learner.fit(source, refine=True)
                learner.n_rejected, learner.gaps = rejected, replace(learner.gaps, unlabelled=unlabelled)
                return self._keep(learner)

    def _warn_of_unseen(self, learner: Learner) -> None:
        """Warn if a column had no value in any row of a fit."""
        moments = learner.gaps.moments
        if moments is None or not len(moments.unseen):
            return
        names = self._coef_names(learner.belief)
        columns = ", ".join(repr(names[j]) for j in moments.unseen[:5]) + (", ..." if len(moments.unseen) > 5 else "")
        warnings.warn(
            f"Column(s) {columns} had no value in any row, and nothing was learned about them. Leave them out.",
            RuntimeWarning,
            stacklevel=3,
        )

    def fit_source(self, source: Source, d: int) -> Self:
        """Fit the model to the rows of a source, which need not be in memory.

        A linear model takes one pass, a nonlinear one makes passes until it converges.

        Parameters
        ----------
        source : kalprox.sources.Source
        d : int
            The number of columns of X.

        Returns
        -------
        self : KalproxRegressor

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> source = ArraySource(X, X @ [1.0, 2.0], None, block_rows=2)
        >>> KalproxRegressor(penalty=None).fit_source(source, 2).coef_.round(8)
        array([1., 2.])
        """
        with self._lock:
            learner = Learner(self._checked_settings())
            if not hasattr(source, "fold"):
                raise TypeError(
                    "source must have a method fold, such as a kalprox.sources.ArraySource; got "
                    f"{type(source).__name__}. To fit arrays or frames, use fit."
                )
            learner.fit(source)
            self.n_features_in_, self._table = d, None
            return self._keep(learner)

    def _fit_on_engine(self, X: Any, y: Any, given: Given) -> Self:
        """Fit on an engine; the sums are those of one machine, up to rounding."""
        from kalprox import engines

        settings = self._checked_settings()
        check_offset(settings, given)
        if given.times is not None:
            raise ValueError("times need rows in memory, in their order, and engine=None; or kalprox fit.")
        if self.missing != "raise" and not is_collection(y) and any_missing(y):
            raise ValueError("Targets are missing, which needs engine=None: leave out these rows, or the engine.")
        if given.clusters is None and settings.coef_cov == "clustered":
            raise ValueError(NEEDS_GROUPS)
        if len(getattr(y, "shape", ())) == 2:
            check(settings, way="targets")
        weights, *others = given[:4]
        partitions, names, d = partition_collection(X, y, weights, *others, labels=self._has_labels)
        quarantine = Quarantine(max_bad="100%" if self.missing == "drop" else None)
        with engines.open(self.engine or engines.engine_of(X)) as engine:
            source = engines.EngineSource(engine, partitions, quarantine=quarantine, groups=given.clusters)
            self._fit_partitions(source, d)
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def _fit_partitions(self, source: Source, d: int) -> None:
        """Fit to the rows of partitions on an engine, which have d features."""
        self.fit_source(source, d)

    def _fit_formula(self, X: Any, y: Any, given: Given) -> Self:
        """Fit the model to a frame. A name of a column is one that later frames need to have, too."""
        from kalprox.jobs.model import TableModel
        from kalprox.sources.formula import formula_names, infer_formula_of_table
        from kalprox.sources.inference import values_of_classes

        if frame_kind(X) is None:
            raise TypeError(
                f"With a formula, X must be a frame, such as one of pandas, polars or pyarrow; got {type(X).__name__}."
            )
        if not self.fit_intercept:
            raise ValueError(
                "fit_intercept must be True with a formula: leave the intercept out by 0 + in the formula."
            )
        roles: dict[str, Any] = {
            role: value for role, value in zip(_ROLES, given[:5], strict=True) if isinstance(value, str)
        }
        formula, names = str(self.formula), column_names(X)
        needed = [*formula_names(formula), *roles.values()]
        table = as_arrow(X, list(dict.fromkeys(needed)))
        if formula.lstrip().startswith("~"):
            table, target = _with_target(table, y, names)
            formula = f"`{target}` {formula}"
        elif y is not None:
            raise ValueError(f"The target is given by the formula, {formula!r}, and by y: leave out one of them.")
        columns = infer_formula_of_table(formula, table, classes=self._target_classes(), **roles)
        encoded = encode(columns, table)
        bad, good = check_encoded(encoded, drop=self.missing == "drop")
        arrays = Given(*(None if isinstance(value, str) else value for value in given))
        codes, arrays = of_good_rows(encoded, None, arrays, good)
        known = None
        if columns.classes:
            known = values_of_classes(columns.classes, table.schema.field(columns.left[0]).type)
        labels = codes if known is None else labels_of_targets(codes, known)
        self._new_columns = columns
        try:
            with self._targets(labels, arrays, known) as (targets, arrays):
                self._fit_rows(encoded.X[good], targets, arrays)
        finally:
            del self._new_columns
        self._learner.n_rejected += len(bad)
        block = Block(encoded.X[good], codes, arrays.weights, len(good), bad, notes=encoded.notes)
        self._table = TableModel(self._learner, columns).with_rows(block)
        self._frame_kind = frame_kind(X)
        self.feature_names_in_ = np.array(columns.names, dtype=object)
        return self

    def _learner_parameters(self) -> dict[str, Any]:
        """Return the parameters of `Settings.of`; a formula says whether there is an intercept, and its groups."""
        found = super()._learner_parameters()
        if self.formula is None:
            return found
        columns: Any = self._new_columns or (self._table and self._table.columns)
        if columns is not None:
            found["fit_intercept"] = columns.intercept
            given = penalty_of(None if found["penalty"] == "default" else found["penalty"])
            if (penalty := given.for_terms(columns.groups)) is not given:
                found["penalty"] = penalty
        return found

    def _target_classes(self) -> "TargetClasses | None":
        """Return how the classes of a target are found; None for targets that are numbers."""
        return None

    def path(
        self,
        alphas: Any = None,
        *,
        X: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
        times: Any = None,
    ) -> Path:
        """Return the solutions for a grid of alphas.

        A linear model with the Gaussian likelihood knows all about its rows: the path needs no pass over the data, and
        O(d^3) per alpha. Other models, such as classes, counts and nonlinear links, need the rows again. For each
        alpha, from the largest to the smallest, passes over the rows are made until the minimiser is reached, beginning
        at that of the alpha before: two to five passes as a rule. The model itself does not change.

        Parameters
        ----------
        alphas : array-like, optional
            The default is a grid in the scale of the data.
        X, y, sample_weight, offset, exposure, times
            All rows that the model has learned, see `fit`, if the model needs them; not for linear models with the
            Gaussian likelihood.

        Returns
        -------
        Path
            A named tuple of arrays: `alphas`, `coef`, `intercept`, `edf` (effective degrees of freedom without the
            intercept), and `score` (log evidence for ridge if no rows are needed, otherwise -BIC/2; higher is better).
            `path.plot()` draws it. `path.converged` says for which alphas the minimiser was reached.

        Examples
        --------
        >>> import numpy as np
        >>> from kalprox import KalproxRegressor
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> path = KalproxRegressor(penalty="l1").fit(X, X @ [1.0, 2.0]).path([1e5, 1e-3])
        >>> path.coef.round(3), path.edf
        (array([[0., 0.],
               [1., 2.]]), array([0., 2.]))
        >>> y = np.array([0.0, 1.0, 1.0, 3.0, 4.0, 9.0])
        >>> model = KalproxRegressor(likelihood="poisson").fit(X / 100, y)
        >>> model.path([10.0, 0.1], X=X / 100, y=y).coef.round(3)
        array([[0.392, 0.462],
               [0.806, 1.438]])
        """
        with self._lock:
            X, learner, source = as_frame(X), self._fitted.copy(), None
            of_table = X is not None and self._is_raw(X)
            if (X is None) is not (y is None) and not (y is None and of_table):
                raise ValueError("path needs both X and y, or neither of them.")
            if X is not None:
                given, model = Given(sample_weight, None, offset, exposure, times), copy(self)
                with model._targets(y, given, vars(self).get("classes_"), of_table=of_table) as (y, given):
                    source = model._source(X, y, given, learner.settings, reset=False)[0]
        path = learner.path(alphas, source)
        names, classes = self._coef_names(learner.belief), self._class_names()
        coef, intercept = self._shown(path.coef, 1), self._shown(path.intercept, 1)
        if path.converged is not None and not path.converged.all():
            failed = ", ".join(map(plain_number, path.alphas[~path.converged]))
            warnings.warn(
                f"The path did not reach the minimiser for alpha = {failed}. Increase max_passes, or leave out alphas "
                "so small that they do not determine the coefficients.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return path._replace(coef=coef, intercept=intercept).about(**vars(path) | {"names": names, "classes": classes})

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the R2 of the predictions for rows of X, or the accuracy of a classifier.

        Parameters
        ----------
        X : array-like of shape (n, d), or a frame
        y : array-like of shape (n,), or (n, k)
            May be left out if X is a frame that has the target of the formula.
        sample_weight : array-like of shape (n,), optional

        Returns
        -------
        float

        Examples
        --------
        >>> import pandas as pd
        >>> from kalprox import KalproxRegressor
        >>> data = pd.DataFrame({"y": [1.0, 3.0, 5.0, 7.0], "x": [0.0, 1.0, 2.0, 3.0]})
        >>> round(KalproxRegressor("y ~ x").fit(data).score(data), 6)
        1.0
        """
        if y is None and self._table is not None:
            if str(self.formula).lstrip().startswith("~"):
                raise ValueError(f"y must be given to score: the formula, {self.formula!r}, has no target.")
            X = as_frame(X)
            encoded = self._encoder("weight", "cluster", "time").encode(X)
            y = encoded.y
            if self._table.columns.classes:
                y = labels_of_targets(y, vars(self)["classes_"])
        found: float = super().score(X, y, sample_weight)
        return found


def _with_target(table: Any, y: Any, names: list[str]) -> tuple[Any, str]:
    """Return a table with the targets of a formula that has none, and the name of their column."""
    import pyarrow as pa

    if y is None:
        raise ValueError("The formula has no target: give y to fit, or name a column before the ~ of the formula.")
    values = np.asarray(y)
    if values.shape != (len(table),):
        raise ValueError(f"y must have shape ({len(table)},), one target per row of the frame; got {values.shape}.")
    target = next(name for name in ("y", "target", *(f"y{i}" for i in range(len(names) + 1))) if name not in names)
    try:
        column = pa.array(values.tolist())
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        kinds = ", ".join(sorted({type(one).__name__ for one in values.tolist()}))
        raise TypeError(f"y must hold numbers, or text or booleans for classes; it holds {kinds}.") from error
    return table.append_column(target, column), target


def _warn_of_unused_parameters(learner: Learner) -> None:
    """Warn if no row depends on some parameters of a function, as where `start` has more entries than it uses."""
    if learner.settings.function is None:
        return
    determined = learner.belief.determined(penalised=True)
    if not determined.all():
        named = learner.settings.coef_names((), len(determined))
        names = ", ".join(name for name, one in zip(named, determined, strict=True) if not one)
        warnings.warn(
            f"The rows do not determine {names} of the function: its std is infinite. "
            "Give `start` as many entries as the function uses, or rows that depend on all of them, or set a penalty.",
            RuntimeWarning,
            stacklevel=3,
        )
