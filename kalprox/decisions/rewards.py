"""What a bandit learns: rewards of its decisions, now or later, and arms that come and go."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable
from kalprox.decisions.readings import BanditReadings
from kalprox.decisions.settings import arm_names, numeric
from kalprox.learning.pending import Key, as_key
from kalprox.sources.times import NEEDS_BY_TIME, time_numbers

__all__ = ["BanditRewards"]


class BanditRewards(BanditReadings):
    """The methods that change the beliefs of a bandit."""

    # ---- rewards ---------------------------------------------------------------------------------------

    def reward(self, key: int, reward: float) -> None:
        """Learn the reward of a decision.

        Parameters
        ----------
        key : int
            The key of the decision.
        reward : float

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"])
        >>> first, second = bandit.sample([1.0]), bandit.sample([2.0])
        >>> bandit.reward(second.key, 1.0)
        >>> bandit.reward(first.key, 0.0)
        >>> bandit.n_rows_.sum()
        np.int64(2)
        """
        self._pending.check_known([as_key(key)])
        held = self._pending[key]
        number = int(held.issued[0])
        if number not in self._numbers and not self._settings.shared:
            raise ValueError(f"The arm of decision {key} was removed: its reward cannot be learned any more.")
        y = self._rewards([reward], 1)
        check_usable(held.x[None], y, None)
        self._pending.take(key)
        assert held.time is not None and self._clock is not None
        age = self._settings.forgetting.half_lives(np.array([held.time]), self._clock)
        k = self._numbers.index(number) if number in self._numbers else None
        self._learn(held.x[None], np.array([-1 if k is None else k]), y, age)

    def update(self, contexts: Any, arms: Any, rewards: Any, *, times: Any = None) -> None:
        """Learn the rewards of decisions that were taken elsewhere, or without their keys; all of them, or none.

        Parameters
        ----------
        contexts : array of shape (n, d)
            The contexts; if features are shared, the rows of the arms that were chosen.
        arms : sequence of length n
            The names of the arms that were chosen.
        rewards : array of shape (n,)
        times : array of shape (n,), optional
            When the decisions were taken, if forget=ByTime(...); by default now, at the time of the last decision.

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"])
        >>> bandit.update([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], ["a", "b", "b"], [1.0, 0.0, 0.5])
        >>> bandit.n_rows_
        array([1, 2])
        """
        X = numeric("contexts", contexts)
        if X.ndim != 2:
            raise ValueError(f"contexts must have shape (n, d), one row for each reward; got {X.shape}.")
        if isinstance(arms, (str, bytes)) or not isinstance(arms, Iterable):
            raise TypeError(f"arms must be a list of names, one for each context; got {arms!r}.")
        chosen = np.array([self._number_of(arm) for arm in arms], dtype=int)
        y = self._rewards(rewards, len(X))
        if len(chosen) != len(X):
            raise ValueError(
                f"contexts, arms and rewards must have the same length; got {len(X)}, {len(chosen)} and {len(y)}."
            )
        if times is not None and not self._settings.forgetting.needs_times:
            raise ValueError(NEEDS_BY_TIME.format(self._settings.forget))
        clock = self._clock
        taken = np.full(len(X), clock or 0.0) if times is None else time_numbers(times, len(X))
        check_usable(X, y, None)
        rows = self._with_ones(X)
        if not len(X):
            return
        now = float(taken.max()) if clock is None else max(clock, float(taken.max()))
        self._advance(now)
        self._learn(rows, chosen, y, self._settings.forgetting.half_lives(taken, now))

    def _learn(self, rows: Array, chosen: Array, y: Array, ages: Array) -> None:
        """Learn checked rows of the arms that were chosen, by their places; -1 stands for an arm that was removed."""
        known = chosen >= 0
        np.add.at(self._n_rows, chosen[known], 1.0)
        np.add.at(self._sums, chosen[known], y[known])
        self._moments += len(y), y.sum(), (y**2).sum()
        beliefs = np.zeros_like(chosen) if self._settings.shared else chosen
        for k in np.unique(beliefs):
            own = beliefs == k
            self._beliefs.learn(int(k), rows[own], y[own], ages[own])
        self._set_origin()

    # ---- arms ------------------------------------------------------------------------------------------

    def add_arm(self, arm: Key) -> None:
        """Add an arm, of which nothing is known yet.

        Parameters
        ----------
        arm : str or int
            Its name.

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"])
        >>> bandit.add_arm("c")
        >>> bandit.arms_
        ['a', 'b', 'c']
        """
        self.arms_ = arm_names([*self.arms_, arm])
        self._numbers.append(self._next_number)
        self._next_number += 1
        self._n_rows, self._sums = np.append(self._n_rows, 0.0), np.append(self._sums, 0.0)
        if self._fleet is not None and not self._settings.shared:
            self._fleet.add()

    def remove_arm(self, arm: Key) -> None:
        """Remove an arm. Rewards of its earlier decisions can then be learned only if features are shared.

        Parameters
        ----------
        arm : str or int
            Its name.

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"])
        >>> bandit.remove_arm("a")
        >>> bandit.arms_
        ['b']
        """
        k = self._number_of(arm)
        if len(self.arms_) == 1:
            raise ValueError(f"The last arm, {arm!r}, cannot be removed: add another first.")
        del self.arms_[k], self._numbers[k]
        self._n_rows, self._sums = np.delete(self._n_rows, k), np.delete(self._sums, k)
        if self._fleet is not None and not self._settings.shared:
            self._fleet.remove(k)
