"""The result of a run: the last state, what was recorded along the way, and the calibration of the predictions."""

from typing import Any

import jax
import numpy as np

from kalprox._arrays import namespace, pytree, register_pytrees
from kalprox.calibration import Calibration

__all__ = ["Diverged", "Run", "Trace", "stacked"]


@pytree
class Trace:
    """What was recorded along a run, stacked.

    Attributes
    ----------
    rows : array
        The number of rows learned at each record, shape (m,).
    mean : array
        The estimates, shape (m, d).
    var : array or None
        The variances, shape (m, d); None for an algorithm without a covariance.
    extra : object
        The results of the `record` function, stacked; None without one.

    Examples
    --------
    >>> import kalprox as kp
    >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
    >>> X, y = np.ones((4, 1)), np.array([1.0, 3.0, 2.0, 2.0])
    >>> trace = kp.run(alg, alg.init(np.zeros(1), 1e6), X, y, record_every=2).trace
    >>> trace.rows, np.asarray(trace.mean).round(3)
    (array([2, 4]), array([[2.],
           [2.]]))
    """

    rows: Any
    mean: Any
    var: Any
    extra: Any


@pytree
class Run:
    """The result of a run.

    Attributes
    ----------
    state : object
        The last state.
    trace : Trace
        What was recorded along the way.
    calibration : Calibration or None
        How the predictions of rows not yet learned compare with the rows; None unless `calibrate` was True.

    Examples
    --------
    >>> import kalprox as kp
    >>> alg = kp.ipm(kp.models.Linear(), gamma=1.0)
    >>> X, y = np.ones((4, 1)), np.array([1.0, 3.0, 2.0, 2.0])
    >>> out = kp.run(alg, alg.init(np.zeros(1), 1e6), X, y)
    >>> np.asarray(out.state.mean).round(3), out.calibration is None
    (array([2.]), True)
    """

    state: Any
    trace: Trace
    calibration: Calibration | None = None


register_pytrees()


class Diverged(FloatingPointError):
    """The estimate is no longer finite. The attribute `run` holds the last finite state and the trace up to it."""

    def __init__(self, message: str, so_far: Run):
        super().__init__(message)
        self.run = so_far


def stacked(trace: list[tuple[np.ndarray, Any]]) -> Trace:
    """The records of each piece of a run, as one trace."""
    if not trace:
        return Trace(np.zeros(0, int), None, None, None)
    rows, records = zip(*trace, strict=True)
    return Trace(np.concatenate(rows), *jax.tree_util.tree_map(lambda *r: namespace(*r).concatenate(r), *records))
