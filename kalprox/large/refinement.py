"""Refinement without a matrix of all pairs of parameters: conjugate gradients with products J v and J'u, pass by pass.

The descent is that of `kalprox.algorithms.descent`; its steps are found by `conjugate_gradients`. Only O(d) numbers are
held besides the rows and what the preconditioner has.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from kalprox.algorithms.descent import Point, Problem, Reading, relative_length
from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.information.implicit import Gradient, curvature_products, explicit_rows, gradient_of, product_of
from kalprox.large.conjugate_gradients import Operator, conjugate_gradients, minimise
from kalprox.large.information import Structured
from kalprox.large.low_rank import PlusLowRank
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise
from kalprox.regularizers import Regularizer
from kalprox.solvers.terms import terms_of
from kalprox.sources import Block
from kalprox.structures import Structure

_FEW = 64  # coordinates up to which eigenvectors come from the matrix
_EIGEN = 1e-4  # the relative accuracy of the eigenvectors
_LOST = 1e-12  # the share of the precision that rounding leaves
_WEAK = 1e-8  # the precision of a coordinate that g does not penalise, relative to that of the rows
_CORRECTIONS = 10  # searches for the minimiser of a linear model, each correcting the one before; 1 or 2 are usual
_ROUGH, _FINEST = 0.1, 1e-12  # the accuracy of a step whose length is asked for, and of the most accurate ones
_WORK = 400_000  # numbers in all of the probes, where these are more than the fewest
_FEWEST, _PROBES = 3, 16  # random vectors by which the effective degrees of freedom are estimated, at least and at most
_ENOUGH = 0.01  # the standard error of that estimate that needs no more of them, relative to the residual dof
_ACCURATE, _MOST = 1e-2, 500  # the accuracy of the equations that are solved for each, and the most products


class Products(NamedTuple):
    """1/2 p'Hp - b'p with H known by its products; see `kalprox.algorithms.descent.Triangle`."""

    H: Operator
    b: Array

    def scales(self) -> Array:
        return np.sqrt(self.H.diagonal)

    def decrease(self, p: Array) -> float:
        return float(p @ (self.b - self.H.product(p) / 2))

    def damped(self, mu: float, S: Array) -> "Products":
        if mu == 0:
            return self
        more = mu * np.where(S > 0, S, 1.0) ** 2
        H, product = self.H, self.H.product
        return Products(H._replace(product=lambda v: product(v) + more * v, diagonal=H.diagonal + more), self.b)

    def pulled(self, pull: Array) -> "Products":
        return Products(self.H, self.b - pull)

    def step(self, g: Regularizer, theta: Array, accuracy: float) -> Array:
        return minimise(self.H, self.b, g, theta, accuracy)


class MatrixFreeProblem(Problem):
    """The objective of `Problem`, whose points have products in place of triangles.

    Parameters
    ----------
    structure : Structure
        What the covariance is held in.
    *problem
        The parameters of `Problem`.

    Attributes
    ----------
    rows : float
        The number of rows, once a pass has counted them.
    """

    no_step: ClassVar[str] = worded(
        "Steps are found by conjugate gradients here, which end early where columns nearly depend on each other. Leave "
        "such columns out, use {penalty='ridge'}, or leave {structure} out if the columns are few enough."
    )

    def __init__(self, structure: Structure, *problem: Any) -> None:
        super().__init__(*problem)
        self.structure, self.rows = structure, 0.0

    def at(self, theta: Array) -> Point | None:
        rows: Gradient | None = self.over_rows(gradient_of, theta)
        if rows is None:
            raise ValueError("The source must have at least one good row; got none.")
        if not rows.rows > 0:
            raise ValueError("The source must have at least one row of positive weight; got zeros only.")
        if not rows.finite:
            return None
        self.rows = rows.rows
        b, diagonal, prior = self._contrasts(rows.slope), self._of_classes(rows.squares), 0.0
        if self.prior is not None:
            A, target = self.prior
            away = target - A @ theta
            b, diagonal, prior = b + A.T @ away, diagonal + (A**2).sum(axis=0), float(away @ away)
        local = Products(Operator(partial(self._product, self.likelihood, theta), diagonal), b)
        eps = float(np.finfo(theta.dtype).eps)
        about = None, rows.loss, rows.rss, rows.size, prior, self.g(theta), rows.sums, eps
        return Point(theta, local, np.sqrt(rows.squares), *about)

    def _product(self, likelihood: Likelihood, theta: Array, v: Array) -> Array:
        """Return (J'WJ + A'A) v at theta, with A the root of the prior."""
        self.products += 1
        Hv = self._contrasts(self._of_rows(likelihood, theta, v))
        return Hv if self.prior is None else Hv + self.prior[0].T @ (self.prior[0] @ v)

    def _of_classes(self, v: Array) -> Array:
        """Return the mean over classes of what belongs to the coefficients of each of them, for all; or v as it is."""
        outputs = getattr(self.model, "outputs", None) if self.likelihood.interacts else None
        return v if outputs is None else np.repeat(v.reshape(-1, outputs).mean(axis=1), outputs)

    def _contrasts(self, v: Array) -> Array:
        """Return a gradient without what rounding has added to all classes alike.

        The rows know the coefficients of several classes up to what is added to those of all. With this, and a metric
        that is the same for all classes, steps add nothing, and need no penalty to hold them.
        """
        common = self._of_classes(v)
        return v if common is v else v - common

    def _of_rows(self, likelihood: Likelihood, theta: Array, v: Array) -> Array:
        return np.asarray(self.source.fold(partial(product_of, self.model, likelihood, theta, v)).total)

    def curvature(self, theta: Array, p: Array) -> Array:
        return np.asarray(self.over_rows(curvature_products, theta, p))

    def curvature_left_out(self, theta: Array) -> None:
        """Return None: it would be a matrix."""

    @property
    def is_newton(self) -> bool:
        """False: conjugate gradients leave an error in each step, which mixing with earlier steps corrects."""
        return False

    def one_step(self, theta: Array, tol: float) -> tuple[Point, float] | None:
        """Return the minimiser for a linear h and a quadratic loss; see `Problem.one_step`.

        A pass at the point found shows what conjugate gradients have left, and another search corrects it. The length
        of the next step is that of a rough one.
        """
        point = self.at(theta if np.isfinite(self.g(theta)) else np.zeros_like(theta))
        left, share = np.inf, tol
        for _ in range(_CORRECTIONS):
            if point is None or left <= tol:
                break
            point = self.at(point.theta + self.step(point, max(share, _FINEST)))
            if point is not None:
                left = relative_length(point.local.scales(), self.step(point, _ROUGH), point.theta)
                share = tol / left / 2 if left > 0 else tol
        return None if point is None else (point, left)

    def edf(self, point: Point) -> float:
        """Return the effective degrees of freedom, trace(M^-1 J'WJ) on the free coordinates.

        Here M = J'WJ + B, and B is the Hessian of g and the precision of the prior. The trace is that of the identity
        less trace(M^-1 B). For up to as many coordinates as there are probes it is computed; for more it is estimated
        with vectors of random signs (Hutchinson), as many as are needed for a small error of the noise variance; 4 of
        them for 100,000 coordinates and more, whose error is small unless the rows hardly outnumber the trace.
        """
        terms = terms_of(self.regularizer.tangent(point.theta), len(point.theta))
        free, local = terms.free(point.theta), point.local
        extra, more = terms.curvature(point.theta)
        H = local.H._replace(product=lambda v: local.H.product(v) + extra(v), diagonal=local.H.diagonal + more)
        count = int(free.sum())
        found: list[float] = []
        if self.prior is None and not np.where(free, more, 0.0).any():
            return float(count)
        root = np.sqrt(np.where(H.diagonal > 0, H.diagonal, 1.0))  # units matter for the estimate, not for the trace
        for k, probe in enumerate(_probes(np.flatnonzero(free), len(free))):
            b = extra(probe / root)
            if self.prior is not None:
                b = b + self.prior[0].T @ (self.prior[0] @ (probe / root))
            x, _ = conjugate_gradients(H, np.where(free, b, 0.0), free, _ACCURATE, _MOST)
            found.append(float((root * probe) @ x))
            if count > _PROBES and k >= _FEWEST:
                error = float(np.std(found, ddof=1)) / len(found) ** 0.5
                if error < _ENOUGH * max(self.rows - count + float(np.mean(found)), 1.0):
                    break
        return count - float(np.sum(found) if count <= _PROBES else np.mean(found))

    def read(self, point: Point, gamma: float | None) -> Reading:
        likelihood = self.likelihood
        edf = self.edf(point) if likelihood.learns_noise else np.nan  # it takes as long as a few steps
        if gamma is not None or not likelihood.learns_noise:
            noise = Noise.known((1.0 if gamma is None else gamma) / likelihood.unit)
        elif likelihood.majorizes:
            noise = Noise(likelihood.unit, self.rows - edf)
        else:
            noise = Noise.learned(point.rss, self.rows, edf)
        information = self._structured(point)
        free = np.asarray(self.regularizer.free(point.theta))
        var = np.where(free, np.asarray(information.variances()) * float(noise.variance), 0.0)
        return Reading(information, noise, self.rows - edf, None, var)

    def _structured(self, point: Point) -> Structured:
        """Return what the rows, the prior and g say about theta at a point, held in a structure, with theta its mean.

        A diagonal needs no pass: the points have it. The directions of `LowRank` are the leading eigenvectors of J'WJ
        in units of its diagonal, found by products with it; each diagonal entry of the precision is exact. Dense blocks
        are sums over rows of the Jacobian. Coordinates that g holds at a kink or a bound are left out: their precision
        is 1 and they have no correlations. One that neither g nor the prior knows anything of has 1e-8 of what the rows
        say about it as its prior precision.
        """
        theta, terms = point.theta, terms_of(self.regularizer.tangent(point.theta), len(point.theta))
        free, p0 = terms.free(theta), terms.curvature(theta)[1]
        if self.prior is not None:
            p0 = p0 + (self.prior[0] ** 2).sum(axis=0)
        squares = np.where(free, point.columns**2, 0.0)
        p0 = np.where(free, np.where(p0 > 0, p0, _WEAK * np.where(squares > 0, squares, 1.0)), 1.0)
        start = self.structure.start(theta, p0)
        if start.precision.base.layout.groups:
            return self._folded(start, point, free)
        W = self._directions(point, free, squares, start.rank)
        kept = (W**2).sum(axis=0)
        base = start.precision.base.plus_diagonal(np.maximum(squares - kept, 0.0))
        traces = np.array([(squares / p0).sum(), (np.maximum(squares - kept, 0.0) / p0).sum()])
        traces[1] *= traces[1] > _LOST * traces[0]
        rows = np.asarray(self.rows)
        sums: dict[str, Any] = {"rows": rows, "squares": rows, "rss": np.asarray(point.rss), "traces": traces}
        return replace(start, precision=PlusLowRank.of(base, W), **sums)

    def _directions(self, point: Point, free: Array, squares: Array, rank: int) -> Array:
        """Return W, shape (rank, d), of which W'W has the leading eigenvectors of J'WJ in units of its diagonal."""
        d, root = len(squares), np.sqrt(squares)
        if rank == 0:
            return np.zeros((0, d))
        inverse = np.where(squares > 0, 1 / np.where(root > 0, root, 1.0), 0.0)

        def product(v: Array) -> Array:
            self.products += 1
            return inverse * self._of_rows(self.likelihood, point.theta, inverse * np.ravel(v))

        if d <= max(_FEW, 2 * rank):
            values, vectors = np.linalg.eigh(np.stack([product(row) for row in np.eye(d)]))
            values, vectors = values[-rank:], vectors[:, -rank:]
        else:
            H = LinearOperator((d, d), matvec=product, dtype=float)
            first = np.random.default_rng(0).normal(size=d) * (inverse > 0)
            values, vectors = eigsh(H, rank, v0=first, tol=_EIGEN)
        return np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T * root

    def _folded(self, start: Structured, point: Point, free: Array) -> Structured:
        """Return the information with all rows, whose Jacobian is formed piece by piece. One pass."""
        self.count_pass()
        found, everywhere = start, bool(free.all())

        def fold(block: Block) -> int:
            nonlocal found
            for D, targets, weights in explicit_rows(self.model, self.likelihood, point.theta, block):
                rows = D if everywhere else D @ scipy.sparse.diags_array(free.astype(float), format="csr")
                found = found.fold(rows, targets + rows @ point.theta, weights)
            return 0

        self.source.fold(fold)
        return replace(found, mean=point.theta)


def _probes(free: Array, d: int) -> Iterator[Array]:
    """Yield unit vectors of the free coordinates if these are few, else vectors of random signs, always the same."""
    if len(free) <= _PROBES:
        for j in free:
            yield np.bincount([j], minlength=d).astype(float)
        return
    rng = np.random.default_rng(0)
    for _ in range(int(np.clip(_WORK // len(free), _FEWEST + 1, _PROBES))):
        probe = np.zeros(d)
        probe[free] = rng.choice([-1.0, 1.0], len(free))
        yield probe
