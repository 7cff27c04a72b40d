"""Sandwich covariances in one pass: standard errors for rows with unequal or dependent noise."""

from collections.abc import Mapping, Sequence
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
        The scores refer to the inputs [1 | x - center], or to the Jacobian of a model in some coordinates if None.
    M : array of shape (k, p, p)
        The sum over rows, or over the clusters that are complete.
    clusters : float
        The number of rows or complete clusters in M.
    groups : mapping from a label to an array of shape (k + 1, p)
        The sum of the scores of each cluster that may go on, or is one of few, and that of its inputs, each by its
        weight in the information. The label of a batch without labels is its `unnamed` one.
    excess : array of shape (p, p), or None
        By how much the information exceeds the second derivative of the loss: the rows of a likelihood that is not
        convex have information that is never negative. None where they are the same.
    """

    center: Array | None = leaf("d")
    M: Array = leaf("m,p,p")
    clusters: float = leaf(sign="nonnegative", default=0.0)
    groups: Mapping[str, Array] = leaf("1+m,p", factory=dict)
    excess: Array | None = leaf("p,p", default=None)

    @classmethod
    def zero(cls, center: Array | None, p: int, targets: int | None) -> "Sandwich":
        """Return the empty sum of scores with p entries."""
        return cls(center, np.zeros((targets or 1, p, p)))

    def inputs(self, X: Array) -> Array:
        """Return [1 | X - center]."""
        assert self.center is not None
        return np.hstack([np.ones((len(X), 1)), X - self.center])

    # ---- sums ------------------------------------------------------------------------------------------

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
        return replace(self, excess=_total(self.excess, (D.T * np.nan_to_num(excess)) @ D))

    def after_clusters(
        self, D: Array, u: Array, weights: Array | None, information: Array, labels: Array | str
    ) -> "Sandwich":
        """Return the sum after rows of clusters with these labels, or of one cluster.

        See `after_rows` for the other parameters.

        Parameters
        ----------
        information : array of shape (b,)
            The weight of each row in the information.
        """
        u = np.nan_to_num(u.reshape(len(D), -1), nan=0.0, posinf=0.0, neginf=0.0)
        scores = np.column_stack([u if weights is None else u * weights[:, None], information])
        with np.errstate(over="ignore", invalid="ignore"):
            if np.ndim(labels) == 0:
                names, sums = np.array([labels]), (scores.T @ D)[None]
            else:
                names, place = np.unique(labels, return_inverse=True)
                sums = np.zeros((len(names), scores.shape[1], D.shape[1]))
                for j, column in enumerate(scores.T):
                    np.add.at(sums[:, j], place, D * column[:, None])
            _finite(sums**2)
        groups = dict(self.groups)
        for name, s in zip(map(str, names.tolist()), sums, strict=True):
            groups[name] = groups[name] + s if name in groups else s
        return replace(self, groups=groups)

    def with_few_batches(self) -> "Sandwich":
        """Return the sum in which, of very many batches without labels, the smaller ones are not known one by one."""
        batches = [name for name in self.groups if name.startswith(UNNAMED)]
        if len(batches) <= _MOST_UNNAMED:
            return self
        groups = dict(self.groups)
        small = sorted(batches, key=lambda name: float(np.abs(groups[name][-1]).max()))[: len(batches) // 2]
        M = self.M + _squared(np.stack([groups.pop(name) for name in small]))
        return replace(self, M=_finite(M), clusters=self.clusters + len(small), groups=groups)

    def forget(self, rho: float) -> "Sandwich":
        """Return the sum with the weight of every row multiplied by rho."""
        groups = {name: rho * s for name, s in self.groups.items()}
        excess = None if self.excess is None else rho * self.excess
        return replace(self, M=rho**2 * self.M, groups=groups, excess=excess)

    def merge(self, other: "Sandwich", batches: int = 0) -> "Sandwich":
        """Return the sum of both, of which this one had so many batches; clusters with a label in common are one."""
        other, groups = other.about(self.center), dict(self.groups)
        for label, s in other.groups.items():
            name = moved(label, batches)
            groups[name] = groups[name] + s if name in groups else s
        excess = _total(self.excess, other.excess)
        return Sandwich(self.center, self.M + other.M, self.clusters + other.clusters, groups, excess)

    __add__ = merge

    # ---- coordinates -----------------------------------------------------------------------------------

    def in_coordinates(self, J: Array, center: Array | None = None) -> "Sandwich":
        """Return the same sum for parameters t, where those of this one are J t, and inputs about another centre."""
        groups = {name: s @ J for name, s in self.groups.items()}
        excess = None if self.excess is None else J.T @ self.excess @ J
        return Sandwich(center, J.T @ self.M @ J, self.clusters, groups, excess)

    def about(self, center: Array | None) -> "Sandwich":
        """Return the same sum about another centre, if it has one."""
        if self.center is None or center is None or np.array_equal(self.center, center):
            return self
        J = np.eye(self.M.shape[1])
        J[0, 1:] = self.center - center
        return self.in_coordinates(J, center)

    def in_design(self, design: Design) -> "Sandwich":
        """Return the same sum in the coordinates of a design."""
        if self.center is None or design.center is None or design.scale is None:
            return self
        d = len(self.center)
        J = np.zeros((d + 1, d + 1))
        J[0, 0], J[1:, 0], J[1:, 1:] = 1, (self.center - design.center) / design.scale, np.diag(1 / design.scale)
        return self.in_coordinates(J[1 - design.first :].T)

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def sums(self) -> Array:
        """The sums of the clusters that are known one by one, shape (clusters, k + 1, p); see `groups`."""
        k, p, _ = self.M.shape
        return np.stack(list(self.groups.values())) if self.groups else np.zeros((0, k + 1, p))

    @property
    def total(self) -> Array:
        """M, including the clusters that are known one by one, shape (k, p, p)."""
        return self.M + _squared(self.sums)

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
        batches = [name.startswith(UNNAMED) for name in self.groups]
        if not any(batches):
            return 0.0
        n = self.sums[:, -1, 0]
        rest = self.clusters * float(n[batches].min())
        share = n / np.maximum(rest + np.cumsum(n), _TINY)
        total = float((n**2).sum()) + rest**2 / max(self.clusters, 1.0)
        hidden = float(((n * share)[batches] ** 2).sum())
        return hidden / max(total, _TINY)


def unnamed(number: int) -> str:
    """Return the label of the cluster that is the batch with this number, which has no labels; they sort by it."""
    return f"{UNNAMED}{number:09}"


def moved(label: str, by: int) -> str:
    """Return a label; that of a batch without labels with a greater number."""
    return unnamed(int(label[1:]) + by) if label.startswith(UNNAMED) else label


def _squared(sums: Array) -> Array:
    """Return the sum of the outer products of the scores of clusters, given what is known of each; shape (k, p, p)."""
    s = sums[:, :-1].transpose(1, 0, 2)
    with np.errstate(over="ignore", invalid="ignore"):
        return s.transpose(0, 2, 1) @ s


def _total(*sums: Array | None) -> Array | None:
    """Return the sum of those that are not None."""
    known = [one for one in sums if one is not None]
    return sum(known[1:], known[0]) if known else None


def row_scores(
    likelihood: Likelihood,
    y: Array,
    f: Array,
    D: Array,
    leverage: Any,
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


def _scaled(e: Array, leverage: Any, precision: Array | None, *, seen: bool) -> Array:
    """Return errors of shape (b,) or (b, k) as `row_scores` scales them, given the leverages of rows of precision 1."""
    own = np.ones(len(e)) if precision is None else precision
    share = (np.transpose(leverage) * own).T
    left = np.where(share < _WHOLE, 1 - share, 1.0) if seen else np.sqrt(1 + share)  # 1: a row that is always followed
    return ((e.T * np.sqrt(own)) / left.T).T


def scores_at(
    model: Model,
    likelihood: Likelihood,
    theta: Array,
    design: Design,
    center: Array | None,
    V: Array | None,
    factor: Array,
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
    factor : array of shape () or (k,)
        What the scores are multiplied by.
    weight_kind, class_weights
        See `kalprox.sources.weighting.relative_precision`.
    block : Block
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
        f = f + design.offset
        excess = excess_of(likelihood, y, f, w)
        D, u, curvature = row_scores(likelihood, y, f, D, _leverage(D, V, faded), own, seen=True)
        none = Sandwich.zero(None, D.shape[1], None).with_excess(D, excess)
    else:
        leverage = _leverage(design.rows(X), V, faded)
        u = _scaled(y - design.predictor(X, theta), leverage, own, seen=True)
        none = Sandwich.zero(center, len(center) + 1, y.shape[1] if y.ndim == 2 else None)
        D, curvature = none.inputs(X), np.ones(len(X))
    if V is None:
        assert block.groups is not None
        return none.after_clusters(D, u * factor, w, curvature if w is None else w * curvature, block.groups)
    return none.after_rows(D, u * factor, w if faded is None else w * faded)


def _leverage(D: Array, V: Array | None, faded: Array | None) -> Any:
    """Return x'V x for inputs of shape (..., p), or (..., k) for k matrices V, times what forgetting has left of rows.

    Infinite variances, of what no row determines, count as zero; and so does all without V.
    """
    if V is None:
        return 0.0
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
