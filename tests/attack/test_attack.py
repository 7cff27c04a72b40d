"""One trial of each family in every run of the tests, and a twentieth among the slow ones; `make attack` makes all."""

import sys

import pytest

from tests.attack.families import FAMILIES
from tests.attack.launcher import Launcher, Ran
from tests.attack.trial import WRONG, Refused, Wrong, attempt, expect

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the attack forks, and sets Linux's limits"),
]
FEW = 1  # trials of a family in every run; of those that run a job several times, none
LONG = "kills", "faults"
SHARE = 20  # of the trials, the one that the slow tests make


@pytest.fixture(scope="module")
def launcher():
    with Launcher() as launcher:
        yield launcher


def wrong(family, seeds, launcher):
    """The trials that were wrong, and how to repeat them."""
    trials = [attempt(family, FAMILIES[family].attack, seed, launcher) for seed in seeds]
    return [
        f"python -m tests.attack --family {family} --seed {trial.seed} --n 1: {trial.why}"
        for trial in trials
        if trial.verdict == WRONG
    ]


@pytest.mark.parametrize("seed", range(FEW))
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in LONG])
def test_nothing_is_wrong(family, seed, launcher):
    assert wrong(family, [seed], launcher) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_wrong_at_length(family, launcher):
    first = 0 if family in LONG else FEW
    assert wrong(family, range(first, FAMILIES[family].trials // SHARE), launcher) == []


def ran(code=0, out="", err="", hung=False):
    return Ran(("show", "m.kalprox"), code, out, err, 0.1, hung)


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (ran(1, err="Error: TypeError\nThis is an error in kalprox."), "ended with 1"),
        (ran(2, err="Error: no"), "ended with 2"),
        (ran(-11), "ended with -11"),
        (ran(6), "without a message"),
        (ran(6, err="Traceback (most recent call last):\nError: no"), "traceback"),
        (ran(-9, hung=True), "did not end"),
        (ran(out="\x1b[31m"), "control character"),
    ],
)
def test_what_is_wrong_is_seen(ended, why):
    with pytest.raises(Wrong, match=why):
        expect(ended, 6)


def test_what_is_refused_is_told_from_what_succeeds():
    assert expect(ran(0), 6).code == 0
    with pytest.raises(Refused, match="6: Error: no"):
        expect(ran(6, err="Error: no"), 6)


@pytest.mark.slow
def test_a_trial_is_repeated_by_its_seed(launcher):
    one, two = (attempt("poison", FAMILIES["poison"].attack, 3, launcher) for _ in range(2))
    assert one == two and one.verdict == "refused"
