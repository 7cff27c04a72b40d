"""A network as a bandit: one for all arms, beside a linear model for each, on the digits of benchmarks.living.

The network sees the picture and the arm that was chosen, and learns the reward of that arm alone. Both sample the
rewards of the arms from their beliefs (Thompson), with the standard deviation times 0.3.
"""

from functools import partial
from typing import Any

import numpy as np

import kalprox as kp
from benchmarks.living.bandits import Kalprox, play
from benchmarks.table import grid
from kalprox.estimators.networks import Dense, DenseStart, prior_stds

HIDDEN, RANK, WIDTH, TOGETHER, INPUTS = 50, 20, 0.3, 10, 196
PRIOR_STD = 3.0  # in units of the first weights; chosen among 1 and 3 on rewards of arms at random
ROUNDS, SEEDS = 1500, 2


class Network:
    """A player that learns every ten rewards together."""

    def __init__(self, K: int, seed: int) -> None:
        import jax
        import jax.numpy as jnp

        weights, dense = DenseStart((HIDDEN,), "tanh")(seed, INPUTS, K), Dense("tanh")
        model = kp.models.Function(lambda weights, x: dense(weights, x[:-K]) @ x[-K:], params=weights)
        self.alg = kp.proximal_filter(model, kp.regularizers.Zero(), structure=kp.structures.LowRank(RANK))
        start = [*weights[:-1], [0 * array for array in weights[-1]]]  # at first, all rewards are expected to be 0
        first, stds = (jnp.asarray(model.flatten(tree), jnp.float32) for tree in (start, prior_stds(weights)))
        self.state, self.arms = self.alg.init(first, (PRIOR_STD * stds) ** 2), np.eye(K, dtype=np.float32)
        self.rng, self.rows, self.rewards = np.random.default_rng(seed), list[np.ndarray](), list[float]()

        @jax.jit
        def read(state: Any, x: Any) -> tuple[Any, Any]:
            rows = jnp.concatenate([jnp.broadcast_to(x, (K, len(x))), self.arms], axis=1)
            f, D = model.linearize_rows(state.mean, rows)
            return f, jnp.sqrt(state.posterior.output_variance(f, D) * state.posterior.noise.variance)

        self.read = read

    def choose(self, x: np.ndarray) -> int:
        self.x = x.astype(np.float32)
        mean, std = (np.asarray(a) for a in self.read(self.state, self.x))
        std = np.where(np.isfinite(std), std, 1.0)  # before the first rewards the noise is not known
        self.arm = int((mean + WIDTH * std * self.rng.normal(size=len(mean))).argmax())
        return self.arm

    def learn(self, reward: float) -> None:
        import jax.numpy as jnp

        self.rows.append(np.append(self.x, self.arms[self.arm]))
        self.rewards.append(reward)
        if len(self.rows) == TOGETHER:
            self.state = self.alg.step(self.state, jnp.asarray(np.stack(self.rows)), jnp.float32(self.rewards))
            self.rows, self.rewards = [], []


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return the mean reward, the regret and the time of each player."""
    rounds = 300 if quick else ROUNDS
    players: dict[str, Any] = {
        "linear, one for each arm": partial(Kalprox, "sample", {"width": WIDTH}),
        f"network, rank {RANK}": Network,
    }
    found = []
    for name, made in players.items():
        runs = [play(made, "digits", seed, rounds, rounds) for seed in range(SEEDS)]
        found.append({"player": name, **{key: float(np.mean([run[key] for run in runs])) for key in runs[0]}})
    return found


def parts(numbers: list[dict[str, Any]]) -> dict[str, str]:
    """Return one table."""
    names = ["", "mean reward", "regret", "ms a round"]
    rows = [[one["player"], f"{one['reward']:.3f}", f"{one['regret']:,.0f}", f"{one['ms']:.2f}"] for one in numbers]
    return {"bandit": grid(names, rows)}
