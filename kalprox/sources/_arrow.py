"""Imports pyarrow, or says what to install where it is missing."""

from typing import Any

from kalprox.base import extras


def load(name: str) -> Any:
    """Import the module `name` of pyarrow."""
    return extras.load(name, "files", "Reading files needs")


pa: Any = load("pyarrow")
pc: Any = load("pyarrow.compute")
