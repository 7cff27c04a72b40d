"""What every run of a fit shares: the account of the rows, the bad ones, the checkpoint, and what it tells."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.estimators import KalproxRegressor
from kalprox.jobs.checkpoint import Checkpoint
from kalprox.jobs.model import TableModel
from kalprox.jobs.record import FitRecord
from kalprox.sources.quarantine import Quarantine
from kalprox.sources.table import Block, Cursor

if TYPE_CHECKING:
    from kalprox.jobs.fit import FitJob

__all__ = ["Progress", "Run"]


@dataclass(frozen=True)
class Progress:
    """Where a job stands after a block. rmse, coverage: of the rows predicted so far before they were learned."""

    rows: int  # read, in this pass
    bad: int
    share: float | None  # of the source, in this pass; None where its size is not known
    number: int  # of the pass, from 0
    rmse: float = float("nan")
    coverage: float = float("nan")
    checkpoint: bool = False  # whether one was written just now


class Run(ABC):
    """A fit under way."""

    quarantine: Quarantine | None = None

    def __init__(self, job: "FitJob", checkpoint: Checkpoint | None) -> None:
        self.job, self.checkpoint = job, checkpoint
        self.identity = job.identity() if checkpoint is not None else {}
        self.record, self.read, self.number = FitRecord(), 0, 0

    @abstractmethod
    def run(self) -> TableModel:
        """The fitted model."""

    def load(self) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """What the checkpoint holds; the quarantine goes on from there."""
        saved = None if self.checkpoint is None else self.checkpoint.load(self.identity)
        state = None if saved is None else saved[0]["state"]
        self.quarantine = Quarantine(self.job.quarantine, self.job.max_bad, resume=state and state["quarantine"])
        if state is not None:
            self.record, self.read, self.number = FitRecord.from_json(state["account"]), state["read"], state["number"]
        return saved

    def save(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        assert self.checkpoint is not None and self.quarantine is not None
        state = {
            "quarantine": self.quarantine.state(),
            "account": self.record.to_json(),
            "read": self.read,
            "number": self.number,
        }
        self.checkpoint.save(self.identity, {**header, "state": state}, arrays)

    def take(self, block: Block, number: int) -> None:
        """Count a block of the pass `number`; its bad rows are judged in the first."""
        assert self.quarantine is not None
        if number != self.number:
            self.number, self.read = number, 0
        self.read += len(block.rows)
        if number == 0:
            self.quarantine.take(block.bad, len(block.rows))
            self.record = replace(self.record, quality=self.record.quality.after(block))

    def tell(self, cursor: Cursor, *, saved: bool = False, **score: float) -> None:
        bad, share = self.record.quality.bad, self.job.table.done(cursor)
        self.job.watch(Progress(self.read, bad, share, self.number, checkpoint=saved, **score))

    def finished(self, model: KalproxRegressor) -> TableModel:
        assert self.quarantine is not None
        self.quarantine.finish()
        return TableModel(model, self.job.table.columns, self.record, self.job.sources)
