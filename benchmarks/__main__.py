"""`python -m benchmarks [--quick] [--only linear,l1] [--out FOLDER]`: run, print and write the tables."""

import argparse
import datetime
import json
import time
from importlib import import_module
from pathlib import Path

from benchmarks.harness import measure, one_core
from benchmarks.machine import describe, load
from benchmarks.table import markdown, plain

WORKS = ("linear", "rows", "batches", "l1", "sweep", "from_files", "sigmoid")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="kalprox beside its peers, in one run.")
    parser.add_argument("--quick", action="store_true", help="small sizes, about three minutes")
    parser.add_argument("--only", default=",".join(WORKS), help="works, separated by commas: %(default)s")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder for the results")
    parser.add_argument("--seconds", type=float, help="spent on each peer of each case, about")
    options = parser.parse_args()
    one_core()
    seconds = options.seconds or (0.3 if options.quick else 0.7)
    begin, machine = time.perf_counter(), describe()
    result = {"date": datetime.date.today().isoformat(), "quick": options.quick, "machine": machine, "rows": []}
    only = "" if options.only == ",".join(WORKS) else options.only
    result["only"], chosen = only, f"-{only.replace(',', '-')}" if only else ""
    stem = f"{result['date']}-{machine['words']}{'-quick' if options.quick else ''}{chosen}"
    options.out.mkdir(parents=True, exist_ok=True)
    for work in options.only.split(","):
        for case in import_module(f"benchmarks.{work}").cases(options.quick):
            print(f"{case.name} (d = {case.settings['d']:,}, n = {case.settings['n']:,})", flush=True)
            result["rows"] += measure(f"benchmarks.{work}", case, seconds, print)
            result |= {"load_after": load(), "minutes": round((time.perf_counter() - begin) / 60, 1)}
            (options.out / f"{stem}.json").write_text(json.dumps(plain(result), indent=1) + "\n")
            (options.out / f"{stem}.md").write_text(markdown(result))
    print(markdown(result))
    print(f"Written: {stem}.json and {stem}.md in {options.out}")


if __name__ == "__main__":
    main()
