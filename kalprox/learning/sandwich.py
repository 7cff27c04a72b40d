"""Sandwich covariances in one pass: standard errors for rows with unequal or dependent noise."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, masked
from kalprox.base.tree import leaf, state
from kalprox.learning.design import Design
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.sources import Block
from kalprox.sources.weighting import relative_precision

__all__ = [
    "NEEDS_GROUPS",
    "UNNAMED",
    "Sandwich",
    "excess_of",
    "moved",
    "next_unnamed",
    "row_scores",
    "scores_at",
]

UNNAMED = "\0"  # begins the label of a cluster that is a batch without labels

_MOST_UNNAMED = 256  # batches without labels whose sums are kept one by one
_TINY = float(np.finfo(float).tiny)
_WHOLE = 1 - 1e-8  # the leverage of a row whose residual is but rounding

NEEDS_GROUPS = (
    "coef_cov='clustered' needs clusters, which name the cluster of each row. Only partial_fit can do without: each "
    "batch is a cluster there."
)


@state
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
    groups : mapping from a label to an array of shape (k + 1, p)
        The sum of the scores of each cluster that was named by a label, and may go on, and that of its inputs, each by
        its weight in the information; see `inputs_of`. A batch without labels has the label None until it ends, and
        then one that begins with `UNNAMED`, as long as there are few of them.
    excess : array of shape (p, p), or None
        By how much the information exceeds the second derivative of the loss: the rows of a likelihood that is not
        convex have information that is never negative. None where they are the same.
    """

    center: Array | None = leaf("d")
    M: Array = leaf("m,p,p")
    clusters: float = leaf(sign="nonnegative", default=0.0)
    groups: Mapping[Hashable, Array] = leaf("1+m,p", factory=dict)
    excess: Array | None = leaf("p,p", default=None)

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
        return replace(self, M=_finite(M), clusters=self.clusters + int(known.sum()))

    def with_excess(self, D: Array, excess: Array | None) -> "Sandwich":
        """Return the sum with what the information of rows exceeds the second derivative of their loss by."""
        if excess is None:
            return self
        more = (D.T * np.nan_to_num(excess)) @ D
        return replace(self, excess=more if self.excess is None else self.excess + more)

    def after_cluster(
        self, D: Array, u: Array, weights: Array | None, information: Array, labels: Array | None = None
    ) -> "Sandwich":
        """Return the sum after rows of clusters named by labels, or of the cluster that `closed` completes.

        See `after_rows` for the other parameters.

        Parameters
        ----------
        information : array of shape (b,)
            The weight of each row in the information.
        """
        u = np.nan_to_num(u.reshape(len(D), -1), nan=0.0, posinf=0.0, neginf=0.0)
        scores = np.column_stack([u if weights is None else u * weights[:, None], information])
        if labels is None:
            s = scores.T @ D
            return replace(self, groups={**self.groups, None: self.groups.get(None, 0) + s})
        names, place = np.unique(labels, return_inverse=True)
        sums = np.zeros((len(names), scores.shape[1], D.shape[1]))
        for j, column in enumerate(scores.T):
            np.add.at(sums[:, j], place, D * column[:, None])
        groups = dict(self.groups)
        for name, s in zip(names.tolist(), sums, strict=True):
            groups[name] = groups[name] + s if name in groups else s
        return replace(self, groups=groups)

    def closed(self) -> "Sandwich":
        """Return the sum with the cluster of the rows without a label completed, if there are any.

        If there are many such clusters, the inputs of the smaller ones are no longer known one by one.
        """
        groups = dict(self.groups)
        if (last := groups.pop(None, None)) is None:
            return self
        with np.errstate(over="ignore", invalid="ignore"):
            _finite(last**2)
        groups[f"{UNNAMED}{next_unnamed(groups)}"] = last
        unnamed = [name for name in groups if str(name).startswith(UNNAMED)]
        if len(unnamed) <= _MOST_UNNAMED:
            return replace(self, groups=groups)
        small = sorted(unnamed, key=lambda name: float(np.abs(groups[name][-1]).max()))[: len(unnamed) // 2]
        s = np.stack([groups.pop(name) for name in small])[:, :-1].transpose(1, 0, 2)
        with np.errstate(over="ignore", invalid="ignore"):
            M = self.M + s.transpose(0, 2, 1) @ s
        return replace(self, M=_finite(M), clusters=self.clusters + len(small), groups=groups)

    def with_open_batch(self) -> "Sandwich":
        """Return the sum in which the rows with the label "" are those of a batch without labels that goes on."""
        return replace(self, groups={None if name == "" else name: s for name, s in self.groups.items()})

    def forget(self, rho: float) -> "Sandwich":
        """Return the sum with the weight of every row multiplied by rho."""
        groups = {name: rho * s for name, s in self.groups.items()}
        excess = None if self.excess is None else rho * self.excess
        return replace(self, M=rho**2 * self.M, groups=groups, excess=excess)

    def merge(self, other: "Sandwich") -> "Sandwich":
        """Return the sum of both; clusters with the same label are one cluster."""
        J = None
        if self.center is not None and other.center is not None and not np.array_equal(self.center, other.center):
            J = np.eye(self.M.shape[1])
            J[1:, 0] = other.center - self.center
        M = other.M if J is None else J @ other.M @ J.T
        groups = dict(self.groups)
        first = next_unnamed(groups)
        for label, s in other.groups.items():
            s, name = s if J is None else s @ J.T, moved(label, first)
            groups[name] = groups[name] + s if name in groups else s
        excess = self.excess if other.excess is None else other.excess
        if self.excess is not None and other.excess is not None:
            excess = self.excess + other.excess
        return Sandwich(self.center, self.M + M, self.clusters + other.clusters, groups, excess)

    __add__ = merge

    def in_coordinates(self, J: Array) -> "Sandwich":
        """Return the same sum for parameters t, where those of this one are J t; for a nonlinear model."""
        groups = {name: s @ J for name, s in self.groups.items()}
        excess = None if self.excess is None else J.T @ self.excess @ J
        return Sandwich(None, J.T @ self.M @ J, self.clusters, groups, excess)

    def about(self, center: Array) -> "Sandwich":
        """Return the same sum about another centre."""
        return self if self.center is None else Sandwich.zero(center, self.M.shape[1], len(self.M)).merge(self)

    def times(self, factor: Array) -> "Sandwich":
        """Return the sum times a number for each target, shape () or (k,)."""
        factor = np.atleast_1d(factor)
        groups = {name: np.append(np.sqrt(factor), 1.0)[:, None] * s for name, s in self.groups.items()}
        return replace(self, M=factor[:, None, None] * self.M, groups=groups)

    @property
    def count(self) -> float:
        """The number of rows or clusters."""
        return self.clusters + len(self.groups)

    @property
    def hidden(self) -> float:
        """The share, 0 to 1, of what the clusters' rows have in common that their scores do not show.

        The rows of a batch without labels are predicted one after the other. One that outweighs all rows before it has
        taught the estimate what its rows have in common, and their errors no longer show it. Clusters count by the
        squares of their weights, as in the variance of the estimate. Those that are not known one by one are taken for
        the first ones, each with the least weight of the others. The first input must be 1.
        """
        batches = [name is None or str(name).startswith(UNNAMED) for name in self.groups]
        if not any(batches):
            return 0.0
        n = self._sums()[:, -1, 0]
        rest = self.clusters * float(n[batches].min())
        share = n / np.maximum(rest + np.cumsum(n), _TINY)
        total = float((n**2).sum()) + rest**2 / max(self.clusters, 1.0)
        hidden = float(((n * share)[batches] ** 2).sum())
        return hidden / max(total, _TINY)

    def total(self, design: Design) -> Array:
        """Return M, including the clusters that may go on, in the coordinates of the design; shape (k, p, p)."""
        sums = self._sums()[:, :-1].transpose(1, 0, 2)
        return self._for(design, self.M + sums.transpose(0, 2, 1) @ sums)

    def complete(self, design: Design) -> Array:
        """Return the part of `total` that is of clusters which are not known one by one."""
        return self._for(design, self.M)

    def _for(self, design: Design, M: Array) -> Array:
        J = self._to(design)
        return M if J is None else J @ M @ J.T

    def inputs_of(self, design: Design) -> tuple[Array, Array]:
        """Return the sums of the inputs of clusters in the coordinates of the design, and sums for the input 1.

        Returns
        -------
        array of shape (clusters, p)
        array of shape (clusters, k + 1)
            The sums of the scores of the input 1, and the weight of each cluster in the information.
        """
        sums, J = self._sums(), self._to(design)
        return sums[:, -1] if J is None else sums[:, -1] @ J.T, sums[:, :, 0]

    def _to(self, design: Design) -> Array | None:
        """Return the matrix from inputs to those of the design; None if they are the same."""
        if self.center is None or design.center is None or design.scale is None:
            return None
        d = len(self.center)
        J = np.zeros((d + 1, d + 1))
        J[0, 0], J[1:, 0], J[1:, 1:] = 1, (self.center - design.center) / design.scale, np.diag(1 / design.scale)
        return J[1 - design.first :]

    def _sums(self) -> Array:
        """The sums of the clusters that may go on, shape (clusters, k + 1, p)."""
        k, p, _ = self.M.shape
        return np.stack(list(self.groups.values())) if self.groups else np.zeros((0, k + 1, p))


def next_unnamed(labels: Iterable[Hashable]) -> int:
    """Return a number that no batch without labels has among these labels, nor a greater one."""
    return 1 + max((int(name[1:]) for name in map(str, labels) if name.startswith(UNNAMED)), default=-1)


def moved(label: Any, by: int) -> Any:
    """Return a label; that of a batch without labels with a greater number."""
    return f"{UNNAMED}{int(label[1:]) + by}" if str(label).startswith(UNNAMED) else label


def row_scores(
    likelihood: Likelihood,
    y: Array,
    f: Array,
    D: Array,
    leverage: Array,
    precision: Array | None,
    *,
    seen: bool = False,
) -> tuple[Array, Array, Array]:
    """Return inputs, shape (b, p), and factors of them, shape (b,), whose products are the scores of rows.

    The third array is the curvature of the loss in each row; with several outputs, whose inputs differ, it is zero.

    The slope of the loss at outputs f that were predicted before the row is divided by the root of 1 + curvature times
    leverage, which is what the uncertainty of f adds to its variance. If the row has been `seen`, the estimate has
    followed it: the slope is divided by 1 - curvature times leverage. The scores are multiplied by the roots of
    relative precisions, if there are any; see `kalprox.sources.weighting.relative_precision`.
    """
    slope, curvature = likelihood.expand(y, f)
    if likelihood.majorizes:  # whose information has other curvatures than those of its descent
        curvature = likelihood.matched(y, f, np.zeros(np.shape(f)))[1]
    u = _scaled(-slope, curvature * leverage, precision, seen=seen)
    if u.ndim == 1:
        return D, u, np.asarray(curvature)
    return (u[:, :, None] * D).sum(axis=1), np.ones(len(u)), np.zeros(len(u))


def excess_of(likelihood: Likelihood, y: Array, f: Array, weights: Array | None, variance: Any = 0.0) -> Array | None:
    """Return by how much the information of each row exceeds the second derivative of its loss; None if it does not."""
    found = likelihood.excess(y, f, variance)
    return found if weights is None or found is None else weights * found


def _scaled(e: Array, leverage: Array, precision: Array | None, *, seen: bool) -> Array:
    """Return errors of shape (b,) or (b, k) as `row_scores` scales them, given the leverages of rows of precision 1."""
    own = np.ones(len(e)) if precision is None else precision
    share = (leverage.T * own).T
    if seen:  # a row that the estimate follows wherever it is has no residual
        return (e.T * np.sqrt(own)).T / np.where(share < _WHOLE, 1 - share, 1.0)
    return (e.T * np.sqrt(own)).T / np.sqrt(1 + share)


def scores_at(
    model: Model,
    likelihood: Likelihood,
    theta: Array,
    design: Design,
    center: Array | None,
    V: Array | None,
    weight_kind: str,
    class_weights: Sequence[float] | None,
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
    V : array of shape (p, p) or (k, p, p), or None
        The covariance of theta in units of the noise variance, which gives the leverage of independent rows; None for
        the scores of clusters.
    weight_kind, class_weights
        See `kalprox.sources.weighting.relative_precision`.
    block : Block

    Returns
    -------
    Sandwich
    """
    if V is None and block.groups is None:
        raise ValueError(NEEDS_GROUPS)
    w, own = block.weights, None if V is None else relative_precision(block, weight_kind, class_weights)
    faded = None
    if w is not None and block.squares is not None and weight_kind == "frequency":  # precisions have faded themselves
        faded = block.squares / np.where(w > 0, w, 1.0)
    X, y = masked(w, block.X), masked(w, block.y)
    if center is None:
        f, D = map(np.asarray, model.linearize_rows(theta, design.rows(X, block.offset)))
        leverage = np.zeros(f.shape) if V is None else _leverage(D, V, faded)
        D, e, curvature = row_scores(likelihood, y, f + design.offset, D, leverage, own, seen=True)
        none = Sandwich.zero(None, D.shape[1], None).with_excess(D, excess_of(likelihood, y, f + design.offset, w))
    else:
        none = Sandwich.zero(center, len(center) + 1, y.shape[1] if y.ndim == 2 else None)
        leverage = np.zeros(y.shape) if V is None else _leverage(design.rows(X), V, faded)
        D, e = none.inputs(X), _scaled(y - design.predictor(X, theta), leverage, own, seen=True)
        curvature = np.ones(len(X))
    if V is None:
        return none.after_cluster(D, e, w, curvature if w is None else w * curvature, block.groups)
    return none.after_rows(D, e, w if faded is None else w * faded)


def _leverage(D: Array, V: Array, faded: Array | None) -> Array:
    """Return x'V x for inputs of shape (..., p), or (..., k) for k matrices V, times what forgetting has left of rows.

    Infinite variances, of what no row determines, count as zero.
    """
    V = np.where(np.isinf(V), 0.0, V)
    leverage = ((D @ V) * D).sum(axis=-1)
    leverage = leverage if V.ndim == 2 else leverage.T
    return leverage if faded is None else (leverage.T * faded).T


def _finite(M: Array) -> Array:
    """Return the sum; raise a FloatingPointError if it has overflowed."""
    if not np.isfinite(M).all():
        raise FloatingPointError(
            "The standard errors of coef_cov='robust' or 'clustered' overflow, because some rows are predicted "
            "astronomically far from their targets. Scale the columns of X, or use coef_cov='model'."
        )
    return M
