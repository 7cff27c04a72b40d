"""Calibration: whether the uncertainty that predictions state agrees with their errors."""

from kalprox.calibration.checks import Check
from kalprox.calibration.choosing import calibration_for
from kalprox.calibration.classes import CategoryCalibration, ClassCalibration
from kalprox.calibration.counts import CountCalibration
from kalprox.calibration.sums import Calibration
from kalprox.calibration.verdict import BINS, FALSE_ALARMS, FEWEST_ROWS, LEVELS, ChangePoint, Changes, Verdict

__all__ = [
    "BINS",
    "FALSE_ALARMS",
    "FEWEST_ROWS",
    "LEVELS",
    "Calibration",
    "CategoryCalibration",
    "ChangePoint",
    "Changes",
    "Check",
    "ClassCalibration",
    "CountCalibration",
    "Verdict",
    "calibration_for",
]
