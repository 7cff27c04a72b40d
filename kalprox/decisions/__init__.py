"""Decisions: a belief for every arm, and rules that choose one.

`bandit` defines Bandit, with the rules `sample`, `ucb`, `greedy` and `epsilon`. Its other methods are in `rewards`
(learning, and arms that come and go), `readings` (beliefs about a context, fitted attributes) and `files` (saving and
loading); `settings` checks its parameters. The beliefs of the arms are a `fleet`: `still` if nothing is forgotten, and
`fading` if rows fade.
"""

from kalprox.decisions.bandit import Bandit
from kalprox.decisions.settings import Decision

__all__ = ["Bandit", "Decision"]
