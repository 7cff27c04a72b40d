"""A block of rows as proximal steps in a structured metric."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from kalprox._arrays import Array, is_traced, masked, namespace
from kalprox._control import call_jax, compiled
from kalprox.algorithms.parameters import first_numbers, next_numbers
from kalprox.algorithms.problem import Problem, check_expansion
from kalprox.algorithms.row_scan import window
from kalprox.algorithms.structured_posterior import StructuredPosterior
from kalprox.information.linearized import Expansion, Spread, expand
from kalprox.information.structured import Structured, append, piece_rows
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.parameters import Learned
from kalprox.linalg.structured_factor import StructuredFactor
from kalprox.models import Linear, Model, Predictor, padded_length
from kalprox.regularizers import Regularizer, Zero
from kalprox.sources import Block

__all__ = ["Found", "learn_pieces"]

_MUCH = 1.0  # if the leverages of rows that are matched add up to more, they are taken in smaller pieces
_STEPS = 10  # of Gauss-Newton's method within a piece; one that needs more is taken in two
_HALVINGS = 8  # of a step that does not descend
_GOOD = 0.98, 1.02  # of the decrease that the linearisation promised: within these it is good enough
_BYTES = 1 << 28  # of the Jacobian of a piece


class State(Protocol):
    """What is read of a state of the filter."""

    @property
    def problem(self) -> Problem: ...
    @property
    def data(self) -> Structured: ...
    @property
    def estimate(self) -> Array: ...
    @property
    def learned(self) -> Learned | None: ...
    @property
    def inner(self) -> Regularizer: ...


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
    if is_traced(block.X, block.y, block.weights, state.data):
        raise TypeError("The steps of a nonlinear model depend on values and cannot be traced: step outside jit.")
    found = Found(state.data, state.estimate, state.learned)
    outputs = int(np.prod(block.y.shape[1:], initial=1))
    rows = max(1, piece_rows(state.data.rank) // outputs)
    rows = max(1, min(rows, _BYTES // (outputs * state.data.mean.nbytes or 1)))
    rows, n = min(rows, _power_of_two(len(block))), len(block)
    start, length, padded = 0, rows, _padded(block, rows)
    while start < n:
        length = min(length, n - start)
        found, taken = _learn(state, found, _part(padded, start, length, rows), length, left)
        start, left = start + taken, None
        length = min(2 * taken, rows)
    return found


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _learn(state: State, before: Found, block: Block, length: int, left: Array | None) -> tuple[Found, int]:
    """Return what is known after some of the first `length` rows of a block, and how many they are."""
    p, (data, theta, learned) = state.problem, before
    if p.likelihood.parameter is not None and learned is None:
        learned = first_numbers(p.model, p.likelihood, theta, block)
    likelihood = p.likelihood if learned is None else learned.likelihood(p.likelihood)
    averaged = p.model.linear and not likelihood.quadratic and not likelihood.majorizes
    variance = None
    if averaged or likelihood.majorizes:
        variance = StructuredPosterior(data, Zero(), gamma=p.gamma, likelihood=likelihood).noise.variance
    linearised = partial(_on(data, _linearised), p.model, likelihood, data)
    arrays = (block.X, block.y, block.weights, block.counts, block.squares)
    at, total = linearised(theta, variance if averaged else None, *arrays)
    check_expansion(at, len(block))
    taken = length
    if total is not None:
        taken = min(length, max(1, int(np.searchsorted(np.asarray(total), _MUCH, side="right"))))
    outputs, rows_of = len(at.f) // len(block), len(block)
    while True:
        part, here = (block, at) if taken == length else (_first_rows(block, taken), _first(at, taken, rows_of))
        if p.exact or averaged:
            new = _folded(data, here, theta, taken * outputs)
            found, good = _mode(new, state.inner, theta), True
        else:
            step = proximal_step(data, state.inner, p.model, likelihood, theta, part, here, taken * outputs)
            new, found, good = step
        if good or taken == 1:
            break
        taken //= 2
    if learned is not None:
        spread = None if variance is None else Spread(StructuredFactor(data.precision), variance)
        learned = next_numbers(learned, p.likelihood, here, part, spread, left)
    if likelihood.majorizes:  # what rows add to the information is not what a step descends with
        arrays = (part.X, part.y, part.weights, part.counts, part.squares)
        at, _ = linearised(found, variance, *arrays)
        new = replace(_folded(data, at, found, taken * outputs), mean=found)
    return Found(new, found, learned), taken


def proximal_step(
    data: Structured,
    g: Regularizer,
    model: Model,
    likelihood: Likelihood,
    theta: Array,
    block: Block,
    at: Expansion,
    taken: int,
) -> tuple[Structured, Array, bool]:
    """Minimise the loss of the first rows of a block plus 1/2 ||theta - m||_P^2 + g.

    The block is linearised at theta, as `at`, and then at every point that damped steps of Gauss-Newton's method reach;
    once only if the linearisation promised what the step has brought.

    Returns
    -------
    data : Structured
        The information with these rows.
    theta : array of shape (d,)
        The minimiser.
    good : bool
        Whether it is one: False if ten steps were not enough.
    """
    rows = model, likelihood, block.X, block.y, block.weights
    propose = _on(data, _proposal) if isinstance(g, Zero) else _proposal
    objective = _on(data, _objective) if isinstance(g, Zero) else _objective
    rounding = float(np.finfo(np.dtype(theta.dtype)).eps) ** 0.5
    for _ in range(_STEPS):
        new, trial, numbers = propose(data, g, *rows, theta, at, taken)
        here, there, promised = (float(a) for a in np.asarray(numbers))
        ratio = (here - there) / promised if promised > 0 else 1.0
        if _GOOD[0] <= ratio <= _GOOD[1] or abs(promised) <= rounding * abs(here):
            return new, trial, True
        step, size = trial - theta, 1.0
        while not there <= here and size > 0.5**_HALVINGS:
            size /= 2
            trial = theta + size * step
            there = float(objective(data, g, *rows, trial))
        if not there <= here:
            break
        theta = trial
        at, _ = _on(data, _linearised)(model, likelihood, data, theta, None, *rows[2:], block.counts, block.squares)
        check_expansion(at, len(block))
    return replace(_folded(data, at, theta, taken), mean=theta), theta, False


def _on(data: Structured, function: Any) -> Any:
    """Return a function, compiled where the arrays are JAX's."""
    return function if namespace(data.mean) is np else compiled(function)


def _linearised(
    model: Model,
    likelihood: Likelihood,
    data: Structured,
    theta: Array,
    variance: Array | None,
    X: Array,
    y: Array,
    weights: Array,
    counts: Array | None,
    squares: Array | None,
) -> tuple[Expansion, Array | None]:
    """Return the expansion of a block to descend with, and None.

    With the variance of the noise, the loss is fitted to its moments under the belief (see `expand`), and the second
    result is the sum of the leverages of the rows up to each of them.
    """
    spread = None if variance is None else Spread(StructuredFactor(data.precision), variance)
    block = Block(X, y, weights, counts=counts, squares=squares)
    at = expand(model, likelihood, theta, block, spread, descent=spread is None)
    if spread is None:
        return at, None
    leverage = data.leverage(at.D)
    leverage = leverage if at.weights is None else leverage * at.weights
    return at, leverage.reshape(len(y), -1).sum(axis=1).cumsum()


def _proposal(
    data: Structured,
    g: Regularizer,
    model: Model,
    likelihood: Likelihood,
    X: Array,
    y: Array,
    weights: Array,
    theta: Array,
    at: Expansion,
    taken: Any,
) -> tuple[Structured, Array, Array]:
    """Return the information with a block as linearised, the minimiser, and how much the sum falls there.

    The numbers are the sum at theta, that at the minimiser, and the decrease that the linearisation promised.
    """
    new = _folded(data, at, theta, taken)
    trial = _mode(new, g, theta)
    moved = at.D @ (trial - theta)
    change = moved * (moved / 2 - at.targets)
    change = (change if at.weights is None else at.weights * change).sum()
    before, after = _beyond(data, g, theta), _beyond(data, g, trial)
    here = _loss(likelihood, at.f.reshape(y.shape), y, weights)
    there = _loss(likelihood, _outputs(model, trial, X), y, weights)
    return new, trial, namespace(theta).stack([here + before, there + after, before - after - change])


def _objective(
    data: Structured,
    g: Regularizer,
    model: Model,
    likelihood: Likelihood,
    X: Array,
    y: Array,
    weights: Array,
    theta: Array,
) -> Array:
    """Return the loss of a block plus 1/2 ||theta - m||_P^2 + g."""
    return _loss(likelihood, _outputs(model, theta, X), y, weights) + _beyond(data, g, theta)


def _beyond(data: Structured, g: Regularizer, theta: Array) -> Array:
    away = theta - data.mean
    return (away * data.apply(away)).sum() / 2 + g.value(theta)


def _folded(data: Structured, at: Expansion, theta: Array, taken: Any) -> Structured:
    """Return the information with the first rows of an expansion; the others have weight 0."""
    ones = namespace(at.D).ones_like(at.targets)
    weights = ones if at.weights is None else at.weights
    counts = weights if at.counts is None else at.counts
    targets = at.targets + at.D @ theta
    return append(data, at.D, targets, weights, counts, counts if at.squares is None else at.squares, taken)


def _mode(data: Structured, g: Regularizer, start: Array) -> Array:
    """Return the minimiser of g and the information together."""
    return data.mean if isinstance(g, Zero) else data.minimise(g, start).theta


def _loss(likelihood: Likelihood, f: Array, y: Array, weights: Array) -> Array:
    """Return the loss of a block, infinite where it is not a number."""
    with np.errstate(all="ignore"):
        losses = masked(weights, likelihood.loss(y, f)).reshape(len(y), -1).sum(axis=1)
        total = (weights * losses).sum()
        return namespace(total).where(namespace(total).isfinite(total), total, np.inf)


def _outputs(model: Model, theta: Array, X: Array) -> Array:
    """Return h for each row of a block."""
    if isinstance(model, Predictor):
        with np.errstate(all="ignore"):
            return model.value(theta, X)
    b = len(X)
    if namespace(theta, X) is np:  # of one of a few lengths, as in `Function.linearize_rows`
        X = np.concatenate([X, np.repeat(X[-1:], padded_length(b) - b, axis=0)])
    return call_jax(partial(compiled(_values), model), theta, X)[:b]


def _values(model: Any, theta: Array, X: Array) -> Array:
    import jax

    return jax.vmap(model.value, in_axes=(None, 0))(theta, X)


def _padded(block: Block, more: int) -> Block:
    """Return a block with copies of its last row, on JAX arrays, so that every part of it can have one shape."""
    xp = namespace(block.X)
    if xp is np:
        return block
    fields = (block.X, block.y, block.weights, block.counts, block.squares)
    X, y, weights, counts, squares = (
        None if a is None else xp.concatenate([a, xp.repeat(a[-1:], more, axis=0)]) for a in fields
    )
    return Block(X, y, weights, counts=counts, squares=squares)


def _part(block: Block, start: int, length: int, shape: int) -> Block:
    """Return `length` rows of a block; on JAX arrays they are `shape` rows, of which the last have weight 0."""
    fields = (block.X, block.y, block.weights, block.counts, block.squares)
    shape = length if namespace(block.X) is np else shape
    X, y, weights, counts, squares = (None if a is None else window(a, start, shape) for a in fields)
    part = Block(X, y, weights, counts=counts, squares=squares)
    return part if shape == length else _first_rows(part, length)


def _first_rows(block: Block, taken: int) -> Block:
    """Return the first rows of a block; on JAX arrays, whose shapes stay, the others have weight 0."""
    if namespace(block.X) is np:
        return _part(block, 0, taken, taken)
    fields = (block.weights, block.counts, block.squares)
    weights, counts, squares = (None if a is None else _masked(a, taken) for a in fields)
    return Block(block.X, block.y, weights, counts=counts, squares=squares)


def _first(at: Expansion, taken: int, rows: int) -> Expansion:
    """Return the expansion of the first rows of a block, as `_first_rows`."""
    n = taken * (len(at.f) // rows)  # a row of the block is one row for each output
    if namespace(at.D) is np:
        f, D, targets, weights, counts, squares = (
            None if a is None else a[:n] for a in (at.f, at.D, at.targets, at.weights, at.counts, at.squares)
        )
        return Expansion(f, D, targets, weights, at.loss, counts, squares)
    ones = namespace(at.D).ones_like(at.targets)
    weights = _masked(ones if at.weights is None else at.weights, n)
    counts, squares = (None if a is None else _masked(a, n) for a in (at.counts, at.squares))
    return at._replace(weights=weights, counts=weights if counts is None else counts, squares=squares)


def _masked(values: Array, n: int) -> Array:
    xp = namespace(values)
    return xp.where(xp.arange(len(values)) < n, values, 0)
