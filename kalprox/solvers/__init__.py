"""Solvers of argmin over t of 1/2 ||R t - z||^2 + g(t), one file for each kind of g."""
