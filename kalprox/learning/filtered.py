"""The belief of a nonlinear model: a state of the proximal filter, reached by streaming or by refinement."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar

import numpy as np

from kalprox._arrays import Array
from kalprox.algorithms.base import start_mean
from kalprox.algorithms.proximal_filter import ProximalState, proximal_filter
from kalprox.algorithms.refine import refine
from kalprox.algorithms.warmup import HeldRows
from kalprox.learning.belief import Belief, check_any_row, refuse_scores
from kalprox.learning.design import Design, DesignedSource, Moments
from kalprox.learning.exact import restored_information
from kalprox.learning.saved import Saved, expect
from kalprox.learning.settings import Settings
from kalprox.models import LINKS
from kalprox.posterior import Posterior
from kalprox.regularizers import Regularizer
from kalprox.sources import Block, Counts, Source

__all__ = ["FilteredBelief", "first_design", "refuse_changes", "restored_design", "saved_design"]

_WEAK = 10.0  # the width of the weak prior of a stream, in units of the likely size of the predictor
_FIXED = (
    "link",
    "method",
    "fit_intercept",
    "standardize",
    "weights",
)  # cannot change after the first row


@dataclass(frozen=True, eq=False)
class FilteredBelief(Belief):
    """The state of the proximal filter, in the coordinates of a design that the first rows fixed."""

    state: ProximalState
    fixed: Design
    n_passes: int = 1
    converged: bool = True
    message: str = ""

    in_one_pass: ClassVar[bool] = False

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "FilteredBelief":
        design, v0 = Design(), None
        if isinstance(settings.link, str):
            moments, y = first_design(settings, blocks)
            design = Design.of_moments(moments, intercept=settings.fit_intercept, standardize=False)
            v0 = _weak_prior(settings, design, moments, y)
        alg = _filter(settings, design)
        return cls(settings, alg.init(_first_theta(settings, design), v0), design)

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple["FilteredBelief", Counts]:
        """Refine to a stationary point of the objective, after one pass for the means of X.

        One more pass sums the scores, if `coef_cov` needs them.
        """
        if settings.forget != 1:
            if not hasattr(source, "faded"):
                raise ValueError("forget must be 1 for a source without an order of rows; use partial_fit on a stream.")
            source = source.faded(settings.forget, settings.weights)
        folded = source.fold(Moments.of)
        check_any_row(folded.counts)
        assert folded.total is not None
        design = Design()
        if isinstance(settings.link, str):
            intercept, standardize = settings.fit_intercept, settings.standardize
            design = Design.of_moments(folded.total, intercept=intercept, standardize=standardize)
        g = _regularizer(settings, design)
        start = _first_theta(settings, design)
        options: dict[str, Any] = {"gamma": settings.gamma, "max_passes": settings.max_passes, "tol": settings.tol}
        out = refine(settings.model, g, DesignedSource(source, design), start, weights=settings.weights, **options)
        state = _filter(settings, design).init(out.mean, None)
        state = replace(state, data=out.information, estimate=out.mean, held=None)
        belief = cls(settings, state, design, out.passes, out.converged, out.message)
        return belief.with_scores_of(source), folded.counts

    def learn(self, block: Block) -> "FilteredBelief":
        """Take one step of the filter, which linearises the block at the current belief once the warm-up has ended."""
        if block.count == 0:
            return self
        warmup = self.state.problem.warmup
        step = _filter(self.settings, self.fixed, warmup=warmup).step
        inputs = self.fixed.block(block)
        return replace(self, state=step(self.state, inputs.X, inputs.y, inputs.weights))

    def with_settings(self, settings: Settings) -> "FilteredBelief":
        """Return the same rows under another penalty or noise variance; earlier blocks are not linearised again."""
        refuse_changes(self.settings, settings)
        g = _regularizer(settings, self.fixed)
        problem = replace(self.state.problem, regularizer=g, gamma=settings.gamma, forget=settings.forget)
        return replace(self, settings=settings, state=replace(self.state, problem=problem))

    @property
    def predicts(self) -> bool:
        """Whether the warm-up has ended; until then every prediction would refine the held rows again."""
        return self.state.held is None

    @property
    def design(self) -> Design:
        return self.fixed

    @property
    def posterior(self) -> Posterior:
        return self.state.posterior

    def saved(self) -> dict[str, Any]:
        state, held = self.state, {}
        if state.held is not None and state.held.rows:
            held = {"held": {name: np.concatenate(getattr(state.held, name)) for name in ("X", "y", "weights")}}
        return {
            **saved_design(self.fixed),
            "n_passes": self.n_passes,
            "converged": bool(self.converged),
            "prior": state.prior,
            "data": state.data,
            "estimate": np.asarray(state.estimate),
            "warmup": state.problem.warmup,
            "next_look": None if state.held is None else state.held.next_look,
            **held,
        }

    @classmethod
    def restored(cls, settings: Settings, d: int, saved: Saved) -> "FilteredBelief":
        design = restored_design(settings, d, saved)
        estimate = start_mean(saved["estimate"])
        expect(design.center is None or len(estimate) == len(design.center) + design.intercept)
        state, held = _filter(settings, design, warmup=int(saved["warmup"])).init(estimate, None), None
        if saved["next_look"] is not None:
            X, y, weights = (((saved[f"held.{n}"],) if "held" in saved else ()) for n in ("X", "y", "weights"))
            expect(len({len(a) for a in (*X, *y, *weights)}) <= 1 and all(a.ndim == 2 for a in X))
            held = HeldRows(X, y, weights, next_look=int(saved["next_look"]))
        prior, data = (
            restored_information(saved, name, len(estimate), None, settings.forget) for name in ("prior", "data")
        )
        state = replace(state, prior=prior, data=data, held=held)
        return cls(settings, state, design, int(saved["n_passes"]), bool(saved["converged"]))


def saved_design(design: Design) -> dict[str, Any]:
    """Return the centre and the scale of a design that the first rows fixed."""
    return {} if design.center is None else {"design": {"center": design.center, "scale": design.scale}}


def restored_design(settings: Settings, d: int, saved: Saved) -> Design:
    """Return the design that `saved_design` was given."""
    if not isinstance(settings.link, str):
        return Design()
    center, scale = saved["design.center"], saved["design.scale"]
    expect(center.shape == scale.shape == (d,) and (scale > 0).all())
    return Design(center, scale, settings.fit_intercept)


def refuse_changes(before: Settings, now: Settings) -> None:
    """Raise a ValueError if settings differ that cannot change once rows have been learned."""
    refuse_scores(before, now)
    if changed := now.changed(before, *_FIXED):
        raise ValueError(f"{' and '.join(changed)} cannot change between calls of partial_fit: use fit.")


def first_design(settings: Settings, blocks: Iterable[Block]) -> tuple[Moments, Array]:
    """Return the moments of the first rows of a stream, and their targets."""
    if settings.standardize:
        raise ValueError(
            "standardize=True with a nonlinear link needs fit with method='exact': the standard deviations of a stream "
            "are not known beforehand."
        )
    moments, targets = zip(*((Moments.of(block), block.y) for block in blocks), strict=True)
    return reduce(add, moments), np.concatenate(targets)


def _regularizer(settings: Settings, design: Design) -> Regularizer:
    return design.regularizer(settings.penalty.regularizer(settings.penalty.alpha))


def _filter(settings: Settings, design: Design, **options: Any) -> Any:
    g = _regularizer(settings, design)
    options |= {"gamma": settings.gamma, "forget": settings.forget, "weights": settings.weights}
    return proximal_filter(settings.model, g, **options)


def _first_theta(settings: Settings, design: Design) -> Array:
    size = 0 if design.center is None else len(design.center) + design.intercept
    return settings.first_theta(size, design.jacobian())


def _weak_prior(settings: Settings, design: Design, moments: Moments, y: Array) -> Array:
    """Return the variances of a weak prior, which adds (theta_j sd_j / s)^2 var(y) / 200 to the objective.

    Here s is the likely size of the linear predictor: a coefficient that moves the predictor by 10 s costs as much as
    one residual of the size of y's standard deviation. The prior keeps the warm-up of a stream from diverging; `fit`
    does not use it.
    """
    square = moments.squares / moments.rows + (moments.mean - design.center) ** 2
    square = np.concatenate([[1.0], square]) if design.intercept else square
    size = LINKS[str(settings.link)].scale(y)
    v0 = (_WEAK * size) ** 2 / np.where(square > 0, square, 1)
    v0 = v0 / (float(np.var(y)) or float(np.mean(y**2)) or 1.0)
    return v0 if settings.noise_var is None else v0 * settings.noise_var  # a learned variance is the unit of v0
