"""Likelihoods by name, as estimators and the command line take them."""

from typing import Any

from kalprox.base.checks import check_positive
from kalprox.likelihoods.base import Likelihood
from kalprox.likelihoods.classes import Bernoulli, Binomial, Categorical
from kalprox.likelihoods.counts import Gamma, NegativeBinomial, Poisson, QuasiPoisson
from kalprox.likelihoods.gaussian import Gaussian
from kalprox.likelihoods.robust import Contaminated, Huber, Student

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "student": Student,
    "huber": Huber,
    "contaminated": Contaminated,
    "poisson": Poisson,
    "quasi-poisson": QuasiPoisson,
    "negative-binomial": NegativeBinomial,
    "binomial": Binomial,
    "gamma": Gamma,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
}


def likelihood_of(likelihood: Any, *, weight_kind: str = "frequency", known: bool = False) -> Likelihood:
    """Return a likelihood that is given by its name in `LIKELIHOODS`, or as an object, or None for the Gaussian.

    Parameters
    ----------
    likelihood : str, Likelihood or None
    weight_kind : str
        What the weights of the rows mean: precisions need a likelihood with one noise variance.
    known : bool
        Whether its parameters must be known, because they cannot be learned.

    Returns
    -------
    Likelihood

    Examples
    --------
    >>> likelihood_of("poisson"), likelihood_of(Huber(threshold=2.0)).threshold
    (Poisson(), 2.0)
    """
    if likelihood is None:
        return Gaussian()
    if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
        likelihood = LIKELIHOODS[likelihood]()
    if isinstance(likelihood, Likelihood):
        kind, name = type(likelihood).__name__, likelihood.parameter
        for parameter in likelihood.positive:
            if getattr(likelihood, parameter) is not None:
                check_positive(f"{parameter} of {kind}", getattr(likelihood, parameter))
        if known and name is not None and getattr(likelihood, name) is None:
            raise ValueError(
                f"likelihood must have a {name} here, as in {kind}({name}=1.0): it is learned by kalprox.refine and "
                f"kalprox.proximal_filter only; got {likelihood!r}."
            )
        if weight_kind == "precision" and likelihood.majorizes:
            raise ValueError(
                f"weight_kind must be 'frequency' for the likelihood {kind}: its rows have one scale; got 'precision'."
            )
        return likelihood
    hint = ""
    if isinstance(likelihood, type) and issubclass(likelihood, Likelihood):
        hint = f" Give an object: {likelihood.__name__}()."
    raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, or a Likelihood; got {likelihood!r}.{hint}")
