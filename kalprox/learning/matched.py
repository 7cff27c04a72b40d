"""Other likelihoods than the Gaussian, learned row by row by moment matching.

Each row is learned as the least-squares problem that has, on average over the belief before it, the slope and the
curvature of the loss. What `MatchingFilter` and `ClassFilter` return for a row is that problem, from which
`kalprox.algorithms.proximal_filter.take_matched` folds the row later. `Matched` is the state of a member of a bank,
whose rows fade while the prior does not.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from kalprox.algorithms.proximal_filter import FAR, origin
from kalprox.algorithms.state import ProximalState
from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable
from kalprox.base.tree import state
from kalprox.information import Information
from kalprox.kernel.filter import Counts as RowCounts
from kalprox.kernel.filter import Filter
from kalprox.learning.belief import Belief, Facts
from kalprox.learning.design import Design, Moments
from kalprox.learning.innovations import Innovations
from kalprox.learning.settings import Settings
from kalprox.learning.square_root import SquareRootFilter
from kalprox.learning.state import Core
from kalprox.learning.targets import Seen, check_targets
from kalprox.learning.weak_prior import coef_regularizer
from kalprox.likelihoods import Likelihood
from kalprox.linalg.triangle import solve_triangular
from kalprox.noise import Noise
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive
from kalprox.solvers.terms import diagonal_curvature
from kalprox.sources import Block, Counts, Source

_CHUNK = 1024  # rows predicted at a time
_WIDE = 0.1  # the variance of the difference of two outputs above which a row is learned at the mode
_UNSURE = 1.0  # the variance of an output above which its prediction is not judged
_STEPS, _TOL = 50, 1e-8  # of Newton's method for the mode; a few steps are usual
_NOISE = Noise.known(1.0)
_LEAST = 1e-12  # curvature, which keeps matrices invertible


@dataclass
class MatchingFilter:
    """A filter of single rows that learns each by moment matching, and predicts with the likelihood.

    Attributes
    ----------
    root : SquareRootFilter
        In units of the loss, which are those of a noise variance of 1.
    likelihood : Likelihood
    origin : tuple of two arrays or None
        Where earlier rows were linearised, if it must not move far from there; see `filter_after`.
    is_due : bool
        Whether it has moved far from there, so that its rows are to be folded.
    """

    root: SquareRootFilter
    likelihood: Likelihood
    origin: tuple[Array, Array] | None = None
    is_due: bool = False

    compiled: ClassVar[None] = None  # likelihoods are in Python
    keeps_digits: ClassVar[bool] = True

    def copy(self) -> "MatchingFilter":
        """Return a filter that later rows of this one do not change. O(d^2)."""
        return replace(self, root=self.root.copy())

    def learn(self, x: Array, y: Array, weight: float, offset: float = 0.0) -> Array | None:
        """Learn a row x of shape (d,) in place, by the least-squares problem for the step of f = x'theta + offset.

        Returns f before the row, its variance, and the target and the row of that problem, apart from the weight: an
        array of four numbers. None, and no update, if one of these is not finite. A row of weight 0 is only predicted.
        """
        root, kernel = self.root, self.root.kernel
        root.design.put_row(x, kernel.row)
        error, leverage = kernel.learn_row(0.0, 0.0)
        before = -float(error[0])
        f = before + offset
        if weight == 0:
            return np.array([f, leverage, 0.0, 0.0])
        step, curvature = self.likelihood.matched_row(float(y), f, leverage)
        total = curvature * weight
        if not (total > 0 and math.isfinite(f + leverage + step + 1 / total)):
            return None
        kernel.learn_row(before + step, curvature * root.make_room(weight))
        if root.walk:
            kernel.walk(root.walk)
        size = math.sqrt(curvature)
        return np.array([f, leverage, size * step, size])

    def learn_rows(self, rows: Block) -> list[Array]:
        """Learn rows in place, and return what `learn` returns for each.

        Raise a ValueError if one is rejected; those before it have been learned then.
        """
        found: list[Array] = []
        n = len(rows.y)
        weights = [1.0] * n if rows.weights is None else rows.weights.tolist()
        offset = [0.0] * n if rows.offset is None else rows.offset.tolist()
        for x, y, weight, added in zip(rows.X, rows.y, weights, offset, strict=True):
            matched = self.learn(x, y, weight, added)
            if matched is None:
                raise _rejected(len(found))
            found.append(matched)
        if self.origin is not None:
            self.is_due = self.is_due or _has_moved(self.origin, rows, np.array(found))
        return found

    def follow(self, x: Array, y: float, weight: float, count: float, *, own: float) -> Array:
        """Learn a row, and return the output before it and its variance; for the rest see `SquareRootFilter.follow`."""
        found = self.learn(x, np.asarray(y), weight)
        if found is None:
            raise _rejected(0)
        return found[:2]

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X: of classes their probabilities."""
        return self.predict(X).mean

    def noise(self) -> tuple[float, float]:
        """Return the noise variance, which is 1, and its degrees of freedom."""
        return 1.0, math.inf

    def predict(self, X: Array, offset: Array | None = None) -> Predictive:
        """Return the predictive distribution for rows of X."""
        f, variance = self.root.output(X)
        return self.likelihood.predict(f if offset is None else f + offset, variance, _NOISE)


@dataclass
class ClassFilter(MatchingFilter):
    """A filter of single rows of several classes, each of which has an output.

    Attributes
    ----------
    root : SquareRootFilter
        Of the coefficients of all classes, those of one input next to each other, with a design of m outputs.
    likelihood : Likelihood
        One whose outputs interact, such as `Categorical`.
    """

    def learn(self, x: Array, y: Array, weight: float, offset: float = 0.0) -> Array | None:
        """Learn a row x of shape (d,) with targets y of shape (m,) in place. O(m (d m)^2). It has no offset.

        The least-squares problem of `Categorical.matched_rows` has one row less than there are classes. They are
        learned one after the other. It averages the curvature of the loss over the belief, and a step from a wide
        belief would go too far: such a row is learned by the problem that has the slope and the curvature at the mode
        of what the row and the belief say together.

        Returns the outputs f before the row, shape (m,), their covariances, and the targets and the rows of that
        problem, shapes (m,) and (m, m), as one array. None, and no update, if one of these is not finite.
        """
        root, m = self.root, len(y)
        f, S = self._outputs(x[None])
        if weight == 0:
            return np.concatenate([f[0], S.ravel(), np.zeros(m + m * m)])
        if spread(S[0]) > _WIDE:
            targets, rows = _at_mode(y, f[0], S[0])
        else:
            targets, rows = (a[0] for a in self.likelihood.matched_rows(y[None], f, np.eye(m)[None], S))
        found = np.concatenate([f[0], S.ravel(), targets, rows.ravel()])
        if not np.isfinite(found).all():
            return None
        kernel, inputs = root.kernel, root.design.rows(x[None])[0]
        for a, target in zip(rows[:-1], targets[:-1], strict=True):
            kernel.row[:] = np.multiply.outer(inputs, a).ravel()
            kernel.learn_row(target + a @ f[0], weight)
        root.make_room(weight)
        return found

    def _outputs(self, X: Array) -> tuple[Array, Array]:
        """Return the outputs of rows of X, shape (n, m), and their covariances, shape (n, m, m)."""
        inputs, L = self.root.design.rows(X), self.root.L
        p = inputs.shape[1]
        roots = np.tensordot(inputs, L.reshape(p, -1, L.shape[1]), axes=1)
        return inputs @ self.root.theta.reshape(p, -1), roots @ roots.swapaxes(-1, -2)

    def predict(self, X: Array, offset: Array | None = None) -> Predictive:
        """Return the predictive distribution for rows of X, which have no offset."""
        parts = [self._outputs(X[start : start + _CHUNK]) for start in range(0, len(X), _CHUNK)]
        f, S = map(np.concatenate, zip(*parts, strict=True))
        return self.likelihood.predict(f, S, _NOISE)


def _rejected(row: int) -> ValueError:
    return ValueError(
        f"The model has no finite value or derivative at the current estimate in row(s) {row} of the block, which is "
        "rejected. Remove these rows first."
    )


def spread(S: Array) -> Array:
    """Return the largest variance of the difference of two outputs with covariances S of shape (..., m, m)."""
    own = np.diagonal(S, axis1=-2, axis2=-1)
    largest: Array = (own[..., :, None] + own[..., None, :] - 2 * S).max(axis=(-2, -1))
    return largest


def _at_mode(y: Array, f: Array, S: Array) -> tuple[Array, Array]:
    """Return the least-squares problem of a row at the mode of exp(-loss) N(f, S), as `Categorical.matched_rows` does.

    Newton's method, with steps that are halved until the objective falls: it is convex.

    Parameters
    ----------
    y, f : arrays of shape (m,)
    S : array of shape (m, m)

    Returns
    -------
    targets : array of shape (m,)
    rows : array of shape (m, m)
        The last row is zero.
    """
    m = len(y)
    root = np.linalg.cholesky(S + (_LEAST + np.finfo(float).eps ** 0.5 * np.trace(S) / m) * np.eye(m))

    def at(u: Array) -> tuple[float, Array]:
        """Return the objective and the probabilities; without SciPy's `logsumexp`, which takes 0.3 ms."""
        g = f + root @ u
        top = g.max()
        parts = np.exp(g - top)
        total = parts.sum()
        return float(math.log(total) + top - y @ g + u @ u / 2), parts / total

    u = np.zeros(m)
    now, p = at(u)
    for _ in range(_STEPS):
        mean = root.T @ p
        bent = root.T @ (p[:, None] * root) - np.multiply.outer(mean, mean) + np.eye(m)
        step = -np.linalg.solve(bent, root.T @ (p - y) + u)
        size, last = 1.0, now
        then, there = at(u + step)
        while then > now and size > _TOL:
            size /= 2
            then, there = at(u + size * step)
        u, now, p = u + size * step, min(then, now), there
        if last - now <= _TOL * (1 + abs(now)):
            break
    W = (np.diag(p) - np.multiply.outer(p, p))[:-1, :-1]
    L = np.linalg.cholesky(W + _LEAST * np.eye(m - 1))
    rows, targets = np.zeros((m, m)), np.zeros(m)
    rows[:-1] = L.T @ (np.eye(m)[:-1] - np.eye(m)[-1])
    targets[:-1] = rows[:-1] @ (root @ u) - np.linalg.solve(L, (p - y)[:-1])
    return targets, rows


def filter_after(state: ProximalState, design: Design) -> MatchingFilter | None:
    """Return a filter of single rows that continues from a state; None if a coefficient is undetermined.

    In a warm-up that has had no check, it learns the rows held, which need not be refined then. Otherwise its `origin`
    is where earlier rows were linearised.
    """
    p, held, posterior = state.problem, state.held if state.is_fresh else None, state.posterior
    if held is not None:  # what the prior and the penalty say without any rows
        about: dict[str, Any] = {"prior": state.prior, "start": state.estimate, "likelihood": p.likelihood}
        posterior = InformationPosterior(state.data, p.regularizer, gamma=p.gamma, **about)
    if not posterior.proper or posterior.metric_factors[0].free is not None or posterior.noise.variance != 1:
        return None
    offsets, design = design.row_offsets, replace(design, row_offsets=False)
    assert design.center is not None
    at_zero = replace(design, center=np.zeros(len(design.center)), intercept=False)
    root = SquareRootFilter.of(posterior, at_zero, 1.0)
    root.kernel.theta[:, 0] += posterior.expected - posterior.mean
    made = ClassFilter(root, p.likelihood) if p.likelihood.interacts else MatchingFilter(root, p.likelihood)
    if held is not None and held.rows:
        rows = Block.joined(held.blocks)
        rows = replace(rows, X=rows.X[:, :-1], offset=rows.X[:, -1]) if offsets else rows
        try:
            made.learn_rows(rows)
        except ValueError:
            return None
    root.design, made.origin = design, _origin(state, design)
    return made


def _origin(state: ProximalState, design: Design) -> tuple[Array, Array] | None:
    """Return the coefficients and the intercepts, shapes (d, m) and (m,), at which earlier rows were linearised.

    A filter of later rows is compared with them; None if it may go anywhere.
    """
    m, start = design.outputs or 1, None if state.is_fresh else origin(state)
    if start is None:
        return None
    posterior = state.posterior
    if posterior.expected is not posterior.mean:  # where the filter began is not the mode, at which rows are linearised
        start = start + (posterior.expected - posterior.mean)
    J = design.jacobian()
    assert J is not None
    theta = J @ start.reshape(-1, m)
    return (theta[1:], theta[0]) if design.intercept else (theta, np.zeros(m))


def _has_moved(start: tuple[Array, Array], block: Block, matched: Array) -> bool:
    """Whether a filter has moved farther from its origin than the expansion of losses is valid."""
    coef, intercept = start
    f = block.X @ coef + intercept
    if block.offset is not None:
        f += block.offset[:, None]
    return bool(np.abs(matched[:, : f.shape[1]] - f).max() > FAR)


def matched_innovations(
    likelihood: Likelihood, outputs: int | None, y: Array, matched: Array, *, all_rows: bool = False
) -> Innovations:
    """Return the innovations of rows that a filter of single rows has predicted and learned.

    Unless `all_rows` are wanted, those of rows whose output, or a difference of two, had a std above 1 are unknown:
    odds or rates that are uncertain by a factor of e depend on the penalty more than on the rows so far.
    """
    m = outputs or 1
    f, variance = matched[:, :m], matched[:, m : m + m * m].reshape(-1, m, m)
    if outputs is None:
        f, variance = f[:, 0], variance[:, 0, 0]
    widest = variance if outputs is None else spread(variance)
    predicted = likelihood.predict(f, variance, Noise.known(1.0))
    found = Innovations.of(y, predicted, predicted.std)._replace(together=1)
    wide = (widest > _UNSURE).reshape(-1, *[1] * (y.ndim - 1))
    if all_rows or not wide.any():
        return found
    unknown = Innovations.unknown(y)
    names = ("mean", "std", "dof", "scale", "issued")
    return found._replace(**{name: np.where(wide, getattr(unknown, name), getattr(found, name)) for name in names})


_INTERCEPT_STD = 10.0  # of the prior of the intercept, in the units of the linear predictor


@state
class MatchedBelief(Belief):
    """What the rows say that a `Matched` has learned.

    Attributes
    ----------
    given : InformationPosterior
        The posterior of the sums of the rows.
    """

    fixed: Design
    given: InformationPosterior
    seen: Seen
    rows: float

    @property
    def design(self) -> Design:
        return self.fixed

    @property
    def posterior(self) -> InformationPosterior:
        return self.given

    @property
    def effective_rows(self) -> float:
        return self.rows

    @cached_property
    def facts(self) -> Facts:
        std = np.sqrt(self.seen.X.squares / max(self.seen.X.rows, 1.0))
        return Facts(self.settings.alpha, None, std, self.seen.y.outside)


@state
class Matched(Core):
    """Sums of linearised rows, each learned under the belief before it. No rows are held, and there is no warm-up.

    It is for members of a bank, which forget too much for a warm-up to end, and need a prediction of every row. The
    prior of the coefficients is the penalty, which must determine them, and that of the intercept N(0, 10^2). Any
    division of the rows into batches gives the same, up to rounding.
    """

    fixed: Design
    A: Array  # the precision that the rows add, and the same times their estimate
    b: Array
    rows: float
    seen: Seen

    walks: ClassVar[bool] = True

    @staticmethod
    def serves(settings: Settings, block: Block) -> bool:
        """Whether the loss is elementwise with known noise, the model linear, and the penalty determines it."""
        loss, named = settings.likelihood, settings.is_linear
        if not named or loss.quadratic or loss.interacts or loss.learns or loss.learns_noise or block.y.ndim > 1:
            return False
        if settings.coef_cov != "model" or block.offset is not None or settings.standardize:
            return False
        g, d = settings.penalty.regularizer(settings.alpha), block.X.shape[1]
        H = diagonal_curvature(g, d)
        return H is not None and bool((H > 0).all())

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "Matched":
        moments = Moments.of(next(iter(blocks)))
        design = Design.of_moments(moments, intercept=settings.fit_intercept, standardize=False)
        p = design.size
        return cls(settings, design, np.zeros((p, p)), np.zeros(p), 0.0, Seen.nothing(len(moments.mean)))

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple["Matched", Counts]:
        raise ValueError("rows are learned in an order by moment matching: use partial_fit on a stream.")

    # ---- learning --------------------------------------------------------------------------------------

    @property
    def predicts(self) -> bool:
        return True

    def row_filter(self) -> MatchingFilter:
        p, kind = self.fixed.size, self.settings.forgetting
        U, failed = dpotrf(self.A + np.diag(self._prior))
        if failed:
            raise ValueError("The precision of the coefficients is not positive: scale the columns of X.")
        L, _ = dtrtri(U)
        kernel = Filter(L, L @ (L.T @ self.b[:, None]), self._prior, None, np.zeros(1))
        counts = RowCounts(self.rows, self.rows, 1.0, 1.0)
        root = SquareRootFilter(self.fixed, kernel, counts, kernel.theta.copy(), 1.0, None)
        root = root.forgetting_by(kind, np.zeros(p), None).walking(kind.of_intercept)
        return MatchingFilter(root, self.settings.likelihood)

    @cached_property
    def _prior(self) -> Array:
        """The diagonal of the precision that the prior and the penalty give without any rows."""
        curvature = diagonal_curvature(coef_regularizer(self.settings, self.fixed), self.fixed.size)
        assert curvature is not None
        curvature = np.array(curvature, float)
        if self.fixed.intercept:
            curvature[0] += _INTERCEPT_STD**-2
        return curvature

    def _next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        return len(block) if rows else start + 1  # the first row of all is predicted by nothing

    def learn(self, block: Block) -> "Matched":
        return self._predicted(block)[0]

    def _predicted(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple["Matched", Innovations]:
        check_usable(block.X, block.y, block.weights)
        live = self.row_filter()
        found = live.learn_rows(block.weighted())
        after = self.after_filter(live, block, found)[0]
        if not known:
            return after, Innovations.unknown(block.y)
        about = self.settings.likelihood, None, block.y, np.reshape(found, (-1, 4))
        return after, matched_innovations(*about, all_rows=True)

    def after_filter(self, live: MatchingFilter, block: Block, found: list[Array]) -> tuple["Matched", None]:
        new = Seen.of(self.settings, block.weighted())
        seen = self.seen + new
        check_targets(self.settings, seen.y, new.y, block)
        R = solve_triangular(np.linalg.qr(live.root.L.T, mode="r"), np.eye(self.fixed.size), transposed=True)
        A = R.T @ R - np.diag(self._prior)
        return replace(self, A=A, b=R.T @ (R @ live.root.theta), rows=live.root.counts.rows, seen=seen), None

    def with_settings(self, settings: Settings) -> "Matched":
        rows = np.zeros((1, len(self.seen.X.mean)))
        if not self.serves(settings, Block(rows, np.zeros(1))):
            raise ValueError(
                "With forget='auto' and this likelihood, penalty must stay 'ridge', with alpha > 0: use fit."
            )
        return replace(self, settings=settings)

    # ---- reading ---------------------------------------------------------------------------------------

    @cached_property
    def belief(self) -> MatchedBelief:
        return MatchedBelief(self.settings, self.fixed, self._posterior, self.seen, self.rows)

    @cached_property
    def _posterior(self) -> InformationPosterior:
        D = np.sqrt(np.diagonal(self.A) + self._prior)  # so that the scales of the columns do not matter
        s, Q = np.linalg.eigh(self.A / np.multiply.outer(D, D))
        some = s > len(s) * np.finfo(float).eps
        s, Q = s[some], Q[:, some]
        data = Information.from_prior(Q @ (Q.T @ (self.b / D) / s) / D, np.sqrt(s)[:, None] * Q.T * D)
        rows = np.asarray(self.rows)
        g, p = coef_regularizer(self.settings, self.fixed), self.fixed.size
        root = np.zeros((1, p))
        root[0, 0] = 1 / _INTERCEPT_STD if self.fixed.intercept else 0.0
        return InformationPosterior(
            replace(data, rows=rows, squares=rows),
            g,
            gamma=self.settings.gamma,
            mean=self.row_filter().root.theta,
            prior=Information.from_prior(np.zeros(p), root),
            likelihood=self.settings.likelihood,
        )

    # ---- saving ----------------------------------------------------------------------------------------

    def without_rows(self) -> "Matched":
        """Return the state in the coordinates of the means of the rows: the first row was the origin of its sums."""
        shift = self.seen.X.mean - np.asarray(self.fixed.center)
        J = np.eye(self.fixed.size)  # of theta in the new coordinates to that in the old ones
        if self.fixed.intercept:
            J[0, 1:] = -shift
        center = self.seen.X.mean if self.fixed.intercept else self.fixed.center
        mean = float(self.seen.y.moments.mean[0])
        seen = replace(self.seen, y=replace(self.seen.y, low=mean, high=mean))
        design = replace(self.fixed, center=center)
        return replace(self, fixed=design, A=J.T @ self.A @ J, b=J.T @ self.b, seen=seen)
