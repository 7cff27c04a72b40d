"""What a stream has counted, and its state in a checkpoint."""

from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from typing import Any

import numpy as np

from kalprox.base.tree import Saved, expect, flatten
from kalprox.jobs.model import TableModel
from kalprox.jobs.restoring import checked_state, from_json
from kalprox.learning.pending import PendingRows
from kalprox.model_file import Parts
from kalprox.sources.records import Position

__all__ = ["StreamCounts", "StreamState"]

_WAITING = "stream.pending"


@dataclass(frozen=True)
class StreamCounts:
    """What became of the rows of a stream, and how well those were predicted whose target came.

    Attributes
    ----------
    learned, predicted, waiting, late, bad : int
        The rows of each status, see `kalprox.jobs.stream_output.STATUSES`.
    dropped : int
        Rows that waited for their target, and were dropped for others.
    judged : int
        Predictions, with an interval, whose target has come.
    squares : float
        The sum of their squared errors; of classes, the number of those that were wrong.
    covered : int
        How many targets lay in the interval that was issued; of classes none.
    """

    learned: int = 0
    predicted: int = 0
    waiting: int = 0
    late: int = 0
    bad: int = 0
    dropped: int = 0
    judged: int = 0
    squares: float = 0.0
    covered: int = 0

    def plus(self, **more: float) -> "StreamCounts":
        """Return the counts with these added."""
        return replace(self, **{name: getattr(self, name) + n for name, n in more.items()})

    @property
    def error(self) -> float:
        """The root mean squared error, or for classes the root of the share of wrong ones; NaN before the first one."""
        return (self.squares / self.judged) ** 0.5 if self.judged else float("nan")

    @property
    def coverage(self) -> float:
        """The share of targets in the interval that was issued; NaN before the first one."""
        return self.covered / self.judged if self.judged else float("nan")


@dataclass(frozen=True)
class StreamState:
    """The state of a stream at a moment between two batches of rows.

    Attributes
    ----------
    model : TableModel
    position : Position
        In the input, after the last row of the model and of the output.
    counts : StreamCounts
    pending : PendingRows
    quarantine : dict
        See `kalprox.sources.quarantine.Quarantine.state`.
    """

    model: TableModel
    position: Position
    counts: StreamCounts
    pending: PendingRows
    quarantine: dict[str, Any]

    def parts(self) -> Parts:
        """Return the header and the arrays of a checkpoint: those of the model, and those of the stream."""
        header, arrays = self.model.parts()
        saved: dict[str, Any] = {}
        flatten(_WAITING, self.pending.saved(), saved, arrays)
        header["stream"] = {
            "position": self.position._asdict(),
            "counts": asdict(self.counts),
            "pending": saved,
            "state": {"quarantine": self.quarantine, "account": asdict(self.model.record), "read": 0, "number": 0},
        }
        return header, arrays

    @classmethod
    def restored(
        cls, file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray], *, try_out: bool = True
    ) -> "StreamState":
        """Return the state from what `parts` returned; raise a ValueError for anything else."""
        said, own = header["stream"], {name: a for name, a in arrays.items() if name.startswith(_WAITING)}
        rest = {name: a for name, a in arrays.items() if name not in own}
        model = TableModel.from_parts(file, header, rest, try_out=try_out)
        expect(said["position"].keys() == set(Position._fields))
        expect(said["counts"].keys() == {field.name for field in fields(StreamCounts)})
        position, counts = from_json(Position, said["position"]), from_json(StreamCounts, said["counts"])
        pending = PendingRows.restored(len(model.columns.names), Saved(said["pending"], own), _WAITING)
        quarantine = checked_state(said["state"], model.columns)[3]
        return cls(model, position, counts, pending, quarantine)

    @classmethod
    def rebuilt(cls, file: str | PathLike[str], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
        """Return the parts of the state that these parts describe, to be compared; see `kalprox.model_file.write`."""
        parts, own = cls.restored(file, header, arrays, try_out=False).parts()
        return {**header, **parts}, own
