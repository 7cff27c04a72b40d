"""The state of a model that chooses how to forget: states mixed by how well each predicts, and their single rows."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import PickledFields, Saved, Sizes, expect, state
from kalprox.calibration.sums import Given
from kalprox.forgetting import ByRow, Forgetting, RandomWalk
from kalprox.information import Information
from kalprox.kernel.filter import CompiledBank
from kalprox.learning.chosen_alpha import ChosenAlpha
from kalprox.learning.exact import Exact
from kalprox.learning.innovations import Innovations, in_stds, may_overflow
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.matched import Matched
from kalprox.learning.mixed import RATES, SHARE_OF_RATES, MixedBelief, Odds, WeightRecord
from kalprox.learning.rules import check
from kalprox.learning.sandwiched import Sandwiched
from kalprox.learning.settings import Settings
from kalprox.learning.spread import SpreadByInputs
from kalprox.learning.state import Around, Core, Following, State
from kalprox.likelihoods import Likelihood
from kalprox.noise import Noise
from kalprox.predictive import Mixture, Predictive, Student, is_discrete, mixed, normal_scores
from kalprox.predictive.mixture import log_mean, mixture_scores, shares
from kalprox.sources import Block, Source
from kalprox.sources import Counts as RowCounts

_FACTORS = (0.9995, 0.998, 0.99, 0.96)  # which remember 2,000, 500, 100 and 25 rows
_STEPS = (0.001, 0.01, 0.1)  # the variances of the steps of an intercept that walks, in units of the noise variance
_ROWS_EACH = 60  # rows per coefficient that a member must remember for its warm-up to end
_FEW, _MANY = 16, 1024  # the fewest and the most rows that are folded together
_PIECE = 32  # rows that a member of another likelihood than the Gaussian predicts together


def member_settings(settings: Settings, forget: Forgetting) -> Settings:
    """Return the settings of the member of a bank that forgets in one way, and whose predictions are needed."""
    return replace(settings, forgetting=forget, diagnose=True, parameters={**settings.parameters, "forget": forget})


def ways_to_forget(settings: Settings, kind: type[Core]) -> dict[str, Forgetting]:
    """Return the ways to forget of a bank of states of this kind, by their names.

    Those that forget more come later. Some let only the intercept walk, where that can be: with an intercept, and in a
    linear model with standard errors of the usual kind, one noise variance, and a fixed penalty.
    """
    found: dict[str, Forgetting] = {"none": ByRow(1.0)}
    found |= {f"{factor:g}": ByRow(factor) for factor in _FACTORS}
    linear = settings.is_exact and settings.coef_cov == "model" and not settings.noise_depends_on_inputs
    linear = linear and not settings.standardize and settings.alpha != "auto"
    if settings.fit_intercept and (linear or kind.walks):
        found |= {f"intercept {step:g}": RandomWalk(0.0, intercept=step) for step in _STEPS}
    return found


def _memory(way: Forgetting) -> float:
    """Return how many rows a forgetting factor remembers."""
    return 1 / (1 - way.per_row)


@state
class Bank(Core):
    """Beliefs that learn the same rows and forget them in different ways, and the probability of each.

    After every row the probability of a member is multiplied by what it had predicted for that row; see
    `kalprox.learning.mixed.Odds`. With several targets, each has weights of its own: one target may drift where
    another does not. How the mixture is read is the subject of `MixedBelief`.

    Any division of the rows into batches gives the same members up to rounding. It gives the same weights up to
    rounding without a penalty; a penalty fades with the rows inside a piece of a batch, so that the predictions of the
    first rows, and with them the weights, differ a little. Members with a warm-up predict the rows of a piece together,
    and depend on the batches.

    Attributes
    ----------
    members : tuple of State
    odds : Odds
        The probability of each member.
    record : WeightRecord
        The weights along the stream.
    """

    members: tuple[State, ...]
    odds: Odds
    record: WeightRecord

    @cached_property
    def belief(self) -> MixedBelief:
        beliefs = tuple(member.belief for member in self.members)
        return MixedBelief(self.settings, beliefs, self.odds, self.names, self.record)

    # ---- learning --------------------------------------------------------------------------------------

    @classmethod
    def start(cls, settings: Settings, blocks: Iterable[Block]) -> "Bank":
        first = next(iter(blocks))
        kind = Matched if Matched.serves(settings, first) else core_type(settings)
        ways = list(ways_to_forget(settings, kind).values())
        if not settings.is_exact and not kind.walks:  # those with a warm-up
            least = _ROWS_EACH * (first.X.shape[1] + 1) * (first.y.shape[1] if first.y.ndim == 2 else 1)
            ways = [way for way in ways if not way.forgets or _memory(way) >= least]
        each = [member_settings(settings, forget) for forget in ways]
        members = tuple(wrapped(kind.start(one, [first]), one) for one in each)
        odds = Odds.equal(len(members), members[0].core.targets)
        return cls(settings, members, odds, WeightRecord.start(odds.weights))

    @classmethod
    def fit(cls, settings: Settings, source: Source) -> tuple["Bank", RowCounts]:
        check(settings, way="no order")
        raise NotImplementedError

    def with_features(self, more: int) -> "Bank":
        return replace(self, members=tuple(member.with_features(more) for member in self.members))

    def learn(self, block: Block) -> "Bank":
        return self._predicted(block)[0]

    def _next_piece(self, block: Block, start: int, rows: int, *, exact: bool = False) -> int:
        """Return the end of the block: each member divides it into the pieces that it needs."""
        return len(block)

    def _predicted(self, block: Block, *, known: bool = True, exact: bool = False) -> tuple["Bank", Innovations]:
        """Return the state after a block, and the innovations of the mixture."""
        found = [self._taken(member, block, exact) for member in self.members]
        parts = [predicted(self.settings.likelihood, one) for _, one in found]
        return self.after(tuple(member for member, _ in found), block, parts, self._issued(block))

    def _taken(self, member: State, block: Block, exact: bool) -> tuple[State, Innovations]:
        """Return a member after a block, and its innovations."""
        every = exact or member.predicts_every_row
        most, found = _PIECE if self._in_pieces else len(block), []
        for one in member.steps(block, self.record.n, every_row=every, most=most):
            assert one.found is not None
            member = one.after
            found.append(one.found)
        return member.closed(), Innovations.concatenated(found)

    @property
    def _in_pieces(self) -> bool:
        """Whether the members predict the rows of a piece together."""
        return not isinstance(self.members[0].core, (Exact, Matched))

    def following(self, rows: int) -> Following | None:
        if self.settings.coef_cov != "model" or self.targets is not None or self._in_pieces:
            return None
        center = self.belief.design.center
        assert center is not None
        return Following(len(center), None, min(max(_FEW, min(_MANY, rows)), max(_FEW, self.filter_serves)))

    @property
    def filter_serves(self) -> float:
        return min(member.filter_serves for member in self.members)

    def row_filter(self) -> "BankFilter | None":
        """Return the filter; None if a member has none."""
        filters = [member.row_filter() for member in self.members]
        return None if any(one is None for one in filters) else BankFilter(self.settings, filters, self.odds)

    def after_filter(self, live: "BankFilter", block: Block, found: list[Array]) -> tuple["Bank", Innovations | None]:
        pairs = zip(self.members, live.filters, strict=True)
        members = tuple(member.after_filter(one, block, [])[0] for member, one in pairs)
        return self.after(members, block, [live.predicted(said) for said in np.array(found).swapaxes(0, 1)], None)

    def _issued(self, block: Block) -> Array | None:
        """Return the errors of the predictions that were possible before the block, in units of their std."""
        if len(block) == 1 or not self.settings.diagnose or self.record.n == 0 or may_overflow(block):
            return None
        own = self.settings.own_variance(block)
        before = self.belief.predict(block.X, None if own is None else np.sqrt(own), block.offset)
        return in_stds(block.y - before.mean, before.std)

    def after(
        self, members: tuple[State, ...], block: Block, parts: list[Predictive], issued: Array | None
    ) -> tuple["Bank", Innovations]:
        """Return the state after a block that the members have learned, and the innovations of the mixture.

        `parts` are what the members had predicted, each row from those before it.
        """
        y, counts = block.y, self.settings.counts(block.weights)
        given, u = None, None
        with np.errstate(invalid="ignore", divide="ignore"):
            if is_discrete(parts[0]):
                log_prob = np.stack([part.log_prob(y) for part in parts])
            else:
                u, log_prob = map(np.stack, zip(*(normal_scores(part, y) for part in parts), strict=True))
        claims: Array = np.stack([np.isfinite(part.mean) & np.isfinite(part.std) for part in parts])
        claims = claims if claims.ndim == log_prob.ndim else claims.all(axis=-1)  # of all classes of a row
        odds, path = self.odds.after(log_prob, claims, counts)
        weights = np.moveaxis(path[:-1], 0, 1)
        mixture = mixed(parts, weights)
        mean, std = mixture.mean, mixture.std
        if isinstance(mixture, Mixture):
            w = shares(weights, claims)
            scores = None if u is None else mixture_scores(w, u)
            given = Given(log_mean(w, log_prob), (y - mean) ** 2, scores)
        nothing, ones = np.full(np.shape(y), np.inf), np.ones(np.shape(y))
        issued = in_stds(y - mean, std) if issued is None else issued
        record = self.record.after(path[1:], None if block.weights is None else block.weights > 0)
        found = Innovations(mean, std, nothing, ones, issued, 1, given)
        return replace(self, members=members, odds=odds, record=record), found

    def with_settings(self, settings: Settings) -> "Bank":
        each = [(member, member_settings(settings, member.settings.forgetting)) for member in self.members]
        members = tuple(wrapped(member.with_settings(own), own) for member, own in each)
        return replace(self, settings=settings, members=members)

    @property
    def predicts(self) -> bool:
        return any(member.core.predicts for member in self.members)

    @property
    def targets(self) -> int | None:
        return self.members[0].core.targets

    # ---- the weights -----------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The ways to forget."""
        return tuple(ways_to_forget(self.settings, type(self.members[0].core)))[: len(self.members)]

    # ---- saving ----------------------------------------------------------------------------------------

    @property
    def n_held(self) -> int:
        return max(member.core.n_held for member in self.members)

    def without_rows(self) -> "Bank":
        return replace(self, members=tuple(member.without_rows() for member in self.members))

    @property
    def sizes(self) -> dict[str, int | None]:
        return self.members[0].core.sizes

    @classmethod
    def restored(cls, settings: Settings, saved: Saved, name: str, sizes: Sizes) -> "Bank":
        is_matched = f"{name}.members.0.A" in saved and not settings.likelihood.quadratic
        kind = Matched if is_matched else core_type(settings)
        ways = list(ways_to_forget(settings, kind).values())
        K = saved.count(f"{name}.members.length")
        expect(1 <= K <= len(ways))
        members = tuple(
            restored_member(kind, member_settings(settings, forget), saved, f"{name}.members.{i}", sizes)
            for i, forget in enumerate(ways[:K])
        )
        return saved.tree(cls, name, {**sizes, "K": K}, settings=settings, members=members)


def predicted(likelihood: Likelihood, found: Innovations) -> Predictive:
    """Return the predictive distributions that innovations are those of."""
    kind = likelihood.predictive
    assert kind is not None  # or forget="auto" is refused
    return kind.of_moments(found.mean, found.std, found.dof)


# ---- one way to forget ---------------------------------------------------------------------------------


def core_type(settings: Settings) -> type[Core]:
    """Return the class of state that learns the rows. JAX is imported only if that class needs it."""
    if settings.structure is not None:
        from kalprox.large.state import StructuredState

        return StructuredState
    if settings.is_exact:
        return ChosenAlpha if settings.alpha == "auto" else Exact
    from kalprox.learning.linearised import Linearised

    return Linearised


def _around(settings: Settings) -> list[type[Around]]:
    """Return the classes of the states around it, from the inside out."""
    kinds: list[type[Around]] = [] if settings.coef_cov == "model" else [Sandwiched]
    return [*kinds, SpreadByInputs] if settings.noise_depends_on_inputs else kinds


def wrapped(state: State, settings: Settings) -> State:
    """Return a state with what the settings ask for around it, unless it is there, and with alpha given or chosen."""
    core = state.core
    if isinstance(core, Exact) and type(core) is not core_type(settings):
        kind, time = (Exact if isinstance(core, ChosenAlpha) else ChosenAlpha), core.time
        about = core.settings, core.information, core.spread_before, core.elapsed, core.scorer, core.window
        state = state.with_core(lambda _: kind(*about, time=time))
    if settings.coef_cov != "model" and state is state.core:
        state = Sandwiched(settings, state)
    if settings.noise_depends_on_inputs and not isinstance(state, SpreadByInputs):
        assert core.linear_information is not None
        state = SpreadByInputs(settings, state, InputNoise(Information.zero(1 + core.linear_information.d)))
    return state


def restored_member(kind: type[Core], settings: Settings, saved: Saved, name: str, sizes: Sizes) -> State:
    """Return the state that was saved under `name`, with what is around it."""
    around = _around(settings)
    path = name + ".inner" * len(around)
    state: State = kind.restored(settings, saved, path, sizes)
    for one in around:
        path = path.removesuffix(".inner")
        state = one.around(state, settings, saved, path, sizes)
    return state


@dataclass
class BankFilter(PickledFields):
    """A filter for each member of a bank, and their odds, updated in place by single rows.

    Attributes
    ----------
    settings : Settings
    filters : list of SquareRootFilter or MatchingFilter
    odds : Odds
    """

    settings: Settings
    filters: list[Any]
    odds: Odds

    is_due: ClassVar[bool] = False

    @cached_property
    def _compiled(self) -> CompiledBank | None:
        """What the compiled kernel sees of the filters, and of the array of the odds; None if it cannot see one."""
        seen = [one.compiled for one in self.filters]
        if any(one is None for one in seen):
            return None
        self.odds = Odds(self.odds.joint.copy())
        return CompiledBank(seen, self.odds.joint, RATES, SHARE_OF_RATES)

    @cached_property
    def keeps_digits(self) -> bool:
        """Whether predictions of the next row are accurate; see `SquareRootFilter`."""
        return all(one.keeps_digits for one in self.filters)

    def learn_rows(self, rows: Block) -> list[Array]:
        """Learn a row, move the odds by what the filters had said of it, and return that, shape (K, 2) or (K, 3)."""
        self.__dict__.pop("keeps_digits", None)
        x, y, weight, count = rows.X[0], float(rows.y[0]), 1.0, 1.0
        own, counts = self.settings.own_variance(rows), self.settings.counts(rows.weights)
        variance = 1.0 if own is None else float(own[0])
        if rows.weights is not None:
            weight, count = float(rows.weights[0]), 1.0 if counts is None else float(counts[0])
        compiled = self._compiled
        if compiled is not None:
            if not compiled.follow(x, y, weight, count, variance):
                self.odds.joint[:] = self._moved(compiled.log_prob, count).joint
            return [compiled.said.copy()]
        said = np.array([one.follow(x, y, weight, count, own=variance)[:3] for one in self.filters])
        with np.errstate(invalid="ignore", divide="ignore"):
            log_prob = self.predicted(said).log_prob(np.full(len(said), y))
        self.odds = self._moved(log_prob, count)
        return [said]

    def predicted(self, said: Array) -> Predictive:
        """Return the predictive distributions of what was said of a row, shape (K, 2) or (K, 3)."""
        if said.shape[1] == 2:
            with np.errstate(divide="ignore"):
                return self.settings.likelihood.predict(said[:, 0], said[:, 1], Noise.known(1.0))
        return Student(*said.T)

    def _moved(self, log_prob: Array, count: float) -> Odds:
        """Return the odds after a row, of which the filters had said this; NaN is no claim."""
        log_prob = log_prob[:, None]
        return self.odds.after(log_prob, np.isfinite(log_prob), np.array([count]))[0]

    def copy(self) -> "BankFilter":
        """Return a filter that later rows of this one do not change."""
        return replace(self, filters=[one.copy() for one in self.filters], odds=Odds(self.odds.joint.copy()))

    def predict(self, X: Array, offset: Array | None = None) -> Predictive:
        """Return the predictive distribution for rows of X, which have no offset."""
        return mixed([one.predict(X) for one in self.filters], self.odds.weights)

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X, shape (n,)."""
        return self.predict(X).mean

    def noise(self) -> tuple[Any, Any]:
        """Return the mean noise variance, and the harmonic mean of its degrees of freedom."""
        variance, dof = np.array([one.noise() for one in self.filters], float).T
        w = np.where(np.isfinite(variance), self.odds.weights, 0.0)
        w = w / w.sum() if w.any() else self.odds.weights
        with np.errstate(divide="ignore"):
            return np.where(w > 0, w * variance, 0.0).sum(), 1 / np.where(w > 0, w / dof, 0.0).sum()
