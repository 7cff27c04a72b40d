"""(f) From files: reading alone, reading in blocks with kalprox, a whole fit job, and SGD on the same blocks.

`error` is the relative distance to the solution with intercept by QR of the rows in memory.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import FLOOR, Case, Data, Peer, Settings
from benchmarks.linear import floor

_folder = tempfile.TemporaryDirectory(prefix="kalprox-bench-")
_FORMATS = {"Parquet": "parquet", "CSV": "csv", "Arrow": "arrow", "JSON lines": "jsonl"}


def cases(quick: bool) -> list[Case]:
    n = 20_000 if quick else 100_000
    return [
        Case(f"from files, {name}", {"d": 20, "n": n, "file": str(Path(_folder.name) / f"rows.{ending}")})
        for name, ending in _FORMATS.items()
    ]


def data(settings: Settings) -> Data:
    from kalprox.paper import problems

    rows = problems.ridge(settings["n"], settings["d"], 5)
    if not Path(settings["file"]).exists():
        _write(Path(settings["file"]), rows.X, rows.y)
    return {"X": rows.X, "y": rows.y}


def _write(file: Path, X: np.ndarray, y: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    table = pa.table({"y": y, **{f"x{j}": X[:, j] for j in range(X.shape[1])}})
    if file.suffix == ".parquet":
        pa.parquet.write_table(table, file, row_group_size=65_536)
    elif file.suffix == ".csv":
        pa.csv.write_csv(table, file)
    elif file.suffix == ".arrow":
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=65_536)
    else:
        line = "{" + ",".join(f'"{name}":%r' for name in table.column_names) + "}\n"
        rows = np.column_stack([y, X]).tolist()
        file.write_text("".join(line % tuple(row) for row in rows))


def judge(settings: Settings, data: Data, peer: Peer, rows: int, answer: Any) -> dict[str, Any]:
    from benchmarks.reference import distance, ridge

    if peer.name == FLOOR or not isinstance(answer, np.ndarray):
        return {"rows_per_s": None}
    X, y = data["X"], data["y"]
    return {"error": distance(answer, ridge(X - X.mean(axis=0), y - y.mean(), 1.0))}


def _reading(data: Data, settings: Settings) -> Callable[[], Any]:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    file = settings["file"]

    def batches() -> Iterator[Any]:
        if file.endswith("parquet"):
            return pa.parquet.ParquetFile(file).iter_batches(8192)
        if file.endswith("csv"):
            return iter(pa.csv.open_csv(file))
        if file.endswith("arrow"):
            reader = pa.ipc.open_file(pa.OSFile(file))
            return (reader.get_batch(i) for i in range(reader.num_record_batches))
        return iter(pa.json.read_json(file).to_batches())

    return lambda: sum(batch.num_rows for batch in batches())


def _table(settings: Settings) -> Any:
    from kalprox.sources.columns import Columns
    from kalprox.sources.table import Table

    files = [Path(settings["file"])]
    return Table(files, Columns.infer(files, "y"))


def _blocks(data: Data, settings: Settings) -> Callable[[], Any]:
    _table(settings)
    return lambda: sum(len(block.y) for block in _table(settings).blocks())


def _job(data: Data, settings: Settings) -> Callable[[], Any]:
    from kalprox.jobs.fit import FitJob

    return lambda: FitJob(_table(settings), {}).run().model.coef_


def _sgd(data: Data, settings: Settings) -> Callable[[], Any]:
    from sklearn.linear_model import SGDRegressor

    def go() -> Any:
        model = SGDRegressor(alpha=1 / settings["n"], random_state=0)
        for block in _table(settings).blocks():
            model.partial_fit(block.X, block.y)
        return model.coef_

    return go


PEERS = [
    Peer(FLOOR, "scipy", floor),
    Peer("pyarrow, reading alone", "pyarrow", _reading),
    Peer("kalprox Table.blocks", "kalprox", _blocks),
    Peer("kalprox FitJob, whole", "kalprox", _job),
    Peer("scikit-learn SGDRegressor on Table.blocks", "scikit-learn", _sgd),
]
