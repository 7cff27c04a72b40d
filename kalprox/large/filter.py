"""The proximal filter of many parameters: blocks of rows as proximal steps in a structured metric, from the first."""

import warnings
from dataclasses import replace
from functools import cached_property, partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from kalprox.algorithms.base import Algorithm, Problem, are_fine, check_expansion, checked_rows, start_mean
from kalprox.algorithms.state import FilterState, first_numbers, next_numbers, warn_of_outliers
from kalprox.base.arrays import Array, Partial, asarray_like, brief, is_traced, masked, namespace, pytree, static
from kalprox.base.checks import check_positive, concrete
from kalprox.base.control import call_jax, compiled, full_precision, on_cpu, select, while_loop, window
from kalprox.base.tree import PickledFields
from kalprox.information.linearized import Expansion, Spread, expand
from kalprox.large.information import (
    Structured,
    StructuredPosterior,
    Weighed,
    append,
    noise_of,
    piece_rows,
    settled,
    with_room,
)
from kalprox.large.low_rank import PlusLowRank, StructuredFactor
from kalprox.large.prox import minimise, ridge_of
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.base import Learned
from kalprox.models import Linear, Model, Predictor, padded
from kalprox.predictive import Predictive
from kalprox.regularizers import Regularizer, Zero
from kalprox.solvers.newton import halved
from kalprox.sources import Block
from kalprox.sources.weighting import faded_block, in_order
from kalprox.structures import Structure, UnderstatedWarning

_MUCH = 1.0  # if the leverages of rows that are matched add up to more, they are taken in smaller pieces
_STEPS = 10  # of Gauss-Newton's method within a piece; one that needs more is taken in two
_HALVINGS = 8  # of a step that does not descend
_GOOD = 0.02  # the error of the promised losses, as a share of the promised decrease, with which a step is good enough
_CLOSE = 0.1  # the same for one row, in units of the noise variance
_BYTES = 1 << 28  # of the Jacobian of a piece; on an accelerator, whose memory is larger, 16 times as much


class Found(NamedTuple):
    """What the filter knows: see `kalprox.large.filter.StructuredState`."""

    data: Structured
    estimate: Array
    learned: Learned | None


def learn_pieces(p: Problem, g: Regularizer, start: Found, block: Block, left: Array | None) -> tuple[Found, Array]:
    """Return what is known after a block, of whose weights forgetting has left what is due, and its rounding error.

    Parameters
    ----------
    p : Problem
    g : Regularizer
        Under which rows are linearised.
    start : Found
        Before the block; its data have been faded.
    block : Block
    left : float or None
        The share of the rows before that forgetting has left; None if nothing was forgotten.

    Returns
    -------
    found : Found
    rounding : array of shape ()
        See `kalprox.large.low_rank.PlusLowRank`.
    """
    data, estimate, before = start
    if _is_exact(p):
        data = data.fold(block.X, block.y, block.weights, block.counts, block.squares)
        return Found(data, estimate, before), data.precision.rounding
    rows = _longest(data, block)
    all_rows = Weighed.of(block.X, block.y, block.weights, block.counts, block.squares)
    if before is not None and left is not None:
        before = Learned(before.numbers, left * before.sums)
    elif before is None and p.likelihood.parameter is not None:
        first = _block(_part(all_rows, 0, min(rows, len(block)), rows))
        before = first_numbers(p.model, p.likelihood, estimate, first)
    start = Found(data, estimate, before)
    loops, learn = np, _learn_pieces
    if learns_compiled(p, g, data, block.X, block.y):
        alone = not is_traced(p, g, start, all_rows)
        loops = namespace(data.mean, block.X, block.y)
        learn = compiled(_learn_pieces, "rows", "n", "loops", alone=alone)
    found, about = learn(p, g, start, all_rows, rows=rows, n=len(block), loops=loops)
    if is_traced(found):
        return found, about[1]
    about = np.asarray(about)  # all that is checked comes to the host at once
    if not about[0]:
        checked_rows(block.X, block.y, block.weights)
        check_expansion(expand(p.model, p.likelihood, estimate, block, descent=True), len(block))
        raise ValueError("The model has no finite value or derivative near the estimate: the block is rejected.")
    if before is not None and found.learned is not None:
        warn_of_outliers(p.likelihood, before, found.learned)
    return found, about[1]


def learns_compiled(p: Problem, g: Regularizer, data: Structured, *arrays: Array) -> bool:
    """Whether a block of these arrays is learned by one program, which also looks at its values."""
    on_jax = namespace(data.mean, *arrays) is not np
    return on_jax and not _is_exact(p) and (g.is_zero or is_traced(data, arrays))  # a prox with kinks is on the host


def _is_exact(p: Problem) -> bool:
    """Whether rows need no linearisation."""
    return p.exact and isinstance(p.model, Linear) and p.model.outputs is None


def _longest(data: Structured, block: Block) -> int:
    """Return how many rows a piece has, at most.

    On NumPy arrays it is a power of two, and all pieces have such lengths: JAX compiles a function for a few. On JAX
    arrays all pieces have one shape, and are of equal lengths.
    """
    outputs, rows_of_D = int(np.prod(block.y.shape[1:], initial=1)), piece_rows(data.rank)
    size = data.mean.size * data.mean.dtype.itemsize * outputs
    on_host = namespace(data.mean) is np
    most = _BYTES if on_host or on_cpu() else 16 * _BYTES
    rows = min(max(1, min(rows_of_D // outputs, most // max(size, 1))), len(block))
    return _power_of_two(rows) if on_host else -(-len(block) // -(-len(block) // rows))


def _power_of_two(n: int) -> int:
    """Return the largest power of two up to n."""
    return 1 << (n.bit_length() - 1)


def _learn_pieces(
    p: Problem, g: Regularizer, start: Found, given: Weighed, *, rows: int, n: int, loops: ModuleType
) -> tuple[Found, Array]:
    """Return what is known after n rows, in pieces of up to `rows` rows; one that does not converge is halved.

    The loops are those of Python if `loops` is NumPy, and else compiled. The second array is (1 if all is finite and 0
    otherwise, the rounding error of the precision).
    """
    padded, xp = _padded(given, rows), namespace(start.data.mean)
    integer = int if loops is np else partial(xp.asarray, dtype=np.int32)

    def more(carry: Any) -> Any:
        return carry[1] < n

    def piece(carry: Any) -> Any:
        before, first, length = carry
        length = xp.minimum(length, n - first)
        if loops is np:  # few lengths, so that a function of JAX is compiled for few
            length = _power_of_two(int(length))
        found, taken = _learn(p, g, before, _part(padded, first, length, rows), length, loops)
        longer = xp.where(taken > 0, xp.minimum(2 * taken, rows), length // 2)
        return found, integer(first + taken), integer(longer)

    found: Found = while_loop(loops, more, piece, (start, integer(0), integer(rows)))[0]
    data, rounding = found.data, found.data.precision.rounding
    finite = xp.isfinite(data.rss) & xp.isfinite(data.traces).all()
    finite = finite if loops is np else finite & are_fine(*given[:3])
    return found, xp.stack([finite.astype(rounding.dtype), rounding])


def _learn(
    p: Problem, g: Regularizer, before: Found, given: Weighed, length: Any, loops: ModuleType
) -> tuple[Found, Any]:
    """Return what is known after some of the first `length` rows given, and how many: 0 if they are too many."""
    (data, theta, learned), block = before, _block(given)
    outputs, xp = int(np.prod(block.y.shape[1:], initial=1)), namespace(data.mean)
    likelihood = p.likelihood if learned is None else learned.likelihood(p.likelihood)
    averaged = p.model.linear and not likelihood.quadratic and not likelihood.majorizes
    variance = noise_of(data, likelihood, p.gamma).variance
    spread = Spread(StructuredFactor(data.precision), variance) if averaged or likelihood.majorizes else None
    data = with_room(data, len(block) * outputs)
    if p.exact or averaged:
        at = expand(p.model, likelihood, theta, block, spread if averaged else None, descent=not averaged)
        check_expansion(at, len(block))
        taken, rows = length, _weighed(at)
        if averaged:
            total = (data.leverage(rows.D) * rows.weights).reshape(len(block), -1).sum(axis=1).cumsum()
            taken = xp.clip((total <= _MUCH).sum(), 1, length)
        block = _block(_first(given, taken))
        new = append(data, _first(rows, taken * outputs), theta)
        found = _mode(new, g, theta)
    else:
        unit = xp.where((variance > 0) & xp.isfinite(variance), variance, 0)
        new, found, good = proximal_step(data, g, p.model, likelihood, theta, block, length, unit, loops)
        taken = xp.where(good | (length == 1), length, 0)
    after = Found(settled(new), found, learned)
    if learned is not None:
        at = expand(p.model, likelihood, theta, block, spread if averaged else None, descent=not averaged)
        after = after._replace(learned=next_numbers(learned, p.likelihood, at, block, spread, None, held=True))
    if likelihood.majorizes:  # what rows add to the information is not what a step descends with
        at = expand(p.model, likelihood, found, block, spread)
        new = append(data, _weighed(at), found)
        after = after._replace(data=replace(settled(new), mean=found))
    if loops is np:
        return after if taken else Found(data, theta, learned), taken
    return select(taken > 0, lambda: after, lambda: Found(data, theta, learned)), taken


def proximal_step(
    data: Structured,
    g: Regularizer,
    model: Model,
    likelihood: Likelihood,
    theta: Array,
    block: Block,
    length: Any,
    unit: Any,
    loops: ModuleType = np,
) -> tuple[Structured, Array, Any]:
    """Minimise the loss of the first rows of a block plus 1/2 ||theta - m||_P^2 + g.

    The block is linearised at theta, and then at every point that damped steps of Gauss-Newton's method reach: once
    only, if the losses there are those that the linearisation promised. They are compared row by row, because the
    errors of some rows cancel those of others in the sum. An error of a tenth of the noise variance in each row, which
    is that of outputs wrong by about a tenth of the noise's standard deviation, is good enough.

    Parameters
    ----------
    data : Structured
        P and m, with room for the rows.
    g : Regularizer
    model, likelihood : Model, Likelihood
    theta : array of shape (d,)
        Where the first step starts.
    block : Block
        On JAX arrays, rows after the first `length` have weight 0.
    length : int
    unit : float
        The variance of the noise, of which the sum is in units; 0 if it is not known.
    loops : module
        NumPy for loops of Python, and jax.numpy for compiled ones.

    Returns
    -------
    data : Structured
        The information with these rows.
    theta : array of shape (d,)
        The minimiser.
    good : bool
        Whether it is one: False if ten steps were not enough.
    """
    xp, outputs = namespace(theta), int(np.prod(block.y.shape[1:], initial=1))
    rounding = float(np.finfo(np.dtype(theta.dtype)).eps) ** 0.5
    enough = asarray_like(_CLOSE * unit, theta) * asarray_like(length, theta)

    def beyond(theta: Array) -> Array:
        return data.quadratic(theta - data.mean) / 2 + g.value(theta)

    def losses(theta: Array) -> Array:
        return _losses(likelihood, _outputs(model, theta, block.X), block)

    def objective(theta: Array) -> Array:
        return _finite(losses(theta).sum()) + beyond(theta)

    def unfinished(carry: Any) -> Any:
        return ~carry[3] & ~carry[4] & (carry[0] < _STEPS)

    def step(carry: Any) -> Any:
        i, theta = carry[:2]
        at = expand(model, likelihood, theta, block, descent=True)
        check_expansion(at, len(block))
        new = append(data, _weighed(at), theta, bent=not model.linear)
        trial = _mode(new, g, theta)
        moved = at.D @ (trial - theta)
        change = moved * (moved / 2 - at.targets)
        change = (change if at.weights is None else at.weights * change).reshape(len(block), -1).sum(axis=1)
        before, after = beyond(theta), beyond(trial)
        left, right = _losses(likelihood, at.f.reshape(block.y.shape), block), losses(trial)
        with np.errstate(all="ignore"):
            error = _finite(xp.abs(right - left - change).sum())  # of the losses that the linearisation promised
        promised = before - after - change.sum()  # the decrease
        here, there = _finite(left.sum()) + before, _finite(right.sum()) + after
        good = (error <= xp.maximum(_GOOD * promised, enough)) | (xp.abs(promised) <= rounding * xp.abs(here))
        move, one = trial - theta, xp.ones((), trial.dtype)
        most = xp.where(good, np.inf, here)
        size, there = halved(loops, lambda size: objective(theta + size * move), one, there, most, _HALVINGS)
        trial = theta + size * move
        stuck = ~good & ~(there <= here)
        return i + 1, xp.where(stuck, theta, trial), new, good, stuck

    no = xp.zeros((), bool)
    P, more = data.precision, outputs * len(block) if data.rank else 0  # rows of zeros: all steps have one shape
    W, gram = xp.pad(P.W, ((0, more), (0, 0))), xp.pad(P.gram, ((0, more), (0, more)))
    padded = data if loops is np else replace(data, precision=PlusLowRank(P.base, W, gram))
    start = xp.zeros((), np.int32), theta, padded, no, no
    _, theta, new, good, _ = while_loop(loops, unfinished, step, start)
    return replace(new, mean=xp.where(good, new.mean, theta)), theta, good


def _weighed(at: Expansion) -> Weighed:
    return Weighed.of(at.D, at.targets, at.weights, at.counts, at.squares)


def _mode(data: Structured, g: Regularizer, start: Array) -> Array:
    """Return the minimiser of g and the information together."""
    return data.mean if g.is_zero else minimise(data.precision, data.mean, g, start).theta


def _losses(likelihood: Likelihood, f: Array, block: Block) -> Array:
    """Return the loss of each row of a block, times its weight."""
    with np.errstate(all="ignore"):
        losses = masked(block.weights, likelihood.loss(block.y, f)).reshape(len(block), -1).sum(axis=1)
        return losses if block.weights is None else block.weights * losses


def _finite(total: Array) -> Array:
    """Return a sum of losses, infinite where it is not a number."""
    xp = namespace(total)
    return xp.where(xp.isfinite(total), total, np.inf)


def _outputs(model: Model, theta: Array, X: Array) -> Array:
    """Return h for each row of a block."""
    if isinstance(model, Predictor):
        with np.errstate(all="ignore"):
            return model.value(theta, X)
    rows = padded(X, 1) if namespace(theta, X) is np else X  # of one of a few lengths, as in `Function.linearize_rows`
    return call_jax(partial(compiled(_values), model), theta, rows)[: len(X)]


def _values(model: Any, theta: Array, X: Array) -> Array:
    import jax

    return jax.vmap(model.value, in_axes=(None, 0))(theta, X)


def _block(rows: Weighed) -> Block:
    return Block(rows.D, rows.targets, rows.weights, counts=rows.counts, squares=rows.squares)


def _padded(rows: Weighed, more: int) -> Weighed:
    """Return rows with copies of the last one, on JAX arrays, so that every part of them can have one shape."""
    xp = namespace(rows.D)
    return rows if xp is np else Weighed(*(xp.concatenate([a, xp.repeat(a[-1:], more, axis=0)]) for a in rows))


def _part(rows: Weighed, start: Any, length: Any, shape: int) -> Weighed:
    """Return `length` rows; on JAX arrays they are `shape` rows, of which the last have weight 0."""
    shape = length if namespace(rows.D) is np else shape
    return _first(Weighed(*(window(a, start, shape) for a in rows)), length)


def _first(rows: Weighed, n: Any) -> Weighed:
    """Return the first n rows; on JAX arrays, whose shapes stay, the others have weight 0."""
    xp = namespace(rows.D)
    if xp is np:
        return Weighed(*(a[:n] for a in rows))
    return Weighed(*rows[:2], *(xp.where(xp.arange(len(a)) < n, a, 0) for a in rows[2:]))


_LOST = 1e-6  # the share of the precision below which nothing is said of what a structure drops
_ROUNDING = 0.1  # the rounding error, in standard errors, from which on a warning is given
_PREDICTED_BYTES = 1 << 26  # of the Jacobian of rows that are predicted at a time


@pytree
class StructuredState(PickledFields, FilterState):
    """The state of the proximal filter with a structure: the information of the rows and of the prior."""

    problem: Problem
    data: Structured
    estimate: Array  # where a nonlinear model linearises the next block
    learned: Learned | None = None  # of the likelihood's parameter; None if it has none, or nothing has been learned
    absorbed: bool = static(default=False)  # whether g is the prior, and in `data`
    time: float | None = static(default=None)  # of the last row, if rows are forgotten by time

    def __repr__(self) -> str:
        p, data = self.problem, self.data
        about = f"{data.d} parameters, rank={data.rank}, rows={brief(data.rows)}"
        return f"StructuredState({brief(p.model)}, {brief(p.regularizer)}, {about})"

    @cached_property
    def posterior(self) -> StructuredPosterior:
        """The posterior of theta, from which all quantities below are computed."""
        p, data, g = self.problem, self.data, Zero() if self.absorbed else self.problem.regularizer
        found = minimise(data.precision, data.mean, g, None if p.exact else self.estimate)
        noise = noise_of(data, self.likelihood, p.gamma, g=g, mean=found.theta)
        return StructuredPosterior(found.theta, noise, self.likelihood, lambda: data.factor(g, found.theta))

    @cached_property
    def inner(self) -> Regularizer:
        """The penalty under which rows are linearised: g if it is smooth or has bounds, and else none."""
        g = self.problem.regularizer
        if self.absorbed:
            return Zero()
        if g.smooth or self.problem.exact:
            return g
        ones = np.ones(self.data.d)
        return Zero() if np.isfinite(g.value(ones)) and np.isfinite(g.value(-ones)) else g

    @property
    def rows(self) -> Array:
        """The number of rows, as much as forgetting has left of each; repetitions count."""
        return self.data.rows

    @property
    def predicts(self) -> bool:
        """Whether predictions are claims: always, because there is a prior."""
        return True

    def var(self) -> Array:
        """Return the variances of theta, shape (d,); warn if they are known to be too small."""
        self._warn()
        return self.posterior.var()

    def cov(self) -> Array:
        """Return the covariance of theta, shape (d, d), of up to 5,000 parameters; warn as `var` does."""
        self._warn()
        return self.posterior.cov()

    def _warn(self, stacklevel: int = 3) -> None:
        """Warn, once for each state, of variances that are too small."""
        if "_warned" in self.__dict__ or is_traced(self):
            return
        self.__dict__["_warned"] = True
        lost = float(self.data.dropped)
        if lost > _LOST:
            warnings.warn(
                "The variances of single parameters, and of the mean along contrasts of correlated inputs, are too "
                f"small: of {lost:.0%} of the precision that the rows have added, the structure keeps no correlations, "
                "and without them everything seems better known than it is. Predictions that include the noise are "
                "affected far less; their std is measured by kp.run(..., calibrate=True), and conformal intervals "
                "correct it. A higher rank, or structure='dense', keeps more.",
                UnderstatedWarning,
                stacklevel=stacklevel,
            )

    @full_precision
    def predict(self, X: Array, sigma: Any = None) -> Predictive:
        """Return the predictive distribution for new rows, including the noise.

        Parameters
        ----------
        X : array of shape (n, ...)
        sigma : float or array of shape (n,), optional
            The standard deviation of the noise of the new rows, relative to that of a row of weight 1 (the default).
            With 0 the std is that of the mean alone. Do not rely on it for a network, whose misfit counts as noise, or
            where the structure drops correlations, of which a warning tells: it is too small. That of new rows, noise
            included, is what the verdict of a calibration judges.

        Returns
        -------
        Predictive
        """
        if sigma is not None and (given := concrete(sigma)) is not None and not np.any(given):
            self._warn(stacklevel=4)
        xp, mean = namespace(X), self.mean
        parts: list[tuple[Array, Array]] = []
        start, most = 0, 1 if mean.nbytes > _PREDICTED_BYTES else min(len(X), 16)
        while start < len(X) or not parts:
            f, D = self.problem.model.linearize_rows(mean, X[start : start + most])
            parts.append((f, self.posterior.output_variance(f, D)))
            start += most
            most = max(1, _PREDICTED_BYTES // max(D[:1].nbytes, 1))  # now that the number of outputs is known
            most = 1 << (most.bit_length() - 1)  # few lengths, so that few are compiled
        f, leverage = parts[0] if len(parts) == 1 else tuple(xp.concatenate(a) for a in zip(*parts, strict=True))
        return self.posterior.predictive(f, leverage, sigma)


def structured_filter(problem: Problem, structure: Structure) -> Algorithm:
    """Return the filter of a problem with a structure; see `kalprox.proximal_filter`."""
    return Algorithm(
        init=Partial(_init, (problem, structure)),
        step=Partial(_step, (problem,)),
        predict=Partial(StructuredState.predict, ()),
        by_block=True,
    )


def _init(problem: Problem, structure: Structure, mean0: Any, v0: Any = None) -> StructuredState:
    mean = start_mean(mean0)
    xp, d = namespace(mean), len(mean)
    if v0 is None:
        ridge = ridge_of(problem.regularizer, d)
        if ridge is None:
            raise ValueError(
                f"structure={structure!r} needs a prior: give v0, the prior variance of the parameters, as a number or "
                "with one entry per parameter, or a Ridge regulariser with a positive weight."
            )
        data = structure.start(xp.zeros_like(mean), asarray_like(ridge, mean))
        return StructuredState(problem, data, mean, absorbed=True)
    v = np.asarray(v0) if concrete(v0) is not None else v0
    if not hasattr(v, "shape") or v.shape not in ((), (d,)):
        raise ValueError(
            f"v0 must be a number or have shape ({d},) with structure={structure!r}, whose prior is diagonal; "
            f"got {brief(v0)}."
        )
    check_positive("v0", v)
    gamma = 1.0 if problem.gamma is None else problem.gamma / problem.likelihood.unit
    return StructuredState(problem, structure.start(mean, asarray_like(1 / (v * gamma), mean)), mean)


@full_precision
def _step(
    problem: Problem,
    state: StructuredState,
    X: Array,
    y: Array,
    weights: Array | None = None,
    times: Array | None = None,
) -> StructuredState:
    state = replace(state, problem=problem)
    compiles = learns_compiled(problem, state.inner, state.data, X, y)
    block = Block(X, y, checked_rows(X, y, weights, look=not compiles))
    problem.likelihood.check(y, None if weights is None else block.weights)
    known = np.ones(len(y)) if weights is None else concrete(weights)
    if known is not None and not known.any():
        return state  # rows of weight 0 are no rows
    if problem.by_time:
        block = replace(block, times=in_order(times, state.time, np.asarray(block.weights)))
    block, left = faded_block(block, problem.forget, problem.weight_kind, state.time)
    data = state.data if left is None else state.data.forget(left)
    time = state.time if block.times is None else float(block.times[-1])
    found, rounding = learn_pieces(problem, state.inner, Found(data, state.estimate, state.learned), block, left)
    _check_digits(rounding)
    return replace(state, time=time, **found._asdict())


def _check_digits(rounding: Array) -> None:
    """Warn where rounding has reached what the estimate is known to."""
    if is_traced(rounding) or rounding.dtype != np.float32 or (lost := float(rounding)) < _ROUNDING:
        return
    warnings.warn(
        f"float32 has too few digits for what the rows say beside the prior: the error of the estimate by rounding is "
        f"about {min(lost, 1.0):.1g} standard errors or more. Use float64, or a smaller v0.",
        RuntimeWarning,
        stacklevel=4,
    )
