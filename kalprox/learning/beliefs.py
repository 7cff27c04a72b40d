"""Which class of belief some settings need, and what holds the rows since its last fold."""

from kalprox.learning.bank import BankBelief, member_type
from kalprox.learning.bank_rows import BankRows
from kalprox.learning.belief import Belief
from kalprox.learning.exact import ExactBelief
from kalprox.learning.live_rows import LiveRows
from kalprox.learning.recent_rows import RecentRows
from kalprox.learning.row_buffer import RowBuffer
from kalprox.learning.settings import Settings
from kalprox.learning.tracking import Tracking
from kalprox.sources import ArraySource, Block

__all__ = ["belief_of", "belief_type", "recent_rows", "under"]


def belief_type(settings: Settings) -> type[Belief]:
    """Return the class of belief for these settings."""
    return BankBelief if settings.is_bank else member_type(settings)


def belief_of(settings: Settings, block: Block) -> Belief:
    """Return the belief of some rows alone, without scores of predictions."""
    plain = {"missing": "raise", "diagnose": False, "coef_cov": "model", "change_points": False}
    plain |= {"forget": 1.0} if settings.is_bank else {}
    settings = Settings.of(**{**settings.parameters, **plain})
    kind = belief_type(settings)
    if issubclass(kind, ExactBelief):
        return kind.start(settings, [block]).learn(block)
    return kind.fit(settings, ArraySource(block.X, block.y, block.weights, offset=block.offset))[0]


def under(belief: Belief, settings: Settings) -> Belief:
    """Return the belief of the same rows under other settings; raise if it would need the rows again."""
    if belief.settings.is_bank is not settings.is_bank:
        before, now = (one.parameters["forget"] for one in (belief.settings, settings))
        raise ValueError(f"forget cannot change from {before!r} to {now!r} between calls of partial_fit: use fit.")
    return belief.with_settings(settings)


def recent_rows(
    settings: Settings, belief: Belief, tracking: Tracking, rows: int, buffer: RowBuffer | None
) -> "RecentRows | LiveRows | None":
    """Return the rows since a belief, none of them yet if there is no buffer; None if they are not folded together."""
    if isinstance(belief, ExactBelief):
        return RecentRows(settings, belief, tracking, rows, buffer)
    if settings.structure is not None:
        from kalprox.learning.diagonal_rows import DiagonalRows
        from kalprox.learning.structured import StructuredBelief

        assert isinstance(belief, StructuredBelief)
        return DiagonalRows(settings, belief, tracking) if DiagonalRows.serves(settings, belief) else None
    if not belief.matches_rows:
        return None
    if isinstance(belief, BankBelief):
        return BankRows(settings, belief, tracking, rows, buffer)
    from kalprox.learning.filtered import FilteredBelief
    from kalprox.learning.matched_rows import MatchedRows

    assert isinstance(belief, FilteredBelief)
    return MatchedRows(settings, belief, tracking, rows, buffer)
