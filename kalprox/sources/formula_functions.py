"""Functions of a formula that depend on all rows, such as the knots of a spline: what one scan of the rows finds.

The library formulaic evaluates these functions, and keeps for each call a state, which it would take from the first
rows that it sees. Here the state comes from all rows: means and spreads exactly, and the knots of splines and the bases
of polynomials from a sample of at most 65,536 values, evenly spread over the rows, which is all of them if they are
fewer.
"""

import ast
import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.extras import load
from kalprox.base.text import worded
from kalprox.sources.files import SourceError

FUNCTIONS = (
    *("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "cbrt", "abs", "sign"),
    *("sin", "cos", "tan", "tanh", "arctan", "floor", "ceil"),
)  # of numbers, by their names in NumPy
_CUBIC = ("df", "knots", "lower_bound", "upper_bound", "constraints", "extrapolation")
STATEFUL: dict[str, tuple[str, ...]] = {
    "center": (),
    "scale": (),
    "standardize": (),
    "bs": ("df", "knots", "degree", "include_intercept", "lower_bound", "upper_bound", "extrapolation"),
    "cr": _CUBIC,
    "cc": _CUBIC,
    "poly": ("degree", "raw"),
}  # the arguments of the functions that depend on all rows, after the expression that they are about
_MOMENTS, _KNOTS = ("ddof", "center", "scale"), ("lower_bound", "upper_bound", "knots")
_STATES = dict.fromkeys(("center", "scale", "standardize"), _MOMENTS) | {
    "bs": _KNOTS,
    "cr": (*_KNOTS, "constraints", "cyclic"),
    "cc": (*_KNOTS, "constraints", "cyclic"),
    "poly": ("alpha", "norms2"),
}  # what formulaic keeps for each of them
_LIMIT = 65_536  # values of a sample


def formula_error(what: str) -> SourceError:
    """An error that says what a formula must be, or must not have."""
    return SourceError(worded("{formula} {}", what))


def load_formulaic(name: str = "formulaic") -> Any:
    """Import formulaic, or one of its modules; an error says what to install where it is missing."""
    return load(name, "formula", "Formulas need")


@functools.cache
def context() -> Mapping[str, Any]:
    """The functions that a formula may call, besides those of formulaic itself."""
    splines = load_formulaic("formulaic.transforms.basis_spline")
    stateful_transform = load_formulaic("formulaic.utils.stateful_transforms").stateful_transform
    values = load_formulaic("formulaic.materializers.types").FactorValues

    @stateful_transform  # type: ignore[untyped-decorator]
    def bs(x: Any, *arguments: Any, extrapolation: str = "na", _state: Any = None, **others: Any) -> Any:
        """A B-spline basis, which is no number outside of its range unless another extrapolation is asked for."""
        return splines.basis_spline(x, *arguments, extrapolation=extrapolation, _state=_state, **others)

    def fourier(x: Any, period: float, order: int = 1) -> Any:
        """Sines and cosines of a period, and of its half, its third, ... up to an order."""
        angle = 2 * np.pi * np.remainder(np.asarray(x, float), period) / period
        waves = {f"{wave.__name__}{k}": wave(k * angle) for k in range(1, order + 1) for wave in (np.sin, np.cos)}
        return values(waves, kind="numerical", encoded=False, format="{name}[{field}]")

    return {name: getattr(np, name) for name in FUNCTIONS} | {"bs": bs, "fourier": fourier}


def transform_state(text: str, state: Any) -> dict[str, Any]:
    """The state of the call `text` as formulaic keeps it, from its form in a model file."""
    expected = _STATES[_called(text).name]
    good = isinstance(state, Mapping) and set(state) == set(expected)
    try:
        found = {name: _of_plain(name, value) for name, value in state.items()} if good else {}
    except (TypeError, ValueError):
        good = False
    if not good:
        raise formula_error(f"must have {', '.join(expected)} for {text!r}, as numbers; got {state!r}.")
    return found


def _of_plain(name: str, value: Any) -> Any:
    """A value of a state as formulaic keeps it."""
    if value is None or name == "cyclic":
        return value
    numbers = np.asarray(value, float)
    if not np.isfinite(numbers).all():
        raise ValueError
    if name in ("alpha", "norms2"):
        return dict(enumerate(numbers.tolist()))
    return numbers if name == "constraints" else numbers.tolist()


def scan_of(text: str) -> "Moments | Sample":
    """What collects the values inside of a call, such as those of x for center(x), to find its state."""
    return Moments() if _called(text).name in ("center", "scale", "standardize") else Sample()


class Moments:
    """The count, mean and sum of squares about the mean of numbers that come in blocks."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Array) -> None:
        n = len(values)
        if n == 0:
            return
        mean = float(values.mean())
        apart, total = mean - self.mean, self.count + n
        self.squares += float(((values - mean) ** 2).sum()) + apart**2 * self.count * n / total
        self.mean += apart * n / total
        self.count = total

    def state(self, text: str) -> dict[str, Any]:
        """The mean, and the std where the call `text` divides by it."""
        function = _called(text).name
        if function == "center":
            return {"ddof": 1, "center": self.mean, "scale": None}
        ddof = int(function == "scale")
        std = float(np.sqrt(self.squares / (self.count - ddof)))
        if std == 0:
            raise formula_error(f"must not have {text!r}: its values are all {self.mean:g}. Leave it out.")
        return {"ddof": ddof, "center": self.mean, "scale": std}


class Sample:
    """Values that are evenly spread over all rows, every one of them as long as they are few, and the range of all."""

    def __init__(self) -> None:
        self.count, self.every = 0, 1
        self.low, self.high = np.inf, -np.inf
        self.kept: list[Array] = []

    def add(self, values: Array) -> None:
        if len(values) == 0:
            return
        self.kept.append(values[-self.count % self.every :: self.every].copy())
        self.count += len(values)
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        while sum(map(len, self.kept)) > _LIMIT:
            self.kept, self.every = [np.concatenate(self.kept)[::2]], 2 * self.every

    def state(self, text: str) -> dict[str, Any]:
        """The range and the knots, or the basis of polynomials, of the call `text`."""
        called, state = _called(text), {}
        if called.name != "poly":  # the range of all values, unless the formula gives another one
            bounds = {"lower_bound": self.low, "upper_bound": self.high}
            state = {name: bound for name, bound in bounds.items() if name not in called.arguments}
        function = context().get(called.name) or load_formulaic("formulaic.transforms").TRANSFORMS[called.name]
        try:
            with np.errstate(all="ignore"):
                function(np.concatenate(self.kept), _state=state, **called.arguments)
        except (ValueError, TypeError, IndexError, np.linalg.LinAlgError) as error:
            raise formula_error(f"must not have {text!r}, whose basis cannot be found: {error}") from None
        plain = {name: _plain(value) for name, value in state.items()}
        norms = np.array(plain.get("norms2", [1.0]))
        if not (np.isfinite(norms).all() and norms.all()):
            raise formula_error(f"must not have {text!r}: its values are too few for this degree.")
        return plain


class _Call(NamedTuple):
    """A call of a function, and its arguments after the first, which are constants."""

    name: str
    arguments: dict[str, Any]


def _called(text: str) -> _Call:
    """The parts of a call that `kalprox.sources.formula_syntax` has checked."""
    node = ast.parse(re.sub(r"`[^`]+`", "x", text), mode="eval").body
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return _Call(node.func.id, arguments_of(node, STATEFUL[node.func.id]))


def arguments_of(node: ast.Call, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a call after the first by their names; raise a ValueError where they are no constants."""
    given = dict(zip(names, node.args[1:], strict=False))
    given |= {str(keyword.arg): keyword.value for keyword in node.keywords}
    return {name: ast.literal_eval(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    """A value of a state in the types of JSON."""
    if isinstance(value, dict):
        return [float(value[k]) for k in sorted(value)]
    return np.asarray(value).tolist()
