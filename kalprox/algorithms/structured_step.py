"""A block of rows as proximal steps in a structured metric."""

from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from kalprox._arrays import Array, is_traced, masked, namespace
from kalprox._control import call_jax, compiled
from kalprox.algorithms.parameters import first_numbers, next_numbers
from kalprox.algorithms.problem import Problem, check_expansion
from kalprox.algorithms.structured_posterior import StructuredPosterior
from kalprox.information.linearized import Expansion, Spread, expand
from kalprox.information.structured import Structured, piece_rows
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.parameters import Learned
from kalprox.models import Linear, Model, Predictor
from kalprox.regularizers import Regularizer, Zero
from kalprox.sources import Block

__all__ = ["Found", "learn_pieces"]

_MUCH = 1.0  # if the leverages of a piece add up to more, it says as much as all rows before it about some direction
_STEPS = 5  # of Gauss-Newton's method within a piece
_HALVINGS = 8  # of a step that does not descend
_GOOD = 0.5, 1.5  # of the decrease that the linearisation promised: within these it is good enough
_BYTES = 1 << 28  # of the Jacobian of a piece


class State(Protocol):
    """What is read of a state of the filter."""

    problem: Problem
    data: Structured
    estimate: Array
    learned: Learned | None

    @property
    def inner(self) -> Regularizer: ...
    @property
    def likelihood(self) -> Likelihood: ...


class Found(NamedTuple):
    """What the filter knows after a block."""

    data: Structured
    estimate: Array
    learned: Learned | None


def learn_pieces(state: State, block: Block, left: Array | None) -> Found:
    """Return what is known after a block, of whose weights forgetting has left what is due.

    Parameters
    ----------
    state : State
        Before the block; what it knows has been faded.
    block : Block
    left : float or None
        The share of the rows before that forgetting has left; None if nothing was forgotten.

    Returns
    -------
    Found
    """
    p = state.problem
    if p.exact and isinstance(p.model, Linear) and p.model.outputs is None:
        data = state.data.fold(block.X, block.y, block.weights, block.counts, block.squares)
        return Found(data, state.estimate, state.learned)
    found = Found(state.data, state.estimate, state.learned)
    outputs = int(np.prod(block.y.shape[1:], initial=1))
    rows = max(1, piece_rows(state.data.rank) // outputs)
    rows = max(1, min(rows, _BYTES // (outputs * state.data.mean.nbytes or 1)))
    rows = 1 << (rows.bit_length() - 1)  # lengths are powers of two, so that few are compiled
    at, length = 0, rows
    while at < len(block):
        length = min(length, rows, 1 << ((len(block) - at).bit_length() - 1))
        found, taken = _learn(state, found, _part(block, at, at + length), left)
        at, left = at + taken, None
        length = 2 * taken
    return found


def _learn(state: State, found: Found, block: Block, left: Array | None) -> tuple[Found, int]:
    """Return what is known after the first rows of a block, and how many they are."""
    p, (data, theta, learned) = state.problem, found
    if p.likelihood.parameter is not None and learned is None:
        learned = first_numbers(p.model, p.likelihood, theta, block)
    likelihood = p.likelihood if learned is None else learned.likelihood(p.likelihood)
    matched = not likelihood.quadratic and (p.model.linear or likelihood.majorizes)
    spread = None
    if matched:
        posterior = StructuredPosterior(data, Zero(), gamma=p.gamma, likelihood=likelihood)
        spread = Spread(posterior.factors[0], posterior.noise.variance)  # type: ignore[arg-type]
    at = expand(p.model, likelihood, theta, block, spread)
    check_expansion(at, len(block))
    taken = len(block)
    if not is_traced(at.D, data):
        leverage = np.asarray(data.leverage(at.D))
        leverage = leverage if at.weights is None else leverage * np.asarray(at.weights)
        total = np.cumsum(leverage.reshape(len(block), -1).sum(axis=1))
        taken = max(1, int(np.searchsorted(total, _MUCH, side="right")))
        taken = min(len(block), 1 << (taken.bit_length() - 1))
    if taken < len(block):
        per = len(at.f) // len(block)
        block = _part(block, 0, taken)
        arrays = (None if a is None else a[: taken * per] for a in (at.f, at.D, at.targets, at.weights))
        f, D, targets, weights = arrays
        counts, squares = (None if a is None else a[: taken * per] for a in (at.counts, at.squares))
        loss = _loss(p.model, likelihood, theta, block)
        at = Expansion(f, D, targets, weights, loss, counts, squares)
    if learned is not None:
        variances = spread
        learned = next_numbers(learned, p.likelihood, at, block, variances, left)
    if p.exact or matched or is_traced(at.D, data):
        data = _folded(data, at, theta)
        return Found(data, _mode(data, state.inner, theta), learned), taken
    data, theta = proximal_step(data, state.inner, p.model, likelihood, theta, block, at)
    return Found(data, theta, learned), taken


def proximal_step(
    data: Structured,
    g: Regularizer,
    model: Model,
    likelihood: Likelihood,
    theta: Array,
    block: Block,
    at: Expansion,
) -> tuple[Structured, Array]:
    """Minimise the loss of a block plus 1/2 ||theta - m||_P^2 + g, and return the information with it, and the minimiser.

    The block is linearised at theta, as `at`, and then at every point that damped steps of Gauss-Newton's method reach;
    once only if its linearisation promised what the step has brought.
    """

    def before(t: Array) -> float:
        away = t - data.mean
        return float((away * data.apply(away)).sum() / 2 + g.value(t))

    here = float(at.loss) + before(theta)
    for _ in range(_STEPS):
        new = _folded(data, at, theta)
        trial, size = _mode(new, g, theta), 1.0
        step = trial - theta
        there = _loss(model, likelihood, trial, block) + before(trial)
        promised = here - float(at.loss) - _linear_change(at, step) - before(trial)
        ratio = (here - there) / promised if promised > 0 else 1.0
        rounding = float(np.finfo(np.dtype(theta.dtype)).eps) ** 0.5 * abs(here)
        if _GOOD[0] <= ratio <= _GOOD[1] or abs(promised) <= rounding:
            return new, trial
        while not there <= here and size > 0.5**_HALVINGS:
            size /= 2
            trial = theta + size * step
            there = _loss(model, likelihood, trial, block) + before(trial)
        if not there <= here:
            break
        theta, here = trial, there
        at = expand(model, likelihood, theta, block)
        check_expansion(at, len(block))
    return _folded(data, at, theta).moved_to(theta), theta


def _folded(data: Structured, at: Expansion, theta: Array) -> Structured:
    return data.fold(at.D, at.targets + at.D @ theta, at.weights, at.counts, at.squares)


def _mode(data: Structured, g: Regularizer, start: Array) -> Array:
    """Return the minimiser of g and the information together."""
    return data.mean if isinstance(g, Zero) else data.minimise(g, start).theta


def _linear_change(at: Expansion, step: Array) -> float:
    """Return by how much the loss changes along a step, by its linearisation."""
    moved = at.D @ step
    change = moved * (moved / 2 - at.targets)
    return float((change if at.weights is None else at.weights * change).sum())


def _loss(model: Model, likelihood: Likelihood, theta: Array, block: Block) -> float:
    """Return the loss of a block at theta, infinite where it is not a number."""
    with np.errstate(all="ignore"):
        f = _outputs(model, theta, block.X)
        losses = masked(block.weights, likelihood.loss(block.y, f)).reshape(len(block), -1).sum(axis=1)
        total = float((losses if block.weights is None else block.weights * losses).sum())
    return total if np.isfinite(total) else np.inf


def _outputs(model: Model, theta: Array, X: Array) -> Array:
    """Return h for each row of a block."""
    if isinstance(model, Predictor):
        return model.value(theta, X)
    return call_jax(partial(compiled(_values), model), theta, X)


def _values(model: Any, theta: Array, X: Array) -> Array:
    import jax

    return jax.vmap(model.value, in_axes=(None, 0))(theta, X)


def _part(block: Block, start: int, stop: int) -> Block:
    fields = (block.X, block.y, block.weights, block.counts, block.squares)
    X, y, weights, counts, squares = (None if a is None else a[start:stop] for a in fields)
    return Block(X, y, weights, counts=counts, squares=squares)
