"""Normal observations among which some can be anything."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree, special_functions
from kalprox.likelihoods.robust import Robust

__all__ = ["Contaminated"]


@pytree
class Contaminated(Robust):
    """Normal observations among which some can be anything: a row far away has no influence at all.

    With r = (y - f) / scale the loss is scale^2 times -log(exp(-r^2 / 2) + exp(-threshold^2 / 2)), up to a constant:
    the mixture of a normal distribution and of one so wide that it looks flat. The weight of a row is the probability
    that it is a good one. The loss is not convex: refinement starts from the estimate of `Huber`. The scale is that of
    the rows with their weights. Predictions are those of good rows.

    Parameters
    ----------
    threshold : float
        The r at which a row is as likely to be good as not. With 3 the estimate has 98% of the efficiency of least
        squares if the noise is normal.
    scale : float or None
        The standard deviation of the noise of good rows. None means that it is learned, with `kalprox.refine` and
        `kalprox.proximal_filter`.
    spread : float or None
        The mean of psi^2 over that of psi', in the covariance of the estimate. None means that it is learned.

    Examples
    --------
    >>> import numpy as np
    >>> slope, curvature = Contaminated(scale=1.0).expand(np.array([0.5, 100.0]), np.array([0.0, 0.0]))
    >>> slope.round(3), curvature.round(3)
    (array([-0.494, -0.   ]), array([0.988, 0.   ]))
    >>> Contaminated().weight(np.array([0.0, 3.0, 10.0])).round(3), Contaminated().bend(np.array([0.0, 3.0])).round(3)
    (array([0.989, 0.5  , 0.   ]), array([ 0.989, -1.75 ]))
    >>> Contaminated().scale_score(np.array([0.0, 2.0, 10.0]))[0].round(2)
    array([-0.93,  2.83,  0.  ])
    """

    help: ClassVar[str] = "numbers, of which some can be anything and have no influence"
    positive: ClassVar[tuple[str, ...]] = "threshold", "scale", "spread"

    threshold: Any = 3.0
    scale: Any = None
    spread: Any = None

    def loss(self, y: Array, f: Array) -> Array:
        xp, r = namespace(y, f), (y - f) / self.scale
        flat = -(self.threshold**2) / 2 + 0 * r
        return self.scale**2 * (xp.logaddexp(0 * flat, flat) - xp.logaddexp(-(r**2) / 2, flat))

    def weight(self, r: Array) -> Array:
        xp = namespace(r)
        return xp.maximum(special_functions(xp).expit((self.threshold**2 - r**2) / 2), _TINY)

    def bend(self, r: Array) -> Array:
        weight = self.weight(r)
        return weight * (1 - r**2 * (1 - weight))

    def scale_score(self, r: Array) -> tuple[Array, Array]:
        weight = self.weight(r)
        square = self._mean(lambda z: self.weight(z) * z**2) / self._mean(self.weight)
        return weight * (r**2 - square), 2 * weight * r**2

    @property
    def model_bend(self) -> Any:
        return self._mean(self.bend)

    @property
    def model_square(self) -> Any:
        return self._mean(lambda z: (self.weight(z) * z) ** 2)

    def _mean(self, function: Callable[[Array], Array]) -> Any:
        """Return the mean of a function of a standard normal variable."""
        xp = namespace(self.threshold)
        return (xp.asarray(_SHARES) * function(xp.asarray(_NODES))).sum()


_TINY = 1e-30  # the smallest weight, by which is divided
_NODES, _SHARES = np.polynomial.hermite_e.hermegauss(64)
_SHARES = _SHARES / _SHARES.sum()
