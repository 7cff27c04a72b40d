"""What a model says whose rows are linearised at an estimate: nonlinear ones, classes, counts, and rows that lie."""

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.algorithms.proximal_filter import linearised_at_check
from kalprox.algorithms.state import ProximalState
from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.base.tree import state
from kalprox.learning.belief import Belief, Facts
from kalprox.learning.design import Design, Moments
from kalprox.learning.targets import Seen
from kalprox.learning.weak_prior import Columns, first_theta, noise_variance, sums_to_zero, weak_root
from kalprox.posterior import InformationPosterior, Posterior
from kalprox.regularizers import Regularizer, Zero
from kalprox.solvers.terms import diagonal_curvature

SEPARATED = worded(
    "The rows leave some coefficients to the weak prior of the stream, since some columns separate the classes without "
    "an error, or rows whose counts are all zero (complete or quasi-complete separation): without it the coefficients "
    "run to infinity, and their standard errors say nothing. Set a penalty, such as {penalty='ridge'}, or "
    "remove these columns."
)

_SHARE = 0.03  # of the precision of a direction, from which on the prior decides it
_UNKNOWN = 0.3  # the same, above which rows say next to nothing: of columns that are constant, or collinear
_MOVED = 0.6  # the change of an output by the step without the prior
_MANY = 10  # rows of the rarest class of a warm-up for each input, that may be said to be separated


class SeparationWarning(RuntimeWarning):
    """A stream of classes or counts has no finite estimate without a penalty: complete or quasi-complete separation."""


@state
class LinearisedBelief(Belief):
    """What the rows say that a `Linearised` has learned, with fields of that state."""

    proximal: ProximalState
    fixed: Design
    seen: Seen | None
    columns: Columns | None
    fit_converged: bool
    fit_column_std: Array | None
    fit_outside: float

    @property
    def predicts(self) -> bool:
        """Whether the warm-up has ended; until then the rows held do not determine theta well.

        Predictions by the state are then too certain, and are not scored; see `Linearised.scored` for what is.
        """
        return self.proximal.held is None or self.proximal.held.settled

    @property
    def effective_rows(self) -> float:
        return float(self.posterior.data.effective_rows) / (self.fixed.outputs or 1)  # type: ignore[attr-defined]

    @property
    def convex(self) -> bool:
        """Whether the objective has no other minima than the one found, also among the few rows of a warm-up."""
        return self.settings.likelihood.log_concave and self.model.linear

    @property
    def converged(self) -> bool:
        """Whether the fit converged, and a stream has left its warm-up or is before its first check."""
        found = self.proximal.converged or (self.convex and not self.proximal.cut_short)
        return self.fit_converged and found and not self.separated

    @property
    def message(self) -> str:
        held = self.proximal.held
        if self.separated:
            return SEPARATED
        if self.proximal.cut_short:
            return (
                "The stream can hold no more rows, and those held did not determine the coefficients well: they were "
                "linearised for good, and the estimate may be wrong and over-confident. Refine the model with all rows."
            )
        if held is None or held.settled or self.convex:
            return self.fit_message
        return (
            f"The warm-up of the stream has not ended: the {held.rows} rows held so far do not determine the "
            "coefficients well, and the estimate may be far off. Learn more rows, or make several passes over them."
        )

    @cached_property
    def separated(self) -> bool:
        """Whether a stream of classes or counts has no finite estimate without a penalty; see `is_separated`."""
        seen, settings, design = self.seen, self.settings, self.fixed
        loss, columns = settings.likelihood, self.columns
        if seen is None or columns is None or not self.convex or loss.quadratic or loss.location:
            return False
        if self.proximal.is_fresh or not self._rarest > 0:  # of a class that has not come yet nothing can be said
            return False
        if self.proximal.problem.regularizer.value(np.ones(design.size)) > 0:  # a penalty makes the estimate finite
            return False
        A = weak_root(settings, design, seen, columns, noise_variance(self.proximal))
        C = contrasts(design, Zero())
        return is_separated(self.proximal, A if C is None else A @ C, first_theta(settings, design))

    @property
    def many(self) -> bool:
        """Whether there are rows enough to be told that they are separated: few often are, by chance."""
        return self._rarest >= _MANY * self.fixed.size / (self.fixed.outputs or 1)

    @property
    def _rarest(self) -> float:
        """The number of rows of the rarest class, or of events, in a warm-up; infinite after it."""
        if self.proximal.held is None:
            return np.inf
        y = np.concatenate([rows.y for rows in self.proximal.held.blocks])
        events = (y > 0).sum(axis=0).min()
        return float(min(events, (y < 1).sum()) if self.settings.likelihood.outcomes == "two classes" else events)

    @property
    def design(self) -> Design:
        return self.fixed

    @property
    def posterior(self) -> Posterior:
        return self.proximal.posterior

    def contrasts(self, posterior: Posterior) -> Array | None:
        """Return the matrix that subtracts from parameters their means over the outputs, where these are kept at zero.

        It has no effect on the estimate, and takes what `sums_to_zero` adds out of the variances.
        """
        if self.fixed.outputs is None:
            return None
        assert isinstance(posterior, InformationPosterior)
        return contrasts(self.fixed, posterior.regularizer).toarray()

    @cached_property
    def unpenalised(self) -> Posterior:
        """The posterior without the penalty, in which the coefficients of all classes add up to zero."""
        found, design, std = super().unpenalised, self.fixed, self.facts.column_std
        if design.outputs is None or not isinstance(found, InformationPosterior) or found.prior is None:
            return found
        assert std is not None and design.center is not None
        rows = float(found.data.rows) / design.outputs
        moments = Moments(rows, design.center, rows * std**2)
        sums = sums_to_zero(self.settings, design, moments, all_inputs=True)
        assert sums is not None
        return InformationPosterior(found.data, Zero(), gamma=found.gamma, prior=sums, likelihood=found.likelihood)

    @cached_property
    def facts(self) -> Facts:
        seen, std = self.seen, None
        if self.settings.function is None:  # whose parameters have no columns
            std = self.fit_column_std if seen is None else np.sqrt(seen.X.squares / max(seen.X.rows, 1.0))
        outside = self.fit_outside if seen is None else seen.y.outside
        return Facts(self.settings.alpha, None, std, outside, self.proximal.outliers)


def contrasts(design: Design, regularizer: Regularizer) -> Any:
    """Return a sparse matrix that subtracts from parameters their means over the outputs; None if there is one output.

    Those of coefficients stay as they are where the penalty decides on their means.
    """
    if (m := design.outputs) is None:
        return None
    summed = np.ones(design.size // m)
    if diagonal_curvature(regularizer, design.size) is None:  # of a ridge, or without a penalty, they add up to zero
        summed[design.first :] = 0.0
    means = scipy.sparse.kron(scipy.sparse.diags_array(summed), np.full((m, m), 1 / m))
    return (scipy.sparse.eye_array(design.size) - means).tocsr()


def is_separated(state: ProximalState, A: Array, origin: Array) -> bool:
    """Whether the rows that a state holds are separated, so that its weak prior decides some direction of theta.

    Where some columns separate the classes, or rows whose counts are all zero, there is no finite minimiser without a
    penalty. The weak prior holds the estimate of a stream where it balances the rows: their loss falls exponentially
    along the direction, by slopes that are as large as their curvature, so that without the prior the next step of
    Newton's method would change the outputs of these rows by 1. In a stream that determines theta it changes them by
    next to nothing. The prior has 1 / (1 + f) of the precision along the direction, where f is the output of the rows
    there, at most 30 for any number of rows; it has less than 0.02 of that of a single event.

    Rows that are separated are among those held, since their loss is not quadratic within the belief. O(d^3).

    Parameters
    ----------
    state : ProximalState
        Of a linear model of classes or counts.
    A : array of shape (d, d)
        The root of the weak prior, which adds ||A (theta - origin)||^2 / 2 to the objective.
    origin : array of shape (d,)
    """
    blocks = [] if state.held is None else [rows.X for rows in state.held.blocks if len(rows)]
    if state.extrapolating is not None:
        blocks.append(state.extrapolating.X)
    if not blocks:
        return False
    posterior = (state if state.held is None else linearised_at_check(state)).posterior
    if not posterior.proper:
        return False
    shares, U = np.linalg.eigh(A @ np.asarray(posterior.metric_factors[0].covariance()) @ A.T)
    shares = np.where((shares > _SHARE) & (shares < _UNKNOWN), shares, 0.0)
    pull = shares / (1 - shares) * (U.T @ A @ (np.asarray(posterior.mean) - origin))
    if not pull.any():
        return False
    step, h = np.linalg.lstsq(A, U @ pull, rcond=None)[0], state.problem.model.linearize_rows
    return max(float(np.abs(h(step, X)[0] - h(0 * step, X)[0]).max()) for X in blocks) > _MOVED
