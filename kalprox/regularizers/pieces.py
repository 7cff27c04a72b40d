"""The elementwise function that most separable regularisers are made of."""

from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array, namespace


class Pieces(NamedTuple):
    """phi(t) = l1 |t| + l2/2 t^2 on [low, high], infinite outside: at most one kink, and two bounds.

    Each of the four is a scalar or has one entry per coordinate. All formulas of the L1 norm, the elastic net, the box
    and their weighted versions follow from these four numbers.

    Parameters
    ----------
    l1, l2 : float or array
        The weights of |t| and of t^2 / 2.
    low, high : float or array
        The bounds; infinite where there is none.

    Examples
    --------
    >>> pieces = Pieces(l1=1.0, high=2.0)
    >>> pieces.prox(np.array([-0.5, 2.5, 9.0]), 1.0)
    array([0. , 1.5, 2. ])
    >>> pieces.slopes(np.array([0.0, 1.0, 2.0]))
    (array([-1.,  1.,  1.]), array([ 1.,  1., inf]))
    >>> pieces.weighted(np.array([0.0, 3.0])).l1
    array([0., 3.])
    """

    l1: Any = 0.0
    l2: Any = 0.0
    low: Any = -np.inf
    high: Any = np.inf

    def slopes(self, theta: Array) -> tuple[Array, Array]:
        """The left and right derivatives of l1 |t| + indicator: the ends of its subdifferential.

        They are infinite on the far side of a bound.

        Parameters
        ----------
        theta : array of shape (d,)

        Returns
        -------
        left, right : array of shape (d,)
        """
        xp = namespace(theta, self)
        left = xp.where(theta > 0, self.l1, -self.l1)
        right = xp.where(theta < 0, -self.l1, self.l1)
        return xp.where(theta <= self.low, -np.inf, left), xp.where(theta >= self.high, np.inf, right)

    def prox(self, v: Array, step: Any) -> Array:
        """argmin over t of 1/2 (t - v)^2 + step * phi(t): soft threshold, shrink, clip.

        Parameters
        ----------
        v : array of shape (d,)
        step : float or array of shape (d,)

        Returns
        -------
        array of shape (d,)
        """
        xp = namespace(v, self)
        soft = v - xp.clip(v, -step * self.l1, step * self.l1)
        return xp.clip(soft / (1 + step * self.l2), self.low, self.high)

    def weighted(self, w: Array) -> "Pieces":
        """The pieces of w_i phi(theta_i); where w_i = 0 the bounds are removed too.

        Parameters
        ----------
        w : array of shape (d,)
            The weights, at least 0.

        Returns
        -------
        Pieces
        """
        xp = namespace(w, self)
        low, high = xp.where(w > 0, self.low, -np.inf), xp.where(w > 0, self.high, np.inf)
        return Pieces(w * self.l1, w * self.l2, low, high)
