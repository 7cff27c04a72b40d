"""Conformal intervals by quantile tracking: valid for any sequence of rows, whatever the model."""

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.tree import leaf, state
from kalprox.kernel.library import kernel
from kalprox.kernel.scores import move_quantiles

__all__ = ["CONFORMAL_LEVELS", "INTERVALS", "Quantiles"]

INTERVALS = ("gaussian", "conformal")  # the kinds of predictive intervals
CONFORMAL_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # of the intervals that are tracked
_SLOWEST = 0.02  # the step never gets smaller, so that the quantiles follow a stream that changes
_DECAY = 0.6
_FARTHEST = 2.0  # how far a block can move a quantile, in stds, if it misses all its rows
_SHARED = 0.25  # the exponent of the number of rows whose intervals share one quantile


@state
class Quantiles:
    """The tracked quantiles of the standardised errors z = (y - mean) / std, for each level and each side.

    An interval is mean - low * std to mean + high * std. For a level 1 - a, each side may be missed by a share a / 2 of
    the rows. After the rows of a block have come, each of its two quantiles q becomes

        q + eta * sum over the rows of (miss - a / 2),

    where a miss is an observation beyond the end of the interval that was issued before the block. Over a whole stream
    the sum of eta * (miss - a / 2) is therefore the last q minus the first: with a constant eta the share of misses
    differs from a / 2 by (q_last - q_first) / (eta rows), for any sequence of observations and any model. The step eta
    of one row is max(rows^-0.6, 0.02). That of a block of b rows, whose intervals share one q, is divided by b^0.25,
    and at most 2 / b.

    Attributes
    ----------
    ends : array of shape (levels, 2) or (levels, 2, k)
        (low, high) for each of `CONFORMAL_LEVELS`. The first ones are those of the normal distribution.
    rows : float
        The number of rows whose intervals were compared with their observations.
    missed : array of the shape of ends
        The numbers of these rows below and above the intervals that were issued for them.

    References
    ----------
    A. Angelopoulos, E. Candes and R. Tibshirani, "Conformal PID control for time series prediction", 2023, which tracks
    a quantile by its misses in the same way.

    Examples
    --------
    >>> quantiles = Quantiles.normal(None)
    >>> for z in np.random.default_rng(0).standard_t(3, size=2000):
    ...     quantiles = quantiles.after(np.array([z]))
    >>> low, high = quantiles.of(0.9)
    >>> bool(1.7 < low < 3.0 and 1.7 < high < 3.0)  # the quantile of Student's t with 3 degrees of freedom is 2.35
    True
    """

    ends: Array = leaf("5,2,k")
    rows: float = leaf(sign="nonnegative")
    missed: Array = leaf("5,2,k")

    @classmethod
    def normal(cls, targets: int | None) -> "Quantiles":
        """Return the quantiles of the normal distribution, from which the tracking starts."""
        q = special.ndtri((1 + np.array(CONFORMAL_LEVELS)) / 2)
        shape = (len(q), 2) if targets is None else (len(q), 2, targets)
        ends = np.broadcast_to(q.reshape(-1, *[1] * (len(shape) - 1)), shape).copy()
        return cls(ends, 0.0, np.zeros(shape))

    def after(self, z: Array, counts: Array | None = None) -> "Quantiles":
        """Return the quantiles after a block of rows whose intervals were issued together.

        Parameters
        ----------
        z : array of shape (b,) or (b, k)
            The standardised errors. Rows with NaN had no interval, and do not count. Neither do rows with an infinite
            one, whose std was 0: no multiple of it would have covered them.
        counts : array of shape (b,), optional
            How often each row counts; 1 by default.

        Returns
        -------
        Quantiles
        """
        return self.after_rows(z, np.full(len(z), len(z)), counts)

    def _after_batch(self, z: Array, counts: Array | None) -> "Quantiles":
        known = np.isfinite(z) if z.ndim == 1 else np.isfinite(z).all(axis=1)
        weights = known if counts is None else np.where(known, counts, 0)
        rows = float(weights.sum())
        if rows == 0:
            return self
        low, high = self.ends[:, 0, None], self.ends[:, 1, None]  # (levels, 1) or (levels, 1, k)
        w = weights[:, None] if z.ndim == 2 else weights
        missed = np.stack([(w * (-z[None] > low)).sum(axis=1), (w * (z[None] > high)).sum(axis=1)], axis=1)
        allowed = rows * _SIDES.reshape(-1, *[1] * (missed.ndim - 1))
        ends = self.ends + _step(self.rows, rows) * (missed - allowed)
        return Quantiles(ends, self.rows + rows, self.missed + missed)

    def after_rows(self, z: Array, together: Array, counts: Array | None = None) -> "Quantiles":
        """Return the quantiles after consecutive batches, with the bits that `after` gives for one after the other.

        `together` is the length of the batch that each row came in, 0 if no interval was issued for it. For the other
        parameters see `after`.
        """
        if z.ndim == 1 and kernel() is not None:
            return self._moved(z, counts, together)
        quantiles, i = self, 0
        while i < len(together):
            size = max(int(together[i]), 1)
            if together[i]:
                quantiles = quantiles._after_batch(z[i : i + size], None if counts is None else counts[i : i + size])
            i += size
        return quantiles

    def _moved(self, z: Array, counts: Array | None, together: Array) -> "Quantiles":
        """Return what `after_rows` says of one target, from the compiled kernel."""
        shape, size = self.ends.shape, self.ends.size
        vector = np.concatenate([self.ends.ravel(), [self.rows], self.missed.ravel()])
        rows = np.empty((3, len(z)))
        rows[0], rows[1], rows[2] = z, 1.0 if counts is None else counts, together
        move_quantiles(vector, rows, _STEPS)
        return Quantiles(vector[:size].reshape(shape), float(vector[size]), vector[size + 1 :].reshape(shape))

    def merge(self, other: "Quantiles") -> "Quantiles":
        """Return the mean of both, weighted by their rows, which is about what tracking all rows would give."""
        rows = self.rows + other.rows
        share = other.rows / rows if rows else 0.0
        return Quantiles(self.ends + share * (other.ends - self.ends), rows, self.missed + other.missed)

    @property
    def coverage(self) -> Array:
        """The share of the rows inside the intervals issued for them, for each level; (levels,) or (levels, k)."""
        return 1 - self.missed.sum(axis=1) / self.rows if self.rows else np.full_like(self.missed.sum(axis=1), np.nan)

    def of(self, level: float) -> tuple[Array, Array]:
        """Return the lower and the upper quantile of the interval of this level, numbers or of shape (k,)."""
        for known, (low, high) in zip(CONFORMAL_LEVELS, self.ends, strict=True):
            if abs(known - level) < 1e-9:
                return low, high
        raise ValueError(
            f"level must be one of {', '.join(map(str, CONFORMAL_LEVELS))} for conformal intervals, whose quantiles "
            f"are tracked while learning; got {level!r}."
        )


_SIDES = (1 - np.array(CONFORMAL_LEVELS)) / 2
_STEPS = np.array([*_SIDES, _SLOWEST, _DECAY, _SHARED, _FARTHEST])  # as the kernel takes them


def _step(before: float, rows: float) -> float:
    """Return eta for a block of this many rows after `before` others."""
    return float(min(max((before + rows) ** -_DECAY, _SLOWEST) / rows**_SHARED, _FARTHEST / rows))
