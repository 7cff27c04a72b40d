"""Learning: settings, beliefs and the learner, of which estimators and jobs are faces.

`settings` are checked once. A belief (`belief`) is what is known after some rows: `exact` for a linear model,
`filtered` for a nonlinear one, `paper` for the paper's recursion; none of them changes. `learner` is the one object
that does; it has a short way for single rows (`row_updates`), scores its predictions (`scoring`), and is saved and
restored (`saved`, `saving`). `design` has the coordinates of theta, `penalties` the penalties by name.
"""
