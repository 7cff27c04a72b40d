"""The Jacobian of the rows of a block by its products J v and J'u, for models of so many parameters that a block of the
Jacobian, let alone a matrix of all pairs of parameters, should not be formed.

Rows of inputs may be a sparse matrix, which stays sparse.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array
from kalprox.base.control import call_jax, compiled
from kalprox.information.linearized import Expansion, Sums, expansion, sums_of
from kalprox.likelihoods import Likelihood
from kalprox.models import Function, Linear, Model, Offset, Predictor, padded
from kalprox.sources import Block

_BYTES = 1 << 25  # of the explicit rows of a Jacobian at a time
_CHUNK = 4096  # rows of a function at a time


@dataclass
class Inputs:
    """The Jacobian J of the outputs of b rows, shape (b,) or (b, m), with respect to d parameters: here as it is.

    An offset is added to the outputs, and J does not depend on it. If the outputs of a row interact in the loss, J is a
    matrix L of shape (m, m) for each row times the Jacobian of the outputs.
    """

    model: Any
    theta: Array
    X: Any
    offset: Any = 0.0
    L: Array | None = None

    @cached_property
    def _at(self) -> tuple[Array, Array]:
        found: tuple[Array, Array] = self.model.linearize_rows(self.theta, self.X)
        return found

    def value(self) -> Array:
        """Return the outputs."""
        return self._at[0] + self.offset

    def times(self, v: Array) -> Array:
        """Return J v, of the shape of the outputs."""
        Jv = self._times(v)
        return Jv if self.L is None else (self.L @ Jv[..., None])[..., 0]

    def _times(self, v: Array) -> Array:
        return self._at[1] @ v

    def transposed(self, u: Array) -> Array:
        """Return J'u, shape (d,), for u of the shape of the outputs."""
        return self._transposed(u if self.L is None else (np.swapaxes(self.L, -1, -2) @ u[..., None])[..., 0])

    def _transposed(self, u: Array) -> Array:
        D = self._at[1]
        return u.ravel() @ D.reshape(-1, D.shape[-1])

    def squares(self, w: Array) -> Array:
        """Return the diagonal of J' diag(w) J."""
        total = np.zeros_like(self.theta)
        for rows, D in pieces(self, len(w), w[0].size):
            total = total + w[rows].ravel() @ (D.reshape(-1, len(total)) ** 2)
        return total

    def explicit(self, rows: slice) -> Any:
        """Return the rows of J, shape (b, d) or (b, m, d); sparse of shape (b m, d) if the inputs are sparse."""
        D, L = self._explicit(rows), None if self.L is None else self.L[rows]
        if L is None:
            return D
        return scipy.sparse.block_diag(L, format="csr") @ D if scipy.sparse.issparse(D) else L @ D

    def _explicit(self, rows: slice) -> Any:
        return self._at[1][rows]


@dataclass
class PredictorInputs(Inputs):
    """J of h(x'theta), each row of which is x times the slope of the link, or of several linear outputs.

    Of several outputs theta is a matrix of one column for each.
    """

    @property
    def _outputs(self) -> int | None:
        return self.model.outputs if isinstance(self.model, Linear) else None

    def _columns(self, v: Array) -> Array:
        return v if self._outputs is None else v.reshape(-1, self._outputs)

    @cached_property
    def _link(self) -> tuple[Array, Array]:
        found: tuple[Array, Array] = self.model.link(np.asarray(self.X @ self._columns(self.theta)))
        return found

    @property
    def _slope(self) -> Any:
        return 1.0 if self.model.linear else self._link[1]

    def value(self) -> Array:
        return self._link[0] + self.offset

    def _times(self, v: Array) -> Array:
        return self._slope * np.asarray(self.X @ self._columns(v))

    def _transposed(self, u: Array) -> Array:
        return np.asarray(self.X.T @ (self._slope * u)).ravel()

    def squares(self, w: Array) -> Array:
        w = w if self.L is None else (w[:, :, None] * self.L**2).sum(axis=1)
        squared = self.X.multiply(self.X) if scipy.sparse.issparse(self.X) else self.X**2
        return np.asarray(squared.T @ (self._slope**2 * w)).ravel()

    def _explicit(self, rows: slice) -> Any:
        X, sparse = self.X[rows], scipy.sparse.issparse(self.X)
        if self._outputs is not None:
            if sparse:
                return scipy.sparse.kron(X, scipy.sparse.eye(self._outputs), format="csr")
            return self.model.linearize_rows(self.theta, X)[1]
        if self.model.linear:
            return X
        slope = self._slope[rows, None]
        return X.multiply(slope).tocsr() if sparse else slope * X


@dataclass
class FunctionInputs(Inputs):
    """J of a function, which JAX differentiates forward for J v and in reverse for J'u."""

    def value(self) -> Array:
        return self._forward(self.theta)[0] + self.offset

    def _times(self, v: Array) -> Array:
        return self._forward(v)[1]

    def _transposed(self, u: Array) -> Array:
        total = np.zeros_like(self.theta)
        for rows in _chunks(len(self.X)):
            X = padded(self.X[rows], self.theta.size)
            weights = np.zeros((len(X), *u.shape[1:]), u.dtype)
            weights[: len(u[rows])] = u[rows]
            total = total + call_jax(partial(compiled(_reverse), self.model), self.theta, X, weights)
        return total

    def _explicit(self, rows: slice) -> Array:
        return self.model.linearize_rows(self.theta, self.X[rows])[1]

    def _forward(self, v: Array) -> tuple[Array, Array]:
        """Return the outputs, and J v."""
        found = []
        for rows in _chunks(len(self.X)):
            X = self.X[rows]
            pair = call_jax(partial(compiled(_forward), self.model), self.theta, padded(X, self.theta.size), v)
            found.append([one[: len(X)] for one in pair])
        f, Jv = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return f, Jv


def inputs_of(model: Model, theta: Array, X: Any, offset: Any = 0.0) -> Inputs:
    """Return the Jacobian of a model at rows of inputs, by its products."""
    if isinstance(model, Offset):
        last = X[:, [-1]].toarray().ravel() if scipy.sparse.issparse(X) else X[:, -1]
        return inputs_of(model.model, theta, X[:, :-1], last)
    if isinstance(model, Predictor):
        return PredictorInputs(model, theta, X, offset)
    if scipy.sparse.issparse(X):
        raise ValueError(f"A sparse X needs a linear predictor; {type(model).__name__} takes dense rows: X.toarray().")
    return (FunctionInputs if isinstance(model, Function) else Inputs)(model, theta, X, offset)


def largest_move(model: Model, theta: Array, p: Array, block: Block) -> list[float]:
    """Return the largest change of an output of a row by a step p of theta, as a list of one, since lists add."""
    rows = counting(block).X
    return [float(np.abs(np.asarray(inputs_of(model, theta, rows).times(p))).max(initial=0.0))]


def pieces(inputs: Inputs, b: int, outputs: int) -> Iterator[tuple[slice, Any]]:
    """Yield the explicit rows of a Jacobian in pieces of bounded memory."""
    size = max(16, 1 << (_BYTES // (8 * len(inputs.theta) * outputs)).bit_length() >> 1)
    for i in range(0, b, size):
        rows = slice(i, min(i + size, b))
        yield rows, inputs.explicit(rows)


def _chunks(n: int) -> Iterator[slice]:
    return (slice(i, i + _CHUNK) for i in range(0, n, _CHUNK))


def _forward(model: Function, theta: Array, X: Array, v: Array) -> tuple[Array, Array]:
    import jax

    return jax.jvp(lambda t: jax.vmap(model.value, in_axes=(None, 0))(t, X), (theta,), (v,))


def _reverse(model: Function, theta: Array, X: Array, u: Array) -> Array:
    import jax

    return jax.vjp(lambda t: jax.vmap(model.value, in_axes=(None, 0))(t, X), theta)[1](u)[0]


def expand(model: Model, likelihood: Likelihood, theta: Array, block: Block, *, descent: bool = True) -> Expansion:
    """Expand the loss of a block at theta, see `kalprox.information.linearized.expand`, with `Inputs` as the Jacobian.

    The rows must have positive weights, see `counting`. Those of the least-squares problem, and their counts, are
    arrays.
    """
    likelihood.check(block.y)
    with np.errstate(all="ignore"):
        inputs = inputs_of(model, np.asarray(theta, block.y.dtype), block.X)
        f = inputs.value()
        if f.shape != block.y.shape:
            raise ValueError(f"y must have the shape of the model's output, {f.shape}; got {block.y.shape}.")
        if likelihood.interacts:
            inputs.L = likelihood.contrasts(f, np.broadcast_to(np.eye(f.shape[-1]), (*f.shape, f.shape[-1])))
        if likelihood.majorizes and not descent:
            targets, curvature = likelihood.matched(block.y, f, 0 * f)
        else:
            targets, curvature = likelihood.least_squares(block.y, f)
        at = expansion(likelihood, f, inputs, targets, curvature, block)
    ones = np.ones_like(at.targets)
    weights, counts = (ones if a is None else a for a in (at.weights, at.counts))
    return at._replace(weights=weights, counts=counts)


def counting(block: Block) -> Block:
    """Return the rows of positive weight; others may hold anything."""
    w = block.weights
    return block if w is None or (w > 0).all() else block.at(w > 0)


@dataclass(frozen=True)
class Gradient(Sums):
    """The sums over rows that one pass of refinement without a matrix returns."""

    loss: float
    rss: float  # sum of weights * targets^2
    size: float  # sum of weights * f^2
    slope: Array  # J'W targets, the negative gradient of the loss
    squares: Array  # the diagonal of J'WJ
    rows: float
    sums: Array | None = None  # what the likelihood learns from

    @property
    def finite(self) -> bool:
        """Whether all sums are finite."""
        total = self.loss + self.rss + self.size
        return bool(np.isfinite(total) and np.isfinite(self.slope).all() and np.isfinite(self.squares).all())


def gradient_of(model: Model, likelihood: Likelihood, theta: Array, block: Block) -> Gradient:
    """Return the loss of a block at theta, its gradient, and the diagonal of its curvature."""
    block = counting(block)
    with np.errstate(all="ignore"):
        at, shape = expand(model, likelihood, theta, block), block.y.shape
        w, e, inputs, counts = np.asarray(at.weights), at.targets, at.D, np.asarray(at.counts)
        sums = None if likelihood.parameter is None else np.asarray(sums_of(likelihood, at, block))
        slope, squares = inputs.transposed((w * e).reshape(shape)), inputs.squares(w.reshape(shape))
        rss, size = float(w @ e**2), float(w @ at.f**2)
        return Gradient(float(at.loss), rss, size, slope, squares, float(counts.sum()), sums)


def product_of(model: Model, likelihood: Likelihood, theta: Array, v: Array, block: Block) -> Array:
    """Return J'WJ v for a block, linearised at theta."""
    block = counting(block)
    if likelihood.quadratic:  # the weights do not depend on the outputs
        inputs, w = inputs_of(model, np.asarray(theta, block.y.dtype), block.X), block.weights
    else:
        at = expand(model, likelihood, theta, block)
        inputs, w = at.D, at.weights
    Jv = inputs.times(v)
    if w is None:
        return np.asarray(inputs.transposed(Jv))
    return np.asarray(inputs.transposed((w.reshape(len(Jv), -1) * Jv.reshape(len(Jv), -1)).reshape(Jv.shape)))


def curvature_products(model: Model, likelihood: Likelihood, theta: Array, p: Array, block: Block) -> Array:
    """Return J'W h_pp, with h_pp the second derivative of h along p, as `curvature_along` does."""
    block, s = counting(block), float(np.finfo(np.dtype(block.y.dtype)).eps) ** 0.5
    here, ahead = (expand(model, likelihood, at, block) for at in (theta, theta + s * p))
    with np.errstate(all="ignore"):
        bend = ahead.D.times(p / s) - here.D.times(p / s)
        return here.D.transposed(np.asarray(here.weights).reshape(bend.shape) * bend)


def explicit_rows(
    model: Model, likelihood: Likelihood, theta: Array, block: Block
) -> Iterator[tuple[Any, Array, Array]]:
    """Yield the linearised rows of a block in pieces: rows of J, array or CSR matrix, their targets and weights."""
    block = counting(block)
    at, outputs = expand(model, likelihood, theta, block, descent=False), block.y[0].size
    for rows, D in pieces(at.D, len(block), outputs):
        flat = slice(rows.start * outputs, rows.stop * outputs)
        D = D if scipy.sparse.issparse(D) else D.reshape(-1, D.shape[-1])
        yield D, at.targets[flat], np.asarray(at.weights)[flat]
