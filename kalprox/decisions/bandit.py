"""Contextual bandits: choose an arm for a context, and learn from the reward."""

import math
import numbers
from collections.abc import Iterable
from os import PathLike
from typing import Any, Self

import numpy as np

from kalprox import model_file
from kalprox.base.arrays import Array
from kalprox.base.checks import check_usable
from kalprox.base.tree import Saved, expect, flatten, is_count
from kalprox.decisions.readings import BanditReadings
from kalprox.decisions.settings import BanditSettings, Decision, arm_names, check_probability, from_plain, numeric
from kalprox.learning.pending import Key, PendingRow, PendingRows, as_key
from kalprox.model_file import ModelFileError, Parts, refusing
from kalprox.predictive import standard_quantile
from kalprox.sources.weighting import NEEDS_BY_TIME, time_numbers

_KIND = "Bandit"
_RANDOM = ("state", "inc")  # whole numbers of 128 bits, saved as hexadecimal text


class BanditFiles(BanditReadings):
    """The methods that write a bandit to a file and read it."""

    def save(self, file: str | PathLike[str]) -> None:
        """Write the bandit to a file, atomically and without pickle.

        The file contains the contexts of decisions that wait for their reward and, without forgetting, the last rows of
        each arm, up to max(64, d + 1). It is read back, and the bandit restored from it and compared, before it
        replaces another.

        Parameters
        ----------
        file : str or path-like

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> import tempfile, pathlib
        >>> bandit = Bandit(["a", "b"], random_state=0)
        >>> decision = bandit.sample([1.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bandit.save(pathlib.Path(folder) / "bandit.kalprox")
        ...     same = Bandit.load(pathlib.Path(folder) / "bandit.kalprox")
        >>> for one in (bandit, same):
        ...     one.reward(decision.key, 1.0)
        >>> bool((same.sample([1.0]).values == bandit.sample([1.0]).values).all())
        True
        """
        model_file.write(file, *self._parts(), lambda header, arrays: self._of(file, header, arrays)._parts())

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Self:
        """Read a bandit that `save` wrote: it goes on as if it had never been saved, with the same random numbers.

        Parameters
        ----------
        file : str or path-like

        Returns
        -------
        Bandit

        Raises
        ------
        ModelFileError
            If the file is not that of a bandit.

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Bandit(["a", "b"]).save(pathlib.Path(folder) / "bandit.kalprox")
        ...     Bandit.load(pathlib.Path(folder) / "bandit.kalprox").arms_
        ['a', 'b']
        """
        return cls._of(file, *model_file.read(file))

    def _parts(self) -> Parts:
        """Return the header and the arrays of the file."""
        state: Any = self._rng.bit_generator.state
        header: dict[str, Any] = {
            "estimator": _KIND,
            "settings": self._settings.plain(),
            "arms": self.arms_,
            "numbers": self._numbers,
            "next_number": self._next_number,
            "n_decisions": self.n_decisions_,
            "clock": self._clock,
            "n_features": None if self._fleet is None else self._fleet.p - self._settings.fit_intercept,
            "random": {name: f"{state['state'][name]:x}" for name in _RANDOM}
            | {"has_uint32": state["has_uint32"], "uinteger": state["uinteger"]},
        }
        arrays: dict[str, np.ndarray] = {"n_rows": self._n_rows, "sums": self._sums, "moments": self._moments}
        flatten("pending", self._pending.saved(), header, arrays)
        if self._fleet is not None:
            flatten("fleet", self._fleet.saved(), header, arrays)
        return header, arrays

    @classmethod
    def _of(cls, file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Return the bandit of a header and arrays; raise a `ModelFileError` that names the file if they do not fit."""
        if (kind := header.get("estimator")) != _KIND:
            raise ModelFileError(f"{file} is not the file of a bandit, but of a {kind}: use {kind}.load.")
        with refusing(f"{file} is the file of a bandit, but not one that this version can read."):
            bandit, saved = cls(header["arms"], **from_plain(header["settings"])), Saved(header, arrays)  # type: ignore[call-arg]
            K, numbers = len(arm_names(header["arms"])), header["numbers"]
            bandit._next_number, bandit.n_decisions_ = saved.count("next_number"), saved.count("n_decisions")
            clock = bandit._clock = header["clock"]
            expect(clock is None or (type(clock) is float and math.isfinite(clock)))
            expect(len(numbers) == K == len(set(numbers)))
            expect(all(is_count(number) and number < bandit._next_number for number in numbers))
            bandit._numbers = numbers
            bandit._n_rows, bandit._sums = saved["n_rows"], saved["sums"]
            expect(bandit._n_rows.shape == bandit._sums.shape == (K,) and np.isfinite(bandit._sums).all())
            expect((bandit._n_rows == bandit._n_rows.round()).all() and (bandit._n_rows >= 0).all())
            bandit._moments = saved["moments"]
            expect(bandit._moments.shape == (3,) and np.isfinite(bandit._moments).all())
            expect(bandit._moments[0] >= bandit._n_rows.sum() and bandit._moments[2] >= 0)
            d = header["n_features"]
            if d is not None:
                expect(is_count(d) and d >= 1 and "fleet.T" in saved)
                expect(arrays["fleet.T"].ndim == 3)
                p = arrays["fleet.T"].shape[1] - 1  # that of the arrays, lest a wrong d take memory
                expect(p == d + bandit._settings.fit_intercept)
                bandit._fleet = bandit._settings.fleet(K, d).restore(saved, "fleet")
                bandit._set_origin()
            width = 0 if bandit._fleet is None else bandit._fleet.p
            bandit._pending = PendingRows.restored(width, saved)
            for key in bandit._pending:
                held = bandit._pending[key]
                expect(type(key) is int and 0 <= key < bandit.n_decisions_)
                expect(held.time is not None and clock is not None and held.time <= clock)
                expect(len(held.issued) == 2 and held.issued[0] in range(bandit._next_number))
            bandit._rng = _generator(header["random"])
        return bandit


def _generator(saved: dict[str, Any]) -> np.random.Generator:
    """Return the random numbers that go on from a saved state."""
    state = {name: int(saved[name], 16) for name in _RANDOM}
    expect(all(0 <= number < 1 << 128 for number in state.values()) and state["inc"] % 2)
    expect(saved["has_uint32"] in (0, 1) and is_count(saved["uinteger"]) and saved["uinteger"] < 1 << 32)
    made = np.random.PCG64()
    whole: Any = {"bit_generator": "PCG64", **saved, "state": state}
    made.state = whole
    return np.random.Generator(made)


class Bandit(BanditFiles):
    """A contextual bandit: a belief about the reward of every arm, and rules that choose one for a context.

    The reward of an arm is linear in the context, with normal noise; rewards of 0 and 1 are learned as numbers. Each
    arm has the belief of a regression: the estimate, the covariance and, as long as the noise is learned, Student's t
    distribution of the coefficients, which is what `KalproxRegressor(alpha=alpha, fit_intercept=False)` fits to the
    rows of the arm (with a column of ones, and relative to `reward_mean`, if `fit_intercept` is True).

    A decision is taken by one of four rules: `sample` (Thompson), `ucb`, `greedy` and `epsilon`. Its reward is given
    now or later by the key of the decision, `reward`, or together with others, `update`. Without forgetting by rows,
    rewards in any order and in any batches give the same belief, up to rounding.

    Parameters
    ----------
    arms : list of str or int
        The names of the arms. `add_arm` and `remove_arm` change them later.
    features : {"separate", "shared"}
        With "separate", a context is a vector of d features, and each arm has coefficients of its own. With "shared", a
        context is a matrix with one row of d features for each arm, in the order of `arms_`, and all arms share one
        vector of coefficients.
    alpha : float
        The strength of the ridge penalty: the prior variance of each coefficient, the intercept included, is the noise
        variance / alpha.
    noise : "learn" or float
        The noise variance of rewards, learned for each arm or given.
    pooling : float
        The number of rows for which the residuals of all other arms count, at most, in the noise variance of an arm.
        `inf` means that all arms have the same noise.
    fit_intercept : bool
        Whether a column of ones is added to the features.
    reward_mean : "learn" or float
        The prior mean of the intercepts, the reward of an arm of which nothing is known: the mean of all rewards so
        far, or a number. Without an intercept it is 0.
    forget : float or ByTime
        How rows are forgotten. A number in (0, 1], or `kalprox.forgetting.ByRow`: what the weight of a row is
        multiplied by with every later row of its arm. An arm that is not chosen is then not forgotten, and never tried
        again. `kalprox.forgetting.ByTime(half_life)`: the rows of all arms fade with time. The time is the number of
        decisions, or what the rules and `update` are given.
    max_pending : int
        The largest number of decisions that wait for their reward. The oldest are dropped, and counted in `n_dropped_`.
    propensity_draws : int
        The number of draws from which the propensity of a decision of `sample` is computed; 0 for none.
    random_state : int, optional
        The seed of all random numbers: the same calls then give the same decisions, also after `save` and `load`.

    Attributes
    ----------
    arms_ : list
        The names of the arms.
    n_decisions_ : int
        The number of decisions that were taken.
    n_dropped_ : int
        The number of decisions that were dropped before their reward came.

    Notes
    -----
    A decision costs O(K d^2) for K arms, and its reward O(d^2). With forgetting, a decision costs O(d^3) for each arm
    that has changed since the last; with `ByTime` that is each arm. A bandit may not be used by several threads at
    a time.

    References
    ----------
    L. Li, W. Chu, J. Langford, R. Schapire, "A contextual-bandit approach to personalized news article recommendation",
    2010. Y. Russac, C. Vernade, O. Cappé, "Weighted linear bandits for non-stationary environments", 2019.

    Examples
    --------
    >>> from kalprox.decisions import Bandit
    >>> rng = np.random.default_rng(0)
    >>> bandit = Bandit(["red", "green"], random_state=0)
    >>> total = 0.0
    >>> for _ in range(200):
    ...     x = rng.normal(size=2)
    ...     decision = bandit.sample(x)
    ...     reward = (x[0] if decision.arm == "red" else x[1]) + 0.1 * rng.normal()
    ...     bandit.reward(decision.key, reward)
    ...     total += reward
    >>> f"{total / 200:.2f}"  # the mean of the larger of two normal numbers is 0.56
    '0.54'
    >>> bandit.coef_.round(1) + 0.0
    array([[1., 0.],
           [0., 1.]])
    """

    def __init__(
        self,
        arms: Any,
        *,
        features: str = "separate",
        alpha: float = 1.0,
        noise: float | str = "learn",
        pooling: float = 10.0,
        fit_intercept: bool = True,
        reward_mean: float | str = "learn",
        forget: Any = 1.0,
        max_pending: int = 10_000,
        propensity_draws: int = 100,
        random_state: int | None = None,
    ) -> None:
        self._settings = BanditSettings(
            features,
            alpha,
            noise,
            pooling,
            bool(fit_intercept),
            reward_mean,
            forget,
            max_pending,
            propensity_draws,
        )
        self.arms_: list[Key] = arm_names(arms)
        self._numbers = list(range(len(self.arms_)))  # of the arms, in the order in which they were added
        self._next_number = len(self.arms_)
        self._n_rows, self._sums = np.zeros(len(self.arms_)), np.zeros(len(self.arms_))  # of rewards
        self._moments = np.zeros(3)  # the number, the sum and the sum of squares of all rewards
        self._pending = PendingRows(max_pending)
        self._clock = None
        self._fleet = None  # made when the number of features is known
        self.n_decisions_: int = 0
        if random_state is not None and not (isinstance(random_state, numbers.Integral) and random_state >= 0):
            raise ValueError(f"random_state must be a whole number >= 0, or None; got {random_state!r}.")
        self._rng = np.random.Generator(np.random.PCG64(random_state))

    # ---- rules -----------------------------------------------------------------------------------------

    def sample(self, x: Any, *, width: float = 1.0, time: Any = None) -> Decision:
        """Choose by Thompson sampling: draw the coefficients of each arm from its belief, and take the best arm.

        Parameters
        ----------
        x : array of shape (d,), or (K, d) if features are shared
            The context.
        width : float
            What the standard deviation of the draws is multiplied by; smaller values explore less.
        time : float or date, optional
            When the decision is taken, if forget=ByTime(...); by default one unit after the last one.

        Returns
        -------
        Decision

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> decision = Bandit(["a", "b"], random_state=0).sample([1.0, 2.0])
        >>> decision.arm, decision.key
        ('a', 0)
        """
        width = _width(width)
        rows = self._at(x, time)
        values = self._drawn(rows, width, 1 + self._settings.propensity_draws)
        k = self._best(values[0])
        best = values == values.max(axis=1, keepdims=True)
        propensity = float((best[:, k] / best.sum(axis=1)).mean()) if len(values) > 1 else math.nan
        return self._decide(rows, k, propensity, values[0])

    def ucb(self, x: Any, *, width: float = 1.0, level: float | None = None, time: Any = None) -> Decision:
        """Choose the arm with the largest upper confidence bound, mean + width * std.

        Parameters
        ----------
        x : array of shape (d,), or (K, d) if features are shared
            The context.
        width : float
            What the standard deviation of the mean reward is multiplied by.
        level : float, optional
            The probability that the mean reward of an arm is below its bound, instead of `width`: the width is then
            the quantile of Student's t distribution.
        time : float or date, optional
            When the decision is taken, if forget=ByTime(...); by default one unit after the last one.

        Returns
        -------
        Decision

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"], random_state=0)
        >>> bandit.update([[1.0]] * 6, ["a"] * 5 + ["b"], [1.0, 1.1, 0.9, 1.2, 0.8, 0.9])
        >>> bandit.ucb([1.0], width=0.1).arm, bandit.ucb([1.0], level=0.99).arm
        ('a', 'b')
        """
        width = _width(width)
        if level is not None:
            if width != 1:
                raise ValueError(f"Give width or level, not both; got width={width!r} and level={level!r}.")
            level = check_probability("level", level, strict=True)
        rows = self._at(x, time)
        mean, std, noise = self._read(rows)
        widths = width if level is None else standard_quantile(noise.dof, level)
        return self._take_best(rows, mean + widths * std)

    def greedy(self, x: Any, *, time: Any = None) -> Decision:
        """Choose the arm with the largest mean reward; equal ones at random.

        Parameters
        ----------
        x : array of shape (d,), or (K, d) if features are shared
            The context.
        time : float or date, optional
            When the decision is taken, if forget=ByTime(...); by default one unit after the last one.

        Returns
        -------
        Decision

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"])
        >>> bandit.update([[1.0], [1.0]], ["a", "b"], [0.0, 1.0])
        >>> bandit.greedy([1.0]).arm
        'b'
        """
        rows = self._at(x, time)
        return self._take_best(rows, self._means(rows))

    def epsilon(self, x: Any, epsilon: float = 0.1, *, time: Any = None) -> Decision:
        """Choose any arm with probability epsilon, each alike, and else that with the largest mean reward.

        Parameters
        ----------
        x : array of shape (d,), or (K, d) if features are shared
            The context.
        epsilon : float
            Between 0 and 1.
        time : float or date, optional
            When the decision is taken, if forget=ByTime(...); by default one unit after the last one.

        Returns
        -------
        Decision

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"], random_state=0)
        >>> bandit.update([[1.0], [1.0]], ["a", "b"], [0.0, 1.0])
        >>> decision = bandit.epsilon([1.0], epsilon=0.2)
        >>> decision.arm, decision.propensity
        ('b', 0.9)
        """
        epsilon = check_probability("epsilon", epsilon)
        rows = self._at(x, time)
        return self._take_best(rows, self._means(rows), epsilon)

    def _at(self, x: Any, time: Any) -> Array:
        """Return a context as `_context` does, and let the arms fade until the time of its decision."""
        rows, now = self._context(x), self._time(time)
        self._advance(now)
        return rows

    def _take_best(self, rows: Array, values: Array, epsilon: float = 0.0) -> Decision:
        """Return the decision for the largest value or, with probability epsilon, for any; propensities are exact."""
        explores = epsilon > 0 and self._rng.random() < epsilon
        k = int(self._rng.integers(len(values))) if explores else self._best(values)
        best = values == values.max()
        return self._decide(rows, k, epsilon / len(values) + (1 - epsilon) * best[k] / best.sum(), values)

    def _best(self, values: Array) -> int:
        """Return the number of the arm with the largest value; if several have it, one of them at random."""
        best = np.flatnonzero(values == values.max())
        return int(best[0] if len(best) == 1 else best[self._rng.integers(len(best))])

    def _decide(self, rows: Array, k: int, propensity: float, values: Array) -> Decision:
        """Record a decision, which waits for its reward."""
        key, row = self.n_decisions_, rows[k] if self._settings.shared else rows
        held = PendingRow(row, time=self._clock, issued=(float(self._numbers[k]), propensity))
        self._pending.add(key, held)
        self.n_decisions_ += 1
        return Decision(key, self.arms_[k], float(propensity), values)

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


def _width(width: Any) -> float:
    number = numeric("width", width)
    if number.ndim or not 0 <= number < math.inf:
        raise ValueError(f"width must be a finite number >= 0; got {width!r}.")
    return float(number)
