"""Penalties by name: a penalty turns the settings of an estimator into a regulariser g for each alpha.

To add a penalty, write a subclass of `Penalty` in this file and list it in `PENALTIES`. The estimator, the choice of
alpha and the command line need nothing else.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import check_positive
from kalprox.regularizers import L1, Box, ElasticNet, GroupL1, Regularizer, Ridge, Separable, SmoothL1, Zero

__all__ = ["PENALTIES", "Penalty"]

_ALPHAS = np.logspace(0, -4, 41)  # the default grid, relative to the largest alpha


@dataclass(frozen=True, eq=False)
class Penalty(ABC):
    """The penalty g = alpha * penalty(coef), with checked settings. Make one with `Penalty.of`.

    Attributes
    ----------
    kind : str, Regularizer or None
        The name of the penalty, the regulariser itself, or None, as the user gave it.
    alpha : float or "auto"
        The weight of the penalty; "auto" chooses it from the data.
    has_weight : bool
        Whether alpha multiplies the penalty.
    selection : {"evidence", "prediction"} or None
        How alpha="auto" is chosen: by maximising the evidence, or by predicting folds of rows from the others. None if
        the penalty has no alpha to choose.
    follows_l1_path : bool
        Whether `kalprox.solvers.l1_path` gives the solutions for all alphas at once.
    scale_free : bool
        Whether the penalty only sets bounds, in the units of the coefficients: standardised columns change nothing.
    help : str
        One line for the documentation and the command line.
    """

    alpha: Any
    l1_ratio: float
    delta: float
    groups: Any
    bounds: Any

    kind: ClassVar[Any]
    help: ClassVar[str]
    has_weight: ClassVar[bool] = True
    selection: ClassVar[Literal["evidence", "prediction"] | None] = "prediction"
    follows_l1_path: ClassVar[bool] = False
    scale_free: ClassVar[bool] = False

    @staticmethod
    def of(
        kind: Any,
        alpha: Any = 1.0,
        l1_ratio: float = 0.5,
        delta: float = 1.0,
        groups: Any = None,
        bounds: Any = (0.0, np.inf),
    ) -> "Penalty":
        """Return the penalty with these settings.

        Parameters
        ----------
        kind : str, Regularizer or None
            A name in `PENALTIES`, a regulariser, or None for no penalty.
        alpha : float or "auto"
            The weight of the penalty. It must be 1 if `kind` is a regulariser, which has its own weights.
        l1_ratio : float
            The share of the L1 norm in "elasticnet", between 0 and 1.
        delta : float
            The width of the rounded kink of "smooth_l1".
        groups : sequence of int
            One label per coefficient for "group"; -1 for a coefficient that is not penalised.
        bounds : pair
            The lower and the upper bound for "box", each a number or one per coefficient.

        Returns
        -------
        Penalty

        Examples
        --------
        >>> penalty = Penalty.of("elasticnet", alpha=4.0, l1_ratio=0.25)
        >>> penalty.regularizer(penalty.alpha)
        ElasticNet(l1=1.0, l2=3.0)
        >>> penalty.selection, Penalty.of("ridge").selection
        ('prediction', 'evidence')
        """
        settings = alpha, l1_ratio, delta, groups, bounds
        if kind is None:
            return NoPenalty(*settings)
        if isinstance(kind, Regularizer):
            return GivenPenalty(*settings, kind)
        if not (isinstance(kind, str) and kind in PENALTIES):
            raise ValueError(f"penalty must be None, one of {', '.join(PENALTIES)}, or a Regularizer; got {kind!r}.")
        return PENALTIES[kind](*settings)

    def __post_init__(self) -> None:
        if isinstance(self.alpha, str):
            if self.alpha != "auto":
                raise ValueError(f"alpha must be a number >= 0 or 'auto'; got {self.alpha!r}.")
        else:
            if self.alpha is None or np.ndim(self.alpha):
                raise ValueError(
                    f"alpha must be one number >= 0 or 'auto'; got {self.alpha!r}. For several alphas, fit one model "
                    "and call path(alphas)."
                )
            check_positive("alpha", self.alpha, strict=False)
        if not 0 <= self.l1_ratio <= 1:
            raise ValueError(f"l1_ratio must lie between 0 and 1; got {self.l1_ratio!r}.")

    @property
    def name(self) -> str:
        """One word for penalties that go with the same settings; see `kalprox.learning.rules`."""
        return str(self.kind)

    @abstractmethod
    def regularizer(self, alpha: float) -> Regularizer:
        """Return g for one alpha."""

    def largest_alpha(self, R: Array, z: Array) -> float:
        """Return the smallest alpha that shrinks (nearly) all coefficients to zero; z has shape (d, k)."""
        return float(np.abs(R.T @ z).max())

    def alphas(self, R: Array, z: Array) -> Array:
        """Return a descending grid of alphas in the scale of the data.

        Parameters
        ----------
        R : array of shape (d, d)
        z : array of shape (d,) or (d, k)

        Returns
        -------
        array of shape (m,)
            For "l1" and "group" the first is the smallest alpha at which all coefficients are zero.
        """
        largest = self.largest_alpha(R, z[:, None] if z.ndim == 1 else z)
        return (largest * (1 + 1e-13) or 1.0) * _ALPHAS  # 1e-13 more, lest rounding leave a coefficient nonzero


class RidgePenalty(Penalty):
    kind = "ridge"
    help = "1/2 ||coef||^2: shrinks all coefficients, and sets none to zero."
    selection = "evidence"

    def regularizer(self, alpha: float) -> Regularizer:
        return Ridge(float(alpha))

    def alphas(self, R: Array, z: Array) -> Array:
        return (np.linalg.norm(R) ** 2 or 1.0) * np.logspace(4, -10, 43)


class L1Penalty(Penalty):
    kind = "l1"
    help = "||coef||_1: sets coefficients to zero."
    follows_l1_path = True

    def regularizer(self, alpha: float) -> Regularizer:
        return L1(float(alpha))


class ElasticNetPenalty(Penalty):
    kind = "elasticnet"
    help = "l1_ratio ||coef||_1 + (1 - l1_ratio)/2 ||coef||^2: sets coefficients to zero, correlated ones jointly."

    def regularizer(self, alpha: float) -> Regularizer:
        return ElasticNet(alpha * self.l1_ratio, alpha * (1 - self.l1_ratio))

    def largest_alpha(self, R: Array, z: Array) -> float:
        return super().largest_alpha(R, z) / max(self.l1_ratio, 1e-3)


class SmoothL1Penalty(Penalty):
    kind = "smooth_l1"
    help = "sum(sqrt(1 + coef^2 / delta^2) - 1): the L1 norm, with its kink rounded over a width delta."

    def regularizer(self, alpha: float) -> Regularizer:
        return SmoothL1(float(alpha), self.delta)

    def largest_alpha(self, R: Array, z: Array) -> float:
        return super().largest_alpha(R, z) * self.delta


class GroupPenalty(Penalty):
    kind = "group"
    help = "sum of sqrt(size) ||coef_g||_2 over groups: sets all coefficients of a group to zero jointly."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups is None:
            raise ValueError("penalty='group' needs groups: one integer label per feature, -1 for no penalty.")

    def regularizer(self, alpha: float) -> Regularizer:
        return GroupL1(float(alpha), self.groups)

    def largest_alpha(self, R: Array, z: Array) -> float:
        labels, slopes = np.asarray(self.groups), R.T @ z
        groups = [labels == label for label in set(labels)]
        return float(max(np.linalg.norm(slopes[group], axis=0).max() / group.sum() ** 0.5 for group in groups))


class BoxPenalty(Penalty):
    kind = "box"
    help = "Keeps each coefficient between its bounds; alpha has no effect."
    has_weight = False
    selection = None
    scale_free = True

    def regularizer(self, alpha: float) -> Regularizer:
        low, high = self.bounds
        return Box(np.asarray(low, float), np.asarray(high, float))


class NoPenalty(Penalty):
    kind = None
    name = "none"
    help = "No penalty."
    has_weight = False
    selection = None

    def regularizer(self, alpha: float) -> Regularizer:
        return Zero()


@dataclass(frozen=True, eq=False)
class GivenPenalty(Penalty):
    """A regulariser given by the user."""

    kind: Any  # type: ignore[misc]  # of each instance, not of the class
    help = "A regulariser with its own weights."
    has_weight = False
    selection = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha != 1:
            raise ValueError(
                f"alpha must be 1 if penalty is a Regularizer, which has its own weights; got alpha={self.alpha!r} and "
                f"{type(self.kind).__name__}."
            )

    @property
    def name(self) -> str:
        own = "own ridge" if isinstance(self.kind, Separable) else "own quadratic"
        return own if self.kind.quadratic else "own"

    @property
    def scale_free(self) -> bool:  # type: ignore[override]
        return isinstance(self.kind, Box)

    def regularizer(self, alpha: float) -> Regularizer:
        g: Regularizer = self.kind
        return g


PENALTIES: dict[str, type[Penalty]] = {
    penalty.kind: penalty
    for penalty in (RidgePenalty, L1Penalty, ElasticNetPenalty, SmoothL1Penalty, GroupPenalty, BoxPenalty)
}
