"""The families of attacks, by name."""

from tests.attack import faults, fits, kills, models, pairs, paths, poison, readers
from tests.attack.trial import Attack

__all__ = ["FAMILIES"]

FAMILIES: dict[str, Attack] = {
    "kills": kills.attack,
    "faults": faults.attack,
    "paths": paths.attack,
    "poison": poison.attack,
    "pairs": pairs.attack,
    "readers": readers.attack,
    "models": models.attack,
    "fits": fits.attack,
}
