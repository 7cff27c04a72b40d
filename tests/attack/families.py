"""The families of attacks, by name, and how many trials of each are run."""

from typing import NamedTuple

from tests.attack import faults, feeds, fits, kills, models, options, pairs, paths, poison, readers
from tests.attack.trial import Attack

__all__ = ["FAMILIES", "Family"]


class Family(NamedTuple):
    """An attack, and the number of its trials, whose seeds begin at 0."""

    attack: Attack
    trials: int


FAMILIES = {
    "kills": Family(kills.attack, 100),
    "faults": Family(faults.attack, 100),
    "feeds": Family(feeds.attack, 150),
    "paths": Family(paths.attack, 200),
    "poison": Family(poison.attack, 200),
    "pairs": Family(pairs.attack, 200),
    "readers": Family(readers.attack, 300),
    "models": Family(models.attack, 300),
    "fits": Family(fits.attack, 300),
    "options": Family(options.attack, 300),
}
