"""Every public name is documented: what it takes, what it returns, an example that runs, and a place on the site."""

import functools
import inspect
import re
from pathlib import Path

import pytest

import kalprox as kp
from kalprox import paper
from kalprox.adapters import river

DOCS = Path(__file__).parents[1] / "docs"
MODULES = (
    "covariance",
    "decisions",
    "forgetting",
    "likelihoods",
    "models",
    "penalties",
    "regularizers",
    "structures",
)


def public():
    """Every public name with what it stands for; the names of modules are prefixed, as users write them."""
    yield from ((name, getattr(kp, name)) for name in kp.__all__ if name not in MODULES)
    for module in MODULES:
        found = getattr(kp, module)
        yield from ((f"{module}.{name}", getattr(found, name)) for name in found.__all__)
    yield from ((f"adapters.river.{name}", getattr(river, name)) for name in river.__all__)
    yield from ((f"paper.{name}", getattr(paper, name)) for name in paper.__all__)


def members(cls):
    """The public methods and properties of a class that are written in kalprox, each with the class that has it."""
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        ours = inspect.isfunction(function) and function.__module__.startswith("kalprox")
        if ours and not name.startswith("_"):
            yield name, getattr(cls, name), isinstance(member, property)


NAMES = dict(public())
CALLABLE = {name: item for name, item in NAMES.items() if callable(item)}
CLASSES = {name: item for name, item in CALLABLE.items() if inspect.isclass(item)}
METHODS = {
    f"{name}.{method}": (cls, function)
    for name, cls in CLASSES.items()
    for method, function, is_property in members(cls)
    if not is_property
}


def section(item, *titles):
    """The text of the first of these sections of a docstring in numpydoc's form; empty if there is none."""
    text = inspect.getdoc(item) or ""
    for title in titles:
        found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n---|\Z)", text, flags=re.S | re.M)
        if found:
            return found[1]
    return ""


def described(item):
    """The names that the table of parameters describes; the fields of a tuple may be called attributes."""
    tables = section(item, "Parameters") + section(item, "Attributes")
    return {
        n.strip().lstrip("*") for line in re.findall(r"^(\S.*?)(?: :|$)", tables, flags=re.M) for n in line.split(",")
    }


def missing_parameters(item):
    names = [p for p in inspect.signature(item).parameters if p not in ("self", "cls")]
    return [name for name in names if name not in described(item)]


def returns_nothing(function):
    return inspect.signature(function).return_annotation in (None, "None")


@functools.cache
def example(item):
    """The statements in the docstring of an item."""
    return "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) (.*)$", inspect.getdoc(item) or "", flags=re.M))


def is_used(name, cls):
    """Whether an example of a class or of one above it calls this method."""
    call = re.compile(rf"\.{name.rpartition('.')[2]}\(")
    return any(call.search(example(above)) for above in cls.__mro__ if above in CLASSES.values())


# One test for all names: a thousand tests of a millisecond each take much longer to hand out than to run.
def test_a_public_name_says_what_it_takes_and_returns_and_has_an_example():
    for name, item in CALLABLE.items():
        assert missing_parameters(item) == [], name
        assert inspect.isclass(item) or section(item, "Returns", "Yields"), name
        assert example(item), name


def test_a_public_method_says_what_it_takes_and_returns_and_is_used_in_an_example():
    for name, (cls, function) in METHODS.items():
        assert missing_parameters(function) == [], name
        assert returns_nothing(function) or section(function, "Returns", "Yields"), name
        assert example(function) or is_used(name, cls), name


def test_every_property_says_what_it_is():
    for name, cls in CLASSES.items():
        empty = [n for n, member, is_property in members(cls) if is_property and not inspect.getdoc(member)]
        assert empty == [], name


def test_every_public_name_is_on_the_site():
    page = (DOCS / "reference" / "api.md").read_text()
    listed = re.findall(r"^   (?:kalprox\.)?([\w.]+)$|autodata:: kalprox\.([\w.]+)$", page, flags=re.M)
    found = [a or b for a, b in listed]
    assert set(NAMES) - set(found) == set() and len(found) == len(set(found))


def test_the_built_site_has_a_place_for_every_public_name_and_method():
    built = DOCS / "_build" / "html" / "reference"
    if not built.exists():
        pytest.skip("the site is not built: make docs")
    pages = "".join(page.read_text() for page in [built / "api.html", *sorted((built / "generated").glob("*.html"))])
    places = set(re.findall(r'id="kalprox\.([\w.]+)"', pages))
    assert {*NAMES, *METHODS} - places == set()
