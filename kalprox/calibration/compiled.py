"""The sums of a `Calibration` as one vector, to which the compiled kernel adds rows: equal to `blocks.block_sums`."""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, namespace
from kalprox.calibration.blocks import Rows
from kalprox.calibration.sequence import LAGS, SEGMENTS, VALUES
from kalprox.calibration.verdict import BINS, LEVELS
from kalprox.kernel.scores import ROW_VALUES, add_scores

__all__ = ["Added", "added", "fields_of", "sums_of"]

_SHAPES: dict[str, tuple[int, ...]] = {  # the fields of a `Calibration` that are in the vector, in this order
    "rows": (),
    "undetermined": (),
    "covered": (len(LEVELS),),
    "squares": (),
    "pit": (BINS,),
    "log_score": (),
    "errors": (),
    "squared_errors": (),
    "shared": (),
    "powers": (5,),
    "recent": (2, LAGS),
    "lagged": (2, LAGS + 1),
    "segments": (SEGMENTS, VALUES, VALUES),
    "segment_origins": (SEGMENTS,),
    "segment_shared": (SEGMENTS,),
    "segment_length": (),
}
_LENGTHS = [math.prod(shape) for shape in _SHAPES.values()]
_PLACES = {  # where a field begins and ends in the vector
    name: (sum(_LENGTHS[:i]), sum(_LENGTHS[: i + 1])) for i, name in enumerate(_SHAPES)
}
# The ends of the bins of the PIT and of the central intervals, as normal scores.
_ENDS = special.ndtri(np.concatenate([np.arange(1, BINS) / BINS, (1 + np.array(LEVELS)) / 2]))


class Added(NamedTuple):
    """What else is read from a block of rows: 0 for those that are not judged."""

    mean: Array
    weights: Array
    scores: Array


def sums_of(calibration: Any) -> Array | None:
    """Return the sums as a new vector; None if some are not those of NumPy, in float64."""
    values = [getattr(calibration, name) for name in _SHAPES]
    if namespace(*values) is not np or any(np.asarray(value).dtype != float for value in values):
        return None
    return np.concatenate([np.ravel(value) for value in values])


def fields_of(sums: Array) -> dict[str, Array]:
    """Return the fields that a vector of sums holds, which are views of it."""
    return {name: sums[start:stop].reshape(_SHAPES[name]) for name, (start, stop) in _PLACES.items()}


def added(sums: Array, rows: Rows) -> Added | None:
    """Add rows of NumPy to a vector of sums, in place. None, with nothing added, if these can be no rows."""
    mean, std, y, dof, weights, together, _ = rows
    y = np.asarray(y, float)
    block = np.empty((ROW_VALUES, y.size))
    weights = 1.0 if weights is None else weights
    together = math.nan if together is None else together
    for i, value in enumerate((mean, std, y, dof, weights, together)):
        if type(value) is not float and np.asarray(value).shape not in ((), (y.size,)):
            return None
        block[i] = value
    if not add_scores(sums, block, _ENDS):
        return None
    return Added(block[0], block[4], block[6])
