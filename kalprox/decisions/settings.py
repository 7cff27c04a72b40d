"""The settings of a bandit, checked once, and what a decision is."""

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.decisions.fleet import FadingFleet, Fleet, StillFleet
from kalprox.forgetting import Forgetting, forgetting_of
from kalprox.learning.pending import Key, as_key
from kalprox.learning.saving import from_plain_setting, plain_setting

FEATURES = ("separate", "shared")


class Decision(NamedTuple):
    """A decision of a `Bandit`, whose reward may come later.

    Parameters
    ----------
    key : int
        The number of the decision, which `Bandit.reward` takes.
    arm : str or int
        The name of the arm that was chosen.
    propensity : float
        The probability with which the rule chooses this arm here: exact for `greedy`, `ucb` and `epsilon`, where equal
        arms are chosen at random, and by Monte Carlo for `sample`; NaN if it was not asked for.
    values : array of shape (K,)
        What was compared, one number an arm: draws, bounds or means.

    Examples
    --------
    >>> from kalprox.decisions import Bandit, Decision
    >>> decision = Bandit(["a", "b"], random_state=0).epsilon([1.0, 0.5], epsilon=0.1)
    >>> isinstance(decision, Decision), decision.key, decision.propensity  # nothing is known: both are equally good
    (True, 0, 0.5)
    """

    key: int
    arm: Key
    propensity: float
    values: Array


@dataclass(frozen=True)
class BanditSettings:
    """The parameters of a `Bandit`, as they were given."""

    features: str
    alpha: float
    noise: float | str
    pooling: float
    fit_intercept: bool
    reward_mean: float | str
    forget: float | Forgetting
    max_pending: int
    propensity_draws: int

    def __post_init__(self) -> None:
        given: dict[str, Any] = vars(self)  # callers may ignore types
        if given["features"] not in FEATURES:
            raise ValueError(f"features must be 'separate' or 'shared'; got {self.features!r}.")
        check_positive("alpha", _number("alpha", self.alpha))
        if isinstance(self.noise, str):
            if self.noise != "learn":
                raise ValueError(f"noise must be 'learn' or the noise variance; got {self.noise!r}.")
        else:
            check_positive("noise", _number("noise", self.noise))
        if isinstance(self.reward_mean, str):
            if self.reward_mean != "learn":
                raise ValueError(f"reward_mean must be 'learn' or a number; got {self.reward_mean!r}.")
        elif not math.isfinite(_number("reward_mean", self.reward_mean)):
            raise ValueError(f"reward_mean must be finite; got {self.reward_mean!r}.")
        if self.reward_mean not in ("learn", 0) and not self.fit_intercept:
            raise ValueError(f"reward_mean={self.reward_mean!r} has no effect without an intercept: leave it out.")
        if not _number("pooling", self.pooling) > 0:
            raise ValueError(f"pooling must be a number > 0, a number of rows; got {self.pooling!r}.")
        if self.forgetting.name not in ("none", "number", "time"):
            raise ValueError(
                f"forget must be a number, which fades the rows of an arm with every row, or ByTime(half_life), which "
                f"fades all arms; got {self.forget!r}."
            )
        for name, least in (("max_pending", 1), ("propensity_draws", 0)):
            if not (isinstance(given[name], numbers.Integral) and given[name] >= least):
                raise ValueError(f"{name} must be a whole number >= {least}; got {given[name]!r}.")

    @property
    def shared(self) -> bool:
        """Whether one theta serves all arms."""
        return self.features == "shared"

    def fleet(self, K: int, d: int) -> Fleet:
        """Return the beliefs about d features of K arms without rows."""
        K, p = 1 if self.shared else K, d + self.fit_intercept
        noise = None if isinstance(self.noise, str) else float(self.noise)
        common = K, p, float(self.alpha), noise, float(self.pooling)
        forgetting = self.forgetting
        if not forgetting.forgets:
            return StillFleet(*common)
        return FadingFleet(*common, forget=forgetting.per_row)

    @property
    def forgetting(self) -> Forgetting:
        """How rows are forgotten."""
        return forgetting_of(self.forget)

    def plain(self) -> dict[str, Any]:
        """Return the parameters as JSON represents them; an infinite `pooling` too. `from_plain` returns them."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["forget"] = plain_setting("forget", self.forget)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in found.items()}


def from_plain(found: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a `Bandit` that `BanditSettings.plain` was called for."""
    return found | {"forget": from_plain_setting(found["forget"])}


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise ValueError(f"{name} must be a number; got {value!r}.")
    return float(value)


def numeric(name: str, values: Any) -> Array:
    """Return numbers as an array of float64; raise a ValueError that names the argument for anything else."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers in the shape of an array; got {values!r}.") from None


def check_probability(name: str, value: Any, *, strict: bool = False) -> float:
    """Return a number between 0 and 1, or strictly between; raise a ValueError for others."""
    number = _number(name, value)
    if not (0 < number < 1 if strict else 0 <= number <= 1):
        raise ValueError(f"{name} must lie {'strictly ' * strict}between 0 and 1; got {value!r}.")
    return number


def arm_names(arms: Any) -> list[Key]:
    """Return the names of arms, texts or whole numbers that differ; raise an error for others."""
    if isinstance(arms, (str, bytes)) or not isinstance(arms, Iterable):
        raise TypeError(f"arms must be a list of names, such as ['a', 'b']; got {arms!r}.")
    found = []
    for arm in arms:
        try:
            found.append(as_key(arm))
        except TypeError:
            raise TypeError(f"The name of an arm must be a text or a whole number; got {arm!r}.") from None
    twice = sorted({repr(arm) for arm in found if found.count(arm) > 1})
    if twice:
        raise ValueError(f"The names of arms must differ; {', '.join(twice)} occur(s) more than once.")
    if not found:
        raise ValueError("arms must have at least one name; got none.")
    return found
