"""Penalties: what is preferred of the coefficients. The weight alpha of an estimator multiplies them.

A penalty is given by its name, such as penalty="l1", or as an object with parameters of its own, such as
penalty=ElasticNet(l1_ratio=0.2). To add one, write a subclass of `Penalty` in this file and list it in `PENALTIES`. The
estimators, the choice of alpha, model files and the command line need nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from kalprox import regularizers
from kalprox.base.arrays import Array
from kalprox.base.checks import Speaking, check_positive
from kalprox.regularizers import Regularizer

__all__ = ["L1", "MCP", "Box", "ElasticNet", "Group", "Penalty", "Ridge", "SmoothL1"]

_ALPHAS = np.logspace(0, -4, 41)  # the default grid, relative to the largest alpha


class Penalty(Speaking, ABC):
    """The base class of penalties: g(coef) = alpha * penalty(coef).

    Attributes
    ----------
    name : str
        One word for penalties that go with the same settings; see `kalprox.learning.rules`.
    help : str
        One line for the documentation and the command line.
    has_weight : bool
        Whether alpha multiplies the penalty.
    selection : {"evidence", "prediction"} or None
        How alpha="auto" is chosen: by maximising the evidence, or by predicting folds of rows from the others. None if
        the penalty has no alpha to choose.
    follows_l1_path : bool
        Whether `kalprox.solvers.l1_path` gives the solutions for all alphas at once.
    follows_spectrum : bool
        Whether one decomposition gives the solutions for all alphas: the penalty is 1/2 ||coef||^2.
    scale_free : bool
        Whether the penalty only sets bounds, in the units of the coefficients: standardised columns change nothing.
    penalises : bool
        Whether there is a penalty at all.
    by_position : bool
        Whether its parameters are about features by their positions.

    Examples
    --------
    >>> ElasticNet(l1_ratio=0.25).regularizer(4.0)
    ElasticNet(l1=1.0, l2=3.0)
    >>> ElasticNet().selection, Ridge().selection, Group().describe(), Group().for_terms([0, 0, 1]).labels
    ('prediction', 'evidence', 'group', [0, 0, 1])
    >>> R, z = np.eye(2), np.array([3.0, -5.0])
    >>> L1().largest_alpha(R, z[:, None]), L1().alphas(R, z).shape
    (5.0, (41,))
    """

    name: ClassVar[str]
    help: ClassVar[str]
    has_weight: ClassVar[bool] = True
    selection: ClassVar[Literal["evidence", "prediction"] | None] = "prediction"
    follows_l1_path: ClassVar[bool] = False
    follows_spectrum: ClassVar[bool] = False
    scale_free: ClassVar[bool] = False
    penalises: ClassVar[bool] = True
    by_position: ClassVar[bool] = False

    @abstractmethod
    def regularizer(self, alpha: float) -> Regularizer:
        """Return g for one alpha.

        Parameters
        ----------
        alpha : float

        Returns
        -------
        Regularizer
        """

    def for_terms(self, labels: Sequence[int]) -> "Penalty":
        """Return the penalty for columns that belong to terms, if it needs to know them.

        Parameters
        ----------
        labels : sequence of int
            The number of the term of each column.

        Returns
        -------
        Penalty
        """
        return self

    def describe(self) -> str:
        """Return a word for the penalty in summaries.

        Returns
        -------
        str
        """
        return self.name

    def largest_alpha(self, R: Array, z: Array) -> float:
        """Return the smallest alpha that shrinks (nearly) all coefficients to zero.

        Parameters
        ----------
        R : array of shape (m, d)
        z : array of shape (m, k)

        Returns
        -------
        float
        """
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


@dataclass(frozen=True)
class Ridge(Penalty):
    """1/2 ||coef||^2: shrinks all coefficients, and sets none to zero.

    Examples
    --------
    >>> Ridge().regularizer(2.0)
    Ridge(lam=2.0)
    """

    name = "ridge"
    help = "1/2 ||coef||^2: shrinks all coefficients, and sets none to zero."
    selection = "evidence"
    follows_spectrum = True

    def regularizer(self, alpha: float) -> Regularizer:
        return regularizers.Ridge(float(alpha))

    def alphas(self, R: Array, z: Array) -> Array:
        return (np.linalg.norm(R) ** 2 or 1.0) * np.logspace(4, -10, 43)


@dataclass(frozen=True)
class L1(Penalty):
    """||coef||_1: sets coefficients to zero.

    Examples
    --------
    >>> L1().regularizer(2.0)
    L1(lam=2.0)
    """

    name = "l1"
    help = "||coef||_1: sets coefficients to zero."
    follows_l1_path = True

    def regularizer(self, alpha: float) -> Regularizer:
        return regularizers.L1(float(alpha))


@dataclass(frozen=True)
class ElasticNet(Penalty):
    """l1_ratio ||coef||_1 + (1 - l1_ratio)/2 ||coef||^2: sets coefficients to zero, correlated ones jointly.

    Parameters
    ----------
    l1_ratio : float
        The share of the L1 norm, between 0 and 1.

    Examples
    --------
    >>> ElasticNet(l1_ratio=0.2).regularizer(5.0)
    ElasticNet(l1=1.0, l2=4.0)
    """

    l1_ratio: float = 0.5

    name = "elasticnet"
    help = "l1_ratio ||coef||_1 + (1 - l1_ratio)/2 ||coef||^2: sets coefficients to zero, correlated ones jointly."

    def __post_init__(self) -> None:
        if not 0 <= self.l1_ratio <= 1:
            raise ValueError(f"l1_ratio must lie between 0 and 1; got {self.l1_ratio!r}.")

    def regularizer(self, alpha: float) -> Regularizer:
        return regularizers.ElasticNet(alpha * self.l1_ratio, alpha * (1 - self.l1_ratio))

    def largest_alpha(self, R: Array, z: Array) -> float:
        return super().largest_alpha(R, z) / max(self.l1_ratio, 1e-3)


@dataclass(frozen=True)
class SmoothL1(Penalty):
    """sum(sqrt(1 + coef^2 / delta^2) - 1): the L1 norm, with its kink rounded.

    Parameters
    ----------
    delta : float
        The width over which the kink is rounded.

    Examples
    --------
    >>> SmoothL1(delta=0.1).regularizer(2.0)
    SmoothL1(lam=2.0, delta=0.1)
    """

    delta: float = 1.0

    name = "smooth_l1"
    help = "sum(sqrt(1 + coef^2 / delta^2) - 1): the L1 norm, with its kink rounded over a width delta."

    def __post_init__(self) -> None:
        check_positive("delta", self.delta)

    def regularizer(self, alpha: float) -> Regularizer:
        return regularizers.SmoothL1(float(alpha), self.delta)

    def largest_alpha(self, R: Array, z: Array) -> float:
        return super().largest_alpha(R, z) * self.delta


@dataclass(frozen=True)
class MCP(Penalty):
    """sum(|coef| - coef^2 / (2 width)), constant beyond the width: sets coefficients to zero, shrinks no large ones.

    It is not convex: of its minima the estimate is that which is reached from the lasso, whatever the order of the
    rows; see `kalprox.regularizers.MCP`. Standard errors are conditional on the coefficients that it selects, as with
    L1, and those of a coefficient beyond the width are the ones of least squares. Intervals are those without the
    penalty.

    Parameters
    ----------
    width : float
        From which size on a coefficient is not shrunk at all, in the units of the coefficients.

    Examples
    --------
    >>> float(MCP(width=2.0).regularizer(3.0).value(np.array([10.0])))
    3.0
    """

    width: float = 1.0

    name = "mcp"
    help = "|coef| - coef^2 / (2 width), constant beyond the width: sets coefficients to zero, shrinks no large ones."

    def __post_init__(self) -> None:
        check_positive("width", self.width)

    def regularizer(self, alpha: float) -> Regularizer:
        return regularizers.MCP(float(alpha), self.width)


@dataclass(frozen=True, eq=False)
class Group(Penalty):
    """The sum over groups of sqrt(size) ||coef_g||_2: sets all coefficients of a group to zero jointly.

    Parameters
    ----------
    labels : sequence of int
        One label per feature; -1 for a feature that is not penalised. With a formula, and on the command line, the
        columns of one term or of one categorical column are a group, unless labels are given.

    Examples
    --------
    >>> float(Group([0, 0, 1]).regularizer(1.0).value(np.array([3.0, 4.0, 2.0])).round(3))
    9.071
    """

    labels: Sequence[int] | None = None

    name = "group"
    help = "sum of sqrt(size) ||coef_g||_2 over groups: sets all coefficients of a group to zero jointly."
    by_position = True

    def for_terms(self, labels: Sequence[int]) -> Penalty:
        return Group(labels) if self.labels is None else self

    def regularizer(self, alpha: float) -> Regularizer:
        return regularizers.GroupL1(float(alpha), self._labels)

    def largest_alpha(self, R: Array, z: Array) -> float:
        labels, slopes = np.asarray(self._labels), R.T @ z
        groups = [labels == label for label in set(labels)]
        return float(max(np.linalg.norm(slopes[group], axis=0).max() / group.sum() ** 0.5 for group in groups))

    @property
    def _labels(self) -> Any:
        if self.labels is None:
            raise ValueError(
                "penalty='group' needs to know the groups: give penalty=kalprox.penalties.Group(labels), with one "
                "integer per feature, and -1 for a feature that is not penalised."
            )
        return self.labels


@dataclass(frozen=True, eq=False)
class Box(Penalty):
    """Keeps each coefficient between its bounds; alpha has no effect.

    Parameters
    ----------
    low, high : float or array with one number per feature
        The bounds of `coef_`, in the units of X, whatever `standardize` is.

    Examples
    --------
    >>> Box(0.0, 1.0).regularizer(1.0).prox(np.array([-1.0, 0.5, 2.0]))
    array([0. , 0.5, 1. ])
    """

    low: Any = 0.0
    high: Any = np.inf

    name = "box"
    help = "Keeps each coefficient between its bounds; alpha has no effect."
    has_weight = False
    selection = None
    scale_free = True

    def __post_init__(self) -> None:
        self.regularizer(1.0)  # raises an error for bounds that leave nothing

    @property
    def by_position(self) -> bool:  # type: ignore[override]
        return bool(np.ndim(self.low) or np.ndim(self.high))

    def regularizer(self, alpha: float) -> Regularizer:
        return regularizers.Box(np.asarray(self.low, float), np.asarray(self.high, float))


@dataclass(frozen=True)
class NoPenalty(Penalty):
    """What penalty=None stands for."""

    name = "none"
    help = "No penalty."
    has_weight = False
    penalises = False
    selection = None

    def regularizer(self, alpha: float) -> Regularizer:
        return regularizers.Zero()


@dataclass(frozen=True, eq=False)
class OwnPenalty(Penalty):
    """What a regulariser, which has its own weights, stands for."""

    g: Regularizer

    help = "A regulariser with its own weights."
    has_weight = False
    selection = None

    @property
    def name(self) -> str:  # type: ignore[override]
        own = "own ridge" if self.g.separable else "own quadratic"
        return own if self.g.quadratic else "own"

    @property
    def scale_free(self) -> bool:  # type: ignore[override]
        return self.g.only_bounds

    def describe(self) -> str:
        return type(self.g).__name__

    def regularizer(self, alpha: float) -> Regularizer:
        return self.g


PENALTIES: dict[str, type[Penalty]] = {kind.name: kind for kind in (Ridge, L1, ElasticNet, SmoothL1, MCP, Group, Box)}


def penalty_of(penalty: Any) -> Penalty:
    """Return a penalty: None for none, a name in `PENALTIES`, a penalty as it is, or a regulariser.

    >>> penalty_of("smooth_l1")
    SmoothL1(delta=1.0)
    """
    if penalty is None:
        return NoPenalty()
    if isinstance(penalty, Regularizer):
        return OwnPenalty(penalty)
    if isinstance(penalty, str) and penalty in PENALTIES:
        return PENALTIES[penalty]()
    if isinstance(penalty, Penalty):
        return penalty
    raise ValueError(
        f"penalty must be None, one of {', '.join(PENALTIES)}, an object of kalprox.penalties, or a Regularizer; got "
        f"{penalty!r}."
    )


def check_alpha(alpha: Any, penalty: Penalty) -> None:
    """Raise a ValueError unless alpha is a weight for the penalty: a number >= 0, or "auto"."""
    if isinstance(alpha, str):
        if alpha != "auto":
            raise ValueError(f"alpha must be a number >= 0 or 'auto'; got {alpha!r}.")
    else:
        if alpha is None or np.ndim(alpha):
            raise ValueError(
                f"alpha must be one number >= 0 or 'auto'; got {alpha!r}. For several alphas, fit one model and call "
                "path(alphas)."
            )
        check_positive("alpha", alpha, strict=False)
    if isinstance(penalty, OwnPenalty) and alpha != 1:
        raise ValueError(
            f"alpha must be 1 if penalty is a Regularizer, which has its own weights; got alpha={alpha!r} and "
            f"{type(penalty.g).__name__}."
        )
