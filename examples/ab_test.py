"""
An A/B test that may be watched
===============================

Does free medical care make people see the doctor more often? The RAND Health Insurance Experiment drew lots: some
families got free care, others paid 95% of the bill. Suppose that the answers come in person by person, and that we look
after every 25 people, to stop as soon as the answer is clear.

The usual 95% interval is right for one look only. Looking again and again, and stopping when it excludes zero, finds
"effects" that are not there. ``coef_interval(anytime=True)`` is a confidence sequence: the chance that it *ever* misses
the truth, however often we look, is at most 5%.

Data: ``randhie`` of statsmodels (Newhouse and others, 1993; Cameron and Trivedi, *Microeconometrics*, 2005).

Run it: ``pip install "kalprox[estimator]" matplotlib pandas statsmodels``
"""

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm

from kalprox import KalproxRegressor

# %%
# The file has a row for each person and year. Successive rows that differ only in the number of visits are the years
# of one person (or of persons who are equal in everything recorded), and become one row: the mean number of visits to a
# doctor in a year. The file does not tell the order in which people joined; we draw one.

data = sm.datasets.randhie.load_pandas().data
inputs = data.drop(columns="mdvis")
person = (inputs != inputs.shift()).any(axis=1).cumsum()
people = data.groupby(person).agg(visits=("mdvis", "mean"), price=("lncoins", "first"))
people = people[(people["price"] == 0) | people["price"].between(4.56, 4.57)]  # log(1 + 0%), log(1 + 95%)
people = people.sample(frac=1.0, random_state=1)
free, visits = (people["price"] == 0).to_numpy(float), people["visits"].to_numpy()
print(f"{len(people)} people, {free.mean():.0%} of them with free care")

# %%
# The model is one column: free care or not. Its coefficient is the difference in visits a year.

LOOKS = range(25, len(people) + 1, 25)


def watch(visits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and high ends of the usual and of the anytime 95% interval, of shape (2, looks, experiments)."""
    model, usual, anytime = KalproxRegressor(penalty=None, diagnose=False), [], []
    for stop in LOOKS:
        model.partial_fit(free[stop - 25 : stop, None], visits[stop - 25 : stop])
        usual.append(model.coef_interval())
        anytime.append(model.coef_interval(anytime=True))
    return tuple(np.array(ends)[..., 0].swapaxes(0, 1) for ends in (usual, anytime))


usual, anytime = watch(visits)
decided = np.flatnonzero(anytime[0] > 0)[0]
print(f"the anytime interval excludes zero after {LOOKS[decided]} people: {anytime[:, decided].round(2)} visits a year")
print(f"after {LOOKS[-1]} people it is {anytime[:, -1].round(2)}, and the usual interval {usual[:, -1].round(2)}")

# %%
# Are the promises true here? The numbers of visits are far from normal: half of the people go twice a year or less, and
# one goes 63 times. So shuffle the visits among the people. Then free care has no effect, and whoever finds one is
# wrong. Of 400 shuffled experiments, count those that find an effect at some look. They are 400 columns of one target:
# a linear model learns them together.

rng = np.random.default_rng(0)
shuffled = np.column_stack([rng.permutation(visits) for _ in range(400)])
alarms = [np.maximum.accumulate((low > 0) | (high < 0)).mean(axis=1) for low, high in watch(shuffled)]
print(f"false alarms among 400 experiments without an effect: usual {alarms[0][-1]:.1%}, anytime {alarms[1][-1]:.1%}")

# %%
# The share of shuffled experiments that have raised a false alarm so far: the usual interval breaks its promise soon,
# the anytime interval keeps it to the end.

BLUE, ORANGE = "#0072B2", "#D55E00"
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
ax.plot(LOOKS, 100 * alarms[0], color=ORANGE, ls="--", lw=2, label="usual interval")
ax.plot(LOOKS, 100 * alarms[1], color=BLUE, lw=2, label="anytime interval")
ax.axhline(5, color="black", lw=1)
ax.annotate("promised: 5%", (LOOKS[-1], 5), (0, 4), textcoords="offset points", ha="right")
ax.set(ylim=(0, None), xlabel="people so far", ylabel="false alarms so far (%)")
ax.legend(frameon=False, loc="upper left")
plt.show()

# %%
# The experiment itself. The dotted line is where it may stop. (Families, not persons, drew the lots, and the file does
# not name them. An analysis that should decide something would take each family for a cluster, and would need more
# people.)

fig, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
ax.fill_between(LOOKS, *anytime, color=BLUE, alpha=0.25, lw=0, label="anytime interval")
for end, label in zip(usual, ("usual interval", None), strict=True):
    ax.plot(LOOKS, end, color=ORANGE, ls="--", label=label)
ax.axhline(0, color="black", lw=1)
ax.axvline(LOOKS[decided], color=BLUE, ls=":")
ax.set(ylim=(-2, 4), xlabel="people so far", ylabel="free care: more visits a year")
ax.legend(frameon=False, loc="upper right")
plt.show()
