"""Learning: settings, states, beliefs, and the learner on which estimators and jobs are built.

`settings` holds the parameters, which are checked once, by the tables of `rules` and `changing`. A state (`state`) is
what is kept of some rows, and never changes: `exact` for linear models, `linearised` for all others, `bank` for several
that forget in different ways. It learns rows by one step, which predicts each before it is learned. What it says is its
belief (`belief`): the estimate, standard errors (`errors`), doubts (`doubts`) and predictions. `learner` is the only
object that changes: `gapped` fills gaps, `buffered` lets single rows wait for each other, and `step` keeps the score
(`tracking`). `design` defines the coordinates of theta.
"""
