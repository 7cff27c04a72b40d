"""The exact belief of a linear model, computed from the information of the rows alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import check_positive
from kalprox.information import Equations, Information, merge
from kalprox.learning.belief import Belief, Path, check_any_row
from kalprox.learning.design import Design
from kalprox.learning.saved import Saved, expect
from kalprox.learning.scoring import FEWEST_ROWS, AlphaScores, doubling_pieces
from kalprox.learning.settings import Settings
from kalprox.noise import log_evidence
from kalprox.posterior import InformationPosterior
from kalprox.solvers.l1_path import l1_path
from kalprox.sources import Block, Counts, Source
from kalprox.sources.forgetting import faded

__all__ = ["ExactBelief", "restored_information"]


@dataclass(frozen=True, eq=False)
class ExactBelief(Belief):
    """The belief of a linear model: the information of the rows, interpreted under the settings."""

    information: Information
    scores: AlphaScores | None = None  # the score of each alpha, if alpha is chosen by prediction
    found: Array | None = None  # the coefficients, if a path of alphas has given them
    begin: Array | None = None  # where the search for them starts, if a path has a neighbour
    chosen: float | None = None  # the alpha, if it is one of a path

    whole_batches: ClassVar[bool] = True

    # ---- learning --------------------------------------------------------------------------------------

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "ExactBelief":
        block = next(iter(blocks))
        return cls(settings, Information.zero(block.X.shape[1], block.y.shape[1] if block.y.ndim == 2 else None))

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple["ExactBelief", Counts]:
        """Fit in one pass. If the settings depend on the order of the rows, the source must be in memory."""
        in_order = getattr(source, "blocks_in_order", None)
        if in_order is not None:
            belief, counts = None, Counts()
            for block in in_order(whole=True):
                belief = (cls.start(settings, [block]) if belief is None else belief).learn(block)
                counts = counts + Counts.of(block)
            check_any_row(counts)
            assert belief is not None
            return belief, counts
        if settings.forget != 1:
            raise ValueError("forget must be 1 for a source without an order of rows; use partial_fit on a stream.")
        if settings.penalty.alpha == "auto" and settings.penalty.selection == "prediction":
            raise ValueError(
                "alpha='auto' needs penalty='ridge' here: for other penalties alpha is chosen by predicting rows from "
                "earlier ones, and this source has no order of rows. Give a number, or use `path` afterwards."
            )
        folded = source.fold(Information.from_block)
        check_any_row(folded.counts)
        assert folded.total is not None
        return cls(settings, folded.total), folded.counts

    def learn(self, block: Block) -> "ExactBelief":
        """Return the belief after one more block of b rows. Exact up to rounding; O(b d^2)."""
        if not self._by_prediction:
            return self._fold(block, self.scores)
        belief = self
        for piece in doubling_pieces(int(self.information.rows), len(block)):
            rows = Block(block.X[piece], block.y[piece], None if block.weights is None else block.weights[piece])
            belief = belief._fold(rows, belief._scored(rows))
        return belief

    def _fold(self, block: Block, scores: AlphaScores | None) -> "ExactBelief":
        info, weights, forget = self.information, block.weights, self.settings.forget
        if forget != 1:
            weights, left = faded(np.ones(len(block)) if weights is None else weights, forget)
            info = info.forget(left) if float(info.rows) > 0 else info
            scores = scores and scores.faded(float(left))  # type: ignore[arg-type]
        return ExactBelief(self.settings, info.fold(block.X, block.y, weights), scores)

    @property
    def _by_prediction(self) -> bool:
        return self.settings.penalty.alpha == "auto" and self.settings.penalty.selection == "prediction"

    def _scored(self, block: Block) -> AlphaScores | None:
        """Return the scores of the alphas after predicting this block, which has not been learned yet."""
        if float(self.information.rows) < FEWEST_ROWS:
            return self.scores
        scores = self.scores
        if scores is None:
            R, z = self.centered.R, self.centered.z
            scores = AlphaScores.around(self.settings.penalty.alphas(R, z)[0] / float(self.information.rows))
        return scores.after(self.for_alphas(scores.alphas), block)

    def with_settings(self, settings: Settings) -> "ExactBelief":
        if not settings.is_exact:
            raise ValueError("link and method cannot change between calls of partial_fit: use fit.")
        # The scores of the alphas are valid only for the settings under which they were computed.
        names = ("penalty", "l1_ratio", "delta", "groups", "bounds", "alpha", "noise", "fit_intercept", "standardize")
        scores = None if settings.changed(self.settings, *names) else self.scores
        return ExactBelief(settings, self.information, scores)

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
        return ExactBelief(self.settings, merge(self.information, other.information))

    @property
    def predicts(self) -> bool:
        return float(self.information.rows) > 0

    # ---- reading ---------------------------------------------------------------------------------------

    @cached_property
    def scale(self) -> Array:
        """The standard deviation of each column, 1 for a constant column; all ones without standardisation."""
        info = self.information
        if not self.settings.standardize:
            return np.ones(info.d)
        sd = np.linalg.norm(info.centered().R, axis=0) / max(float(info.rows), 1.0) ** 0.5
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
        return Equations(T, info.rows, info.targets)

    @cached_property
    def equations(self) -> Equations:
        """The equations of theta in the coordinates of the design."""
        if not self.settings.fit_intercept:
            return self.centered
        held = self.centered.held
        T = np.zeros((len(held) + 1, len(held) + 1))
        T[0, 0], T[1:, 1:] = self.information.T[0, 0], held
        return Equations(T, self.centered.rows, self.centered.targets)

    @cached_property
    def posterior(self) -> InformationPosterior:
        g = self.design.regularizer(self.settings.penalty.regularizer(self.alpha))
        return InformationPosterior(
            self.equations, g, gamma=self.settings.gamma, mean=self._with_intercept(self.found), start=self._begin
        )

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
        rows = float(eq.rows) - self.settings.fit_intercept
        values = [log_evidence(eq.R, z[:, j], rss[j], rows, g, self.settings.gamma) for j in range(z.shape[1])]
        return np.asarray(values[0]) if eq.targets is None else np.stack(values)

    @property
    def score(self) -> float:
        """The log evidence for ridge; for other penalties -BIC/2, Schwarz's approximation of the log evidence.

        -BIC/2 is -rows/2 log(rss / rows) - edf/2 log(rows), or -rss/(2 noise_var) - edf/2 log(rows) if the noise
        variance is given. Both scores depend on the information alone, and so neither on the order of the rows nor on
        the blocks.
        """
        if self.settings.penalty.selection == "evidence":
            return float(self.log_evidence.sum())
        n, rss = float(self.information.rows), self.posterior.rss
        if (n - self.posterior.edf < 0.5).any():
            return -np.inf  # without residual degrees of freedom the likelihood is meaningless
        fit = n * np.log(np.maximum(rss, np.finfo(float).tiny) / n)
        fit = fit if self.settings.noise_var is None else rss / self.settings.noise_var
        return float(-(fit + self.edf * np.log(n)).sum() / 2)

    def with_alpha(self, alpha: float, found: Array | None = None, begin: Array | None = None) -> "ExactBelief":
        """Return the belief of the same rows with another alpha."""
        belief = ExactBelief(self.settings, self.information, None, found, begin, float(alpha))
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
        """Return the alpha of the largest evidence (ridge) or prequential score; by BIC before any score."""
        if self._by_prediction and self.scores is not None and (best := self.scores.best) is not None:
            return best
        grid = self.settings.penalty.alphas(self.centered.R, self.centered.z)
        scores = [belief.score for belief in self.for_alphas(grid)]
        i = int(np.argmax(scores))
        if self.settings.penalty.selection != "evidence" or i in (0, len(grid) - 1):
            return float(grid[i])  # BIC jumps with edf, so that the grid is fine enough
        from scipy.optimize import minimize_scalar

        low, high = np.log(grid[i + 1]), np.log(grid[i - 1])
        found = minimize_scalar(
            lambda a: -self.with_alpha(np.exp(a)).score, bounds=(low, high), method="bounded", options={"xatol": 1e-8}
        )
        return float(np.exp(found.x))

    # ---- saving ----------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        scores = {} if self.scores is None else {"scores": self.scores}
        return {"targets": self.information.targets, "information": self.information, **scores}

    @classmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> "ExactBelief":
        info = restored_information(saved, "information", d, saved["targets"])
        return cls(settings, info, saved.value(AlphaScores, "scores") if "scores" in saved else None)


def restored_information(saved: Saved, name: str, d: int, targets: int | None) -> Information:
    """Return the information that was saved under `name`; raise a ValueError if the arrays are invalid."""
    lost = saved.arrays.get(f"{name}.lost")  # which older files do not have
    info = saved.value(Information, name, targets=targets, lost=lost)
    T, p = info.T, d + (targets or 1)
    expect(T.shape == (1 + p, 1 + p) and info.shift.shape == (p,) and info.rows.shape == () and info.rows >= 0)
    expect(not np.tril(T, -1).any() and (np.diagonal(T) >= 0).all())
    expect(lost is None or lost.shape == T.shape)
    return Information(T, info.shift, info.rows[()], targets, lost)
