"""A class that no row had so far: the state of a classifier grows by its coefficients.

The rows that were folded know nothing of the class, but that none of them had it. That is said by a few rows in their
place, which have the means and the standard deviations of their inputs and count as often as they do: each has one of
the classes known so far, whichever it is. One more row, at the mean of the inputs, has the new class, so that its first
probability is that of the rule of succession. These rows are held as rows that extrapolate are, and are linearised
again when the class comes. The coefficients of the class start at their prior. Rows that are still held in a warm-up
are learned as if the class had been known from the start.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import hadamard

from kalprox.algorithms.proximal_filter import with_prior
from kalprox.algorithms.state import HeldRows
from kalprox.base.arrays import Array
from kalprox.information import Information
from kalprox.learning.design import Design, Moments
from kalprox.learning.merging import in_coordinates
from kalprox.learning.settings import Settings
from kalprox.learning.weak_prior import coef_regularizer, weak_prior
from kalprox.sources import Block

__all__ = ["with_class", "with_class_from"]


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
    old, seen, columns = learned.proximal, learned.seen, learned.columns
    assert seen is not None and columns is not None and learned.fixed.center is not None
    before = learned.fixed.outputs or 2
    design = replace(learned.fixed, outputs=before + 1)
    inputs, outputs = design.size // (before + 1), _old_outputs(before)
    J, back = with_class_from(learned.fixed), np.linalg.pinv(outputs)

    def longer(theta: Array) -> Array:
        return (np.asarray(theta).reshape(inputs, -1) @ back.T).ravel()

    data, estimate = in_coordinates(old.data, J, (before + 1) / (learned.fixed.outputs or 1)), longer(old.estimate)
    held, far = old.held, None if old.extrapolating is None else _with_targets(old.extrapolating)
    if held is not None:  # as before their first check
        held = held.moved(_with_targets, longer)
        held = replace(held, next_look=HeldRows.none(held.start).next_look)
        data = Information.zero(len(held.start))
    else:
        without = _rows_without(design, seen.X, float(data.rows) / (before + 1))
        far = without if far is None else Block.joined([far, without])
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
    state = replace(state, extrapolating=far, skew=skew)
    return replace(
        learned,
        settings=settings,
        proximal=state if held is not None else with_prior(state, prior),
        fixed=design,
        seen=seen,
    )


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
