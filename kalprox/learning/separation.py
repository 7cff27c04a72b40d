"""Streams of classes and counts whose rows leave some direction of theta to the weak prior of the stream.

Where some columns separate the classes, or rows whose counts are all zero, there is no finite minimiser without a
penalty. The weak prior holds the estimate of a stream where it balances the rows: their loss falls exponentially along
the direction, by slopes that are as large as their curvature, so that without the prior the next step of Newton's
method would change the outputs of these rows by 1. In a stream that determines theta it changes them by next to
nothing. The prior has 1 / (1 + f) of the precision along the direction, where f is the output of the rows there, at
most 30 for any number of rows; it has less than 0.02 of that of a single event.
"""

import numpy as np

from kalprox.algorithms.proximal_filter import linearised_at_check
from kalprox.algorithms.state import ProximalState
from kalprox.base.arrays import Array

__all__ = ["SEPARATED", "SeparationWarning", "is_separated"]

SEPARATED = (
    "The rows leave some coefficients to the weak prior of the stream, since some columns separate the classes without "
    "an error, or rows whose counts are all zero (complete or quasi-complete separation): without it the coefficients "
    "run to infinity, and their standard errors say nothing. Set a penalty, such as penalty='ridge', or remove these "
    "columns."
)

_SHARE = 0.03  # of the precision of a direction, from which on the prior decides it
_UNKNOWN = 0.3  # the same, above which rows say next to nothing: of columns that are constant, or collinear
_MOVED = 0.6  # the change of an output by the step without the prior


class SeparationWarning(RuntimeWarning):
    """A stream of classes or counts has no finite estimate without a penalty: complete or quasi-complete separation."""


def is_separated(state: ProximalState, A: Array, origin: Array) -> bool:
    """Whether the rows that a state holds are separated, so that its weak prior decides some direction of theta.

    Rows that are separated are among those held, since their loss is not quadratic within the belief. O(d^3).

    Parameters
    ----------
    state : ProximalState
        Of a linear model of classes or counts.
    A : array of shape (d, d)
        The root of the weak prior, which adds ||A (theta - origin)||^2 / 2 to the objective.
    origin : array of shape (d,)
    """
    blocks = [] if state.held is None else [X for X in state.held.X if len(X)]
    if state.extrapolating is not None:
        blocks.append(state.extrapolating.X)
    if not blocks:
        return False
    posterior = (state if state.held is None else linearised_at_check(state)).posterior
    if not posterior.proper:
        return False
    shares, U = np.linalg.eigh(A @ np.asarray(posterior.metric_factors[0].covariance()) @ A.T)
    shares = np.where((shares > _SHARE) & (shares < _UNKNOWN), shares, 0.0)
    pull = shares / (1 - shares) * (U.T @ A @ (np.asarray(posterior.mean) - origin))
    if not pull.any():
        return False
    step, h = np.linalg.lstsq(A, U @ pull, rcond=None)[0], state.problem.model.linearize_rows
    return max(float(np.abs(h(step, X)[0] - h(0 * step, X)[0]).max()) for X in blocks) > _MOVED
