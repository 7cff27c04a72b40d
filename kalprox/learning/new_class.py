"""A class that no row had so far: the belief of a classifier grows by its coefficients.

The rows that were folded know nothing of the class, but that none of them had it. In units of what they say about one
output, n such rows at a probability of 1 / (n + 2), that of the rule of succession, are worth n (n + 1) / (n + 2)^2
rows: they are learned as that part of one row, at the mean of the inputs. The coefficients of the class start at their
prior. Rows that are still held in a warm-up are learned as if the class had been known from the start.
"""

from dataclasses import replace

import numpy as np
from scipy import special

from kalprox._arrays import Array
from kalprox.algorithms.proximal_filter import with_prior
from kalprox.algorithms.warmup import HeldRows
from kalprox.information import Information
from kalprox.learning.design import Design
from kalprox.learning.filtered import FilteredBelief
from kalprox.learning.settings import Settings
from kalprox.learning.weak_prior import coef_regularizer, weak_prior
from kalprox.linalg.triangle import triangle_of

__all__ = ["with_class"]


def with_class(belief: FilteredBelief, settings: Settings) -> FilteredBelief:
    """Return the belief about the rows so far, and about one more class, which comes after the others.

    What the rows say about the classes known so far is kept. O((d m)^3).

    Parameters
    ----------
    belief : FilteredBelief
        Of a stream of two classes or more.
    settings : Settings
        Those of several classes.
    """
    old, seen, columns = belief.state, belief.seen, belief.columns
    assert seen is not None and columns is not None and belief.fixed.center is not None
    before = belief.fixed.outputs or 2
    design = replace(belief.fixed, outputs=before + 1)
    inputs = len(belief.fixed.center) + design.first
    # The output of two classes is the difference of those of the second and the first one.
    outputs = np.array([[-1.0, 1.0, 0.0]]) if before == 2 else np.eye(before, before + 1)
    J, back = np.kron(np.eye(inputs), outputs), np.linalg.pinv(outputs)

    def longer(theta: Array) -> Array:
        return (np.asarray(theta).reshape(inputs, -1) @ back.T).ravel()

    data, estimate = _in_coordinates(old.data, J, (before + 1) / (belief.fixed.outputs or 1)), longer(old.estimate)
    if design.first and np.any(data.T):
        data, estimate = _without_class(data, estimate, design, float(seen.X.rows))
    held, far = old.held, old.extrapolating
    if held is not None:
        start, origin = map(longer, (held.start, held.origin))
        look = held.next_look if np.any(old.data.T) else HeldRows.none(start).next_look
        y = tuple(map(_targets, held.y))
        held = replace(held, y=y, start=start, origin=origin, next_look=look)
    problem = replace(
        old.problem,
        model=design.model(settings.model(design.outputs)),
        likelihood=settings.likelihood,
        regularizer=coef_regularizer(settings, design),
    )
    seen = replace(seen, y=replace(seen.y, columns=float(before + 1)))
    prior = weak_prior(settings, design, seen, columns, 1.0)
    state = replace(old, problem=problem, data=data, estimate=estimate, held=held, prior=prior)
    skew = None if old.skew is None else J.T @ old.skew
    state = replace(state, extrapolating=far and replace(far, y=_targets(far.y)), skew=skew)
    return replace(
        belief,
        settings=settings,
        state=state if held is not None else with_prior(state, prior),
        fixed=design,
        seen=seen,
        sandwich=belief.sandwich and belief.sandwich.in_coordinates(J),
    )


def _targets(y: Array) -> Array:
    """Return the targets of rows with one more class, which none of them has."""
    return np.column_stack([1 - y, y, 0 * y]) if y.ndim == 1 else np.pad(y, ((0, 0), (0, 1)))


def _in_coordinates(info: Information, J: Array, times: float) -> Information:
    """Return information about J theta as one about theta, in which a row counts `times` as often."""
    T, shift = np.asarray(info.T), np.asarray(info.shift)
    rows = np.column_stack([T[:, :1], T[:, 1:-1] @ J, T[:, -1:]])
    p = rows.shape[1]
    return replace(
        info,
        T=triangle_of(np.concatenate([np.zeros((p, p)), rows])),
        shift=np.append(shift[:-1] @ J, shift[-1]),
        rows=times * info.rows,
        squares=times * info.squares,
    )


def _without_class(data: Information, theta: Array, design: Design, n: float) -> tuple[Information, Array]:
    """Return the information and the estimate after n rows that did not have the last class.

    The log odds of the class at the mean of the inputs are f_c - log sum_k exp(f_k), to first order in the other
    outputs about their estimates f_c - sum_k p_k f_k - rest.
    """
    theta, m = theta.reshape(-1, design.outputs), design.outputs or 1
    f = theta[0, :-1]
    p = special.softmax(f)
    rest = float(special.logsumexp(f) - p @ f)
    target = float(special.logit(1 / (n + 2))) + rest
    row = np.zeros(theta.size)
    row[:m] = np.append(-p, 1.0)
    weight = n * (n + 1) / (n + 2) ** 2
    none = np.zeros(1)
    data = data.fold(row[None], np.array([target]), np.array([weight]), none, none)
    theta = theta.copy()
    theta[0, -1] = target + p @ f
    theta[0] -= theta[0].mean()
    return data, theta.ravel()
