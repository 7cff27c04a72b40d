"""Which settings may change between calls of partial_fit: all but those that the rows learned so far depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kalprox.learning.rule import FACTS, is_one_of
from kalprox.learning.settings import Settings

__all__ = ["FIXED", "Fixed", "check_change"]


@dataclass(frozen=True)
class Fixed:
    """Parameters that cannot change once rows have been learned.

    Attributes
    ----------
    names : tuple of str
        The parameters; of several, all that have changed are named.
    why : str
        Completes "because ...".
    when : mapping
        Facts that must hold of the settings so far, see `kalprox.learning.rule.FACTS`.
    before, after : str
        Words of the fact of this name, separated by bars: the change is refused only from, or to, one of them. Any
        change is refused if both are empty.
    by_word : bool
        Whether only the word counts, and not the parameter as it was given.
    """

    names: tuple[str, ...]
    why: str
    when: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    by_word: bool = False

    def changes(self, before: Settings, now: Settings) -> list[str]:
        """Return what has changed and must not, in words."""
        if not all(is_one_of(before, name, words) for name, words in self.when.items()):
            return []
        changed = [name for name in self.names if self._differs(name, before, now) and self._applies(name, before, now)]
        return [
            f"{name} cannot change from {self._value(name, before)!r} to {self._value(name, now)!r}" for name in changed
        ]

    def _value(self, name: str, settings: Settings) -> Any:
        return FACTS[name](settings) if self.by_word else settings.parameters[name]

    def _differs(self, name: str, before: Settings, now: Settings) -> bool:
        return FACTS[name](before) != FACTS[name](now) if self.by_word else bool(now.changed(before, name))

    def _applies(self, name: str, before: Settings, now: Settings) -> bool:
        if not (self.before or self.after):
            return True
        return is_one_of(before, name, self.before) or is_one_of(now, name, self.after)


FIXED = [
    Fixed(("forget",), "ways to forget that are mixed learn every row side by side", before="auto", after="auto"),
    Fixed(
        ("link", "function", "likelihood", "structure"), "the rows learned so far were taken for rows of such a model"
    ),
    Fixed(("weight_kind",), "the rows learned so far were counted by it"),
    Fixed(
        ("coef_cov",),
        "the scores of the rows learned so far were not summed",
        after="robust|clustered",
        by_word=True,
    ),
    Fixed(("forget",), "the rows learned so far are not held", after="window"),
    Fixed(("fit_intercept", "standardize"), "the rows learned so far were linearised with it", {"model": "other"}),
    Fixed(
        ("forget",),
        "the rows learned so far have faded in another way",
        {"model": "other"},
        before="time",
        after="time",
    ),
    Fixed(
        ("penalty", "alpha", "noise", "forget", "start", "coef_cov", "change_points"),
        "the precision that is kept began with it",
        {"structure": "other"},
    ),
]


def check_change(before: Settings, now: Settings) -> None:
    """Raise a ValueError if settings differ that cannot change once rows have been learned."""
    for fixed in FIXED:
        if changes := fixed.changes(before, now):
            raise ValueError(f"{'; '.join(changes)} between calls of partial_fit, because {fixed.why}: use fit.")
