"""`kalprox stream`: rows a second, the time from a row to its answer, and memory, in a real process with pipes."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import grid

WIDTHS = (10, 50)
MANY, FEW = 1_000_000, 10_000  # rows after which the memory is compared


def measure(quick: bool) -> dict[str, Any]:
    """Return memory, and rates and latencies: with real-time priority if that is allowed, since other programs run."""
    alone = _priority()
    memory = _memory(MANY // (20 if quick else 1))
    rows, asked = (4000, 1000) if quick else (10_000, 3000)
    rates = [
        {"d": d, "format": form, "flush": flush, "rate": _rate(_lines(rows, d, form), flush)}
        for d in WIDTHS
        for form in ("jsonl", "csv")
        for flush in (1, 100)
    ]
    asks = [(10, "jsonl", False), (10, "csv", False)]
    asks += [(50, form, watch) for form in ("jsonl", "csv") for watch in (False, True)]
    latencies = [
        {"d": d, "format": form, "watch": watch} | _latency(_lines(asked, d, form), watch) for d, form, watch in asks
    ]
    return {"alone": alone, "rows": rows, "asked": asked, "rates": rates, "latencies": latencies, "memory": memory}


def parts(numbers: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page."""
    rates = [[str(r["d"]), r["format"], str(r["flush"]), f"{r['rate']:,.0f}"] for r in numbers["rates"]]
    latencies = [
        [
            str(r["d"]),
            r["format"],
            "yes" if r["watch"] else "no",
            *(f"{1000 * r[name]:.2f}" for name in ("p50", "p99", "most")),
        ]
        for r in numbers["latencies"]
    ]
    memory = numbers["memory"]
    megabytes = [[f"{row['rows']:,}", f"{row['bytes'] / 2**20:.0f} MB"] for row in memory]
    how = (
        " Feeder and stream shared one core, with real-time priority, since other programs ran on the machine."
        * bool(numbers["alone"])
    )
    return {
        "stream rates": grid(["columns", "format", "--flush", "rows a second"], rates)
        + f"\n\n{numbers['rows']:,} rows.{how}",
        "stream latency": grid(["columns", "format", "--watch", "p50 (ms)", "p99 (ms)", "most (ms)"], latencies)
        + f"\n\n{numbers['asked']:,} rows, the first 100 left out.{how}",
        "stream memory": grid(["rows", "memory"], megabytes) + f"\n\nThe growth is {_growth(memory)}.",
    }


def _growth(memory: list[dict[str, int]]) -> str:
    return f"{(memory[-1]['bytes'] - memory[0]['bytes']) / 2**20:.1f} MB"


def _priority() -> bool:
    """Take one core, with real-time priority, for this process and those it starts; return whether that was allowed."""
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return True
    return False


def _lines(n: int, d: int, form: str) -> list[bytes]:
    """The header of CSV, and rows of a linear model with noise 1."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((n, d)).round(6)
    y = (X @ rng.standard_normal(d) + rng.standard_normal(n)).round(6)
    names = ["y", *(f"x{j}" for j in range(d))]
    rows = np.column_stack([y, X]).tolist()
    if form == "jsonl":
        return [json.dumps(dict(zip(names, row, strict=True))).encode() + b"\n" for row in rows]
    texts = [",".join(names), *(",".join(map(repr, row)) for row in rows)]
    return [text.encode() + b"\n" for text in texts]


@contextmanager
def _stream(*options: Any, stdin: Any = subprocess.PIPE) -> Any:
    command = [sys.executable, "-m", "kalprox", "stream", "--target", "y", "--quiet", *map(str, options)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as run:
        yield run


def _rate(lines: list[bytes], flush: int) -> float:
    """Rows a second of a file, from the first answer to the last one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        file.write_bytes(b"".join(lines))
        with open(file, "rb") as rows, _stream("--flush", flush, "--infer-rows", 1, stdin=rows) as run:
            run.stdout.readline()
            begin, answered = time.perf_counter(), sum(1 for _ in run.stdout)
            return answered / (time.perf_counter() - begin)


def _latency(lines: list[bytes], watch: bool) -> dict[str, float]:
    """Seconds from writing a line to reading its answer, one row after the other."""
    seconds = []
    with _stream("--infer-rows", 1, *(("--watch", 0) if watch else ())) as run:
        if not lines[0].startswith(b"{"):
            run.stdin.write(lines[0] + lines[1])
            run.stdin.flush()
            run.stdout.readline(), run.stdout.readline()
            lines = lines[2:]
        for line in lines:
            begin = time.perf_counter()
            run.stdin.write(line)
            run.stdin.flush()
            run.stdout.readline()
            seconds.append(time.perf_counter() - begin)
        run.stdin.close()
    some = np.array(seconds[100:])
    return {"p50": float(np.quantile(some, 0.5)), "p99": float(np.quantile(some, 0.99)), "most": float(some.max())}


def _memory(rows: int) -> list[dict[str, int]]:
    """Resident memory after 10,000 rows, a tenth of all and all rows."""
    header, *lines = _lines(10_000, 5, "csv")
    marks = sorted({FEW, rows // 10, rows})
    with _stream("--flush", 100, "--infer-rows", 1) as run:
        writer = threading.Thread(
            target=_write, args=(run.stdin, header, b"".join(lines), rows // len(lines) + 1), daemon=True
        )
        writer.start()
        found = []
        for answered, _ in enumerate(run.stdout):  # after the header
            if answered in marks:
                found.append({"rows": answered, "bytes": _resident(run.pid)})
        writer.join()
    return found


def _write(pipe: Any, header: bytes, data: bytes, times: int) -> None:
    pipe.write(header)
    for _ in range(times):
        pipe.write(data)
    pipe.close()


def _resident(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
