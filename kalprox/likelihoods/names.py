"""Likelihoods by name, as estimators and the command line take them."""

from typing import Any

from kalprox.likelihoods.base import Likelihood
from kalprox.likelihoods.classes import Bernoulli, Categorical
from kalprox.likelihoods.counts import NegativeBinomial, Poisson, QuasiPoisson
from kalprox.likelihoods.gaussian import Gaussian
from kalprox.likelihoods.robust import Huber, Student

__all__ = ["LIKELIHOODS", "likelihood_of"]

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "student": Student,
    "huber": Huber,
    "poisson": Poisson,
    "quasi-poisson": QuasiPoisson,
    "negative-binomial": NegativeBinomial,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
}


def likelihood_of(likelihood: Any) -> Likelihood:
    """Return a likelihood that is given by its name in `LIKELIHOODS`, or as an object.

    Parameters
    ----------
    likelihood : str or Likelihood

    Returns
    -------
    Likelihood

    Examples
    --------
    >>> likelihood_of("poisson"), likelihood_of(Huber(threshold=2.0)).threshold
    (Poisson(), 2.0)
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
        return LIKELIHOODS[likelihood]()
    hint = ""
    if isinstance(likelihood, type) and issubclass(likelihood, Likelihood):
        hint = f" Give an object: {likelihood.__name__}()."
    raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, or a Likelihood; got {likelihood!r}.{hint}")
