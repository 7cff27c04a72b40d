"""Sandwich covariances in one pass: standard errors for rows with unequal or dependent noise."""

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from kalprox._arrays import Array, masked
from kalprox.learning.design import Design
from kalprox.learning.saved import Saved, expect
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.sources import Block

__all__ = ["NEEDS_GROUPS", "Sandwich", "row_scores", "scores_at"]


NEEDS_GROUPS = (
    "coef_cov='clustered' needs groups, which name the cluster of each row. Only partial_fit can do without: each "
    "batch is a cluster there."
)


@dataclass(frozen=True, eq=False)
class Sandwich:
    """The sum M of the outer products of scores, for the covariance V M V of the estimate.

    The score of a row is w x u, with w its weight and u its innovation divided by its scale, so that u has the variance
    of the row's noise. "robust" adds the outer product of the scores of each row, which allows for noise whose
    variance differs from row to row. "clustered" sums the scores within each cluster first, which allows for
    dependence within clusters. V is the covariance of the estimate in units of the noise variance. The sums add up,
    fade and merge like the information of the rows.

    Attributes
    ----------
    center : array of shape (d,) or None
        The scores refer to the inputs [1 | x - center], or to the Jacobian of a nonlinear model if `center` is None.
    M : array of shape (k, p, p)
        The sum over rows, or over the clusters that are complete.
    clusters : float
        The number of rows or complete clusters in M.
    groups : mapping from a label to an array of shape (k, p)
        The sum of the scores of each cluster that was named by a label, and may go on; that of a batch without labels
        has the label None until the batch ends.
    """

    center: Array | None
    M: Array
    clusters: float = 0.0
    groups: Mapping[Hashable, Array] = field(default_factory=dict)

    _SAVED: ClassVar[tuple[str, ...]] = ("center", "M", "clusters", "labels", "sums")

    @classmethod
    def zero(cls, center: Array | None, p: int, targets: int | None) -> "Sandwich":
        """Return the empty sum of scores with p entries."""
        return cls(center, np.zeros((targets or 1, p, p)))

    def inputs(self, X: Array) -> Array:
        """Return [1 | X - center]."""
        assert self.center is not None
        return np.hstack([np.ones((len(X), 1)), X - self.center])

    def after_rows(self, D: Array, u: Array, weights: Array | None) -> "Sandwich":
        """Return the sum after independent rows.

        Parameters
        ----------
        D : array of shape (b, p)
            The inputs.
        u : array of shape (b,) or (b, k)
            The innovations divided by their scales; NaN for rows without a prediction.
        weights : array of shape (b,), optional
        """
        known = np.isfinite(u.reshape(len(D), -1)).any(axis=1)
        u = np.nan_to_num(u.reshape(len(D), -1), nan=0.0, posinf=0.0, neginf=0.0)
        size = u if weights is None else u * np.sqrt(weights)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            M = self.M + np.stack([(D * column[:, None]).T @ (D * column[:, None]) for column in size.T])
        return Sandwich(self.center, _finite(M), self.clusters + int(known.sum()), self.groups)

    def after_cluster(self, D: Array, u: Array, weights: Array | None, labels: Array | None = None) -> "Sandwich":
        """Return the sum after rows of clusters named by labels, or of the cluster that `closed` completes.

        See `after_rows` for the parameters.
        """
        u = np.nan_to_num(u.reshape(len(D), -1), nan=0.0, posinf=0.0, neginf=0.0)
        scores = u if weights is None else u * weights[:, None]
        if labels is None:
            s = scores.T @ D
            return Sandwich(self.center, self.M, self.clusters, {**self.groups, None: self.groups.get(None, 0) + s})
        names, place = np.unique(labels, return_inverse=True)
        sums = np.zeros((len(names), scores.shape[1], D.shape[1]))
        for j, column in enumerate(scores.T):
            np.add.at(sums[:, j], place, D * column[:, None])
        groups = dict(self.groups)
        for name, s in zip(names.tolist(), sums, strict=True):
            groups[name] = groups[name] + s if name in groups else s
        return Sandwich(self.center, self.M, self.clusters, groups)

    def closed(self) -> "Sandwich":
        """Return the sum with the cluster of the rows without a label completed, if there are any."""
        groups = dict(self.groups)
        if (s := groups.pop(None, None)) is None:
            return self
        with np.errstate(over="ignore", invalid="ignore"):
            M = self.M + s[:, :, None] * s[:, None, :]
        return Sandwich(self.center, _finite(M), self.clusters + 1, groups)

    def forget(self, rho: float) -> "Sandwich":
        """Return the sum with the weight of every row multiplied by rho."""
        groups = {name: rho * s for name, s in self.groups.items()}
        return Sandwich(self.center, rho**2 * self.M, self.clusters, groups)

    def merge(self, other: "Sandwich") -> "Sandwich":
        """Return the sum of both; clusters with the same label are one cluster."""
        J = None
        if self.center is not None and other.center is not None and not np.array_equal(self.center, other.center):
            J = np.eye(self.M.shape[1])
            J[1:, 0] = other.center - self.center
        M = other.M if J is None else J @ other.M @ J.T
        groups = dict(self.groups)
        for name, s in other.groups.items():
            s = s if J is None else s @ J.T
            groups[name] = groups[name] + s if name in groups else s
        return Sandwich(self.center, self.M + M, self.clusters + other.clusters, groups)

    __add__ = merge

    def in_coordinates(self, J: Array) -> "Sandwich":
        """Return the same sum for parameters t, where those of this one are J t; for a nonlinear model."""
        groups = {name: s @ J for name, s in self.groups.items()}
        return Sandwich(None, J.T @ self.M @ J, self.clusters, groups)

    def with_features(self, more: int) -> "Sandwich":
        """Return the same sum with more inputs, which were 0 in all rows."""
        center = None if self.center is None else np.pad(self.center, (0, more))
        groups = {name: np.pad(s, ((0, 0), (0, more))) for name, s in self.groups.items()}
        return Sandwich(center, np.pad(self.M, ((0, 0), (0, more), (0, more))), self.clusters, groups)

    def about(self, center: Array) -> "Sandwich":
        """Return the same sum about another centre."""
        return self if self.center is None else Sandwich.zero(center, self.M.shape[1], len(self.M)).merge(self)

    def times(self, factor: Array) -> "Sandwich":
        """Return the sum times a number for each target, shape () or (k,)."""
        factor = np.atleast_1d(factor)
        groups = {name: np.sqrt(factor)[:, None] * s for name, s in self.groups.items()}
        return Sandwich(self.center, factor[:, None, None] * self.M, self.clusters, groups)

    @property
    def count(self) -> float:
        """The number of rows or clusters."""
        return self.clusters + len(self.groups)

    @property
    def empty(self) -> bool:
        """Whether no row had a score, other than zero."""
        return not (self.M.any() or self._sums().any())

    def total(self, design: Design) -> Array:
        """Return M, including the clusters that may go on, in the coordinates of the design; shape (k, p, p)."""
        sums = self._sums().transpose(1, 0, 2)
        M = self.M + sums.transpose(0, 2, 1) @ sums
        if self.center is None or design.center is None or design.scale is None:
            return M
        d = len(self.center)
        J = np.zeros((d + 1, d + 1))
        J[0, 0], J[1:, 0], J[1:, 1:] = 1, (self.center - design.center) / design.scale, np.diag(1 / design.scale)
        J = J[1 - design.first :]
        return J @ M @ J.T

    def _sums(self) -> Array:
        """The sums of the clusters that may go on, shape (clusters, k, p)."""
        return np.stack(list(self.groups.values())) if self.groups else np.zeros((0, *self.M.shape[:2]))

    # ---- saving ----------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Return the sums as values that can be saved; see `kalprox.learning.saved`."""
        labels = np.frombuffer(json.dumps(list(self.groups)).encode(), np.uint8)  # too long for the header of a file
        return dict(zip(self._SAVED, (self.center, self.M, self.clusters, labels, self._sums()), strict=True))

    @classmethod
    def restored(cls, saved: Saved, name: str = "sandwich") -> "Sandwich":
        """Return the sums saved under `name`; raise a ValueError if their shapes do not fit."""
        center, M, clusters, labels, sums = (saved[f"{name}.{part}"] for part in cls._SAVED)
        expect(M.ndim == 3 and M.shape[1] == M.shape[2] and sums.ndim == 3 and sums.shape[1:] == M.shape[:2])
        expect(center is None or center.shape == (M.shape[1] - 1,))
        expect(clusters.shape == () and clusters >= 0 and np.isin(labels, np.arange(256)).all())
        names = json.loads(labels.astype(np.uint8).tobytes())
        expect(all(isinstance(one, str) for one in names) and len(set(names)) == len(names))
        return cls(center, M, float(clusters), dict(zip(names, sums, strict=True)))


def row_scores(likelihood: Likelihood, y: Array, f: Array, D: Array, leverage: Any = 0.0) -> tuple[Array, Array]:
    """Return inputs, shape (b, p), and factors of them, shape (b,), whose products are the scores of rows.

    The slope of the loss at outputs f that were predicted before the row is divided by the root of 1 + curvature times
    leverage, which is what the uncertainty of f adds to its variance.
    """
    slope, curvature = likelihood.expand(y, f)
    u = -slope / np.sqrt(1 + curvature * leverage)
    return (D, u) if u.ndim == 1 else ((u[:, :, None] * D).sum(axis=1), np.ones(len(u)))


def scores_at(
    model: Model,
    likelihood: Likelihood,
    theta: Array,
    design: Design,
    center: Array | None,
    coef_cov: str,
    weights: str,
    block: Block,
) -> Sandwich:
    """Return the sum of the scores of a block, from its residuals at an estimate.

    Parameters
    ----------
    model : Model
    likelihood : Likelihood
    theta : array of shape (p,) or (p, k)
    design : Design
        The coordinates of theta.
    center : array of shape (d,) or None
        The center of the inputs of a linear model; see `Sandwich`.
    coef_cov : {"robust", "clustered"}
    weights : {"frequency", "precision"}
        What the weights of the rows mean.
    block : Block

    Returns
    -------
    Sandwich
    """
    if coef_cov == "clustered" and block.groups is None:
        raise ValueError(NEEDS_GROUPS)
    w = block.weights
    X, y = masked(w, block.X), masked(w, block.y)
    if center is None:
        f, D = model.linearize_rows(theta, design.rows(X, block.offset))
        D, e = row_scores(likelihood, y, np.asarray(f) + design.offset, np.asarray(D))
        none = Sandwich.zero(None, D.shape[1], None)
    else:
        none = Sandwich.zero(center, len(center) + 1, y.shape[1] if y.ndim == 2 else None)
        D, e = none.inputs(X), y - design.predictor(X, theta)
    if coef_cov == "clustered":
        return none.after_cluster(D, e, w, block.groups)
    if w is None or weights == "frequency":
        return none.after_rows(D, e, w if block.squares is None else block.squares)
    return none.after_rows(D, (e.T * np.sqrt(w)).T, w)


def _finite(M: Array) -> Array:
    """Return the sum; raise a FloatingPointError if it has overflowed."""
    if not np.isfinite(M).all():
        raise FloatingPointError(
            "The standard errors of coef_cov='robust' or 'clustered' overflow, because some rows are predicted "
            "astronomically far from their targets. Scale the columns of X, or use coef_cov='model'."
        )
    return M
