"""Which calibration judges the predictions of a likelihood."""

from kalprox.calibration.categories import CategoryCalibration
from kalprox.calibration.classes import ClassCalibration
from kalprox.calibration.counts import CountCalibration
from kalprox.calibration.sums import Calibration
from kalprox.likelihoods import Bernoulli, Categorical, Likelihood, NegativeBinomial, Poisson

__all__ = ["calibration_for"]

_KINDS: tuple[tuple[tuple[type, ...], type[Calibration]], ...] = (
    ((Bernoulli,), ClassCalibration),
    ((Categorical,), CategoryCalibration),
    ((Poisson, NegativeBinomial), CountCalibration),
)


def calibration_for(likelihood: Likelihood) -> Calibration:
    """Return the calibration, of no rows yet, that judges the predictions of a likelihood.

    Parameters
    ----------
    likelihood : Likelihood

    Returns
    -------
    Calibration
        A `ClassCalibration`, `CategoryCalibration` or `CountCalibration`; or that of numbers, which judges the mean and
        the std of a likelihood that is not one of kalprox as those of a normal distribution.

    Examples
    --------
    >>> type(calibration_for(Poisson())).__name__
    'CountCalibration'
    """
    return next((kind for family, kind in _KINDS if isinstance(likelihood, family)), Calibration)()
