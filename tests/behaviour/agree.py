"""What two models of the same rows must have in common: everything, or as much as a single pass can promise."""

from dataclasses import dataclass

import numpy as np
from routes import Route
from scenarios import Scenario

__all__ = ["EQUAL", "Limits", "assert_agree", "limits"]

Readings = dict[str, np.ndarray]


@dataclass(frozen=True)
class Limits:
    """How far readings may be apart, and why.

    All of them `relative` to themselves, but standard errors and intervals of coefficients by a factor of exp(`share`)
    if that is given. Or, without `relative`, coefficients by `moved` standard errors, these by a factor of
    exp(`share`), and predictions by `shift` of their std.
    """

    why: str
    relative: float = 0.0
    moved: float = 0.0
    share: float = 0.0
    shift: float = 0.0


EQUAL = Limits("sums of the same numbers, in another order at most", relative=1e-9)
ERRORS_APART = Limits(
    "robust and clustered errors are sums of squares of rows as they were predicted, by the estimate of that time",
    relative=1e-9,
    share=0.25,
)
SEARCHED = Limits(
    "a search for the minimum ends when a step is 1e-10 of theta; errors add up over steps", relative=1e-6
)
ONE_PASS = Limits(
    "a single pass linearises each row once, completes gaps from the rows before, or weighs rows by how they were "
    "predicted so far: where the rows are cut matters, at 160 rows by less than half of a standard error",
    moved=0.5,
    share=0.25,
    shift=0.25,
)
MERGED = Limits(
    "each part of 53 or 80 rows was linearised, or completed, at its own estimate, which is sqrt(3) times as uncertain",
    moved=1.0,
    share=0.5,
    shift=0.5,
)
STRUCTURED = Limits(
    "a structure drops correlations after each batch, so that coefficients depend on the cuts; no bound is promised, "
    "but a prediction that moves by as much as the noise would be none",
    moved=np.inf,
    share=np.inf,
    shift=1.0,
)


def _completes_otherwise(scenario: Scenario, name: str) -> bool:
    """Whether gaps are completed by the rows before another one than in batches of the same size.

    `prequential` completes pieces of its rows, as any batch does. The command weighs what a gap leaves open of a class
    by the coefficients of another moment: 0.02 standard errors of difference.
    """
    if name == "prequential":
        return scenario.label("gaps") != "none"
    return name.startswith("stream") and scenario.label("gaps") == "marginalize" and scenario.classes > 0


def _file_is_a_stream(scenario: Scenario) -> bool:
    """Whether a file is learned in one pass, in the order of its rows, where `fit` has them all in memory.

    So are structures, robust errors, which need predictions, and models that are not linear and forget or have gaps.
    """
    return (
        scenario.label("errors") != "model"
        or scenario.label("structure") != "dense"
        or (not scenario.exact and (scenario.label("forget") != "nothing" or scenario.label("gaps") != "none"))
    )


def limits(scenario: Scenario, route: Route, name: str) -> Limits:
    """Return how far the readings of a way in may be from those that it must equal, and why."""
    in_pieces = scenario.label("gaps") != "none"
    if not (route.other_cuts or route.other_passes or _completes_otherwise(scenario, name)):
        return EQUAL
    as_stream = name == "file" and _file_is_a_stream(scenario)
    if route.other_passes and not route.other_cuts and not as_stream:
        return EQUAL if scenario.exact else SEARCHED
    if scenario.label("structure") != "dense":
        return STRUCTURED
    merged, robust = name.startswith("merged"), scenario.label("errors") != "model"
    by_order = (
        scenario.label("noise") == "inputs"
        or scenario.label("forget") == "auto"
        or in_pieces
        or (merged and scenario.label("penalty") == "l1 auto")  # the blocks that choose alpha are those of a part
    )
    if scenario.exact and not by_order:
        kinked = scenario.label("penalty") not in ("none", "ridge")
        return ERRORS_APART if robust and (merged or kinked or as_stream) else EQUAL
    return MERGED if merged else ONE_PASS


def assert_agree(ours: Readings, theirs: Readings, limit: Limits) -> None:
    assert ours.keys() == theirs.keys()
    if limit.relative:
        apart = ("se", "low", "high") if limit.share else ()
        for name in theirs.keys() - set(apart):
            np.testing.assert_allclose(
                ours[name], theirs[name], rtol=limit.relative, atol=limit.relative / 10, err_msg=name
            )
        if not limit.share:
            return
    assert ours["rows"] == theirs["rows"]
    known = np.isfinite(theirs["se"]) & np.isfinite(ours["se"]) & (theirs["se"] > 0) & (ours["se"] > 0)
    error = theirs["se"][known]
    ratio = np.abs(np.log(ours["se"][known] / error))
    assert (ratio < limit.share).all(), f"standard errors differ by factors of {np.exp(ratio)}"
    if limit.relative:
        return
    distance = np.abs(ours["coef"][known] - theirs["coef"][known]) / error
    assert (distance < limit.moved).all(), f"coefficients are {distance} standard errors apart"
    if "std" in theirs and np.isfinite(theirs["std"]).all():
        shift = np.abs(ours["mean"] - theirs["mean"]) / theirs["std"]
        assert (shift < limit.shift).all(), f"predictions are {shift} of their std apart"
