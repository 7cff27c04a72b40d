"""What a fit has found, and how it is shown: coefficients, standard errors, intervals, the noise, and the score."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from kalprox.base.arrays import Array
from kalprox.calibration import Calibration, ChangePoint
from kalprox.display.tables import card, facts, first_rows
from kalprox.display.tables import table as html_table
from kalprox.estimators.base import LearnerEstimator
from kalprox.learning.facts import about_noise, about_penalty, headline
from kalprox.learning.mixed import ForgetWeights, MixedBelief
from kalprox.learning.summary import Summary
from kalprox.likelihoods import Likelihood

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Readings(LearnerEstimator):
    """The fitted attributes, and the methods that read the posterior of the coefficients."""

    def coef_interval(self, level: float = 0.95, anytime: bool = False) -> tuple[Array, Array]:
        """Return an interval for each coefficient, which contains the true one with probability `level`.

        For ridge, no penalty and other smooth penalties the interval is that of the posterior, `coef_` and `coef_std_`
        with quantiles of Student's t distribution. With a penalty it covers on average over the coefficients, and less
        for one that is much larger than the others; a warning says so where the penalty moves it far.

        If the penalty has kinks or bounds ("l1", "elasticnet", "group", "box"), it is about the debiased estimate
        coef + (X'X)^-1 X'(y - X coef), which is least squares on all columns, with the noise variance and the degrees
        of freedom of least squares: `coef_` need not lie inside. It covers if there are more rows than columns, and is
        unbounded where the rows alone do not determine a coefficient. With a nonlinear link the model is linearised at
        `coef_`.

        Parameters
        ----------
        level : float
            Strictly between 0 and 1.
        anytime : bool
            Whether the interval may be looked at after every row. If False, the probability is that of one look: with
            400 looks at the 95% interval, the truth is outside at some look in about half of all streams. If True, the
            intervals are a confidence sequence: the probability that any of them, however many, misses the
            coefficient is at most 1 - level. They are always about least squares on all columns, need a linear model
            and forget=1, and assume independent normal noise; a warning says so if the verdict on the rows is
            "correlated". They are narrowest, 1.6 times as wide as those for one look, at about 1,000 rows, 1.8 times as
            wide at 100,000, and mostly unbounded below 40. Where rows depend on each other, give clusters, such as the
            day: what was said of rows then holds for clusters, approximately, with 200 for 1,000 and 12 for 40.

        Returns
        -------
        low, high : arrays shaped like `coef_`

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2))
        >>> y = X @ [1.0, 0.0] + rng.normal(size=400)
        >>> model = KalproxRegressor(penalty="l1", alpha=20.0).fit(X, y)
        >>> low, high = model.coef_interval()
        >>> low.round(2), high.round(2)
        (array([0.88, 0.03]), array([1.06, 0.21]))
        >>> low, high = model.coef_interval(anytime=True)
        >>> low.round(2), high.round(2)
        (array([ 0.82, -0.03]), array([1.11, 0.26]))
        """
        belief = self._with_std
        self._warn_of_looks(belief, anytime=anytime)
        low, high = belief.coef_interval(level, anytime)
        return self._shown(low), self._shown(high)

    def summary(self, level: float = 0.95) -> Summary:
        """Return the coefficients with standard errors, intervals, t and p, and what describes the fit.

        `print(model.summary())` is a table of at most 80 columns; notebooks show it as HTML. A number that is not
        defined, such as p under an L1 penalty, is left out, and a footnote says why.

        Parameters
        ----------
        level : float
            The level of the intervals, strictly between 0 and 1.

        Returns
        -------
        Summary
            Its attributes `coef`, `se`, `t`, `p`, `low`, `high`, `r2` and others are the numbers.

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(50, 2))
        >>> summary = KalproxRegressor(penalty=None).fit(X, X @ [1.0, 0.0] + rng.normal(size=50)).summary()
        >>> summary.t.round(1), summary.p.round(4), round(float(summary.r2), 3)
        (array([ 0.2,  7.9, -0. ]), array([0.8312, 0.    , 0.9831]), 0.576)
        """
        with self._lock:
            learner, table = self._fitted.copy(), self._table
        if table is not None:
            return replace(table, learner=learner).summary(level)
        names, classes = self._coef_names(learner.belief), self._class_names()
        return Summary.of(learner, names, level=level, classes=classes)

    def to_frame(self, level: float = 0.95) -> Any:
        """Return the table of the coefficients as a data frame.

        Parameters
        ----------
        level : float
            The level of the intervals, strictly between 0 and 1.

        Returns
        -------
        DataFrame
            Of polars if the model was fitted to a frame of polars, else of pandas. The columns are name, coef, se,
            t, p, low and high; see `summary`.

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> frame = KalproxRegressor(penalty=None).fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0]).to_frame()
        >>> list(frame.columns)
        ['name', 'coef', 'se', 't', 'p', 'low', 'high']
        """
        return self.summary(level).to_frame("polars" if self._frame_kind == "polars" else "pandas")

    def sample(self, n: int = 1, random_state: Any = None) -> tuple[Array, Array]:
        """Draw coefficients and intercepts from the posterior.

        Parameters
        ----------
        n : int
            The number of draws.
        random_state : int, RandomState or None

        Returns
        -------
        coef : array of shape (n, d) or (n, k, d)
        intercept : array of shape (n,) or (n, k)

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> X = np.arange(12.0).reshape(6, 2) ** 2
        >>> model = KalproxRegressor().fit(X, [0.0, 1.0, 1.0, 3.0, 4.0, 5.0])
        >>> coef, intercept = model.sample(1000, random_state=0)
        >>> coef.shape, intercept.shape
        ((1000, 2), (1000,))
        """
        coef, intercept = self._belief.sample(n, check_random_state(random_state))
        return self._shown(coef, 1), self._shown(intercept, 1)

    @property
    def coef_(self) -> Array:
        """The coefficients, shape (d,), or (k, d) if y has k columns."""
        return self._shown(self._belief.coef)

    @property
    def intercept_(self) -> Any:
        """The intercept: a number, or an array of shape (k,) if y has k columns."""
        return self._shown(self._belief.intercept[()])

    @property
    def coef_std_(self) -> Array:
        """The standard errors of the coefficients, shaped like `coef_`.

        A standard error is infinite if neither the data nor the penalty determine the coefficient; `coef_` is then the
        solution of minimum norm. It is zero if the penalty holds the coefficient at a kink or a bound.

        If the penalty has kinks or bounds, the standard errors are conditional on the coefficients that it selected,
        and ignore how far it pulls them: `coef_` plus or minus two of them is no confidence interval (such intervals of
        level 95% covered 22% to 84%). Use `coef_interval`.

        They are NaN, with a warning, if coef_cov="clustered" has seen fewer than two clusters.
        """
        return self._shown(self._with_std.coef_std)

    @property
    def intercept_std_(self) -> Any:
        """The standard error of the intercept: a number, or an array of shape (k,)."""
        return self._shown(self._with_std.intercept_std[()])

    @property
    def covariance_(self) -> Array:
        """The covariance matrix of the coefficients, shape (d, d), or (k, d, d) if y has k columns."""
        return self._shown(self._with_std.covariance)

    @property
    def noise_var_(self) -> Any:
        """The noise variance, given or learned: a number, or an array of shape (k,)."""
        return np.asarray(self._belief.noise.variance)[()]

    @property
    def noise_dof_(self) -> Any:
        """The residual degrees of freedom of the learned noise variance; infinite if the noise variance is given."""
        return np.asarray(self._belief.noise.dof)[()]

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood, with its parameters as they were given or learned: `likelihood_.scale`, `.dispersion`."""
        found: Likelihood = self._belief.posterior.likelihood
        return found

    @property
    def alpha_(self) -> Any:
        """The weight of the penalty: `alpha`, or the value chosen by alpha="auto", one for each column of y."""
        return self._belief.facts.alpha

    @property
    def converged_(self) -> bool:
        """Whether the estimate is the minimiser (with a nonlinear link, a stationary point).

        False if the fit ended on a plateau of the link or the coefficients ran to infinity; and for a stream with a
        nonlinear link as long as the rows it holds do not determine the coefficients well.
        """
        return bool(self._belief.converged)

    @property
    def n_passes_(self) -> int:
        """The number of passes over the rows that the fit made."""
        return self._belief.n_passes

    @property
    def diagnostics_(self) -> Calibration:
        """The prequential score: the `Calibration` of the predictions that were made of rows before they were learned.

        `diagnostics_.verdict()` states in words what it shows; see `diagnose` for the rows that are predicted.
        """
        with self._lock:
            return self._fitted.score

    @property
    def forget_weights_(self) -> ForgetWeights:
        """The weight of each way to forget along the stream, with forget="auto": rows, names and weights.

        The weights are the probabilities with which the ways to forget are mixed. `forget_weights_.plot()` draws them.
        """
        belief = self._belief
        if not isinstance(belief, MixedBelief):  # an AttributeError, so that hasattr returns False
            raise AttributeError(f"forget_weights_ needs forget='auto'; got forget={self.forget!r}.")
        return belief.forget_weights

    @property
    def change_points_(self) -> list[ChangePoint]:
        """The change points found so far, if `change_points` asks for them; of a long stream the last 100.

        `diagnostics_.changes` has their number, and the probability of another one.
        """
        changes = self.diagnostics_.changes
        if changes is None:  # so that hasattr returns False
            why = self.diagnostics_.not_judged or "set change_points=True before the rows are learned"
            raise AttributeError(f"There are no change points, because they were not looked for: {why}.")
        return list(changes.points)

    @property
    def log_evidence_(self) -> Any:
        """The log evidence log p(y) with the penalty as the prior: a number, or an array of shape (k,).

        It exists for linear models with a ridge penalty, or with a `Quadratic` regulariser of full rank.
        """
        try:
            return self._belief.log_evidence[()]
        except ValueError as error:  # so that hasattr returns False
            raise AttributeError(str(error)) from error

    # ---- shown --------------------------------------------------------------------------------------------

    def _repr_html_inner(self) -> str:
        """Return scikit-learn's diagram and, below it, what was fitted."""
        return str(super()._repr_html_inner()) + self._fitted_html()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Return what notebooks ask for: the text and, unless it is turned off in scikit-learn, the HTML."""
        found: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        return found | {"text/html": found["text/html"] + self._fitted_html()} if "text/html" in found else found

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """Return the fitted attributes for the diagram: without those that take O(d^2) memory, or warn when read.

        scikit-learn would read them all, whenever a notebook shows a model or a pipeline.
        """
        belief = self._belief
        shown = SimpleNamespace(
            alpha_=belief.facts.alpha,
            coef_=belief.coef,
            converged_=belief.converged,
            intercept_=belief.intercept[()],
            n_features_in_=self.n_features_in_,
            n_passes_=belief.n_passes,
            n_rows_seen_=self._fitted.n_rows,
            noise_var_=np.asarray(belief.noise.variance)[()],
        )
        return BaseEstimator._get_fitted_attr_html(shown, doc_link)

    def _fitted_html(self) -> str:
        """Return rows, noise, verdict and the first coefficients as HTML; nothing if the model is not fitted."""
        if not self.__sklearn_is_fitted__():
            return ""
        with self._lock:
            learner, table = self._fitted.copy(), self._table
        belief, names = learner.belief, self._coef_names(learner.belief)
        found = headline(learner, names, None if table is None else table.record.quality)
        values: dict[str, str] = {}
        for line in found.lines:
            values[line.label] = f"{values[line.label]} {line.text}" if line.label in values else line.text
        values["Penalty"] = about_penalty(belief)
        values |= {name.capitalize(): text for name, text in about_noise(belief).items()}
        doubts = {line.label for line in found.doubts}
        with np.errstate(invalid="ignore"):  # an unknown noise times an infinite variance
            coef, std = np.atleast_2d(belief.coef), np.atleast_2d(belief.coef_std)
            intercept, intercept_std = np.atleast_1d(belief.intercept), np.atleast_1d(belief.intercept_std)
        targets = self._target_names()
        labels = [name if len(coef) == 1 else f"{name}, {target}" for target in targets[: len(coef)] for name in names]
        if belief.design.intercept:
            extra = ["intercept" if len(coef) == 1 else f"intercept, {target}" for target in targets[: len(coef)]]
            labels, coef, std = [*extra, *labels], np.append(intercept, coef), np.append(intercept_std, std)
        rows = first_rows(labels, np.ravel(coef), np.ravel(std), more=": summary(), to_frame() and plot()")
        return card("", facts(values, doubts), html_table(("", "coef", "se"), rows))

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        level: float = 0.95,
        top: int | None = None,
        scaled: bool = False,
        anytime: bool = False,
        targets: Sequence[int] | None = None,
    ) -> "Axes":
        """Plot the coefficients with their intervals, those of `coef_interval`. Needs `pip install 'kalprox[report]'`.

        A coefficient without a finite interval, which neither the rows nor the penalty determine, is a ring. Where the
        penalty has kinks or bounds, the intervals are debiased, and a coefficient may lie outside of its own.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made.
        level : float
            The level of the intervals, strictly between 0 and 1.
        top : int, optional
            The number of coefficients shown, those with the largest effects: |coefficient| times the standard deviation
            of the column. By default as many as fit on the axes, and 40 at most.
        scaled : bool
            Whether each coefficient is multiplied by the standard deviation of its column, so that columns in different
            units can be compared.
        anytime : bool
            Whether the intervals may be looked at after every row; see `coef_interval`.
        targets : sequence of int, optional
            The columns of y whose coefficients are shown, 7 at most; by default all.

        Returns
        -------
        Axes

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 3))
        >>> ax = KalproxRegressor().fit(X, X @ [2.0, 0.0, -1.0] + rng.normal(size=200)).plot(level=0.9)
        >>> [label.get_text() for label in ax.get_yticklabels()], ax.get_xlabel()
        (['x0', 'x1', 'x2'], 'coefficient, with 90% intervals')
        """
        from kalprox.display.plots import plot_coefficients

        belief = self._with_std
        self._warn_of_looks(belief, anytime=anytime)
        low, high = belief.coef_interval(level, anytime)
        k = len(belief.coef) if belief.coef.ndim == 2 else 1
        chosen = np.arange(k) if targets is None else np.asarray(targets)
        if chosen.ndim != 1 or not len(chosen) or not ((chosen >= 0) & (chosen < k)).all():
            raise ValueError(f"targets must be numbers of columns of y, from 0 to {k - 1}; got {targets!r}.")
        unit = 1.0
        if scaled:
            if belief.facts.column_std is None:
                raise ValueError("scaled=True needs the standard deviations of the columns, which are not known here.")
            unit = belief.facts.column_std
        with np.errstate(invalid="ignore"):  # the std of a constant column times an infinite interval
            arrays = [np.atleast_2d(a)[chosen] for a in (belief.coef * unit, low * unit, high * unit, belief.effects)]
        ax = plot_coefficients(
            ax,
            self._coef_names(belief),
            *arrays,
            level=level,
            top=top,
            what="coefficient × std of its column" if scaled else "coefficient",
            targets=[self._target_names()[j] for j in chosen] if k > 1 else ("",),
        )
        return ax
