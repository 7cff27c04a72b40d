"""Measure, and fill docs/explanation/intervals.md: `python -m benchmarks.uncertainty [--seeds 200] [--quick]`.

Streams whose truth is known run in two processes, real data after them. All numbers are kept in one JSON file, from
which the tables and figures are made; with --only, the other numbers in the file stay.
"""

import argparse
import datetime
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.harness import one_core
from benchmarks.machine import describe
from benchmarks.table import plain

ROOT = Path(__file__).parent
PARTS = ("streams", "settings", "flights", "bikeshare", "series")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uncertainty", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200, help="streams of each kind (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="8 streams of each kind and a part of the real data")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas: %(default)s")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "results" / "uncertainty.json", help="file of the numbers"
    )
    parser.add_argument(
        "--page", type=Path, default=ROOT.parent / "docs" / "explanation" / "intervals.md", help="page to rewrite"
    )
    options = parser.parse_args()
    one_core()
    from benchmarks.uncertainty_page import write_page

    result = json.loads(options.results.read_text()) if options.results.exists() else {}
    for part in options.only.split(","):
        begin = time.perf_counter()
        for found in run(part, 8 if options.quick else options.seeds, options.quick):
            result[part] = plain(found) | {
                "date": datetime.date.today().isoformat(),
                "cpu": describe()["cpu"],
                "minutes": round((time.perf_counter() - begin) / 60, 1),
                "quick": options.quick,
            }
            options.results.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{part}: {result[part]['minutes']} minutes", flush=True)
    write_page(options.page, result)
    print(f"Written: {options.results} and {options.page}")


def run(part: str, seeds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the numbers of one part of the page, all that are there so far."""
    from benchmarks.coverage import KINDS, SETTINGS, measure, setting

    if part not in ("streams", "settings"):
        from benchmarks.real_streams import REAL

        yield REAL[part](quick)
        return
    one, names = (measure, KINDS) if part == "streams" else (setting, SETTINGS)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as workers:
        found: dict[str, Any] = {"seeds": seeds}
        for name in names:
            found[name] = _summaries(workers, one, name, seeds)
            yield found


def _summaries(workers: ProcessPoolExecutor, one: Any, name: str, seeds: int) -> dict[str, Any]:
    """Return the summary of everything that was found on the streams of one kind, by its name."""
    from benchmarks.coverage import KINDS, summary

    runs = list(workers.map(partial(one, name), range(seeds), chunksize=max(seeds // 20, 1)))
    print(f"  {name}", flush=True)
    found: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs]
        if key == "verdict":
            found[key] = summary([word == KINDS[name] for word in values])._asdict()
            found["words"] = {word: values.count(word) for word in sorted(set(values), key=values.count, reverse=True)}
        elif key.startswith("interval"):
            found[key] = values[:50]
        elif isinstance(first, dict):
            found[key] = {part: summary([value[part] for value in values])._asdict() for part in first}
        else:
            found[key] = summary(values)._asdict()
    return found


if __name__ == "__main__":
    main()
