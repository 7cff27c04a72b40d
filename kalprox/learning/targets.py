"""Targets outside the range of a link, which no coefficients can explain."""

from dataclasses import field, replace
from functools import partial
from typing import NoReturn

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, masked
from kalprox.base.text import Text, parameter, worded
from kalprox.base.tree import leaf, state
from kalprox.learning.design import Moments
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.models import LINKS
from kalprox.sources import Block, Source

_FALSE_ALARMS = 1e-3  # about the probability that targets with normal noise about the link are refused


@state
class Targets:
    """The moments of the targets, the least and the largest, and how many lie outside the range of the link."""

    moments: Moments = leaf(of="1")
    low: float
    high: float
    outside: float
    columns: float = field(default_factory=float)  # of targets that are classes; 0 for one number

    @classmethod
    def none(cls) -> "Targets":
        return cls(Moments(0.0, np.zeros(1), np.zeros(1)), 0.0, 0.0, 0.0)

    @classmethod
    def of(cls, settings: Settings, block: Block) -> "Targets":
        """Return the summary of a block."""
        y, outside = masked(block.weights, block.y), _outside(settings, block)[0]
        y = y if y.ndim == 1 else y[:, 0]  # of classes, whose targets are 0 or 1
        known = y if block.weights is None or not (block.weights > 0).any() else y[block.weights > 0]
        count = outside.sum() if block.weights is None else block.weights @ outside
        columns = 0.0 if block.y.ndim == 1 else float(block.y.shape[1])
        return cls(
            Moments.of(replace(block, X=y[:, None])), float(known.min()), float(known.max()), float(count), columns
        )

    def __add__(self, other: "Targets") -> "Targets":
        low, high = min(self.low, other.low), max(self.high, other.high)
        outside = self.outside + other.outside
        return Targets(self.moments + other.moments, low, high, outside, max(self.columns, other.columns))

    @property
    def outputs(self) -> int | None:
        """The number of outputs of a model of these targets; None for one that is a number."""
        return int(self.columns) or None


@state
class Seen:
    """The moments of X, and the targets, of all rows of a stream or of a source."""

    X: Moments
    y: Targets = leaf(of="1")
    offsets: float = field(default_factory=float)  # the number of rows with an offset

    @classmethod
    def nothing(cls, d: int) -> "Seen":
        """Return the summary of no rows."""
        return cls(Moments(0.0, np.zeros(d), np.zeros(d)), Targets.none())

    @classmethod
    def of(cls, settings: Settings, block: Block) -> "Seen":
        """Return the summary of a block."""
        if block.offset is not None:
            check(settings, way="offset")
        return cls(Moments.of(block), Targets.of(settings, block), 0.0 if block.offset is None else float(len(block)))

    def __add__(self, other: "Seen") -> "Seen":
        return Seen(self.X + other.X, self.y + other.y, self.offsets + other.offsets)


def accepts_any(settings: Settings) -> bool:
    """Whether targets outside the range of the link are learned."""
    return getattr(settings.likelihood, "targets", "range") == "any"


def check_targets(settings: Settings, seen: Targets, new: Targets, rows: Block | Source) -> None:
    """Raise a ValueError if targets lie outside the range of the link by more than noise can explain.

    Targets are h plus noise, so that some may lie outside the range. A target is refused if it lies outside by more
    than the largest of as many normal errors as there are rows; and so are all of them if their mean lies outside by
    more than the error of a mean. The standard deviation of the noise is the one given. If it is learned, a bound takes
    its place: that of the targets, and for a range of width w also the one with which even a prediction in the middle
    of the range leaves it as often as the targets do. Whatever the noise, symmetric noise about a value within a range
    with one end leaves it at most half of the time: more, beyond chance, is refused too. Half is not, since a value
    near the end explains it: so does a stream begin whose rows are sorted. With targets="any" nothing is refused.

    Parameters
    ----------
    settings : Settings
    seen : Targets
        Of all rows so far, those of `rows` included.
    new : Targets
        Of `rows` alone.
    rows : Block or Source
        The new rows, in which the error points out the targets.
    """
    found = _refused(settings, seen, new)
    if found is None:
        return
    reason, beyond = found
    if isinstance(rows, Block):
        _refuse(settings, reason, _outside(settings, rows, beyond)[0], " of this batch")
    _refuse(settings, reason, np.concatenate(rows.fold(partial(_outside, settings, beyond=beyond)).total or []), "")


def _refused(settings: Settings, seen: Targets, new: Targets) -> tuple[str, float] | None:
    """Return why targets are refused, and by how much they lie outside; None if none are."""
    bottom, top = _range(settings)
    n, mean = seen.moments.rows, float(seen.moments.mean[0])
    largest = max(bottom - new.low, new.high - top)
    if not settings.likelihood.location and largest > 0:
        return "where the likelihood gives them no probability", 0.0
    if accepts_any(settings) or largest <= 0 or n < (2 if settings.noise_var is None else 1):
        return None
    std, dof = _noise(settings, seen, top - bottom)
    if np.isinf(top - bottom) and 2 * seen.outside - n > _quantile(_FALSE_ALARMS, np.inf) * n**0.5:
        return f"as {seen.outside / n:.0%} of all do, more than half", 0.0
    if max(bottom - mean, mean - top) > _quantile(_FALSE_ALARMS, dof) * std / n**0.5:
        return f"and so does the mean of all, {mean:.4g}", 0.0
    limit = _quantile(_FALSE_ALARMS / n, dof) * std
    if largest > limit:
        return f"by more than noise with a standard deviation of {std:.3g} can explain", limit
    return None


def _noise(settings: Settings, seen: Targets, width: float) -> tuple[float, float]:
    """Return the standard deviation of the noise, or a bound of it, and its degrees of freedom."""
    if settings.noise_var is not None:
        return settings.noise_var**0.5, np.inf
    n = seen.moments.rows
    std = float(seen.moments.squares[0] / (n - 1)) ** 0.5
    # P(outside) is at least 2 Phi(-width / 2 / std), and at most `share`
    share = special.betaincinv(seen.outside + 1, max(n - seen.outside, 1e-3), 1 - _FALSE_ALARMS)
    return min(std, width / 2 / max(-special.ndtri(share / 2), 1e-300)), n - 1


def _quantile(tail: float, dof: float) -> float:
    return float(-special.ndtri(tail) if np.isinf(dof) else -special.stdtrit(dof, tail))


def _range(settings: Settings) -> tuple[float, float]:
    if not settings.likelihood.location:
        return settings.likelihood.support
    return LINKS[settings.link].range if settings.function is None else (-np.inf, np.inf)


def _outside(settings: Settings, block: Block, beyond: float = 0.0) -> list[Array]:
    """Return which targets of a block lie outside the range by more than `beyond`, as a list of one mask: lists add."""
    bottom, top = _range(settings)
    counts = np.ones(len(block), bool) if block.weights is None else block.weights > 0
    outside = (block.y < bottom - beyond) | (block.y > top + beyond)
    return [counts & (outside if outside.ndim == 1 else outside.any(axis=1))]


def _refuse(settings: Settings, reason: str, outside: Array, where: str) -> NoReturn:
    rows = np.flatnonzero(outside)
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    bottom, top = _range(settings)
    if not settings.likelihood.location:
        limits, given = settings.likelihood.limits, settings.parameters["likelihood"]
        about = Text.of(f"y must be {limits} with ", parameter("likelihood", given), f"; {len(rows)} of {len(outside)}")
        advice = f"targets{where} are not, in row(s) {shown}. Correct them, or choose another likelihood."
        raise ValueError(Text.of(about, " ", advice))
    raise ValueError(
        worded(
            f"y must lie between {bottom:.4g} and {top:.4g}, the range of {{link={settings.link!r}}}, up to noise. "
            f"{len(rows)} of {len(outside)} targets{where} lie outside, in row(s) {shown}, {reason}. Scale y or choose "
            "another link; if it is meant, set {targets='any'}{, a parameter of kalprox.likelihoods.Gaussian|}."
        )
    )
