"""Large models, and docs/explanation/large.md: `python -m benchmarks.large [--quick] [--only linear,lenet]`.

Each section is a module of this package with two functions: `measure(quick)` returns the numbers, and `parts(numbers)`
the tables, as Markdown, by the names of their places in the page. All numbers are kept in one JSON file; with --only,
the numbers of the other sections stay.
"""

import argparse
import datetime
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import one_core
from benchmarks.large import accelerator
from benchmarks.machine import describe, load
from benchmarks.page import insert
from benchmarks.table import plain

ROOT = Path(__file__).parents[1]
SECTIONS: tuple[str, ...] = ("linear", "sigmoid", "streams", "lenet")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and parameters")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas: %(default)s")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "large.json", help="file of the numbers")
    parser.add_argument(
        "--page", type=Path, default=ROOT.parent / "docs" / "explanation" / "large.md", help="page to rewrite"
    )
    options = parser.parse_args()
    one_core()
    results: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {}
    for section in options.only.split(","):
        begin = time.perf_counter()
        numbers = import_module(f"benchmarks.large.{section}").measure(options.quick)
        results[section] = {
            "date": datetime.date.today().isoformat(),
            "cpu": describe()["cpu"],
            "load": load()[0],
            "minutes": round((time.perf_counter() - begin) / 60, 1),
            "quick": options.quick,
            "numbers": numbers,
        }
        options.results.write_text(json.dumps(plain(results), indent=1) + "\n")
    write_page(options.page, results)
    print(f"Written: {options.results} and {options.page}")


def write_page(page: Path, results: dict[str, Any]) -> None:
    """Insert the tables of all sections into the page, and under each section when it was measured."""
    parts = {}
    for section, found in results.items():
        tables: dict[str, str] = import_module(f"benchmarks.large.{section}").parts(found["numbers"])
        tables[f"{section} run"] = (
            f"{found['date']}, {found['cpu']}, {found['minutes']} minutes{', --quick' * found['quick']}, with a load "
            f"of {found['load']:.1f}: above 1, other processes were running too, and the times are too long."
        )
        parts |= {name: f"\n{text}\n" for name, text in tables.items()}
    on_device = accelerator.parts(json.loads((ROOT / "results" / "large-h200.json").read_text()))
    insert(page, parts | {name: f"\n{text}\n" for name, text in on_device.items()})


if __name__ == "__main__":
    main()
