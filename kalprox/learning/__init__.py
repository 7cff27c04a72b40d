"""Learning: settings, beliefs, and the learner on which estimators and jobs are built.

`settings` holds the parameters, which are checked once. A belief (`belief`) is the immutable state after some rows:
`exact` for a linear model, `filtered` for a nonlinear one. `learner` is the only mutable object: it has a fast path for
single rows (`row_updates`), scores its predictions (`scoring`), and can be saved and restored (`saved`, `saving`).
`design` defines the coordinates of theta, and `penalties` the penalties by name.
"""
