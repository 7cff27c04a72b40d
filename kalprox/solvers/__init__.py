"""Solvers for the minimiser of 1/2 ||R t - z||^2 + g(t) over t, one file for each kind of g."""
