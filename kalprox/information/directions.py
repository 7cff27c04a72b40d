"""The directions of the coefficients that rows determine, the one that they determine least first, and their plot."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import qr

from kalprox.base.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_directions"]

_MAX = 30  # directions in a figure of its own
_LEAST = 11.0  # points of the height of a direction
_ROW = 0.23, 1.3  # inches of the height of a figure: for each direction, and for the rest
MINUS = "\N{MINUS SIGN}"
_PARTS = 3  # coefficients that are named in a direction
_PART = 0.35  # of its largest entry, below which an entry of a direction is not named


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


def plot_directions(R: Array, rank: int, ax: "Axes | None", names: Sequence[str] | None, top: int | None) -> "Axes":
    """Plot the directions of R, the least determined first; see `LeastSquares.plot`."""
    from kalprox.display.axes import axes_for, figure_label, label_height
    from kalprox.display.readings import directions as draw

    if names is not None and len(names) != len(R):
        raise ValueError(f"names must name each of the {len(R)} coefficients; got {len(names)}.")
    if not R.any():
        raise ValueError("There is nothing to plot: the information is that of no rows. Fold rows first.")
    found = directions(R, rank)
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
