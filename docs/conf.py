"""The documentation site: `make docs` builds it into docs/_build/html."""

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import kalprox

os.environ.setdefault(
    "JAX_PLATFORMS", "cpu"
)  # inherited by the kernels that run pages: the site is the same everywhere

project = "kalprox"
author = "The kalprox authors"
project_copyright = author
version = release = kalprox.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py"]
templates_path = ["_templates"]
nitpicky = True
highlight_language = "text"  # formulas in docstrings are no code
smartquotes = False  # an apostrophe is a transpose: X'X

# ---- pages ---------------------------------------------------------------------------------------------------

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent / "_build" / "jupyter_cache")
nb_execution_in_temp = True  # the files that a page writes are not left beside it
nb_execution_timeout = 120  # seconds for one cell
nb_execution_raise_on_error = True
nb_merge_streams = True

# ---- reference -----------------------------------------------------------------------------------------------

default_role = "code"
autosummary_generate = True
autosummary_filename_map = {"kalprox.Run": "kalprox.Run-class"}  # a file system may not tell Run from run
autodoc_typehints = "none"  # the types are in the tables of parameters
autodoc_member_order = "groupwise"
python_maximum_signature_line_length = 88  # a longer one has a line for each parameter
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False  # the methods are on the page of their class
numpydoc_class_members_toctree = False

# ---- gallery -------------------------------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # every script is run
    "ignore_pattern": r"/_",
    "within_subsection_order": "FileNameSortKey",
    "doc_module": ("kalprox",),
    "backreferences_dir": "gallery/backreferences",
    "inspect_global_variables": False,
    "image_srcset": ["2x"],
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "thumbnail_size": (720, 500),
    "remove_config_comments": True,
}

# ---- looks ---------------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "kalprox"
html_static_path = ["_static"]
html_css_files = ["kalprox.css"]
html_favicon = "_static/mark.svg"
html_copy_source = False
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "kalprox", "image_light": "_static/mark.svg", "image_dark": "_static/mark.svg"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "pygments_light_style": "github-light",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {"index": []}
# One file with its fonts inside, from a package: formulas are drawn without a request to another machine.
mathjax_path = "tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}}


def _copy_mathjax(app: Sphinx, error: Exception | None) -> None:
    """Put MathJax beside the other scripts of the built site."""
    package = find_spec("sphinx-mathjax-offline")
    if package is None or package.origin is None:
        raise ExtensionError("Formulas need sphinx-mathjax-offline: pip install --group docs")
    if error is None:
        script = Path(package.origin).parent / "static" / "mathjax" / mathjax_path
        shutil.copy(script, app.outdir / "_static" / mathjax_path)


def _skip_inherited_from_elsewhere(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave out members that are not written in kalprox: those of scikit-learn's base classes and of tuples."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    home = getattr(function, "__module__", "kalprox")
    field = str(getattr(member, "__doc__", "")).startswith("Alias for field")  # which the table of attributes has
    return True if field or home is None or not str(home).startswith("kalprox") else None


def _public() -> dict[str, str]:
    """The places of public names on the site, by how docstrings write them: in full, and classes without a module."""
    modules = ("covariance", "forgetting", "likelihoods", "models", "regularizers", "structures")
    names = [name for name in kalprox.__all__ if name not in modules]
    names += [f"{module}.{name}" for module in modules for name in getattr(kalprox, module).__all__]
    short = {name.rpartition(".")[2]: f"kalprox.{name}" for name in names if name.rpartition(".")[2][0].isupper()}
    return {f"kalprox.{name}": f"kalprox.{name}" for name in names} | short


_PLACES = _public()


def _prepare(app: Sphinx, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Make reStructuredText of a docstring.

    Public names become links, indented formulas literal, and the bars of |x| do not start a substitution.
    """
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`+[^`]+`+)", line)
            for k, part in enumerate(parts):
                place = _PLACES.get(part.strip("`")) if k % 2 and not part.startswith("``") else None
                if place is not None and place != name:
                    parts[k] = f":py:obj:`{part.strip('`')} <{place}>`"
                elif not k % 2:
                    parts[k] = part.replace("|", r"\|")
            lines[i] = "".join(parts)
    sections = next((i for i, line in enumerate(lines) if line.startswith("---")), len(lines))
    for i in range(sections - 1, 1, -1):
        if lines[i].startswith("    ") and not lines[i - 1] and not lines[i - 2].startswith((" ", "::")):
            lines[i:i] = ["::", ""]


def _without_factories(
    app: Sphinx, what: str, name: str, item: object, options: object, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Leave out the arguments of a class that is made empty: its fields, which start as arrays of zeros."""
    return ("()", returns) if signature and "<factory>" in signature else None


def setup(app: Sphinx) -> None:
    app.connect("build-finished", _copy_mathjax)
    app.connect("autodoc-skip-member", _skip_inherited_from_elsewhere)
    app.connect("autodoc-process-signature", _without_factories)
    app.connect("autodoc-process-docstring", _prepare, priority=100)
