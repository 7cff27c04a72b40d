"""`python -m tests.attack [--family kills] [--seed 0] [--n 200]`: attack kalprox, and count what it survives.

Prints a table of the families, and how to repeat each trial that was wrong; ends with 1 if there was one. With --page,
the counts are kept in a file of numbers, and the table of docs/explanation/reliability.md is written anew from it.
"""

import argparse
import collections
import sys
import time
from pathlib import Path

from tests.attack.families import FAMILIES
from tests.attack.launcher import Launcher
from tests.attack.page import table, update
from tests.attack.trial import REFUSED, SURVIVED, WRONG, Trial, attempt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__.splitlines()[0])
    parser.add_argument("--family", default=",".join(FAMILIES), help="families, separated by commas: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first trial (default %(default)s)")
    parser.add_argument("--n", type=int, help="trials of each family (default: all)")
    parser.add_argument("--keep", type=Path, help="folder for the files of the trials, which are removed by default")
    parser.add_argument("--page", choices=["before", "after"], help="write the counts into this column of the page")
    options = parser.parse_args()
    found: dict[str, list[Trial]] = {}
    with Launcher() as launcher:
        for family in options.family.split(","):
            begin, found[family] = time.monotonic(), []
            for seed in range(options.seed, options.seed + (options.n or FAMILIES[family].trials)):
                keep = None if options.keep is None else options.keep / f"{family}-{seed}"
                trial = attempt(family, FAMILIES[family].attack, seed, launcher, keep)
                found[family].append(trial)
                if trial.verdict == WRONG:
                    print(f"python -m tests.attack --family {family} --seed {seed} --n 1\n    {trial.why}", flush=True)
            print(f"{family}: {time.monotonic() - begin:.0f} s", flush=True)
    counts = {family: collections.Counter(trial.verdict for trial in trials) for family, trials in found.items()}
    plain = {f: {name: c[name] for name in (SURVIVED, REFUSED, WRONG)} for f, c in counts.items()}
    print(table({"now": plain}))
    if options.page:
        update(options.page, plain)
    return int(any(count[WRONG] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
