"""The solutions of a linear model along a grid of alphas, in text, in a notebook and as a plot."""

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.text import plain_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_NEAR = 3  # alphas on each side of the best in a notebook


class _Solutions(NamedTuple):
    alphas: Array
    coef: Array
    intercept: Array
    edf: Array
    score: Array


class Path(_Solutions):
    """Solutions of a linear model for a grid of alphas: a named tuple of five arrays.

    Attributes
    ----------
    alphas : array of shape (m,)
    coef : array of shape (m, d) or (m, k, d)
    intercept : array of shape (m,) or (m, k)
    edf : array of shape (m,) or (m, k)
        The effective degrees of freedom, not counting the intercept.
    score : array of shape (m,)
        The log evidence for ridge, -BIC/2 for other penalties, summed over targets. Higher is better.
    alpha : float or None
        The alpha of the model that the path belongs to. Like the following, it is not an item of the tuple.
    criterion : str
        What the score is: "log evidence" or "-BIC/2".
    names : list of str or None
        The names of the columns.
    column_std : array of shape (d,) or None
        The standard deviations of the columns.
    classes : list of str or None
        The names of the classes that the coefficients are about, if the target has classes.
    converged : array of bool, shape (m,), or None
        For which alphas the minimiser was reached, if passes over the rows were needed.
    """

    alpha: float | None = None
    criterion: str = "score"
    names: list[str] | None = None
    column_std: Array | None = None
    classes: list[str] | None = None
    converged: Array | None = None

    def about(self, **known: Any) -> Self:
        """Return the path with what is known of its model: attributes that are no items of the tuple, or None."""
        found = type(self)(*self)
        vars(found).update(vars(self) | {name: value for name, value in known.items() if value is not None})
        return found

    @property
    def _about(self) -> dict[str, str]:
        alphas, best = self.alphas, int(self.score.argmax())
        found = {"Coefficients": f"{self.coef.shape[-1]:,}"}
        if self.coef.ndim == 3 and self.coef.shape[1] > 1:
            found["Classes" if self.classes else "Targets"] = f"{self.coef.shape[1]:,}"
        found["Alphas"] = f"{len(alphas):,}, from {plain_number(alphas.min())} to {plain_number(alphas.max())}"
        found["Best"] = f"alpha = {plain_number(alphas[best])}, by {self.criterion} ({self.score[best]:,.6g})"
        if self.converged is not None and not self.converged.all():
            found["Not converged"] = f"{int((~self.converged).sum()):,} of {len(alphas):,} alphas"
        return found if self.alpha is None else found | {"Model": f"alpha = {plain_number(self.alpha)}"}

    def __repr__(self) -> str:
        return f"Path({'; '.join(f'{name.lower()}: {text}' for name, text in self._about.items())})"

    def _repr_html_(self) -> str:
        from kalprox.display.tables import card, facts, table

        order = np.argsort(self.alphas)
        best = int(np.flatnonzero(order == int(self.score.argmax()))[0])
        near = map(self.row, order[max(best - _NEAR, 0) : best + _NEAR + 1])
        rows = [(alpha, f"{nonzero:,}", f"{edf:.4g}", below) for alpha, nonzero, edf, below in near]
        return card("Path", facts(self._about), table(self.heads, rows))

    @property
    def heads(self) -> tuple[str, ...]:
        """What the cells of a `row` are."""
        return "alpha", "nonzero", "degrees of freedom", f"{self.criterion}, from the best"

    def row(self, i: int) -> tuple[str, int, float, str]:
        """Return what a table says of an alpha, by its number; scores have digits that tell neighbours apart."""
        below = self.score[i] - self.score.max()
        text = f"{below:,.2f}" if below > -1000 else f"{below:,.0f}"
        text = "0 (best)" if i == int(self.score.argmax()) else text
        return plain_number(self.alphas[i]), int((self.coef[i] != 0).sum()), float(np.sum(self.edf[i])), text

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        kind: str = "coef",
        scaled: bool = False,
        target: int | None = None,
        top: int = 7,
    ) -> "Axes":
        """Plot the coefficients, or the score, along alpha. A dashed line marks the alpha of the model.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made.
        kind : {"coef", "score"}
            "coef": a line for each coefficient, those with the largest effects in colour, and the alpha with the best
            score marked by a dotted line. "score": the score relative to the best, for alphas about the best;
            differences below 1 mean little.
        scaled : bool
            Whether each coefficient is multiplied by the standard deviation of its column, so that columns in different
            units can be compared.
        target : int, optional
            The target whose coefficients are shown, if y has several columns, or the position of the class, if there
            are three or more. It must be given then.
        top : int
            The number of coefficients with a colour and a label, 7 at most.

        Returns
        -------
        Axes

        Examples
        --------
        >>> from kalprox import KalproxRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 4))
        >>> model = KalproxRegressor(penalty="l1", alpha=10.0).fit(X, X @ [2.0, 0.0, -1.0, 0.0] + rng.normal(size=100))
        >>> ax = model.path().plot()
        >>> ax.get_xscale(), ax.get_legend_handles_labels()[1]
        ('log', ['x0', 'x1', 'x2', 'x3', 'best by -BIC/2: 16.16', 'alpha of the model: 10'])
        """
        from kalprox.display import plots
        from kalprox.display.axes import axes_for, figure_label

        if kind not in ("coef", "score"):
            raise ValueError(f"kind must be 'coef' or 'score'; got {kind!r}.")
        if not (self.alphas > 0).any():
            raise ValueError("path.plot needs an alpha above 0: the axis of alpha is logarithmic. Give more alphas.")
        coef = self._coef_of(target) if kind == "coef" else None
        best = float(self.alphas[int(self.score.argmax())])
        own, title = ax is None, ""
        ax = axes_for(ax, (6.8, 4.0))
        if coef is None:
            order = plots.scores(ax, self.alphas, self.score, self.criterion)
            ax.set_xlabel("alpha")
        else:
            order = np.argsort(self.alphas)[np.sort(self.alphas) > 0]
            std = np.ones(coef.shape[1]) if self.column_std is None else self.column_std
            shown = np.argsort(-(np.abs(coef) * std).max(axis=0), kind="stable")[: min(top, plots.MOST_LINES)]
            names = [f"x{j}" for j in range(coef.shape[1])] if self.names is None else self.names
            shown = np.sort(shown)
            labels = [figure_label(names[j], f"column {j + 1}", 24) for j in shown]
            plots.lines(ax, self.alphas[order], coef[order] * (std if scaled else 1.0), labels, shown)
            ax.axhline(0, color=ax.spines["bottom"].get_edgecolor(), linewidth=0.6)
            unit = " × std of its column" if scaled else ""
            ax.set(xscale="log", xlabel="alpha", ylabel=f"coefficient{unit}")
            title = f"{len(shown)} of {coef.shape[1]:,} coefficients" if len(shown) < coef.shape[1] else ""
            if best > 0:
                about = f"best by {self.criterion}: {plain_number(best)}"
                ax.axvline(best, color=ax.spines["bottom"].get_edgecolor(), linewidth=0.9, linestyle=":", label=about)
        if self.alpha is not None:
            about = f"alpha of the model: {plain_number(self.alpha)}"
            plots.mark_alpha(ax, self.alphas[order], self.alpha, label=about)
        if ax.get_legend_handles_labels()[1]:
            plots.legend(ax, title, outside=own and coef is not None)
        return ax

    def _coef_of(self, target: int | None) -> Array:
        """The coefficients of one target, of shape (m, d)."""
        if self.coef.ndim == 2:
            if target not in (None, 0):
                raise ValueError(f"target must be None or 0 for a path of one target; got {target!r}.")
            return self.coef
        k = self.coef.shape[1]
        if k == 1 and target is None:
            return self.coef[:, 0]
        if target is None or not 0 <= target < k:
            what = "classes" if self.classes else "targets"
            raise ValueError(f"target must say which of the {k} {what} to plot, from 0 to {k - 1}; got {target!r}.")
        return self.coef[:, target]
