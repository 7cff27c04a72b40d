"""Which class of state some settings need, and what holds the rows since its last fold."""

from kalprox.learning.bank import Bank, member_type
from kalprox.learning.bank_rows import BankRows
from kalprox.learning.changing import check_change
from kalprox.learning.exact import Exact
from kalprox.learning.live_rows import LiveRows
from kalprox.learning.recent_rows import RecentRows
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.state import State
from kalprox.learning.tracking import Tracking
from kalprox.sources import ArraySource, Block

__all__ = ["recent_rows", "state_of", "state_type", "under"]


def state_type(settings: Settings) -> type[State]:
    """Return the class of state for these settings."""
    if settings.structure is not None:
        from kalprox.large.state import StructuredState

        return StructuredState
    return Bank if settings.is_bank else member_type(settings)


def state_of(settings: Settings, block: Block) -> State:
    """Return the state of some rows alone, without scores of predictions."""
    plain = {"missing": "raise", "diagnose": False, "coef_cov": "model", "change_points": False}
    plain |= {"forget": 1.0} if settings.is_bank else {}
    settings = Settings.of(**{**settings.parameters, **plain})
    kind = state_type(settings)
    if issubclass(kind, Exact):
        return kind.start(settings, [block]).learn(block)
    return kind.fit(settings, ArraySource(block.X, block.y, block.weights, offset=block.offset))[0]


def under(state: State, settings: Settings) -> State:
    """Return the state of the same rows under other settings; raise if it would need the rows again."""
    check_change(state.settings, settings)
    return state.with_settings(settings)


def recent_rows(
    settings: Settings, state: State, tracking: Tracking, rows: int, buffer: RowBuffer | None
) -> "RecentRows | LiveRows | None":
    """Return the rows since a state, none of them yet if there is no buffer; None if they are not folded together."""
    if isinstance(state, Exact):
        return RecentRows(settings, state, tracking, rows, buffer)
    if settings.structure is not None:
        from kalprox.large.diagonal_rows import DiagonalRows
        from kalprox.large.state import StructuredState

        assert isinstance(state, StructuredState)
        return DiagonalRows(settings, state, tracking) if DiagonalRows.serves(settings, state) else None
    if not state.matches_rows:
        return None
    if isinstance(state, Bank):
        return BankRows(settings, state, tracking, rows, buffer)
    from kalprox.learning.linearised import Linearised
    from kalprox.learning.matched_rows import MatchedRows

    assert isinstance(state, Linearised)
    return MatchedRows(settings, state, tracking, rows, buffer)
