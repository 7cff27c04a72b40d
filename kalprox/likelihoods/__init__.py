"""Likelihoods: the distribution of observations y given the output f = h(theta, x) of the model."""

from kalprox.likelihoods.base import Likelihood
from kalprox.likelihoods.classes import Bernoulli, Categorical
from kalprox.likelihoods.contaminated import Contaminated
from kalprox.likelihoods.counts import NegativeBinomial, Poisson, QuasiPoisson
from kalprox.likelihoods.gaussian import Gaussian
from kalprox.likelihoods.robust import Huber, Student

__all__ = [
    "Bernoulli",
    "Categorical",
    "Contaminated",
    "Gaussian",
    "Huber",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "QuasiPoisson",
    "Student",
]
