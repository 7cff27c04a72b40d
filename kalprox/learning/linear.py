"""What a linear model believes about its coefficients, computed from the information of the rows alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.base.tree import leaf, state
from kalprox.information import Equations, Information
from kalprox.learning.belief import Belief
from kalprox.learning.design import Design
from kalprox.learning.drift import walked
from kalprox.learning.evidence_search import EvidenceSearch
from kalprox.learning.folds import Folds
from kalprox.learning.intervals import TUNED_ROWS
from kalprox.learning.path import Path
from kalprox.learning.ridge_evidence import AlphaChoice, RidgeEvidence
from kalprox.learning.rules import check
from kalprox.learning.state import FIRST_PIECE
from kalprox.noise import Noise, gaussian_log_likelihood, log_evidence
from kalprox.posterior import InformationPosterior, TargetPosteriors
from kalprox.predictive import Predictive, Student
from kalprox.regularizers import Regularizer
from kalprox.solvers.l1_path import l1_path

__all__ = ["LinearBelief"]

T = TypeVar("T")

_FLAT = 0.01  # a score that a step of the grid improves by less is that of a limit, alpha -> 0 or infinity
_COLLINEAR = 1e-10  # the smallest alpha, relative to the squares of a column, that tells collinear columns apart
_FURTHER = 6  # alphas by which a grid is extended at a time


@state
class LinearBelief(Belief):
    """The estimate of a linear model, its uncertainty, and the choice of alpha, read from the information of the rows.

    How rows are learned and predicted before that is the subject of `kalprox.learning.exact.Exact`.
    """

    information: Information
    folds: Folds | None = None  # the rows in folds, if alpha is chosen by cross-validation
    found: Array | None = leaf(default=None, given=True)  # the coefficients, if a path of alphas has given them
    begin: Array | None = leaf(default=None, given=True)  # where the search for them starts, if a path has a neighbour
    chosen: float | None = leaf(default=None, given=True)  # the alpha, if it is one of a path
    spread_before: Array | None = leaf("d", sign="nonnegative", default=None)  # `spread` before the last rows
    elapsed: float | None = leaf(default=None, given=True)  # what the time since the last row has left; None for all

    # ---- reading ---------------------------------------------------------------------------------------

    @property
    def targets(self) -> int | None:
        return self.information.targets

    @property
    def effective_rows(self) -> float:
        return float(self.information.effective_rows)

    @cached_property
    def scale(self) -> Array:
        """The standard deviation of each column, 1 for a constant column; all ones without standardisation."""
        info = self.information
        std = self.column_std if self.settings.standardize else None
        return np.ones(info.d) if std is None else np.where(std > 0, std, 1.0)

    @cached_property
    def column_std(self) -> Array | None:
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
    def posterior(self) -> InformationPosterior:
        how: dict[str, Any] = {
            "gamma": self.settings.gamma,
            "unpenalised": int(self.settings.fit_intercept) if self._by_evidence and self._few_rows else None,
            "elapsed": 1.0 if self.elapsed is None else self.elapsed,
        }

        def penalty(alpha: float) -> Regularizer:
            return self.design.regularizer(self.settings.penalty.regularizer(alpha))

        if np.ndim(self.alpha):
            targets = zip(self.equations.single_targets(), self.alpha, strict=True)
            return TargetPosteriors(
                self.equations, [InformationPosterior(one, penalty(a), **how) for one, a in targets]
            )
        found = self._with_intercept(self.found)
        return InformationPosterior(self.equations, penalty(self.alpha), mean=found, start=self._begin, **how)

    @cached_property
    def noise(self) -> Noise:
        noise, penalty = self.posterior.noise, self.settings.penalty
        if (
            not penalty.follows_spectrum
            or self._by_evidence
            or self.settings.noise_var is not None
            or not self._few_rows
        ):
            return noise
        doubt = (
            f"With {float(self.information.effective_rows):.4g} rows for {self.information.d} coefficients the noise "
            f"level is known only if alpha={self.alpha:.4g} is right: intervals may be too narrow or too wide. Add "
            "rows, set alpha='auto', or give the noise variance."
        )
        return replace(noise, doubt=doubt)

    @property
    def _begin(self) -> Array | None:
        return self._with_intercept(self.begin)

    def _with_intercept(self, t: Array | None) -> Array | None:
        """Return theta for the coefficients t of shape (d, k); the centred intercept, which comes first, is zero."""
        if t is None:
            return None
        theta = np.concatenate([np.zeros((1, t.shape[1])), t]) if self.settings.fit_intercept else t
        return theta[:, 0] if self.information.targets is None else theta

    @property
    def _by_evidence(self) -> bool:
        """Whether alpha is chosen by the evidence."""
        penalty = self.settings.penalty
        return self.settings.alpha == "auto" and penalty.selection == "evidence" and self.chosen is None

    @property
    def _few_rows(self) -> bool:
        """Whether there are no more rows than coefficients, so that some alpha fits every row exactly."""
        return float(self.information.effective_rows) - self.settings.fit_intercept <= self.information.d

    @property
    def converged(self) -> bool:
        return self.posterior.converged

    @cached_property
    def predicts(self) -> bool:
        return float(self.information.rows) >= (FIRST_PIECE if self.chooses_alpha else 1)

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
        return replace(self, information=information, elapsed=1.0)

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

    def _tuning(self) -> Array:
        return TUNED_ROWS * self.spread

    # ---- choice of alpha -------------------------------------------------------------------------------

    @cached_property
    def alpha(self) -> Any:
        """The weight of the penalty; one for each target, shape (k,), if it was chosen for several."""
        alpha = self.settings.alpha if self.chosen is None else self.chosen
        if alpha != "auto":
            return alpha
        alphas = np.array([one.alpha for one in self._choices])
        return float(alphas[0]) if self.information.targets is None else alphas

    @property
    def alpha_limit(self) -> float | None:
        """The limit that was chosen for all targets."""
        limits = {one.limit for one in self._choices} if self.chooses_alpha and self.chosen is None else {None}
        return limits.pop() if len(limits) == 1 else None

    @property
    def evidence_search(self) -> EvidenceSearch | None:
        """What follows alpha while rows come one by one; None if the evidence had not one maximum alone."""
        follows = self._by_evidence and self.information.targets is None and self._choices[0].alone
        return EvidenceSearch(self.alpha, self.settings.gamma) if follows else None

    @property
    def chooses_alpha(self) -> bool:
        """Whether alpha is chosen from the rows."""
        return isinstance(self.settings.alpha, str)

    @property
    def by_prediction(self) -> bool:
        """Whether alpha is chosen by the errors of predictions, in cross-validation."""
        return self.settings.alpha == "auto" and self.settings.penalty.selection == "prediction"

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
        eq, penalty = self.centered, self.settings.penalty
        if penalty.follows_spectrum and np.all(self.alpha > 0):
            alphas = np.broadcast_to(self.alpha, eq.targets or 1)
            values = np.array([self._evidence.of(alpha, j)[0] for j, alpha in enumerate(alphas)])
        else:
            R, z, rss, g = eq.R, eq.z.reshape(eq.d, -1), np.atleast_1d(eq.rss), penalty.regularizer(self.alpha)
            how = self._evidence.rows, g, self.settings.gamma, float(eq.fading)
            values = np.array([log_evidence(R, z[:, j], rss[j], *how) for j in range(z.shape[1])])
        return np.asarray(values[0]) if eq.targets is None else values

    @cached_property
    def _evidence(self) -> RidgeEvidence:
        weight = float(self.information.T[0, 0]) ** 2
        return RidgeEvidence(self.centered, self.settings.gamma, weight, intercept=self.settings.fit_intercept)

    @property
    def score(self) -> float:
        """The log evidence for ridge; for other penalties -BIC/2, Schwarz's approximation of the log evidence.

        -BIC/2 is -rows/2 log(rss / rows) - edf/2 log(rows), or -rss/(2 noise_var) - edf/2 log(rows) if the noise
        variance is given. After forgetting, rows and rss are those of the effective number of rows of equal weight.
        Both scores depend on the information alone, and so neither on the order of the rows nor on the blocks.
        """
        if self.settings.penalty.selection == "evidence":
            return float(self._log_evidence.sum()) if np.all(self.alpha > 0) else -np.inf  # alpha = 0 is no prior
        n, rss = float(self.information.effective_rows), self.posterior.rss / float(self.information.fading)
        if (n - self.posterior.edf < 0.5).any():
            return -np.inf  # without residual degrees of freedom the likelihood is meaningless
        fit = gaussian_log_likelihood(rss, n, self.settings.noise_var)
        return float((fit - self.edf * np.log(n) / 2).sum())

    def with_alpha(self, alpha: float, found: Array | None = None, begin: Array | None = None) -> Self:
        """Return the belief of the same rows with another alpha."""
        about = self.settings, self.information, None, found, begin, float(alpha), self.spread_before, self.elapsed
        belief = type(self)(*about)
        independent = ("column_std", "scale", "design", "centered", "equations")  # of alpha
        for name in (*independent, "_evidence") if self.settings.penalty.follows_spectrum else independent:
            belief.__dict__[name] = getattr(self, name)
        return belief

    def for_alphas(self, alphas: Array) -> Iterator[Self]:
        """Yield `with_alpha` for each alpha, in the given order.

        The problems are solved from the largest alpha down, each starting from the previous solution. For L1 the
        solution path is followed from knot to knot, and only solutions that are not accurate enough need a search.
        """
        if self.settings.penalty.follows_spectrum:  # is solved without a search, so that one is held at a time
            return map(self.with_alpha, alphas)
        beliefs: dict[int, Self] = {}
        descending = np.argsort(-alphas, kind="stable")
        thetas, sure = self._l1_path(alphas[descending])
        last: Self | None = None
        first = int(self.settings.fit_intercept)
        for i, theta, found in zip(descending, thetas, sure, strict=True):
            begin = None
            if not found and last is not None:
                begin = last.posterior.mean[first:].reshape(self.information.d, -1)
            beliefs[i] = last = self.with_alpha(alphas[i], theta if found else None, begin)
        return (beliefs.pop(i) for i in range(len(alphas)))

    def _l1_path(self, alphas: Array) -> tuple[Array, Array]:
        """Return the L1 path at descending alphas, (m, d, k) in units of 1 / scale, and which are accurate."""
        R, z = self.centered.R, self.centered.z.reshape(self.information.d, -1)
        if not self.settings.penalty.follows_l1_path:
            return np.empty((len(alphas), *z.shape)), np.zeros(len(alphas), bool)
        thetas, sure = zip(*(l1_path(R, column, alphas) for column in z.T), strict=True)
        return np.stack(thetas, axis=-1), np.all(sure, axis=0)

    def path(self, alphas: Array | None) -> Path:
        """Return the solution for each alpha."""
        penalty = self.settings.penalty

        def read(belief: Self) -> tuple[Array, Array, Array, float]:
            return belief.coef, belief.intercept, belief.edf, belief.score

        def read_all(alphas: Array) -> list[tuple[Array, Array, Array, float]]:
            return [read(belief) for belief in self.for_alphas(alphas)]

        if alphas is None:
            alphas, rows = self.along_grid(read_all, lambda row: row[-1])
        else:
            alphas = np.asarray(alphas, float)
            check_positive("alphas", alphas, strict=False)
            rows = read_all(alphas)
        path = Path(alphas, *(np.stack(column) for column in zip(*rows, strict=True)))
        criterion = "log evidence" if penalty.selection == "evidence" else "-BIC/2"
        return path.about(
            alpha=None if np.ndim(self.alpha) else float(self.alpha), criterion=criterion, column_std=self.column_std
        )

    def along_grid(
        self, read: Callable[[Array], list[T]], score: Callable[[T], float], *, coarse: bool = False
    ) -> tuple[Array, list[T]]:
        """Return a descending grid of alphas, and what `read` returns for them, one value for each.

        A coarse grid has half as many alphas and begins with the largest ones. The grid is extended until the best
        score is inside, or at an end that is a limit: the score changes no more, or alpha is beyond what float64 can
        tell from 0 or infinity. If the columns are collinear, it takes half of the digits to tell them apart by the
        penalty alone.
        """
        R, z, _ = self.centered.compact()
        grid = self.settings.penalty.alphas(R, z)
        grid = grid[: len(grid) // 2 + 1 : 2] if coarse else grid
        found = read(grid)
        step, eps = grid[1] / grid[0], np.finfo(float).eps
        squares = (R**2).sum(axis=0)
        varies = squares > 0
        unpenalised = np.asarray(self.with_alpha(0.0).posterior.factor.variances())[-len(squares) :]
        least = _COLLINEAR if np.isinf(unpenalised[varies]).any() else eps
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

    @cached_property
    def _choices(self) -> list[AlphaChoice]:
        """What was chosen for each target, or for the only one."""
        if self.by_prediction and self.folds is not None and (found := self.folds.compared.choices) is not None:
            root = float(self.information.rows) ** 0.5
            return [AlphaChoice(one.c * root, one.limit) for one in found]
        return [self._choice(j) for j in range(self.information.targets or 1)]

    def _choice(self, target: int) -> AlphaChoice:
        """Return the alpha of the largest evidence (ridge), or of the smallest errors in cross-validation.

        Where the rows are in no folds yet, it is that of the best `score`.
        """
        penalty, (R, z, _) = self.settings.penalty, self.centered.compact()
        if not R.any():  # rows that say nothing of the coefficients, such as a single one
            return AlphaChoice(float(penalty.alphas(R, z)[0]), None if self.by_prediction else np.inf)
        if self.by_prediction:
            grid, found = self.along_grid(lambda alphas: [one.score for one in self.for_alphas(alphas)], float)
            return AlphaChoice(float(grid[int(np.argmax(found))]))
        grid, found = self.along_grid(lambda alphas: self._evidence.of(alphas, target)[:, 0].tolist(), float)
        return self._evidence.choice(grid, np.array(found), target, few_rows=self._few_rows)
