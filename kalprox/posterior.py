"""The posterior of theta given rows, a prior and a regulariser: mean, covariance, predictions and noise.

The state of the proximal filter, the estimator, the jobs and the reports all take their numbers from here. Each
quantity is computed on first use and cached.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array, certainly, is_traced, namespace
from kalprox.base.control import compiled, cond_rare
from kalprox.information import Equations, Information, LeastSquares, merge
from kalprox.likelihoods import Gaussian, Likelihood
from kalprox.linalg.factor import Factor
from kalprox.linalg.rank import surely_full
from kalprox.linalg.row_space import RowSpace, WideFactor, surely_determined
from kalprox.noise import Noise, effective_dof
from kalprox.predictive import Predictive
from kalprox.regularizers import Regularizer, Ridge
from kalprox.solvers.l1_path import l1_start
from kalprox.solvers.prox import solve
from kalprox.solvers.terms import diagonal_curvature

_UNKNOWN = 1e4  # the standard deviation of outputs of classes along directions of theta that nothing determines


class Posterior(ABC):
    """A Student t posterior of theta with location `mean` and scale `cov()`; normal if the noise variance is given.

    With a matrix of k targets, which share one information, `mean` has shape (d, k) and the other quantities have a
    leading axis of length k, as noted.

    Attributes
    ----------
    likelihood : Likelihood
    targets : int or None
        The number of columns of y if y was a matrix, None if y was a vector.
    """

    likelihood: Likelihood
    targets: int | None = None

    @property
    @abstractmethod
    def mean(self) -> Array:
        """The estimate, shape (d,) or (d, k)."""

    @property
    def expected(self) -> Array:
        """The mean of the posterior, over which predictions are averaged: `mean`, its mode, unless it is skewed."""
        return self.mean

    @property
    @abstractmethod
    def factors(self) -> list[Factor | WideFactor]:
        """Factors of the covariance in units of the noise variance: one per target, or one that all targets share."""

    @property
    def metric_factors(self) -> list[Factor | WideFactor]:
        """Factors of (R'R + Hess g)^-1, which are `factors` unless rows were forgotten."""
        return self.factors

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """The noise variance and its degrees of freedom, shape () or (k,)."""

    @property
    def factor(self) -> Factor | WideFactor:
        """The first of `factors`."""
        return self.factors[0]

    @property
    def proper(self) -> bool:
        """Whether every variance is finite."""
        return all(factor.proper for factor in self.factors)

    def per_target(self, values: list[Any]) -> Array:
        """Stack the values of the targets, shape (...) or (k, ...); a single value is repeated."""
        k = self.targets
        if k is None:
            return namespace(values[0]).asarray(values[0])
        return np.stack(values if len(values) == k else values * k)

    def cov(self) -> Array:
        """Return the covariance of theta, infinite in directions that neither the data nor a prior determine.

        If g has kinks or bounds, the covariance is conditional on the active set: it is zero for the coordinates that g
        holds at a kink or a bound, and that of a regression on the free columns for the others.

        Returns
        -------
        array of shape (d, d) or (k, d, d)
        """
        C = self.per_target([factor.covariance() for factor in self.factors])
        return self._in_units(C, 2)

    def var(self) -> Array:
        """Return the variances of theta, shape (d,) or (k, d)."""
        return self._in_units(self.per_target([factor.variances() for factor in self.factors]), 1)

    def _in_units(self, values: Array, axes: int) -> Array:
        xp = namespace(values, self.noise.variance)
        variance = xp.asarray(self.noise.variance)
        with np.errstate(invalid="ignore"):
            scaled = values * variance.reshape(variance.shape + (1,) * axes)
        return xp.where(values == 0, 0, scaled)  # infinity stays infinity, zero stays zero

    def leverage(self, D: Array) -> Array:
        """Return the variance of x'theta in units of the noise variance, for each row x of D. O(d^2) per row.

        Parameters
        ----------
        D : array of shape (n, d)

        Returns
        -------
        array of shape (n,) or (n, k)
        """
        return self.per_target([factor.leverage(D) for factor in self.factors]).T

    def output_variance(self, f: Array, D: Array) -> Array:
        """Return the variance of the outputs of the model in units of the noise variance.

        If the outputs of a row interact in the likelihood, these are the covariances of each row.

        Parameters
        ----------
        f : array of shape (n, ...)
            The output of the model at the estimate.
        D : array
            The Jacobian of the output with respect to theta, one row of length d for each entry of f.

        Returns
        -------
        array of the shape of f, or (n, m, m)
        """
        factor = self.factors[0]
        rows = D.reshape(-1, factor.d)
        if not self.likelihood.interacts:
            return self.leverage(rows).reshape(f.shape)
        xp, roots = namespace(rows), [factor.whitened(rows)]
        if factor.n_undetermined:
            roots.append(_UNKNOWN * factor.along_null(rows))
        root = xp.concatenate(roots, axis=1).reshape((*f.shape, -1))
        return root @ xp.swapaxes(root, -1, -2)

    def predict(self, f: Array, D: Array, sigma: Any = None, left_open: Array | None = None) -> Predictive:
        """Return the predictive distribution of new observations.

        Parameters
        ----------
        f : array of shape (n, ...)
            The output of the model at the estimate.
        D : array
            The Jacobian of the output with respect to theta, one row of length d for each entry of f.
        sigma : float or array of shape (n,), optional
            The standard deviation of the noise of each row, relative to that of a row of weight 1.
        left_open : array of shape (n,), or (n, m, m) if the outputs interact, optional
            A variance of the outputs besides that of theta, such as missing inputs leave.

        Returns
        -------
        Predictive
        """
        leverage = self.output_variance(f, D)
        if left_open is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                leverage = leverage + left_open / self.noise.variance
        return self.predictive(f, leverage, sigma)

    def predictive(self, f: Array, leverage: Array, sigma: Any = None) -> Predictive:
        """Return the predictive distribution of new observations whose `output_variance` is known; see `predict`."""
        if sigma is None:
            return self.likelihood.predict(f, leverage, self.noise)
        if not self.likelihood.learns_noise:
            raise ValueError(
                f"sigma needs a likelihood with a noise variance; {type(self.likelihood).__name__} has none. Leave it "
                "out."
            )
        sigma = namespace(f, sigma).asarray(sigma)
        sigma = sigma.reshape(sigma.shape + (1,) * (f.ndim - 1)) if sigma.ndim else sigma
        return self.likelihood.predict(f, leverage, self.noise, sigma)

    def sample(self, n: int, rng: np.random.RandomState) -> Array:
        """Draw from the posterior: Student's t if the noise variance is learned, else normal.

        Parameters
        ----------
        n : int
            The number of draws.
        rng : RandomState

        Returns
        -------
        ndarray of shape (n, d) or (n, k, d)
        """
        if not self.proper:
            raise ValueError(
                "sample needs a posterior with finite variances, but some are infinite: add rows, or a penalty that "
                "determines every coefficient."
            )
        mean = np.asarray(self.expected)
        columns = mean.reshape(len(mean), -1)
        k = columns.shape[1]
        variance, dof = (np.broadcast_to(np.asarray(v), k) for v in (self.noise.variance, self.noise.dof))
        draws = np.empty((n, k, len(mean)))
        for j in range(k):
            factor = self.factors[j % len(self.factors)]
            sigma = np.full(n, variance[j] ** 0.5)
            if np.isfinite(dof[j]):
                sigma = sigma * np.sqrt(dof[j] / rng.chisquare(dof[j], n))
            normals = rng.standard_normal((n, factor.normals))
            draws[:, j] = columns[:, j] + sigma[:, None] * factor.draws(normals)
        return draws if self.targets is not None else draws[:, 0]


class InformationPosterior(Posterior):
    """The posterior given information: its mean is the prox of g in the metric of the data, its precision R'R + Hess g.

    If rows were forgotten, their weights are smaller than their noise says. For rows of equal noise and c = squares /
    rows (`LeastSquares.fading`), the covariance in units of the noise variance is P (c R'R + Hess g) P with P = (R'R +
    Hess g)^-1, and the residuals are those of rows / c rows of equal weight.

    Parameters
    ----------
    data : LeastSquares
        The information of the rows, ||R theta - z||^2 + rss.
    regularizer : Regularizer or sequence of Regularizer
        The penalty g, or one for each target.
    gamma : float or None
        The noise precision. If None, the noise variance is learned from the residuals, if the likelihood has one.
    prior : Information, optional
        Prior information. It enters the estimate and its covariance, but not the residuals.
    mean : array, optional
        The estimate, if it has been computed already.
    start : array, optional
        Where the search for the estimate starts. The default is the least-squares solution, or zero if there are no
        more rows than coordinates.
    likelihood : Likelihood, optional
        The default is Gaussian.
    unpenalised : int, optional
        The number of coefficients that g does not penalise, if g = 1/2 ||A theta||^2 is taken at its word as the prior
        of the others. The noise variance, which is learned, is then that of the evidence: with S = rss + ||A theta||^2
        it is S / (rows - unpenalised), and rows - unpenalised are its degrees of freedom. They remain where rows no
        longer outnumber coefficients, and where g fits the data, S / (rows - unpenalised) is about rss / (rows - edf).
    elapsed : float
        The share of all weights that is left after the time since the last row. What is known of theta has faded by it,
        while c above is that of the last row: without g the covariance has grown by 1 / elapsed.
    skew : array of shape (d,), optional
        By how much the gradient of the log-likelihood, averaged over the posterior, differs from that at its mode; see
        `kalprox.information.linearized.skewness`. The posterior mean is `mean` + (R'R + Hess g)^-1 skew.
    """

    def __init__(
        self,
        data: LeastSquares,
        regularizer: Any,
        *,
        gamma: Any = None,
        prior: Information | None = None,
        mean: Array | None = None,
        start: Array | None = None,
        likelihood: Likelihood | None = None,
        unpenalised: int | None = None,
        elapsed: float = 1.0,
        skew: Array | None = None,
    ) -> None:
        if prior is not None and certainly(prior.T == 0):
            prior = None  # an empty prior
        self.data, self.gamma, self.prior, self.targets = data, gamma, prior, data.targets
        self._shared = isinstance(regularizer, Regularizer)
        self.penalties: list[Regularizer] = [regularizer] * (self.targets or 1) if self._shared else list(regularizer)
        self.regularizer = self.penalties[0]
        self.likelihood = Gaussian() if likelihood is None else likelihood
        self._given, self._start_given, self._unpenalised, self._elapsed = mean, start, unpenalised, elapsed
        self._skew = skew

    @cached_property
    def known(self) -> LeastSquares:
        """The information of the data and the prior together."""
        if self.prior is None:
            return self.data
        assert isinstance(self.data, Information)
        return merge(self.data, self.prior)

    @cached_property
    def _row_space(self) -> RowSpace | None:
        """The directions that the rows span, where there are fewer rows than coefficients and g = 1/2 theta'Dtheta.

        D is diagonal. None elsewhere, with a prior, or if the arrays are JAX arrays.
        """
        wide = self._wide
        return None if wide is None else RowSpace.of(*wide, self.data.rows)

    @cached_property
    def _wide(self) -> tuple[Array, Array] | None:
        """R, of fewer rows than columns, and the diagonal D; None as for `_row_space`."""
        if self.prior is not None or not self._shared or namespace(self.data.rows, self.regularizer) is not np:
            return None
        R, d = self.data.compact()[0], self.data.d
        h = None if len(R) == d else diagonal_curvature(self.regularizer, d)
        return None if h is None else (R, h)

    @cached_property
    def _parts(self) -> "list[InformationPosterior]":
        """The posterior of each target, where each has a search or a penalty of its own; else none."""
        if self.targets is None or self._row_space is not None or self._absorbed is not None:
            return []
        none = [None] * self.targets
        means, starts = (none if a is None else a.T for a in (self._given, self._start_given))
        about: dict[str, Any] = {"gamma": self.gamma, "likelihood": self.likelihood, "unpenalised": self._unpenalised}
        each = zip(self.data.single_targets(), self.penalties, means, starts, strict=True)
        return [InformationPosterior(one, g, mean=mean, start=start, **about) for one, g, mean, start in each]

    @cached_property
    def proper(self) -> bool:
        if self._parts:
            return all(one.proper for one in self._parts)
        if self._wide is not None and surely_determined(*self._wide, self.data.rows):
            return True
        dense = "metric_factors" not in self.__dict__ and self._row_space is None
        if dense and self._absorbed is not None and surely_full(self._absorbed.R, self._absorbed.rows):
            return True
        return super().proper

    @cached_property
    def _reduced(self) -> "InformationPosterior":
        """The posterior of the coordinates phi in the row space."""
        space = self._row_space
        assert space is not None
        return InformationPosterior(self.data.in_coordinates(space.rows), Ridge(space.curvature), gamma=self.gamma)

    @cached_property
    def _root(self) -> Array | None:
        """The matrix A with g = 1/2 ||A theta||^2; None if g is not quadratic."""
        return self.regularizer.root(self.known.d)

    @cached_property
    def _absorbed(self) -> Equations | None:
        """The equations with ||A theta||^2 added; None if g is not quadratic or the arrays are JAX arrays."""
        if not self._shared or self._root is None or namespace(self.known.rows, self._root) is not np:
            return None
        return self.known.with_rows(self._root)

    @property
    def mean(self) -> Array:
        return self._found[0]

    @cached_property
    def expected(self) -> Array:
        return self.mean if self._skew is None else self.mean + self.metric_factors[0].covariance() @ self._skew

    @property
    def converged(self) -> bool:
        """Whether the estimate is the minimiser, up to rounding."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Array, bool]:
        if self._given is not None:
            return self._given, True
        if self._row_space is not None:
            return self._row_space.theta(self._reduced.mean), True
        if self._absorbed is not None:
            return (self._absorbed.solve_full_rank() if self.proper else self._absorbed.solve()), True
        if self._parts:
            return np.column_stack([one.mean for one in self._parts]), all(one.converged for one in self._parts)
        R, z, _ = self.known.compact()
        out = solve(R, z, self.regularizer, self._start(), self.known.rows)
        return out.theta, is_traced(out.converged) or bool(out.converged)

    def _start(self) -> Array | None:
        g, z, rows = self.regularizer, self.known.z, self.known.rows
        if g.tangent(z) is not g:
            return None  # a local minimum that depends on the rows alone, and not on where a search was before
        if self._start_given is not None:
            return self._start_given
        if self._root is not None:
            return None  # a quadratic g needs no search
        few = not is_traced(rows) and float(rows) <= len(z)  # most coefficients are then zero or small
        start = namespace(z).zeros_like(z) if few else self.known.solve()
        pieces = g.pieces() if namespace(rows, z, g) is np else None
        if pieces is None:
            return start
        R, z, _ = self.known.compact()
        return l1_start(R, z, pieces, start)

    @cached_property
    def factors(self) -> list[Factor | WideFactor]:
        fading = self.data.fading if self._elapsed == 1 else self.data.fading / self._elapsed
        if certainly(fading == 1):
            return self.metric_factors
        return [_faded(factor, self.data, fading) for factor in self.metric_factors]

    @cached_property
    def metric_factors(self) -> list[Factor | WideFactor]:
        """Factors of (R'R + Hess g)^-1, by which a row moves the estimate; `factors` if nothing was forgotten."""
        if self._row_space is not None:
            inner = self._reduced.metric_factors[0]
            assert isinstance(inner, Factor)
            return [WideFactor(inner, self._row_space)]
        if self._absorbed is not None:
            return [Factor.of(self._absorbed.R, self._absorbed.rows)]
        if self._parts:
            return [one.metric_factors[0] for one in self._parts]
        return [self.known.factor(self.regularizer, self.mean)]

    @cached_property
    def edf(self) -> Array:
        """The effective degrees of freedom of the fit, shape () or (k,); see `kalprox.noise.effective_dof`."""
        if self._row_space is not None:
            return self._reduced.edf
        if self._parts:
            return np.array([one.edf for one in self._parts])
        R, g, mean = self.data.R, self.regularizer, self.mean
        if self.prior is None and namespace(R, g, mean) is np and not g.smooth and self.data.full_rank:
            free, h = g.free(mean), g.hessian(mean)
            if h.ndim == 1 and not h[free].any():  # no free coefficient is shrunk
                return np.asarray(float(free.sum()))
        dof = effective_dof(R, g, mean, self.metric_factors[0], prior=self.prior is not None)
        return self.per_target([dof])

    @cached_property
    def rss(self) -> Array:
        """The residual sum of squares at the estimate, shape () or (k,)."""
        return self.data.residual(self.mean)

    @cached_property
    def noise(self) -> Noise:
        if not self._shared:
            noises = [one.noise for one in self._parts]
            return Noise(np.array([one.variance for one in noises]), np.array([one.dof for one in noises]))
        if self.gamma is None and self.likelihood.learns_noise:
            rows, fading = self.data.effective_rows, self.data.fading
            if self.likelihood.majorizes:
                return Noise(self.likelihood.unit, rows - self.edf)
            if self._unpenalised is None:
                return Noise.learned(self.rss / fading, rows, self.edf)
            thetas = self.mean.reshape(len(self.mean), -1).T
            penalty = self.per_target([2 * self.regularizer.value(theta) for theta in thetas])
            return Noise.learned((self.rss + penalty) / fading, rows, self._unpenalised)
        known = Noise.known((1.0 if self.gamma is None else self.gamma) / self.likelihood.unit)
        return known if self.targets is None else Noise(np.full(self.targets, known.variance), known.dof)


def _faded(factor: Factor | WideFactor, data: LeastSquares, fading: Array) -> Factor | WideFactor:
    """`Factor.faded`, on JAX arrays compiled, and skipped where nothing was forgotten, which fleets of filters need."""
    if isinstance(factor, WideFactor) or factor.free is not None or namespace(factor, data, fading) is np:
        return factor.faded(data.compact()[0], fading)
    faded: Factor = compiled(_faded_if_any)(factor, data, fading)
    return faded


def _faded_if_any(factor: Factor, data: LeastSquares, fading: Array) -> Factor:
    return cond_rare(fading != 1, lambda: factor.faded(data.R, fading), lambda: factor)
