"""A filter of the rows of a linear model with a fixed quadratic penalty: it predicts each row, then learns it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import PickledFields
from kalprox.forgetting import ByRow, Forgetting
from kalprox.kernel.filter import CompiledFollower, Counts, Filter
from kalprox.kernel.library import kernel
from kalprox.learning.design import Design
from kalprox.learning.drift import learned_walking
from kalprox.learning.innovations import Innovations, in_stds, innovation
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Student
from kalprox.regularizers import Regularizer
from kalprox.sources import Block
from kalprox.sources.weighting import Course, course

_ROUNDING = float(np.finfo(float).eps) ** 0.5
_CHUNK = 1024  # rows whose inputs are held at a time
_WIDEST = 1e4  # the variance of a coefficient, relative to that beside no other one, of which twelve digits remain


@dataclass(eq=False)
class SquareRootFilter(PickledFields):
    """An estimate and a square root of its covariance, which every row updates in place.

    The penalty is replaced by its quadratic expansion at the estimate of the posterior it was made from: exact for a
    quadratic penalty, and for L1 and its relatives as long as the same coefficients are zero. Rounding errors
    accumulate, so that the filter is made afresh from the information from time to time.

    Attributes
    ----------
    kernel : kalprox.kernel.filter.Filter
        The estimates and the root, in the coordinates of the design. The rows of the root are zero for coordinates that
        the penalty holds.
    counts : Counts
        The number of `rows`, and the sum of the `squares` of the weights that forgetting has left of them. With
        forgetting also what the time since the last row has left of the weights, `elapsed`, and about the largest
        variance of a coefficient relative to that beside no other one, `width`.
    start : array of shape (p, k)
        The estimates at which the penalty was expanded.
    noise_var : float or None
        None if it is learned.
    targets : int or None
        The number of columns of y; None for one target.
    forgetting : Forgetting or None
        How single rows fade.
    time : float or None
        The time to which the rows have faded, if they are forgotten by time.
    sizes : array of shape (p,) or None
        With forgetting, the sums of squares of the inputs, as much as it has left of each.
    walk : float
        The variance of the step that the intercept takes after every row; 0 if it takes none.
    per_row : float
        What a row leaves of those before it.
    """

    design: Design
    kernel: Filter
    counts: Counts
    start: Array
    noise_var: float | None
    targets: int | None
    forgetting: Forgetting | None = None
    time: float | None = None
    sizes: Array | None = None
    walk: float = 0.0
    per_row: float = 1.0

    @classmethod
    def of(
        cls, posterior: InformationPosterior, design: Design, noise_var: float | None, target: int | None = None
    ) -> "SquareRootFilter":
        """Return the filter that starts from a posterior, or from that of one of its targets."""
        data, factor, g = posterior.data, posterior.metric_factors[target or 0], posterior.penalties[target or 0]
        theta, rss = np.array(posterior.mean, float), np.atleast_1d(posterior.rss)
        if target is not None:
            theta, k = theta[:, target], len(rss)
            rss = rss[target : target + 1]
            offset, rest = (np.broadcast_to(a, k)[target] for a in (design.offset, design.offset_rest))
            design = replace(design, offset=offset, offset_rest=rest)
        targets, theta = (None if theta.ndim == 1 else theta.shape[1]), theta.reshape(len(theta), -1)
        root, unit = np.asarray(factor.L), _units(design)
        held = np.zeros(len(theta), bool)
        if factor.free is not None:
            held[:] = True
            held[factor.free] = False
            root = np.zeros((len(theta), root.shape[1]))
            root[factor.free] = factor.L
        H = tilt = None
        if _penalises(g, len(theta)):
            H = _without(np.asarray(g.hessian(theta[:, 0])), held)
            slope = np.stack([g.grad(column) for column in theta.T], axis=-1)
            tilt = np.where(held[:, None], 0.0, slope - _times(H, theta))
            tilt = tilt if tilt.any() else None
            H = H if H.any() or tilt is not None else None
        if unit is not None:
            root, theta = root / unit, theta / unit
            design = replace(design, scale=np.ones_like(design.scale))
            if H is not None:
                H = H * (unit[:, 0] ** 2 if H.ndim == 1 else unit * unit.T)
            if tilt is not None:
                tilt = tilt * unit
        kernel = Filter(root, theta, H, tilt, rss)
        counts = Counts(float(data.rows), float(data.squares), 1.0, 1.0)
        return cls(design, kernel, counts, theta, noise_var, targets)

    def forgetting_by(self, kind: Forgetting, sizes: Array, time: float | None) -> "SquareRootFilter":
        """Return this filter with forgetting: each row fades those before it.

        `sizes` are the sums of squares of the inputs so far, and `time` is that of the last row.
        """
        made = replace(self, forgetting=kind, sizes=sizes, time=time, per_row=kind.per_row)
        made.counts.width = made._width
        return made

    def walking(self, variance: float) -> "SquareRootFilter":
        """Return this filter with an intercept that takes a step after every row. The first must have been taken."""
        return replace(self, walk=variance)

    @property
    def _width(self) -> float:
        """The largest variance of a coefficient, relative to that beside no other one: its variance inflation."""
        assert self.sizes is not None
        return float((self.sizes * np.einsum("ij,ij->i", self.L, self.L)).max(initial=1.0))

    @property
    def keeps_digits(self) -> bool:
        """Whether predictions are accurate: digits are lost once nearly all rows of some direction are forgotten."""
        if self.counts.width > _WIDEST:
            self.counts.width = self._width
        return self.counts.width <= _WIDEST

    @property
    def L(self) -> Array:
        """The root of the covariance of theta, in units of the noise variance."""
        return self.kernel.root

    @property
    def theta(self) -> Array:
        """The estimate, shape (p,) or (p, k)."""
        return self.kernel.theta[:, 0] if self.targets is None else self.kernel.theta

    # ---- one row ---------------------------------------------------------------------------------------

    def follow(
        self, x: Array, y: Any, weight: float = 1.0, count: float = 1.0, *, own: float = 1.0, predict: bool = True
    ) -> Sequence[Any]:
        """Learn a row x of shape (d,) with target y in place, and return the fields of its innovation.

        The fields are empty if `predict` is False. The row counts `count` times; `own` is the variance of its noise, in
        units of the noise variance.
        """
        if self.compiled is None:
            return self._follow(x, y, weight, count, own=own, predict=predict)
        found = self.compiled.follow(x, y, weight, count, own)
        return found if predict else ()

    def _follow(
        self, x: Array, y: Any, weight: float, count: float, *, own: float = 1.0, predict: bool = True
    ) -> Sequence[Any]:
        """What `follow` says, in NumPy."""
        noise, counts, target = self.noise() if predict else None, self.counts, self.design.residual(y)
        inputs = self.design.put_row(x, self.kernel.row)
        error, leverage = self.kernel.learn_row(target, 0.0)
        error, s = float(error[0]) if self.targets is None else error.copy(), self._widened(inputs, leverage)
        rows = self.make_room(count)
        weight = rows if weight == count else weight  # a row that counts n times stands for n rows in turn
        if self.sizes is not None:
            self.sizes += weight * (inputs * inputs)
        self.kernel.learn_row(target, weight)
        counts.elapsed = 1.0
        if self.walk:
            self.kernel.walk(self.walk)
        return () if noise is None else innovation(y, y - error, noise[0], noise[1], s + own)

    @property
    def takes_blocks(self) -> bool:
        """Whether nothing happens between rows, so that `take` learns those of a block as if they came one by one."""
        return self.forgetting is None and not self.walk

    @cached_property
    def compiled(self) -> CompiledFollower | None:
        """What the compiled kernel sees of this filter; None if it cannot follow rows.

        It does not let an intercept walk that varies with other coefficients.
        """
        if kernel() is None or (self.walk and not self.kernel.first_is_alone):
            return None
        design = self.design
        about = (design.center, design.center_rest) if design.intercept else (None, None)
        return CompiledFollower(
            self.kernel,
            self.counts,
            *about,
            design.offset,
            design.offset_rest,
            self.sizes,
            left=self.per_row,
            walk=self.walk,
            noise_var=self.noise_var,
        )

    def advance(self, time: float) -> None:
        """Let the rows fade in place until the time of the next one."""
        assert self.time is not None and self.forgetting is not None
        if time != self.time:
            left = float(self.forgetting.left(self.time, time))
            self._fade(left)
            self.time = time
            self.counts.elapsed *= left

    def make_room(self, count: float) -> float:
        """Let the rows so far fade in place for a row that counts so often; return how many rows it stands for."""
        forget, rows, squares = self.per_row, count, count
        if forget != 1:  # see `kalprox.sources.weighting`
            left = forget**count
            rows, squares = (1 - left) / (1 - forget), (1 - left**2) / (1 - forget**2)
            self._fade(left)
        self.counts.rows += rows
        self.counts.squares += squares
        return rows

    def _fade(self, left: float) -> None:
        assert self.sizes is not None
        self.kernel.fade(left)
        self.sizes *= left
        counts = self.counts
        counts.rows *= left
        counts.squares *= left**2
        counts.width /= left

    @property
    def _spread(self) -> float:
        """By how much forgetting widens the variance of a mean: the sum of the squared weights by that of these."""
        counts = self.counts
        return counts.squares / counts.rows / counts.elapsed if self.forgetting is not None and counts.rows else 1.0

    def _widened(self, inputs: Array, leverage: Any) -> Any:
        """Return the variances of means of these leverages, given the inputs of their rows; see `InformationPosterior`.

        With c = `_spread` that of x'theta is c x'V x + (1 - c) x'V H V x, for the curvature H of the penalty.
        """
        spread = self._spread
        if spread == 1 or self.kernel.curvature is None:
            return spread * leverage
        return spread * leverage + (1 - spread) * self._bends(inputs @ self.L)

    def _bends(self, projected: Array) -> Array:
        """Return x'V H V x for rows x that are given as x'L."""
        gains, H = projected @ self.L.T, self.kernel.curvature
        assert H is not None
        bends: Array = ((gains @ H if H.ndim == 2 else gains * H) * gains).sum(axis=-1)
        return bends

    # ---- a block ---------------------------------------------------------------------------------------

    def take(
        self,
        block: Block,
        *,
        own: Array | None = None,
        counts: Array | None = None,
        fading: Course | None = None,
        walk: Forgetting | None = None,
    ) -> Innovations:
        """Learn a block of b rows in place, one after the other, and return their innovations. O(b p^2).

        Parameters
        ----------
        block : Block
        own : array of shape (b,), optional
            The variance of the noise of each row, in units of the noise variance; 1 by default.
        counts : array of shape (b,), optional
            How many rows each row counts for; 1 by default.
        fading : Course, optional
            How earlier rows are forgotten on the way. Forgetting also fades the curvature of the penalty, until the end
            of the block: the filter must then be made afresh.
        walk : Forgetting, optional
            How all coefficients walk: a step before each row but the first. The filter does not learn the rows then.
        """
        n, ones = len(block), np.ones(len(block))
        y = block.y.reshape(n, -1)
        counts, own = ones if counts is None else counts, ones if own is None else own
        weights = counts if block.weights is None else block.weights
        forgets, fading = fading is not None, fading or course(ByRow(1.0), counts)
        weights = weights * fading.worth if forgets else weights
        left = fading.left  # of what was there before the block, when a row is predicted
        known_rows, known_squares = self.counts.rows, self.counts.squares
        fades = forgets or known_squares != known_rows
        error0, s0, bent0 = self._predicted(block.X, y, bends=fades)  # as predicted before the block
        variance0, _, known = self._noise(known_rows, known_squares, self.kernel.rss, self.kernel.trace[0])
        if walk is None:
            parts = [self.kernel.learn(D, target, weights[rows]) for rows, D, target in _parts(self.design, block.X, y)]
            error, s, bent, rss, trace = (np.concatenate(values) for values in zip(*parts, strict=True))
        else:
            inputs, first = self.design.rows(block.X), self.design.intercept
            Q = walk.steps(block.X.shape[1], intercept=first)
            K = (np.column_stack([ones, block.X]) if first else block.X) * np.sqrt(Q)
            about = error0, weights, self.kernel.rss, float(self.kernel.trace[0])
            (error, s, bent, rss, trace), steps = learned_walking(inputs @ self.L, K, *about)
            s0 = s0 + steps
        rows_before = (left * known_rows + fading.rows)[:, None]
        if fades:
            squares_before = (left**2 * known_squares + fading.squares)[:, None]
            variance, dof, spread = self._noise(rows_before, squares_before, left[:, None] * rss, trace[:, None])
            spread, known = spread / fading.elapsed[:, None], known / fading.elapsed[0]  # that of the row before
            s = ((spread * s[:, None] + (1 - spread) * bent[:, None]) / left[:, None])[:, 0]
            s0 = known * s0 + (1 - known) * bent0
        else:
            variance, dof, _ = self._noise(rows_before, rows_before, rss, trace[:, None])
        scale = np.sqrt(own + s)[:, None]
        issued = in_stds(error0, np.sqrt(variance0) * np.sqrt(own + s0)[:, None])
        self.counts.rows += float(counts.sum())
        self.counts.squares += float(counts.sum())
        return Innovations.one_by_one(block.y, y - error, np.sqrt(variance) * scale, dof, scale, issued)

    def _predicted(self, X: Array, y: Array, *, bends: bool) -> tuple[Array, Array, Array]:
        """Return errors, leverages and, if wanted, x'V H V x for the curvature H of the penalty, without learning."""
        L, theta = self.kernel.root, self.kernel.theta
        error, s, bent = np.empty(y.shape), np.empty(len(y)), np.zeros(len(y))
        with np.errstate(over="ignore", invalid="ignore"):  # rows that are too large are refused as they are learned
            for rows, D, targets in _parts(self.design, X, y):
                projected = D @ L
                error[rows] = targets - D @ theta
                s[rows] = np.einsum("ij,ij->i", projected, projected)
                if bends and self.kernel.curvature is not None:
                    bent[rows] = self._bends(projected)
        return error, s, bent

    # ---- reading ---------------------------------------------------------------------------------------

    def copy(self) -> "SquareRootFilter":
        """Return a filter that later rows of this one do not change. O(d^2)."""
        sizes = None if self.sizes is None else self.sizes.copy()
        return replace(self, kernel=self.kernel.copy(), counts=self.counts.copy(), sizes=sizes)

    def output(self, X: Array) -> tuple[Array, Array]:
        """Return x'theta for rows of X, shape (n,) or (n, k), and its variance in units of the noise variance, (n,)."""
        if len(X) == 1 and self.targets is None:
            self.design.put_row(X[0], self.kernel.row)
            error, leverage = self.kernel.learn_row(0.0, 0.0)
            mean = (float(self.design.offset_rest) - float(error[0])) + float(self.design.offset)
            return np.array([mean]), np.array([leverage])
        root = self.design.rows(X) @ self.L
        return self.mean(X), np.einsum("ij,ij->i", root, root)

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X, shape (n,) or (n, k)."""
        if len(X) == 1 and self.targets is None:
            f = float(self.design.put_row(X[0], self.kernel.row).dot(self.kernel.theta[:, 0]))
            return np.array([(f + float(self.design.offset_rest)) + float(self.design.offset)])
        return self.design.predictor(X, self.theta)

    def predict(self, X: Array) -> Student:
        """Return the predictive distribution for rows of X, including the noise."""
        if len(X) == 1 and self.targets is None and self.compiled is not None:
            mean, std, dof, *_ = self.compiled.follow(X[0], 0.0, 0.0, 0.0, 1.0)
            return Student(np.array([mean]), np.array([std]), dof)
        (variance, dof), (mean, leverage) = self.noise(), self.output(X)
        scale = np.sqrt(1 + self._widened(self.design.rows(X), leverage))
        if self.targets is None:
            return Student(mean, scale * math.sqrt(variance), dof)
        return Student(mean, np.outer(scale, np.sqrt(variance)), dof)

    def noise(self) -> tuple[Any, Any]:
        """Return the noise variance and its degrees of freedom, equal to those of the information up to rounding.

        The variance is rss / dof with dof = rows - rank + tr(L L' H).
        """
        counts, rss = self.counts, self.kernel.rss if self.targets is not None else self.kernel.rss[0]
        rows = counts.rows
        squares = rows if self.forgetting is None or not rows else counts.squares
        variance, dof, _ = self._noise(rows, squares, rss, self.kernel.trace[0])
        return variance if self.targets is not None else float(variance), float(dof)

    def _noise(self, rows: Any, squares: Any, rss: Array, trace: Any) -> tuple[Array, Array, Array]:
        """Return the noise variance, its degrees of freedom, and squares / rows.

        Give the same object as `rows` and as `squares` if nothing was forgotten: the last one is then 1.
        """
        spread: Any = 1.0 if squares is rows else np.asarray(squares / np.where(rows > 0, rows, 1))
        if self.noise_var is not None:
            return np.full(np.shape(rss), self.noise_var), np.asarray(math.inf), spread
        effective, scaled = rows, np.maximum(rss, 0)
        if squares is not rows:
            positive = np.where(spread > 0, spread, 1)
            effective, scaled = rows / positive, scaled / positive
        dof = np.asarray(effective - self.L.shape[1] + trace)
        enough = dof > _ROUNDING * effective
        if enough.all():
            return scaled / dof, dof, spread
        return np.where(enough, scaled / np.where(enough, dof, 1), np.nan), dof, spread


def _units(design: Design) -> Array | None:
    """Return the scales of the inputs as a column; None if all are 1."""
    if design.scale is None or (design.scale == 1).all():
        return None
    return np.append(np.ones(design.first), design.scale)[:, None]


def _times(H: Array, theta: Array) -> Array:
    return H @ theta if H.ndim == 2 else H[:, None] * theta


def _without(H: Array, held: Array) -> Array:
    """Return a Hessian that is zero for the coordinates that are held."""
    return np.where(held, 0.0, H) if H.ndim == 1 else np.where(held[:, None] | held, 0.0, H)


def _parts(design: Design, X: Array, y: Array) -> Iterator[tuple[slice, Array, Array]]:
    """Yield some rows at a time: which, their inputs, and their targets about the offset."""
    for start in range(0, len(X), _CHUNK):
        rows = slice(start, start + _CHUNK)
        yield rows, design.rows(X[rows]), design.residual(y[rows])


def _penalises(g: Regularizer, d: int) -> bool:
    root = g.root(d)
    return root is None or bool(root.any())
