"""Rows of classes, of counts and of outliers as proximal steps in a structured metric; the rows may be sparse.

A piece of b rows D, with targets y, weights w and what was known before, a mean m and a precision P, has the minimiser

    argmin_theta sum_i w_i loss(y_i, d_i'theta) + 1/2 (theta - m)'P(theta - m) = m + P^-1 D'c,

where c has b entries. So the search is about c, with G = D P^-1 D', and costs O(b^3) for each step of Newton's method,
however many parameters there are. The rows are then folded as they are linearised at the minimiser.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.algorithms.state import guessed_numbers, warn_of_outliers
from kalprox.base.arrays import Array
from kalprox.large.conjugate_gradients import Operator, Product, conjugate_gradients
from kalprox.large.information import Structured, Weighed, piece_rows
from kalprox.large.low_rank import PlusLowRank, cross
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.base import Learned
from kalprox.solvers.newton import damped

_PIECE = 256  # rows whose minimiser is found together, unless dense ones would take more than
_BYTES = 1 << 27
_CLOSE = 1e-4  # the change of an output, in units of its standard deviation, that ends the search
_GOOD = 0.01  # the change at which the minimiser counts as found
_SHARE, _PRODUCTS = 1e-6, 500  # what conjugate gradients leave of a residual, and how many products they may take
_CONSTANT = 1e-9  # the variance of a column, relative to its mean square, that is rounding error
_TINY = float(np.finfo(float).tiny)
_VAGUE = 20.0  # the variance of a predictor from which on its row says nothing about a dispersion


def learn_rows(
    data: Structured, given: Likelihood, learned: Learned | None, rows: Weighed, offset: Array
) -> tuple[Structured, Learned | None, bool]:
    """Return what is known after rows, and whether the minimiser was found for all pieces of them, of up to 256 rows.

    The mean after a piece is the minimiser of its loss and of what was known before it. The parameter of the likelihood
    is learned from how each piece was predicted.

    Parameters
    ----------
    data : Structured
        What is known before, of NumPy arrays.
    given : Likelihood
        With one output for each row, as it was given: it says what is learned.
    learned : Learned or None
        What is known of its parameter.
    rows : Weighed
        Of positive weight.
    offset : array of shape (b,)
        What is added to the predictor of each row.

    Returns
    -------
    data : Structured
    learned : Learned or None
    converged : bool
    """
    if learned is None and given.parameter is not None:
        f = np.asarray(rows.D @ data.mean) + offset
        learned = guessed_numbers(given, lambda one: one.sums(rows.targets, f, 0 * f, rows.counts))
    before, converged, length = learned, True, _PIECE
    if not scipy.sparse.issparse(rows.D):
        length = max(min(length, _BYTES // (8 * data.d)), piece_rows(data.rank))
    for i in range(0, len(offset), length):
        piece = Weighed(*(a[i : i + length] for a in rows))
        likelihood = given if learned is None else learned.likelihood(given)
        data, f, variance, good = _learn_piece(data, likelihood, piece, offset[i : i + length])
        if learned is not None:
            counts = piece.counts if likelihood.majorizes else np.where(variance < _VAGUE, piece.counts, 0.0)
            with np.errstate(all="ignore"):
                learned = learned.plus(given, likelihood.sums(piece.targets, f, variance, counts), None)
        converged &= good
    if learned is not None and before is not None:
        warn_of_outliers(given, before, learned)
    return data, learned, converged


@np.errstate(all="ignore")  # a step that overflows is halved
def minimiser(
    data: Structured, before: Structured, shift: Array | None, likelihood: Likelihood, rows: Weighed, offset: Array
) -> tuple[Array, bool]:
    """Return the minimiser of the loss of rows and of what was known before them, and whether it was found.

    Newton's method starts at the mean after the rows, learned piece by piece. Conjugate gradients solve its equations,
    with a pass over the rows for each product.

    Parameters
    ----------
    data, before : Structured
        After the rows and before them.
    shift : array of shape (d,) or None
        How far the centre of the columns has moved since `before`; None if there is no intercept, or it has not moved.
    likelihood : Likelihood
    rows : Weighed
        Of positive weight.
    offset : array of shape (b,)
    """
    D, w, everywhere = rows.D, rows.weights, np.ones(data.d, bool)
    apply, mean, precisions = _with_correlations(before, D, w), before.mean, 1 / data.variances()
    if shift is not None:
        apply, mean = _shifted(apply, shift), moved_intercept(mean, shift)

    def step(theta: Array, slope: Array, bend: Array) -> tuple[Array, Any]:
        H = Operator(lambda v: apply(v) + D.T @ (w * bend * (D @ v)), precisions, data.solve)
        move, _ = conjugate_gradients(H, apply(mean - theta) - D.T @ (w * slope), everywhere, _SHARE, _PRODUCTS)
        return move, 0.0 if likelihood.quadratic else np.sqrt((move**2 * precisions).max())

    def beyond(theta: Array) -> Any:
        return (theta - mean) @ apply(theta - mean) / 2

    return _newton(likelihood, rows, data.mean, lambda theta: D @ theta + offset, beyond, step, _GOOD)


def _with_correlations(before: Structured, D: Any, weights: Array) -> Product:
    """Return the products with what earlier rows say, with the correlations that the columns have in new rows.

    A diagonal claims more than its rows have said along contrasts of columns that go together. It would hold the
    estimate there, where the new rows say most of what is known. They also know how the columns go together: its
    entries keep their sizes, and have the correlations of the new rows, less a share as large as their error.
    """
    P, total = before.precision, weights.sum()
    if len(P.W) or P.base.layout.groups:
        return P.apply
    centre, squares = np.zeros(before.d), weights @ (D.multiply(D) if scipy.sparse.issparse(D) else D**2) / total
    if not scipy.sparse.issparse(D):  # columns that are centred do not go together with the intercept
        centre = weights @ D / total
    variances = squares - centre**2
    varying = variances > _CONSTANT * squares
    said = np.where(varying, P.base.p - before.prior_precision, 0.0) * max(0.0, 1 - before.d / len(weights))
    roots, rest = np.sqrt(said / np.where(varying, variances, 1.0)), P.base.p - said

    def apply(v: Array) -> Array:
        u = roots * v
        f = weights / total * (D @ u - centre @ u)
        return rest * v + roots * (D.T @ f - centre * f.sum())

    return apply


def _shifted(apply: Product, shift: Array) -> Product:
    """Return the products with a precision of which the columns had another centre."""

    def shifted(v: Array) -> Array:
        u = apply(moved_intercept(v, -shift))
        return u - shift * u[0]

    return shifted


def moved_intercept(theta: Array, shift: Array) -> Array:
    """Return theta with the intercept, its first entry, at a centre of the columns that has moved by `shift`."""
    theta = theta.copy()
    theta[0] += theta @ shift
    return theta


def _learn_piece(
    data: Structured, likelihood: Likelihood, rows: Weighed, offset: Array
) -> tuple[Structured, Array, Array, bool]:
    """Return the information after a piece, its outputs before it, their variances, and whether the search ended."""
    with np.errstate(all="ignore"):  # a step that overflows is halved
        f, G = np.asarray(rows.D @ data.mean) + offset, _products(data.precision, rows.D)
        if not (np.isfinite(f).all() and np.isfinite(G).all()):
            raise ValueError("The rows are too large for float64: their squares overflow. Scale the columns down.")
        c = np.zeros(len(f))
        if not data.rows > 0 and likelihood.first is not None:
            c, _ = _minimiser(likelihood.first, rows, f, G, c)
        c, good = _minimiser(likelihood, rows, f, G, c)
        at = f + G @ c
        variance = np.maximum(G.diagonal(), 0.0) * float(likelihood.unit)
        if likelihood.majorizes:  # what rows add to the information is not what a step descends with
            steps, curvature = likelihood.matched(rows.targets, at, variance)
        else:
            slope, curvature = likelihood.expand(rows.targets, at)
            curvature = np.maximum(curvature, _TINY)
            steps = -slope / curvature
    if not np.isfinite(at + steps).all():
        raise ValueError("The loss of a row has no finite value or slope at the estimate: the rows are rejected.")
    new = data.fold(rows.D, at + steps - offset, rows.weights * curvature, rows.counts)
    right = np.asarray(rows.D.T @ c)
    move = data.solve(right)
    move = move + data.solve(right - data.apply(move))  # a weak prior leaves few digits to the first solution
    return replace(new, mean=data.mean + move), f, variance, good  # the mean of `fold` is exact for fewer rows


def _products(P: PlusLowRank, D: Any) -> Array:
    """Return G = D P^-1 D', shape (b, b)."""
    if P.base.layout.groups:
        root = P.whitened(D.toarray() if scipy.sparse.issparse(D) else D)
        return cross(root, root)
    scaled = D.multiply(1 / P.base.p[None]).tocsr() if scipy.sparse.issparse(D) else D / P.base.p
    G, t = scaled @ D.T, np.asarray(scaled @ P.W.T)
    return (G.toarray() if scipy.sparse.issparse(G) else G) - P.inner(t) @ t.T


def _minimiser(likelihood: Likelihood, rows: Weighed, f0: Array, G: Array, c: Array) -> tuple[Array, bool]:
    """Return c of the minimiser of the loss of rows plus 1/2 c'Gc, where f = f0 + G c, and whether it was found.

    At the minimiser c + w loss'(f) is zero.
    """
    w, spread, one = rows.weights, np.maximum(G.diagonal(), 0.0), np.eye(len(c))

    def step(c: Array, slope: Array, bend: Array) -> tuple[Array, Any]:
        move = np.linalg.solve(one + (w * bend)[:, None] * G, -(c + w * slope))
        return move, (np.abs(G @ move) / np.sqrt(spread / (1 + w * bend * spread) + _TINY)).max()

    return _newton(likelihood, rows, c, lambda c: f0 + G @ c, lambda c: c @ (G @ c) / 2, step)


def _newton(
    likelihood: Likelihood,
    rows: Weighed,
    at: Array,
    outputs: Callable[[Array], Array],
    beyond: Callable[[Array], Any],
    step: Callable[[Array, Array, Array], tuple[Array, Any]],
    close: float = _CLOSE,
) -> tuple[Array, bool]:
    """Return the minimiser of the loss of rows plus a quadratic function, and whether it was found.

    Parameters
    ----------
    at : array
        Where the search begins, in some coordinates.
    outputs, beyond : callable
        Return the predictors of the rows, and the value of the function.
    step : callable
        Returns a step, given the slopes and curvatures of the losses, and its length in standard deviations.
    close : float
        The length of the last step.
    """

    def objective(at: Array) -> Any:
        return rows.weights @ likelihood.loss(rows.targets, outputs(at)) + beyond(at)

    def steps(at: Array) -> Iterator[tuple[Array, Any]]:
        slope, *bends = _slope_and_bends(likelihood, rows.targets, outputs(at))
        return (step(at, slope, bend) for bend in bends)

    at, length, _ = damped(objective, steps, at, close)
    return at, length <= _GOOD


def _slope_and_bends(likelihood: Likelihood, y: Array, f: Array) -> tuple[Array, ...]:
    """Return the slopes of the losses, and the curvatures of a step of Newton's method: the last one always descends.

    For a robust loss that is the curvature of a parabola above it; the second derivative leads there sooner.
    """
    slope, curvature = likelihood.expand(y, f)
    if not likelihood.majorizes:
        return slope, curvature
    return slope, likelihood.matched(y, f, 0 * f)[1], curvature
