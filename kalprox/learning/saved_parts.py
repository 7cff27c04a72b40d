"""Parts that the files of several kinds of belief have: what is saved of them, and how it is restored and checked."""

from typing import Any

import numpy as np

from kalprox.information import Information
from kalprox.learning.design import Design
from kalprox.learning.saved import Saved, expect, expect_information
from kalprox.learning.settings import Settings
from kalprox.likelihoods.parameters import Learned

__all__ = ["restored_design", "restored_information", "restored_learned", "restored_time", "saved_design"]


def saved_design(design: Design) -> dict[str, Any]:
    """Return the centre and the scale of a design that the first rows fixed."""
    if design.center is None:
        return {}
    more = {"outputs": design.outputs, "row_offsets": design.row_offsets}
    return {"design": {"center": design.center, "scale": design.scale, **{k: v for k, v in more.items() if v}}}


def restored_design(settings: Settings, d: int, saved: Saved) -> Design:
    """Return the design that `saved_design` was given."""
    if not isinstance(settings.link, str):
        return Design()
    center, scale = saved["design.center"], saved["design.scale"]
    expect(center.shape == scale.shape == (d,) and (scale > 0).all())
    outputs = saved.count("design.outputs") if "design.outputs" in saved.header else None
    expect(outputs is None or outputs >= 2)
    row_offsets = saved.header.get("design.row_offsets", False)
    expect(isinstance(row_offsets, bool))
    return Design(center, scale, settings.fit_intercept, outputs=outputs, row_offsets=row_offsets)


def restored_learned(settings: Settings, saved: Saved) -> Learned | None:
    """Return what was known of the parameter of the likelihood; None if nothing was."""
    if "learned" not in saved:
        return None
    learned = saved.value(Learned, "learned")
    expect(learned.numbers.shape == settings.likelihood.numbers.shape and (learned.numbers >= 0).all())
    expect(learned.sums.ndim == 1 and len(learned.sums) > 1)
    return learned


def restored_time(settings: Settings, saved: Saved) -> float | None:
    """Return the time of the last row, if a file has one; raise a ValueError if it has one for no reason."""
    expect(settings.by_time or "time" not in saved)
    if "time" not in saved:
        return None
    expect(saved["time"].shape == ())
    return float(saved["time"])


def restored_information(saved: Saved, name: str, d: int, targets: int | None, forget: float) -> Information:
    """Return the information that was saved under `name`; raise a ValueError if the arrays are invalid.

    Files of version 0.1.0 have neither `lost` nor `squares`. With m rows, each fading those before it by `forget`, rows
    is (1 - forget^m) / (1 - forget) and squares (1 - forget^(2m)) / (1 - forget^2), so that squares = rows (1 +
    forget^m) / (1 + forget) follows from rows alone.
    """
    lost = saved.arrays.get(f"{name}.lost")
    static: dict[str, Any] = {"targets": targets, "lost": lost}
    if f"{name}.squares" not in saved:
        rows = saved[f"{name}.rows"]
        static["squares"] = rows * (2 - np.minimum((1 - forget) * rows, 1)) / (1 + forget)
    info = saved.value(Information, name, **static)
    expect_information(info, d, targets)
    return Information(info.T, info.shift, info.rows[()], info.squares[()], targets, lost)
