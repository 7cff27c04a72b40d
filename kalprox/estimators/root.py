"""A root of the covariance, and what it leaves undetermined."""

from dataclasses import dataclass

import numpy as np

from kalprox._arrays import Array
from kalprox.linalg.rank import inverse, rank
from kalprox.linalg.triangle import solve_triangular

__all__ = ["Root"]


@dataclass(frozen=True)
class Root:
    """The covariance in units of the noise, L L' on the coordinates `free`, infinite along `null`."""

    d: int
    free: Array  # indices, (f,)
    L: Array  # (f, r)
    null: Array  # (f, f - r): what nothing determines, in units of the columns
    units: Array  # (f,)

    @classmethod
    def of(cls, U: Array, free: Array, rows: Array, scale: Array) -> "Root":
        """From U'U = R'R + Hess g on the free coordinates, in units of 1 / scale."""
        f, units = len(free), scale[free]
        L = inverse(U, rows) if f else U
        r = f if L is not None else int(rank(U, rows))
        if r == f:
            L = solve_triangular(U, np.eye(f)) if L is None else L
            return cls(len(scale), free, L / units[:, None], np.zeros((f, 0)), units)
        norms = np.linalg.norm(U, axis=0)
        c = np.where(norms > 0, norms, 1)
        _, s, Vt = np.linalg.svd(U / c)
        L = Vt[:r].T / s[:r] / c[:, None]
        return cls(len(scale), free, L / units[:, None], Vt[r:].T, units * c)

    def leverage(self, X: Array) -> Array:
        """x' (R'R + H)^-1 x for each row of X; infinite where x has a part that nothing determines. O(d^2) a row."""
        X = X if len(self.free) == self.d else X[:, self.free]
        root = X @ self.L
        leverage = np.einsum("ij,ij->i", root, root)
        if self.null.shape[1] == 0:
            return leverage
        a = X / self.units
        unknown = ((a @ self.null) ** 2).sum(axis=1) > np.finfo(float).eps * (a**2).sum(axis=1)
        return np.where(unknown, np.inf, leverage)

    def covariance(self) -> Array:
        """L L' among all coordinates, (d, d): zero for those held at a kink or a bound."""
        C = self.L @ self.L.T
        if self.null.shape[1]:
            unknown = self.null @ self.null.T
            C = np.where(np.abs(unknown) > np.finfo(float).eps ** 0.5, np.copysign(np.inf, unknown), C)
        whole = np.zeros((self.d, self.d))
        whole[np.ix_(self.free, self.free)] = C
        return whole
