"""Deliberate faults in copies of the package, each of which tests/behaviour must catch by itself: `make faults`.

Each fault replaces one place in one file of the package. A fault that does not apply any more is an error: the code has
changed, and the fault is to be written for what is there now.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
NUMBERS = "test_numbers.py"


class Fault(NamedTuple):
    """What is wrong, and how it is made so: in the file `path` of the package `old` becomes `new`.

    The tests of the file `first` are tried before all others, the slow ones too.
    """

    wrong: str
    path: str
    old: str
    new: str
    first: str = NUMBERS


FAULTS = (
    Fault("the degrees of freedom are not subtracted", "noise.py", "dof = rows - edf", "dof = rows - 1"),
    Fault("rows before a batch do not fade", "learning/exact.py", "info.forget(given.left)", "info.forget(1.0)"),
    Fault("a window holds a row too few", "learning/drift.py", "len(found) - self.size", "len(found) - self.size + 1"),
    Fault(
        "a half-life is a time constant",
        "forgetting.py",
        "np.exp2(-np.asarray(self.half_lives(since, now)))",
        "np.exp(-np.asarray(self.half_lives(since, now)))",
    ),
    Fault(
        "a precision counts as rows",
        "sources/weighting.py",
        'weights is None or kind == "frequency" else',
        "weights is None or kind else",
    ),
    Fault(
        "a weight enters robust errors squared",
        "learning/sandwich.py",
        "u * np.sqrt(weights)[:, None]",
        "u * weights[:, None]",
        "test_weights_and_clusters.py",
    ),
    Fault(
        "a cluster forgets its rows of an earlier batch",
        "learning/sandwich.py",
        "sums, strict=True):\n            groups[name] = groups[name] + s if name in groups else s",
        "sums, strict=True):\n            groups[name] = s",
        "test_weights_and_clusters.py",
    ),
    Fault(
        "a step of a walk is its variance",
        "learning/drift.py",
        "q = np.sqrt(walk.steps(d, intercept=intercept))",
        "q = walk.steps(d, intercept=intercept)",
    ),
    Fault(
        "the first level of a column of text is the rarest",
        "sources/inference.py",
        "key=lambda level: level != first",
        "key=lambda level: level == first",
        "test_columns_of_text.py",
    ),
    Fault(
        "a resumed pass counts the rows before the checkpoint twice",
        "jobs/run.py",
        "self.job.table.blocks_ahead(cursor)",
        "self.job.table.blocks_ahead(None)",
        "test_sorted_files.py",
    ),
    Fault(
        "the last partition of an engine is lost",
        "engines/base.py",
        "while len(self._unmerged) > 1:",
        "while len(self._unmerged) > 99:",
        "test_several_targets_on_engines.py",
    ),
    Fault(
        "an interval of Student's t is a normal one",
        "predictive/student.py",
        "standard_quantile(self.dof, (1 + level) / 2)",
        "standard_quantile(np.inf + 0 * np.asarray(self.dof), (1 + level) / 2)",
    ),
    Fault(
        "a column is not divided by its standard deviation",
        "learning/linear.py",
        "T = T / np.concatenate([self.scale, np.ones(T.shape[1] - info.d)])",
        "T = T / np.concatenate([self.scale * 0 + 1, np.ones(T.shape[1] - info.d)])",
    ),
    Fault(
        "the evidence takes the intercept for no parameter",
        "learning/linear.py",
        "- intercept * float(equations.fading)",
        "- 0 * intercept * float(equations.fading)",
        "test_alpha.py",
    ),
    Fault(
        "a column of the scores has no centre",
        "learning/sandwich.py",
        "np.hstack([np.ones((len(X), 1)), X - self.center])",
        "np.hstack([np.ones((len(X), 1)), X])",
    ),
    Fault(
        "a moment of a merged stream ignores how far the means are apart",
        "learning/design.py",
        "self.squares + other.squares + self.rows * share * apart**2",
        "self.squares + other.squares",
        "test_merged_streams.py",
    ),
    Fault(
        "merged quantiles are those of one stream",
        "learning/tracking.py",
        "self.ends + share * (other.ends - self.ends)",
        "self.ends",
        "test_conformal_weights.py",
    ),
    Fault(
        "the bank mixes without its past",
        "learning/mixed.py",
        "after = shared @ (w * said)",
        "after = shared @ (0 * w + said)",
        "test_drifting_rows.py",
    ),
    Fault(
        "the labels of classes are swapped",
        "estimators/classes.py",
        "codes = order[np.minimum",
        "codes = order[::-1][np.minimum",
    ),
    Fault(
        "a path of alphas is in another order than its alphas",
        "learning/linear.py",
        "return (beliefs.pop(i) for i in range(len(alphas)))",
        "return (beliefs.pop(i) for i in reversed(range(len(alphas))))",
        "test_alpha.py",
    ),
    Fault(
        "missing features leave no variance",
        "learning/gaps.py",
        "spread[np.ix_(u, u)] += weights[one].sum() * C",
        "spread[np.ix_(u, u)] += 0 * weights[one].sum() * C",
    ),
    Fault(
        "a Poisson rate is off by its curvature",
        "likelihoods/counts.py",
        "mean = namespace(f).exp(f)",
        "mean = namespace(f).exp(f) * 1.001",
    ),
    Fault(
        "a late target may come for a row of another key",
        "learning/pending.py",
        "return self._rows.pop(key, None)",
        "return self._rows.pop(next(iter(self._rows), key), None)",
        "test_late.py",
    ),
    Fault(
        "the inputs of the noise have no mean among them",
        "learning/input_noise.py",
        "R, z = np.asarray(equations.R), np.asarray(equations.z)",
        "R, z = np.asarray(equations.R), -np.asarray(equations.z)",
    ),
)


def apply(fault: Fault, package: Path) -> None:
    """Make the fault in a copy of the package; raise a ValueError if its place is not found exactly once."""
    path = package / fault.path
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.wrong}: {fault.old!r} is there {text.count(fault.old)} times in {fault.path}.")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")


def caught(fault: Fault, arguments: list[str]) -> str:
    """Return the name of the first test that fails with the fault, or "" if none does."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("kalprox", "tests"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("conftest.py", "pyproject.toml", "README.md", "CHANGELOG.md", "docs", "examples"):
            (root / name).symlink_to(ROOT / name)
        apply(fault, root / "kalprox")
        first = f"tests/behaviour/{fault.first}"
        for tests in ([first], [first, "-m", "slow"], ["tests/behaviour", f"--ignore={first}"]):
            command = [sys.executable, "-m", "pytest", *tests, "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
            environment = os.environ | {"PYTHONPATH": str(root)}
            done = subprocess.run(
                [*command, *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
            )
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            if failed:
                return failed[0].split(" - ")[0].split(maxsplit=1)[1]
            if done.returncode not in (0, 5):  # 5: there are no such tests
                raise RuntimeError(
                    f"{fault.wrong}: pytest ended with {done.returncode}.\n{done.stdout[-2000:]}{done.stderr}"
                )
    return ""


def main() -> int:
    """Try the faults, and print which test catches each; 1 if one is caught by none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that every fault still applies")
    parser.add_argument("--from", dest="start", type=int, default=0, metavar="N", help="start with the fault N")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest")
    given = parser.parse_args()
    missed = 0
    for number, fault in list(enumerate(FAULTS))[given.start :]:
        if given.check:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / fault.path
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / "kalprox" / fault.path, copy)
                apply(fault, Path(folder))
            continue
        begin = time.monotonic()
        by = caught(fault, given.pytest)
        missed += not by
        print(f"{number:2} {fault.wrong}: {by or 'NOT CAUGHT'} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(FAULTS) - given.start} faults, {missed} not caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
