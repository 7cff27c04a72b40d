"""States around other states: each adds something to what another one learns, and leaves all else to it."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, Sizes, grown, state
from kalprox.learning.innovations import Innovations
from kalprox.learning.settings import Settings
from kalprox.learning.state import Core, State, Step
from kalprox.sources import Block

__all__ = ["Around"]


@state
class Around(State):
    """A state that adds something to the rows that another one learns, its `inner` state."""

    inner: State

    @abstractmethod
    def after_step(self, one: Step) -> Self:
        """Return the state after a piece that the inner state has learned; the step is that of the inner state."""

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

    @property
    def core(self) -> Core:
        return self.inner.core

    # ---- what becomes of the inner state ---------------------------------------------------------------

    def with_settings(self, settings: Settings) -> State:
        return replace(self, settings=settings, inner=self.inner.with_settings(settings))

    def with_features(self, more: int) -> Self:
        return grown(self, more, self.inner.belief.design.outputs or 1)

    def with_origin(self, columns: Array, values: Array) -> Self:
        return replace(self, inner=self.inner.with_origin(columns, values))

    def with_core(self, change: Callable[[Core], Core]) -> Self:
        return replace(self, inner=self.inner.with_core(change))

    def closed(self) -> Self:
        return replace(self, inner=self.inner.closed())

    def without_rows(self) -> Self:
        return replace(self, inner=self.inner.without_rows())

    @classmethod
    def around(cls, inner: State, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> Self:
        """Return the state that was saved under `name` around an inner state that was restored."""
        return saved.tree(cls, name, sizes, settings=settings, inner=inner)
