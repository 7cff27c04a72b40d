"""The regularisation path of an estimator: its coefficients for each weight of the penalty."""

import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from kalprox.base.text import plain_number
from kalprox.estimators.fitting import Fitting
from kalprox.learning.path import Path

__all__ = ["Paths"]


class Paths(Fitting):
    """The method that returns the path."""

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
            learner, source = self._fitted.copy(), None
            if (X is None) is not (y is None):
                raise ValueError("path needs both X and y, or neither of them.")
            if X is not None:
                about = sample_weight, None, offset, exposure, times
                source = self._rows_again(X, y, about, learner.settings)[0]
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
