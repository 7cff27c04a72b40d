"""What the rows of a linear model say about its coefficients, under every weight alpha of its penalty."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.base.text import worded
from kalprox.base.tree import PickledFields, leaf, state
from kalprox.information import Equations, Information
from kalprox.learning.belief import Belief, Facts
from kalprox.learning.design import Design
from kalprox.learning.drift import walked
from kalprox.learning.errors import TUNED_ROWS
from kalprox.learning.path import Path
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import FIRST_PIECE
from kalprox.linalg.triangle import qr, svd
from kalprox.noise import Noise, gaussian_log_likelihood, log_evidence, ridge_evidence_slopes, ridge_log_evidence
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive, Student
from kalprox.regularizers import Regularizer
from kalprox.solvers.l1_path import l1_path

_MOST_STEPS = 60  # in which the largest evidence between two alphas of a grid is looked for; 4 to 6 are usual
_CONVERGED = 1e-9  # the step of log(alpha) after which Newton's method leaves about the square of it


class AlphaChoice(NamedTuple):
    """The alpha that was chosen.

    `limit` is 0 or infinity if the smaller, or the larger, alpha is the better.
    """

    alpha: float
    limit: float | None = None


class RidgeEvidence:
    """The log evidence of each alpha, for each target.

    Parameters
    ----------
    equations : Equations
        Those of the coefficients, with the intercept minimised out.
    gamma : float or None
        The precision of the noise, if it is given.
    weight : float
        The sum of the weights of the rows.
    intercept : bool
        Whether there is an intercept.
    """

    def __init__(self, equations: Equations, gamma: float | None, weight: float, *, intercept: bool) -> None:
        self.equations, self.gamma, self.weight = equations, gamma, weight
        self.rows = float(equations.rows) - intercept * float(equations.fading)  # the intercept takes one

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        """The singular values s of R = U diag(s) V', and U'z of shape (m, k). O(m^2 d) for m <= d rows of R."""
        R, z, _ = self.equations.compact()
        m, d = R.shape
        if m == 0:
            return np.zeros(0), z.reshape(0, self.equations.targets or 1)
        U, s, _ = svd(R if m == d else qr(R.T)[0].T)
        return s, U.T @ z.reshape(m, -1)

    def of(self, alpha: Any, target: int) -> Array:
        """Return the log evidence of one or several alphas for one target, shape (1,) or (a, 1)."""
        return ridge_log_evidence(*self._arguments(alpha, target))

    def _arguments(self, alpha: Any, target: int) -> tuple[Any, ...]:
        """Return the arguments of `ridge_log_evidence`."""
        (s, z), j, eq = self._spectrum, slice(target, target + 1), self.equations
        return s, z[:, j], np.atleast_1d(eq.rss)[j], self.rows, alpha, self.gamma, float(eq.fading)

    def choice(self, grid: Array, scores: Array, target: int, *, few_rows: bool) -> AlphaChoice:
        """Return the alpha of the largest evidence, given that of a descending grid.

        With few rows, or if the evidence is largest in a limit, where all or nothing is noise, a weak prior multiplies
        it: see `_log_prior`.
        """
        i, ends = int(np.argmax(scores)), (0, len(grid) - 1)
        weak, limit = few_rows or i in ends, {0: np.inf, ends[1]: 0.0}.get(i)
        if weak:
            i = int(np.argmax(scores + self._log_prior(grid)))
        if i in ends:
            return AlphaChoice(float(grid[i]), limit)
        interval = math.log(grid[i + 1]), math.log(grid[i]), math.log(grid[i - 1])

        def slopes(log_alpha: float) -> tuple[float, float]:
            alpha = math.exp(log_alpha)
            slope, bend = ridge_evidence_slopes(*self._arguments(alpha, target))
            own = self._log_prior_slopes(alpha) if weak else (0.0, 0.0)
            return slope + own[0], bend + own[1]

        return AlphaChoice(math.exp(_falling_root(slopes, *interval)), limit)

    def _log_prior(self, alpha: Any) -> Any:
        """Return the log density of log(alpha) if the share of the variance of y that X explains is uniform in (0, 1).

        With the prior N(0, noise / alpha) of the coefficients, signal and noise have the ratio u = |R|^2 / (alpha sum
        w), and the share is u / (1 + u). It keeps alpha from 0 and infinity, where the evidence of few rows is flat.
        """
        u = self._signal(alpha)
        return np.log(u) - 2 * np.log1p(u)

    def _log_prior_slopes(self, alpha: float) -> tuple[float, float]:
        """Return the first two derivatives of `_log_prior` with respect to log(alpha)."""
        u = self._signal(alpha)
        return (u - 1) / (u + 1), -2 * u / (1 + u) ** 2

    def _signal(self, alpha: Any) -> Any:
        """Return the variance of the signal for the prior N(0, noise / alpha), in units of that of the noise."""
        return (self.equations.compact()[0] ** 2).sum() / (alpha * self.weight)


def _falling_root(slopes: Callable[[float], tuple[float, float]], low: float, start: float, high: float) -> float:
    """Return where a function that falls from above to below zero between two ends is zero, by Newton's method.

    `slopes` returns its value and its derivative. Steps that leave the interval of the root are halved intervals.
    """
    u = start
    for _ in range(_MOST_STEPS):
        value, derivative = slopes(u)
        low, high = (u, high) if value > 0 else (low, u)
        new = u - value / derivative if derivative < 0 else high
        new = new if low < new < high else (low + high) / 2
        if abs(new - u) <= _CONVERGED:
            return new
        u = new
    return u


@dataclass(frozen=True, eq=False)
class LinearRows(PickledFields):
    """The rows of a linear model, as all beliefs about them read them, whatever the weight of their penalty.

    Attributes
    ----------
    settings : Settings
    information : Information
    spread_before : array of shape (d,) or None
        The `spread` before the last rows.
    """

    settings: Settings
    information: Information
    spread_before: Array | None = None

    @cached_property
    def scale(self) -> Array:
        """The standard deviation of each column, 1 for a constant column; all ones without standardisation."""
        info = self.information
        std = self.column_std if self.settings.standardize else None
        return np.ones(info.d) if std is None else np.where(std > 0, std, 1.0)

    @cached_property
    def column_std(self) -> Array | None:
        """The standard deviation of each column; None if the moments are not kept."""
        info = self.information
        if not self.settings.forgetting.keeps_moments:
            return None
        return np.linalg.norm(info.centered().compact()[0], axis=0) / (float(info.T[0, 0]) or 1.0)

    @cached_property
    def design(self) -> Design:
        """The design centred at the means of the rows, which makes intercept and coefficients independent."""
        info = self.information
        if not self.settings.fit_intercept:
            return Design(np.zeros(info.d), self.scale, False, 0.0)
        (mean, rest), d = info.means(), info.d
        y_mean, y_rest = (values[d] if info.targets is None else values[d:] for values in (mean, rest))
        return Design(mean[:d], self.scale, True, y_mean, rest[:d] if rest[:d].any() else None, y_rest)

    @cached_property
    def centered(self) -> Equations:
        """The equations of the coefficients in units of 1 / scale, with the intercept minimised out."""
        info = self.information
        T = info.centered().triangle() if self.settings.fit_intercept else info.triangle()
        if self.settings.standardize:
            T = T / np.concatenate([self.scale, np.ones(T.shape[1] - info.d)])
        return Equations(T, info.rows, info.squares, info.targets)

    @cached_property
    def equations(self) -> Equations:
        """The equations of theta in the coordinates of the design."""
        if not self.settings.fit_intercept:
            return self.centered
        held = self.centered.held
        T = np.zeros((held.shape[0] + 1, held.shape[1] + 1))
        T[0, 0], T[1:, 1:] = self.information.T[0, 0], held
        return Equations(T, self.centered.rows, self.centered.squares, self.centered.targets)

    @cached_property
    def evidence(self) -> RidgeEvidence:
        """The evidence of a ridge penalty as a function of its weight."""
        weight = float(self.information.T[0, 0]) ** 2
        return RidgeEvidence(self.centered, self.settings.gamma, weight, intercept=self.settings.fit_intercept)

    @property
    def are_few(self) -> bool:
        """Whether there are no more rows than coefficients, so that some alpha fits every row exactly."""
        return float(self.information.effective_rows) - self.settings.fit_intercept <= self.information.d

    @cached_property
    def spread(self) -> Array:
        """The mean square of each column when it first varied, after 32 rows; zero before.

        It sets the scale of confidence sequences, which need one that depends on no target and does not change.
        """
        info = self.information
        before = np.zeros(info.d) if self.spread_before is None else self.spread_before
        if float(info.rows) < FIRST_PIECE or before.all():
            return before
        now = (info.centered().compact()[0] ** 2).sum(axis=0) / float(info.rows)
        return np.where(before > 0, before, now if self.settings.fit_intercept else now + info.x_mean**2)


Choose = Callable[[LinearRows], tuple[AlphaChoice, ...]]


@state
class LinearBelief(Belief):
    """The estimate of a linear model under one alpha, and its uncertainty, read from the information of the rows.

    Attributes
    ----------
    rows : LinearRows
    choices : tuple of AlphaChoice
        How alpha was chosen for each target; empty if it was given.
    choose : function or None
        Returns the choices for some rows.
    elapsed : float or None
        What the time since the last row has left of the weights; None for all.
    found : array of shape (p,) or (p, k), or None
        The estimate, if a path of alphas has given it.
    begin : array of the same shape, or None
        Where the search for the estimate begins, if a path has a neighbour.
    """

    rows: LinearRows
    choices: tuple[AlphaChoice, ...] = leaf(default=(), given=True)
    choose: Choose | None = leaf(default=None, given=True, kw_only=True)
    elapsed: float | None = leaf(default=None, given=True)
    found: Array | None = leaf(default=None, given=True)
    begin: Array | None = leaf(default=None, given=True)

    @classmethod
    def choosing(cls, rows: LinearRows, choose: Choose, **about: Any) -> Self:
        """Return the belief under the alpha that is chosen for the rows."""
        choices = choose(rows)
        alphas = np.array([one.alpha for one in choices])
        settings = rows.settings.with_alpha(float(alphas[0]) if rows.information.targets is None else alphas)
        return cls(settings, rows, choices, choose=choose, **about)

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def effective_rows(self) -> float:
        return float(self.information.effective_rows)

    @property
    def information(self) -> Information:
        return self.rows.information

    @property
    def design(self) -> Design:
        return self.rows.design

    @cached_property
    def posterior(self) -> InformationPosterior:
        how: dict[str, Any] = {
            "gamma": self.settings.gamma,
            "unpenalised": int(self.settings.fit_intercept) if self._by_evidence and self.rows.are_few else None,
            "elapsed": 1.0 if self.elapsed is None else self.elapsed,
        }

        def penalty(alpha: float) -> Regularizer:
            return self.design.regularizer(self.settings.penalty.regularizer(alpha))

        alpha = self.settings.alpha
        penalties = list(map(penalty, alpha)) if np.ndim(alpha) else penalty(alpha)
        return InformationPosterior(self.rows.equations, penalties, mean=self.found, start=self.begin, **how)

    @cached_property
    def noise(self) -> Noise:
        noise, settings = self.posterior.noise, self.settings
        certain = not settings.penalty.follows_spectrum or self._by_evidence or settings.noise_var is not None
        if certain or not self.rows.are_few:
            return noise
        doubt = worded(
            f"With {float(self.information.effective_rows):.4g} rows for {self.information.d} coefficients the noise "
            f"level is known only if {{alpha={settings.alpha:.4g}}} is right: intervals may be too narrow or too wide. "
            "Add rows, set {alpha='auto'}, or give the noise variance{| with --noise}."
        )
        return replace(noise, doubt=doubt)

    @property
    def _by_evidence(self) -> bool:
        """Whether alpha was chosen by the evidence."""
        return bool(self.choices) and self.settings.penalty.selection == "evidence"

    @property
    def converged(self) -> bool:
        return self.posterior.converged

    @cached_property
    def predicts(self) -> bool:
        return float(self.information.rows) >= (FIRST_PIECE if self.choices else 1)

    @property
    def determines(self) -> bool:
        """Whether the rows, with the penalty, determine all coefficients."""
        return self.predicts and self.posterior.proper

    @property
    def scores_center(self) -> Array:
        return np.asarray(self.information.x_mean)  # the scores of a linear model always have an intercept

    # ---- predictions -----------------------------------------------------------------------------------

    @cached_property
    def _walked(self) -> "Self | None":
        """What predicts the next row after a step of a random walk; None if nothing walks, or the step was taken."""
        walk = self.settings.forgetting
        if self.elapsed is not None or not walk.walks:
            return None
        information = walked(self.information, walk, intercept=self.settings.fit_intercept)
        rows = replace(self.rows, information=information)
        now = self if self.choose is None else self.choosing(rows, self.choose)
        return replace(self, settings=now.settings, rows=rows, choices=now.choices, elapsed=1.0)

    @property
    def of_next_row(self) -> Self:
        """What predicts the next row."""
        return self._walked or self  # a belief that were its own cached value would wait for the garbage collector

    def mean(self, X: Any) -> Array:
        of_next = self.of_next_row
        return of_next.design.predictor(X, of_next.posterior.mean)

    def predict(
        self, X: Array, sigma: Any = None, offset: Array | None = None, left_open: Array | None = None
    ) -> Predictive:
        if self._walked is not None:
            return self._walked.predict(X, sigma, offset, left_open)
        if (noise := self.input_noise) is None:
            return super().predict(X, sigma, offset, left_open)
        mean = self.mean(X)
        own = noise.relative_variance(X, mean) * (1.0 if sigma is None else sigma) ** 2
        found = super().predict(X, np.sqrt(own), offset, left_open)
        assert isinstance(found, Student)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = own * np.asarray(self.noise.variance) / found.std**2
        return found.with_uncertain_variance(noise.log_uncertainty(X, mean, np.where(found.std > 0, share, 0.0)))

    def minimax(self, X: Array) -> Array:
        """Return the predictions of the Vovk-Azoury-Warmuth forecaster: the fit at x as if (x, m) were one more row.

        m is the mean of the targets, or 0 without an intercept. With the prediction p and the leverage s = x'V x, both
        of the intercept included, that fit is m + (p - m) / (1 + s). Where rows leave x undetermined, it is m. O(d^2)
        per row.
        """
        inputs, theta = self.design.rows(X), np.asarray(self.posterior.mean)
        m = self.design.offset + (theta[0] if self.design.intercept else 0.0)
        return m + (self._value(inputs)[0] - m) / (1 + self.posterior.leverage(inputs))

    def _tuning(self) -> Array:
        return TUNED_ROWS * self.rows.spread

    # ---- the weight of the penalty ---------------------------------------------------------------------

    @cached_property
    def facts(self) -> Facts:
        limits = {one.limit for one in self.choices}
        limit = limits.pop() if len(limits) == 1 else None  # the one that was chosen for all targets
        return Facts(self.settings.alpha, limit, self.rows.column_std)

    @property
    def edf(self) -> Array:
        """The effective degrees of freedom without the intercept, shape () or (k,)."""
        return self.posterior.edf - self.settings.fit_intercept

    @property
    def log_evidence(self) -> Array:
        """The log evidence, shape () or (k,), exact for a proper quadratic g; see `kalprox.noise.log_evidence`."""
        check(self.settings, way="evidence")
        return self._log_evidence

    @cached_property
    def _log_evidence(self) -> Array:
        """The log evidence; of coefficients that drift, up to a constant that does not depend on the penalty."""
        eq, penalty = self.rows.centered, self.settings.penalty
        if penalty.follows_spectrum and np.all(self.settings.alpha > 0):
            alphas = np.broadcast_to(self.settings.alpha, eq.targets or 1)
            values = np.array([self.rows.evidence.of(alpha, j)[0] for j, alpha in enumerate(alphas)])
        else:
            R, z, rss, g = eq.R, eq.z.reshape(eq.d, -1), np.atleast_1d(eq.rss), penalty.regularizer(self.settings.alpha)
            how = self.rows.evidence.rows, g, self.settings.gamma, float(eq.fading)
            values = np.array([log_evidence(R, z[:, j], rss[j], *how) for j in range(z.shape[1])])
        return np.asarray(values[0]) if eq.targets is None else values

    @property
    def score(self) -> float:
        """The log evidence for ridge; for other penalties -BIC/2, Schwarz's approximation of the log evidence.

        -BIC/2 is -rows/2 log(rss / rows) - edf/2 log(rows), or -rss/(2 noise_var) - edf/2 log(rows) if the noise
        variance is given. After forgetting, rows and rss are those of the effective number of rows of equal weight.
        Both scores depend on the information alone, and so neither on the order of the rows nor on the blocks.
        """
        if self.settings.penalty.selection == "evidence":
            return (
                float(self._log_evidence.sum()) if np.all(self.settings.alpha > 0) else -np.inf
            )  # alpha = 0 is no prior
        n, rss = float(self.information.effective_rows), self.posterior.rss / float(self.information.fading)
        if (n - self.posterior.edf < 0.5).any():
            return -np.inf  # without residual degrees of freedom the likelihood is meaningless
        fit = gaussian_log_likelihood(rss, n, self.settings.noise_var)
        return float((fit - self.edf * np.log(n) / 2).sum())


T = TypeVar("T")

_FLAT = 0.01  # a score that a step of the grid improves by less is that of a limit, alpha -> 0 or infinity
_COLLINEAR = 1e-10  # the smallest alpha, relative to the squares of a column, that tells collinear columns apart
_FURTHER = 6  # alphas by which a grid is extended at a time


class AlphaFamily:
    """The beliefs about some rows of a linear model, one for each alpha.

    Parameters
    ----------
    rows : LinearRows
    """

    def __init__(self, rows: LinearRows) -> None:
        self.rows, self.penalty = rows, rows.settings.penalty

    @classmethod
    def of(cls, settings: Settings, information: Information) -> "AlphaFamily":
        """Return the beliefs about the rows that have this information."""
        return cls(LinearRows(settings, information))

    def under(self, alpha: float, found: Array | None = None, begin: Array | None = None) -> LinearBelief:
        """Return the belief under one alpha, given its coefficients, or where the search for them begins."""
        return LinearBelief(self.rows.settings.with_alpha(float(alpha)), self.rows, found=found, begin=begin)

    def for_alphas(self, alphas: Array) -> Iterator[LinearBelief]:
        """Yield the belief under each alpha, in the given order.

        The problems are solved from the largest alpha down, each starting from the previous solution. For L1 the
        solution path is followed from knot to knot, and only solutions that are not accurate enough need a search.
        """
        if self.penalty.follows_spectrum:  # is solved without a search, so that one is held at a time
            return map(self.under, alphas)
        beliefs: dict[int, LinearBelief] = {}
        descending = np.argsort(-alphas, kind="stable")
        thetas, sure = self._l1_path(alphas[descending])
        last: LinearBelief | None = None
        for i, theta, found in zip(descending, thetas, sure, strict=True):
            begin = None
            if not found and last is not None:
                begin = last.posterior.mean.copy()
                begin[: int(self.rows.settings.fit_intercept)] = 0.0
            beliefs[i] = last = self.under(alphas[i], theta if found else None, begin)
        return (beliefs.pop(i) for i in range(len(alphas)))

    def _l1_path(self, alphas: Array) -> tuple[Array, Array]:
        """Return the L1 path of theta at descending alphas, shape (m, p) or (m, p, k), and which are accurate.

        The coefficients are in units of 1 / scale, and the intercept, which is centred, is zero.
        """
        equations, targets = self.rows.centered, self.rows.information.targets
        R, z, _ = equations.compact()
        z = z.reshape(len(R), targets or 1)
        thetas, sure = np.empty((len(alphas), equations.d, z.shape[1])), np.zeros(len(alphas), bool)
        if self.penalty.follows_l1_path:
            paths, accurate = zip(*(l1_path(R, column, alphas) for column in z.T), strict=True)
            thetas, sure = np.stack(paths, axis=-1), np.all(accurate, axis=0)
        thetas = np.pad(thetas, ((0, 0), (int(self.rows.settings.fit_intercept), 0), (0, 0)))
        return thetas[..., 0] if targets is None else thetas, sure

    def path(self, alphas: Array | None) -> Path:
        """Return the solution for each alpha; by default for a grid of them."""

        def read(alphas: Array) -> list[tuple[Array, Array, Array, float]]:
            return [(one.coef, one.intercept, one.edf, one.score) for one in self.for_alphas(alphas)]

        if alphas is None:
            alphas, solutions = self.along_grid(read, lambda solution: solution[-1])
        else:
            alphas = np.asarray(alphas, float)
            check_positive("alphas", alphas, strict=False)
            solutions = read(alphas)
        path = Path(alphas, *(np.stack(column) for column in zip(*solutions, strict=True)))
        criterion = "log evidence" if self.penalty.selection == "evidence" else "-BIC/2"
        return path.about(criterion=criterion, column_std=self.rows.column_std)

    def _unpenalised_variances(self) -> Array:
        """Return the variances of theta without a penalty, infinite where the rows do not determine it. O(d^3)."""
        return np.asarray(self.under(0.0).posterior.factor.variances())

    def along_grid(
        self, read: Callable[[Array], list[T]], score: Callable[[T], float], *, coarse: bool = False
    ) -> tuple[Array, list[T]]:
        """Return a descending grid of alphas, and what `read` returns for them, one value for each.

        A coarse grid has half as many alphas and begins with the largest ones. The grid is extended until the best
        score is inside, or at an end that is a limit: the score changes no more, or alpha is beyond what float64 can
        tell from 0 or infinity. If the columns are collinear, it takes half of the digits to tell them apart by the
        penalty alone.
        """
        R, z, _ = self.rows.centered.compact()
        grid = self.penalty.alphas(R, z)
        grid = grid[: len(grid) // 2 + 1 : 2] if coarse else grid
        found = read(grid)
        step, eps = grid[1] / grid[0], np.finfo(float).eps
        squares = (R**2).sum(axis=0)
        varies = squares > 0
        collinear = len(R) < varies.sum() or np.isinf(self._unpenalised_variances()[-len(squares) :][varies]).any()
        least = _COLLINEAR if collinear else eps
        lowest, highest = least * squares.min(initial=np.inf, where=varies), grid[0] / eps
        while True:
            scores = np.array([score(one) for one in found])
            i = int(np.argmax(scores))
            inner = scores[i + 1 if i == 0 else i - 1]
            inside = i not in (0, len(grid) - 1) or not lowest < grid[i] < highest
            if inside or not np.isfinite(scores[i]) or not scores[i] - inner > _FLAT:
                return grid, found
            if i == 0:
                more = grid[0] * step ** np.arange(-_FURTHER, 0)
                grid, found = np.append(more, grid), read(more) + found
            else:
                more = grid[-1] * step ** np.arange(1, _FURTHER + 1)
                grid, found = np.append(grid, more), found + read(more)

    # ---- the choice ------------------------------------------------------------------------------------

    @property
    def choices(self) -> tuple[AlphaChoice, ...]:
        """What is chosen for each target, or for the only one, without folds."""
        return tuple(self._choice(j) for j in range(self.rows.information.targets or 1))

    def _choice(self, target: int) -> AlphaChoice:
        """Return the alpha of the largest evidence (ridge), or that of the best `score` without folds."""
        (R, z, _), evidence = self.rows.centered.compact(), self.rows.evidence
        by_evidence = self.penalty.selection == "evidence"
        if not R.any():  # rows that say nothing of the coefficients, such as a single one
            return AlphaChoice(float(self.penalty.alphas(R, z)[0]), np.inf if by_evidence else None)
        if by_evidence:
            grid, found = self.along_grid(lambda alphas: evidence.of(alphas, target)[:, 0].tolist(), float)
            return evidence.choice(grid, np.array(found), target, few_rows=self.rows.are_few)
        grid, found = self.along_grid(lambda alphas: [one.score for one in self.for_alphas(alphas)], float)
        return AlphaChoice(float(grid[int(np.argmax(found))]))


def best_on_grid(grid: Array, loss: Array) -> float:
    """Return the alpha of the smallest loss on a grid of equal ratios, interpolated by a parabola."""
    i = int(np.argmin(loss))
    if not 0 < i < len(loss) - 1:
        return float(grid[i])
    above, least, below = loss[i - 1 : i + 2]
    bend = above - 2 * least + below
    shift = 0.5 * (above - below) / bend if bend > 0 else 0.0
    return float(grid[i] * (grid[i + 1] / grid[i]) ** shift)
