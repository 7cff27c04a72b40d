"""Minimisation of a quadratic function plus g by products with its Hessian, which is never formed.

The minimiser of 1/2 p'Hp - b'p + g(theta + p) is found by Newton steps whose equations preconditioned conjugate
gradients solve. If g has kinks or bounds, each Newton step moves the free coordinates only, and is preceded by a
proximal gradient step in a diagonal metric, which frees coordinates and holds others: zeros are exact.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kalprox.regularizers import Regularizer
from kalprox.solvers.terms import Terms, terms_of

Product = Callable[[np.ndarray], np.ndarray]

_MAX_ROUNDS = 500  # of proximal and Newton steps; 1 for a quadratic g, 5 to 40 are usual for one with kinks
_MOST = 5000  # products of one run of conjugate gradients
_FEW = 50  # and while coordinates are still freed and held
_SETTLED = 1e-12  # a relative change of the estimate by another tangent that is rounding error
_ROUGH = 0.1  # the share of the residual that is left then
_ROUNDING = 1e-14  # of the value of g
_PATIENCE = 10  # rounds without a smaller residual, after which only rounding is left
_SHRINK = 0.7  # how the proximal steps grow after one that went well


class Operator(NamedTuple):
    """A symmetric positive semidefinite matrix H by its products, its diagonal, and a preconditioner.

    Parameters
    ----------
    product : callable
        Maps v to H v.
    diagonal : array of shape (d,)
        The diagonal of H.
    solve : callable, optional
        Maps r to P^-1 r, with P a positive definite approximation of H. By default it is the diagonal of H + Hess g.
    """

    product: Product
    diagonal: np.ndarray
    solve: Product | None = None


def minimise(H: Operator, b: np.ndarray, g: Regularizer, theta: np.ndarray, tol: float) -> np.ndarray:
    """Return the p that minimises 1/2 p'Hp - b'p + g(theta + p).

    Parameters
    ----------
    H : Operator
    b : array of shape (d,)
    g : Regularizer
    theta : array of shape (d,)
        Where g is finite.
    tol : float
        The search ends where the optimality residual is this share of the one at p = 0, in units of the diagonal.

    Returns
    -------
    array of shape (d,)
    """
    p = np.zeros_like(theta)
    for _ in range(_MAX_ROUNDS):
        tangent, before = g.tangent(theta + p), p
        p = _Search(H, b, terms_of(tangent, len(theta)), theta).run(tol)
        if tangent is g or np.abs(p - before).max() <= _SETTLED * np.abs(theta + p).max():
            break
    return p


class _Search:
    """The state of a search: t = theta + p, and what is left of b - H p."""

    def __init__(self, H: Operator, b: np.ndarray, terms: Terms, theta: np.ndarray) -> None:
        self.H, self.terms, self.theta = H, terms, theta
        self.t, self.p, self.r = theta.copy(), np.zeros_like(theta), b.copy()
        self.length = 1.0  # that H is at most this times its diagonal, as far as is known

    def run(self, tol: float) -> np.ndarray:
        first, free = self._residual(), None
        target, best, since = tol * first, np.inf, 0
        for _ in range(_MAX_ROUNDS):
            left = self._residual()
            best, since = (left, 0) if left < best else (best, since + 1)
            if not left > target or since > _PATIENCE:
                break
            if not self.terms.smooth and not self._proximal_step():
                break
            before, free = free, self.terms.free(self.t)
            settled = self.terms.smooth or (before is not None and bool((before == free).all()))
            left = self._residual(free)
            if left > target / 2:
                share = target / 2 / left
                share = share if settled and self.terms.quadratic else max(share, 1e-3 if settled else _ROUGH)
                if not self._newton_step(free, share, _MOST if settled else _FEW) and self.terms.smooth:
                    break
        at_kink = ~self.terms.free(self.t)  # exactly there, whatever rounding has left in the sum of the steps
        return self.terms.within(self.theta, np.where(at_kink, self.t - self.theta, self.p))

    def _scales(self) -> np.ndarray:
        """The diagonal of H + Hess g; 1 where it is not positive."""
        total: np.ndarray = self.H.diagonal + self.terms.curvature(self.t)[1]
        return np.where(total > 0, total, 1.0)

    def _residual(self, free: np.ndarray | None = None) -> float:
        """The size of the optimality residual, of the free coordinates or of all."""
        q = self.terms.descent(self.t, self.r)
        q = q if free is None else np.where(free, q, 0.0)
        return float(np.sqrt(q @ (q / self._scales())))

    def _move(self, t: np.ndarray, change: np.ndarray, Hchange: np.ndarray) -> None:
        self.t, self.p, self.r = t, self.p + change, self.r - Hchange

    def _proximal_step(self) -> bool:
        """Take a proximal gradient step in a diagonal metric; return whether there was one to take."""
        metric = np.where(self.H.diagonal > 0, self.H.diagonal, 1.0)
        for _ in range(60):
            scale = self.length * metric
            new = self.terms.prox(self.t + self.r / scale, scale)
            change = new - self.t
            size = float(change @ (metric * change))
            if size == 0:
                return True  # only free coordinates are left to move, or none
            Hchange = self.H.product(change)
            curve = float(change @ Hchange)
            if curve <= self.length * size * (1 + 1e-9):
                self._move(new, change, Hchange)
                self.length = max(self.length * _SHRINK, curve / size)
                return True
            self.length = max(1.1 * curve / size, 1.5 * self.length)
        return False

    def _newton_step(self, free: np.ndarray, share: float, most: int) -> bool:
        """Move the free coordinates towards the minimiser over them; return whether the objective decreased."""
        x, Hx = self._solved(free, share, most)
        t, terms = self.t, self.terms
        if terms.quadratic and terms.stopped(t, x) is None:
            self._move(t + x, x, Hx)
            return True
        slope, curve, value = float(self.r @ x), float(x @ Hx), terms.value(t)
        along = 1.0
        for _ in range(40):
            new, change, Hchange = t + along * x, along * x, along * Hx
            gain = along * slope - along**2 * curve / 2
            if (stopped := terms.stopped(t, change)) is not None:
                new, change = stopped, stopped - t
                Hchange = self.H.product(change)
                gain = float(change @ (self.r - Hchange / 2))
            if gain + value - terms.value(new) > -_ROUNDING * abs(value):
                self._move(new, change, Hchange)
                return True
            along /= 2 if along > 1e-3 else 10
        return False

    def _solved(self, free: np.ndarray, share: float, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x and H x, with x about the solution of (H + Hess g) x = q on the free coordinates.

        q is the optimality residual there, of which this share may be left.
        """
        extra, _ = self.terms.curvature(self.t)
        H = self.H._replace(product=lambda v: self.H.product(v) + extra(v), diagonal=self._scales())
        q = np.where(free, self.terms.descent(self.t, self.r), 0.0)
        x, Mx = conjugate_gradients(H, q, free, share, most)
        return x, Mx - extra(x)


def conjugate_gradients(
    H: Operator, b: np.ndarray, free: np.ndarray, share: float, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return x and H x, with x about the solution of H x = b on the free coordinates, zero on the others.

    It ends when this share of the residual is left, in the units of the preconditioner, after so many products at most,
    and earlier along a direction without curvature.

    Parameters
    ----------
    H : Operator
    b : array of shape (d,)
        Zero on the coordinates that are not free.
    free : array of bool, shape (d,)
    share : float
    most : int

    Returns
    -------
    x, Hx : array of shape (d,)
        H x has all coordinates.
    """
    everywhere, scales = bool(free.all()), np.where(H.diagonal > 0, H.diagonal, 1.0)

    def on_free(v: np.ndarray) -> np.ndarray:
        return v if everywhere else np.where(free, v, 0.0)

    def solve(r: np.ndarray) -> np.ndarray:
        return on_free(r / scales if H.solve is None else H.solve(r))

    x, Hx, r = np.zeros_like(b), np.zeros_like(b), b
    v = z = solve(r)
    left = first = float(r @ z)
    for _ in range(most):
        Hv = H.product(v)
        curve = float(v @ Hv)
        if not curve > 1e-14 * float(v @ (scales * v)):
            if not x.any():
                x, Hx = v.copy(), Hv
            break
        along = left / curve
        x += along * v
        Hv *= along
        Hx += Hv
        r = r - on_free(Hv)
        z = solve(r)
        before, left = left, float(r @ z)
        if not left > share**2 * first:
            break
        v = z + left / before * v
    return x, Hx
