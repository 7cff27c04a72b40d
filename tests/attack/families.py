"""The families of attacks, by name, and how many trials of each are run."""

from typing import NamedTuple

from tests.attack import faults, feeds, fits, kills, models, options, pairs, paths, poison, readers
from tests.attack.trial import Attack

__all__ = ["FAMILIES", "Family"]


class Family(NamedTuple):
    """An attack, and its trials: those of every run of the tests, and all of them. Their seeds begin at 0."""

    attack: Attack
    few: int
    all: int


FAMILIES = {
    "kills": Family(kills.attack, 5, 100),
    "faults": Family(faults.attack, 12, 100),
    "feeds": Family(feeds.attack, 12, 150),
    "paths": Family(paths.attack, 20, 200),
    "poison": Family(poison.attack, 15, 200),
    "pairs": Family(pairs.attack, 15, 200),
    "readers": Family(readers.attack, 15, 300),
    "models": Family(models.attack, 12, 300),
    "fits": Family(fits.attack, 15, 300),
    "options": Family(options.attack, 20, 300),
}
