"""Imports pyarrow, or says what to install where it is missing."""

from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    """Import the module `name` of pyarrow."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError("Reading files needs pyarrow: pip install 'kalprox[files]'") from error


pa: Any = load("pyarrow")
pc: Any = load("pyarrow.compute")
