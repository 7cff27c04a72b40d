"""The beliefs about the same rows under every weight alpha of the penalty: their path, and the alpha that is chosen."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.information import Information
from kalprox.learning.linear import LinearBelief, LinearRows
from kalprox.learning.path import Path
from kalprox.learning.ridge_evidence import AlphaChoice
from kalprox.learning.settings import Settings
from kalprox.solvers.l1_path import l1_path

__all__ = ["AlphaFamily", "best_on_grid"]

T = TypeVar("T")

_FLAT = 0.01  # a score that a step of the grid improves by less is that of a limit, alpha -> 0 or infinity
_COLLINEAR = 1e-10  # the smallest alpha, relative to the squares of a column, that tells collinear columns apart
_FURTHER = 6  # alphas by which a grid is extended at a time


class AlphaFamily:
    """The beliefs about some rows of a linear model, one for each alpha.

    Parameters
    ----------
    rows : LinearRows
    """

    def __init__(self, rows: LinearRows) -> None:
        self.rows, self.penalty = rows, rows.settings.penalty

    @classmethod
    def of(cls, settings: Settings, information: Information) -> "AlphaFamily":
        """Return the beliefs about the rows that have this information."""
        return cls(LinearRows(settings, information))

    def under(self, alpha: float, found: Array | None = None, begin: Array | None = None) -> LinearBelief:
        """Return the belief under one alpha, given its coefficients, or where the search for them begins."""
        return LinearBelief(self.rows.settings.with_alpha(float(alpha)), self.rows, found=found, begin=begin)

    def for_alphas(self, alphas: Array) -> Iterator[LinearBelief]:
        """Yield the belief under each alpha, in the given order.

        The problems are solved from the largest alpha down, each starting from the previous solution. For L1 the
        solution path is followed from knot to knot, and only solutions that are not accurate enough need a search.
        """
        if self.penalty.follows_spectrum:  # is solved without a search, so that one is held at a time
            return map(self.under, alphas)
        beliefs: dict[int, LinearBelief] = {}
        descending = np.argsort(-alphas, kind="stable")
        thetas, sure = self._l1_path(alphas[descending])
        last: LinearBelief | None = None
        for i, theta, found in zip(descending, thetas, sure, strict=True):
            begin = None
            if not found and last is not None:
                begin = last.posterior.mean.copy()
                begin[: int(self.rows.settings.fit_intercept)] = 0.0
            beliefs[i] = last = self.under(alphas[i], theta if found else None, begin)
        return (beliefs.pop(i) for i in range(len(alphas)))

    def _l1_path(self, alphas: Array) -> tuple[Array, Array]:
        """Return the L1 path of theta at descending alphas, shape (m, p) or (m, p, k), and which are accurate.

        The coefficients are in units of 1 / scale, and the intercept, which is centred, is zero.
        """
        equations, targets = self.rows.centered, self.rows.information.targets
        R, z = equations.R, equations.z.reshape(equations.d, -1)
        thetas, sure = np.empty((len(alphas), *z.shape)), np.zeros(len(alphas), bool)
        if self.penalty.follows_l1_path:
            paths, accurate = zip(*(l1_path(R, column, alphas) for column in z.T), strict=True)
            thetas, sure = np.stack(paths, axis=-1), np.all(accurate, axis=0)
        thetas = np.pad(thetas, ((0, 0), (int(self.rows.settings.fit_intercept), 0), (0, 0)))
        return thetas[..., 0] if targets is None else thetas, sure

    def path(self, alphas: Array | None) -> Path:
        """Return the solution for each alpha; by default for a grid of them."""

        def read(alphas: Array) -> list[tuple[Array, Array, Array, float]]:
            return [(one.coef, one.intercept, one.edf, one.score) for one in self.for_alphas(alphas)]

        if alphas is None:
            alphas, solutions = self.along_grid(read, lambda solution: solution[-1])
        else:
            alphas = np.asarray(alphas, float)
            check_positive("alphas", alphas, strict=False)
            solutions = read(alphas)
        path = Path(alphas, *(np.stack(column) for column in zip(*solutions, strict=True)))
        criterion = "log evidence" if self.penalty.selection == "evidence" else "-BIC/2"
        return path.about(criterion=criterion, column_std=self.rows.column_std)

    def along_grid(
        self, read: Callable[[Array], list[T]], score: Callable[[T], float], *, coarse: bool = False
    ) -> tuple[Array, list[T]]:
        """Return a descending grid of alphas, and what `read` returns for them, one value for each.

        A coarse grid has half as many alphas and begins with the largest ones. The grid is extended until the best
        score is inside, or at an end that is a limit: the score changes no more, or alpha is beyond what float64 can
        tell from 0 or infinity. If the columns are collinear, it takes half of the digits to tell them apart by the
        penalty alone.
        """
        R, z, _ = self.rows.centered.compact()
        grid = self.penalty.alphas(R, z)
        grid = grid[: len(grid) // 2 + 1 : 2] if coarse else grid
        found = read(grid)
        step, eps = grid[1] / grid[0], np.finfo(float).eps
        squares = (R**2).sum(axis=0)
        varies = squares > 0
        unpenalised = np.asarray(self.under(0.0).posterior.factor.variances())[-len(squares) :]
        least = _COLLINEAR if np.isinf(unpenalised[varies]).any() else eps
        lowest, highest = least * squares.min(initial=np.inf, where=varies), grid[0] / eps
        while True:
            scores = np.array([score(one) for one in found])
            i = int(np.argmax(scores))
            inner = scores[i + 1 if i == 0 else i - 1]
            inside = i not in (0, len(grid) - 1) or not lowest < grid[i] < highest
            if inside or not np.isfinite(scores[i]) or not scores[i] - inner > _FLAT:
                return grid, found
            if i == 0:
                more = grid[0] * step ** np.arange(-_FURTHER, 0)
                grid, found = np.append(more, grid), read(more) + found
            else:
                more = grid[-1] * step ** np.arange(1, _FURTHER + 1)
                grid, found = np.append(grid, more), found + read(more)

    # ---- the choice ------------------------------------------------------------------------------------

    @property
    def choices(self) -> tuple[AlphaChoice, ...]:
        """What is chosen for each target, or for the only one, without folds."""
        return tuple(self._choice(j) for j in range(self.rows.information.targets or 1))

    def _choice(self, target: int) -> AlphaChoice:
        """Return the alpha of the largest evidence (ridge), or that of the best `score` without folds."""
        (R, z, _), evidence = self.rows.centered.compact(), self.rows.evidence
        by_evidence = self.penalty.selection == "evidence"
        if not R.any():  # rows that say nothing of the coefficients, such as a single one
            return AlphaChoice(float(self.penalty.alphas(R, z)[0]), np.inf if by_evidence else None)
        if by_evidence:
            grid, found = self.along_grid(lambda alphas: evidence.of(alphas, target)[:, 0].tolist(), float)
            return evidence.choice(grid, np.array(found), target, few_rows=self.rows.are_few)
        grid, found = self.along_grid(lambda alphas: [one.score for one in self.for_alphas(alphas)], float)
        return AlphaChoice(float(grid[int(np.argmax(found))]))


def best_on_grid(grid: Array, loss: Array) -> float:
    """Return the alpha of the smallest loss on a grid of equal ratios, interpolated by a parabola."""
    i = int(np.argmin(loss))
    if not 0 < i < len(loss) - 1:
        return float(grid[i])
    above, least, below = loss[i - 1 : i + 2]
    bend = above - 2 * least + below
    shift = 0.5 * (above - below) / bend if bend > 0 else 0.0
    return float(grid[i] * (grid[i + 1] / grid[i]) ** shift)
