"""Tables and pages about a model that was fitted to files.

`model` is the page of a model; its sections are in `coefficients`, `calibration` and `data`. `summary` has the tables
that the page shares with the terminal, and `path` the regularisation path.
"""
