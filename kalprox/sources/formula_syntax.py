"""What a formula may say: the terms, and the expressions that are allowed in them.

The library formulaic evaluates the factors of a formula as Python code. A formula may come from a model file, so every
factor is checked first: it is refused unless each of its parts is in the lists below.
"""

import ast
import keyword
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kalprox.sources.files import SourceError
from kalprox.sources.formula_functions import FUNCTIONS, STATEFUL, arguments_of, formula_error, load_formulaic

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
    names: dict[str, str] = {}

    def alias(found: re.Match[str]) -> str:
        return f" {next((k for k, v in names.items() if v == found[1]), None) or _added(names, found[1])} "

    code = _NAME.sub(alias, text)
    try:
        if len(code) > _LONGEST:
            raise ValueError
        tree = ast.parse(code.strip(), mode="eval").body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        hint = f" If it is a column, write `{text}`, in backticks." if keyword.iskeyword(text) else ""
        raise formula_error(f"must have expressions of Python as factors; got {text[:200]!r}.{hint}") from None
    walk = _Walk(text, names)
    if isinstance(tree, ast.Name):
        return Factor(text, lookup=walk.name(tree))
    if _function(tree) == "C":
        walk.categories(tree)
    else:
        walk.number(tree, 0)
    return Factor(text, tuple(dict.fromkeys(walk.numbers)), tuple(walk.levels), None, walk.stateful, walk.reference)


def _added(names: dict[str, str], name: str) -> str:
    names[f"column_{len(names)}_"] = name
    return f"column_{len(names) - 1}_"


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
