"""KalproxRegressor: batch and streaming regression with uncertainty, as a scikit-learn estimator."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.files import Files
from kalprox.estimators.formulas import Formulas
from kalprox.estimators.outliers import FindingOutliers
from kalprox.estimators.paths import Paths
from kalprox.estimators.readings import Readings
from kalprox.estimators.showing import Showing
from kalprox.forgetting import Forgetting
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.likelihoods.names import likelihood_of

__all__ = ["KalproxRegressor"]


class KalproxRegressor(Formulas, Paths, FindingOutliers, Readings, Showing, Files, RegressorMixin, LearnerEstimator):
    """Regularised regression, in batch or streaming, with standard errors and predictive intervals.

    The estimator minimises

        sum_k 1/2 w_k (y_k - link(x_k' coef + intercept))^2 + alpha * penalty(coef),

    or the sum of another loss, see `likelihood`. The intercept is not penalised. With the identity link and the
    Gaussian likelihood the result is exact for the rows seen so far, for any batches in any order. `partial_fit` costs
    O(d^2) per row; the first access to `coef_` or the first prediction after it costs O(d^3). All computations are in
    float64.

    Parameters
    ----------
    link : {"identity", "sigmoid", "tanh", "softplus", "exp", "arctan"} or callable
        The link, by its name in `kalprox.models.LINKS`, or a JAX function fn(theta, x) of one row, which is then the
        whole model: it has no intercept, `coef_` is theta, and `start` must be given; tables name its parameters by its
        attribute `parameter_names`, if it has one. For every link but the identity, `fit` makes passes over the rows
        until it reaches a stationary point, and `partial_fit` learns in one pass, with a weak prior on the scale of the
        linear predictor.
    penalty : {"default", "ridge", "l1", "elasticnet", "smooth_l1", "group", "box"}, Regularizer or None
        The penalty that alpha multiplies: "ridge" is 1/2 ||coef||^2; "l1" is ||coef||_1; "elasticnet" is
        l1_ratio ||coef||_1 + (1 - l1_ratio)/2 ||coef||^2; "smooth_l1" is sum(sqrt(1 + coef^2/delta^2) - 1); "group" is
        the sum over groups of sqrt(size) ||coef_g||. "box" keeps the coefficients between `bounds`, and alpha has no
        effect on it. A regulariser of `kalprox.regularizers` has its own weights, and alpha must then be 1. "default"
        is "ridge" for a named link, and None, no penalty, if `link` is a function, whose theta has units of its own.
    alpha : float or "auto"
        The weight of the penalty. It is the alpha of scikit-learn's Ridge, and n times the alpha of its Lasso and
        ElasticNet, which divide the sum of squares by n. "auto" chooses alpha, for linear models only, and for each
        column of y its own; for counts see `KalproxClassifier`. For ridge it maximises the evidence, times a weak prior
        (the share of the variance of y that X explains is uniform) if there are no more rows than coefficients, or if
        otherwise all or nothing would be taken for noise. For other penalties it minimises the errors of five-fold
        cross-validation, from sums of the rows in folds: alpha is c sqrt(n), and rows one after the other, an eighth of
        those before them, are put into the same fold.
    l1_ratio : float
        The share of the L1 norm in "elasticnet", between 0 and 1.
    delta : float
        The width over which "smooth_l1" is rounded.
    groups : sequence of int
        For "group": one integer label per feature, -1 for a feature that is not penalised.
    bounds : pair
        For "box": the lower and the upper bound of `coef_`, each a number or an array with one number per feature.
        They are in the units of X, whatever `standardize` is.
    noise : "learn", "inputs" or float
        The noise variance. With "learn" it is estimated as the residual sum of squares divided by the residual degrees
        of freedom, and intervals are those of Student's t distribution. If there are no more rows than coefficients,
        that needs penalty="ridge" and alpha="auto", whose evidence determines the noise too (intervals of coefficients
        then cover on average over the coefficients); other intervals are NaN or in doubt there, and `predict_interval`
        warns. With "inputs" the variance differs from row to row: its logarithm is a linear function of the inputs and
        of the predicted mean, which is learned too, and the rows are weighted accordingly; `noise_var_` is then the
        variance at the mean of the inputs. Linear models only.
    fit_intercept : bool
        Whether to fit an intercept. It is never penalised.
    standardize : bool
        Whether to penalise the coefficients as if the columns of X had been standardised; `coef_` stays in the units of
        X. With a nonlinear link only `fit` supports it.
    forget : float, "auto", or an object of kalprox.forgetting
        The forgetting factor, in (0, 1]: every new row multiplies the weights of all earlier rows by it. 1 means no
        forgetting. Other kinds: `ByTime(half_life)`, for rows that have `times`; for linear models with the Gaussian
        likelihood also `Window(rows)` and `RandomWalk(q)`. See `kalprox.forgetting`.
        "auto" runs several ways to forget side by side (none, four factors, and an intercept that walks with three
        sizes of steps) and mixes them by how well each has predicted; it takes the time of all of them. Predictions,
        their intervals and their score are those of the mixture. `coef_` and `noise_var_` are its means, standard
        errors and `covariance_` those of the mixture by the law of total variance, and `coef_interval` is Student's t
        with these moments; `sample` draws from the mixture; `alpha_` is that of the way with the largest weight.
        Several targets have weights of their own. See `forget_weights_`.
    block_size : int or "auto"
        The number of rows processed at a time where X is sparse or the link nonlinear; "auto" takes 32 MiB.
    likelihood : Likelihood or str
        The distribution of y, whose loss takes the place of the square: a name, or an object of `kalprox.likelihoods`
        with parameters of its own. "huber", "student" and "contaminated" bound the influence of outliers, see
        `outliers`: "huber" is the safest, and "contaminated" leaves them out altogether. Their scale is learned. For
        counts, exp of the linear predictor is the mean: "poisson"; "negative-binomial", whose dispersion is learned;
        and "quasi-poisson", which learns by how much the variance exceeds the mean, as `noise_var_`. As with a
        nonlinear link, `fit` makes several passes, and `partial_fit` learns in one. For classes, use
        `KalproxClassifier`.
    weights : {"frequency", "precision"}
        What `sample_weight` means. "frequency": how often each row counts, so that a row of weight 2 equals two equal
        rows, also in the degrees of freedom. "precision": 1 / sigma^2 of the noise of each row, up to a common factor;
        the degrees of freedom are counted from the number of rows (of positive weight), and `noise_var_` is the noise
        variance of a row of weight 1. The results are those of weighted least squares; alpha is relative to the
        weights, as the objective says. Classes and counts have no noise variance: there a precision is how much a row
        counts for, without being more than one row, and the standard errors are robust ones unless `coef_cov` says
        otherwise.
    max_passes : int
        The maximum number of passes of `fit` over the rows, with a nonlinear link.
    tol : float
        With a nonlinear link, `fit` stops when a step changes theta by less than this, relative to its size.
    on_bad_rows : {"raise", "skip"}
        What to do with rows that have NaN, infinity or a value above 1e70 in size, whose powers would overflow, in X or
        y, or such a value times the square root of the row's weight: raise an error, or skip them and count them in
        `n_rows_rejected_`.
    start : array of shape (d,) or (1 + d,), optional
        Where the search starts: theta for a function, (intercept, coef) for a nonlinear link.
    diagnose : bool
        Whether every row is predicted before it is learned, to keep the prequential score in `diagnostics_` and the
        quantiles of conformal intervals. `fit` predicts rows in their order; with a nonlinear link, or on an engine,
        `fit` does not judge its rows. While leverage matters, each row is predicted from all rows before it. Later, a
        piece of a batch is predicted by the belief before it, and a row never by a belief that lacks more than half of
        the rows before it. The score does not depend on how the rows are cut into batches, up to 1e-3.
    coef_cov : {"auto", "model", "robust", "clustered"}
        What the standard errors of the coefficients assume. "auto": "clustered" if clusters (`groups`) are given, else
        "model", and "robust" for classes and counts with weights="precision". "model": independent rows with equal
        noise. "robust": the variance of the noise may differ from row to row (a sandwich covariance, which statsmodels
        calls HC3; in a stream, of the errors of predictions). "clustered": rows may depend on each other within
        clusters, which are the batches given to `partial_fit`, or the `groups` given to `fit` and `partial_fit`;
        intervals use Student's t with clusters - 1 degrees of freedom. Clusters that are given are never ignored: with
        "model" and "robust" they raise an error. Predictions are not affected.
    targets : {"range", "any"}
        Whether y must lie in the range of the link, up to noise. With "range" an error names the targets that do not: a
        target that lies outside by more than the largest of as many normal errors as there are rows, or all targets if
        their mean lies outside by more than the error of a mean. The standard deviation of the noise is the one given,
        or that of y, which is at least as large; targets with noise about the link are refused with a probability of
        0.001 at most. With "any" every target is learned.
    missing : {"raise", "impute", "marginalize"}
        What to do with missing features, NaN in X. "raise": they are bad values; see `on_bad_rows`. "impute": a missing
        feature is replaced by the mean of its column, as known from the rows before (the first batch, and `fit`: of the
        batch itself), and learned as if it were known. "marginalize": it is replaced by its mean given the other
        features of its row, under the running mean and covariance of the features. What is left open, coef' Cov coef,
        is added to the predictive variance, and the row is learned with the precision of that larger variance. It needs
        link="identity", likelihood="gaussian" and one target.
        Both assume that features are missing independently of the target, given the features that are there (missing at
        random, with the target not among what missingness depends on), and "impute" that they are missing completely at
        random. `diagnostics_` tests it, and its verdict is "informative missingness" if the rows contradict it.
        `n_rows_with_gaps_` counts the rows that were learned with gaps.
    missing_targets : {"raise", "skip"}
        What to do with missing targets, NaN in y. "raise": they are bad values; see `on_bad_rows`. "skip": such a row
        is counted in `n_rows_unlabelled_` and not learned. `prequential` predicts it, and `partial_fit` holds it for
        `learn_late` if it has a key.
    max_pending : int
        The largest number of rows that are held until their target comes. Then the oldest is dropped, and counted in
        `n_rows_dropped_`.
    change_points : bool or float
        Whether to look for change points, where the past stops applying: `change_points_` lists them. A number is the
        expected number of rows from one to the next, 1,000 for True; if nothing changes, one is reported at most once
        in 99 times as many rows, on average, and more often where errors are correlated or skewed. For a linear model
        with at most 64 columns a change of any coefficient and of the noise is found; for others, what shows in the
        level or the spread of the residuals. What the model learns does not depend on it: to forget the past, see
        `forget`. It needs rows in an order, of one target.
    structure : None, "diagonal", or an object of kalprox.structures
        For many columns, about 10^4 to 10^6: what is kept of the information about the coefficients, instead of a
        matrix of d x d numbers: its diagonal, or with `LowRank(20)` also 20 directions. `fit` still finds the
        coefficients of the objective, by conjugate gradients that stop by `tol`, and a sparse X stays sparse.
        `coef_std_` and the standard deviations of predictions come from the structure: predictions are usually within a
        few per cent of exact, and standard errors of coefficients may be too small, which a warning says. `partial_fit`
        needs one number per row, penalty "ridge" or None, and forget=1. Not with alpha="auto", several targets,
        missing="marginalize", and robust or clustered standard errors.
    engine : optional
        Where `fit` folds the rows. None is this process. Otherwise give "local" (threads), "processes", "dask",
        "spark", the address of a Dask scheduler, a `distributed.Client` or a `SparkSession`. X and y may be Dask
        arrays, a Dask dataframe and series, or a Spark frame and the name of its target column. With engine None their
        own client or session folds such collections, and `predict` of them is lazy. The engine is not saved with the
        model.

    Attributes
    ----------
    n_features_in_ : int
        The number d of columns of X.
    feature_names_in_ : array of str, shape (d,)
        The names of the columns of X; only if X was a frame whose columns have names.

    Notes
    -----
    The other fitted attributes (`coef_`, `coef_std_`, `noise_var_`, `diagnostics_` and so on) are properties, described
    below. `get_params`, `set_params` and `score` are those of every scikit-learn regressor. `diagnostics_.verdict()`
    states in words whether the predictive intervals can be trusted. Notebooks show a fitted model with its rows, noise,
    verdict and first coefficients; `plot`, `path().plot` and `diagnostics_.plot` draw it.

    Several threads may use one estimator. Learning (`fit`, `partial_fit`, `prequential`, `merge`) is done by one thread
    at a time, in the order in which they come, and no row is lost. Each prediction, attribute and saved file is that of
    one moment, before or after any other call; two of them may see rows that came in between. For several readings of
    one moment, read a copy: `copy.copy(model)`. Changing parameters while another thread learns is not supported.

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

    def __init__(
        self,
        link: str | Callable[..., Any] = "identity",
        penalty: Any = "default",
        alpha: float | str = 1.0,
        *,
        l1_ratio: float = 0.5,
        delta: float = 1.0,
        groups: Any = None,
        bounds: Any = (0.0, np.inf),
        noise: float | str = "learn",
        fit_intercept: bool = True,
        standardize: bool = False,
        forget: float | str | Forgetting = 1.0,
        block_size: int | str = "auto",
        max_passes: int = 200,
        tol: float = 1e-10,
        on_bad_rows: str = "raise",
        start: Any = None,
        diagnose: bool = True,
        coef_cov: str = "auto",
        targets: str = "range",
        engine: Any = None,
        weights: str = "frequency",
        likelihood: Any = "gaussian",
        missing: str = "raise",
        missing_targets: str = "raise",
        max_pending: int = 100_000,
        change_points: bool | float = False,
        structure: Any = None,
    ) -> None:
        self.link = link
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.delta = delta
        self.groups = groups
        self.bounds = bounds
        self.noise = noise
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.forget = forget
        self.block_size = block_size
        self.max_passes = max_passes
        self.tol = tol
        self.on_bad_rows = on_bad_rows
        self.start = start
        self.diagnose = diagnose
        self.coef_cov = coef_cov
        self.targets = targets
        self.engine = engine
        self.weights = weights
        self.likelihood = likelihood
        self.missing = missing
        self.missing_targets = missing_targets
        self.max_pending = max_pending
        self.change_points = change_points
        self.structure = structure

    def _checked_settings(self) -> Settings:
        settings = super()._checked_settings()
        check(settings, way="numbers")
        return settings

    def __sklearn_tags__(self) -> Any:
        linear = isinstance(self.link, str) and self.link == "identity"
        tags, loss = super().__sklearn_tags__(), None
        with suppress(ValueError):  # which `fit` will raise
            loss = likelihood_of(self.likelihood)
        known = self.missing == "raise"  # features may be missing in dense rows only
        tags.input_tags.sparse, tags.target_tags.multi_output = known, linear and loss is not None and loss.quadratic
        tags.target_tags.positive_only = loss is not None and loss.support[0] == 0
        tags.input_tags.allow_nan = not known
        tags.regressor_tags.poor_score = not linear or (loss is not None and not loss.location)  # y may not suit them
        return tags
