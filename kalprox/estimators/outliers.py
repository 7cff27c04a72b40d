"""The rows of a robust fit that lie outside, and their weights."""

from typing import NamedTuple

from kalprox.base.arrays import Array


class Outliers(NamedTuple):
    """The weights of rows, and which of them are outliers.

    Parameters
    ----------
    weights : array of shape (n,)
        The weight of each row in a robust fit, from 1 for a row that is exactly as predicted to 0 for one that has no
        influence; 1 for all rows if the likelihood is not robust.
    flags : array of bool, shape (n,)
        Whether the row is an outlier.
    """

    weights: Array
    flags: Array
