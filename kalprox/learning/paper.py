"""The belief of the paper's recursion, row by row. If g is not zero, V is a metric and not a posterior covariance."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.algorithms.base import Algorithm
from kalprox.algorithms.base import Belief as State
from kalprox.algorithms.pipg import pipg
from kalprox.algorithms.run import Diverged, run
from kalprox.covariance import Dense
from kalprox.learning.belief import Belief
from kalprox.learning.design import Design
from kalprox.learning.filtered import first_moments, refuse_changes
from kalprox.learning.saved import Saved, expect
from kalprox.learning.saved_parts import restored_design, saved_design
from kalprox.learning.settings import Settings
from kalprox.learning.targets import Targets, check_targets
from kalprox.posterior import GivenPosterior
from kalprox.sources import Block, Counts, Source

__all__ = ["PaperBelief"]

_RECORD = 8192  # rows between two records of a run, the same for all batches so that the loop compiles once
_MOST = 1e9  # rows that a batch is repeated to
_DIVERGED = (
    "The recursion of method='paper' diverged: its estimate or covariance is no longer finite after these rows. Raise "
    "noise, lower v0 or alpha, or scale the columns of X."
)


@dataclass(frozen=True, eq=False)
class PaperBelief(Belief):
    """The belief N(mean, V), updated by the paper's equations."""

    state: State
    fixed: Design

    converged = True

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "PaperBelief":
        design = Design()
        if isinstance(settings.link, str):
            moments = first_moments(settings, blocks)
            design = Design.of_moments(moments, intercept=settings.fit_intercept, standardize=False)
        size = 0 if design.center is None else len(design.center) + design.intercept
        start = settings.first_theta(size, design.jacobian())
        return cls(settings, _recursion(settings, design).init(start, settings.v0), design)

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple["PaperBelief", Counts]:
        """Raise an error: the recursion needs the rows in their order."""
        raise ValueError("method='paper' learns row by row: the source must be in memory, or read as a stream.")

    def learn(self, block: Block) -> "PaperBelief":
        X, y = block.X, block.y
        targets = Targets.of(self.settings, block)
        check_targets(self.settings, targets, targets, block)
        if block.weights is not None:
            if (block.weights != np.round(block.weights)).any():
                raise ValueError("method='paper' needs whole numbers as sample_weight, by which it repeats the rows.")
            if (total := block.weights.sum()) > _MOST:
                raise ValueError(
                    f"method='paper' repeats the rows by sample_weight, at most to {_MOST:g} rows at a time; got a "
                    f"sum of {total:.6g}. Use smaller weights, or method='exact'."
                )
            X, y = (np.repeat(a, block.weights.astype(int), axis=0) for a in (X, y))
        if len(X) == 0:
            return self
        alg = _recursion(self.settings, self.fixed)
        try:
            state = run(alg, self.state, self.fixed.rows(X), y, record_every=_RECORD).state
        except Diverged as error:
            raise FloatingPointError(_DIVERGED) from error
        if not np.isfinite(np.asarray(state.cov())).all():
            raise FloatingPointError(_DIVERGED)
        return replace(self, state=state)

    def with_settings(self, settings: Settings) -> "PaperBelief":
        refuse_changes(self.settings, settings)
        return replace(self, settings=settings)

    @property
    def design(self) -> Design:
        return self.fixed

    @cached_property
    def posterior(self) -> GivenPosterior:
        return GivenPosterior(np.asarray(self.state.mean), np.asarray(self.state.cov()), self.settings.gamma)

    def saved(self) -> dict[str, Any]:
        state = self.state
        about = {"n_passes": 1, "converged": True}
        return {**saved_design(self.fixed), **about, "mean": np.asarray(state.mean), "cov": np.asarray(state.cov())}

    @classmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> "PaperBelief":
        design = restored_design(settings, d, saved)
        # A learned covariance is not checked as v0 is: rounding may leave it not quite symmetric or positive definite.
        mean, V = saved["mean"], saved["cov"]
        expect(mean.shape == (d + design.intercept,) and V.shape == 2 * mean.shape)
        expect(np.asarray(settings.q, float).shape in ((), mean.shape, V.shape))
        _recursion(settings, design)  # which checks the values of q
        return cls(settings, State(mean, Dense(V)), design)


def _recursion(settings: Settings, design: Design) -> Algorithm:
    g = design.regularizer(settings.penalty.regularizer(settings.penalty.alpha))
    return pipg(settings.model(), g, gamma=settings.gamma, q=settings.q)
