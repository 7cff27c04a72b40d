"""How dataclasses with cached properties are pickled."""

from dataclasses import fields
from typing import Any

__all__ = ["PickledFields"]


class PickledFields:
    """Base of a dataclass of which only the fields are pickled and copied.

    Cached properties are computed again when they are needed. They could not be pickled safely: another thread may
    compute one, and so change the size of the dictionary, while it is being read.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
