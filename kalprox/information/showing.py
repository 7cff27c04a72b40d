"""How information shows itself: in a line of text, in a notebook, and the directions that the rows determine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.linalg import qr

from kalprox.base.arrays import Array, fields_repr, is_number
from kalprox.base.text import count
from kalprox.base.text import names as listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LARGE = 1000  # coefficients up to which HTML says which are determined: it takes O(d^3)
_MAX = 30  # directions in a figure of its own
_LEAST = 11.0  # points of the height of a direction
_ROW = 0.23, 1.3  # inches of the height of a figure: for each direction, and for the rest
MINUS = "\N{MINUS SIGN}"
_PARTS = 3  # coefficients that are named in a direction
_PART = 0.35  # of its largest entry, below which an entry of a direction is not named


class Shown:
    """The text, the HTML and the plot of a `LeastSquares` function."""

    rows: Any
    targets: int | None

    if TYPE_CHECKING:

        @property
        def R(self) -> Array: ...
        @property
        def d(self) -> int: ...
        @property
        def rss(self) -> Array: ...
        def rank(self) -> Array: ...
        def undetermined(self) -> Array: ...

    def __repr__(self) -> str:
        if not is_number(self.rows):
            return fields_repr(self)
        return f"{type(self).__name__}({', '.join(self._sizes().values())})"

    def _sizes(self) -> dict[str, str]:
        """How much there is of it, in words."""
        found = {"Rows": f"{float(self.rows):,.10g} rows", "Coefficients": count(self.d, "coefficient")}
        return found if self.targets is None else found | {"Targets": count(self.targets, "target")}

    def _repr_html_(self) -> str | None:
        from kalprox.display.html import card, facts

        if not is_number(self.rows):
            return None
        about, doubts = {name: text.split()[0] for name, text in self._sizes().items()}, []
        if self.d <= _LARGE:
            open_ends = np.flatnonzero(np.asarray(self.undetermined()))
            about["Rank"] = f"{int(self.rank()):,}"
            if len(open_ends):
                about["Not determined"] = (
                    f"{count(len(open_ends), 'coefficient')}: {listed(f'x{j}' for j in open_ends)}"
                )
                doubts = ["Not determined"]
        about["Residual sum of squares"] = ", ".join(f"{value:.6g}" for value in np.atleast_1d(self.rss)[:6])
        return card(type(self).__name__, facts(about, doubts))

    def plot(self, ax: "Axes | None" = None, *, names: Sequence[str] | None = None, top: int | None = None) -> "Axes":
        """Plot the directions of the coefficients, the one that the rows determine least first.

        The columns of X are scaled to the same length. A direction is a combination of their coefficients, such as x0 -
        x1, and the directions are uncorrelated (the right singular vectors of the scaled R). If all columns were
        uncorrelated, the information along every direction would be 1. Where it is 0.01, as along the difference of two
        columns that are nearly equal, the standard error of that combination is 10 times as large. A cross marks a
        direction that the rows do not determine at all: collinear or constant columns, or too few rows.

        As in `solve`, the model has no intercept; `info.centered().plot()` is that of the model with one. O(d^3).

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made.
        names : sequence of str, optional
            The names of the d coefficients; by default x0, x1 and so on.
        top : int, optional
            The number of directions shown; by default as many as fit, and 30 at most.

        Returns
        -------
        Axes

        Examples
        --------
        >>> import kalprox as kp
        >>> x = np.random.default_rng(0).normal(size=(200, 2))
        >>> X = np.column_stack([x, x[:, 0] + 0.01 * x[:, 1]])  # the third column is nearly equal to the first
        >>> ax = kp.Information.from_rows(X, x[:, 0]).plot(names=["dose", "age", "dose_mg"])
        >>> [label.get_text() for label in ax.get_yticklabels()][0]
        'dose − dose_mg'
        """
        from kalprox.display.axes import axes_for, figure_label, label_height
        from kalprox.display.readings import directions as draw

        R = np.asarray(self.R, float)
        if names is not None and len(names) != len(R):
            raise ValueError(f"names must name each of the {len(R)} coefficients; got {len(names)}.")
        if not R.any():
            raise ValueError("There is nothing to plot: the information is that of no rows. Fold rows first.")
        found = directions(R, int(self.rank()))
        d = len(R)
        given = ax is not None
        ax = axes_for(ax, (6.4, _ROW[1] + _ROW[0] * min(top or _MAX, d)))
        fitting = min(max(int(label_height(ax, 1) / _LEAST), 3), _MAX) if given else _MAX
        n = min(d, fitting if top is None else top)
        shown = np.arange(n)
        unknown = int((~found.determined).sum())
        if unknown > (few := max(n // 3, n - (d - unknown))):  # leave room for those that are determined
            shown = np.append(np.arange(few), np.arange(unknown, unknown + n - few))
        labels = [f"x{j}" for j in range(d)] if names is None else list(map(str, names))
        labels = [figure_label(name, f"column {j + 1}", 18) for j, name in enumerate(labels)]
        texts = [_label(found.vectors[i], labels) for i in shown]
        draw(ax, texts, found.values[shown], found.determined[shown])
        only = f"\n({n} of {d:,} directions; {unknown:,} are not determined)" if n < d else ""
        ax.set_xlabel(f"information, relative to uncorrelated columns{only}", loc="right")  # there is room to the left
        return ax


class Directions(NamedTuple):
    """Uncorrelated directions of the coefficients of columns that are scaled to the same length.

    Attributes
    ----------
    vectors : array of shape (d, d)
        One direction in each row, the least determined first.
    values : array of shape (d,)
        The information along each; their sum is d if no column is zero.
    determined : array of bool, shape (d,)
    """

    vectors: Array
    values: Array
    determined: Array


def directions(R: Array, rank: int) -> Directions:
    """Return the directions of R, of which `rank` are determined. O(d^3)."""
    d, norms = len(R), np.linalg.norm(R, axis=0)
    _, singular, Vt = np.linalg.svd(R / np.where(norms > 0, norms, 1.0))
    vectors, values, unknown = Vt[::-1].copy(), singular[::-1] ** 2, d - rank
    if unknown:  # any basis of them will do: take one in which each has a column of its own
        own = qr(vectors[:unknown], mode="r", pivoting=True)[1][:unknown]
        basis = np.linalg.solve(vectors[:unknown, own], vectors[:unknown])
        vectors[:unknown] = basis / np.linalg.norm(basis, axis=1, keepdims=True)
    return Directions(vectors, values, np.arange(d) >= unknown)


def _label(direction: Array, names: Sequence[str]) -> str:
    """The largest parts of a direction, as a sum; an ellipsis stands for the others."""
    size = np.abs(direction)
    parts = np.flatnonzero(size >= _PART * size.max())
    parts = parts[np.argsort(-size[parts], kind="stable")][:_PARTS]
    parts = np.sort(parts) if len(parts) < _PARTS else parts
    sign = np.sign(direction[parts[0]])
    text: str = names[parts[0]]
    for j in parts[1:]:
        text += f" {'+' if direction[j] * sign > 0 else MINUS} {names[j]}"
    return text + " …" * bool((size >= _PART * size.max()).sum() > _PARTS)
