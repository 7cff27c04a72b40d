"""How an estimator shows what it has found: HTML for notebooks, and a plot of its coefficients."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from kalprox.display.html import card, facts, first_rows
from kalprox.display.html import table as html_table
from kalprox.estimators.base import LearnerEstimator
from kalprox.learning.headline import headline
from kalprox.learning.summary import about_noise, about_penalty

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Showing"]


class Showing(LearnerEstimator):
    """The HTML that notebooks show, and the plot of the coefficients."""

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
            alpha_=belief.alpha,
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
        from kalprox.display.readings import plot_coefficients

        belief = self._with_std
        self._warn_of_looks(belief, anytime=anytime)
        low, high = belief.coef_interval(level, anytime)
        k = len(belief.coef) if belief.coef.ndim == 2 else 1
        chosen = np.arange(k) if targets is None else np.asarray(targets)
        if chosen.ndim != 1 or not len(chosen) or not ((chosen >= 0) & (chosen < k)).all():
            raise ValueError(f"targets must be numbers of columns of y, from 0 to {k - 1}; got {targets!r}.")
        unit = 1.0
        if scaled:
            if belief.column_std is None:
                raise ValueError("scaled=True needs the standard deviations of the columns, which are not known here.")
            unit = belief.column_std
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
