"""Information about many parameters: a precision matrix of a given structure, and the posterior that it gives."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array, alike, asarray_like, cast_on_jax, is_traced, masked, namespace, pytree, static
from kalprox.base.checks import all_finite, check_fading, check_finite, check_floating, check_positive
from kalprox.base.control import compiled_on_jax, cond, select
from kalprox.base.tree import leaf
from kalprox.information.base import Counted
from kalprox.information.implicit import pieces
from kalprox.large.block_diagonal import BlockDiagonal, Layout
from kalprox.large.block_diagonal import squares as squares_of
from kalprox.large.low_rank import PlusLowRank, StructuredFactor, Truncated, combined, cross, largest, truncated
from kalprox.large.prox import diagonal_hessian, with_curvature
from kalprox.likelihoods import Likelihood
from kalprox.linalg.triangle import product
from kalprox.noise import Noise
from kalprox.posterior import Posterior
from kalprox.regularizers import Regularizer

_PER_RANK = 4  # rows that are taken together, in units of the rank: the cost of a row is least between 1 and 4
_EXACT = 1e-4  # the relative rounding error up to which a solution needs no correction
_HOPELESS = 0.5  # the relative rounding error from which on a correction would not converge
_POWER = 7  # of the number of a row, in the weight that its error has where the structure has dropped correlations
_LITTLE = 1e-3  # the share of the rows' precision that may be dropped without any effect on the noise variance
# Rows that are taken together, at least: without directions, where a row costs as many products, and with them, where
# a truncation takes as long as some tens of rows, on an accelerator most of the time.
_FEWEST = 16, 64
_SPARSE = 64  # sparse rows that are made dense together on the columns that they touch, at least
_LARGE = 1 << 24  # numbers of W from which a branch is not computed in vain; it costs an accelerator a pause


class Weighed(NamedTuple):
    """Rows D, which may be sparse, and what each of them has besides: a target, a weight, and what it counts for."""

    D: Any
    targets: Array
    weights: Array
    counts: Array
    squares: Array

    @classmethod
    def of(
        cls, D: Any, targets: Array, weights: Array | None, counts: Array | None, squares: Array | None
    ) -> "Weighed":
        """Return rows of weight 1 if none is given, each of which counts for its weight unless something else is."""
        weights = namespace(targets).ones_like(targets) if weights is None else weights
        counts = weights if counts is None else counts
        return cls(D, targets, weights, counts, counts if squares is None else squares)


@pytree
class Structured(Counted):
    """The information of rows and of a normal prior about theta, with a precision matrix P = B + W'W.

    Make one with `kalprox.structures`, as in `LowRank(20).start(mean, precision)`.

    Parameters
    ----------
    precision : PlusLowRank
        P. On JAX arrays, whose shapes stay, W has `rank` rows, some of which may be zero. On NumPy arrays it has those
        that are in use: rows as they came, until there is no more room and the `rank` largest directions stay.
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
        return cls(P, mean, mean, p0, zero, zero, zero, xp.zeros(2, zero.dtype), p0.mean(), rank)

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
            May be a sparse matrix, if the information has NumPy arrays. Its rows are dense on the columns that a piece
            of them touches, and nowhere else, unless the structure has dense blocks.
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
        if weights is not None:
            check_positive("weights", weights, strict=False)
        if not sparse:
            check_floating("D", D)
            check_floating("targets", targets)
            D, targets = alike(self.mean, masked(weights, D), masked(weights, targets))
        given = Weighed.of(D.tocsr() if sparse else D, targets, weights, counts, squares)
        if sparse:
            return _fold_sparse(self, given)
        numbers = alike(self.mean, *given[1:])
        info = self
        for start in range(0, len(D), longest):
            rows = Weighed(*(a[start : start + longest] for a in (D, *numbers)))
            info = settled(append(with_room(info, len(rows.D)), rows))
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


@compiled_on_jax
def append(info: Structured, rows: Weighed, at: Any = 0, *, bent: Any = False) -> Structured:
    """Return the information with at most `piece_rows` rows, which W has besides its directions; see `settled`.

    The targets are those of D (theta - at), so that a linearisation at a point reads D once. It is `bent` if the rows
    are those of a model that is not linear. There must be room for the rows; see `with_room`.
    """
    xp, (W, gram) = namespace(info.mean, rows.D), (info.precision.W, info.precision.gram)
    k, base, root = len(W), info.precision.base, xp.sqrt(rows.weights)
    D, e = root[:, None] * rows.D, root * (rows.targets - product(rows.D, info.mean - at))
    G = xp.concatenate([W, D])
    P = PlusLowRank(base, G, _bordered(gram, cross(G, base.solve(D))))
    c = P.inner(xp.concatenate([xp.zeros(k, e.dtype), e]))
    move = base.solve(combined(c, G))
    if D.dtype == np.float32:  # rows that say much more than the prior leave few digits to the first solution
        needed = (P.rounding > _EXACT) & (P.rounding < _HOPELESS)
        choose = cond if xp is np or G.size > _LARGE else select
        move = choose(needed, lambda: move + P.solve(combined(e, D) - P.apply(move)), lambda: move)
    sums = _sums(info, rows, (e * c[k:]).sum(), squares_of(D), bent)
    info = replace(info, precision=P, mean=info.mean + move, **sums)
    return info if info.rank else _truncated(info)


def _bordered(gram: Array, new: Array) -> Array:
    """Return the products of k + b directions, given those of the first k and of all with the last b."""
    xp, k = namespace(gram, new), len(gram)
    return xp.concatenate([xp.concatenate([gram, new[:k].T]), new], axis=1)


def _sums(info: Structured, rows: Weighed, rss: Array, diagonal: Array, bent: Any = False) -> dict[str, Array]:
    """Return the sums after rows, given their errors and the diagonal of the precision that they add."""
    xp, dtype, seen = namespace(info.mean), info.rows.dtype, info.trace(diagonal)
    count, more = (a.sum().astype(dtype) for a in (rows.counts, rows.squares))
    dropped = xp.where(bent, 1, info.dropped)  # of a model that is not linear, the first rows are predicted worse too
    return {
        "rows": info.rows + count,
        "squares": info.squares + more,
        "rss": rss_with(info.rss, info.rows, dropped, rss.astype(dtype), count),
        "traces": info.traces + xp.stack([seen, 0 * seen]),
    }


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


def with_room(info: Structured, b: int) -> Structured:
    """Return the information with room for b more rows: on NumPy arrays the directions are truncated if there is none.

    On JAX arrays there is always room; their directions are truncated in the step that learns rows, see `settled`.
    """
    full = info.rank and len(info.precision.W) + b > info.rank + piece_rows(info.rank)
    return _truncated(info) if full and namespace(info.mean) is np else info


def settled(info: Structured) -> Structured:
    """Return the information after rows in the shape that it had before them, on JAX arrays: with `rank` directions."""
    if namespace(info.mean) is np or len(info.precision.W) <= info.rank:
        return info
    return _truncated(info)


@compiled_on_jax
def _truncated(info: Structured) -> Structured:
    """Return the information with `rank` directions."""
    return _kept(info, truncated(info.precision, info.rank))


def _kept(info: Structured, found: Truncated) -> Structured:
    """Return the information with a precision that was truncated, and the account of what was dropped."""
    lost = (found.share * info.trace(found.dropped)).astype(info.traces.dtype)
    traces = info.traces + namespace(info.mean).stack([0 * lost, lost])
    return replace(info, precision=found.matrix, traces=traces)


def _fold_sparse(info: Structured, rows: Weighed) -> Structured:
    """Return an information of NumPy arrays with the rows of positive weight of a sparse matrix.

    A diagonal takes O(d), and the number of entries of the rows; directions have all columns, O(d rank^2) for a piece.
    """
    pieces = _touched(rows, max(_SPARSE, piece_rows(info.rank)))
    if info.precision.base.layout.groups:
        for piece, _, _ in pieces:
            info = info.fold(piece.D.toarray(), *piece[1:])
        return info
    if info.rank:
        for piece, columns, D in pieces:
            info = _with_sparse(info, piece, columns, D)
        return info
    p, mean, prior = info.precision.base.p.copy(), info.mean.copy(), info._prior_diagonal
    whole = {"prior_mean": info.prior_mean, "prior_precision": info.prior_precision}
    for piece, columns, D in pieces:  # which tell nothing about other columns
        part = {"mean": mean[columns], "prior_precision": prior[columns]}
        info = replace(info, precision=diagonal(p[columns]), **part).fold(D, *piece[1:])
        p[columns], mean[columns] = info.precision.base.p, info.mean
    return replace(info, precision=diagonal(p), mean=mean, **whole)


def diagonal(p: Array) -> PlusLowRank:
    """Return diag(p), without directions."""
    return PlusLowRank.of(BlockDiagonal(p), np.zeros((0, len(p))))


def _touched(rows: Weighed, longest: int) -> Iterator[tuple[Weighed, Array, Array]]:
    """Yield the rows of positive weight, `longest` at a time, the columns they touch, and D on these, dense."""
    used = np.flatnonzero(rows.weights > 0)
    for start in range(0, len(used), longest):
        piece = Weighed(*(a[used[start : start + longest]] for a in rows))
        check_finite("D", piece.D.data)
        check_finite("targets", piece.targets)
        columns, at = np.unique(piece.D.indices, return_inverse=True)
        D = np.zeros((len(piece.targets), len(columns)))
        np.add.at(D, (np.repeat(np.arange(len(D)), np.diff(piece.D.indptr)), at), piece.D.data)  # some occur twice
        yield piece, columns, D


def _with_sparse(info: Structured, rows: Weighed, columns: Array, D: Array) -> Structured:
    """Return the information, with a diagonal base, with rows that are D on some columns, as `_append` does."""
    P, root = info.precision, np.sqrt(rows.weights)
    k, p, D = len(P.W), P.base.p[columns], root[:, None] * D
    e, solved = root * (rows.targets - rows.D @ info.mean), D / p
    both = PlusLowRank(P.base, P.W, _bordered(P.gram, np.concatenate([P.W[:, columns] @ solved.T, D @ solved.T])))
    c = both.inner(np.concatenate([np.zeros(k), e]))
    mean = info.mean + P.base.solve(c[:k] @ P.W)
    mean[columns] += (c[k:] @ D) / p
    added = np.zeros(info.d)
    added[columns] = squares_of(D)
    info = replace(info, mean=mean, **_sums(info, rows, e @ c[k:], added))

    def mixed(U: Array) -> Array:
        found = combined(U[:, :k], P.W)
        found[:, columns] += U[:, k:] @ D
        return found

    if len(both.gram) <= info.rank:
        return replace(info, precision=replace(both, W=mixed(np.eye(len(both.gram)))))
    return _kept(info, largest(P.base, both.gram, info.rank, squares_of(P.W) + added, mixed, P.W))


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


class StructuredPosterior(Posterior):
    """The posterior with a given mean, whose precision matrix is held in a structure.

    Parameters
    ----------
    mean : array of shape (d,)
    noise : Noise
    likelihood : Likelihood
    factor : callable
        Returns the factor of the covariance, when that is read first.
    """

    mean: Array = None
    noise: Noise = None  # type: ignore[assignment]

    def __init__(
        self, mean: Array, noise: Noise, likelihood: Likelihood, factor: Callable[[], StructuredFactor]
    ) -> None:
        self.mean, self.noise, self.likelihood, self._factor = mean, noise, likelihood, factor

    @cached_property
    def factors(self) -> list[Any]:  # of StructuredFactor, which is read as the others are
        return [self._factor()]

    def output_variance(self, f: Array, D: Any) -> Array:
        """Return the variance of the outputs, see `Posterior`; D may also be sparse, or a Jacobian by its products.

        Of several classes it is that of the differences to their mean, which alone have an effect.
        """
        if not hasattr(D, "explicit"):
            return self._variance_of(f, D)
        parts = [self._variance_of(f[rows], rows_of_D) for rows, rows_of_D in pieces(D, len(f), f[0].size)]
        found = np.concatenate(parts)
        if self.likelihood.interacts:
            found = found - found.mean(axis=-1, keepdims=True)
            found = found - found.mean(axis=-2, keepdims=True)
        return found

    def _variance_of(self, f: Array, D: Any) -> Array:
        if not scipy.sparse.issparse(D):
            return super().output_variance(f, D)
        if not self.likelihood.interacts:
            return self.leverage(D).reshape(f.shape)
        parts = (D[i : i + f.shape[1]].toarray() for i in range(0, f.size, f.shape[1]))
        return np.concatenate([super(StructuredPosterior, self).output_variance(f[:1], rows) for rows in parts])


def noise_of(
    data: Structured,
    likelihood: Likelihood,
    gamma: Any = None,
    *,
    g: Regularizer | None = None,
    mean: Any = None,
    fitted: float = 0.0,
) -> Noise:
    """Return the noise variance: the one that is given, that of the likelihood, or that of the evidence.

    That of the evidence is the mean square of the errors with which each row was predicted from those before it, in
    units of their standard deviations, and its degrees of freedom are the rows.

    Parameters
    ----------
    data : Structured
    likelihood : Likelihood
    gamma : float, optional
        The noise precision; by default it is learned.
    g : Regularizer, optional
        A penalty besides the prior, which moves the estimate to `mean`.
    fitted : float
        How many parameters the rows have fitted that the errors do not know of.
    """
    if gamma is not None or not likelihood.learns_noise:
        return Noise.known((1.0 if gamma is None else gamma) / likelihood.unit)
    rows, rss = data.effective_rows, data.rss
    if likelihood.majorizes:
        return Noise(likelihood.unit, rows)
    if g is not None:
        rss = rss + data.quadratic(mean - data.mean).astype(rss.dtype)
        if g.quadratic:
            rss = rss + np.asarray(2 * g.value(mean)).astype(rss.dtype)
    return noise_of_predictions(rss / data.fading, rows, fitted, data.dropped)
