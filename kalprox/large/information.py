"""Information about many parameters: a precision matrix of a given structure instead of a dense triangle.

For rows D with targets y and weights w, in units of the noise variance, and a normal prior N(m0, diag(p0)^-1),

    sum_k w_k (y_k - d_k' theta)^2 + (theta - m0)' diag(p0) (theta - m0)  ~  (theta - m)' P (theta - m) + rss,

where P = B + W'W. B is block-diagonal, in the simplest case diagonal, and W has a few rows. The mean m of a block of
rows is exact for the P before it. New rows are directions of W; when there is no place for more, the largest directions
stay, and of the others B keeps what fits its structure: the diagonal of P is that of all rows, and only correlations
are lost. It needs O(d rank) numbers, and O(d rank) operations per row.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import (
    Array,
    alike,
    asarray_like,
    cast_on_jax,
    is_traced,
    masked,
    namespace,
    pytree,
    static,
)
from kalprox.base.checks import all_finite, check_fading, check_finite, check_floating, check_positive
from kalprox.base.control import compiled, compiled_on_jax, cond, select, window
from kalprox.base.tree import leaf
from kalprox.information.base import Counted
from kalprox.large.block_diagonal import BlockDiagonal, Layout
from kalprox.large.block_diagonal import squares as squares_of
from kalprox.large.factor import StructuredFactor
from kalprox.large.low_rank import PlusLowRank, Truncated, combined, cross, truncated
from kalprox.large.prox import diagonal_hessian, with_curvature
from kalprox.large.sparse_rows import Weighed, fold_sparse
from kalprox.linalg.triangle import product
from kalprox.noise import Noise
from kalprox.regularizers import Regularizer

__all__ = ["Structured", "noise_of_predictions", "rss_with"]

_PER_RANK = 4  # rows that are taken together, in units of the rank: the cost of a row is least between 1 and 4
_EXACT = 1e-4  # the relative rounding error up to which a solution needs no correction
_HOPELESS = 0.5  # the relative rounding error from which on a correction would not converge
_POWER = 7  # of the number of a row, in the weight that its error has where the structure has dropped correlations
_LITTLE = 1e-3  # the share of the rows' precision that may be dropped without any effect on the noise variance
# Rows that are taken together, at least: without directions, where a row costs as many products, and with them, where
# a truncation takes as long as some tens of rows, on an accelerator most of the time.
_FEWEST = 16, 64
_LARGE = 1 << 24  # numbers of W from which a branch is not computed in vain; it costs an accelerator a pause


@pytree
class Structured(Counted):
    """The information of rows and of a normal prior about theta, with a precision matrix P = B + W'W.

    Make one with `kalprox.structures`, as in `LowRank(20).start(mean, precision)`.

    Parameters
    ----------
    precision : PlusLowRank
        P. On JAX arrays, whose shapes stay, W has rows of zeros: after the first `used`, where there is room for more
        rows, or anywhere, if it has `rank` rows.
    used : int or scalar array
        The number of rows of W that are in use. On JAX arrays, up to `rank` without room for others.
    mean : array of shape (d,)
        m.
    prior_mean : array of shape (d,)
        m0.
    prior_precision : array of shape () or (d,)
        p0, in units of the noise variance.
    rows, squares : scalar array
        See `kalprox.information.LeastSquares`.
    rss : scalar array
        The sum of the squared errors of the predictions of the rows, in units of their standard deviations: e'S^-1 e
        for each block. If P is exact, it is the minimum of the sum above. Otherwise see `rss_with`.
    traces : array of shape (2,)
        The trace of the rows' precision in units of p0, or of the mean of p0 where that is larger, and the part of it
        that has moved from W to B and left correlations behind that B has no place for.
    least : scalar array
        The mean of p0: what a vague prior of a few parameters, such as that of an intercept, counts in the traces.
    rank : int
        The number of directions that stay.
    """

    precision: PlusLowRank
    used: Any = leaf(given=True)
    mean: Array = leaf("p", values="moderate")
    prior_mean: Array = leaf("p", values="moderate")
    prior_precision: Array = leaf(sign="positive", values="moderate")
    rows: Array = leaf("", sign="nonnegative", values="moderate")
    squares: Array = leaf("", sign="nonnegative", values="moderate")
    rss: Array = leaf("", sign="nonnegative", values="moderate")
    traces: Array = leaf("2", sign="nonnegative", values="moderate")
    least: Array = leaf(given=True)
    rank: int = static()

    @classmethod
    def start(cls, mean: Array, precision: Any, rank: int, groups: Iterable[Iterable[int]]) -> "Structured":
        """Return the information of no rows: the prior N(mean, diag(precision)^-1) in units of the noise variance."""
        check_floating("mean", mean)
        check_finite("mean", mean)
        check_positive("precision", precision)
        xp, d = namespace(mean, precision), len(mean)
        if np.shape(precision) not in ((), (d,)):
            raise ValueError(f"precision must be a number or have shape ({d},); got shape {np.shape(precision)}.")
        mean = xp.asarray(mean)
        p0 = asarray_like(precision, mean)
        rank = min(rank, d)
        k = 0 if xp is np else rank
        base = BlockDiagonal.diagonal(xp.broadcast_to(p0, (d,)), Layout.of(groups))
        P = PlusLowRank(base, xp.zeros((k, d), mean.dtype), xp.zeros((k, k), mean.dtype))
        zero = xp.zeros((), float if xp is np else mean.dtype)
        used = 0 if xp is np else xp.zeros((), np.int32)
        return cls(P, used, mean, mean, p0, zero, zero, zero, xp.zeros(2, zero.dtype), p0.mean(), rank)

    @property
    def d(self) -> int:
        """The number of parameters."""
        return int(self.mean.shape[0])

    @property
    def dropped(self) -> Array:
        """The share of the rows' precision, in units of the prior's, whose correlations the structure has dropped.

        Correlations of some rows may cancel with those of others, so that it is an upper estimate.
        """
        xp = namespace(self.traces)
        return xp.where(self.traces[0] > 0, self.traces[1] / xp.where(self.traces[0] > 0, self.traces[0], 1), 0)

    def fold(
        self,
        D: Array,
        targets: Array,
        weights: Array | None = None,
        counts: Array | None = None,
        squares: Array | None = None,
    ) -> "Structured":
        """Return the information with a block of rows, which is taken in pieces of 4 rank rows, or of 64.

        Parameters
        ----------
        D : array of shape (b, d)
            May be a sparse matrix, if the information has NumPy arrays; see `kalprox.large.sparse_rows`.
        targets : array of shape (b,)
        weights : array of shape (b,), optional
            Finite and >= 0. A row of weight 0 is ignored, even if it contains NaN.
        counts, squares : array of shape (b,), optional
            What each row adds to `rows` and `squares`; see `kalprox.Information.fold`.

        Returns
        -------
        Structured
        """
        if D.ndim != 2 or D.shape[1] != self.d or targets.shape != D.shape[:1]:
            raise ValueError(
                f"D must have shape (b, {self.d}) and targets (b,); got shapes {D.shape} and {targets.shape}."
            )
        sparse, longest = scipy.sparse.issparse(D), piece_rows(self.rank)
        if not sparse:
            check_floating("D", D)
            check_floating("targets", targets)
        if weights is not None:
            check_positive("weights", weights, strict=False)
        if not sparse:
            D, targets = alike(self.mean, masked(weights, D), masked(weights, targets))
        weights = namespace(self.mean, targets).ones(len(targets), targets.dtype) if weights is None else weights
        counts = weights if counts is None else counts
        squares = counts if squares is None else squares
        if sparse:
            found: Structured = fold_sparse(self, Weighed(D.tocsr(), targets, weights, counts, squares), longest, _kept)
            return found
        numbers = alike(self.mean, targets, weights, counts, squares)
        info = ready_for(self, len(D))
        for start in range(0, len(D), longest):
            rows = Weighed(*(a[start : start + longest] for a in (D, *numbers)))
            n = len(rows.targets)
            info = settled(append(with_room(info, n), rows, n), info)
        info = in_form_of(self, info) if is_traced(info) else info
        if not all_finite(info.mean):
            for name, values in (("D", D), ("targets", targets)):
                check_finite(name, values)
            raise ValueError(f"The rows are too large for {D.dtype}: their squares overflow. Scale the columns down.")
        return info

    def forget(self, rho: Any) -> "Structured":
        """Return the information with the weight of every row multiplied by rho; the prior stays. O(d rank).

        Parameters
        ----------
        rho : float
            The factor, 0 < rho <= 1.

        Returns
        -------
        Structured
        """
        check_fading(rho)
        return _forgotten(self, asarray_like(rho, self.mean))

    def trace(self, diagonal: Array) -> Array:
        """Return the trace of a precision matrix with this diagonal in the units of `traces`."""
        unit = namespace(self.mean).maximum(self.prior_precision, self.least)
        return (diagonal / unit).sum().astype(self.traces.dtype)

    def rss_with(self, more: Array, count: Array, *, bent: bool = False) -> Array:
        """Return `rss` with the squared errors of so many more rows, which a `bent` model predicts; see `rss_with`."""
        return rss_with(self.rss, self.rows, 1 + 0 * self.dropped if bent else self.dropped, more, count)

    @property
    def _prior_diagonal(self) -> Array:
        return namespace(self.mean).broadcast_to(self.prior_precision, (self.d,))

    def apply(self, x: Array) -> Array:
        """Return P x for a vector, or for each row of a matrix."""
        return compiled_on_jax(PlusLowRank.apply)(self.precision, x)

    def quadratic(self, x: Array) -> Array:
        """Return x'P x for a vector."""
        return compiled_on_jax(PlusLowRank.quadratic)(self.precision, x)

    def solve(self, x: Array) -> Array:
        """Return P^-1 x for a vector, or for each row of a matrix."""
        return compiled_on_jax(PlusLowRank.solve)(self.precision, x)

    def leverage(self, D: Array) -> Array:
        """Return x'P^-1 x for each row x of D, shape (n,)."""
        return compiled_on_jax(PlusLowRank.leverage)(self.precision, D)

    def variances(self) -> Array:
        """Return the diagonal of P^-1, shape (d,)."""
        return compiled_on_jax(PlusLowRank.variances)(self.precision)

    def factor(self, g: Regularizer, theta: Array) -> StructuredFactor:
        """Return a factor of (P + Hess g(theta))^-1 on the coordinates that g leaves free at theta.

        Parameters
        ----------
        g : Regularizer
        theta : array of shape (d,)

        Returns
        -------
        StructuredFactor
        """
        free = g.free(theta)
        held = None if not is_traced(free) and bool(free.all()) else ~free
        P = with_curvature(self.precision, cast_on_jax(g, self.mean), theta)
        kept = self._prior_diagonal
        if g.separable:
            kept = kept + diagonal_hessian(g, theta)
        return StructuredFactor(P, held, self.fading, kept)


def piece_rows(rank: int) -> int:
    """Return how many rows are taken together."""
    return max(_PER_RANK * rank, _FEWEST[rank > 0])


def append(info: Structured, rows: Weighed, taken: Any, at: Any = 0, *, bent: bool = False) -> Structured:
    """Return the information with at most `piece_rows` rows, of which those after the first `taken` have weight 0.

    The targets are those of D (theta - at), so that a linearisation at a point reads D once. It is `bent` if the rows
    are those of a model that is not linear.
    It must have room for the first `taken`; see `with_room`. If it has none at all, as on JAX arrays that are about to
    learn many rows, W has all of these rows besides, until it is `settled`.
    """
    step = _append if namespace(info.mean, rows.D) is np else compiled(_append, "bent")
    found: Structured = step(info, rows, taken, at, bent=bent)
    return found


def _append(info: Structured, rows: Weighed, taken: Any, at: Any, *, bent: bool) -> Structured:
    xp, b = namespace(info.mean, rows.D), len(rows.D)
    root = xp.sqrt(rows.weights)
    taken = taken if xp is np else xp.asarray(taken, np.int32)
    D, e = root[:, None] * rows.D, root * (rows.targets - product(rows.D, info.mean - at))
    D, e, place = _fitted(info, D, e)
    base = info.precision.base
    G, gram = _joined(info, D, base.solve(D), place)
    P = PlusLowRank(base, G, gram)
    c = P.inner(_placed(e, place, len(G)))
    move = base.solve(combined(c, G))
    if D.dtype == np.float32:  # rows that say much more than the prior leave few digits to the first solution
        needed = (P.rounding > _EXACT) & (P.rounding < _HOPELESS)
        choose = cond if xp is np or G.size > _LARGE else select
        move = choose(needed, lambda: move + P.solve(combined(e, D) - P.apply(move)), lambda: move)
    totals = rows.counts.sum(), rows.squares.sum(), (e * window(c, place, b)).sum()
    count, more, rss = (value.astype(info.rows.dtype) for value in totals)
    sums = {"rows": info.rows + count, "squares": info.squares + more, "rss": info.rss_with(rss, count, bent=bent)}
    seen = info.trace(squares_of(D))
    traces = info.traces + xp.stack([seen, 0 * seen])
    info = replace(info, precision=P, used=info.used + taken, mean=info.mean + move, traces=traces, **sums)
    return info if info.rank else _truncated(info)


def rss_with(rss: Array, rows: Array, dropped: Array, more: Array, count: Array) -> Array:
    """Return the `rss` of an information with the squared errors of more rows, in units of their variances.

    Where the structure has dropped correlations, more than a thousandth of them, or the model is not linear, the first
    rows were predicted worse than their variances say. The noise variance would stay too large for as long as their
    errors count as much as later ones. So the k-th of n rows has then a weight in proportion to k^7, and `rss` is the
    weighted mean times the number of rows.
    """
    xp, some = namespace(rss), (dropped > _LITTLE) & (rows > 0) & (count > 0)
    total = xp.where(some, rows + count, 1)
    left = xp.where(some, rows / total, 1)
    per_row = more / xp.where(some, count, 1)
    return xp.where(some, left**_POWER * rss + (1 - left ** (_POWER + 1)) * total * per_row, rss + more)


def noise_of_predictions(rss: Array, rows: Any, edf: float, dropped: Array) -> Noise:
    """Return the noise variance that the errors of predictions tell.

    Its degrees of freedom are those of the share of rows that would determine it as well with equal weights; see
    `rss_with`.
    """
    xp = namespace(dropped)
    found, dropped = Noise.learned(rss, rows, edf), xp.asarray(dropped)
    share = xp.where(dropped > _LITTLE, (2 * _POWER + 1) / (_POWER + 1) ** 2, 1.0).astype(dropped.dtype)
    return replace(found, dof=found.dof * share)


def _room(rank: int) -> int:
    """Return how many directions are held, at most, until they are truncated."""
    return rank + piece_rows(rank) if rank else 0


def with_room(info: Structured, b: Any) -> Structured:
    """Return the information with room for b more directions."""
    return info if info.rank == 0 or _is_closed(info) else _with_room(info, b)


def _is_closed(info: Structured) -> bool:
    """Whether W has no room for more rows: on JAX arrays only, where it would have it otherwise."""
    return namespace(info.mean) is not np and len(info.precision.W) == info.rank


def ready_for(info: Structured, rows: int) -> Structured:
    """Return the information in the form in which so many more rows are learned the fastest, on JAX arrays.

    Few rows are put where there is room for them, and are truncated when there is no more, as those of NumPy arrays
    always are. Of many rows the directions are truncated in the step that learns them, without being held beside the
    others: means are the same, and variances are those after a truncation. Of large models fewer rows are many: room
    for others would be copied.
    """
    large = info.precision.d * _room(info.rank) > _LARGE
    return _in_form(info, closed=rows >= (info.rank if large else piece_rows(info.rank) / 2))


def in_form_of(like: Structured, info: Structured) -> Structured:
    """Return the information in the form of another one, so that a loop that is traced carries the same shapes."""
    return _in_form(info, closed=_is_closed(like))


def _in_form(info: Structured, *, closed: bool) -> Structured:
    """Return the information without room for more rows, or with it; on NumPy arrays as it is."""
    if namespace(info.mean) is np or info.rank == 0 or closed is _is_closed(info):
        return info
    return _truncated(info, closed=True) if closed else _with_directions(info, info.precision, info.used)


def settled(info: Structured, before: Structured) -> Structured:
    """Return the information after rows for which the one `before` had no room at all with `rank` directions again."""
    if info.rank == 0 or not _is_closed(before):
        return info
    found: Structured = compiled(_truncated, "closed")(info, closed=True)
    return found


def unsettled(info: Structured, b: int) -> Structured:
    """Return the information in the shape of one that has just learned b rows, before it is `settled`."""
    if not _is_closed(info) or info.rank == 0:
        return info
    return _padded(info, info.precision, info.rank + b, info.used)


@compiled_on_jax
def _with_room(info: Structured, b: Any) -> Structured:
    return cond(info.used + b > _room(info.rank), lambda: _truncated(info), lambda: info)


def _fitted(info: Structured, D: Array, e: Array) -> tuple[Array, Array, Any]:
    """Return rows, their errors, and where in W they begin.

    On JAX arrays, rows of weight 0 at the end, for which there is no room, move to the front, over rows of W in use.
    """
    b, xp = len(D), namespace(info.mean, D)
    if xp is np or info.rank == 0:
        return D, e, info.used
    if _is_closed(info):
        return D, e, info.rank
    place = xp.minimum(info.used, _room(info.rank) - b)
    shift = info.used - place
    D, e = cond(shift > 0, lambda: (xp.roll(D, shift, axis=0), xp.roll(e, shift)), lambda: (D, e))
    return D, e, place


def _truncated(info: Structured, closed: bool = False) -> Structured:
    """Return the information with `rank` directions; on JAX arrays, if `closed`, without room for others."""
    return _kept(info, truncated(info.precision, info.rank), closed=closed)


def _kept(info: Structured, found: Truncated, *, closed: bool = False) -> Structured:
    """Return the information with a precision that was truncated, and the account of what was dropped."""
    xp = namespace(info.mean)
    lost = (found.share * info.trace(found.dropped)).astype(info.traces.dtype)
    info = replace(info, traces=info.traces + xp.stack([0 * lost, lost]))
    if closed:
        return replace(info, precision=found.matrix, used=xp.asarray(info.rank, np.int32))
    return _with_directions(info, found.matrix)


def _with_directions(info: Structured, P: PlusLowRank, used: Any = None) -> Structured:
    """Return the information with a precision of up to `rank` directions; on JAX arrays it has room for others.

    All directions are `used` unless another number is given.
    """
    xp, k = namespace(P.W), len(P.W)
    if xp is np:
        return replace(info, precision=P, used=k)
    return _padded(info, P, _room(info.rank), xp.asarray(k, np.int32) if used is None else used)


def _padded(info: Structured, P: PlusLowRank, k: int, used: Any) -> Structured:
    """Return the information with a precision of k directions, of which the last are zero."""
    more, xp = k - len(P.W), namespace(P.W)
    W, gram = xp.pad(P.W, ((0, more), (0, 0))), xp.pad(P.gram, ((0, more), (0, more)))
    return replace(info, precision=PlusLowRank(P.base, W, gram), used=used)


def _joined(info: Structured, D: Array, solved: Array, place: Any) -> tuple[Array, Array]:
    """Return W with the rows D from a place on, and its products in the metric of the base."""
    W, gram = info.precision.W, info.precision.gram
    if namespace(W, D) is np:
        k, b = len(W), len(D)
        stacked, joint = np.empty((k + b, W.shape[1]), D.dtype), np.empty((k + b, k + b), D.dtype)
        stacked[:k], stacked[k:], joint[:k, :k] = W, D, gram
        joint[:, k:] = cross(stacked, solved)
        joint[k:, :k] = joint[:k, k:].T
        return stacked, joint
    if len(W) == 0:
        return D, cross(D, solved)
    if _is_closed(info):
        beside, xp = cross(W, solved), namespace(W, D)
        return xp.concatenate([W, D]), xp.block([[gram, beside], [beside.T, cross(D, solved)]])
    from jax.lax import dynamic_slice, dynamic_update_slice

    zero = 0 * place  # rows of D are zero where W is in use, and the other way round
    G = dynamic_update_slice(W, dynamic_slice(W, (place, zero), D.shape) + D, (place, zero))
    new = dynamic_update_slice(namespace(W).zeros_like(gram), cross(G, solved), (zero, place))
    old = namespace(W).arange(len(W), dtype=np.int32) < info.used
    return G, gram + new + namespace(W).where(old[None], new.T, 0)


def _placed(e: Array, place: Any, k: int) -> Array:
    """Return k numbers: e from a place on, and zeros elsewhere."""
    if namespace(e) is np:
        return np.concatenate([np.zeros(place, e.dtype), e])
    import jax

    return jax.lax.dynamic_update_slice(jax.numpy.zeros(k, e.dtype), e, (place,))


@compiled_on_jax
def _forgotten(info: Structured, rho: Array) -> Structured:
    P, p0 = info.precision, info._prior_diagonal
    base = P.base.scaled(rho).plus_diagonal((1 - rho) * p0)
    faded = PlusLowRank.of(base, namespace(rho).sqrt(rho) * P.W)
    away = info.prior_mean - info.mean
    move = (1 - rho) * faded.solve(p0 * away)
    # the minimum of rho * (the sum of rows and prior) + (1 - rho) * prior
    back = away - move
    rss = rho * (info.rss + P.quadratic(move)) + (1 - rho) * (back @ (p0 * back))
    rows, squares, traces = rho * info.rows, rho**2 * info.squares, rho * info.traces
    return replace(info, precision=faded, mean=info.mean + move, rows=rows, squares=squares, rss=rss, traces=traces)
