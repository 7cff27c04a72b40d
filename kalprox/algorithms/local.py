"""The loss near a point, to second order: what a step of the descent minimises together with the regulariser."""

from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import solve_triangular

from kalprox.base.arrays import Array
from kalprox.regularizers import Regularizer, Zero
from kalprox.solvers.prox import prox
from kalprox.solvers.terms import within_bounds


class Local(Protocol):
    """The quadratic function 1/2 p'Hp - b'p of a step p: the change of the loss, and of a prior, to second order."""

    def scales(self) -> Array:
        """Return the square roots of the diagonal of H, shape (d,)."""

    def decrease(self, p: Array) -> float:
        """Return b'p - 1/2 p'Hp."""

    def damped(self, mu: float, S: Array) -> "Local":
        """Return it with mu/2 ||S p||^2 added; a coordinate whose scale is zero is damped too, and does not move."""

    def pulled(self, pull: Array) -> "Local":
        """Return it with p'pull added."""

    def bent(self, E: Array) -> "Local":
        """Return it with 1/2 p'E p added; as it is, if there would be no minimum."""

    def step(self, g: Regularizer, theta: Array, accuracy: float) -> Array:
        """Return the p that minimises it plus g(theta + p).

        A method that finds p by iterations may leave this share of the optimality residual.
        """


class Triangle(NamedTuple):
    """1/2 ||R p - z||^2 up to a constant, with a triangle R of shape (d, d)."""

    R: Array
    z: Array

    def scales(self) -> Array:
        return np.linalg.norm(self.R, axis=0)

    def decrease(self, p: Array) -> float:
        Rp = self.R @ p
        return float(Rp @ (self.z - Rp / 2))

    def damped(self, mu: float, S: Array) -> "Triangle":
        if mu == 0:
            return self
        return stacked(self, np.diag(mu**0.5 * np.where(S > 0, S, 1.0)), np.zeros_like(S))

    def pulled(self, pull: Array) -> "Triangle":
        return Triangle(self.R, self.z - solve_triangular(self.R, pull, trans=1))

    def bent(self, E: Array) -> "Triangle":
        R, scale = self.R, self.scales()
        scale = np.where(scale > 0, scale, 1)
        A = R / scale
        try:
            U = np.linalg.cholesky(A.T @ A + E / scale[:, None] / scale).T
        except np.linalg.LinAlgError:
            return self
        return Triangle(U * scale, solve_triangular(U, A.T @ self.z, trans=1))

    def step(self, g: Regularizer, theta: Array, accuracy: float = 0.0) -> Array:
        R, z, A = self.R, self.z, g.root(theta.size)
        if A is None:
            p = prox(R, z + R @ theta, g, start=theta).theta - theta
            pieces = g.pieces()
            return p if pieces is None else within_bounds(theta, p, pieces.low, pieces.high)
        A = np.asarray(A, theta.dtype)  # solving for t, and subtracting theta, would cancel digits of p
        return prox(np.vstack([R, A]), np.concatenate([z, -A @ theta]), Zero()).theta


def stacked(local: Triangle, A: Array, b: Array) -> Triangle:
    """Return the triangle of 1/2 ||R p - z||^2 + 1/2 ||A p - b||^2, up to a constant."""
    R, z = local
    d = R.shape[1]
    T: Array = np.linalg.qr(np.column_stack([np.vstack([R, A]), np.concatenate([z, b])]), mode="r")
    return Triangle(T[:d, :d], T[:d, d])
