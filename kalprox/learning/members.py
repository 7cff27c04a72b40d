"""One way to forget: the state that learns the rows, and the states around it that its settings ask for."""

from kalprox.base.tree import Saved, Sizes
from kalprox.learning.chosen_alpha import ChosenAlpha
from kalprox.learning.exact import Exact
from kalprox.learning.input_noise import InputNoise
from kalprox.learning.sandwiched import Sandwiched
from kalprox.learning.settings import Settings
from kalprox.learning.spread import SpreadByInputs
from kalprox.learning.state import Around, Core, State

__all__ = ["core_type", "restored_member", "wrapped"]


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
        state = SpreadByInputs(settings, state, InputNoise.zero(core.linear_information.d))
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
