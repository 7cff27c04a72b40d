"""What is known of a linear model after some rows: everything is read off the information, exactly.

With centred equations (R, z) and S = diag(scale), the coefficients are theta = S^-1 t, t the prox of g in
the metric of R S^-1, and their covariance is noise_var * L L', with L a root of (R'R + S Hess g S)^-1.
Nothing is computed before it is asked for. A long block is folded in at once; short ones wait until there are
enough of them, and are folded in on the side where something is read before that: reading changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize

from kalprox._arrays import Array
from kalprox.estimators.checks import Rows
from kalprox.estimators.live import Live
from kalprox.estimators.penalties import Penalty
from kalprox.estimators.prequential import FEWEST, Prequential, doubling
from kalprox.estimators.root import Root
from kalprox.estimators.waiting import Predicted, Waiting
from kalprox.information import Equations, Information
from kalprox.linalg.triangle import solve_triangular, triangle_of
from kalprox.noise import Noise, log_evidence
from kalprox.regularizers import L1, Box, Regularizer
from kalprox.solvers.l1_path import l1_path
from kalprox.solvers.prox import posterior_root, prox

__all__ = ["HUGE", "LinearBelief", "Path", "faded"]

_SHORT, _LONG = 16, 1024  # rows of a block that waits, and of all that wait: 1,024 fold ten times as fast together,
# but no more than were folded before, so that the first rows of a stream are judged by what was known then
HUGE = 1e200  # sums of squares: larger ones may overflow, and such rows are folded in, or refused, at once


class Path(NamedTuple):
    """Every alpha asked for, and what it gives, from the information alone; the higher the score the better."""

    alphas: Array
    coef: Array  # (alphas, d) or (alphas, k, d)
    intercept: Array  # (alphas,) or (alphas, k)
    edf: Array  # effective degrees of freedom, the intercept not counted
    score: Array  # log evidence (ridge) or -BIC/2, summed over targets


@dataclass(frozen=True)
class LinearBelief:
    """The information of the rows, and how it is to be read. Immutable; each reading is made once."""

    folded: Information
    penalty: Penalty
    fit_intercept: bool
    standardize: bool
    noise_var: float | None  # None: learned
    waiting: Waiting  # rows of short blocks, not folded in yet
    scores: Prequential | None = None  # of each alpha, where it is chosen by them

    n_passes = 1

    # ---- learning --------------------------------------------------------------------------------------

    def learn(
        self, blocks: Iterable[tuple[Array, Array, Array | None]], forget: float, judge: bool = False
    ) -> "LinearBelief":
        """This belief and the rows of the blocks. O(b d^2) a block of b rows; exact, to rounding.

        Short blocks wait; with `judge`, what is predicted of them waits too.
        """
        belief = self
        for i, (X, y, weights) in enumerate(blocks):
            short = i == 0 and weights is None and forget == 1 and len(y) <= _SHORT
            if short and np.vdot(X, X) < HUGE and np.vdot(y, y) < HUGE:
                belief = belief.with_waiting(X, y, judge)
                continue
            belief = belief._settled()._fold(X, y, weights, forget)
        return belief

    def _fold(self, X: Array, y: Array, weights: Array | None, forget: float = 1.0) -> "LinearBelief":
        """With these rows folded in, where none wait. Where alpha is chosen by prediction they are judged first."""
        belief = self
        for piece in doubling(int(self.folded.rows), len(y)) if self._by_prediction else [slice(None)]:
            X_, y_, weights_ = X[piece], y[piece], None if weights is None else weights[piece]
            info, scores = belief.folded, belief._scored((X_, y_, weights_))
            if forget != 1:
                weights_, left = faded(np.ones(len(y_)) if weights_ is None else weights_, forget)
                info = info.forget(left) if float(info.rows) > 0 else info
                scores = scores and scores.faded(left)
            belief = replace(belief, folded=info.fold(X_, y_, weights_), scores=scores)
        return belief

    def _settled(self) -> "LinearBelief":
        """With the rows that wait folded in."""
        return self.before_waiting._fold(*self.waiting.rows) if self.waiting else self

    @property
    def _by_prediction(self) -> bool:
        return self.penalty.alpha == "auto" and self.penalty.kind != "ridge"

    def _scored(self, rows: Rows) -> Prequential | None:
        """The score of each alpha, with these rows, which are not learned yet."""
        if not self._by_prediction or float(self.folded.rows) < FEWEST:
            return self.scores
        return (self.scores or Prequential.begin(self)).judged(self, rows)

    def with_waiting(self, X: Array, y: Array, judge: bool) -> "LinearBelief":
        """With one more short block, of squares below `HUGE`. What was moved row by row so far is moved on."""
        waiting = self.waiting
        if not waiting.fits(X, y):
            return replace(self, folded=self.information.fold(X, y))  # which says what is wrong
        if len(waiting) >= _SHORT and len(waiting) >= min(_LONG, float(self.folded.rows)):
            return self._settled().with_waiting(X, y, judge)
        new = object.__new__(type(self))  # what `replace` would make, in a tenth of its time
        to = vars(new)
        to.update(zip(_FIELDS, _fields_of(vars(self)), strict=True))
        live = self.live if judge else vars(self).get("live")
        vars(self).pop("live", None)  # this belief makes another one, should it be asked again
        if live is None:
            predicted = self._predicted(X, y) if judge else (y, y, y, 0)
        else:
            predicted, to["live"] = _moved(live, X, y, judge), live
        to["waiting"], to["before_waiting"] = waiting.followed_by(X, y, *predicted), self.before_waiting
        return new

    def _predicted(self, X: Array, y: Array) -> Predicted:
        """Of a short block, as of any other; where there is no row yet, nothing."""
        if len(self.waiting) == 0 and float(self.folded.rows) == 0:
            return y, y, y, 0
        return self.predict(X), self.std(X), self.noise.dof, len(y)

    @property
    def _none(self) -> Waiting:
        return Waiting.none(self.folded.d, self.folded.targets)

    @cached_property
    def information(self) -> Information:
        """Of all rows, those that wait included."""
        return self.folded.fold(*self.waiting.rows) if self.waiting else self.folded

    @cached_property
    def before_waiting(self) -> "LinearBelief":
        """Without the rows that wait: what predicts them."""
        return replace(self, waiting=self._none) if self.waiting else self

    @cached_property
    def live(self) -> Live | None:
        """The estimate in a form that a row moves in O(d^2); None where there is none."""
        info = self.information
        known = info.targets is None and not self.standardize and float(info.rows) > 0
        if not known or self.penalty.alpha == "auto" or self.penalty.kind not in (None, "ridge"):
            return None
        (root,) = self._roots
        if root.null.shape[1]:
            return None
        alpha = float(self.alpha) if self.penalty.kind else 0.0
        of = Live.with_intercept if self.fit_intercept else Live.without_intercept
        return of(self._theta, root.L, info, float(self.rss), alpha, self.noise_var)

    # ---- the estimate ----------------------------------------------------------------------------------

    @cached_property
    def alpha(self) -> float:
        return self._best_alpha() if self.penalty.alpha == "auto" else self.penalty.alpha

    @cached_property
    def regularizer(self) -> Regularizer:
        return self.penalty.at(self.alpha)

    @cached_property
    def equations(self) -> Equations:
        """||R t - z||^2 + rss, t the coefficients in units of 1 / scale, the intercept already minimised over."""
        info = self.information
        T = info.centered().triangle() if self.fit_intercept else info.triangle()
        if not self.standardize:
            return Equations(T, info.rows, info.targets)
        return Equations(T / np.concatenate([self.scale, np.ones(len(T) - info.d)]), info.rows, info.targets)

    @cached_property
    def scale(self) -> Array:
        """The standard deviation of each column, 1 where it is constant; ones where nothing is standardised."""
        info = self.information
        if not self.standardize:
            return np.ones(info.d)
        sd = np.linalg.norm(info.centered().R, axis=0) / max(float(info.rows), 1.0) ** 0.5
        return np.where(sd > 0, sd, 1.0)

    @cached_property
    def _posterior(self) -> Equations | None:
        """Where g is quadratic, the equations with g's rows among the data's; else None."""
        eq, d = self.equations, self.information.d
        A = self.regularizer.root(d)
        if A is None or len(A) == 0:
            return None if A is None else eq
        p = len(eq.held)
        prior = np.zeros((max(len(A), p), p))
        prior[: len(A), :d] = A
        # The larger rows first: below them, QR keeps the digits of the smaller.
        stack = (prior, eq.held) if np.abs(A).max() > np.abs(eq.R).max() else (eq.held, prior)
        if self.penalty.kind == "ridge":  # both are triangles: a sixth of the work
            T = triangle_of(np.concatenate(stack), triangles=True)
        else:
            T = scipy.linalg.qr(np.concatenate(stack), mode="r")[0][:p]
            T *= np.where(np.diagonal(T) < 0, -1.0, 1.0)[:, None]
        return Equations(T, eq.rows, eq.targets)

    @cached_property
    def _found(self) -> tuple[Array, bool]:
        """The estimate (d, k), in units of 1 / scale, and whether it converged."""
        post = self._posterior
        if post is not None:
            full = self._roots[0].null.shape[1] == 0
            theta = solve_triangular(post.R, post.z) if full else post.solve()
            return theta.reshape(self.information.d, -1), True
        R, z, start = self.equations.R, self.equations.z.reshape(self.information.d, -1), self._start
        outs = [prox(R, z[:, j], self.regularizer, start[:, j]) for j in range(z.shape[1])]
        return np.column_stack([out.theta for out in outs]), all(bool(out.converged) for out in outs)

    @cached_property
    def _roots(self) -> list[Root]:
        """A root of the covariance for each target; one for all where g is quadratic."""
        R, g, rows = self.equations.R, self.regularizer, self.equations.rows
        if self._posterior is not None:
            return [Root.of(self._posterior.R, np.arange(len(R)), rows, self.scale)]
        roots = []
        for theta in self._found[0].T:
            free = np.flatnonzero(g.free(theta))
            roots.append(Root.of(posterior_root(R, g, theta)[np.ix_(free, free)], free, rows, self.scale))
        return roots

    @cached_property
    def _start(self) -> Array:
        """Where the search for the estimate starts, (d, k) in units of 1 / scale: at zero where there are fewer rows
        than coefficients, which then are mostly zero or small."""
        eq = self.equations
        z = eq.z.reshape(len(eq.R), -1)
        return np.zeros_like(z) if float(eq.rows) <= len(z) else eq.solve().reshape(z.shape)

    @property
    def converged(self) -> bool:
        return self._found[1]

    @cached_property
    def _theta(self) -> Array:
        """(d,) or (d, k)."""
        theta = self._found[0] / self.scale[:, None]
        return theta[:, 0] if self.information.targets is None else theta

    @property
    def coef(self) -> Array:
        return self._theta.T

    @property
    def intercept(self) -> Array:
        info = self.information
        if not self.fit_intercept:
            return np.zeros(() if info.targets is None else info.targets)
        return info.y_mean - info.x_mean @ self._theta

    # ---- how sure it is --------------------------------------------------------------------------------

    def _per_target(self, values: list[Any]) -> Array:
        """One value, or one for each target, as (...) or (k, ...)."""
        k = self.information.targets
        return np.asarray(values[0]) if k is None else np.stack(values if len(values) == k else values * k)

    @cached_property
    def edf(self) -> Array:
        """trace((R'R + H)^-1 R'R), shape () or (k,): rank, trace of the hat matrix, or nonzeros; no intercept."""
        if isinstance(self.regularizer, L1 | Box) and self._full_rank:  # g does not curve
            return self._per_target([float(self.regularizer.free(theta).sum()) for theta in self._found[0].T])
        R = self.equations.R * self.scale
        return self._per_target([((R[:, root.free] @ root.L) ** 2).sum() for root in self._roots])

    @cached_property
    def _full_rank(self) -> bool:
        return bool(self.equations.rank() == self.information.d)

    @cached_property
    def rss(self) -> Array:
        """The residual sum of squares at the estimate, () or (k,)."""
        return self.equations.residual(self._found[0].reshape(self.equations.z.shape))

    @cached_property
    def noise(self) -> Noise:
        if self.noise_var is not None:
            known = Noise.known(1 / self.noise_var)
            k = self.information.targets
            return known if k is None else Noise(np.full(k, known.variance), known.dof)
        return Noise.learned(self.rss, self.information.rows, self.edf + self.fit_intercept)

    @cached_property
    def covariance(self) -> Array:
        C = self._per_target([root.covariance() for root in self._roots])
        with np.errstate(invalid="ignore"):
            return np.where(C == 0, 0, C * np.asarray(self.noise.variance)[..., None, None])

    @property
    def coef_std(self) -> Array:
        return np.sqrt(np.diagonal(self.covariance, axis1=-2, axis2=-1))

    @property
    def intercept_std(self) -> Array:
        if not self.fit_intercept:
            return np.zeros_like(self.intercept)
        return np.sqrt(np.asarray(self.noise.variance) * self._leverage(np.zeros((1, self.information.d)))[0])

    def _leverage(self, X: Array) -> Array:
        """Of each row: (n,), or (n, k) for k targets."""
        if self.fit_intercept:
            X = X - self.information.x_mean
        leverage = self._per_target([root.leverage(X) for root in self._roots]).T
        return leverage + 1 / float(self.information.rows) if self.fit_intercept else leverage

    def predict(self, X: Any) -> Array:
        """x' coef + intercept: about the means, where digits are kept; a sparse X is not made dense."""
        if X.shape[0] <= _SHORT and isinstance(X, np.ndarray) and self.live is not None:
            return np.array([self.live.predict(x) for x in X])
        if self.fit_intercept and isinstance(X, np.ndarray):
            return (X - self.information.x_mean) @ self._theta + self.information.y_mean
        return X @ self._theta + self.intercept

    def std(self, X: Array) -> Array:
        return self.noise.std(self._leverage(X))

    def sample(self, n: int, rng: np.random.RandomState) -> tuple[Array, Array]:
        """Draws of coef (n, d) or (n, k, d) and intercept (n,) or (n, k): Student's where the noise is learned."""
        info, roots = self.information, self._roots
        if any(root.null.shape[1] for root in roots):
            raise ValueError("sample needs a proper posterior: some coef_std_ are infinite. Add rows, or a penalty.")
        theta = self._theta.reshape(info.d, -1)
        k = theta.shape[1]
        variance, dof = (np.broadcast_to(v, k) for v in (self.noise.variance, self.noise.dof))
        coefs, intercepts = np.empty((n, k, info.d)), np.zeros((n, k))
        for j in range(k):
            root = roots[j % len(roots)]
            sigma = np.full(n, variance[j] ** 0.5)
            if np.isfinite(dof[j]):
                sigma = sigma * np.sqrt(dof[j] / rng.chisquare(dof[j], n))
            coefs[:, j] = theta[:, j]
            coefs[:, j, root.free] += sigma[:, None] * (rng.standard_normal((n, root.L.shape[1])) @ root.L.T)
            if self.fit_intercept:
                center = np.broadcast_to(info.y_mean, k)[j] + sigma / float(info.rows) ** 0.5 * rng.standard_normal(n)
                intercepts[:, j] = center - coefs[:, j] @ info.x_mean
        return (coefs[:, 0], intercepts[:, 0]) if info.targets is None else (coefs, intercepts)

    # ---- which alpha -----------------------------------------------------------------------------------

    @cached_property
    def log_evidence(self) -> Array:
        """log p(y), () or (k,): exact for ridge (and any proper quadratic g); see `kalprox.noise.log_evidence`."""
        eq, gamma = self.equations, None if self.noise_var is None else 1 / self.noise_var
        z, rss, rows = eq.z.reshape(len(eq.R), -1), np.atleast_1d(eq.rss), float(eq.rows) - self.fit_intercept
        values = [log_evidence(eq.R, z[:, j], rss[j], rows, self.regularizer, gamma) for j in range(z.shape[1])]
        return self._per_target(values)

    @property
    def score(self) -> float:
        """The log evidence for ridge, which alpha="auto" maximises; else its approximation by Schwarz, -BIC/2.

        -BIC/2 = -rows/2 log(rss / rows) - edf/2 log(rows), or -rss/(2 noise_var) - edf/2 log(rows) where the noise is
        given. Both depend on the rows through the information alone: not on their order, nor on the blocks.
        """
        if self.penalty.kind == "ridge":
            return float(self.log_evidence.sum())
        n = float(self.information.rows)
        if (n - self.edf - self.fit_intercept < 0.5).any():
            return -np.inf  # the fit leaves nothing over, and its likelihood means nothing
        fit = n * np.log(np.maximum(self.rss, np.finfo(float).tiny) / n)
        fit = fit if self.noise_var is None else self.rss / self.noise_var
        return float(-(fit + self.edf * np.log(n)).sum() / 2)

    def at(self, alpha: float) -> "LinearBelief":
        """The same rows read with another alpha."""
        belief = replace(self, penalty=replace(self.penalty, alpha=float(alpha)))
        for name in ("information", "scale", "equations", "_full_rank"):  # alpha is not in them
            belief.__dict__[name] = getattr(self, name)
        return belief

    def along(self, alphas: Array) -> Iterator["LinearBelief"]:
        """`at` each alpha, in the given order; but searched from the largest on, each from where the last one ended.

        The L1 path is followed from knot to knot; what is sure to be found so needs no search.
        """
        beliefs: dict[int, LinearBelief] = {}
        descending = np.argsort(-alphas, kind="stable")
        thetas, sure = self._l1_path(alphas[descending])
        last: LinearBelief | None = None
        for i, theta, found in zip(descending, thetas, sure, strict=True):
            beliefs[i] = self.at(alphas[i])
            if found:
                beliefs[i].__dict__["_found"] = theta, True
            elif last is not None:
                beliefs[i].__dict__["_start"] = last._found[0]
            last = beliefs[i]
        return (beliefs[i] for i in range(len(alphas)))

    def _l1_path(self, alphas: Array) -> tuple[Array, Array]:
        """For descending alphas theta (m, d, k) in units of 1 / scale, and which of them are sure; none unless L1."""
        R, z = self.equations.R, self.equations.z.reshape(self.information.d, -1)
        if self.penalty.kind != "l1":
            return np.empty((len(alphas), *z.shape)), np.zeros(len(alphas), bool)
        thetas, sure = zip(*(l1_path(R, column, alphas) for column in z.T), strict=True)
        return np.stack(thetas, axis=-1), np.all(sure, axis=0)

    def path(self, alphas: Array) -> Path:
        rows = [(b.coef, b.intercept, b.edf, b.score) for b in self.along(alphas)]
        return Path(alphas, *(np.stack(column) for column in zip(*rows, strict=True)))

    def _best_alpha(self) -> float:
        """By evidence (ridge); by the score of predictions; by BIC before there were any."""
        if self._by_prediction and self.scores is not None and (best := self.scores.best) is not None:
            return best
        grid = self.penalty.alphas(self.equations.R, self.equations.z)
        scores = [belief.score for belief in self.along(grid)]
        best = int(np.argmax(scores))
        if self.penalty.kind != "ridge" or best in (0, len(grid) - 1):  # BIC jumps where edf does: the grid is enough
            return float(grid[best])
        low, high = np.log(grid[best + 1]), np.log(grid[best - 1])
        found = scipy.optimize.minimize_scalar(
            lambda a: -self.at(np.exp(a)).score, bounds=(low, high), method="bounded", options={"xatol": 1e-8}
        )
        return float(np.exp(found.x))


_FIELDS = tuple(f.name for f in fields(LinearBelief))
_fields_of = itemgetter(*_FIELDS)


def _moved(live: Live, X: Array, y: Array, judge: bool) -> Predicted:
    """Moves `live` by a short block; what it predicts of the block before."""
    noise, dof = live.noise() if judge else (np.nan, np.nan)
    if len(y) == 1:
        mean, s = live.move(X[0], float(y[0]))
        return mean, (noise * s) ** 0.5, dof, int(judge)
    before = np.array([live.predict_with_scale(x) for x in X]) if judge else np.empty((len(y), 2))
    for x, t in zip(X, y, strict=True):
        live.move(x, float(t))
    return before[:, 0], np.sqrt(noise * before[:, 1]), dof, len(y) * judge


def faded(weights: Array, forget: float) -> tuple[Array, float]:
    """Weights as they are once the whole block has come, and what is left of everything before it.

    Weight w is w rows in a row, each fading those before it by `forget`: any split into blocks gives the same.
    """
    seen = weights.cumsum()
    return forget ** (seen[-1] - seen) * (1 - forget**weights) / (1 - forget), float(forget ** seen[-1])
