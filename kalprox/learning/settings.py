"""The settings of a learner, checked once."""

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kalprox._arrays import Array
from kalprox._checks import check_positive
from kalprox.learning.penalties import Penalty
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.names import likelihood_of
from kalprox.models import GLM, LINKS, Function, Linear, Model
from kalprox.sources import Block
from kalprox.sources.weighting import check_weights, counts_of

__all__ = ["COEF_COVS", "TARGETS", "Settings", "same"]

COEF_COVS = ("model", "robust", "clustered")
TARGETS = ("range", "any")
_METHODS = ("exact", "paper")
_EXACT = "link='identity', method='exact' and likelihood='gaussian'"


@dataclass(frozen=True, eq=False)
class Settings:
    """The model, the penalty and the method of a learner, with the names of `kalprox.KalproxRegressor`.

    Make one with `Settings.of(**parameters)`, which raises an error for invalid parameters.
    """

    link: str | Callable[..., Any]
    likelihood: Likelihood
    penalty: Penalty
    method: str
    noise_var: float | None  # None if it is learned
    fit_intercept: bool
    standardize: bool
    forget: float
    max_passes: int
    tol: float
    start: Any
    v0: Any
    q: Any
    diagnose: bool
    coef_cov: str
    weights: str
    targets: str
    parameters: Mapping[str, Any] = field(repr=False)  # as they were given

    @classmethod
    def of(
        cls,
        link: str | Callable[..., Any] = "identity",
        penalty: Any = "default",
        alpha: float | str = 1.0,
        *,
        l1_ratio: float = 0.5,
        delta: float = 1.0,
        groups: Any = None,
        bounds: Any = (0.0, np.inf),
        method: str = "exact",
        noise: float | str = "learn",
        fit_intercept: bool = True,
        standardize: bool = False,
        forget: float = 1.0,
        max_passes: int = 200,
        tol: float = 1e-10,
        start: Any = None,
        v0: Any = 1.0,
        q: Any = 0.0,
        diagnose: bool = True,
        coef_cov: str = "model",
        weights: str = "frequency",
        targets: str = "range",
        likelihood: str | Likelihood = "gaussian",
    ) -> "Settings":
        """Check the parameters and return the settings.

        penalty="default" is "ridge", or None if `link` is a function; `parameters` has what it stands for.
        """
        if isinstance(penalty, str) and penalty == "default":
            penalty = None if callable(link) else "ridge"
            if callable(link) and not (isinstance(alpha, (int, float)) and alpha == 1):
                raise ValueError(
                    f"alpha={alpha!r} has no effect: if link is a function, there is no penalty unless one is given. "
                    "Set penalty='ridge', or another, too."
                )
        parameters = {name: value for name, value in locals().items() if name != "cls"}
        if method not in _METHODS:
            raise ValueError(f"method must be one of {', '.join(_METHODS)}; got {method!r}.")
        if targets not in TARGETS:
            raise ValueError(f"targets must be one of {', '.join(TARGETS)}; got {targets!r}.")
        given: Any = link  # callers may ignore types
        if not (callable(link) or (isinstance(given, str) and given in LINKS)):
            raise ValueError(f"link must be one of {', '.join(LINKS)}, or a function fn(theta, x); got {link!r}.")
        loss = likelihood_of(likelihood)
        if isinstance(noise, str):
            if noise not in ("learn", "inputs"):
                raise ValueError(f"noise must be 'learn', 'inputs' or the noise variance; got {noise!r}.")
        else:
            check_positive("noise", noise)
            if noise < np.finfo(float).tiny:  # so that 1 / noise is finite
                raise ValueError(f"noise must be at least {np.finfo(float).tiny:.3g}; got {noise!r}.")
        if coef_cov not in COEF_COVS:
            raise ValueError(f"coef_cov must be one of {', '.join(COEF_COVS)}; got {coef_cov!r}.")
        check_weights(weights)
        if not 0 < forget <= 1:
            raise ValueError(f"forget must lie in (0, 1], where 1 means no forgetting; got {forget!r}.")
        if not (isinstance(max_passes, numbers.Integral) and max_passes >= 1):
            raise ValueError(f"max_passes must be a whole number >= 1; got {max_passes!r}.")
        if not (isinstance(tol, numbers.Real) and 0 <= tol < np.inf):
            raise ValueError(f"tol must be a finite number >= 0; got {tol!r}.")
        g = Penalty.of(penalty, alpha, l1_ratio, delta, groups, bounds)
        settings = cls(
            link,
            loss,
            g,
            method,
            None if isinstance(noise, str) else float(noise),
            bool(fit_intercept),
            bool(standardize) and not g.scale_free,  # bounds keep the units of coef_
            forget,
            max_passes,
            tol,
            start,
            v0,
            q,
            bool(diagnose),
            coef_cov,
            weights,
            targets,
            parameters,
        )
        settings._check_likelihood()
        settings._check_nonlinear()
        return settings

    def _check_likelihood(self) -> None:
        loss, name = self.likelihood, f"likelihood={self.parameters['likelihood']!r}"
        if loss.quadratic:
            return
        if loss.interacts and not callable(self.link) and self.penalty.kind in ("group", "box"):
            raise ValueError(f"penalty={self.penalty.kind!r} needs two classes; for several, use 'ridge' or 'l1'.")
        if self.method == "paper":
            raise ValueError(f"method='paper' needs likelihood='gaussian': its loss is the square; got {name}.")
        if isinstance(self.link, str) and self.link != "identity" and not loss.location:
            raise ValueError(f"{name} has a link of its own: link must be 'identity' or a function; got {self.link!r}.")
        given = self.parameters["noise"]
        if loss.majorizes and given != "learn":
            kind = type(loss).__name__
            raise ValueError(
                f"noise must be 'learn', the default, with {name}: give the scale of good rows, if it is known, as "
                f"likelihood=kalprox.likelihoods.{kind}(scale=...); got noise={given!r}."
            )
        if self.noise_depends_on_inputs or (self.noise_var is not None and not loss.learns_noise):
            raise ValueError(f"noise must be 'learn', the default: {name} has no noise variance; got noise={given!r}.")
        if self.weights != "frequency" and (not loss.learns_noise or loss.majorizes):
            raise ValueError(f"weights='precision' needs a likelihood with a noise variance; got {name}.")

    def _check_nonlinear(self) -> None:
        if self.is_exact:
            return
        if self.penalty.alpha == "auto":
            raise ValueError(f"alpha='auto' needs {_EXACT}; give a number.")
        if self.noise_depends_on_inputs:
            raise ValueError(f"noise='inputs' needs {_EXACT}; use 'learn', or a number.")
        if callable(self.link) and self.start is None:
            raise ValueError("start, the first theta of shape (d,), must be given if link is a function.")
        if callable(self.link) and self.standardize:
            raise ValueError("standardize must be False if link is a function: its theta has no columns to scale.")
        if self.method == "paper" and self.v0 is None:
            raise ValueError("method='paper' needs v0, the prior variance of theta: a number, a vector or a matrix.")
        if self.method == "paper" and self.noise_var is None:
            raise ValueError("method='paper' needs the noise variance: set noise to a number.")
        if self.method == "paper" and self.forget != 1:
            raise ValueError(f"method='paper' needs forget=1: use q to let theta drift; got forget={self.forget!r}.")
        if self.method == "paper" and self.weights != "frequency":
            raise ValueError("method='paper' needs weights='frequency': its recursion has one noise variance.")

    @property
    def is_exact(self) -> bool:
        """Whether the information of the rows determines everything exactly.

        That is a linear model with the Gaussian likelihood and method="exact".
        """
        named = isinstance(self.link, str) and self.link == "identity"
        return self.method == "exact" and named and self.likelihood.quadratic

    @property
    def several_targets(self) -> bool:
        """Whether y may have several columns: those of linear models, or one for each class."""
        return self.is_exact or self.likelihood.interacts

    def counts(self, weights: Array | None) -> Array | None:
        """Return how many rows each row counts for; None if every row counts once."""
        return weights if self.weights == "frequency" else counts_of(weights, self.weights)

    @property
    def noise_depends_on_inputs(self) -> bool:
        """Whether the variance of the noise is a function of the inputs, which is learned."""
        return isinstance(self.parameters["noise"], str) and self.parameters["noise"] == "inputs"

    def own_variance(self, block: Block) -> Array | None:
        """Return the variance of the noise of each row of a block in units of the noise variance; None if it is 1."""
        if block.weights is None or self.weights == "frequency":
            return None
        return 1 / np.where(block.weights > 0, block.weights, 1)

    @property
    def needs_innovations(self) -> bool:
        """Whether each row must be predicted before it is learned."""
        return self.diagnose or self.coef_cov != "model" or self.noise_depends_on_inputs

    def model(self, outputs: int | None = None) -> Model:
        """Return the model h with this number of linear outputs; None for one output, and for functions."""
        if callable(self.link):
            return Function(self.link)
        return Linear(outputs) if self.link == "identity" else GLM(self.link)

    @property
    def gamma(self) -> float | None:
        """The noise precision; None if the noise variance is learned."""
        return None if self.noise_var is None else 1 / self.noise_var

    def first_theta(self, size: int, jacobian: Array | None) -> Array:
        """Return `start` in the coordinates of the design, or zeros if no start was given.

        `jacobian` is the matrix of the design that maps theta to (intercept, coef), None for a function.
        """
        if self.start is None:
            return np.zeros(size)
        try:
            start = np.asarray(self.start, float)
        except (TypeError, ValueError):
            raise ValueError(f"start must be a vector of numbers; got {self.start!r}.") from None
        if jacobian is None:
            if start.ndim != 1 or start.size == 0 or not np.isfinite(start).all():
                raise ValueError(
                    "start must be a vector of finite numbers, one for each entry of theta that the function uses; got "
                    f"{self.start!r}."
                )
            return start
        if start.shape != (size,):
            raise ValueError(
                "start must have one entry per coefficient, the intercept first: "
                f"expected {(size,)}, got {start.shape}."
            )
        return np.linalg.solve(jacobian, start)

    def changed(self, other: "Settings", *names: str) -> list[str]:
        """Return which parameters (of `names`, or of all) differ between these settings and `other`."""
        mine, theirs = self.parameters, other.parameters
        return [name for name in names or mine if not same(mine[name], theirs[name])]


def same(a: Any, b: Any) -> bool:
    """Whether two parameters are equal: numbers, names, arrays, or regularisers with equal fields."""
    if a is b:
        return True
    if type(a) is type(b) and hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.array_equal(a, b))
