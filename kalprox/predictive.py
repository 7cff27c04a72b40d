"""Predictive distributions: what is claimed of an observation before it is seen."""

import math
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import special

from kalprox._arrays import Array, namespace

__all__ = ["Predictive", "Student", "special_functions", "standard_quantile", "standard_score"]


class Predictive(Protocol):
    """The distribution of new observations, one for each row."""

    @property
    def mean(self) -> Array:
        """The expected values."""

    @property
    def std(self) -> Array:
        """The scales."""

    def cdf(self, y: Array) -> Array:
        """The probability of a value of at most y."""

    def quantile(self, p: float) -> Array:
        """The value that is not exceeded with probability p."""

    def log_prob(self, y: Array) -> Array:
        """The logarithm of the density, or of the probability, at y."""


class Student(NamedTuple):
    """Student's distribution with a location, a scale and degrees of freedom; normal where these are infinite.

    >>> known = Student(np.array(1.0), np.array(2.0), math.inf)
    >>> round(float(known.quantile(0.975)), 3), round(float(known.cdf(1.0)), 3)
    (4.92, 0.5)
    """

    mean: Array
    std: Array  # the scale, which for few degrees of freedom is smaller than the standard deviation
    dof: Any

    def cdf(self, y: Array) -> Array:
        xp = namespace(self.mean, self.std, y)
        return special_functions(xp).ndtr(standard_score((y - self.mean) / self.std, xp.asarray(self.dof))[0])

    def quantile(self, p: float) -> Array:
        return self.mean + standard_quantile(self.dof, p) * self.std

    def log_prob(self, y: Array) -> Array:
        xp = namespace(self.mean, self.std, y)
        return standard_score((y - self.mean) / self.std, xp.asarray(self.dof))[1] - xp.log(self.std)

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """The ends of the central interval that holds an observation with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must be strictly between 0 and 1, such as 0.95; got {level!r}.")
        reach = namespace(self.std).asarray(standard_quantile(self.dof, (1 + level) / 2), self.std.dtype) * self.std
        return self.mean - reach, self.mean + reach


def standard_quantile(dof: Any, p: float) -> Array:
    """The p-quantile of Student's distribution of location 0 and scale 1; NaN where dof <= 0."""
    if namespace(dof) is np:
        return _standard_quantile(dof, p)
    import jax

    shape = jax.ShapeDtypeStruct(dof.shape, dof.dtype)
    # JAX has no inverse of the incomplete beta function: the host computes it, under jit too.
    return jax.pure_callback(partial(_standard_quantile, p=p), shape, dof, vmap_method="expand_dims")


def _standard_quantile(dof: Any, p: float) -> np.ndarray:
    dof = np.asarray(dof)
    dtype = dof.dtype if dof.dtype.kind == "f" else np.dtype(float)
    t = special.stdtrit(np.where((dof > 0) & np.isfinite(dof), dof, 1.0), p)
    return np.where(np.isposinf(dof), special.ndtri(p), np.where(dof > 0, t, np.nan)).astype(dtype)


_MANY = 200  # degrees of freedom from which on the expansions below are good to 1e-12
_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


def standard_score(z: Array, dof: Array) -> tuple[Array, Array]:
    """The normal score Phi^-1(F_dof(z)) and the log density of Student's distribution at z; normal where dof is
    infinite.

    Both have an expansion for many degrees of freedom, where the textbook formulas cancel. The score's
    expansion is Hill's (1970): good to 1e-12 for |z| < 6, to 1e-8 for |z| < 15, and finite however large z is. For
    few degrees of freedom the incomplete beta function is used: |u| is then at most 37 (13 in float32). `dof` is a
    number or has the shape of z.
    """
    xp = namespace(z, dof)
    normal, few = xp.isinf(dof), dof < _MANY
    if xp is np and normal.all():  # what follows would give the same, with logarithms
        return z, -(z**2) / 2 - _LOG_ROOT_2PI
    nu = xp.where(normal, _MANY, dof)
    log = xp.log1p(z**2 / nu)
    log_density = xp.where(normal, -(z**2) / 2, -(nu + 1) / 2 * log) + xp.where(few, _few(xp, nu), _many(1 / dof))

    a = xp.maximum(nu, _MANY) - 0.5
    b = 48 * a**2
    t = a * log
    hill = ((((-0.4 * t - 3.3) * t - 24) * t - 85.5) / (0.8 * t**2 + 100 + b) + t + 3) / b + 1
    u = xp.where(normal, z, xp.sign(z) * hill * xp.sqrt(t))
    if xp is np and not few.any():
        return u, log_density - _LOG_ROOT_2PI
    functions = special_functions(xp)
    nu = xp.broadcast_to(xp.minimum(nu, _MANY), z.shape)
    tail = functions.betainc(nu / 2, xp.full_like(nu, 0.5), nu / (nu + z**2)) / 2
    tail = xp.maximum(tail, xp.finfo(z.dtype).tiny)
    return xp.where(few, -xp.sign(z) * functions.ndtri(tail), u), log_density - _LOG_ROOT_2PI


def _few(xp: ModuleType, nu: Array) -> Array:
    """log Gamma((nu + 1)/2) - log Gamma(nu/2) - 1/2 log(nu/2), as it stands."""
    gammaln = special_functions(xp).gammaln
    return gammaln((nu + 1) / 2) - gammaln(nu / 2) - xp.log(nu / 2) / 2


def _many(r: Array) -> Array:
    """The same for large nu = 1/r: three terms of its asymptotic series, good to 1e-16 from nu = 200 on."""
    return -r / 4 + r**3 / 24 - r**5 / 20


def special_functions(xp: ModuleType) -> ModuleType:
    """SciPy's special functions for NumPy, JAX's for JAX."""
    if xp is np:
        return special
    import jax.scipy.special

    return jax.scipy.special
