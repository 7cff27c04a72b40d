"""What a formula may say: its terms, the expressions allowed in them, and functions that depend on all rows."""

import ast
import functools
import keyword
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.extras import load
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
    return SourceError.worded("{formula} {}", what)


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


_CONTRASTS = ("treatment", "sum", "helmert", "diff", "poly")  # of `contr`
_PATSY = ("Treatment", "Sum", "Helmert", "Diff", "Poly")
_OF_OTHER_ROWS = ("lag", "hashed")
_BASES = ("bs", "cr", "cc", "poly", "fourier")  # functions that make several columns
_MOST = 100  # knots, or columns of a basis
_LONGEST, _DEEPEST, _HIGHEST = 10_000, 50, 16  # characters, levels of nesting, exponents
_NAME = re.compile(r"`([^`]+)`")
_KEYWORD = re.compile(rf"`({'|'.join(keyword.kwlist)})`")
_MARK = "\u200b"  # a blank without width


class Factor(NamedTuple):
    """A factor of a term.

    Attributes
    ----------
    text : str
        The expression. Names that are no identifiers are in backticks.
    numbers, levels : tuple of str
        The columns that are used as numbers, and as levels.
    lookup : str, optional
        The column, where the factor is a name and nothing else; it may be of numbers or of text.
    stateful : dict of str to str
        The expressions, such as center(x), that need the mean or the spread of all rows, and the expression inside.
    reference : str, optional
        The reference level that a contrast names.
    """

    text: str
    numbers: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    lookup: str | None = None
    stateful: dict[str, str] = {}  # noqa: RUF012
    reference: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the factor uses."""
        return (*self.numbers, *self.levels, *(() if self.lookup is None else (self.lookup,)))

    @property
    def is_literal(self) -> bool:
        """Whether the factor is a number, which scales the term."""
        return not self.columns


class Parsed(NamedTuple):
    """A formula: the left-hand side, the terms of the right-hand side as lists of factors, and the intercept."""

    target: str | None
    terms: tuple[tuple[str, ...], ...]
    intercept: bool


def parse_formula(formula: str) -> Parsed:
    """Parse a formula such as "y ~ x + C(g) + a:b", and check every factor of it.

    >>> parse_formula("log(y) ~ 0 + a*b").terms
    (('a',), ('b',), ('a', 'b'))
    """
    formulaic = load_formulaic()
    if len(formula) > _LONGEST:
        raise formula_error(f"must have at most {_LONGEST:,} characters; got {len(formula):,}.")
    for power in re.findall(r"(?:\*\*|\^)\s*([0-9]+)", formula):
        if int(power) > _HIGHEST:
            raise formula_error(f"must not have powers above {_HIGHEST}; got {power}.")
    _check_powers(formula)
    try:
        parsed = formulaic.Formula(marked(formula))
    except (formulaic.errors.FormulaicError, ValueError, SyntaxError, KeyError, RecursionError) as error:
        if "`.` operator" in str(error):
            raise formula_error(f"must name its columns: there is no . for all others; got {formula!r}.") from None
        said = re.sub(r"\x1b?\[[0-9;]*m|[⧛⧚\x1b]", "", str(error)).split("\n")[0].strip()
        raise formula_error(f"must be one such as 'y ~ x + C(g) + a:b'; got {formula!r} ({said}).") from None
    sides = (parsed.lhs, parsed.rhs) if hasattr(parsed, "lhs") else ((), parsed)
    if not all(isinstance(side, Iterable) and all(hasattr(term, "factors") for term in side) for side in sides):
        raise formula_error(f"must have one left-hand and one right-hand side; got {formula!r}.")
    left, right = ([tuple(_text(factor) for factor in term.factors) for term in side] for side in sides)
    if len(left) > 1 or (left and len(left[0]) != 1):
        raise formula_error(f"must have one target on its left-hand side; got {formula!r}.")
    for factors in (*left, *right):
        for factor in factors:
            parse_factor(factor)
    terms = tuple(term for term in right if term != ("1",))
    if not terms:
        raise formula_error(f"must have at least one term besides the intercept; got {formula!r}.")
    return Parsed(left[0][0] if left else None, terms, ("1",) in right)


def _check_powers(formula: str) -> None:
    """Raise SourceError for a power of one column: to formulaic, as to R, x**2 is x, as (x + z)**2 has no x:x."""
    before, outside = "", re.sub(r"\{[^{}]*\}", "{}", formula)
    while before != outside:  # calls from the inside out, whose arguments are Python
        before, outside = outside, re.sub(r"[\w.]+\([^()]*\)", "f", outside)
    if power := re.search(r"(?:^|[~+:*/\s(-])((`[^`]+`|[^\W\d][\w.]*)\s*(?:\*\*|\^)\s*[0-9]+)", outside):
        raise formula_error(f"must not have {power[1]!r}, which is {power[2]} alone: write I({power[2]}**2).")


def _text(factor: Any) -> str:
    """A factor of formulaic's as text from which it can be made again; levels that are numbers become text."""
    text = unmarked(factor.expr)
    if factor.eval_method.value == "lookup" and (not text.isidentifier() or text != factor.expr):
        return f"`{text}`"
    return re.sub(r"(\b(?:Treatment|treatment)\((?:\w+ ?= ?)?)(-?[0-9.]+)(?=[,)])", r"\1'\2'", text)


def marked(text: str) -> str:
    """An expression in which formulaic can read columns that have the names of keywords of Python, such as `class`.

    To formulaic, backticks make a name of what is no identifier; keywords are identifiers, and stay keywords.
    """
    return _KEYWORD.sub(rf"`\1{_MARK}`", text)


def unmarked(text: str) -> str:
    """An expression, or a name, that was `marked`, as it was."""
    return text.replace(_MARK, "")


def marked_names(frame: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a frame, those with the names of keywords also as expressions that were `marked` have them."""
    return {**frame, **{f"{name}{_MARK}": frame[name] for name in frame if keyword.iskeyword(name)}}


def parse_factor(text: str) -> Factor:
    """Check a factor, and find the columns that it uses. Raise SourceError where a part of it is not allowed.

    >>> parse_factor("log(`dep delay` + 1)").numbers
    ('dep delay',)
    >>> parse_factor("__import__('os').system('ls')")
    Traceback (most recent call last):
    kalprox.sources.files.SourceError: formula must not have __import__('os').system('ls'): a call of ...
    """
    aliases: dict[str, str] = {}
    code = _NAME.sub(lambda found: f" {aliases.setdefault(found[1], f'column_{len(aliases)}_')} ", text)
    try:
        if len(code) > _LONGEST:
            raise ValueError
        tree = ast.parse(code.strip(), mode="eval").body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        hint = f" If it is a column, write `{text}`, in backticks." if keyword.iskeyword(text) else ""
        raise formula_error(f"must have expressions of Python as factors; got {text[:200]!r}.{hint}") from None
    walk = _Walk(text, {alias: name for name, alias in aliases.items()})
    if isinstance(tree, ast.Name):
        return Factor(text, lookup=walk.name(tree))
    if _function(tree) == "C":
        walk.categories(tree)
    else:
        walk.number(tree, 0)
    return Factor(text, tuple(dict.fromkeys(walk.numbers)), tuple(walk.levels), None, walk.stateful, walk.reference)


def _function(node: ast.AST) -> str | None:
    """The name of the function that a call calls, such as "log" for log(x) and np.log(x); None for anything else."""
    if not isinstance(node, ast.Call):
        return None
    return _named(node.func)


def _named(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("np", "contr"):
        return f"{node.value.id}.{node.attr}"
    return None


_EXPECTED = {
    "df": f"a whole number up to {_MOST}",
    "order": f"a whole number up to {_MOST}",
    "degree": f"a whole number up to {_HIGHEST}",
    "raw": "True or False",
    "include_intercept": "True or False",
    "constraints": "'center'",
    "extrapolation": "'clip', 'extend', 'zero' or 'na'",
    "knots": f"a list of up to {_MOST} numbers",
    "period": "a number > 0",
}  # the arguments of functions, in words


def _is_argument(name: str, value: Any) -> bool:
    """Whether a constant is allowed as the argument of a function of a formula."""
    if name in ("df", "degree", "order"):
        return type(value) is int and 1 <= value <= (_HIGHEST if name == "degree" else _MOST)
    if name in ("raw", "include_intercept"):
        return isinstance(value, bool)
    if name == "constraints":
        return value is None or value == "center"
    if name == "extrapolation":
        return value in ("clip", "na", "zero", "extend")
    numbers = value if name == "knots" and isinstance(value, (list, tuple)) else [value]
    finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
    return finite and len(numbers) <= _MOST and (name != "period" or value > 0)


@dataclass
class _Walk:
    """Goes over the parts of a factor."""

    text: str
    aliases: dict[str, str]

    def __post_init__(self) -> None:
        self.numbers: list[str] = []
        self.levels: list[str] = []
        self.stateful: dict[str, str] = {}
        self.reference: str | None = None

    def refuse(self, why: str) -> SourceError:
        return formula_error(
            f"must not have {self.text[:200]}: {why}. Allowed are columns (in backticks where they are no "
            f"identifiers), numbers, + - * / **, I(), C(), fourier(), {', '.join(f'{name}()' for name in STATEFUL)}, "
            f"and {', '.join(FUNCTIONS)}."
        )

    def name(self, node: ast.Name) -> str:
        if node.id.startswith("__"):
            raise self.refuse(f"the name {node.id}")
        return self.aliases.get(node.id, node.id)

    def number(self, node: ast.AST, depth: int, *, inside: bool = False) -> None:
        """Check an expression of numbers; `inside` says that it is the argument of center() and the like."""
        if depth > _DEEPEST:
            raise self.refuse("it is nested too deep")
        if isinstance(node, ast.Name):
            self.numbers.append(self.name(node))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            self.number(node.operand, depth + 1, inside=inside)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            self.number(node.left, depth + 1, inside=inside)
            self.number(node.right, depth + 1, inside=inside)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            self.power(node, depth, inside=inside)
        elif isinstance(node, ast.Call):
            self.call(node, depth, inside=inside)
        elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
            raise self.refuse(f"{type(node).__name__} is no part of an expression of numbers")

    def power(self, node: ast.BinOp, depth: int, *, inside: bool) -> None:
        exponent = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
        number = exponent.value if isinstance(exponent, ast.Constant) else None
        if type(number) not in (int, float) or abs(number) > _HIGHEST:  # type: ignore[arg-type]
            raise self.refuse(f"an exponent must be a number up to {_HIGHEST}")
        before = len(self.numbers)
        self.number(node.left, depth + 1, inside=inside)
        if len(self.numbers) == before:
            raise self.refuse("a power must be one of a column")

    def call(self, node: ast.Call, depth: int, *, inside: bool) -> None:
        name = _function(node)
        plain = (name or "").removeprefix("np.")
        if name in _OF_OTHER_ROWS:
            raise self.refuse(f"{name}() is not known here; make a column of it beforehand")
        stateful = name in STATEFUL
        if not (stateful or name in ("I", "fourier") or plain in FUNCTIONS):
            raise self.refuse(f"a call of {ast.unparse(node.func)[:80]!r}")
        if (stateful and inside) or (name in _BASES and depth > 0):
            raise self.refuse(f"{name}() inside of another expression")
        names = ("period", "order") if name == "fourier" else STATEFUL.get(name or "", ())
        arguments = self.arguments(node, str(name), names)
        stateful = stateful and arguments.get("raw") is not True
        self.number(node.args[0], depth + 1, inside=inside or stateful)
        if stateful:
            self.stateful[self.shown(node)] = self.shown(node.args[0])

    def shown(self, node: ast.AST) -> str:
        """The text of a part, with names in backticks where the formula has them so."""
        text = ast.unparse(node)
        for alias, name in self.aliases.items():
            text = re.sub(rf"\b{alias}\b", lambda _, name=name: f"`{name}`", text)  # type: ignore[misc]
        return text

    def arguments(self, node: ast.Call, function: str, names: tuple[str, ...]) -> dict[str, Any]:
        """Check the arguments of a call after the first, and return them."""
        good = 0 < len(node.args) <= 1 + len(names) and not any(isinstance(value, ast.Starred) for value in node.args)
        if not good or not all(keyword.arg in names for keyword in node.keywords):
            takes = f" and {', '.join(names)}" if names else " here"
            raise self.refuse(f"{function}() takes one expression{takes}")
        try:
            found = arguments_of(node, names)
        except ValueError:
            raise self.refuse(f"the arguments of {function}() after the first must be constants") from None
        for name, value in found.items():
            if not _is_argument(name, value):
                raise self.refuse(f"{name} must be {_EXPECTED.get(name, 'a number')}; got {value!r}")
        if function in ("cr", "cc") and found.get("df", 3) < 3:
            raise self.refuse(f"{function}() has at least 3 degrees of freedom, df")
        if function == "fourier" and "period" not in found:
            raise self.refuse("fourier() needs the period of its waves, as in fourier(x, 24, order=2)")
        return found

    def categories(self, node: ast.AST) -> None:
        """Check C(column), or C(column, contrasts)."""
        assert isinstance(node, ast.Call)
        if not node.args or len(node.args) > 2 or node.keywords or not isinstance(node.args[0], ast.Name):
            raise self.refuse("C() takes a column, and a contrast such as Treatment('a') or contr.sum")
        self.levels.append(self.name(node.args[0]))
        for contrast in node.args[1:]:
            name = _named(contrast) or _function(contrast)
            if name not in (*_PATSY, *(f"contr.{known}" for known in _CONTRASTS)):
                raise self.refuse(f"the contrast {ast.unparse(contrast)[:80]!r}")
            given = [*contrast.args, *(k.value for k in contrast.keywords)] if isinstance(contrast, ast.Call) else []
            keywords = [k.arg for k in contrast.keywords] if isinstance(contrast, ast.Call) else []
            if not all(isinstance(value, ast.Constant) for value in given) or None in keywords:
                raise self.refuse("the arguments of a contrast must be constants")
            if name.lower().endswith("treatment") and given:
                self.reference = str(given[0].value)  # type: ignore[attr-defined]
