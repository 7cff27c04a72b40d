"""The settings of a learner, checked once."""

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.base.text import worded
from kalprox.forgetting import Forgetting, forgetting_of
from kalprox.learning.gaps import FILLED, MISSING
from kalprox.learning.rules import check
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.names import likelihood_of
from kalprox.models import GLM, LINKS, Function, Linear, Model
from kalprox.penalties import Penalty, check_alpha, penalty_of
from kalprox.sources import Block
from kalprox.sources.weighting import check_weight_kind, counts_of, relative_precision
from kalprox.structures import Dense, Structure, structure_of

__all__ = ["COEF_COVS", "MISSING", "Settings", "same"]

COEF_COVS = ("auto", "model", "robust", "clustered")
_EXPECTED_RUN, _SHORTEST_RUN = 1000.0, 10.0  # rows from one change point to the next


@dataclass(frozen=True, eq=False)
class Settings:
    """The model and the penalty of a learner, with the names of `kalprox.KalproxRegressor`.

    Make one with `Settings.of(**parameters)`, which raises an error for invalid parameters.
    """

    link: str
    function: Callable[..., Any] | None  # in place of a link of a linear predictor
    likelihood: Likelihood
    penalty: Penalty
    alpha: Any  # of the penalty: a number, or "auto" as long as it is not chosen
    noise_var: float | None  # None if it is learned
    fit_intercept: bool
    standardize: bool
    forgetting: Forgetting
    max_passes: int
    tol: float
    start: Any
    diagnose: bool
    coef_cov: str  # "auto" has been resolved; see `clustered`
    weight_kind: str
    class_weights: tuple[float, ...] | None  # by which the weights of rows have been multiplied
    missing: str
    change_points: float | None  # the expected number of rows from one to the next; None if they are not looked for
    structure: Structure | None  # of what is known about the coefficients; None if it is a whole matrix
    parameters: Mapping[str, Any] = field(repr=False)  # as they were given

    @classmethod
    def of(
        cls,
        link: str = "identity",
        penalty: Any = "default",
        alpha: float | str | None = None,
        *,
        function: Callable[..., Any] | None = None,
        noise: float | str = "learn",
        fit_intercept: bool = True,
        standardize: bool = False,
        forget: float | str | Forgetting = 1.0,
        max_passes: int = 200,
        tol: float = 1e-10,
        start: Any = None,
        diagnose: bool = True,
        coef_cov: str = "auto",
        weight_kind: str = "frequency",
        class_weights: tuple[float, ...] | None = None,
        likelihood: str | Likelihood = "gaussian",
        missing: str = "raise",
        change_points: bool | float = False,
        structure: Any = None,
    ) -> "Settings":
        """Check the parameters and return the settings.

        penalty="default" is None for numbers, and "ridge" for classes and counts, with a structure, which cannot say
        what many columns leave undetermined, and if alpha is given. Without one, alpha is 1. `parameters` has both.
        """
        parameters = {name: value for name, value in locals().items() if name != "cls"}
        loss = likelihood_of(likelihood)
        if isinstance(penalty, str) and penalty == "default":
            ridge = alpha is not None or not loss.location or _structure(structure) is not None
            penalty = parameters["penalty"] = "ridge" if ridge else None
        if alpha is None:
            alpha = parameters["alpha"] = 1.0
        if missing not in MISSING:
            raise ValueError(f"missing must be one of {', '.join(MISSING)}; got {missing!r}.")
        given: Any = link  # callers may ignore types
        if not (isinstance(given, str) and given in LINKS):
            own = " A function of one's own, fn(theta, x), is the parameter function." if callable(link) else ""
            raise ValueError(f"link must be one of {', '.join(LINKS)}; got {link!r}.{own}")
        if function is not None and not callable(function):
            raise ValueError(f"function must be a JAX function fn(theta, x) of one row, or None; got {function!r}.")
        if function is not None and link != "identity":
            raise ValueError(f"A function is the whole model: link must be 'identity' then; got {link!r}.")
        if isinstance(noise, str):
            if noise not in ("learn", "inputs"):
                raise ValueError(f"noise must be 'learn', 'inputs' or the noise variance; got {noise!r}.")
        else:
            check_positive("noise", noise)
            if noise < np.finfo(float).tiny:  # so that 1 / noise is finite
                raise ValueError(f"noise must be at least {np.finfo(float).tiny:.3g}; got {noise!r}.")
        if coef_cov not in COEF_COVS:
            raise ValueError(f"coef_cov must be one of {', '.join(COEF_COVS)}; got {coef_cov!r}.")
        check_weight_kind(weight_kind)
        forgetting = forgetting_of(forget)
        if not (isinstance(max_passes, numbers.Integral) and max_passes >= 1):
            raise ValueError(f"max_passes must be a whole number >= 1; got {max_passes!r}.")
        if not (isinstance(tol, numbers.Real) and 0 <= tol < np.inf):
            raise ValueError(f"tol must be a finite number >= 0; got {tol!r}.")
        g = penalty_of(penalty)
        check_alpha(alpha, g)
        settings = cls(
            link,
            function,
            loss,
            g,
            alpha,
            None if isinstance(noise, str) else float(noise),
            bool(fit_intercept),
            bool(standardize) and g.penalises and not g.scale_free,  # bounds keep the units of coef_
            forgetting,
            max_passes,
            tol,
            start,
            bool(diagnose),
            "model" if coef_cov == "auto" else coef_cov,
            weight_kind,
            class_weights,
            missing,
            _expected_run(change_points),
            _structure(structure),
            parameters,
        )
        if coef_cov == "auto" and settings.weighs_scores and settings.structure is None and not settings.is_bank:
            settings = replace(settings, coef_cov="robust")
        check(settings)
        named = settings.parameter_names
        if named is not None and len(named) != np.size(start):
            raise ValueError(
                f"parameter_names of the function must have as many names as start has entries, {np.size(start)}; "
                f"got {len(named)}."
            )
        return settings

    def with_alpha(self, alpha: Any) -> "Settings":
        """Return these settings, as they were given, with the alpha that "auto" has chosen."""
        return replace(self, alpha=alpha)

    @property
    def awaits_alpha(self) -> bool:
        """Whether alpha is still to be chosen by `fit`, since rows cannot be learned without it."""
        return self.alpha == "auto" and not self.is_exact

    @property
    def chooses_alpha(self) -> bool:
        """Whether alpha is, or was, chosen from the rows."""
        return isinstance(self.parameters["alpha"], str)

    @cached_property
    def forgets(self) -> bool:
        """Whether rows are forgotten in any way."""
        return self.forgetting.forgets

    @cached_property
    def by_time(self) -> bool:
        """Whether rows are forgotten by time, so that every row needs one."""
        return self.forgetting.needs_times

    @cached_property
    def is_exact(self) -> bool:
        """Whether the information of the rows determines everything exactly.

        That is a linear model with the Gaussian likelihood and no structure.
        """
        return self.is_linear and self.likelihood.quadratic and self.structure is None

    @cached_property
    def is_linear(self) -> bool:
        """Whether the output of the model is a linear function of its parameters."""
        return self.function is None and self.link == "identity"

    @cached_property
    def several_targets(self) -> bool:
        """Whether y may have several columns: those of linear models, or one for each class."""
        return (self.is_exact and self.missing != "marginalize") or self.likelihood.interacts

    @property
    def weighs_scores(self) -> bool:
        """Whether rows have weights that are neither repetitions nor precisions of a noise that is learned.

        The likelihood does not say how uncertain an estimate with such weights is, and the scores of the rows do.
        """
        return self.class_weights is not None or (self.weight_kind == "precision" and not self.likelihood.learns_noise)

    def clustered(self) -> "Settings":
        """Return these settings for rows whose clusters are given; raise a ValueError if they would be ignored."""
        if self.coef_cov == "clustered":
            return self
        if (given := self.parameters["coef_cov"]) != "auto":
            raise ValueError(
                f"Clusters are given, and coef_cov={given!r} takes no account of them: use coef_cov='auto', the "
                "default, or 'clustered'; or leave the clusters out."
            )
        settings = replace(self, coef_cov="clustered")
        check(settings)
        return settings

    def counts(self, weights: Array | None) -> Array | None:
        """Return how many rows each row counts for; None if every row counts once."""
        return weights if self.weight_kind == "frequency" else counts_of(weights, self.weight_kind)

    def counts_of(self, block: Any) -> Array:
        """Return how many rows each row of a block, or of a source in memory, counts for."""
        counts = self.counts(block.weights)
        return np.ones(len(block.y)) if counts is None else counts

    @cached_property
    def fills_gaps(self) -> bool:
        """Whether missing features are completed, and rows that lack them are learned."""
        return self.missing in FILLED

    @cached_property
    def noise_depends_on_inputs(self) -> bool:
        """Whether the variance of the noise is a function of the inputs, which is learned."""
        return isinstance(self.parameters["noise"], str) and self.parameters["noise"] == "inputs"

    @cached_property
    def buffers_rows(self) -> bool:
        """Whether rows may be folded together with later ones."""
        return self.coef_cov != "clustered" and not self.noise_depends_on_inputs

    def relative_precision(self, block: Block) -> Array | None:
        """Return what multiplies the score of each row; see `kalprox.sources.weighting.relative_precision`."""
        return relative_precision(block, self.weight_kind, self.class_weights)

    def own_variance(self, block: Block) -> Array | None:
        """Return the variance of the noise of each row of a block in units of the noise variance; None if it is 1."""
        if block.weights is None or self.weight_kind == "frequency" or not self.likelihood.learns_noise:
            return block.noise
        own = 1 / np.where(block.weights > 0, block.weights, 1)
        return own if block.noise is None else own * block.noise

    @cached_property
    def needs_innovations(self) -> bool:
        """Whether each row must be predicted before it is learned."""
        return self.diagnose or self.coef_cov != "model" or self.noise_depends_on_inputs or self.is_bank

    @cached_property
    def is_bank(self) -> bool:
        """Whether several ways to forget are mixed by how well each predicts."""
        return self.forgetting.name == "auto"

    @property
    def parameter_names(self) -> list[str] | None:
        """The names of the parameters of a function, if it says them in an attribute `parameter_names`."""
        given = getattr(self.function, "parameter_names", None)
        return None if given is None else [str(name) for name in given]

    def coef_names(self, columns: Sequence[str], d: int) -> list[str]:
        """Return the names of d coefficients: those of the columns, or of the parameters of a function.

        >>> Settings.of(function=abs, start=[0.0, 1.0]).coef_names(["time"], 2)
        ['theta[0]', 'theta[1]']
        """
        if self.function is None:
            return list(columns)
        return self.parameter_names or [f"theta[{j}]" for j in range(d)]

    def model(self, outputs: int | None = None) -> Model:
        """Return the model h with this number of linear outputs; None for one output, and for functions."""
        if self.function is not None:
            return Function(self.function)
        return Linear(outputs) if self.link == "identity" else GLM(self.link)

    @property
    def gamma(self) -> float | None:
        """The noise precision; None if the noise variance is learned."""
        return None if self.noise_var is None else 1 / self.noise_var

    def changed(self, other: "Settings", *names: str) -> list[str]:
        """Return which parameters (of `names`, or of all) differ between these settings and `other`."""
        mine, theirs = self.parameters, other.parameters
        return [name for name in names or mine if not same(mine[name], theirs[name])]


def _structure(structure: Any) -> Structure | None:
    """Return the structure; None for a dense one."""
    found = Dense() if structure is None else structure_of(structure)
    return None if isinstance(found, Dense) else found


def _expected_run(change_points: Any) -> float | None:
    """Return the expected number of rows from one change to the next; None if changes are not looked for."""
    if isinstance(change_points, (bool, np.bool_)):
        return _EXPECTED_RUN if change_points else None
    if not (isinstance(change_points, (float, numbers.Integral)) and _SHORTEST_RUN <= float(change_points) < np.inf):
        raise ValueError(
            worded(
                "{change_points} must be the expected number of rows from one change to the next, at least "
                f"{_SHORTEST_RUN:g}{{, or True or False|, or auto}}; got {change_points!r}."
            )
        )
    return float(change_points)


def same(a: Any, b: Any) -> bool:
    """Whether two parameters are equal: numbers, names, arrays, or regularisers with equal fields."""
    if a is b:
        return True
    if type(a) is type(b) and is_dataclass(a):
        return all(same(getattr(a, one.name), getattr(b, one.name)) for one in fields(a))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.array_equal(a, b))
