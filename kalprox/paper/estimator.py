"""PIPGRegressor: the paper's recursion, row by row, as a scikit-learn estimator."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from kalprox.algorithms.base import Algorithm
from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.models import GLM, Linear
from kalprox.paper.pipg import Belief, pipg
from kalprox.paper.run import Diverged, run
from kalprox.regularizers import Zero

_RECORD = 8192  # rows between two records of a run, the same for all batches so that the loop compiles once


class PIPGRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression by the paper's recursion: `kalprox.pipg`, one row after the other, as printed.

    It is here to be compared with. Its estimate converges to the minimiser with n times the regulariser, and its
    covariance counts the curvature of the regulariser twice: without one, a linear model has the posterior covariance,
    and with one the intervals are too narrow. `kalprox.KalproxRegressor` has neither property. A row costs O(d^3).

    Parameters
    ----------
    regularizer : Regularizer, optional
        g, twice differentiable, one of `kalprox.regularizers`; none by default. An intercept is not penalised.
    link : {"identity", "sigmoid", "tanh", "softplus", "exp", "arctan"}
        A key of `kalprox.models.LINKS`.
    noise : float
        The noise variance, 1 / gamma.
    v0 : float or array
        The prior covariance of theta, which is (intercept, coefficients): a number, a diagonal or a matrix.
    q : float or array
        The process noise Q, which is added to the covariance before every row: a number, a diagonal or a matrix.
    fit_intercept : bool
        Whether to fit an intercept. The columns are then centred by the means of the first call, all rows for `fit`,
        and the prior is about the intercept there.

    Attributes
    ----------
    coef_ : array of shape (d,)
    intercept_ : float
    covariance_ : array of shape (d, d)
        Of `coef_`.
    coef_std_ : array of shape (d,)
        The roots of the diagonal of `covariance_`.
    center_ : array of shape (d,)
        What is subtracted from the columns.
    state_ : Belief
        The state of the recursion, as `kalprox.pipg` has it.

    References
    ----------
    O. D. Akyildiz, E. Chouzenoux, V. Elvira, J. Miguez, "A probabilistic incremental proximal gradient method", IEEE
    Signal Processing Letters 26(8), 2019.

    Examples
    --------
    >>> import kalprox as kp
    >>> from kalprox.paper import PIPGRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = 1 + X @ [2.0, -1.0] + 0.5 * rng.normal(size=200)
    >>> model = PIPGRegressor(kp.regularizers.Ridge(1e-3), noise=0.25).fit(X[:100], y[:100])
    >>> model.partial_fit(X[100:], y[100:]).coef_.round(2), model.coef_std_.round(2)
    (array([ 1.97, -0.94]), array([0.04, 0.04]))
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.round(2), std.round(2)
    (array([1.37, 2.16]), array([0.5, 0.5]))
    """

    center_: Array
    state_: Belief

    def __init__(
        self,
        regularizer: Any = None,
        *,
        link: str = "identity",
        noise: float = 1.0,
        v0: Any = 1.0,
        q: Any = 0.0,
        fit_intercept: bool = True,
    ) -> None:
        self.regularizer = regularizer
        self.link = link
        self.noise = noise
        self.v0 = v0
        self.q = q
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any) -> Self:
        """Learn all rows in their order, and forget what was learned before.

        Parameters
        ----------
        X : array of shape (n, d)
        y : array of shape (n,)

        Returns
        -------
        PIPGRegressor
        """
        return self._learn(X, y, first=True)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn more rows, in their order.

        Parameters
        ----------
        X : array of shape (n, d)
        y : array of shape (n,)

        Returns
        -------
        PIPGRegressor
        """
        return self._learn(X, y, first=not hasattr(self, "state_"))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the predicted means, and with `return_std` their standard deviations, noise included.

        Parameters
        ----------
        X : array of shape (n, d)
        return_std : bool

        Returns
        -------
        mean : array of shape (n,)
        std : array of shape (n,)
            Only if `return_std`.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        found = self._recursion().predict(self.state_, self._inputs(X, self.center_))
        return (found.mean, found.std) if return_std else found.mean

    def _learn(self, X: Any, y: Any, first: bool) -> Self:
        X, y = validate_data(self, X, y, reset=first, dtype=np.float64, y_numeric=True)
        check_positive("noise", self.noise)
        center = self.center_ if not first else X.mean(axis=0) if self.fit_intercept else np.zeros(X.shape[1])
        alg, inputs = self._recursion(), self._inputs(X, center)
        before = alg.init(np.zeros(inputs.shape[1]), self.v0) if first else self.state_
        try:
            after = run(alg, before, inputs, np.asarray(y, np.float64), record_every=_RECORD).state
        except Diverged:
            after = None
        if after is None or not np.isfinite(after.cov()).all():
            raise FloatingPointError(
                "The recursion diverged: its estimate or covariance is no longer finite after these rows. Raise noise, "
                "lower v0 or the weight of the regularizer, or scale the columns of X."
            )
        self.state_, self.center_ = after, center
        self.intercept_ = float(after.mean[0] - after.mean[1:] @ center) if self.fit_intercept else 0.0
        return self

    def _recursion(self) -> Algorithm:
        g = Zero() if self.regularizer is None else self.regularizer
        g = g.with_free_intercept(self.n_features_in_) if self.fit_intercept else g
        return pipg(Linear() if self.link == "identity" else GLM(self.link), g, gamma=1 / self.noise, q=self.q)

    def _inputs(self, X: Array, center: Array) -> Array:
        return np.column_stack([np.ones(len(X)), X - center]) if self.fit_intercept else X

    @property
    def coef_(self) -> Array:
        """The coefficients."""
        check_is_fitted(self, "state_")
        return np.asarray(self.state_.mean)[int(self.fit_intercept) :]

    @property
    def covariance_(self) -> Array:
        """The covariance of the coefficients; with a regulariser, the metric of the recursion."""
        check_is_fitted(self, "state_")
        return np.asarray(self.state_.cov())[int(self.fit_intercept) :, int(self.fit_intercept) :]

    @property
    def coef_std_(self) -> Array:
        """The standard errors of the coefficients."""
        return np.sqrt(np.diagonal(self.covariance_))
