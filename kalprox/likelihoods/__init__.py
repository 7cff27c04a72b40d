"""Likelihoods: the distribution of observations y given the output f = h(theta, x) of the model."""

from kalprox.likelihoods.base import Likelihood
from kalprox.likelihoods.classes import Bernoulli, Binomial, Categorical
from kalprox.likelihoods.counts import Gamma, NegativeBinomial, Poisson, QuasiPoisson
from kalprox.likelihoods.gaussian import Gaussian
from kalprox.likelihoods.robust import Contaminated, Huber, Student

__all__ = [
    "Bernoulli",
    "Binomial",
    "Categorical",
    "Contaminated",
    "Gamma",
    "Gaussian",
    "Huber",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "QuasiPoisson",
    "Student",
]
