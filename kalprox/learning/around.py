"""States around other states: each adds something to what another one learns, and leaves all else to it."""

import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Self

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, Sizes, grown, state
from kalprox.information import Information
from kalprox.learning.innovations import Innovations
from kalprox.learning.path import Path
from kalprox.learning.settings import Settings
from kalprox.learning.state import State, Step
from kalprox.sources import Block, Counts, Source

__all__ = ["Around"]


@state
class Around(State):
    """A state that adds something to the rows that another one learns, its `inner` state."""

    inner: State

    @abstractmethod
    def after_step(self, one: Step) -> Self:
        """Return the state after a piece that the inner state has learned; the step is that of the inner state."""

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> Self:
        raise NotImplementedError  # `kalprox.learning.compose` puts it around a state that has started

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple[Self, Counts]:
        raise NotImplementedError

    # ---- learning --------------------------------------------------------------------------------------

    def steps(self, block: Block, rows: int, *, every_row: bool = False, most: int = sys.maxsize) -> Iterator[Step]:
        state = self
        for one in self.inner.steps(block, rows, every_row=every_row, most=most):
            after = state.after_step(one)
            yield one._replace(before=state, after=after)
            state = after
            del one, after  # the next piece does not come on top of them

    def step(
        self, block: Block, found: Innovations | None = None, *, known: bool = True, exact: bool = False
    ) -> tuple[Self, Innovations]:
        inner, found = self.inner.step(block, found, known=known, exact=exact)
        return self.after_step(Step(block, self.inner, inner, found)), found

    def learn(self, block: Block) -> Self:
        return self.step(block)[0]

    # ---- what the inner state says ---------------------------------------------------------------------

    @property
    def core(self) -> State:
        return self.inner.core

    @property
    def linear_information(self) -> Information | None:
        return self.inner.linear_information

    @property
    def targets(self) -> int | None:
        return self.inner.targets

    @property
    def time(self) -> float | None:
        return self.inner.time

    @property
    def effective_rows(self) -> float:
        return self.inner.effective_rows

    @property
    def predicts(self) -> bool:
        return self.inner.predicts

    @property
    def matches_rows(self) -> bool:
        return self.inner.matches_rows

    @property
    def warms_up(self) -> bool:
        return self.inner.warms_up

    def held_rows(self) -> Block | None:
        return self.inner.held_rows()

    @property
    def n_held(self) -> int:
        return self.inner.n_held

    @property
    def sizes(self) -> dict[str, int | None]:
        return self.inner.sizes

    @property
    def fingerprint(self) -> Array:
        return self.inner.fingerprint

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        return self.inner.path(alphas, source)

    # ---- what becomes of the inner state ---------------------------------------------------------------

    def with_settings(self, settings: Settings) -> State:
        return replace(self, settings=settings, inner=self.inner.with_settings(settings))

    def with_features(self, more: int) -> Self:
        return grown(self, more, self.inner.belief.design.outputs or 1)

    def with_origin(self, columns: Array, values: Array) -> Self:
        return replace(self, inner=self.inner.with_origin(columns, values))

    def ahead(self, time: float | None = None) -> Self:
        inner = self.inner.ahead(time)
        return self if inner is self.inner else replace(self, inner=inner)

    def with_new_scorer(self) -> Self:
        return replace(self, inner=self.inner.with_new_scorer())

    def closed(self) -> Self:
        return replace(self, inner=self.inner.closed())

    def without_rows(self) -> Self:
        return replace(self, inner=self.inner.without_rows())

    @classmethod
    def around(cls, inner: State, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> Self:
        """Return the state that was saved under `name` around an inner state that was restored."""
        return saved.tree(cls, name, sizes, settings=settings, inner=inner)
