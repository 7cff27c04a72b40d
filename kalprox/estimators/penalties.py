"""From the estimator's arguments to g: the penalties by name, their weight, and an intercept left free."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import check_positive
from kalprox.regularizers import (
    L1,
    Box,
    ElasticNet,
    GroupL1,
    Quadratic,
    Regularizer,
    Ridge,
    Separable,
    SmoothL1,
    Weighted,
    Zero,
)

__all__ = ["PENALTIES", "Penalty", "with_free_intercept"]

PENALTIES = ("ridge", "l1", "elasticnet", "smooth_l1", "group", "box")


@dataclass(frozen=True)
class Penalty:
    """g = alpha * penalty, checked: a regulariser for every alpha. `kind` is a name, None or a regulariser."""

    kind: Any
    alpha: Any
    l1_ratio: float
    delta: float
    groups: Any
    bounds: Any

    def __post_init__(self) -> None:
        named = self.kind is None or (isinstance(self.kind, str) and self.kind in PENALTIES)
        if not named and not isinstance(self.kind, Regularizer):
            raise ValueError(
                f"penalty must be None, one of {', '.join(PENALTIES)}, or a Regularizer; got {self.kind!r}."
            )
        if isinstance(self.alpha, str):
            if self.alpha != "auto":
                raise ValueError(f"alpha must be a number >= 0 or 'auto'; got {self.alpha!r}.")
            if not self.has_weight:
                raise ValueError(
                    f"alpha='auto' needs a penalty that alpha weighs: ridge, l1, elasticnet, smooth_l1 or group; "
                    f"got {self.kind!r}."
                )
        else:
            check_positive("alpha", self.alpha, strict=False)
        if isinstance(self.kind, Regularizer) and self.alpha != 1:
            raise ValueError(
                f"alpha does not weigh a Regularizer object, which has weights of its own; got alpha={self.alpha!r} "
                f"beside {type(self.kind).__name__}. Leave alpha at 1."
            )
        if not 0 <= self.l1_ratio <= 1:
            raise ValueError(f"l1_ratio must lie between 0 and 1; got {self.l1_ratio!r}.")
        if self.kind == "group" and self.groups is None:
            raise ValueError("penalty='group' needs groups: one integer label per feature, -1 for no penalty.")

    @property
    def has_weight(self) -> bool:
        return isinstance(self.kind, str) and self.kind != "box"

    def at(self, alpha: float) -> Regularizer:
        """g for one alpha."""
        if isinstance(self.kind, Regularizer):
            return self.kind
        match self.kind:
            case None:
                return Zero()
            case "ridge":
                return Ridge(float(alpha))
            case "l1":
                return L1(float(alpha))
            case "elasticnet":
                return ElasticNet(alpha * self.l1_ratio, alpha * (1 - self.l1_ratio))
            case "smooth_l1":
                return SmoothL1(float(alpha), self.delta)
            case "group":
                return GroupL1(float(alpha), self.groups)
        low, high = self.bounds
        return Box(np.asarray(low, float), np.asarray(high, float))

    def alphas(self, R: Array, z: Array) -> Array:
        """A grid of alphas, descending, from where the penalty leaves next to nothing of the fit, scaled by R and z.

        For l1 and group the first is the least alpha at which every coefficient is zero.
        """
        z = z.reshape(len(z), -1)
        slopes = np.abs(R.T @ z).max(axis=1)
        if self.kind == "ridge":
            return (np.linalg.norm(R) ** 2 or 1.0) * np.logspace(4, -10, 43)
        if self.kind == "group":
            labels = np.asarray(self.groups)
            sizes = [(np.linalg.norm((R.T @ z)[labels == g], axis=0).max(), (labels == g).sum()) for g in set(labels)]
            largest = max(norm / size**0.5 for norm, size in sizes)
        elif self.kind == "smooth_l1":
            largest = slopes.max() * self.delta
        else:
            largest = slopes.max() / max(self.l1_ratio if self.kind == "elasticnet" else 1.0, 1e-3)
        return (largest * (1 + 1e-13) or 1.0) * np.logspace(0, -4, 41)  # a hair above: rounding leaves none nonzero


def with_free_intercept(g: Regularizer, d: int) -> Regularizer:
    """g on the last d of d + 1 coefficients, the first left free."""
    if isinstance(g, Box):
        low, high = (
            np.concatenate([[free], np.broadcast_to(np.asarray(b, float), d)])
            for b, free in ((g.low, -np.inf), (g.high, np.inf))
        )
        return Box(low, high)
    if isinstance(g, GroupL1):
        return GroupL1(g.lam, (-1, *g.groups), g.weights)
    if isinstance(g, Quadratic):
        return Quadratic(np.pad(np.asarray(g.A), ((0, 0), (1, 0))))
    weights = np.concatenate([[0.0], np.ones(d)])
    if isinstance(g, Weighted):
        weights[1:] = g.weights
        g = g.g
    scalars = isinstance(g, Separable) and all(np.ndim(v) == 0 for v in vars(g).values())
    if not scalars:
        raise ValueError(
            f"{type(g).__name__} cannot leave an intercept free: set fit_intercept=False, and give X a column of ones "
            "and the penalty one coordinate more if there is to be one."
        )
    return Weighted(g, weights)
