"""(f) From files: reading alone, reading in blocks with kalprox, a whole fit job, and SGD on the same blocks.

The last case is whole commands on a long file, start-up included: `kalprox fit` from CSV, and Vowpal Wabbit with its
own settings, in one pass, from its own text format. `error` is the relative distance to the exact solution with
intercept.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import FLOOR, Case, Data, Peer, Settings
from benchmarks.linear import floor

_folder = tempfile.TemporaryDirectory(prefix="kalprox-bench-")
_KALPROX, _VW = "kalprox fit, the command", "Vowpal Wabbit, the command"
_PIECE = 100_000  # rows of the long file that are made at a time
_FORMATS = {"Parquet": "parquet", "CSV": "csv", "Arrow": "arrow", "JSON lines": "jsonl"}


def place(name: str) -> str:
    """Return the path of a file that is removed when the benchmark ends."""
    return str(Path(_folder.name) / name)


def cases() -> list[Case]:
    n, long = 100_000, 5_000_000
    others = tuple(peer.name for peer in PEERS if peer.name not in (_KALPROX, _VW))
    return [
        *(
            Case(f"from files, {name}", {"d": 20, "n": n, "file": place(f"rows.{ending}")}, others)
            for name, ending in _FORMATS.items()
        ),
        Case("commands", {"d": 20, "n": long, "file": place("long.csv")}, (_KALPROX, _VW)),
    ]


def data(settings: Settings) -> Data:
    from kalprox.paper import problems

    if settings["file"].endswith("long.csv"):
        return {"solution": _write_long(Path(settings["file"]), settings["n"], settings["d"])}
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


def _write_long(file: Path, n: int, d: int) -> np.ndarray:
    """Write rows as CSV and, beside it, in the format of Vowpal Wabbit; return the ridge solution with intercept."""
    import pyarrow as pa
    import pyarrow.csv

    rng, names = np.random.default_rng(5), [f"x{j}" for j in range(d)]
    theta, gram = rng.standard_normal(d), np.zeros((d + 2, d + 2))
    line = "%r |" + "".join(f" {name}:%r" for name in names) + "\n"
    schema = pa.schema([(name, pa.float64()) for name in ("y", *names)])
    with pa.csv.CSVWriter(file, schema) as writer, file.with_suffix(".vw").open("w") as text:
        for begin in range(0, n, _PIECE):
            X = rng.standard_normal((min(_PIECE, n - begin), d))
            rows = np.column_stack([X @ theta + 2 + rng.standard_normal(len(X)), X])
            writer.write_table(pa.table(list(rows.T), schema=schema))
            text.write("".join(line % tuple(row) for row in rows.tolist()))
            B = np.column_stack([np.ones(len(X)), rows])
            gram += B.T @ B
    centred = gram[1:, 1:] - np.outer(gram[0, 1:], gram[0, 1:]) / n
    return np.linalg.solve(centred[1:, 1:] + np.eye(d), centred[1:, 0])


def judge(settings: Settings, data: Data, peer: Peer, rows: int, answer: Any) -> dict[str, Any]:
    from benchmarks.reference import distance, ridge

    if peer.name in (_KALPROX, _VW):  # whose memory is that of another process
        coef = _coef_of_model(peer.name, answer, settings["d"])
        return {"error": distance(coef, data["solution"]), "peak_mb": None, "import_mb": None}
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


def _command(*args: str) -> Callable[[Data, Settings], Callable[[], str]]:
    """A peer that runs a command on the file; it returns the model file."""

    def build(data: Data, settings: Settings) -> Callable[[], str]:
        file = Path(settings["file"])
        model = str(file.with_name(f"{args[0]}.model"))
        names = {"CSV": str(file), "VW": str(file.with_suffix(".vw")), "MODEL": model}

        def go() -> str:
            subprocess.run(
                [sys.executable, "-m", *(names.get(arg, arg) for arg in args)], check=True, stdout=subprocess.DEVNULL
            )
            return model

        return go

    return build


def _coef_of_model(peer: str, model: str, d: int) -> np.ndarray:
    if peer == _KALPROX:
        from kalprox.jobs.model import TableModel

        return TableModel.load(model).belief.coef
    from vowpalwabbit import Workspace

    fitted = Workspace(f"-t -i {model} --quiet")
    return np.array([fitted.predict(f"| x{j}:1") for j in range(d)]) - fitted.predict("|")


PEERS = [
    Peer(FLOOR, "scipy", floor),
    Peer("pyarrow, reading alone", "pyarrow", _reading),
    Peer("kalprox Table.blocks", "kalprox", _blocks),
    Peer("kalprox FitJob, whole", "kalprox", _job),
    Peer("scikit-learn SGDRegressor on Table.blocks", "scikit-learn", _sgd),
    Peer(_KALPROX, "kalprox", _command("kalprox", "fit", "CSV", "--target", "y", "--out", "MODEL")),
    Peer(_VW, "vowpalwabbit", _command("vowpalwabbit", "-d", "VW", "-f", "MODEL", "--quiet")),
]
