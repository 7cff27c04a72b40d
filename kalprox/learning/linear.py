"""What the rows of a linear model say about its coefficients: before there is a penalty, and under one weight of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.pickling import PickledFields
from kalprox.base.text import worded
from kalprox.base.tree import leaf, state
from kalprox.information import Equations, Information
from kalprox.learning.belief import Belief, Facts
from kalprox.learning.design import Design
from kalprox.learning.drift import walked
from kalprox.learning.errors import TUNED_ROWS
from kalprox.learning.ridge_evidence import AlphaChoice, RidgeEvidence
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.learning.state import FIRST_PIECE
from kalprox.noise import Noise, gaussian_log_likelihood, log_evidence
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Predictive, Student
from kalprox.regularizers import Regularizer

__all__ = ["LinearBelief", "LinearRows"]


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
