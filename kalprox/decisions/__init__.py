"""Decisions: a belief for every arm, and rules that choose one.

`bandit` defines Bandit: the rules `sample`, `ucb`, `greedy` and `epsilon`, learning, and arms that come and go. Its
other methods are in `readings` (beliefs about a context, fitted attributes) and `files` (saving and loading);
`settings` checks its parameters. The beliefs of the arms are a `fleet`.
"""

from kalprox.decisions.bandit import Bandit
from kalprox.decisions.settings import Decision

__all__ = ["Bandit", "Decision"]
