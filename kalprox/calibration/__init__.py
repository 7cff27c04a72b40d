"""Calibration: whether the uncertainty that predictions state agrees with their errors."""

from kalprox.calibration.checks import Check
from kalprox.calibration.sums import Calibration
from kalprox.calibration.verdict import BINS, FALSE_ALARMS, FEWEST_ROWS, LEVELS, Verdict

__all__ = ["BINS", "FALSE_ALARMS", "FEWEST_ROWS", "LEVELS", "Calibration", "Check", "Verdict"]
