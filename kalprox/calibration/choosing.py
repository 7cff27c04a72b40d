"""Which calibration judges the predictions of a likelihood."""

from kalprox.calibration.classes import CategoryCalibration, ClassCalibration
from kalprox.calibration.counts import CountCalibration
from kalprox.calibration.sums import Calibration
from kalprox.likelihoods import Likelihood

_KINDS: dict[str, type[Calibration]] = {
    "numbers": Calibration,
    "counts": CountCalibration,
    "two classes": ClassCalibration,
    "several classes": CategoryCalibration,
}


def calibration_for(likelihood: Likelihood) -> Calibration:
    """Return the calibration, of no rows yet, that judges the predictions of a likelihood.

    Parameters
    ----------
    likelihood : Likelihood

    Returns
    -------
    Calibration
        That of its `outcomes`, by its `predictive` distribution. Without one nothing can be judged, and the verdict
        says so.

    Examples
    --------
    >>> from kalprox.likelihoods import Poisson
    >>> type(calibration_for(Poisson())).__name__
    'CountCalibration'
    """
    if likelihood.predictive is None:
        return Calibration(not_judged=f"{likelihood!r} does not say its `predictive` distribution")
    return _KINDS[likelihood.outcomes](predictive=likelihood.predictive)
