"""States: what a learner keeps of its rows, how it learns more of them, and what it predicts of each before that."""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import PickledFields, Saved, Sizes, grown, leaf, state
from kalprox.information import Information
from kalprox.learning.belief import Belief
from kalprox.learning.innovations import Innovations, may_overflow
from kalprox.learning.merging import fingerprint
from kalprox.learning.path import Path
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings
from kalprox.sources import ArraySource, Block, Counts, Source
from kalprox.sources.weighting import faded, in_order

FIRST_PIECE = 32  # rows of the first piece of a batch that a state without an exact row-by-row update predicts


def check_any_row(counts: Counts) -> None:
    """Raise a ValueError if a pass over a source found no row that counts."""
    if counts.good == 0:
        raise ValueError(
            f"There is no good row to learn from: of {counts.read} row(s) read, {counts.bad} were bad and all others "
            "have weight 0. Correct the rows, or give at least one a weight above zero."
        )


def left_after(settings: Settings, batch: Block | ArraySource, since: float | None) -> float:
    """Return what forgetting leaves, after a batch, of all rows before it; 1 if no one factor fades them.

    `since` is the time of the last of these rows, if rows are forgotten by time.
    """
    if settings.is_bank or not (settings.forgets and settings.forgetting.fades):
        return 1.0
    left = faded(settings.counts_of(batch), settings.forgetting, times=batch.times, since=since).left
    return 1.0 if left is None else float(left)


def times_of(settings: Settings, block: Block, since: float | None) -> Array | None:
    """Return the times of a block that comes after the time `since`; None unless rows are forgotten by time."""
    return in_order(block.times, since, block.weights) if settings.by_time else None


class Step(NamedTuple):
    """A piece of rows, the states before and after it, and the innovations of its rows; None if nobody reads them."""

    piece: Block
    before: "State"
    after: "State"
    found: Innovations | None


class Following(NamedTuple):
    """How single rows and short batches are followed by a filter, until they are folded together.

    Attributes
    ----------
    d : int
        The number of columns of X.
    columns : int or None
        The number of columns of y; None for one target.
    most : float
        The number of rows at which they are folded.
    longest : int
        The number of rows of a batch up to which the filter learns them faster one by one than the state together.
    offsets : bool
        Whether all rows have an offset; otherwise none has.
    leads : bool
        Whether the filter predicts batches also before it has learned any row.
    sparse : bool
        Whether the rows are those of sparse matrices, which are not kept: they are in the filter alone.
    """

    d: int
    columns: int | None
    most: float
    longest: int = 1
    offsets: bool = False
    leads: bool = False
    sparse: bool = False


@state
class State(PickledFields, ABC):
    """What a learner keeps of some rows. A state is immutable; what is computed from it is cached.

    What it says about the model is its `belief`. What learns the rows is its `core`, around which there may be others.

    Attributes
    ----------
    settings : Settings
    """

    settings: Settings = leaf(given=True)

    @property
    @abstractmethod
    def core(self) -> "Core":
        """The innermost state: what learns the rows, without what wraps it."""

    @cached_property
    @abstractmethod
    def belief(self) -> Belief:
        """What the rows say about the model, and about new rows."""

    # ---- learning --------------------------------------------------------------------------------------

    @abstractmethod
    def steps(self, block: Block, rows: int, *, every_row: bool = False, most: int = sys.maxsize) -> Iterator["Step"]:
        """Learn a block, and yield each piece of it with its predictions and the states before and after it.

        This is the only way in which rows are learned and scored: each is predicted before it is learned, unless
        nobody reads it.

        Parameters
        ----------
        block : Block
        rows : int
            The number of rows learned before.
        every_row : bool
            Whether each row is to be predicted from all rows before it.
        most : int
            The most rows that are predicted together.
        """

    @abstractmethod
    def step(
        self, block: Block, found: Innovations | None = None, *, known: bool = True, exact: bool = False
    ) -> tuple[Self, Innovations]:
        """Return the state after a piece of rows that it can predict together, and their innovations.

        Parameters
        ----------
        block : Block
        found : Innovations, optional
            The innovations, if a filter of single rows has predicted the rows already.
        known : bool
            Whether anything was learned before; if not, nothing is predicted.
        exact : bool
            Whether each row is predicted from all rows before it.
        """

    @abstractmethod
    def learn(self, block: Block) -> Self:
        """Return the state after one more block of rows."""

    @property
    def predicts_every_row(self) -> bool:
        """Whether all rows of a block can be predicted together, each from those before it."""
        return False

    def row_filter(self) -> Any:
        """Return the filter that continues from this state row by row; None if there is none."""
        return None

    @property
    def filter_serves(self) -> float:
        """The number of rows for which its `row_filter` serves; infinite if it is exact up to rounding."""
        return math.inf

    def after_filter(self, live: Any, block: Block, found: list[Array]) -> tuple[Self, Innovations | None]:
        """Return the state after rows that its filter has learned, and their innovations if they are needed.

        Parameters
        ----------
        live : object
            What `row_filter` has returned.
        block : Block
            The rows; none if they are not kept.
        found : list of arrays
            What `learn_rows` of the filter has returned for each row.
        """
        return self.learn(block), None

    def closed(self) -> Self:
        """Return the state after a batch, which is a cluster of its own for clustered standard errors."""
        return self

    def with_scores_of(self, source: Source) -> Self:
        """Return the state with the scores of the rows of a source, which it has learned, if it sums scores."""
        return self

    def settled(self, batch: Block | ArraySource, before: Self) -> Self:
        """Return the state after a batch, given the one before it; the rows are at hand once more."""
        return self

    # ---- other states of the same rows -----------------------------------------------------------------

    @abstractmethod
    def with_core(self, change: Callable[["Core"], "Core"]) -> "State":
        """Return the state with what a function makes of its `core`."""

    def ahead(self, time: float) -> "State":
        """Return what is known at a time, not before that of the last row."""
        return self.with_core(lambda core: core.ahead(time))

    @abstractmethod
    def with_settings(self, settings: Settings) -> "State":
        """Return the state of the same rows under other settings; raise if it would need the rows again."""

    def with_features(self, more: int) -> Self:
        """Return the state about more features, which were 0 in all rows so far and come after the others.

        Their coefficients are at their prior: the penalty, or nothing if there is none.
        """
        check(self.settings, way="new features")
        raise ValueError(
            "New features came, and this model, which mixes ways to forget, keeps the features of its first row: give "
            "all features in every row, or use a forget other than 'auto'."
        )

    def with_class(self, settings: Settings) -> Self:
        """Return the state of a classifier with one more class, which no row had so far, under these settings."""
        raise NotImplementedError

    def with_origin(self, columns: Array, values: Array) -> Self:
        """Return the state with other values of columns that have been constant in all rows, where these matter."""
        return self

    def without_rows(self) -> Self:
        """Return the state with the rows that it holds folded, and without values of single rows in its state.

        Raise a ValueError where it cannot do without them.
        """
        return self

    def merge(self, other: "State") -> Self:
        """Return the state after the rows of both."""
        raise NotImplementedError


@state
class Core(State):
    """A state that learns rows by itself.

    Attributes
    ----------
    whole_batches : bool
        Whether a batch in memory is learned as one block, however long it is.
    in_one_pass : bool
        Whether rows in memory are fitted in one pass in their order, so that each is predicted before it is learned.
    walks : bool
        Whether the intercept can walk though the likelihood is not Gaussian.
    """

    whole_batches: ClassVar[bool] = False
    in_one_pass: ClassVar[bool] = True
    walks: ClassVar[bool] = False

    @property
    def core(self) -> Self:
        return self

    def with_core(self, change: Callable[["Core"], "Core"]) -> "Core":
        return change(self)

    @classmethod
    @abstractmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> Self:
        """Return the state before the first row of a stream that begins with these blocks."""

    @classmethod
    @abstractmethod
    def fit(cls, settings: Settings, source: Source) -> tuple[Self, Counts]:
        """Return the state after all rows of a source, and the number of rows."""

    def faded(self, source: Source) -> Source:
        """Return the rows of a source with the weights that forgetting leaves them, if a fit learns them so."""
        return source

    @property
    def targets(self) -> int | None:
        """The number of columns of y, if these are several targets of one linear model; None for one target."""
        information = self.linear_information
        return None if information is None else information.targets

    @property
    def linear_information(self) -> Information | None:
        """The information of the rows of a linear model, which knows the moments of their features; None of others."""
        return None

    @property
    def time(self) -> float | None:
        """The time of the last row, if rows are forgotten by time."""
        return None

    @property
    def warms_up(self) -> bool:
        """Whether rows are held as they come, until they determine the coefficients."""
        return False

    def held_rows(self) -> Block | None:
        """Return the rows that are held in a warm-up as they came; None if there are none."""
        return None

    def coordinates_of(self, other: "Core") -> Array | None:
        """Return the matrix from the parameters of another state to those of this one; None if they are the same."""
        return None

    # ---- one step --------------------------------------------------------------------------------------

    @property
    def predicts(self) -> bool:
        """Whether its predictions can be scored: False before the first row and during a warm-up."""
        return self.belief.predicts

    def steps(self, block: Block, rows: int, *, every_row: bool = False, most: int = sys.maxsize) -> Iterator["Step"]:
        state, start = self, 0
        if not (every_row or self.settings.needs_innovations):
            yield Step(block, self, self.learn(block), None)
            return
        while start < len(block):
            with np.errstate(over="ignore", invalid="ignore"):  # rows too large are refused as they are learned
                stop = state._next_piece(block, start, rows, exact=every_row)
            piece = block.part(start, min(stop, start + most) if state.predicts else stop)
            after, found = state.step(piece, known=rows > 0, exact=every_row)
            start, rows = start + len(piece), rows + piece.count
            yield Step(piece, state, after, found)
            state = after
            del piece, after, found  # the next piece does not come on top of them

    def step(
        self, block: Block, found: Innovations | None = None, *, known: bool = True, exact: bool = False
    ) -> tuple[Self, Innovations]:
        return self._predicted(block, known=known, exact=exact) if found is None else (self.learn(block), found)

    def following(self, rows: int) -> Following | None:
        """Return how single rows are followed that come after this many; None if no filter follows them."""
        return None

    def _next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        """Return the end of the piece of a block that begins at row `start` and that this state may predict.

        A state predicts a quarter of the rows that it has learned, `rows`: the error of its estimate, which they
        share, is then small beside what is random in their sum. With `exact`, every row is predicted from all rows
        before it.
        """
        if exact:
            length = 1
        elif self.predicts:
            length = max(FIRST_PIECE, rows // 4)
        else:  # nothing is predicted in a warm-up; that of a loss that is not quadratic ends as soon as it can
            length = len(block) if self.settings.likelihood.quadratic else max(FIRST_PIECE, rows)
        return min(len(block), start + length)

    def _predicted(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple[Self, Innovations]:
        """Return the state after a piece, without its scores, and the innovations of the piece; see `step`."""
        after, known = self.learn(block), known and self.predicts
        return after, self.innovations(block, after, exact=exact) if known else Innovations.unknown(block.y)

    def innovations(self, block: Block, after: Self, *, exact: bool = False) -> Innovations:
        """Return the innovations of a piece, which this state predicts and `after` has learned; see `steps`."""
        if may_overflow(block):
            return Innovations.unknown(block.y)
        own, times = self.settings.own_variance(block), times_of(self.settings, block, self.time)
        known = (self if times is None else self.ahead(float(times[0]))).belief
        predicted = known.predict(block.X, None if own is None else np.sqrt(own), block.offset)
        with np.errstate(invalid="ignore"):  # without any noise, nothing is known of the relative size of the std
            scale = predicted.std / np.sqrt(np.asarray(known.noise.variance))
        return Innovations.of(block.y, predicted, scale)

    def ahead(self, time: float | None = None) -> Self:
        """Return what is known at a later time, or before the next row if that makes a difference."""
        if time is not None:
            check(self.settings, way="times")
        return self

    def path(self, alphas: Array | None, source: Source | None = None) -> Path:
        """Return the solution for each alpha: of the rows learned, or of those of a source where that is not enough."""
        raise NotImplementedError

    # ---- saving ----------------------------------------------------------------------------------------

    @property
    def n_held(self) -> int:
        """The number of rows that are held as they came, and that a model file would hold too."""
        return 0

    @property
    def sizes(self) -> dict[str, int | None]:
        """The lengths of the axes of its arrays: d features, k targets and o columns of y if several, p parameters."""
        design = self.belief.design
        return {"d": self.belief.coef.shape[-1], "k": self.targets, "o": design.outputs, "p": design.size}

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> Self:
        """Return the state that was saved under `name`; raise a ValueError if it cannot be one of these sizes."""
        return saved.tree(cls, name, sizes, settings=settings)

    @property
    def fingerprint(self) -> Array:
        """What tells the rows learned from others; see `kalprox.learning.merging`."""
        information = self.linear_information
        assert information is not None  # or there is one of another kind
        return fingerprint(information)


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
