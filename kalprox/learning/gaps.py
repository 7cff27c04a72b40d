"""Missing features: their running moments, what is put in their place, and how much of the target they leave open.

With the mean m and the covariance S of the features, a row whose features o are known and u are missing has

    E[x_u | x_o] = m_u + S_uo S_oo^-1 (x_o - m_o)   and   C = Cov[x_u | x_o] = S_uu - S_uo S_oo^-1 S_ou

if the features are normal. A linear model then has E[y | x_o] = model at the completed row, and Var[y | x_o] = noise +
coef_u' C coef_u: the row is one of a larger noise, and is learned with the precision of that noise. Least squares on
completed rows is unbiased, since what is left of x_u is uncorrelated with the completed row. It is approximate in that
m, S, coef and the noise are those known when the row came, and their own uncertainty, of order 1 / rows, is left out.
Since that would bias what is learned from the first rows of a stream, these are held, and learned again from the start
each time that they have doubled, until there are enough of them; see `Gaps`.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from kalprox.base.arrays import Array
from kalprox.base.tree import Sizes, copied, expect, leaf, state
from kalprox.information import Information
from kalprox.sources import Block

MISSING = ("raise", "drop", "impute", "marginalize")
FILLED = ("impute", "marginalize")  # with which rows without some features are learned
_STEPS, _STILL = 50, 1e-4  # of the EM algorithm: their number, and the change of correlations at which it ends
_SAMPLE = 2048  # rows of a first batch that the steps go over
_ENOUGH = 50  # rows for each feature, in which any two of them are known, that make moments reliable
_FEW = 15  # such rows, below which intervals of coefficients were seen to cover less than 93% in place of 95%
_MOST_BYTES = 1 << 25  # of rows that are held
_SHARE = 0.05  # of the rows without a feature, below which these errors are small
_LONG = 10  # a stream as many times as long as its early rows, after which these matter little


class Completed(NamedTuple):
    """Rows without gaps.

    Attributes
    ----------
    X : array of shape (n, d)
    open : array of shape (n,), or (n, m, m) for m outputs, or None
        The variance of the linear predictor that the missing features leave; None if it is not taken into account.
    spread : array of shape (d, d), or None
        The sum over the rows of the covariances of their missing features, by their weights.
    """

    X: Array
    open: Array | None = None
    spread: Array | None = None


@state
class FeatureMoments:
    """The running mean of each feature and, to marginalise missing ones, the covariance of the features.

    A row with gaps enters the mean of the features that it has. Into the covariance it enters as expected: completed,
    and with the covariance of what is missing (the steps of an EM algorithm, one for each batch).

    Attributes
    ----------
    weight : float
        The number of rows.
    mean : array of shape (d,)
        Zero for a feature without any value so far.
    seen : array of shape (d,)
        The number of rows that had a value of each feature.
    cov : array of shape (d, d), or None
        None if missing features are replaced by their mean.

    Examples
    --------
    >>> X = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0], [3.0, np.nan]])
    >>> FeatureMoments.of_batch(X, np.ones(4), with_cov=False).completed(X).X[3]
    array([3., 2.])
    """

    weight: float = leaf(sign="nonnegative")
    mean: Array = leaf("d", values="moderate")
    seen: Array = leaf("d", sign="nonnegative")
    cov: Array | None = leaf("d,d", values="moderate", default=None)

    def _check_restored(self, _: Sizes) -> None:
        """Raise a ValueError if a variance is negative."""
        expect(self.cov is None or (np.diagonal(self.cov) >= 0).all())

    @classmethod
    def of_batch(cls, X: Array, weights: Array, *, with_cov: bool) -> "FeatureMoments":
        """Return the moments of a first batch; the covariance by EM on at most 2,048 rows of it, evenly spaced."""
        first = cls(0.0, np.zeros(X.shape[1]), np.zeros(X.shape[1])).with_first_values(X, weights)
        known = ~np.isnan(X)
        seen = weights @ known
        if not with_cov:
            return replace(first, weight=float(weights.sum()), seen=seen)
        apart = np.where(known, X - first.mean, 0.0) ** 2
        cov = np.diag(weights @ apart / _divisor(seen))
        moments = cls(float(weights.sum()), first.mean, seen, cov)
        some = np.unique(np.linspace(0, len(X) - 1, min(len(X), _SAMPLE)).astype(int))
        if known[some].all():
            return moments._expected(X, weights)
        for _ in range(_STEPS):
            before, moments = moments, moments._expected(X[some], weights[some])
            if moments.weight == 0 or before._far_from(moments) < _STILL:
                break
        return moments._expected(X, weights) if len(some) < len(X) else moments

    @classmethod
    def of_information(cls, info: Information, *, with_cov: bool) -> "FeatureMoments":
        """Return the moments of rows without gaps, which their information holds. O(d^3) with the covariance."""
        weight, cov = float(info.T[0, 0]) ** 2, None
        if with_cov:
            R = info.centered().compact()[0]
            cov = R.T @ R / weight
        rows = float(info.rows)
        return cls(rows, np.asarray(info.x_mean), np.full(info.d, rows), cov)

    def _expected(self, X: Array, weights: Array) -> "FeatureMoments":
        """Return the moments of rows alone, completed under these moments: one step of EM."""
        return replace(self._of_rows(X, self.completed(X, weights=weights), weights), seen=self.seen)

    def _far_from(self, other: "FeatureMoments") -> float:
        """Return the largest difference between two covariances, in units of standard deviations."""
        assert self.cov is not None and other.cov is not None
        s = np.sqrt(np.maximum(np.diagonal(self.cov), np.diagonal(other.cov)))
        s = np.where(s > 0, s, 1.0)
        return float(np.max(np.abs(self.cov - other.cov) / s / s[:, None], initial=0.0))

    def with_first_values(self, X: Array, weights: Array) -> "FeatureMoments":
        """Return the moments with the means of features that have their first values in these rows."""
        new = (self.seen == 0) & ~np.isnan(X).all(axis=0)
        if not new.any():
            return self
        known = ~np.isnan(X[:, new]) & (weights > 0)[:, None]
        origin = np.nanmin(X[:, new], axis=0)  # so that features far from zero keep their digits
        total = weights @ np.where(known, X[:, new] - origin, 0.0)
        count = weights @ known
        mean = self.mean.copy()
        mean[new] = np.where(count > 0, origin + total / _divisor(count), 0.0)
        return replace(self, mean=mean)

    def with_features(self, more: int) -> "FeatureMoments":
        """Return the moments with more features, which were 0 in all rows and come after the others."""
        cov = None if self.cov is None else np.pad(self.cov, (0, more))
        seen = np.append(self.seen, np.full(more, self.weight))
        return FeatureMoments(self.weight, np.pad(self.mean, (0, more)), seen, cov)

    @property
    def _behind(self) -> Any:
        """How many rows the mean of each feature rests on: all of them, or those that have it if the mean stands in."""
        return self.seen if self.cov is None else self.weight

    @property
    def reliable(self) -> bool:
        """Whether there are enough rows, in which any two features are known, for what depends on the covariance."""
        return self.known_together >= _ENOUGH

    @property
    def known_together(self) -> float:
        """The number of rows in which any two features are known, if gaps are independent, for each coefficient."""
        seen = self.seen[self.seen > 0]
        return float(seen.min()) ** 2 / (max(self.weight, 1.0) * (len(self.seen) + 1)) if len(seen) else 0.0

    @property
    def unseen(self) -> Array:
        """The features without any value so far, by their numbers."""
        return np.flatnonzero(self.seen == 0)

    # ---- completing ------------------------------------------------------------------------------------

    def completed(self, X: Array, coef: Array | None = None, weights: Array | None = None) -> Completed:
        """Return rows with the conditional means of missing features in their place, or their means without `cov`.

        O(d^3) for each set of missing features, O(d) without `cov`.

        Parameters
        ----------
        X : array of shape (n, d)
            NaN where a feature is missing.
        coef : array of shape (d,) or (m, d), optional
            To compute `open`.
        weights : array of shape (n,), optional
            To compute `spread`.
        """
        gaps = np.isnan(X)
        filled: Array = np.where(gaps, self.mean, X)
        if self.cov is None:
            return Completed(filled)
        outputs = () if coef is None or coef.ndim == 1 else (len(coef),) * 2
        open_: Array | None = None if coef is None else np.zeros((len(X), *outputs))
        spread: Array | None = None if weights is None else np.zeros_like(self.cov)
        rows = np.flatnonzero(gaps.any(axis=1))
        if not len(rows):
            return Completed(filled, open_, spread)
        scale, R = self._correlations()
        std = np.sqrt(np.maximum(np.diagonal(self.cov), 0.0))
        groups: dict[bytes, list[int]] = {}
        for i in rows.tolist():
            groups.setdefault(gaps[i].tobytes(), []).append(i)
        for one in map(np.array, groups.values()):
            u, o = np.flatnonzero(gaps[one[0]]), np.flatnonzero(~gaps[one[0]])
            C = R[np.ix_(u, u)]
            if len(o):
                B = cho_solve(cho_factor(R[np.ix_(o, o)], check_finite=False), R[np.ix_(o, u)], check_finite=False)
                apart = (X[np.ix_(one, o)] - self.mean[o]) / scale[o]
                filled[np.ix_(one, u)] += apart @ B * std[u]
                C = C - R[np.ix_(u, o)] @ B
            C = C * std[u] * std[u][:, None]
            if open_ is not None and coef is not None:
                open_[one] = coef[..., u] @ C @ coef[..., u].T
            if spread is not None and weights is not None:
                spread[np.ix_(u, u)] += weights[one].sum() * C
        return Completed(filled, open_, spread)

    def _correlations(self) -> tuple[Array, Array]:
        """Return the standard deviations, 1 for a constant feature, and the correlations, shrunk by d + 2 rows of none.

        A few rows correlate by chance, and more features than rows perfectly: as many rows of independent features, an
        inverse Wishart prior, keep the conditional variances from vanishing.
        """
        assert self.cov is not None
        variances = np.diagonal(self.cov)
        scale = np.where(variances > 0, np.sqrt(np.maximum(variances, 0.0)), 1.0)
        R = self.cov / scale / scale[:, None] * (self.weight / (self.weight + len(scale) + 2))
        np.fill_diagonal(R, 1.0)
        return scale, R

    # ---- learning --------------------------------------------------------------------------------------

    def after(self, X: Array, completed: Completed, weights: Array, left: float = 1.0) -> "FeatureMoments":
        """Return the moments after more rows, which were completed; `left` is what is left of those before."""
        before = replace(self, weight=left * self.weight, seen=left * self.seen)
        return before.merge(self._of_rows(X, completed, weights))

    def _of_rows(self, X: Array, completed: Completed, weights: Array) -> "FeatureMoments":
        """Return the moments of rows alone, which were completed under these moments."""
        rows = replace(self, weight=float(weights.sum()), seen=weights @ ~np.isnan(X))
        mean = self.mean + weights @ (completed.X - self.mean) / _divisor(rows._behind)
        if self.cov is None:
            return replace(rows, mean=mean)
        rest = completed.X - mean
        scatter = (rest.T * weights) @ rest + (0.0 if completed.spread is None else completed.spread)
        return replace(rows, mean=mean, cov=scatter / _divisor(rows.weight))

    def merge(self, other: "FeatureMoments") -> "FeatureMoments":
        """Return the moments of the rows of both."""
        share, apart = other._behind / _divisor(self._behind + other._behind), other.mean - self.mean
        cov: Array | None = None
        if self.cov is not None and other.cov is not None:
            cov = (1 - share) * self.cov + share * other.cov + share * (1 - share) * np.outer(apart, apart)
        return FeatureMoments(self.weight + other.weight, self.mean + share * apart, self.seen + other.seen, cov)


def _divisor(rows: Any) -> Any:
    """Return numbers of rows, 1 in place of 0."""
    return np.where(rows > 0, rows, 1.0)


@state
class Gaps:
    """The account of missing values: rows and cells that were learned with gaps, and the moments of the features.

    Attributes
    ----------
    rows : int
        The number of rows that were learned without some of their features.
    cells : array of shape (d,), or None
        How often each feature was missing in them; None while there is none.
    unlabelled : int
        The number of rows that came without a target, and were not learned.
    moments : FeatureMoments or None
        None as long as the information of the rows has them: no row had gaps, or missing="raise".
    due : int
        The number of rows at which those that are held are learned again.
    early : int
        The number of rows until the moments were known well, if the rows before could not be learned again.
    held : tuple of Block, or None
        All rows so far as they came, to be learned again; None once their moments are reliable.
    """

    rows: int = 0
    cells: Array | None = leaf("d", sign="nonnegative", default=None)
    unlabelled: int = 0
    moments: FeatureMoments | None = None
    due: int = 0
    early: int = 0
    held: tuple[Block, ...] | None = None

    def after(self, X: Array, weights: Array, moments: FeatureMoments | None) -> "Gaps":
        """Return the account after more rows that were learned, and the moments after them."""
        gaps = np.isnan(X[weights > 0])
        if not gaps.any():
            return replace(self, moments=moments)
        cells = gaps.sum(axis=0, dtype=float) + (0 if self.cells is None else self.cells)
        return replace(self, rows=self.rows + int(gaps.any(axis=1).sum()), cells=cells, moments=moments)

    def holding(self, block: Block, *, start: bool) -> "Gaps":
        """Return the account with one more block, as it came, if all rows before it are held or it is the first."""
        held = () if start else self.held
        if held is None or (held and (held[0].groups is None) != (block.groups is None)):
            return replace(self, held=None)
        return replace(self, held=(*held, copied(block.at(slice(None)))))

    def counted(self, rows: int, *, relearned: bool) -> "Gaps":
        """Return the account after so many rows in all: these are early ones, unless they are held and `relearned`."""
        few = self.moments is not None and self.moments.known_together < _ENOUGH / 2
        return replace(self, early=rows) if few and (self.held is None or not relearned) else self

    def std_doubt(self, rows: int) -> str:
        """Return why standard errors after so many rows may be too small, in a sentence; empty if they are not."""
        moments = self.moments
        if moments is None or moments.cov is None or self.cells is None or self.cells.max() < _SHARE * rows:
            return ""
        if moments.known_together >= _FEW and rows >= _LONG * self.early:
            return ""
        return (
            "The standard errors of coefficients may be too small: missing features were completed by a mean and a "
            "covariance of the features that were estimated from few rows, and the errors of these estimates are left "
            "out. Learn more rows, or fit all of them at once."
        )

    @property
    def n_held(self) -> int:
        """The number of rows that are held."""
        return sum(map(len, self.held or ()))

    @property
    def is_due(self) -> bool:
        """Whether the rows that are held are to be learned again, or not to be held any longer."""
        return self.held is not None and (self.n_held >= self.due or self._enough)

    @property
    def _enough(self) -> bool:
        size = sum(one.X.nbytes for one in self.held or ())
        return size > _MOST_BYTES or (self.moments is not None and self.moments.reliable)

    def relearned(self, moments: FeatureMoments | None) -> "Gaps":
        """Return the account after the rows that are held were learned again under these moments."""
        if self._enough:  # from now on the information has the moments, unless there were gaps
            return replace(self, moments=moments if self.rows else None, held=None, due=0)
        return replace(self, moments=moments, due=2 * self.n_held)

    def merge(self, other: "Gaps") -> "Gaps":
        """Return the account of both; rows are no longer held."""
        cells = [a for a in (self.cells, other.cells) if a is not None]
        return Gaps(
            self.rows + other.rows,
            sum(cells) if cells else None,
            self.unlabelled + other.unlabelled,
            None if self.moments is None or other.moments is None else self.moments.merge(other.moments),
            early=self.early + other.early,
        )
