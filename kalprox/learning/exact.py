"""The exact belief of a linear model, computed from the information of the rows alone."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log
from typing import Any, ClassVar

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import LARGEST, check_positive, check_usable
from kalprox.information import Equations, Information, merge
from kalprox.learning.alpha_scores import FEWEST_ROWS, AlphaScores, null_ratio, piece_reaching
from kalprox.learning.belief import Belief, Path, check_any_row, refuse_scores
from kalprox.learning.design import Design
from kalprox.learning.innovations import Innovations, SquareRootFilter, may_overflow
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.intervals import TUNED_ROWS
from kalprox.learning.sandwich import Sandwich
from kalprox.learning.saved import Saved, expect, expect_information
from kalprox.learning.scorer import SMALL_LEVERAGE, Scorer
from kalprox.learning.settings import Settings
from kalprox.noise import Noise, log_evidence
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive
from kalprox.solvers.l1_path import l1_path
from kalprox.sources import Block, Counts, Source
from kalprox.sources.forgetting import faded
from kalprox.sources.weighting import CountedSource, counts_of

__all__ = ["ExactBelief", "restored_information"]

_EXACT_ROWS = 10, 2048  # the innovations of as many rows per coefficient, or in all, are computed exactly
_LONGEST = 4096  # rows of a piece whose innovations are exact
_ABOVE = 1 + 1e-13  # lest rounding leave a coefficient nonzero at the largest alpha
_SMALLEST, _NEGLIGIBLE = 1e-3, 0.01  # the smallest alpha scored: a part of the largest, and of what noise has
_CHUNK = 1024  # rows predicted at a time


@dataclass(frozen=True, eq=False)
class ExactBelief(Belief):
    """The belief of a linear model: the information of the rows, interpreted under the settings."""

    information: Information
    scores: AlphaScores | None = None  # the score of each alpha, if alpha is chosen by prediction
    found: Array | None = None  # the coefficients, if a path of alphas has given them
    begin: Array | None = None  # where the search for them starts, if a path has a neighbour
    chosen: float | None = None  # the alpha, if it is one of a path
    spread_before: Array | None = None  # `spread` before the last rows; None if there were none
    scorer: Scorer | None = None  # what predicted the last rows

    whole_batches: ClassVar[bool] = True

    # ---- learning --------------------------------------------------------------------------------------

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "ExactBelief":
        block = next(iter(blocks))
        targets = block.y.shape[1] if block.y.ndim == 2 else None
        if settings.noise_depends_on_inputs and targets is not None:
            raise ValueError(
                f"noise='inputs' needs y of shape (n,); got shape {block.y.shape}. Fit one model per target."
            )
        return cls(settings, Information.zero(block.X.shape[1], targets))

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple["ExactBelief", Counts]:
        """Fit in one pass to a source without an order of rows; another one sums scores, if `coef_cov` needs them."""
        if settings.forget != 1:
            raise ValueError("forget must be 1 for a source without an order of rows; use partial_fit on a stream.")
        if settings.noise_depends_on_inputs:
            raise ValueError(
                "noise='inputs' is learned from predictions of rows from earlier ones, and this source has no order of "
                "rows: use noise='learn', or learn the rows as a stream."
            )
        if settings.penalty.alpha == "auto" and settings.penalty.selection == "prediction":
            raise ValueError(
                "alpha='auto' needs penalty='ridge' here: for other penalties alpha is chosen by predicting rows from "
                "earlier ones, and this source has no order of rows. Give a number, or use `path` afterwards."
            )
        folded = CountedSource(source, settings.weights).fold(Information.from_block)
        check_any_row(folded.counts)
        assert folded.total is not None
        return cls(settings, folded.total).with_scores_of(source), folded.counts

    def learn(self, block: Block) -> "ExactBelief":
        """Return the belief after one more block of b rows. Exact up to rounding; O(b d^2)."""
        if not self._by_prediction:
            return self._fold(block, None)
        belief, start = self, 0
        while start < len(block):
            scores, counts = belief._predicting(), self.settings.counts(block.weights)
            total = belief._unscored_rows if scores is None else scores.left
            stop = start + piece_reaching(total, None if counts is None else counts[start:], len(block) - start)
            rows = block.part(start, stop)
            counts = None if counts is None else counts[start:stop]
            belief = belief._fold(rows, scores and scores.scored(rows, counts, self.settings.forget))
            start = stop
        return belief

    def _fold(
        self, block: Block, scores: AlphaScores | None, visit: Callable[[int, int], None] | None = None
    ) -> "ExactBelief":
        info, weights, forget, sandwich = self.information, block.weights, self.settings.forget, self.sandwich
        counts, squares, noise = counts_of(weights, self.settings.weights), None, self.input_noise
        if self.settings.noise_depends_on_inputs:
            counts = np.ones(len(block)) if weights is None else self.settings.counts(weights)
            relative = self.relative_variance(block.X)
            weights = np.ones(len(block)) if weights is None else weights
            weights = weights if relative is None else weights / relative
        if forget != 1:
            weights, counts, squares, left = faded(np.ones(len(block)) if weights is None else weights, forget, counts)
            info = info.forget(left) if float(info.rows) > 0 else info
            sandwich = sandwich and sandwich.forget(float(left))  # type: ignore[arg-type]
            noise = noise and noise.forget(float(left))  # type: ignore[arg-type]
        info = info.fold(block.X, block.y, weights, counts, squares, visit=visit)
        if not np.abs(info.T.diagonal()).max() < LARGEST:  # otherwise no value is larger
            check_usable(block.X, block.y, block.weights)
        added: dict[str, Any] = {"spread_before": self.spread, "sandwich": sandwich, "input_noise": noise}
        scorer = self.current_scorer if float(self.information.rows) else None
        added["scorer"] = scorer if scorer is None or scorer.serves_on(float(info.rows), len(block)) else None
        return ExactBelief(self.settings, info, scores, **added)

    @property
    def _by_evidence(self) -> bool:
        """Whether alpha is chosen by the evidence."""
        penalty = self.settings.penalty
        return penalty.alpha == "auto" and penalty.selection == "evidence" and self.chosen is None

    @property
    def _few_rows(self) -> bool:
        """Whether there are no more rows than coefficients, so that some alpha fits every row exactly."""
        return float(self.information.effective_rows) - self.settings.fit_intercept <= self.information.d

    @cached_property
    def spread(self) -> Array:
        """The mean square of each column when it first varied, after 32 rows; zero before.

        It sets the scale of confidence sequences, which need one that depends on no target and does not change.
        """
        info = self.information
        before = np.zeros(info.d) if self.spread_before is None else self.spread_before
        if float(info.rows) < FEWEST_ROWS or before.all():
            return before
        now = (info.centered().R ** 2).sum(axis=0) / float(info.rows)
        return np.where(before > 0, before, now if self.settings.fit_intercept else now + info.x_mean**2)

    def _tuning(self) -> Array:
        if self.settings.forget != 1:
            raise ValueError(
                f"anytime=True needs forget=1: with forget={self.settings.forget!r} the interval is about recent rows, "
                "and no confidence sequence is known for them. Use anytime=False."
            )
        return TUNED_ROWS * self.spread

    @property
    def _by_prediction(self) -> bool:
        return self.settings.penalty.alpha == "auto" and self.settings.penalty.selection == "prediction"

    @property
    def _unscored_rows(self) -> float:
        """The number of rows to learn before the first estimates that predict rows for the scores."""
        if self.settings.forget == 1:
            return FEWEST_ROWS - float(self.information.rows)
        return 1 if 1 / (1 - self.settings.forget) > FEWEST_ROWS else inf  # rows fade: as many may never remain

    def _predicting(self) -> AlphaScores | None:
        """Return the scores of alpha = c sqrt(rows), with the estimates that predict the next rows.

        Estimates are made anew, about O(d^3) for m values of c, if those that there are have served.
        """
        scores, rows = self.scores, float(self.information.rows)
        if rows < FEWEST_ROWS or (scores is not None and scores.left > 0):
            return scores
        penalty, equations = self.settings.penalty, self.centered
        z, k = equations.z.reshape(self.information.d, -1), self.information.targets or 1
        largest = penalty.largest_alpha(equations.R, z) / rows**0.5 * _ABOVE
        if not largest > 0:  # the columns or the targets are constant, and all alphas give the same
            return (scores or AlphaScores.none(k)).waiting(rows)
        scores = scores if scores is not None and len(scores.c) else AlphaScores.start(largest, k)
        scores = scores.reaching(largest, min(_SMALLEST * largest, _NEGLIGIBLE * self._noise_alpha / rows**0.5))
        thetas = [belief.posterior.mean for belief in self.for_alphas(scores.c * rows**0.5)]
        return scores.predicting(self.design, np.stack(thetas, axis=1).reshape(len(thetas[0]), -1), rows)

    @property
    def _noise_alpha(self) -> float:
        """The size of the largest alpha if the targets were nothing but their noise; infinite if it is not known."""
        equations, variance = self.centered, self.settings.noise_var
        dof = float(equations.rows) - self.settings.fit_intercept - self.information.d
        if variance is None and dof < FEWEST_ROWS / 2:
            return np.inf
        smallest = np.min(equations.rss) / dof if variance is None else variance
        noise = np.random.default_rng(0).standard_normal((self.information.d, 1))
        return self.settings.penalty.largest_alpha(equations.R, noise) * smallest**0.5

    def with_settings(self, settings: Settings) -> "ExactBelief":
        if not settings.is_exact:
            raise ValueError("link and method cannot change between calls of partial_fit: use fit.")
        refuse_scores(self.settings, settings)
        if settings.changed(self.settings, "weights"):
            raise ValueError(
                f"weights cannot change between calls of partial_fit, because earlier rows were counted as "
                f"{self.settings.weights!r}: use fit."
            )
        # The scores of the alphas are valid only for the settings under which they were computed.
        names = ("penalty", "l1_ratio", "delta", "groups", "bounds", "alpha", "noise", "fit_intercept", "standardize")
        scores = None if settings.changed(self.settings, *names) else self.scores
        return replace(self, settings=settings, scores=scores, spread_before=self.spread, scorer=None)

    def merge(self, other: Belief) -> "ExactBelief":
        """Return the belief after the rows of both. Exact; O(d^3)."""
        if not isinstance(other, ExactBelief):
            return super().merge(other)
        if self.scores is not None or other.scores is not None:
            raise ValueError(
                "merge needs a number for alpha, or penalty='ridge': alpha='auto' was chosen by predicting each batch "
                "from earlier ones, and the scores of two separate streams cannot be combined."
            )
        if self.settings.forget != 1:
            raise ValueError(
                f"merge needs forget=1: with forget={self.settings.forget!r} the order of all rows matters."
            )
        sandwich = self.sandwich and other.sandwich and self.sandwich.merge(other.sandwich)
        info = merge(self.information, other.information)
        noise = self.input_noise and other.input_noise and self.input_noise.merge(other.input_noise)
        return ExactBelief(self.settings, info, spread_before=self.spread, sandwich=sandwich, input_noise=noise)

    @property
    def predicts(self) -> bool:
        return float(self.information.rows) >= (FEWEST_ROWS if self._chooses_alpha else 1)

    @property
    def _chooses_alpha(self) -> bool:
        return isinstance(self.settings.penalty.alpha, str)

    # ---- innovations -----------------------------------------------------------------------------------

    @property
    def has_fixed_penalty(self) -> bool:
        """Whether the penalty is a quadratic that does not depend on the rows: `SquareRootFilter` is then exact."""
        settings = self.settings
        fixed = not self._chooses_alpha and not settings.standardize and not settings.noise_depends_on_inputs
        return fixed and settings.penalty.regularizer(settings.penalty.alpha).root(self.information.d) is not None

    @property
    def _needs_every_leverage(self) -> bool:
        """Whether the exact filter predicts all rows, because robust standard errors need the leverage of each."""
        return self.settings.coef_cov != "model" and self.has_fixed_penalty and self.settings.forget == 1

    @property
    def _exact_rows(self) -> int:
        """The number of rows whose innovations are exact."""
        return max(_EXACT_ROWS[0] * (self.information.d + self.settings.fit_intercept), _EXACT_ROWS[1])

    @cached_property
    def current_scorer(self) -> Scorer | None:
        """What predicts the next rows of a long stream; None as long as their innovations are exact."""
        settings, n = self.settings, float(self.information.rows)
        if self.scorer is not None and self.scorer.serves(n):
            return self.scorer
        if n < self._exact_rows or settings.forget != 1 or self._needs_every_leverage or not settings.needs_innovations:
            return None
        posterior = self.posterior
        if len(posterior.factors) > 1 or not posterior.proper:
            return None
        return Scorer.of(posterior, self.design, n)

    @property
    def next_cut(self) -> float:
        """The number of rows at which predictions change: from exact innovations to a scorer, or to the next one."""
        if (scorer := self.current_scorer) is not None:
            return scorer.rows + scorer.reach
        return self._exact_rows if float(self.information.rows) < self._exact_rows else inf

    @property
    def filter(self) -> SquareRootFilter:
        """The filter that continues from this belief row by row."""
        return SquareRootFilter.of(self.posterior, self.design, self.settings.noise_var)

    def next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        """Return the end of the piece of a block that begins at row `start`.

        The innovations of the first rows are computed exactly, in pieces of any length if the penalty is fixed and
        quadratic. For other penalties the estimate is computed anew after an eighth more rows, and after twice as many
        rows where alpha is chosen. Later rows are predicted by a `Scorer`. With forgetting a piece halves the weights
        at most. With `exact`, every row is predicted from all rows before it, which robust standard errors need too.
        """
        exact = exact or self._needs_every_leverage
        n, forget = self.information.rows, self.settings.forget
        if not self.predicts:
            length = FEWEST_ROWS - int(n) if self._chooses_alpha else 1 if exact or self.posterior.proper else _LONGEST
        elif exact:
            length = _LONGEST if self.has_fixed_penalty and forget == 1 else 1
        elif self.current_scorer is not None:
            length = self.next_cut - n
        elif self._chooses_alpha:
            length = min(n, self.next_cut - n)
        else:
            length = min(_LONGEST if self.has_fixed_penalty else n // 8, self.next_cut - n)
        if self.settings.noise_depends_on_inputs:
            length = min(length, max(FEWEST_ROWS, int(n) // 8))  # so that the variance is learned on the way
        if forget != 1:
            length = min(length, max(1, int(log(0.5) / log(forget))))
        stop = min(len(block), start + max(int(length), 1))
        if self._chooses_alpha or self.current_scorer is not None or self.posterior.proper:
            return stop
        return start + self._foreseen(block.X[start:stop])

    def _foreseen(self, X: Array) -> int:
        """Return how many of these rows can be predicted together.

        They are those before the first row in a new direction or, if the first row is in one, the rows at the start
        that each add another new direction.

        A new direction is one that neither the rows learned so far nor the penalty determine.
        """
        factor = self.posterior.factor
        for start in range(0, len(X), _CHUNK):  # which takes less memory than all rows at once
            new = factor.undetermined(self.design.rows(X[start : start + _CHUNK]))
            if new.any() and (start or not new[0]):
                return start + int(np.argmax(new))
            if new.any():
                break
        else:
            return len(X)
        run = int(np.argmin(new)) if not new.all() else len(new)
        run = min(run, factor.null.shape[1])
        inputs = self.design.rows(X[:run])
        parts = (inputs if factor.free is None else inputs[:, factor.free]) / factor.scale @ factor.null
        size = np.abs(np.diagonal(np.linalg.qr(parts.T, mode="r")))
        repeated = size <= np.finfo(float).eps ** 0.5 * np.linalg.norm(parts, axis=1)
        return max(int(np.argmax(repeated)) if repeated.any() else run, 1)

    def scored(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple["ExactBelief", Innovations]:
        """Return the belief after a piece, and its innovations: by the scorer if there is one and leverage is small."""
        scorer = self.current_scorer if self.predicts and not exact else None
        if scorer is None:
            return super().scored(block, known=known, exact=exact)
        mean = np.empty((len(block), len(scorer.variance)))

        def visit(start: int, stop: int) -> None:
            mean[start:stop] = scorer.predictor(block.X[start:stop]).reshape(stop - start, -1)

        if self._by_prediction:
            after = self.learn(block)
            visit(0, len(block))
        else:
            after = self._fold(block, None, visit)
        if not scorer.mean_leverage(self.information, after.information) < SMALL_LEVERAGE:
            return after, self.innovations(block, after)
        return after, scorer.innovations(block, mean, self.own_variance(block), float(self.information.rows))

    def innovations(self, block: Block, after: "ExactBelief", *, exact: bool = False) -> Innovations:
        """Return the innovations of a piece, equal to those of its rows one by one."""
        own = self.own_variance(block)
        if may_overflow(block):
            return Innovations.unknown(block.y)
        posterior, settings = self.posterior, self.settings
        if not posterior.proper and posterior.factor.undetermined(self.design.rows(block.X[:1]))[0]:
            return Innovations.unknown(block.y)._replace(mean=self.mean(block.X))
        options: dict[str, Any] = {"own": own, "counts": settings.counts(block.weights), "forget": settings.forget}
        if len(posterior.factors) == 1:
            return self.filter.take(block, **options)
        filters = (
            SquareRootFilter.of(posterior, self.design, settings.noise_var, j) for j in range(len(posterior.factors))
        )
        columns = (Block(block.X, y, block.weights) for y in block.y.T)
        return Innovations.joined([one.take(rows, **options) for one, rows in zip(filters, columns, strict=True)])

    def own_variance(self, block: Block) -> Array | None:
        own, relative = super().own_variance(block), self.relative_variance(block.X)
        return own if relative is None else relative * (1.0 if own is None else own)

    def relative_variance(self, X: Array) -> Array | None:
        return None if self.input_noise is None else self.input_noise.relative_variance(X, self.mean(X))

    def predict(self, X: Array, sigma: Any = None) -> Predictive:
        if (relative := self.relative_variance(X)) is not None:
            sigma = np.sqrt(relative) * (1.0 if sigma is None else sigma)
        return super().predict(X, sigma)

    def observing(self, block: Block, found: Innovations, before: Belief) -> "ExactBelief":
        belief = super().observing(block, found, before)
        if not self.settings.noise_depends_on_inputs:
            return belief
        relative = before.relative_variance(block.X)
        variance = np.asarray(before.noise.variance if before.predicts else np.nan)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            squares = ((block.y - found.mean) / found.scale) ** 2 / variance
        variance = variance * (np.ones(len(block)) if relative is None else relative)
        noise, times = self.input_noise or InputNoise.zero(self.information.d), self.settings.counts(block.weights)
        noise = noise.after(block.X, found.mean, variance, squares, times, self.settings.forget)
        return replace(belief, input_noise=noise)

    def _scored_inputs(self, block: Block, before: Belief) -> tuple[Array, Sandwich]:
        center, targets = block.X[0], self.information.targets
        sandwich = self.sandwich or Sandwich.zero(center, self.information.d + 1, targets)
        return sandwich.inputs(block.X), sandwich

    @property
    def _center(self) -> Array:
        return np.asarray(self.information.x_mean)

    # ---- reading ---------------------------------------------------------------------------------------

    @cached_property
    def scale(self) -> Array:
        """The standard deviation of each column, 1 for a constant column; all ones without standardisation."""
        info = self.information
        if not self.settings.standardize:
            return np.ones(info.d)
        sd = np.linalg.norm(info.centered().R, axis=0) / (float(info.T[0, 0]) or 1.0)
        return np.where(sd > 0, sd, 1.0)

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
            T = T / np.concatenate([self.scale, np.ones(len(T) - info.d)])
        return Equations(T, info.rows, info.squares, info.targets)

    @cached_property
    def equations(self) -> Equations:
        """The equations of theta in the coordinates of the design."""
        if not self.settings.fit_intercept:
            return self.centered
        held = self.centered.held
        T = np.zeros((len(held) + 1, len(held) + 1))
        T[0, 0], T[1:, 1:] = self.information.T[0, 0], held
        return Equations(T, self.centered.rows, self.centered.squares, self.centered.targets)

    @cached_property
    def posterior(self) -> InformationPosterior:
        g = self.design.regularizer(self.settings.penalty.regularizer(self.alpha))
        return InformationPosterior(
            self.equations,
            g,
            gamma=self.settings.gamma,
            mean=self._with_intercept(self.found),
            start=self._begin,
            unpenalised=int(self.settings.fit_intercept) if self._by_evidence and self._few_rows else None,
        )

    @cached_property
    def noise(self) -> Noise:
        noise, kind = self.posterior.noise, self.settings.penalty.kind
        if kind != "ridge" or self._by_evidence or self.settings.noise_var is not None or not self._few_rows:
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
    def converged(self) -> bool:
        return self.posterior.converged

    def mean(self, X: Any) -> Array:
        return self.design.predictor(X, self.posterior.mean)

    def minimax(self, X: Array) -> Array:
        """Return the predictions of the Vovk-Azoury-Warmuth forecaster: the fit at x as if (x, m) were one more row.

        m is the mean of the targets, or 0 without an intercept. With the prediction p and the leverage s = x'V x, both
        of the intercept included, that fit is m + (p - m) / (1 + s). Where rows leave x undetermined, it is m. O(d^2)
        per row.
        """
        penalty = self.settings.penalty
        if penalty.regularizer(self.alpha).root(self.information.d) is None:
            raise ValueError(
                f"minimax=True needs a quadratic penalty, 'ridge' or None; got penalty={penalty.kind!r}. Predict with "
                "minimax=False."
            )
        inputs, theta = self.design.rows(X), np.asarray(self.posterior.mean)
        m = self.design.offset + (theta[0] if self.design.intercept else 0.0)
        return m + (self._value(inputs)[0] - m) / (1 + self.posterior.leverage(inputs))

    # ---- choice of alpha -------------------------------------------------------------------------------

    @cached_property
    def alpha(self) -> float:
        alpha = self.settings.penalty.alpha if self.chosen is None else self.chosen
        return self._best_alpha() if alpha == "auto" else alpha

    @property
    def edf(self) -> Array:
        """The effective degrees of freedom without the intercept, shape () or (k,)."""
        return self.posterior.edf - self.settings.fit_intercept

    @cached_property
    def log_evidence(self) -> Array:
        """The log evidence, shape () or (k,), exact for a proper quadratic g; see `kalprox.noise.log_evidence`."""
        eq, g = self.centered, self.settings.penalty.regularizer(self.alpha)
        z, rss = eq.z.reshape(len(eq.R), -1), np.atleast_1d(eq.rss)
        gamma, fading = self.settings.gamma, float(eq.fading)
        rows = float(eq.rows) - self.settings.fit_intercept * fading
        values = [log_evidence(eq.R, z[:, j], rss[j], rows, g, gamma, fading) for j in range(z.shape[1])]
        return np.asarray(values[0]) if eq.targets is None else np.stack(values)

    @property
    def score(self) -> float:
        """The log evidence for ridge; for other penalties -BIC/2, Schwarz's approximation of the log evidence.

        -BIC/2 is -rows/2 log(rss / rows) - edf/2 log(rows), or -rss/(2 noise_var) - edf/2 log(rows) if the noise
        variance is given. After forgetting, rows and rss are those of the effective number of rows of equal weight.
        Both scores depend on the information alone, and so neither on the order of the rows nor on the blocks.
        """
        if self.settings.penalty.selection == "evidence":
            return float(self.log_evidence.sum())
        n, rss = float(self.information.effective_rows), self.posterior.rss / float(self.information.fading)
        if (n - self.posterior.edf < 0.5).any():
            return -np.inf  # without residual degrees of freedom the likelihood is meaningless
        fit = n * np.log(np.maximum(rss, np.finfo(float).tiny) / n)
        fit = fit if self.settings.noise_var is None else rss / self.settings.noise_var
        return float(-(fit + self.edf * np.log(n)).sum() / 2)

    def with_alpha(self, alpha: float, found: Array | None = None, begin: Array | None = None) -> "ExactBelief":
        """Return the belief of the same rows with another alpha."""
        belief = ExactBelief(self.settings, self.information, None, found, begin, float(alpha), self.spread_before)
        for name in ("scale", "design", "centered", "equations"):  # they do not depend on alpha
            belief.__dict__[name] = getattr(self, name)
        return belief

    def for_alphas(self, alphas: Array) -> Iterator["ExactBelief"]:
        """Yield `with_alpha` for each alpha, in the given order.

        The problems are solved from the largest alpha down, each starting from the previous solution. For L1 the
        solution path is followed from knot to knot, and only solutions that are not accurate enough need a search.
        """
        beliefs: dict[int, ExactBelief] = {}
        descending = np.argsort(-alphas, kind="stable")
        thetas, sure = self._l1_path(alphas[descending])
        last: ExactBelief | None = None
        first = int(self.settings.fit_intercept)
        for i, theta, found in zip(descending, thetas, sure, strict=True):
            begin = None
            if not found and last is not None:
                begin = last.posterior.mean[first:].reshape(self.information.d, -1)
            beliefs[i] = last = self.with_alpha(alphas[i], theta if found else None, begin)
        return (beliefs[i] for i in range(len(alphas)))

    def _l1_path(self, alphas: Array) -> tuple[Array, Array]:
        """Return the L1 path at descending alphas, (m, d, k) in units of 1 / scale, and which are accurate."""
        R, z = self.centered.R, self.centered.z.reshape(self.information.d, -1)
        if not self.settings.penalty.follows_l1_path:
            return np.empty((len(alphas), *z.shape)), np.zeros(len(alphas), bool)
        thetas, sure = zip(*(l1_path(R, column, alphas) for column in z.T), strict=True)
        return np.stack(thetas, axis=-1), np.all(sure, axis=0)

    def path(self, alphas: Array | None) -> Path:
        penalty = self.settings.penalty
        if not penalty.has_weight:
            raise ValueError(f"path needs a penalty with a weight; got penalty={penalty.kind!r}.")
        if alphas is None:
            alphas = penalty.alphas(self.centered.R, self.centered.z)
        alphas = np.asarray(alphas, float)
        check_positive("alphas", alphas, strict=False)
        rows = [(b.coef, b.intercept, b.edf, b.score) for b in self.for_alphas(alphas)]
        return Path(alphas, *(np.stack(column) for column in zip(*rows, strict=True)))

    def _best_alpha(self) -> float:
        """Return the alpha of the largest evidence (ridge) or of the best predictions, or `_safe_alpha`.

        With no more rows than coefficients, or if the evidence is largest where all or nothing is noise, a weak prior
        multiplies it: see `_log_prior`.
        """
        if self._by_prediction:
            best = None if self.scores is None else self.scores.best
            return self._safe_alpha() if best is None else best * float(self.information.rows) ** 0.5
        grid = self.settings.penalty.alphas(self.centered.R, self.centered.z)
        scores = np.array([belief.score for belief in self.for_alphas(grid)])
        i, ends = int(np.argmax(scores)), (0, len(grid) - 1)
        weak = self._few_rows or i in ends
        if weak:
            i = int(np.argmax(scores + self._log_prior(grid)))
        if i in ends:
            return float(grid[i])
        from scipy.optimize import minimize_scalar

        def loss(log_alpha: float) -> float:
            alpha = np.exp(log_alpha)
            return -self.with_alpha(alpha).score - (float(self._log_prior(alpha)) if weak else 0.0)

        low, high = np.log(grid[i + 1]), np.log(grid[i - 1])
        found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-8})
        return float(np.exp(found.x))

    def _safe_alpha(self) -> float:
        """Return the alpha that noise of the size of the residuals would exceed with probability 0.01.

        It is the solution of alpha = q sqrt(rss(alpha)), or q times the standard deviation of the noise if that is
        given, with the q of `null_ratio`: that of the square-root lasso. Coefficients that noise explains as well are
        zero, so that the predictions are, but for one case in 100, not worse than the mean.
        """
        equations, penalty, variance = self.centered, self.settings.penalty, self.settings.noise_var
        grid = penalty.alphas(equations.R, equations.z)
        if not equations.R.any():
            return float(grid[0])
        dof = float(equations.rows) - self.settings.fit_intercept
        ratio = null_ratio(penalty, equations.R, dof if variance is None else None)
        if variance is not None:
            return ratio * variance**0.5
        for alpha, belief in zip(grid, self.for_alphas(grid), strict=True):
            least = ratio * float(np.max(belief.posterior.rss)) ** 0.5
            if alpha <= least:
                return least
        return float(grid[-1])

    def _log_prior(self, alpha: Any) -> Any:
        """Return the log density of log(alpha) if the share of the variance of y that X explains is uniform in (0, 1).

        With the prior N(0, noise / alpha) of the coefficients, signal and noise have the ratio u = |R|^2 / (alpha sum
        w), and the share is u / (1 + u). It keeps alpha from 0 and infinity, where the evidence of few rows is flat.
        """
        u = (self.centered.R**2).sum() / (alpha * float(self.information.T[0, 0]) ** 2)
        return np.log(u) - 2 * np.log1p(u)

    # ---- saving ----------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        scores = {} if self.scores is None else {"alpha_scores": self.scores}
        scorer = {} if self.scorer is None else {"scorer": self.scorer}
        info = self.information
        return {"targets": info.targets, "information": info, "spread": self.spread, **scores, **scorer}

    @classmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> "ExactBelief":
        info = restored_information(saved, "information", d, saved["targets"], settings.forget)
        scores, k = None, info.targets or 1
        if "alpha_scores" in saved:
            scores = saved.value(AlphaScores, "alpha_scores")
        elif "scores" in saved:  # by version 0.1
            alphas, values = saved["scores.alphas"], saved["scores.scores"]
            expect(alphas.shape == values.shape and info.rows > 0)
            scores = AlphaScores.of_log_scores(alphas, values, float(info.rows), k)
        if scores is not None:
            expect(scores.c.ndim == 1 and (scores.c > 0).all() and (np.diff(scores.c) < 0).all())
            expect(scores.squares.shape == (len(scores.c), k) and scores.rows >= 0)
            expect(((scores.squares >= 0) & (scores.squares < np.inf)).all())
            shapes = scores.center.shape, scores.maps.shape, scores.constant.shape, scores.offset.shape
            expect(not scores.maps.size or shapes == ((d,), (d, len(scores.c) * k), (len(scores.c) * k,), (k,)))
        spread = saved["spread"] if "spread" in saved else np.zeros(d)
        expect(spread.shape == (d,) and (spread >= 0).all())
        scorer = Scorer.restored(d, info.targets, saved) if "scorer" in saved else None
        return cls(settings, info, scores, spread_before=spread, scorer=scorer)


def restored_information(saved: Saved, name: str, d: int, targets: int | None, forget: float) -> Information:
    """Return the information that was saved under `name`; raise a ValueError if the arrays are invalid.

    Files of version 0.1.0 have neither `lost` nor `squares`. With m rows, each fading those before it by `forget`, rows
    is (1 - forget^m) / (1 - forget) and squares (1 - forget^(2m)) / (1 - forget^2), so that squares = rows (1 +
    forget^m) / (1 + forget) follows from rows alone.
    """
    lost = saved.arrays.get(f"{name}.lost")
    static: dict[str, Any] = {"targets": targets, "lost": lost}
    if f"{name}.squares" not in saved:
        rows = saved[f"{name}.rows"]
        static["squares"] = rows * (2 - np.minimum((1 - forget) * rows, 1)) / (1 + forget)
    info = saved.value(Information, name, **static)
    expect_information(info, d, targets)
    return Information(info.T, info.shift, info.rows[()], info.squares[()], targets, lost)
