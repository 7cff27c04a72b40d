"""Observations some of which lie: the influence of a row on the estimate stays bounded."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from kalprox.base.arrays import Array, namespace, pytree, special_functions
from kalprox.likelihoods.base import Likelihood, normal_quadrature, plain
from kalprox.predictive import FromMoments, standard_quantile
from kalprox.predictive import Student as StudentPrediction

_MEDIAN_LIKE = 0.5  # the threshold of a first fit with `Huber`: nearly the median, which bears the most outliers
_FLAT = 1e-3  # the smallest second derivative of a row, by which its slope is divided
_LEAST = 0.05  # the smallest mean second derivative; it is smaller where most rows are far away


class Robust(Likelihood):
    """A loss scale^2 rho(r) of r = (y - f) / scale that grows more slowly than r^2 / 2: weights of rows fall with |r|.

    The loss has the units of the squares of the Gaussian likelihood, of which it is the robust version: a penalty has
    the same strength for both, in any units of y.

    Refinement descends with the parabola that touches the loss at f and lies above it, w r^2 / 2 with the weight
    w = psi(r) / r of the row and psi = rho', because the second derivative psi' may be zero or negative where |r| is
    large. What a row adds to the information is its slope and its second derivative, if that is positive: a row that
    lies adds a bounded slope, and no curvature. The covariance is that of an M-estimate, scale^2 E psi^2 / E psi' times
    (X' diag(psi') X)^-1, so that standard errors are right for normal errors, for heavy tails and for rows that lie. In
    a stream r is in units of sqrt(scale^2 + variance of f), the standard deviation of the prediction, so that a belief
    that knows little rejects little.
    """

    learns_noise: ClassVar[bool] = True
    parameter: ClassVar[str | None] = "scale"
    majorizes: ClassVar[bool] = True
    location: ClassVar[bool] = True
    predictive: ClassVar[type[FromMoments] | None] = StudentPrediction
    log_concave: ClassVar[bool] = False  # nor is it where the scale is learned
    family: ClassVar[str] = "robust"

    scale: Any
    spread: Any

    @abstractmethod
    def weight(self, r: Array) -> Array:
        """Return the weights psi(r) / r of rows with these errors in units of the scale.

        Parameters
        ----------
        r : array

        Returns
        -------
        array of the same shape
        """

    @abstractmethod
    def bend(self, r: Array) -> Array:
        """Return the second derivative psi'(r), which may be zero or negative.

        Parameters
        ----------
        r : array

        Returns
        -------
        array of the same shape
        """

    @abstractmethod
    def scale_score(self, r: Array) -> tuple[Array, Array]:
        """Return what has the mean zero if the scale is right, and by how much it falls with the log of the scale.

        Parameters
        ----------
        r : array

        Returns
        -------
        score, fall : arrays of the same shape

        Examples
        --------
        >>> from kalprox.likelihoods import Huber
        >>> score, fall = Huber().scale_score(np.array([0.0, 1.0, 100.0]))
        >>> score.round(3), fall.round(3)
        (array([-1.   ,  0.408,  1.547]), array([0.   , 2.816, 0.   ]))
        """

    @property
    @abstractmethod
    def model_bend(self) -> Any:
        """The mean of psi' if the errors have the distribution of the likelihood."""

    @property
    @abstractmethod
    def model_square(self) -> Any:
        """The mean of psi^2 if the errors have the distribution of the likelihood."""

    @property
    def error_dof(self) -> Any:
        """The degrees of freedom of the distribution of good rows: infinite if it is normal."""
        return np.inf

    @property
    def first(self) -> Likelihood | None:  # type: ignore[override]
        """A likelihood whose estimate refinement should start from."""
        return Huber(_MEDIAN_LIKE, scale=self.scale)

    @property
    def _names(self) -> tuple[str, ...]:
        return "scale", "spread"

    def with_model_numbers(self) -> Self:
        known = self.spread is not None
        return self if known else replace(self, spread=self.model_square / self.model_bend)  # type: ignore[type-var]

    @property
    def unit(self) -> Any:
        if self.scale is None:
            return 1.0
        return self.scale**2 * self.with_model_numbers().spread

    def expand(self, y: Array, f: Array) -> tuple[Array, Array]:
        weight = self.weight((y - f) / self.scale)
        return -weight * (y - f), weight

    def matched(self, y: Array, f: Array, variance: Array) -> tuple[Array, Array]:
        """Return the least-squares problem that a row adds to the information, given a belief about f.

        Parameters
        ----------
        y, f, variance : arrays of the same shape

        Returns
        -------
        targets, weights : arrays
            The slope divided by the second derivative, and the second derivative, if it is not too small. Both are
            those of errors in units of the standard deviation of the prediction.
        """
        xp = namespace(y, f, variance)
        r = self.standardised(y, f, variance)
        bend = xp.maximum(self.bend(r), _FLAT)
        return self.weight(r) * (y - f) / bend, bend

    def excess(self, y: Array, f: Array, variance: Any) -> Array:
        return self.matched(y, f, np.broadcast_to(variance, f.shape))[1] - self.bend(self.standardised(y, f, variance))

    def sums(self, y: Array, f: Array, variance: Array, counts: Array) -> Array:
        xp = namespace(y, f, counts)
        e = y - f
        if self.scale is None:
            found = (counts > 0) & (e != 0)
            if xp is np and not found.any():
                return np.zeros(2)
            size = xp.nanmedian(xp.where(found, xp.abs(e), xp.nan))
            return found.sum() * xp.stack([xp.log(size / _MEDIAN), 1 + 0 * size])
        share = self.scale**2 / (self.scale**2 + variance)  # of the noise in the variance of the prediction
        r = self.standardised(y, f, variance)
        score, fall = self.scale_score(r)
        bend, square, ones = self.bend(r), (self.weight(r) * r) ** 2, xp.ones_like(r)
        flagged = xp.where(self.is_outlier(r), ones, 0 * ones)
        parts = xp.stack([share * score, share**2 * fall, bend, bend**2, square, flagged, ones])
        return xp.where(counts[None] > 0, counts[None] * parts, 0).sum(axis=1)

    def standardised(self, y: Array, f: Array, variance: Any) -> Array:
        """Return errors of predictions in units of their standard deviations.

        Parameters
        ----------
        y, f : arrays of the same shape
        variance : array or float
            The variance of f.

        Returns
        -------
        array of the same shape

        Examples
        --------
        >>> from kalprox.likelihoods import Huber
        >>> Huber(scale=3.0).standardised(np.array([10.0]), np.array([0.0]), 16.0)
        array([2.])
        """
        return (y - f) / namespace(y, f, variance).sqrt(self.scale**2 + variance)

    def is_outlier(self, r: Array) -> Array:
        """Return whether rows with these standardised errors are outliers, as one of 1,000 good rows is.

        Parameters
        ----------
        r : array

        Returns
        -------
        array of bool of the same shape

        Examples
        --------
        >>> from kalprox.likelihoods import Huber
        >>> Huber().is_outlier(np.array([3.2, -3.4]))
        array([False,  True])
        """
        return namespace(r).abs(r) > standard_quantile(self.error_dof, 1 - FALSE_ALARMS / 2)

    def guess(self, sums: Array) -> Any:
        xp = namespace(sums)
        return xp.exp(sums[0] / xp.where(sums[1] > 0, sums[1], 1))

    def score(self, sums: Array, edf: Any = 0.0) -> Any:
        return sums[0] + edf

    def finished(self, current: Self, sums: Array, edf: Any = 0.0) -> Self:
        if self.spread is not None:
            return current
        # mean psi^2 / mean psi', corrected for the coefficients fitted as Huber did
        xp, (bend, squared_bend, square), rows = namespace(sums), sums[2:5], sums[-1]
        mean = xp.maximum(bend / rows, _LEAST)
        # Huber's correction for the coefficients fitted, as in the covariances of statsmodels.
        correction = 1 + edf / rows * (squared_bend / rows - mean**2) / mean**2
        spread = square / xp.maximum(rows - edf, 1) / mean * correction
        return replace(current, spread=plain(spread))  # type: ignore[type-var]

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> StudentPrediction:
        xp = namespace(f)
        return StudentPrediction(f, xp.sqrt(self.scale**2 * sigma**2 + leverage * noise.variance), noise.dof)

    def row_weights(self, y: Array, predicted: Any) -> Array:
        r = (y - predicted.mean) / predicted.std
        return self.weight(r) / self.weight(0 * r)


_MEDIAN = 0.6744897501960817  # of the absolute value of a standard normal variable
FALSE_ALARMS = 1e-3  # the share of good rows that are flagged


@pytree
class Huber(Robust):
    """A loss that is quadratic up to `threshold` standard deviations and linear beyond.

    With r = (y - f) / scale the loss is scale^2 r^2 / 2, or scale^2 threshold (|r| - threshold / 2) where |r| is
    larger. The scale is learned by Huber's proposal 2: the mean of the square of the cut r, over the residual degrees
    of freedom, is that of normal errors. Predictions are those of good rows, which are normal.

    Parameters
    ----------
    threshold : float
        With 1.345 the estimate has 95% of the efficiency of least squares if the noise is normal.
    scale : float or None
        The standard deviation of the noise of good rows. None means that it is learned, with `kalprox.refine` and
        `kalprox.proximal_filter`.
    spread : float or None
        The mean of psi^2 over that of psi', in the covariance of the estimate. None means that it is learned.

    References
    ----------
    P. J. Huber and E. M. Ronchetti, "Robust Statistics", 2nd edition, Wiley, 2009, sections 7.6 to 7.8.

    Examples
    --------
    >>> import numpy as np
    >>> Huber(scale=1.0).expand(np.array([0.5, 100.0]), np.array([0.0, 0.0]))
    (array([-0.5  , -1.345]), array([1.     , 0.01345]))
    >>> Huber().weight(np.array([1.0, 13.45])), Huber().bend(np.array([1.0, 13.45]))
    (array([1. , 0.1]), array([1., 0.]))
    >>> Huber().scale_score(np.array([0.0, 13.45]))[0].round(2)  # larger errors ask for a larger scale
    array([-1.  ,  1.55])
    """

    help: ClassVar[str] = "numbers with outliers, whose influence is bounded"
    first: ClassVar[Likelihood | None] = None
    positive: ClassVar[tuple[str, ...]] = "threshold", "scale", "spread"

    threshold: Any = 1.345
    scale: Any = None
    spread: Any = None

    def loss(self, y: Array, f: Array) -> Array:
        xp = namespace(y, f)
        size = xp.abs(y - f)
        low = xp.minimum(size, self.scale * self.threshold)
        return low * (size - low / 2)

    def weight(self, r: Array) -> Array:
        xp = namespace(r)
        return self.threshold / xp.maximum(xp.abs(r), self.threshold)

    def bend(self, r: Array) -> Array:
        return namespace(r).where(namespace(r).abs(r) <= self.threshold, 1.0, 0.0)

    def scale_score(self, r: Array) -> tuple[Array, Array]:
        square = (self.weight(r) * r) ** 2
        return square / self.model_square - 1, 2 * self.bend(r) * square / self.model_square

    @property
    def model_bend(self) -> Any:
        return 2 * special_functions(namespace(self.threshold)).ndtr(self.threshold) - 1

    @property
    def model_square(self) -> Any:
        xp, c, inside = namespace(self.threshold), self.threshold, self.model_bend
        return inside - 2 * c * xp.exp(-(c**2) / 2) / (2 * xp.pi) ** 0.5 + c**2 * (1 - inside)


@pytree
class Student(Robust):
    """Observations with the errors of Student's t distribution: rows far away lose their influence.

    With r = (y - f) / scale the loss is scale^2 (dof + 1) / 2 log(1 + r^2 / dof). It is not convex: refinement starts
    from the estimate of `Huber`. The scale is learned by maximum likelihood, with the residual degrees of freedom in
    place of the number of rows; it grows without bound where a share of 1 / (dof + 1) of the rows lie. In predictions
    the scale has the variance of the noise and of f together.

    Parameters
    ----------
    dof : float
        The degrees of freedom.
    scale : float or None
        The scale of the errors, smaller than their standard deviation. None means that it is learned, with
        `kalprox.refine` and `kalprox.proximal_filter`.
    spread : float or None
        The mean of psi^2 over that of psi', in the covariance of the estimate. None means that it is learned.

    References
    ----------
    K. L. Lange, R. J. A. Little and J. M. G. Taylor, "Robust statistical modeling using the t distribution", Journal
    of the American Statistical Association 84, 1989.

    Examples
    --------
    >>> import numpy as np
    >>> slope, curvature = Student(scale=1.0).expand(np.array([0.5, 100.0]), np.array([0.0, 0.0]))
    >>> slope.round(3), curvature.round(4)
    (array([-0.615, -0.04 ]), array([1.2308e+00, 4.0000e-04]))
    >>> Student().weight(np.array([0.0, 3.0])).round(3), Student().bend(np.array([0.0, 3.0])).round(3)
    (array([1.333, 0.333]), array([ 1.333, -0.167]))
    >>> Student().scale_score(np.array([0.0, 3.0]))[0]
    array([-1.,  2.])
    """

    help: ClassVar[str] = "numbers with the noise of Student's t distribution, where outliers lose their influence"
    positive: ClassVar[tuple[str, ...]] = "dof", "scale", "spread"

    dof: Any = 3.0
    scale: Any = None
    spread: Any = None

    def loss(self, y: Array, f: Array) -> Array:
        r = (y - f) / self.scale
        return self.scale**2 * (self.dof + 1) / 2 * namespace(r).log1p(r**2 / self.dof)

    def weight(self, r: Array) -> Array:
        return (self.dof + 1) / (self.dof + r**2)

    def bend(self, r: Array) -> Array:
        return self.weight(r) * (self.dof - r**2) / (self.dof + r**2)

    def scale_score(self, r: Array) -> tuple[Array, Array]:
        square = self.weight(r) * r**2
        return square - 1, 2 * square * self.dof / (self.dof + r**2)

    @property
    def model_bend(self) -> Any:
        return (self.dof + 1) / (self.dof + 3)

    @property
    def model_square(self) -> Any:
        return self.model_bend

    @property
    def error_dof(self) -> Any:
        return self.dof

    def predict(self, f: Array, leverage: Array, noise: Any, sigma: Any = 1) -> StudentPrediction:
        xp = namespace(f)
        shrunk = (self.dof - 2) / self.dof if self.dof > 2 else 1.0
        variance = self.scale**2 * sigma**2 + leverage * noise.variance * shrunk
        return StudentPrediction(f, xp.sqrt(variance), self.dof)


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
_NODES, _SHARES = normal_quadrature(64)
