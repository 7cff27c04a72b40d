"""The cost of engines by rows, columns, partitions and processes; it gives the numbers of docs/how-to/clusters.md.

Run it: OPENBLAS_NUM_THREADS=1 python benchmarks/scaling.py [strong] [weak] [merge] [bytes]
"""

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from kalprox import engines
from kalprox.engines import EngineSource, partitions_of
from kalprox.engines.base import PartialFold, Tree
from kalprox.information import Information, merge
from kalprox.sources.columns import Columns

PARTITIONS = (1, 4, 16, 64, 256)


def write(folder: Path, rows: int, d: int, files: int) -> Columns:
    """Write rows of a linear model to Parquet files, and return their columns."""
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(d)]
    folder.mkdir()
    share = rows // files
    for i in range(files):
        X = rng.normal(size=(share, d))
        y = X @ np.linspace(-1, 1, d) + rng.normal(size=share)
        pq.write_table(pa.table([*X.T.copy(), y], names=[*names, "y"]), folder / f"{i:03}.parquet", compression="lz4")
    return Columns(target="y", numeric=tuple(names))


def seconds(run: Callable[[], Any], times: int = 3) -> float:
    """Return the shortest of a few runs, since other processes share the machine."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def processor() -> float:
    """Return the CPU time of this process and its children in seconds."""
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (me, *me.children(recursive=True)))


def one_pass(engine: Any, folder: Path, columns: Columns, n: int, times: int = 3) -> tuple[float, float]:
    """Return the shortest wall-clock time of a few passes, and the CPU time per pass."""
    partitions = partitions_of(str(folder), columns, n=n)
    assert len(partitions) == n
    before = processor()
    found = seconds(lambda: EngineSource(engine, partitions).fold(Information.from_block), times)
    return found, (processor() - before) / times


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def strong(folder: Path, rows: int = 1 << 20, d: int = 20) -> None:
    """Measure strong scaling: the same rows with more partitions and processes."""
    columns = write(folder / "strong", rows, d, PARTITIONS[-1])
    print(f"strong: {rows:,} rows, d = {d}, partitions: seconds a pass (of processor time); {load()}")
    for kind in ("processes", "dask"):
        for workers in (1, 2):
            with engines.open(kind, workers=workers) as engine:
                one_pass(engine, folder / "strong", columns, 2)  # warm-up: the workers import their modules
                found = {n: one_pass(engine, folder / "strong", columns, n) for n in PARTITIONS}
            row = "  ".join(f"{n}: {clock:.2f} ({cpu:.2f})" for n, (clock, cpu) in found.items())
            print(f"  {kind:9} {workers}: {row}; {load()}", flush=True)


def weak(folder: Path, rows: int = 1 << 19, d: int = 20) -> None:
    """Measure weak scaling: twice the rows with twice the processes."""
    print(f"weak: {rows:,} rows in 128 files and 16 partitions a process, d = {d}, seconds a pass (of processor time)")
    for workers in (1, 2):
        columns = write(folder / f"weak{workers}", workers * rows, d, workers * 128)
        with engines.open("processes", workers=workers) as engine:
            one_pass(engine, folder / f"weak{workers}", columns, 2)
            clock, cpu = one_pass(engine, folder / f"weak{workers}", columns, 16 * workers)
        print(f"  {workers}: {clock:.2f} ({cpu:.2f}); {load()}", flush=True)


def of_rows(d: int, seed: int = 0) -> Information:
    rng = np.random.default_rng(seed)
    return Information.from_rows(rng.normal(size=(2 * d, d)), rng.normal(size=2 * d))


def merging(n: int = 10_000) -> None:
    """Measure the merge tree of 10^4 partitions on one core; for d = 500 a part of it."""
    print(f"merge: {load()}")
    for d, many in ((50, n), (100, n // 4), (500, 64)):
        few = [of_rows(d, seed) for seed in range(8)]

        def tree(few: list[Information] = few, many: int = many) -> None:
            found = Tree()
            for i in range(many):
                found.put(i, PartialFold(few[i % 8]))
            found.result()

        each = seconds(tree, 1) / (many - 1)
        depth = int(np.ceil(np.log2(n)))
        print(
            f"  d = {d}: {1e3 * each:.2f} ms a merge, {n * each:.1f} s for {n:,} on one core, {depth * each:.3f} s deep"
        )
    a, b = of_rows(20), of_rows(20, 1)
    print(f"  d = 20: {1e6 * seconds(lambda: [merge(a, b) for _ in range(100)]) / 100:.0f} us a merge", flush=True)


def travels() -> None:
    """Measure the bytes of one total, and the seconds to fold a row and to merge two totals."""
    for d in (20, 50, 100, 500):
        size = len(pickle.dumps(of_rows(d), 5))
        rng = np.random.default_rng(0)
        rows = 1 << 13
        X, y = rng.normal(size=(rows, d)), rng.normal(size=rows)
        info = Information.from_rows(X, y)
        row = seconds(lambda X=X, y=y, info=info: info.fold(X, y), 5) / rows
        print(f"  d = {d}: {size:,} bytes a total, {1e6 * row:.2f} us a row folded", flush=True)
    print(f"  {load()}")


if __name__ == "__main__":
    asked = sys.argv[1:] or ["bytes", "merge", "weak", "strong"]
    with tempfile.TemporaryDirectory() as name:
        for one in asked:
            {
                "strong": lambda: strong(Path(name)),
                "weak": lambda: weak(Path(name)),
                "merge": merging,
                "bytes": travels,
            }[one]()
