"""
Digits as a bandit: which arm to try
====================================

An image comes, and one of ten buttons is pressed. Only whether it was the right one is told, never which one would have
been. A bandit has a belief for every button, and chooses: one that looks good, or one that it does not know enough
about. `Thompson sampling`_ draws from the beliefs and takes the best draw; UCB takes the best upper bound;
epsilon-greedy tries any button in one round of twenty.

The images are the 1,797 handwritten digits of scikit-learn, 8 by 8 pixels. The best possible reward is 1 in every
round, so that the regret is the number of wrong buttons.

.. _Thompson sampling: https://en.wikipedia.org/wiki/Thompson_sampling

Run it: ``pip install "kalprox[estimator]" matplotlib``
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from kalprox.decisions import Bandit

images, digits = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
X, y = images[order] / 16, digits[order]

# %%
# ``width`` multiplies the standard deviation of draws and bounds. Here 10 arms have 65 coefficients each, and 1,797
# rounds are few: at width 1 most of them are spent on learning, and a smaller width pays. All rules have the same
# beliefs, learned from the rewards of their own decisions.

RULES = {
    "Thompson, width 0.3": lambda bandit, x: bandit.sample(x, width=0.3),
    "UCB, width 0.3": lambda bandit, x: bandit.ucb(x, width=0.3),
    "epsilon-greedy, 5%": lambda bandit, x: bandit.epsilon(x, epsilon=0.05),
    "at random": lambda bandit, x: bandit.epsilon(x, epsilon=1.0),
}
SEEDS = 3


def play(rule, seed, delay=0):
    """The regret after each round; the reward of a round comes `delay` rounds later."""
    bandit, wrong, waiting = Bandit(range(10), random_state=seed, propensity_draws=0), np.zeros(len(X)), []
    for t, (x, digit) in enumerate(zip(X, y, strict=True)):
        decision = rule(bandit, x)
        wrong[t] = decision.arm != digit
        waiting.append((decision.key, 1.0 - wrong[t]))
        if len(waiting) > delay:
            bandit.reward(*waiting.pop(0))
    return wrong.cumsum()


regret = {name: np.array([play(rule, seed) for seed in range(SEEDS)]) for name, rule in RULES.items()}
for name, curves in regret.items():
    last = 1 - (curves[:, -1] - curves[:, -501]).mean() / 500
    print(f"{name:20} regret {curves[:, -1].mean():6.0f}, reward of the last 500 rounds {last:.2f}")

# %%
# A straight line is a rule that does not learn. The others bend: they make most of their mistakes early.

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
rounds = np.arange(1, len(X) + 1)
styles = zip(regret, (BLUE, ORANGE, GREEN, GREY), ("-", "--", "-.", ":"), strict=True)
fig, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for name, colour, style in styles:
    ax.plot(rounds, regret[name].mean(axis=0), style, color=colour, lw=2, label=name)
ax.set(xlabel="round", ylabel="regret: wrong buttons so far", xlim=(0, None), ylim=(0, 900))
ax.legend(frameon=False, loc="upper left")
plt.show()

# %%
# In a shop the reward, a sale, comes much later than the decision. A decision has a key, and its reward is learned
# whenever it comes: in any order, with the same belief in the end. Until then the bandit decides with what it knows.
# Rewards that are 200 rounds late cost about 200 rounds.

for name in ("Thompson, width 0.3", "UCB, width 0.3"):
    late = np.mean([play(RULES[name], seed, delay=200)[-1] for seed in range(SEEDS)])
    print(f"{name}: regret {regret[name][:, -1].mean():.0f}, with rewards 200 rounds late {late:.0f}")

# %%
# What a bandit has learned can be read: the coefficients of each arm are an image, of what speaks for the digit (blue)
# and against it (red).

bandit = Bandit(range(10), random_state=0)
for x, digit in zip(X, y, strict=True):
    decision = bandit.sample(x, width=0.3)
    bandit.reward(decision.key, float(decision.arm == digit))
print(bandit.summary())

mosaic = np.full((17, 44), np.nan)
for arm, coef in enumerate(bandit.coef_):
    row, column = 9 * (arm // 5), 9 * (arm % 5)
    mosaic[row : row + 8, column : column + 8] = coef.reshape(8, 8)
fig, ax = plt.subplots(figsize=(6.4, 3), layout="constrained")
ax.imshow(mosaic, cmap="RdBu", vmin=-0.5, vmax=0.5)
ax.set(xticks=[], yticks=[3.5, 12.5], yticklabels=["0 to 4", "5 to 9"], ylabel="arms")
ax.set_xlabel("pixels: coefficients from -0.5 (red) to 0.5 (blue)")
ax.spines[:].set_visible(False)
plt.show()
