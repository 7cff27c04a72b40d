"""What learns under some settings: one way to forget or several, and the rows that wait to be folded together."""

from collections.abc import Iterable
from typing import Any

from kalprox.base.tree import Saved, Sizes
from kalprox.learning.bank import Bank, core_type, restored_member, wrapped
from kalprox.learning.exact import Exact
from kalprox.learning.live_rows import LiveRows, RecentRows
from kalprox.learning.merging import check_change
from kalprox.learning.passes import fit_with_chosen_alpha
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.spread import SpreadByInputs
from kalprox.learning.state import Core, State
from kalprox.learning.tracking import Tracking
from kalprox.sources import ArraySource, Block, Counts, Source


def kind_of(settings: Settings) -> type[Core]:
    """Return the class of the state that learns the rows, without what is around it."""
    return Bank if settings.is_bank else core_type(settings)


def has_moments(settings: Settings) -> bool:
    """Whether what learns rows without gaps knows the moments of their features."""
    return issubclass(kind_of(settings), Exact)


def started(settings: Settings, blocks: Iterable[Block]) -> State:
    """Return the state before the first row of a stream that begins with these blocks."""
    if settings.is_bank:
        return Bank.start(settings, blocks)
    return wrapped(core_type(settings).start(settings, blocks), settings)


def fitted(settings: Settings, source: Source, start: State | None = None) -> tuple[State, Counts]:
    """Return the state after all rows of a source, and their number; one that iterates may begin at another state."""
    kind = kind_of(settings)
    about: dict[str, Any] = {} if start is None else {"start": start.core}
    if settings.awaits_alpha:
        state, counts = fit_with_chosen_alpha(kind.fit, settings, source, **about)
    else:
        state, counts = kind.fit(settings, source, **about)
    return wrapped(state, state.settings).with_scores_of(source), counts


def of_rows(settings: Settings, block: Block) -> State:
    """Return the state of some rows alone, without scores of predictions."""
    plain = {"missing": "raise", "diagnose": False, "coef_cov": "model", "change_points": False}
    plain |= {"forget": 1.0} if settings.is_bank else {}
    settings = Settings.of(**{**settings.parameters, **plain})
    if has_moments(settings):
        return started(settings, [block]).learn(block)
    return fitted(settings, ArraySource(block.X, block.y, block.weights, offset=block.offset))[0]


def under(state: State, settings: Settings) -> State:
    """Return the state of the same rows under other settings; raise if it would need the rows again."""
    check_change(state.settings, settings)
    after = state.with_settings(settings)
    return after if settings.is_bank else wrapped(after, settings)


def restored(settings: Settings, saved: Saved, name: str, sizes: Sizes) -> State:
    """Return the state that was saved under `name`; raise a ValueError if it cannot be one of these sizes."""
    if settings.is_bank:
        return Bank.restored(settings, saved, name, sizes)
    return restored_member(core_type(settings), settings, saved, name, sizes)


def recent_rows(
    settings: Settings, state: State, tracking: Tracking, rows: int, buffer: RowBuffer | None
) -> LiveRows | None:
    """Return the rows since a state, none of them yet if there is no buffer; None if they are not folded together."""
    if isinstance(state, SpreadByInputs):
        return None
    if state.core.linear_information is not None:
        return RecentRows(settings, state, tracking, rows, buffer)
    how = state.core.following(rows)
    return None if how is None else LiveRows(settings, state, tracking, rows, buffer, how)
