"""Whether the scores depend on squares and products of the columns: what a model that is linear in them leaves out.

If the model is right, the score of a row is independent of what was known before it came: of its columns, its
prediction, and all earlier rows. So the sum of the scores times any function of these has the mean 0, and the squared
products as its variance, however the columns are distributed and whatever the spread of the scores depends on.
"""

from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import MODERATE, expect
from kalprox.calibration.checks import BOUND, CHECK_ALARMS, FEWEST_ROWS, Check, Stream, two_sided
from kalprox.kernel.scores import add_curvature

MOST_COLUMNS = 20  # the first ones, whose squares and products are looked at, besides the prediction
MATERIAL_CURVATURE = 0.1  # the correlation of the scores with a square or a product
_ALL_ROWS, _STEP = 1 << 13, 8  # rows that are all taken, and later every so many-th
_FIRST = 16  # rows after which the mean and the spread of a column are known well enough to standardise it
_COLLINEAR = 0.05  # the least share of the square of a product that its columns do not explain
_FEWEST = 6.0  # rows that share the sum of the squares of the scores times a product, for that to be judged
_FARTHEST = 3.0  # the bound of a standardised value, so that a few rows do not decide
_LARGEST = 1e60
_ROUNDING = 1e-10


class Curvature(NamedTuple):
    """Sums over scores u and standardised values z of c columns, of which the first is the prediction.

    The values of a row are standardised by the mean and the variance of the rows before it, and bounded to 3; one that
    is missing is 0. All rows count up to 8,192, and every eighth after that. Every row counts once, whatever its
    weight.

    Attributes
    ----------
    columns_seen : array
        The number of rows seen.
    column_means, column_squares : array
        The means of the columns, and the sums of the squares about them, shape (c,).
    column_products : array
        With z_0 = 1, for any two columns the sums of q = z_i z_j, z_i q, q^2, u q, u^2 q^2 and u^4 q^4, shape
        (6, 1 + c, 1 + c).
    """

    columns_seen: Array
    column_means: Array
    column_squares: Array
    column_products: Array

    def after(self, X: Array, mean: Array, u: Array, weights: Array) -> "Curvature":
        """Return the sums after rows with these columns, predictions and scores; none of weight 0. O(b c^2)."""
        seen, judged = int(self.columns_seen), np.broadcast_to(weights, len(u)) > 0
        count = len(u) if judged.all() else int(judged.sum())
        now, rows = np.asarray(float(seen + count)), _kept(seen, judged, count)
        columns = X[rows, :MOST_COLUMNS]
        columns = columns.toarray() if hasattr(columns, "toarray") else np.asarray(columns, float)
        predicted, scores = np.broadcast_to(mean, len(u))[rows], u[rows]
        before = self.widened(1 + columns.shape[1])
        if not len(scores):
            return before._replace(columns_seen=now)
        sums = before.column_means.copy(), before.column_squares.copy(), before.column_products.copy()
        if not add_curvature(*sums, columns, predicted, scores):
            sums = before._added(np.column_stack([predicted, columns]), scores)
        return Curvature(now, *sums)

    def _added(self, V: Array, u: Array) -> tuple[Array, Array, Array]:
        """Return the sums of the columns after rows of values; what `kalprox.kernel` computes where it is compiled."""
        n = float(self.column_products[0, 0, 0])
        with np.errstate(all="ignore"):
            origin = self.column_means if n else np.nan_to_num(V[0], posinf=0.0, neginf=0.0)
            D = V - origin
            D = np.clip(np.where(np.isfinite(D), D, 0.0), -_LARGEST, _LARGEST)
            rows = np.maximum(n + np.arange(len(V)), 1)[:, None]
            total, squared = D.cumsum(axis=0), (D * D).cumsum(axis=0)
            shift, second = (total - D) / rows, (self.column_squares + squared - D * D) / rows
            variance = second - shift**2
            known = (variance > _ROUNDING * second) & (rows >= _FIRST) & np.isfinite(V)
            Z = np.where(known, np.clip((D - shift) / np.sqrt(variance), -_FARTHEST, _FARTHEST), 0.0)
        Z = np.column_stack([np.ones(len(Z)), Z])
        Q, u = Z * Z, np.clip(u[:, None], -BOUND, BOUND)
        F = Q * Q
        products = [Z.T @ Z, Q.T @ Z, Q.T @ Q, Z.T @ (u * Z), Q.T @ (u * u * Q), F.T @ (u**4 * F)]
        count = n + len(V)
        squares = self.column_squares + squared[-1] - total[-1] ** 2 / count
        means = origin + total[-1] / count
        return means, np.maximum(squares, 0.0), self.column_products + np.stack(products)

    def merge(self, other: "Curvature") -> "Curvature":
        """Return the sums over both streams of rows."""
        if not len(other.column_means):
            return self
        c = max(len(self.column_means), len(other.column_means))
        one, two = self.widened(c), other.widened(c)
        n, m = one.column_products[0, 0, 0], two.column_products[0, 0, 0]
        share = m / np.maximum(n + m, 1)
        apart = two.column_means - one.column_means
        squares = one.column_squares + two.column_squares + n * share * apart**2
        return Curvature(
            one.columns_seen + two.columns_seen,
            one.column_means + share * apart,
            squares,
            one.column_products + two.column_products,
        )

    def widened(self, c: int) -> "Curvature":
        """Return the sums with columns that were not there before, up to c."""
        more = c - len(self.column_means)
        if more <= 0:
            return self
        means, squares = (np.pad(a, (0, more)) for a in (self.column_means, self.column_squares))
        products = np.pad(self.column_products, ((0, 0), (0, more), (0, more)))
        return Curvature(self.columns_seen, means, squares, products)

    def expect_possible(self) -> None:
        """Raise a ValueError unless these are sums over columns."""
        seen, means, squares, products = self
        c = len(means)
        expect(means.shape == squares.shape == (c,) and products.shape == (6, 1 + c, 1 + c))
        expect(c <= 1 + MOST_COLUMNS and seen.shape == () and seen >= products[0, 0, 0] >= 0)
        expect((squares >= 0).all() and (np.diagonal(products[[0, 2, 4]], axis1=1, axis2=2) >= 0).all())
        expect(all(np.abs(a).max(initial=0.0) <= MODERATE for a in (seen, means, products)))

    def check(self, stream: Stream) -> Check:
        """Do the scores depend on the square of a column, or on the product of two?

        The part of each square or product that is linear in its columns is left out, so that coefficients which are too
        small or too large are not called nonlinear. The variance allows for a spread that depends on the same columns,
        and for correlated scores, by `Dependence.long_run`. The level is divided by the number of products.
        """
        sums = np.asarray(self.column_products, float)
        n, c = sums[0, 0, 0], len(self.column_means)
        nothing = Check("nonlinear", "the columns are not known well enough to look at their squares", np.nan, False)
        if not n >= FEWEST_ROWS or not c:
            return nothing
        second, third, fourth, with_u, with_u2, with_u4 = sums / n
        i, j = np.triu_indices(c)
        i, j = i + 1, j + 1
        both = np.stack([np.zeros_like(i), i, j], axis=1)  # 1, z_i and z_j
        moments = second[both[:, :, None], both[:, None, :]]
        product = np.stack([second[i, j], third[i, j], third[j, i]], axis=1)
        line = np.einsum("pij,pj->pi", np.linalg.pinv(moments, rcond=1e-9, hermitian=True), product)
        left = fourth[i, j] - (line * product).sum(axis=1)  # the variance of what the product adds to them
        found = with_u[i, j] - (line * with_u[0, both]).sum(axis=1)
        with np.errstate(all="ignore"):
            robust = np.maximum(with_u2[i, j] / fourth[i, j], with_u2[0, 0])
            z, size = (found / np.sqrt(left * variance) for variance in (robust, with_u2[0, 0]))
            many = n * with_u2[i, j] ** 2 / with_u4[i, j] >= _FEWEST  # rows that decide
        z = np.where((left > _COLLINEAR * fourth[i, j]) & many & np.isfinite(z), z, 0.0)
        k = int(np.abs(z).argmax())
        p_value = min(len(z) * two_sided(float(z[k]) * (n / stream.scores.long_run) ** 0.5), 1.0)
        of = (int(i[k]) - 2, int(j[k]) - 2)
        measured = f"the errors have the correlation {size[k]:.2f} with {_product(*of)}"
        is_found = p_value < CHECK_ALARMS / stream.several and abs(float(size[k])) >= MATERIAL_CURVATURE
        return Check("nonlinear", measured, p_value, is_found)


def _kept(seen: int, judged: Array, count: int) -> Any:
    """Return which of some rows are looked at, of which `count` are judged, after others that were: see `Curvature`."""
    if count == len(judged) and seen + count <= _ALL_ROWS:
        return slice(None)
    if count == len(judged) and seen >= _ALL_ROWS:
        return slice(-seen % _STEP, None, _STEP)
    places = np.flatnonzero(judged)
    number = np.arange(seen, seen + count)
    return places[(number < _ALL_ROWS) | (number % _STEP == 0)]


def _product(i: int, j: int) -> str:
    """The square or the product of columns in words; -1 is the prediction."""
    one, two = ("the prediction" if k < 0 else f"x{k}" for k in (i, j))
    return f"the square of {one}" if i == j else f"the product of {one} and {two}"
