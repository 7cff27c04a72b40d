"""KalproxRegressor: batch and streaming regression with uncertainty, as a scikit-learn estimator."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

from sklearn.base import RegressorMixin

from kalprox.estimators.base import LearnerEstimator
from kalprox.estimators.files import Files
from kalprox.estimators.fitting import Fitting
from kalprox.estimators.predicting import Predicting
from kalprox.estimators.readings import Readings
from kalprox.estimators.renamed import says_new_names
from kalprox.forgetting import Forgetting
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.likelihoods.names import likelihood_of

__all__ = ["KalproxRegressor"]


@says_new_names
@dataclass(eq=False, repr=False)
class KalproxRegressor(Fitting, Predicting, Readings, Files, RegressorMixin, LearnerEstimator):
    """Regularised regression, in batch or streaming, with standard errors and predictive intervals.

    The estimator minimises

        sum_k 1/2 w_k (y_k - link(x_k' coef + intercept))^2 + alpha * penalty(coef),

    or the sum of another loss, see `likelihood`. The intercept is not penalised. With the identity link and the
    Gaussian likelihood the result is exact for the rows seen so far, for any batches in any order. `partial_fit` costs
    O(d^2) per row; the first access to `coef_` or the first prediction after it costs O(d^3). All computations are in
    float64.

    Parameters
    ----------
    formula : str, optional
        The target and the terms of a frame, such as "y ~ x + C(g) + a:b", in the syntax of formulaic: `fit` then takes
        a frame, and so do `predict` and `partial_fit` after it. Without a target, "~ x + C(g)", it is the y of `fit`.
        The intercept is that of the formula: 0 + leaves it out. Needs `pip install "kalprox[formula]"`.
    likelihood : Likelihood or str
        The distribution of y, whose loss takes the place of the square: a name, or an object of `kalprox.likelihoods`
        with parameters of its own. "huber", "student" and "contaminated" bound the influence of outliers, see
        `outliers`: "huber" is the safest, and "contaminated" leaves them out altogether. Their scale is learned. For
        counts, exp of the linear predictor is the mean: "poisson"; "negative-binomial", whose dispersion is learned;
        and "quasi-poisson", which learns by how much the variance exceeds the mean, as `noise_var_`. For positive
        amounts "gamma", whose std is a share of the mean; for counts of successes
        `kalprox.likelihoods.Binomial(trials)`, or shares and numbers of trials as weights. As with a nonlinear link,
        `fit` makes several passes, and `partial_fit` learns in one. For classes, use `KalproxClassifier`.
    link : {"identity", "sigmoid", "tanh", "softplus", "exp", "arctan"}
        The link, by its name in `kalprox.models.LINKS`. For every link but the identity, `fit` makes passes over the
        rows until it reaches a stationary point, and `partial_fit` learns in one pass, with a weak prior on the scale
        of the linear predictor. Targets far outside the range of the link are an error, unless the likelihood is
        `kalprox.likelihoods.Gaussian(targets="any")`.
    function : callable, optional
        A JAX function fn(theta, x) of one row, which is then the whole model: it has no link and no intercept, `coef_`
        is theta, and `start` must be given. Tables name its parameters by its attribute `parameter_names`, if it has
        one.
    start : array of shape (d,) or (1 + d,), optional
        Where the search starts: theta for a function, (intercept, coef) for a nonlinear link.
    penalty : None, a name, or an object of kalprox.penalties or kalprox.regularizers
        The penalty that alpha multiplies: "ridge" is 1/2 ||coef||^2; "l1" is ||coef||_1; "elasticnet" and "smooth_l1"
        are in between, and round the kink; "group" sets groups of coefficients to zero jointly; "box" keeps them
        between bounds, and alpha has no effect on it. The parameters of a penalty are those of its object, such as
        `kalprox.penalties.ElasticNet(l1_ratio=0.2)`, `.Group(labels)` or `.Box(low, high)`. A regulariser of
        `kalprox.regularizers` has its own weights, and alpha must then be 1. "default" is no penalty for numbers, and
        "ridge" for counts, with a `structure`, or if an alpha is given.
    alpha : float, "auto" or None
        The weight of the penalty; None is 1. It is the alpha of scikit-learn's Ridge, and n times the alpha of
        its Lasso and ElasticNet, which divide the sum of squares by n. "auto" chooses alpha, for linear models
        only, and for each column of y its own; for counts see `KalproxClassifier`. For ridge it maximises the
        evidence, times a weak prior (the share of the variance of y that X explains is uniform) if there are no
        more rows than coefficients, or if otherwise all or nothing would be taken for noise. For other
        penalties it minimises the errors of five-fold cross-validation, from sums of the rows in folds: alpha
        is c sqrt(n), and rows one after the other, an eighth of those before them, are put into the same fold.
    fit_intercept : bool
        Whether to fit an intercept. It is never penalised.
    standardize : bool
        Whether to penalise the coefficients as if the columns of X had been standardised; `coef_` stays in the units of
        X. With a nonlinear link only `fit` supports it.
    noise : "learn", "inputs" or float
        The noise variance. With "learn" it is estimated as the residual sum of squares divided by the residual degrees
        of freedom, and intervals are those of Student's t distribution. If there are no more rows than coefficients,
        that needs penalty="ridge" and alpha="auto", whose evidence determines the noise too (intervals of coefficients
        then cover on average over the coefficients); other intervals are NaN or in doubt there, and `predict_interval`
        warns. With "inputs" the variance differs from row to row: its logarithm is a linear function of the inputs and
        of the predicted mean, which is learned too, and the rows are weighted accordingly; `noise_var_` is then the
        variance at the mean of the inputs. Linear models only.
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
    coef_cov : {"auto", "model", "robust", "clustered"}
        What the standard errors of the coefficients assume. "auto": "clustered" if `clusters` are given, else
        "model", and "robust" for classes and counts with weight_kind="precision". "model": independent rows with equal
        noise. "robust": the variance of the noise may differ from row to row (a sandwich covariance, which statsmodels
        calls HC3; in a stream, of the errors of predictions). "clustered": rows may depend on each other within
        clusters, which are the batches given to `partial_fit`, or the `clusters` given to `fit` and `partial_fit`;
        intervals use Student's t with clusters - 1 degrees of freedom. Clusters that are given are never ignored: with
        "model" and "robust" they raise an error. Predictions are not affected.
    weight_kind : {"frequency", "precision"}
        What `sample_weight` means. "frequency": how often each row counts, so that a row of weight 2 equals two equal
        rows, also in the degrees of freedom. "precision": 1 / sigma^2 of the noise of each row, up to a common factor;
        the degrees of freedom are counted from the number of rows (of positive weight), and `noise_var_` is the noise
        variance of a row of weight 1. The results are those of weighted least squares; alpha is relative to the
        weights, as the objective says. Classes and counts have no noise variance: there a precision is how much a row
        counts for, without being more than one row, and the standard errors are robust ones unless `coef_cov` says
        otherwise.
    missing : {"raise", "drop", "impute", "marginalize"}
        What to do with missing values. "raise": NaN, infinity, and values above 1e70 in size, whose powers would
        overflow, are an error, in X, in y and times the square root of the row's weight. "drop": rows with such a value
        in X are left out, and counted in `n_rows_rejected_`. "impute": a missing
        feature is replaced by the mean of its column, as known from the rows before (the first batch, and `fit`: of the
        batch itself), and learned as if it were known. "marginalize": it is replaced by its mean given the other
        features of its row, under the running mean and covariance of the features. What is left open, coef' Cov coef,
        is added to the predictive variance, and the row is learned with the precision of that larger variance. It needs
        link="identity", likelihood="gaussian" and one target.
        Both assume that features are missing independently of the target, given the features that are there (missing at
        random, with the target not among what missingness depends on), and "impute" that they are missing completely at
        random. `diagnostics_` tests it, and its verdict is "informative missingness" if the rows contradict it.
        `n_rows_with_gaps_` counts the rows that were learned with gaps.
        With all but "raise", a row whose target is NaN is counted in `n_rows_unlabelled_` and not learned.
        `prequential` predicts it. For targets that come later see `learn_late`.
    change_points : bool or float
        Whether to look for change points, where the past stops applying: `change_points_` lists them. A number is the
        expected number of rows from one to the next, 1,000 for True; if nothing changes, one is reported at most once
        in 99 times as many rows, on average, if errors are independent, symmetric and equally spread, with heavy tails
        or not. Of others more are reported: about 4 times as many with exponential errors, with AR(.5) ones or with a
        spread that follows an input, 15 times with log-normal ones. For a linear model with at most 64 columns a change
        of any coefficient and of the noise is found; for others, what shows in the level or the spread of the
        residuals. What the model learns does not depend on it: to forget the past, see `forget`. It needs rows in an
        order, of one target.
    diagnose : bool
        Whether every row is predicted before it is learned, to keep the prequential score in `diagnostics_` and the
        quantiles of conformal intervals. `fit` predicts rows in their order; with a nonlinear link, or on an engine,
        `fit` does not judge its rows. While leverage matters, each row is predicted from all rows before it. Later, a
        piece of a batch is predicted by the belief before it, and a row never by a belief that lacks more than half of
        the rows before it. The score does not depend on how the rows are cut into batches, up to 1e-3.
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
    max_passes : int
        The maximum number of passes of `fit` over the rows, with a nonlinear link.
    tol : float
        With a nonlinear link, `fit` stops when a step changes theta by less than this, relative to its size.

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
    >>> import numpy as np
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

    formula: str | None = None
    _: KW_ONLY
    likelihood: Any = "gaussian"
    link: str = "identity"
    function: Callable[..., Any] | None = None
    start: Any = None
    penalty: Any = "default"
    alpha: float | str | None = None
    fit_intercept: bool = True
    standardize: bool = False
    noise: float | str = "learn"
    forget: float | str | Forgetting = 1.0
    coef_cov: str = "auto"
    weight_kind: str = "frequency"
    missing: str = "raise"
    change_points: bool | float = False
    diagnose: bool = True
    structure: Any = None
    engine: Any = None
    max_passes: int = 200
    tol: float = 1e-10

    def _checked_settings(self) -> Settings:
        settings = super()._checked_settings()
        check(settings, way="numbers")
        return settings

    def __sklearn_tags__(self) -> Any:
        linear = self.link == "identity" and self.function is None
        tags, loss = super().__sklearn_tags__(), None
        with suppress(ValueError):  # which `fit` will raise
            loss = likelihood_of(self.likelihood)
        several = linear and loss is not None and loss.quadratic and self.missing != "marginalize"
        tags.target_tags.multi_output = several
        tags.target_tags.positive_only = loss is not None and loss.support[0] >= 0
        tags.regressor_tags.poor_score = not linear or (loss is not None and not loss.location)  # y may not suit them
        return tags
