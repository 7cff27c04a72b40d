"""`python -m benchmarks [--quick [--keep]] [--only linear,l1] [--out FOLDER]`: run, print and write the tables."""

import argparse
import datetime
import json
import time
from importlib import import_module
from pathlib import Path

from benchmarks import quick
from benchmarks.harness import measure, one_core
from benchmarks.machine import describe, load
from benchmarks.table import markdown, plain

WORKS = ("linear", "rows", "batches", "l1", "sweep", "from_files", "sigmoid")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="kalprox beside its peers, in one run.")
    parser.add_argument(
        "--quick", action="store_true", help="the main jobs as ratios, before and after, in three minutes"
    )
    parser.add_argument("--keep", action="store_true", help="with --quick: keep these ratios for later comparisons")
    parser.add_argument("--only", default="", help=f"some of {','.join(WORKS)}; with --quick, parts of names of jobs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder for the results")
    parser.add_argument("--seconds", type=float, help="spent on each peer of each case, about")
    options = parser.parse_args()
    one_core()
    if options.quick:
        quick.main(options.out / "quick.json", options.keep, options.only, options.seconds or 0.5)
        return
    begin, machine = time.perf_counter(), describe()
    result = {"date": datetime.date.today().isoformat(), "machine": machine, "rows": []}
    only = result["only"] = options.only
    chosen = f"-{only.replace(',', '-')}" if only else ""
    stem = f"{result['date']}-{machine['words']}{chosen}"
    options.out.mkdir(parents=True, exist_ok=True)
    for work in only.split(",") if only else WORKS:
        for case in import_module(f"benchmarks.{work}").cases():
            print(f"{case.name} (d = {case.settings['d']:,}, n = {case.settings['n']:,})", flush=True)
            result["rows"] += measure(f"benchmarks.{work}", case, options.seconds or 0.7, print)
            result |= {"load_after": load(), "minutes": round((time.perf_counter() - begin) / 60, 1)}
            (options.out / f"{stem}.json").write_text(json.dumps(plain(result), indent=1) + "\n")
            (options.out / f"{stem}.md").write_text(markdown(result))
    print(markdown(result))
    print(f"Written: {stem}.json and {stem}.md in {options.out}")


if __name__ == "__main__":
    main()
