"""The proximal filter: fold the rows as they arrive, and compute the prox of g in the metric of the data on demand.

The objective is

    sum_k w_k loss(y_k, h_k(theta)) + g(theta)                      (1)

For linear h the estimate is always the exact minimiser of (1) over the rows seen so far, for any order and any blocks;
g enters the mean once and the covariance once. For nonlinear h each block is linearised at the belief before it. The
first rows are held in a warm-up, and refined to convergence, until they determine theta well enough for later blocks
to be linearised once. Later rows that extrapolate are held too, and refined with every block until they no longer do.
"""

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from kalprox.algorithms.base import Algorithm, Problem, check_expansion, checked_rows, start_covariance, start_mean
from kalprox.algorithms.state import (
    MAX_CHANGE,
    MAX_LEVERAGE,
    ROBUST_ROWS,
    TOL,
    ProximalState,
    WarmupCutShort,
    bytes_of,
    counted,
    far_rows,
    first_numbers,
    leverages,
    next_numbers,
    parameter_matters,
    refine_held,
    with_block,
    with_rows,
)
from kalprox.base.arrays import Array, Partial, is_traced, masked, namespace, tree_map
from kalprox.base.checks import check_positive, concrete
from kalprox.base.control import full_precision
from kalprox.forgetting import Forgetting
from kalprox.information import Information, merge
from kalprox.information.linearized import Expansion, expand, output_variances
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.names import likelihood_of
from kalprox.likelihoods.robust import Robust
from kalprox.models import Model
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Regularizer
from kalprox.sources import Block
from kalprox.sources.weighting import check_weight_kind, faded_block, in_order
from kalprox.structures import Dense, structure_of


def proximal_filter(
    model: Model,
    regularizer: Regularizer,
    *,
    gamma: Any = 1.0,
    forget: Any = 1.0,
    warmup: int = Problem.warmup,
    likelihood: Likelihood | None = None,
    weight_kind: str = "frequency",
    structure: Any = "dense",
) -> Algorithm:
    """The proximal filter, which takes a proximal step on both the loss of a block and g; the default of the library.

    It minimises sum_k w_k loss(y_k, h_k(theta)) + g(theta) over the rows seen so far. For linear h and the Gaussian
    likelihood the estimate is always the exact minimiser; a block of b rows costs O(b d^2), and reading the estimate
    O(d^3). For nonlinear h the filter is one pass of Gauss-Newton, which ends close to the minimiser; `refine` makes
    more passes and converges to it.

    Parameters
    ----------
    model : Model
        The model h, one of `kalprox.models`.
    regularizer : Regularizer
        The penalty g, one of `kalprox.regularizers`, smooth or not.
    gamma : float or None
        The noise precision. If None, the noise variance is learned. The objective does not depend on gamma.
    forget : float or kalprox.forgetting.ByTime
        The forgetting factor, in (0, 1]: every new row multiplies the weights of all earlier rows by it. 1 means no
        forgetting. With `ByTime`, `step` takes the times of the rows.
    warmup : int
        The memory limit of the warm-up, in bytes. A nonlinear model holds its first rows, and refines them to
        convergence, until no row has a leverage of 0.1 or more; it gives a `WarmupCutShort` warning if the limit is
        reached first. With 0 there is no warm-up, and the first block is linearised at mean0.
    likelihood : Likelihood, optional
        One of `kalprox.likelihoods`. The default is Gaussian.
    weight_kind : {"frequency", "precision"}
        What the weights of the rows mean: how often each row counts, or its 1 / sigma^2 up to a common factor. The
        degrees of freedom of precision weights are counted from the number of rows.
    structure : {"dense", "diagonal"} or one of `kalprox.structures`
        What is kept of the precision matrix: for more than some thousands of parameters, `LowRank(20)`, `Diagonal()`,
        `Blocks(sizes)` or `LastLayer(last)`. These need a prior, v0 or a `Ridge` g, and have no warm-up: a block that
        moves the estimate far is learned in smaller pieces, each linearised anew. Forgetting fades the rows, and not
        the prior. The mean and predictions are close to the exact ones; variances of single parameters are too small,
        and `var` warns of it. See `kalprox.structures`.

    Returns
    -------
    Algorithm
        `init(mean0, v0=None)` returns the first state. v0 is the prior covariance (in units of the noise variance if
        gamma is None, or if the likelihood learns its scale), or None for no prior; mean0 is then only the starting
        point of a nonlinear model. The warm-up of a model with a saturating link can diverge without a weak prior or a
        g that bounds theta.

        `step(state, X, y, weights=None, times=None)` returns the state after a block of rows, X of shape (b, ...) and y
        of shape (b,), of any size. A block with a row that is not finite raises an error that names the row; none of
        its rows is learned.

        `predict(state, X)` returns the predictive distribution of new rows.

    Examples
    --------
    >>> import kalprox as kp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 3))
    >>> y = X @ np.array([2.0, 0.0, -1.0]) + 0.5 * rng.normal(size=500)
    >>> alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.L1(30.0), gamma=None)
    >>> state = alg.init(np.zeros(3), None)
    >>> for start in range(0, 500, 50):
    ...     state = alg.step(state, X[start : start + 50], y[start : start + 50])
    >>> state.mean.round(2), np.sqrt(state.var()).round(2)
    (array([ 1.96,  0.  , -0.91]), array([0.02, 0.  , 0.02]))
    """
    if gamma is not None:
        check_positive("gamma", gamma)
    if isinstance(forget, Forgetting) and not forget.fades:
        raise ValueError(f"forget must be a number in (0, 1], or kalprox.forgetting.ByTime; got {forget!r}.")
    check_positive("forget", forget)
    number = concrete(forget)
    if number is not None and (number > 1).any():
        raise ValueError(f"forget must be at most 1, where 1 means no forgetting; got {forget!r}.")
    if warmup < 0:
        raise ValueError(f"warmup must be a number of bytes >= 0; got {warmup!r}.")
    check_weight_kind(weight_kind)
    likelihood = likelihood_of(likelihood, weight_kind=weight_kind)
    problem = Problem(model, likelihood, regularizer, gamma, forget, warmup, weight_kind)
    structure = structure_of(structure)
    if not isinstance(structure, Dense):
        from kalprox.large.filter import structured_filter

        return structured_filter(problem, structure)
    init, step = (Partial(function, (problem,)) for function in (_init, _step))
    return Algorithm(init, step, Partial(ProximalState.predict, ()), by_block=True)


def _init(problem: Problem, mean0: Any, v0: Any = None) -> ProximalState:
    mean = start_mean(mean0)
    state, xp = ProximalState._start(problem, mean), namespace(mean)
    if v0 is None:
        return state
    V = start_covariance(v0, mean).dense()
    # With V = L L' the prior is ||L^-1 (theta - mean)||^2: L^-1 / sqrt(gamma) is its root in units of the noise.
    root = xp.linalg.inv(xp.linalg.cholesky(V))
    gamma = 1.0 if problem.gamma is None else xp.asarray(problem.gamma / problem.likelihood.unit, mean.dtype)
    return replace(state, prior=Information.from_prior(mean, root / gamma**0.5))


def _step(problem: Problem, state: ProximalState, *rows: Array, **options: Array) -> ProximalState:
    return learn(replace(state, problem=problem), *rows, **options)


@full_precision
def learn(
    state: ProximalState, X: Array, y: Array, weights: Array | None = None, times: Array | None = None
) -> ProximalState:
    """Return the state after a block of rows; see `proximal_filter`."""
    problem, block = state.problem, Block(X, y, checked_rows(X, y, weights))
    problem.likelihood.check(y, block.weights)  # a warm-up would find it later, among other rows
    if (known := concrete(block.weights)) is not None and not known.any():
        return state  # rows of weight 0 are no rows
    if problem.by_time:
        block = replace(block, times=in_order(times, state.time, np.asarray(block.weights)))
    state = _learned(state, block) if state.held is None else _held(state, block)
    return state if block.times is None else replace(state, time=float(block.times[-1]))


def later(state: ProximalState, time: float) -> ProximalState:
    """Return what is known at a time after that of the last row: the information of all rows has faded until then."""
    forget, found, now = state.problem.forget, state.linearization, state.refined
    assert state.time is not None and isinstance(found.data, Information)
    left = float(forget.left(state.time, time))
    now = replace(now, data=found.data.forget(left), estimate=found.mean, held=None, extrapolating=None)
    skew = None if now.skew is None else left * now.skew
    return _estimated(replace(now, skew=skew, time=time, elapsed=left))


def _learned(state: ProximalState, block: Block) -> ProximalState:
    """Fold a block; after the warm-up, hold those of its rows that extrapolate, see `_estimated`."""
    problem = state.problem
    block, left = faded_block(block, problem.forget, problem.weight_kind, state.time)
    before = state.data if left is None else state.data.forget(left)
    state = state if state.skew is None or left is None else replace(state, skew=left * state.skew)
    if problem.exact:
        data = before.fold(block.X, block.y, block.weights, block.counts, block.squares)
        return replace(state, data=_if_finite(data, state.data))
    V = _finite_cov(state)
    if problem.likelihood.parameter is not None and state.learned is None:
        state = replace(state, learned=first_numbers(problem.model, problem.likelihood, state.estimate, block))
    theta = state.estimate if V is None else state.linearization.expected
    at = expand(problem.model, state.likelihood, theta, block, V, descent=V is None)
    check_expansion(at, len(block))
    if state.skew is not None and V is not None:  # what follows is about steps from the estimate
        at = at._replace(targets=at.targets + at.D @ (theta - state.estimate))
    learned = state.learned
    if learned is not None and (V is not None or is_traced(at.D, state)):  # else the predictions say nothing
        learned = next_numbers(learned, problem.likelihood, at, block, V, left, held=state.held is not None)
    tol, far = TOL, np.zeros(len(block), bool)
    if problem.warmup > 0 and state.held is None and not is_traced(at.D, state):
        leverage, _, far = leverages(problem.model, state.linearization, block)
        tol = _precision(state.linearization)
        far = far if leverage.sum() < _MUCH else np.ones(len(block), bool)
    rows = state.extrapolating
    if rows is not None and left is not None:
        rows = replace(rows, weights=rows.weights * left, counts=rows.counts * left, squares=rows.squares * left**2)
    return _taken(replace(state, extrapolating=rows, learned=learned), before, block, at, far, tol)


def prediction_errors(state: ProximalState, block: Block) -> Array:
    """Return the errors of a block in standard deviations of its predictions, from which a robust likelihood learns.

    Zero for rows of weight 0, and for all rows while a direction is undetermined, since nothing is learned then.

    Parameters
    ----------
    state : ProximalState
        After its warm-up, of a robust likelihood.
    block : Block

    Returns
    -------
    array of shape (b,)
    """
    V, likelihood = _finite_cov(state), state.likelihood
    if V is None:
        return np.zeros(len(block))
    at = expand(state.problem.model, likelihood, state.estimate, block, V)
    assert isinstance(likelihood, Robust)
    return np.asarray(likelihood.standardised(masked(block.weights, block.y), at.f, output_variances(at.D, V)))


def take_matched(state: ProximalState, block: Block, matched: Array) -> ProximalState:
    """Return the state after rows that a filter has learned one by one, each by moment matching under the belief then.

    Parameters
    ----------
    state : ProximalState
        Of a linear model with a likelihood without a noise variance, elementwise or of several classes, after its
        warm-up, and without forgetting.
    block : Block
        The rows, with weights.
    matched : array of shape (b, 2 m (m + 1)), for m outputs
        The outputs of the model before each row, their covariances, and the targets and the rows of the least-squares
        problem as which it was learned: what `learn` of the filters in `kalprox.learning.matched` returns.
    """
    p, weights, y = state.problem, block.weights, block.y.reshape(len(block), -1)
    assert weights is not None and state.held is None
    b, m = y.shape
    f, S, targets, rows = np.split(matched, np.cumsum([m, m * m, m]), axis=1)
    S, rows = S.reshape(b, m, m), rows.reshape(b, m, m)
    turned = p.likelihood.contrasts(f, np.swapaxes(p.likelihood.contrasts(f, S), -1, -2))
    variance = np.maximum(np.diagonal(turned, axis1=-2, axis2=-1), 0)  # of the contrasts
    far = far_rows(p.likelihood, y, f, variance, weights[:, None], float(state.data.rows)).any(axis=1)
    far &= p.warmup > 0
    now, J = p.model.linearize_rows(state.estimate, block.X)
    D = (rows @ J.reshape(b, m, -1)).reshape(b * m, -1)
    targets = targets + np.einsum("bij,bj->bi", rows, f - now.reshape(b, m))
    loss, counts = weights @ p.likelihood.loss(y, f).sum(axis=1), np.repeat(weights, m)
    at = Expansion(f.ravel(), D, targets.ravel(), counts, loss, counts, None)
    return _taken(state, state.data, block, at, far, _precision(state.posterior))


def _taken(
    state: ProximalState, before: Information, block: Block, at: Expansion, far: Array, tol: float
) -> ProximalState:
    """Fold a block into `before`, except its rows that are `far`: they are held, and refined with those held before."""
    near, extrapolating = None, state.extrapolating
    if far.any():
        new = counted(block).at(far)
        extrapolating = new if extrapolating is None else Block.joined([extrapolating, new])
        near = np.repeat(~far, len(at.f) // len(block))
    data = before if far.all() else with_rows(before, at, state.estimate, near)
    return _estimated(replace(state, data=_if_finite(data, state.data), extrapolating=extrapolating), tol)


def with_prior(state: ProximalState, prior: Information) -> ProximalState:
    """Return the state with another prior, and the estimate with it, unless a warm-up is yet to find one."""
    state = replace(state, prior=prior)
    return _estimated(state) if state.held is None else state


def _estimated(state: ProximalState, tol: float = TOL) -> ProximalState:
    """Return the state with the estimate of its new information. The posterior found on the way is the state's own.

    Rows that extrapolate are refined, to a precision of `tol`, with the information of all others as the prior, and
    those that no longer do are folded. Such a row is linearised at the estimate found, at which the refinement
    linearised it too, so that folding does not move the estimate.
    """
    p, rows = state.problem, state.extrapolating
    if rows is None:
        found = InformationPosterior(state.data, state.inner, start=state.estimate, **state.options)
        state = replace(state, estimate=found.mean)
        state.__dict__["linearization"] = found
        return state
    prior = merge(state.data, state.prior)
    fit = refine_held(p.model, state.likelihood, state.inner, rows, state.estimate, prior, tol)
    state = replace(state, estimate=fit.mean)
    leverage, _, keep = leverages(p.model, state.linearization, rows)
    most = min(p.warmup, _HOLD) * len(keep) // bytes_of(rows)
    if keep.sum() > most:  # keep those of the largest leverage
        last = np.argsort(np.where(keep, leverage, -1.0), kind="stable")[: len(keep) - most]
        if (keep[last] & (leverage[last] >= MAX_LEVERAGE)).any():
            state = replace(state, cut_short=True)
            warnings.warn(
                f"More than {most} rows extrapolate, as many as {min(p.warmup, _HOLD)} bytes hold; the others are "
                "linearised for good: the estimate may be wrong and over-confident. Increase warmup, or use refine.",
                WarmupCutShort,
                stacklevel=4,
            )
        keep[last] = False
    return _split(state, state.data, rows, keep)


def _split(state: ProximalState, data: Information, rows: Block, keep: Array) -> ProximalState:
    """Return the state with `data` and rows linearised at its estimate, but for those to keep as they came."""
    data = data if keep.all() else with_block(state, data, rows.at(~keep))
    return replace(state, data=data, extrapolating=rows.at(keep) if keep.any() else None)


def linearised_at_check(state: ProximalState) -> ProximalState:
    """Return the state with the rows of its warm-up linearised where their last check ended, and held no longer."""
    assert state.held is not None
    rows, start = state.held_block, state.held.start
    state = replace(state, estimate=start, held=None, extrapolating=None)
    return replace(state, data=with_block(state, _zero(state), rows))


def _precision(posterior: InformationPosterior) -> float:
    """Return the precision to which to refine, relative to theta, in units of the column norms of the Jacobian."""
    size = float(np.linalg.norm(np.linalg.norm(np.asarray(posterior.data.R), axis=0) * np.asarray(posterior.mean)))
    found = _ROUGHLY * float(posterior.noise.variance) ** 0.5 / size if size > 0 else np.nan
    return float(np.clip(found, TOL, TOL**0.5)) if np.isfinite(found) else TOL


def _zero(state: ProximalState) -> Information:
    return Information.zero(state.data.d, dtype=state.data.T.dtype, xp=namespace(state.data.T))


_HOLD = 1 << 23  # bytes of rows that extrapolate: they are refined with every block
_ROUGHLY = 0.01  # standard errors that the refinement may leave over: the next block repeats it
_ALONE = 0.5  # the leverage of a row that has as much to say about some direction as all the others together
_MANY = 100  # rows for each coefficient, of which a few may have a large leverage
_VERY_MANY = 200  # the same where the loss is not convex: there may be another minimum
_RARE = 0.01  # the share of them that may have a large leverage
_FEW = 0.3  # the share of the rows of a warm-up that may be held on after its end
FAR = 0.5  # by which the outputs of a warm-up may move between two checks: their odds or rates by a factor of 1.6
_MUCH = 1.0  # if the leverages of a block add up to more, it says as much as all rows before it about some direction


def _finite_cov(state: ProximalState) -> Array | None:
    """Return the covariance, for linearising h under the belief; None if a direction is undetermined.

    It is in units of the loss: counts with a variance that is a multiple of the mean are learned as Poisson counts are,
    and only the covariance of the estimate is multiplied.
    """
    found = state.linearization
    V = found.cov()
    if is_traced(V) or not np.isfinite(V).all():
        return None
    likelihood, variance = state.problem.likelihood, found.noise.variance
    if likelihood.location or not likelihood.learns_noise:
        return V
    return V / variance if variance > 0 else None


def origin(state: ProximalState) -> Array | None:
    """Return the estimate about which the rows of classes and counts were linearised at the last check.

    None if the expansion of the loss is valid everywhere, or if no rows depend on it any more.
    """
    held, model, loss = state.held, state.problem.model, state.problem.likelihood
    if not model.linear or loss.quadratic or loss.location:
        return None
    if state.extrapolating is None if held is None else np.array_equal(held.start, held.origin):
        return None
    return state.estimate if held is None else held.start


def _if_finite(new: Information, old: Information) -> Information:
    """Return `new`; under jit, where no exception can be raised, return `old` if `new` is not finite."""
    if not is_traced(new):
        return new
    xp = namespace(new.T)
    good = xp.isfinite(new.T).all()
    kept: Information = tree_map(lambda a, b: xp.where(good, a, b), new, old)
    return kept


@np.errstate(all="ignore")  # of rows that do not determine theta, some estimates overflow; the check rejects them
def _held(state: ProximalState, block: Block) -> ProximalState:
    """Hold one more block, and end the warm-up if a check is due and the rows determine theta well.

    The rows are also checked if the block moves the estimate so far that the linearisation of the rows before it says
    nothing there, as the first rows of a class do that had been declared, and had not come. The warm-up goes on then.
    """
    if is_traced(block.X, block.y, block.weights, state):
        raise TypeError("The warm-up of a nonlinear model depends on values and cannot be traced: step outside jit.")
    assert state.held is not None
    problem, held, model = state.problem, state.held.plus(block), state.problem.model
    likelihood = problem.likelihood
    if not held.is_due(problem.warmup):
        if state.is_fresh:
            return replace(state, held=held)
        with suppress(ValueError):  # where h is not finite at the last estimate, the next check has the rows
            state = _learned(state, block)
        start = origin(state)
        if start is None:
            return replace(state, held=held)
        now, then = (model.linearize_rows(theta, block.X)[0] for theta in (state.estimate, start))
        if not np.abs(now - then).max() > FAR:
            return replace(state, held=held)
        held = held.to_check()
    state = replace(state, held=held, data=_zero(state), extrapolating=None)
    fit, rows = state.fit, counted(state.held_block)
    found, bent, far = leverages(model, state.linearization, rows)
    leverage = float(found.max())
    state = replace(state.refined, held=held)
    convex = model.linear and likelihood.log_concave  # there is no other minimum
    large = found >= MAX_LEVERAGE
    alone, many = leverage >= _ALONE, _MANY
    if not convex:  # with a loss that bounds the slope of a row, the few may be rows that lie
        alone, many = bent[large].any() or not likelihood.log_concave, _VERY_MANY
    few = not alone and large.mean() <= _RARE and held.rows >= many * state.data.d
    settled = (
        (held.next_look > 0 or held.bytes >= problem.warmup)  # a check before its time does not end it
        and fit.converged
        and (few or leverage < MAX_LEVERAGE)
        and far.mean() <= _FEW
        and bytes_of(rows) * far.mean() <= _HOLD  # what does not fit would be linearised at once, for good
        and parameter_matters(model, likelihood, fit, rows) <= MAX_CHANGE
    )
    if settled and (held.rows >= ROBUST_ROWS or not likelihood.majorizes):
        state = replace(state, held=None)
        return _split(state, _zero(state), rows, far) if far.any() else state
    if held.bytes < problem.warmup:
        return replace(state, held=held.later(fit, leverage, settled))
    if settled:
        return replace(state, held=None)
    warnings.warn(
        f"The warm-up was cut short at {held.rows} rows by its limit of {problem.warmup} bytes, with a leverage of "
        f"{leverage:.2g} (it should be below {MAX_LEVERAGE}) and {far.sum()} rows that one linearisation does not "
        "describe: the estimate may be wrong and over-confident. Increase warmup, give a prior (v0), or use refine.",
        WarmupCutShort,
        stacklevel=4,
    )
    return replace(state, held=None, cut_short=True)
