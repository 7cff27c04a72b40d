"""Packages that come with the extras of kalprox: they are loaded here, and one message names all that is missing."""

from importlib import import_module, util
from typing import Any

_FILES = ("filelock", "pyarrow", "sklearn")
EXTRAS = {  # the modules that an extra installs, with those of the extras in it
    "dask": ("dask", "distributed", *_FILES),
    "estimator": ("sklearn",),
    "files": _FILES,
    "formula": ("formulaic", "pandas", *_FILES),
    "jax": ("jax",),
    "processes": ("cloudpickle",),
    "report": ("jinja2", "matplotlib"),
    "river": ("river", "sklearn"),
    "spark": ("pyspark", *_FILES),
}
_PACKAGES = {"sklearn": "scikit-learn"}  # where the package has another name than its module


def load(name: str, extra: str, purpose: str) -> Any:
    """Import a module of a package that comes with an extra.

    Parameters
    ----------
    name : str
        The name of the module.
    extra : str
        A key of `EXTRAS`.
    purpose : str
        What needs the module: the subject and the verb of the message.

    Raises
    ------
    ImportError
        It names all packages of the extra that are not installed, and how to install them.
    """
    try:
        return import_module(name)
    except ImportError as error:
        if _missing(extra):
            raise not_installed(extra, purpose) from error
        raise ImportError(f"{purpose} {name}, which is installed but cannot be imported: {error}") from error


def require(extra: str, purpose: str) -> None:
    """Raise the error of `load` unless all packages of an extra are installed. Nothing is imported."""
    if _missing(extra):
        raise not_installed(extra, purpose)


def is_installed(extra: str) -> bool:
    """Whether all packages of an extra are installed. Nothing is imported."""
    return not _missing(extra)


def not_installed(extra: str, purpose: str) -> ImportError:
    """Return the error that names all packages of an extra that are not installed."""
    *others, last = _missing(extra)
    names = f"{', '.join(others)} and {last}" if others else last
    return ImportError(f'{purpose} {names}: pip install "kalprox[{extra}]"')


def _missing(extra: str) -> list[str]:
    return [_PACKAGES.get(name, name) for name in EXTRAS[extra] if util.find_spec(name) is None]
