"""A filter of single rows for other likelihoods than the Gaussian that forgets: moments, and the estimate they give."""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.blas import dger
from scipy.linalg.lapack import dpotrf, dpotrs

from kalprox.base.arrays import Array
from kalprox.learning.design import Design
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise
from kalprox.predictive import Predictive

__all__ = ["MatchedFilter"]

_NOISE = Noise.known(1.0)


@dataclass(eq=False)
class MatchedFilter:
    """The precision of theta and its product with the estimate, updated in place by rows that are learned by matching.

    Each row is replaced by a least-squares problem with the mean and the variance that the loss gives the output of the
    model (`Likelihood.matched_row`). The rows fade, and the prior does not: a row costs O(p^3 / 3), one Cholesky
    factorisation.

    Attributes
    ----------
    design : Design
    likelihood : Likelihood
    prior : array of shape (p, p)
        The precision that the prior and the penalty give without any rows. In column-major order.
    A : array of shape (p, p)
        The precision that the rows have added. In column-major order.
    b : array of shape (p,)
        The same times the estimate: (prior + A) theta = b.
    rows : float
        The number of rows, as much as forgetting has left of each.
    forget, step : float
        What every row multiplies the weights of earlier ones by, and the variance of the steps of the intercept before
        each row.
    """

    design: Design
    likelihood: Likelihood
    prior: Array
    A: Array
    b: Array
    rows: float
    forget: float
    step: float
    U: Array | None = None  # the Cholesky factor of prior + A; None if rows have come since
    theta: Array | None = None

    def copy(self) -> "MatchedFilter":
        """Return a filter that later rows of this one do not change. O(p^2)."""
        return replace(self, A=self.A.copy("F"), b=self.b.copy())

    def estimate(self) -> tuple[Array, Array]:
        """Return the estimate and the Cholesky factor of the precision."""
        if self.U is None or self.theta is None:
            self.U, failed = dpotrf(self.A + self.prior, lower=0, clean=0, overwrite_a=1)
            if failed:
                raise ValueError("The precision of the coefficients is not positive: scale the columns of X.")
            self.theta = dpotrs(self.U, self.b, lower=0)[0]
        return self.theta, self.U

    def match(self, x: Array, y: float, weight: float = 1.0) -> tuple[float, float]:
        """Learn a row of the inputs of the design, and return the output before that, and its variance.

        Raise a ValueError, and learn nothing, if the model has no finite value there.
        """
        theta, U = self.estimate()
        f, variance = float(x.dot(theta)), float(x.dot(dpotrs(U, x, lower=0)[0]))
        if weight == 0:
            return f, variance
        found = math.isfinite(f + variance)
        target, curvature = self.likelihood.matched_row(y, f, variance) if found else (math.nan, math.nan)
        if not math.isfinite(target + curvature):
            raise ValueError(
                "The model has no finite value or derivative at the current estimate in a row of the block, which is "
                "rejected. Remove such rows first."
            )
        left, worth = self.forget**weight, weight
        if self.forget != 1:  # see `kalprox.sources.forgetting`
            worth = (1 - left) / (1 - self.forget)
            self.A *= left
            self.b *= left
        dger(worth * curvature, x, x, a=self.A, overwrite_a=1)
        self.b += (worth * curvature * (f + target)) * x
        if self.step:  # a walk of the first coordinate takes from the precision what it knew of that
            a = self.A[:, 0].copy()
            share = self.step / (1 + self.step * a[0])
            self.b -= (share * self.b[0]) * a
            dger(-share, a, a, a=self.A, overwrite_a=1)
        self.rows, self.U = left * self.rows + worth, None
        return f, variance

    def output(self, X: Array) -> tuple[Array, Array]:
        """Return the output for rows of X, and its variance, shape (n,)."""
        theta, U = self.estimate()
        inputs = self.design.rows(X)
        return inputs @ theta, np.einsum("ij,ji->i", inputs, dpotrs(U, inputs.T, lower=0)[0])

    def predict(self, X: Array) -> Predictive:
        """Return the predictive distribution for rows of X."""
        return self.likelihood.predict(*self.output(X), _NOISE)

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X, shape (n,)."""
        return self.predict(X).mean

    def noise(self) -> tuple[float, float]:
        """Return the noise variance, which is 1, and its degrees of freedom."""
        return 1.0, math.inf
