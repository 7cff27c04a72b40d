"""Which settings may change as rows are learned, all but those that these depend on, and which models merge."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kalprox.learning.rule import FACTS, is_one_of
from kalprox.learning.rules import check
from kalprox.learning.settings import Settings

__all__ = ["FIXED", "Fixed", "check_alike", "check_change", "settings_for"]


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


def settings_for(now: Settings, given: Settings | None, *, fitted: bool, clusters: bool = False) -> Settings:
    """Return the settings of more rows, with clusters or without: those that are `given`, or else those of `now`.

    They are those of now if they are equal to them: an unpickled model has other objects for the same.
    """
    known = given is None or given is now or not given.changed(now)
    if given is None or known:
        found = now
    elif given.awaits_alpha and fitted and now.chooses_alpha:
        found = given.with_alpha(now.alpha)
    else:
        found = given
        if fitted:
            check(given, way="one pass")
    if not clusters and (known or now.coef_cov != "clustered" or found.parameters["coef_cov"] != "auto"):
        return found
    if fitted and now.coef_cov != found.clustered().coef_cov:
        raise ValueError(
            "Clusters are given, and the rows learned so far had none: give the clusters (groups) of all rows, "
            "from the first batch on, or leave them out."
        )
    return found.clustered()


def check_alike(mine: Settings, theirs: Settings) -> None:
    """Raise a ValueError unless models with these settings can be merged."""
    if different := mine.changed(theirs):
        a, b = mine.parameters, theirs.parameters
        raise ValueError(
            "merge needs two models with the same settings; these differ in "
            + ", ".join(f"{name} ({a[name]!r} and {b[name]!r})" for name in different)
            + "."
        )
    if mine.coef_cov != theirs.coef_cov:
        raise ValueError("merge needs the clusters of all rows, or of none: one of these models was given clusters.")
    if mine.alpha != theirs.alpha:
        raise ValueError(
            "merge needs two models with the same alpha; alpha='auto' has chosen "
            f"{mine.alpha:.4g} and {theirs.alpha:.4g}. Give one number to both."
        )
    check(mine, way="merge")
