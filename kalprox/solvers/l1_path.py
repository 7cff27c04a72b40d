"""The L1 path: the minimisers of 1/2 ||R t - z||^2 + lam ||t||_1 for many lam, at about the cost of one.

The minimiser is a piecewise linear function of lam. Its knots are where a coordinate leaves zero or returns to it. With
A the nonzero coordinates, s their signs, G = R'R and b = R'z, the minimiser is t_A = G_AA^-1 (b_A - lam s), and the
next knot is where one of the other slopes reaches lam or one of t_A reaches zero [1]_ [2]_. The Gram matrix G is used
only to find the knots: each minimiser is corrected by its residual in R, and its optimality is then verified.

Everything is computed by NumPy in float64, because the shapes of arrays depend on which coordinates are nonzero.

References
----------
.. [1] M. R. Osborne, B. Presnell, B. A. Turlach, "A new approach to variable selection in least squares problems",
   IMA Journal of Numerical Analysis 20, 2000.
.. [2] B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, "Least angle regression", Annals of Statistics 32, 2004.
"""

import numpy as np
from scipy.linalg.blas import dtpsv
from scipy.linalg.lapack import dpotrf, dtrttp

from kalprox.linalg.triangle import column_norms, product, rounding
from kalprox.regularizers import Pieces
from kalprox.solvers.squares import default_tol

_SMALLEST_PIVOT = np.finfo(float).eps ** 0.5  # for unit columns; below it the Gram matrix has too few digits
_MOST = 0.975  # the share of nonzero coordinates from which on a path is too long


def l1_start(R: np.ndarray, z: np.ndarray, pieces: Pieces, least: np.ndarray) -> np.ndarray:
    """Return the point from which to search for the minimiser of 1/2 ||R t - z||^2 + g(t).

    For an L1 norm or an elastic net it is the minimiser itself, found by its path, unless the path was lost or is long:
    the penalty would set hardly any coordinate of the least-squares solution, `least`, to zero. Then, and for other
    penalties, the search starts from `least`, which is zero where there are fewer rows than columns.
    """
    if (np.abs(least) * column_norms(R) ** 2 > pieces.l1).mean() > _MOST:
        return least
    found = l1_minimiser(R, z, pieces)
    return least if found is None else found


def l1_minimiser(R: np.ndarray, z: np.ndarray, pieces: Pieces) -> np.ndarray | None:
    """Return the minimiser of 1/2 ||R t - z||^2 + g(t) for an L1 norm or an elastic net g, by the path to its weight.

    From zero this is much faster than a search: it takes a knot for each nonzero coordinate, where a search frees
    coordinates that it must hold again, most of all where there are fewer rows than columns.

    Parameters
    ----------
    R : ndarray of shape (n, d)
    z : ndarray of shape (n,)
    pieces : Pieces
        Of g; coordinates without a penalty are allowed.

    Returns
    -------
    ndarray of shape (d,) or None
        None if g has bounds or no kink, or if the path was lost.

    Examples
    --------
    >>> l1_minimiser(np.eye(2), np.array([3.0, 1.0]), Pieces(l1=np.array([0.0, 0.5]), l2=np.array([0.0, 1.0])))
    array([3.  , 0.25])
    """
    d = R.shape[1]
    l1, l2, low, high = (np.asarray(a, float) for a in pieces.each(d))
    if np.isfinite(low).any() or np.isfinite(high).any() or not l1.any():
        return None
    if (l2 > 0).any():  # a quadratic penalty counts as more rows of data
        R, z = np.concatenate([R, np.diag(l2**0.5)]), np.concatenate([z, np.zeros(d)])
    found, sure = l1_path(R, z, np.ones(1), l1)
    return found[0] if sure[0] else None


def l1_path(
    R: np.ndarray, z: np.ndarray, lams: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the L1 minimisers for several lam, and which of them are verified.

    A knot costs O(d f) with f nonzero coordinates, and about d knots are usual. Where columns are nearly collinear the
    path may be lost; the minimisers from there on are not verified, and are to be found by `prox`.

    Parameters
    ----------
    R : ndarray of shape (n, d)
    z : ndarray of shape (n,)
    lams : ndarray of shape (m,)
        Penalty weights >= 0, in descending order.
    weights : ndarray of shape (d,), optional
        By which the lam of each coordinate is multiplied; 1 by default. A coordinate of weight 0 is never at zero.

    Returns
    -------
    theta : ndarray of shape (m, d)
        The minimisers; NaN where the path was lost.
    sure : ndarray of shape (m,), bool
        Whether each of them is optimal up to rounding error.

    Examples
    --------
    >>> theta, sure = l1_path(np.eye(2), np.array([3.0, 1.0]), np.array([2.0, 0.5]))
    >>> theta
    array([[1. , 0. ],
           [2.5, 0.5]])
    """
    norms = column_norms(R)
    c = np.where(norms > 0, norms, 1)
    X = np.asfortranarray(R / c)
    w = 1 / c if weights is None else weights / c
    U = _follow(X, z, w, lams)
    return U / c, _judge(X, z, w, lams, U)


def _follow(X: np.ndarray, z: np.ndarray, w: np.ndarray, lams: np.ndarray) -> np.ndarray:
    """The minimisers of 1/2 ||X u - z||^2 + lam w'|u|; NaN where the path was lost."""
    d = len(w)
    nonzero = _Nonzero(X, product(X.T, z))
    U = np.full((len(lams), d), np.nan)
    done, lam = 0, np.inf
    if not all(nonzero.add(j, 0.0, 0.0) for j in np.flatnonzero(w == 0).tolist()):
        return U
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # quotients with a zero are not used
        for _ in range(20 * d + 100):
            at_zero, fall = nonzero.line()
            p, q = nonzero.slopes(at_zero, fall)
            # A coordinate at zero joins where its slope p + lam q reaches lam w or -lam w.
            room = np.concatenate([w - q, w + q])
            room[nonzero.order] = room[nonzero.order + d] = -1
            joins = np.where(room > 0, np.concatenate([p, -p]) / room, 0.0)
            join, leave = int(joins.argmax()), -1
            knot = joins[join]
            if len(fall):
                leaves = np.where(fall * nonzero.signs < 0, at_zero / fall, 0.0)
                leave = int(leaves.argmax())
                knot, leave = (leaves[leave], leave) if leaves[leave] > knot else (knot, -1)
            lam = min(lam, knot)
            while done < len(lams) and (lams[done] >= lam or lam <= 0):
                U[done] = 0
                U[done, nonzero.order] = nonzero.corrected(z, at_zero, fall, lams[done])
                done += 1
            if done == len(lams):
                break
            if leave >= 0:
                nonzero.drop(leave)
            elif not nonzero.add(join % d, sign := 1.0 if join < d else -1.0, sign * w[join % d]):
                break
    return U


class _Nonzero:
    """The nonzero coordinates in the order in which they joined, and the Cholesky factor of their part of G = X'X.

    Only their columns of G are computed. The factor is packed by columns, so that the factor of the first f coordinates
    is a leading slice.
    """

    def __init__(self, X: np.ndarray, b: np.ndarray) -> None:
        d = len(b)
        self.X, self.b, self.f = X, b, 0
        self._order, self._signs, self._pulls = np.empty(d, int), np.empty(d), np.empty(d)  # j, s, s w
        self._columns, self._gram = np.empty((len(X), d), order="F"), np.empty((d, d), order="F")  # of X and of G
        self._factor, self._solved = np.empty(d * (d + 1) // 2), np.empty((2, d))  # U, U^-T b and U^-T (s w)

    @property
    def order(self) -> np.ndarray:
        return self._order[: self.f]

    @property
    def signs(self) -> np.ndarray:
        return self._signs[: self.f]

    def line(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors a and b of t_A = a - lam b."""
        if self.f == 0:
            return np.empty(0), np.empty(0)
        first, second = self._solved[:, : self.f]
        return dtpsv(self.f, self._factor, first), dtpsv(self.f, self._factor, second)

    def slopes(self, at_zero: np.ndarray, fall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors p and q of X'(z - X u) = p + lam q."""
        gram = self._gram[:, : self.f]
        return self.b - gram @ at_zero, gram @ fall

    def corrected(self, z: np.ndarray, at_zero: np.ndarray, fall: np.ndarray, lam: float) -> np.ndarray:
        """Return t_A at lam, corrected by the residual of X itself: it restores digits that the Gram matrix loses."""
        f = self.f
        if f == 0:
            return at_zero
        X, u = self._columns[:, :f], at_zero - lam * fall
        left = (z - X @ u) @ X - lam * self._pulls[:f]
        u += dtpsv(f, self._factor, dtpsv(f, self._factor, left, trans=1))
        # At a knot the coordinate that joins or leaves is rounding error.
        return np.where((u * self.signs > 0) | (self.signs == 0), u, 0.0)

    def add(self, j: int, sign: float, pull: float) -> bool:
        """Add coordinate j; return False, and change nothing, where its column depends on those already there."""
        f = self.f
        row = self._gram[j, :f].copy()
        row = dtpsv(f, self._factor, row, trans=1) if f else row
        column = self.X.T @ self.X[:, j]
        pivot = column[j] - row @ row
        if pivot < _SMALLEST_PIVOT:
            return False
        pivot = pivot**0.5
        start = f * (f + 1) // 2
        self._factor[start : start + f], self._factor[start + f] = row, pivot
        before = self._solved[:, :f] @ row
        self._solved[0, f], self._solved[1, f] = (self.b[j] - before[0]) / pivot, (pull - before[1]) / pivot
        self._columns[:, f], self._gram[:, f] = self.X[:, j], column
        self._order[f], self._signs[f], self._pulls[f] = j, sign, pull
        self.f += 1
        return True

    def drop(self, i: int) -> None:
        """Remove the i-th coordinate and factor the rest again. O(f^3 / 3)."""
        self.f = f = self.f - 1
        for kept in (self._order, self._signs, self._pulls, self._columns, self._gram):
            kept[..., i:f] = kept[..., i + 1 : f + 1].copy()
        if f == 0:
            return
        factor, _ = dpotrf(self._gram[self.order, :f])
        packed, _ = dtrttp(factor)
        self._factor[: len(packed)] = packed
        self._solved[0, :f] = dtpsv(f, packed, self.b[self.order], trans=1)
        self._solved[1, :f] = dtpsv(f, packed, self._pulls[:f], trans=1)


def _judge(X: np.ndarray, z: np.ndarray, w: np.ndarray, lams: np.ndarray, U: np.ndarray) -> np.ndarray:
    """Return which rows of U are optimal up to rounding error, by the residual that `prox` uses too."""
    fit = product(X, U.T)
    slope = product(X.T, z[:, None] - fit).T
    pull = lams[:, None] * w
    away = np.where(U != 0, np.abs(slope - pull * np.sign(U)), np.abs(slope) - pull)
    terms = (np.linalg.norm(z) + np.linalg.norm(fit, axis=0))[:, None]
    lost = np.abs(U).sum(axis=1, keepdims=True) / (terms + np.finfo(float).tiny)
    least = rounding(len(w), float)
    allowed = np.clip(least * lost, least, max(least, default_tol(float)))
    return np.asarray((away <= allowed * (terms + pull)).all(axis=1))  # False for NaN
