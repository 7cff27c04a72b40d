"""The weak prior with which a stream of a nonlinear model, or of another likelihood than the Gaussian, begins."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import special
from scipy.linalg import hadamard

from kalprox.algorithms.base import Problem
from kalprox.algorithms.proximal_filter import with_prior
from kalprox.algorithms.state import ProximalState
from kalprox.base.arrays import Array
from kalprox.base.tree import leaf, state
from kalprox.information import Information, merge
from kalprox.learning.design import Design, Moments
from kalprox.learning.merging import in_coordinates
from kalprox.learning.settings import Settings
from kalprox.learning.targets import Seen
from kalprox.likelihoods import Likelihood
from kalprox.models import LINKS
from kalprox.regularizers import Regularizer
from kalprox.solvers.terms import diagonal_curvature
from kalprox.sources import Block

_WEAK = 10.0  # the width of the prior, in units of the likely size of the predictor
_FAR = 8.0  # standard deviations of a column from its mean, beyond which a value says little about the others
_STEPS, _FARTHEST, _CLOSE = 100, 2.0, 1e-6  # of the search for the first intercept
_CONSTANT = 1e-10  # a column with a smaller standard deviation, relative to its mean, is constant up to rounding


@state
class Columns:
    """The middle and the spread of each column, shape (d,): mean and standard deviation, unless values lie far away.

    A column that has been constant so far has the spread of its size.
    """

    middle: Array = leaf("d")
    spread: Array = leaf("d", sign="nonnegative", pad=1.0)

    @classmethod
    def of(cls, X: Array, moments: Moments, design: Design) -> "Columns":
        """Return those of rows, given their moments.

        If a few values are far from all others, the middle is the median, and the spread the size of the usual
        deviations from it.
        """
        square, constant = _squares(moments, design)
        mean, std = moments.mean, np.sqrt(square)
        if not (np.abs(X - mean).max(axis=0) > _FAR * std).any():
            return cls(mean, std)
        median = np.median(X, axis=0)
        away = np.abs(X - median)
        usual = np.median(away, axis=0) / special.ndtri(0.75)
        far = (away.max(axis=0) > _FAR * std) & (usual > 0) & ~constant
        return cls(np.where(far, median, mean), np.where(far, np.minimum(usual, std), std))

    @classmethod
    def after(cls, known: "Columns | None", before: Moments | None, now: Moments, design: Design) -> "Columns":
        """Return those after the warm-up, given those known and the moments before and after more rows.

        The middle stays, and the spread does not become larger: a value far away makes the prior no stronger. Those of
        a column that was constant before are new.
        """
        std = np.sqrt(_squares(now, design)[0])
        if known is None or before is None:
            return cls(now.mean, std)
        constant = _squares(before, design)[1]
        middle = np.where(constant, now.mean, known.middle)
        return cls(middle, np.where(constant, std, np.minimum(std, known.spread)))


def coef_regularizer(settings: Settings, design: Design) -> Regularizer:
    return design.regularizer(settings.penalty.regularizer(settings.alpha))


def problem_of(settings: Settings, design: Design) -> Problem:
    """Return what a proximal filter solves in the coordinates of a design."""
    model, g = design.model(settings.model(design.outputs)), coef_regularizer(settings, design)
    forget = settings.forgetting if settings.by_time else settings.forgetting.per_row
    return Problem(model, settings.likelihood, g, settings.gamma, forget, weight_kind=settings.weight_kind)


def first_theta(settings: Settings, design: Design) -> Array:
    """Return where the search for theta starts: as given, or at zero, or within bounds that exclude zero."""
    if settings.start is None:
        theta, g = np.zeros(design.size), coef_regularizer(settings, design)
        return theta if np.isfinite(g.value(theta)) else np.asarray(g.prox(theta))  # type: ignore[attr-defined]
    size, jacobian = design.size, design.jacobian()
    try:
        start = np.asarray(settings.start, float)
    except (TypeError, ValueError):
        raise ValueError(f"start must be a vector of numbers; got {settings.start!r}.") from None
    if jacobian is None:
        if start.ndim != 1 or start.size == 0 or not np.isfinite(start).all():
            raise ValueError(
                "start must be a vector of finite numbers, one for each entry of theta that the function uses; got "
                f"{settings.start!r}."
            )
        return start
    if start.shape != (size,):
        raise ValueError(
            f"start must have one entry per coefficient, the intercept first: expected {(size,)}, got {start.shape}."
        )
    return np.linalg.solve(jacobian, start)


def first_intercept(likelihood: Likelihood, blocks: list[Block], weak: float) -> float:
    """Return the intercept that fits some rows best, given a weak prior of this precision about 0; 0 without rows.

    For a likelihood with outliers it is the median of the targets, whose scale is not known yet.
    """
    parts = [(b.y, b.weighted().weights, 0 * b.y if b.offset is None else b.offset) for b in blocks]
    y, w, offset = map(np.concatenate, zip(*parts, strict=True))
    if not len(y):
        return 0.0
    if likelihood.quadratic:
        return float(w @ (y - offset) / w.sum())
    if likelihood.location:
        order = np.argsort(y - offset)
        return float((y - offset)[order][np.searchsorted(w[order].cumsum(), w.sum() / 2)])
    likelihood, found = likelihood.first or likelihood, 0.0
    for _ in range(_STEPS):
        slope, curvature = likelihood.expand(y, found + offset)
        step = -(w @ slope + weak * found) / (w @ curvature + weak)
        found += float(np.clip(step, -_FARTHEST, _FARTHEST))  # Newton's method overshoots from far below
        if abs(step) < _CLOSE:
            break
    return found


def _squares(X: Moments, design: Design) -> tuple[Array, Array]:
    """Return the mean square of each column, about its mean if there is an intercept, and which are constant.

    That of a constant column is the square of its size.
    """
    square, mean = X.squares / X.rows, X.mean**2
    square = square if design.intercept else square + mean
    constant = square <= _CONSTANT**2 * mean
    return np.where(constant, np.where(mean > 0, mean, 1.0), square), constant


def weak_prior(settings: Settings, design: Design, seen: Seen, columns: Columns, noise_var: float) -> Information:
    """Return a weak prior, which adds (theta_j spread_j / s)^2 v / 200 to the objective, in units of the noise.

    Here s is the likely size of the linear predictor: a coefficient that moves the predictor by 10 s costs as much as
    one residual of the size sqrt(v); so does an intercept of 10 s at the middle of X. Here v is the variance of y
    during the warm-up, and then the noise variance, which may be much smaller, so that the prior stays weak; for other
    likelihoods than the Gaussian, whose losses have units of their own, it is 1 at most. The prior keeps the warm-up of
    a stream from diverging; `fit` does not use it.
    """
    A = weak_root(settings, design, seen, columns, noise_var)
    prior, sums = Information.from_prior(first_theta(settings, design), A), sums_to_zero(settings, design, seen.X)
    return prior if sums is None else merge(prior, sums)


def weak_root(settings: Settings, design: Design, seen: Seen, columns: Columns, noise_var: float) -> Array:
    """Return the matrix A of shape (p, p) with which `weak_prior` adds ||A (theta - theta_0)||^2 / 2."""
    y = seen.y.moments
    size = settings.likelihood.likely_size(seen.y.high)
    if settings.likelihood.location:
        size = LINKS[settings.link].scale(np.array([seen.y.low, seen.y.high]))
    loss = float(y.squares[0] / y.rows) or float(y.mean[0] ** 2) or 1.0
    loss = min(loss if settings.likelihood.location else 1.0, noise_var)
    A = np.diag(np.sqrt(loss) / (_WEAK * size) * columns.spread)
    if design.intercept:
        at_middle = np.append(1.0, (columns.middle - design.center) / design.scale)
        A = np.vstack([np.sqrt(loss) / (_WEAK * size) * at_middle, np.hstack([np.zeros((len(A), 1)), A])])
    return np.kron(A, np.eye(design.outputs or 1))


def noise_variance(state: ProximalState) -> float:
    """Return the noise variance; infinite if it is not known, and in a warm-up."""
    variance = np.inf if state.held is not None else float(state.posterior.noise.variance)
    return variance if variance > 0 else np.inf


def with_weak_prior(learned: Any, noise_var: float | None = None) -> Any:
    """Return a `Linearised` with the weak prior of all rows seen, if it has one; by default with its noise variance."""
    if learned.seen is None or learned.columns is None:
        return learned
    noise_var = noise_variance(learned.proximal) if noise_var is None else noise_var
    prior = weak_prior(learned.settings, learned.fixed, learned.seen, learned.columns, noise_var)
    return replace(learned, proximal=with_prior(learned.proximal, prior))


def weak_precisions(settings: Settings, design: Design, X: Moments, largest: float) -> Array:
    """Return the precisions of a weak prior without correlations, shape (p,), for a model of one output.

    They are those of `weak_prior` for a likelihood whose output is not in the units of y, given the moments of the
    first rows and their largest target.
    """
    spread = _squares(X, design)[0] / design.scale**2  # type: ignore[operator]
    likely = _WEAK * settings.likelihood.likely_size(largest)
    return np.append(np.ones(design.first), spread) / likely**2


def sums_to_zero(settings: Settings, design: Design, X: Moments, *, all_inputs: bool = False) -> Information | None:
    """Return a prior that keeps sums over the outputs at zero; None for a single output.

    The probabilities of classes do not change if the same number is added to the intercepts of all classes, nor if it
    is added to their coefficients of one input. A ridge, which is the same for all classes, decides for the number
    at which the coefficients add up to zero; other penalties decide otherwise, but not for the intercepts. The prior
    weighs as much as all rows, whatever their number; `LinearisedBelief.contrasts` leaves it out of the standard
    errors.
    """
    if design.outputs is None:
        return None
    square = X.squares + (0.0 if design.intercept else X.rows * X.mean**2)
    strength = np.where(square > 0, square, max(X.rows, 1.0)) / design.scale**2  # type: ignore[operator]
    if design.intercept:
        strength = np.append(max(X.rows, 1.0), strength)
    if not all_inputs and diagonal_curvature(coef_regularizer(settings, design), design.size) is None:
        strength[design.first :] = 0.0
    A = np.kron(np.diag(np.sqrt(strength)), np.ones((1, design.outputs)))
    return Information.from_prior(np.zeros(design.size), A)


def with_class(learned: Any, settings: Settings) -> Any:
    """Return the state about the rows so far, and about one more class, which comes after the others.

    What the rows say about the classes known so far is kept. O((d m)^3).

    Parameters
    ----------
    learned : Linearised
        Of a stream of two classes or more.
    settings : Settings
        Those of several classes.
    """
    old, seen = learned.proximal, learned.seen
    assert seen is not None and learned.fixed.center is not None
    before = learned.fixed.outputs or 2
    design = replace(learned.fixed, outputs=before + 1)
    inputs, outputs = design.size // (before + 1), _old_outputs(before)
    J, back = with_class_from(learned.fixed), np.linalg.pinv(outputs)

    def longer(theta: Array) -> Array:
        return (np.asarray(theta).reshape(inputs, -1) @ back.T).ravel()

    data, estimate = in_coordinates(old.data, J, (before + 1) / (learned.fixed.outputs or 1)), longer(old.estimate)
    held, far = old.held, None if old.extrapolating is None else _with_targets(old.extrapolating)
    if held is not None:  # as before their first check
        held = held.moved(_with_targets, longer).anew()
        data = Information.zero(len(held.start))
    else:
        without = _rows_without(design, seen.X, float(data.rows) / (before + 1))
        far = without if far is None else Block.joined([far, without])
    problem = problem_of(settings, design)
    seen = replace(seen, y=replace(seen.y, columns=float(before + 1)))
    skew = None if old.skew is None else J.T @ old.skew
    state = replace(old, problem=problem, data=data, estimate=estimate, held=held, extrapolating=far, skew=skew)
    after = replace(learned, settings=settings, proximal=state, fixed=design, seen=seen)
    return with_weak_prior(after, 1.0)


def with_class_from(design: Design) -> Array:
    """Return the matrix from the parameters with one more class to those of this design."""
    outputs = _old_outputs(design.outputs or 2)
    return np.kron(np.eye(design.size // (design.outputs or 1)), outputs)


def _old_outputs(before: int) -> Array:
    """Return the matrix from the outputs of one more class; that of two is the difference of the second and first."""
    return np.array([[-1.0, 1.0, 0.0]]) if before == 2 else np.eye(before, before + 1)


def _with_targets(rows: Block) -> Block:
    """Return rows with targets of one more class, which none of them has."""
    y = rows.y
    return replace(rows, y=np.column_stack([1 - y, y, 0 * y]) if y.ndim == 1 else np.pad(y, ((0, 0), (0, 1))))


def _rows_without(design: Design, inputs: Moments, n: float) -> Block:
    """Return rows that stand for n rows without the last class, and one row that has it; none of them counts."""
    d, m = len(inputs.mean), design.outputs or 1
    size = 1 << d.bit_length()  # the smallest power of two above d
    points = inputs.mean + inputs.sd * hadamard(size)[:, 1 : d + 1]
    y = np.ones((size + 1, m))
    y[:-1, -1] = y[-1, :-1] = 0.0
    weights = np.append(np.full(size, n / size), 1.0)
    none = np.zeros(size + 1)
    return Block(design.rows(np.vstack([points, inputs.mean])), y, weights, counts=none, squares=none)
